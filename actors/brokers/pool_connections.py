"""The connections of a pool to its server, by the numbers that the parking machine gives: how each is made and
introduced, and what it is told to log.

What a server logs is the client's business only where a request asked for it (2026-07-28, server/utilities/logging),
so each connection is told the most verbose level that a call on it wants.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import Raw

from actors.fronts.host import Tree
from actors.fronts.profiles import ASKABLE, profile_of, to_base36
from actors.links.link import LinkActor
from actors.links.link_messages import Join, Leave
from actors.links.links import start_link
from actors.ports import Grant
from actors.protocol import capabilities
from actors.protocol import payload as json
from actors.protocol.capabilities import LEVELS, ClientBits
from actors.protocol.errors import Malformed
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.table import BackendSpec, StdioTarget
from actors.runtime import AtCapacity, Context, Ref, SystemClosed
from actors.services import Services

LENT = frozenset({"roots", *ASKABLE})
"""What a client can be asked in the course of a call."""


def leased(spec: BackendSpec, bits: ClientBits) -> bool:
    """Whether calls take turns: something may be asked, and the transport does not say for which call."""
    return bool(bits & LENT) and spec.sharing != "shared" and isinstance(spec.target, StdioTarget)


@dataclass(slots=True)
class PooledConnection:
    """One of them. `level` is the last one that the server was told over it."""

    number: int
    ref: Ref
    hello: Hello | None = None
    level: str | None = None


class PooledConnections:
    """Those of one pool. `info` is the Implementation of the client that the server hears of."""

    def __init__(self, backend: str, bits: ClientBits, services: Services, tree: Tree, ctx: Context) -> None:
        self.by_number: dict[int, PooledConnection] = {}
        self.info = Raw(b"")
        self._backend = backend
        self._bits = bits
        self._services = services
        self._tree = tree
        self._ctx = ctx

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def first(self) -> PooledConnection | None:
        """The one over which the server's hidden state is."""
        return self.by_number[min(self.by_number)] if self.by_number else None

    def of(self, ref: Ref) -> PooledConnection | None:
        """The one whose actor this is."""
        return next((found for found in self.by_number.values() if found.ref is ref), None)

    def open(self, number: int, grant: Grant, level: str | None) -> PooledConnection | None:
        """A new connection; None if none can be had: without a configuration, at a bound, or while the gateway ends."""
        spec = self._services.table.value.backends.get(self._backend)
        if spec is None:
            return None
        level = level if spec.sharing != "shared" else None

        def make() -> LinkActor:
            profile, tree = self._profile(spec, grant), self._tree
            return LinkActor(spec, profile, self._services, tree.backends, level=level, eras=tree.eras)

        try:
            ref = start_link(spec, self._ctx.system.registry, self._tree.links, make)
        except (AtCapacity, SystemClosed):
            return None
        self._ctx.monitor(ref)
        ref.reply(Join(self._ctx.ref))
        opened = self.by_number[number] = PooledConnection(number, ref, level=level)
        return opened

    def _profile(self, spec: BackendSpec, grant: Grant) -> Profile:
        """The gateway, with the client's name in its title; and what exactly this kind of client can be asked."""
        if spec.sharing == "shared":
            return profile_of(None, frozenset(), grant.epoch, self._services.identity)
        declared = capabilities.declare(self._bits)
        return Profile(declared, self._introduced(), leased(spec, self._bits), to_base36(grant.epoch))

    def _introduced(self) -> Raw:
        own = Raw(self._services.identity)
        try:
            said, ours = json.members(self.info), json.members(own)
            name = json.text_or_none(said.get("title")) or json.text_or_none(said.get("name"))
            if not name:
                return own
            me = json.text_or_none(ours.get("title")) or json.text_or_none(ours.get("name"))
            return json.replace_members(own, {"title": json.dumps(f"{me} for {name[:128]}")})
        except Malformed:
            return own

    def drop(self, number: int) -> PooledConnection | None:
        """One that has ended, or that is needed no more: it closes by itself."""
        found = self.by_number.pop(number, None)
        if found is not None:
            self._ctx.demonitor(found.ref)
            found.ref.reply(Leave(self._ctx.ref))
        return found

    def wants(self, connection: PooledConnection, levels: Iterable[str | None]) -> str | None:
        """The level that the server must be told for calls that want these; None if it logs so, or has no logging."""
        wanted = min((level for level in levels if level is not None), key=LEVELS.index, default=None)
        if wanted == connection.level:
            return None
        spec, hello = self._services.table.value.backends.get(self._backend), connection.hello
        shared = spec is not None and spec.sharing == "shared"
        if shared or (hello is not None and not capabilities.parse(hello.capabilities).has(("logging",))):
            return None
        return wanted
