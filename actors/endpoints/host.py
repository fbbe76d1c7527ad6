"""What an endpoint has around it: the actor of its client, the actors that all clients work with, values that they
share, and what a server is told of a client."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Protocol, TypeAlias

from msgspec import Raw

from actors.doubt import Doubt
from actors.endpoints.last_known import Key, LastKnown, neutral
from actors.endpoints.slow import SlowServers
from actors.machines.session import events as ev
from actors.machines.session.state import Client
from actors.machines.upstream.events import ServerInfo
from actors.machines.upstream.legacy_state import Profile
from actors.named import NamedRef
from actors.ports import Principal, Rights
from actors.protocol import capabilities, tasks
from actors.protocol import payload as json
from actors.protocol.messages import base36
from actors.protocol.operations import Operation
from actors.protocol.steady import Items
from actors.protocol.table import BackendSpec
from actors.protocol.versions import can_use
from actors.runtime import Context, DynamicSupervisor
from actors.upstreams.backends import Status
from actors.upstreams.eras import Eras

MEMO_SIZE = 512
"""Different views kept ready; a gateway has about as many as it has kinds of clients."""
MEMO_BYTES = 256 * 1024 * 1024
"""Of all values, about: a server with a long list that is another one each time must not fill the memory with old ones.
"""


@dataclass(slots=True)
class Memo:
    """Merged lists and tables by what they were made of, shared by all sessions of the process."""

    versions: "OrderedDict[bytes, int]" = field(default_factory=OrderedDict)
    values: "OrderedDict[tuple[object, ...], object]" = field(default_factory=OrderedDict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    sizes: dict[tuple[object, ...], int] = field(default_factory=dict)
    size: int = 0
    """Of all values."""

    def version(self, items: Items) -> int:
        """The same number for the same items, as long as they are remembered; never one number for two contents."""
        digest = sha256()
        for item in items:
            digest.update(b"%d," % len(item))
            digest.update(item)
        key = digest.digest()
        number = self.versions.get(key)
        if number is None:
            number = self.versions[key] = next(self.numbers)
            if len(self.versions) > 4 * MEMO_SIZE:
                self.versions.popitem(last=False)
        else:
            self.versions.move_to_end(key)
        return number

    def get(self, key: tuple[object, ...], make: Callable[[], object], of: Iterable[Items] = ()) -> object:
        """The value for the key, made once, of these lists. What was not used for longest makes room."""
        value = self.values.get(key)
        if value is not None:
            self.values.move_to_end(key)
            return value
        value = self.values[key] = make()
        self.sizes[key] = sum(len(item) for items in of for item in items)
        self.size += self.sizes[key]
        while len(self.values) > MEMO_SIZE or (self.size > MEMO_BYTES and len(self.values) > 1):
            oldest, _ = self.values.popitem(last=False)
            self.size -= self.sizes.pop(oldest)
        return value


@dataclass(frozen=True, slots=True)
class Tree:
    """The actors that clients work with, and what they share."""

    upstreams: DynamicSupervisor
    backends: NamedRef
    catalogue: NamedRef
    expiry: NamedRef
    server_infos: dict[Key, ServerInfo]
    """What each backend last said of itself to the catalogue."""
    memo: Memo
    """Merged lists and tables, shared by all sessions."""
    doubt: Doubt
    """Whether this process is still the owner of what it holds."""
    known: LastKnown
    """What outlives the process of what the catalogue knows."""
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a connection of anybody's has said that a list has changed: by backend and notification."""
    eras: Eras = field(default_factory=Eras)
    """Which era each backend speaks."""
    missing: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """By endpoint and list: what was missing when it was given last."""
    status: dict[str, Status] = field(default_factory=dict)
    """How each backend is, as the backends actor knows it."""
    slow: SlowServers = field(default_factory=SlowServers)
    """To list."""
    slow_listens: SlowServers = field(default_factory=SlowServers)
    """To acknowledge a subscription. Many of them list all the same."""

    def server_info(self, key: Key) -> ServerInfo | None:
        """What a backend last said of itself in this view, or to the gateway itself; perhaps before the last start."""
        found = self.server_infos.get(key) or self.server_infos.get(neutral(key.backend))
        return found or self.known.server_info(key)

    def surely(self, key: Key) -> bool:
        """Whether it said so in this very view."""
        return key in self.server_infos or self.known.server_info(key, exactly=True) is not None


CallEvent: TypeAlias = ev.CallEnded | ev.CallProgressed
"""What the clients of every kind are told."""


class Host(Protocol):
    """What an endpoint needs of the actor of its client."""

    ctx: Context
    principal: Principal
    rights: Rights
    """Those by which the client sees what it is told unasked: of its last message."""

    def event(self, event: CallEvent) -> None:
        """Steps the client's machine."""

    def sent(self, call: int, backend: str) -> None:
        """A call goes to this server."""

    def operation(self, call: int) -> Operation | None:
        """What observes a call, where somebody does."""

    def routed(self, call: int) -> None:
        """A call that had to wait has found its backend."""

    @property
    def client(self) -> Client | None:
        """What the client said of itself."""

    @property
    def version(self) -> str:
        """The revision that the client speaks."""


# What a server is told of the client behind a connection --------------------------------------------------------

ASKABLE = {"sampling", "elicit.form", "elicit.url"}
"""What a backend asks for in the course of a call."""


def profile_of(
    client: Client | None,
    bits: capabilities.ClientBits,
    epoch: int,
    identity: bytes,
    version: str = "",
    principal: Principal | None = None,
) -> Profile:
    """Of a client with these bits, in the life of its session with this epoch; None: of the gateway itself, for a
    connection that several use, over which nothing may be asked since the answer would be anybody's. `version` is the
    client's revision, where the connection is its session's own: such a client may have tasks."""
    prefix = base36(epoch)
    if client is None:
        return Profile(Raw(b"{}"), Raw(identity), False, f"{prefix}s", principal=name_of(principal))
    listens = client.capabilities.has(("roots", "listChanged"))
    declared = capabilities.declare(bits, roots_list_changed=listens)
    own = can_use(version, "tasks")
    if own and "tasks" in client.capabilities.tree:
        offered = json.members(tasks.offered(client.capabilities.raw)).get("tasks")
        declared = json.replace_members(declared, {"tasks": offered})
    whose = name_of(principal)
    return Profile(declared, client.info, bool(bits & ASKABLE), prefix, tasks=own, principal=whose)


def whose_connection(spec: BackendSpec, principal: Principal) -> Principal | None:
    """Whose connection to a server such a client uses; None: everybody's."""
    return None if spec.sharing == "shared" else principal


def name_of(principal: Principal | None) -> str | None:
    """As servers of this process are told it; None for nobody in particular."""
    return None if principal is None or principal.anonymous else principal.name
