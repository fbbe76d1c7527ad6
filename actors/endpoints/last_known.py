"""The last lists and introductions known of every server, kept so that they outlive the process.

After a start they are what clients are given until the servers have answered. A value belongs to a principal, to what
its client can be asked, and to a server *as it is configured*: another command, URL, or credential is another server,
of which nothing is known. The keys are digests; neither they nor the values hold a configuration or a credential. The
format is that of a file of pins too (`actors.protocol.definitions`).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.machines.upstream.events import ServerInfo
from actors.ports import ListStore
from actors.protocol import definitions
from actors.protocol.definitions import Definitions, Introduction
from actors.protocol.steady import Items
from actors.protocol.table import BackendSpec, HttpTarget, SseTarget, StdioTarget, WebSocketTarget
from actors.services import TableCell

MAX_ENTRIES: Final = 1024
"""Values kept; the one that was written longest ago goes first."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all values; the same."""
ENTRY_BYTES: Final = 8 * 1024 * 1024
"""Of one value; what is larger is not kept."""


_T = TypeVar("_T")


class Key(Struct, frozen=True):
    """Whose view of which backend."""

    principal: str
    bits: str
    backend: str


def neutral(backend: str) -> Key:
    """The view of a client that can be asked nothing, and is nobody in particular: the gateway itself."""
    return Key("", "", backend)


def digest_of(spec: BackendSpec) -> str | None:
    """Names a server as it is configured; None for one of this process, which is there as soon as it is asked."""
    match spec.target:
        case StdioTarget(command, args, env, cwd):  # however confined, it is the same server
            target: object = ("stdio", command, args, sorted(env), cwd)
        case HttpTarget(url, headers):
            target = ("http", url, sorted(headers))
        case SseTarget(url, headers):
            target = ("sse", url, sorted(headers))
        case WebSocketTarget(url, headers):
            target = ("ws", url, sorted(headers))
        case _:
            return None
    return _digest((spec.name, spec.sharing, target))


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:32]


class LastKnown:
    """Reads and writes what was last known of each server. Without a store it knows nothing."""

    def __init__(self, store: ListStore | None, table: TableCell) -> None:
        self._store = store
        self._table = table
        self._digests: dict[str, tuple[BackendSpec, str | None]] = {}
        self._values: OrderedDict[str, Definitions] = OrderedDict()
        self._sizes: dict[str, int] = {}
        for key, value in store.load().items() if store is not None else ():
            self._read(key, value)
        self._trim()

    def _read(self, key: str, raw: bytes) -> None:
        try:
            self._values[key], self._sizes[key] = definitions.read(raw), len(raw)
        except ValueError:
            self._drop(key)

    # Asking

    def knows(self, backend: str) -> bool:
        """Whether any lists of this server are known, whosever they are."""
        server = self._server(backend)
        return server is not None and any(value.server == server and value.lists for value in self._values.values())

    def items(self, key: Key, method: str) -> Items | None:
        """The last list known in this view, or in that of nobody."""
        views = (key, neutral(key.backend))
        return self._first(views, lambda value: tuple(value.lists[method]) if method in value.lists else None)

    def server_info(self, key: Key, *, exactly: bool = False) -> ServerInfo | None:
        """What the server said of itself when it was asked last, in this view or, if not `exactly`, in that of
        nobody."""
        views = (key,) if exactly else (key, neutral(key.backend))
        return self._first(
            views, lambda value: _server_info(value.introduction) if value.introduction is not None else None
        )

    def _first(self, views: tuple[Key, ...], of: Callable[[Definitions], _T | None]) -> _T | None:
        for one in views:
            place = self._place(one)
            value = self._values.get(place) if place is not None else None
            found = of(value) if value is not None else None
            if found is not None:
                return found
        return None

    # Keeping

    def keep(self, key: Key, method: str, items: Items) -> None:
        """This is what the server lists."""

        def with_list(value: Definitions) -> Definitions:
            known = value.lists.get(method)
            if known is not None and tuple(known) == items:
                return value
            return replace(value, lists={**value.lists, method: list(items)})

        self._change(key, with_list)

    def greet(self, key: Key, server_info: ServerInfo) -> None:
        """This is what the server says of itself."""
        said = Introduction(
            server_info.version, server_info.capabilities, server_info.implementation, server_info.instructions
        )
        self._change(key, lambda value: value if value.introduction == said else replace(value, introduction=said))

    def _change(self, key: Key, change: Callable[[Definitions], Definitions]) -> None:
        place, server = self._place(key), self._server(key.backend)
        if self._store is None or place is None or server is None:
            return  # nowhere to keep it, or it is there as soon as it is asked
        before = self._values.get(place)
        after = change(before or Definitions(definitions.SCHEMA, server))
        if after is before:
            return
        raw = msgspec.json.encode(after)
        if len(raw) > ENTRY_BYTES:
            self._drop(place)
            return
        self._values[place], self._sizes[place] = after, len(raw)
        self._values.move_to_end(place)
        self._store.put(place, raw)
        self._trim()

    def _trim(self) -> None:
        while len(self._values) > MAX_ENTRIES or sum(self._sizes.values()) > MAX_BYTES:
            self._drop(next(iter(self._values)))

    def _drop(self, place: str) -> None:
        self._values.pop(place, None)
        self._sizes.pop(place, None)
        if self._store is not None:
            self._store.put(place, None)

    # Keys

    def _server(self, backend: str) -> str | None:
        spec = self._table.value.backends.get(backend)
        if spec is None or self._store is None:
            return None
        known = self._digests.get(backend)
        if known is None or known[0] is not spec:
            known = self._digests[backend] = (spec, digest_of(spec))
        return known[1]

    def _place(self, key: Key) -> str | None:
        server = self._server(key.backend)
        return _digest((server, key.principal, key.bits)) if server is not None else None


def _server_info(said: Introduction) -> ServerInfo:
    return ServerInfo(said.version, said.capabilities, said.implementation, said.instructions, Raw(b"{}"))
