"""The connections of a broker to its backend, each a link of its own, by the numbers that the parking machine gives.

What a backend logs is the client's business only where a request asked for it (2026-07-28, server/utilities/logging),
so each connection is told the most verbose level that a call on it wants.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import Raw

from actors.fronts.host import Tree
from actors.fronts.profiles import profile_of, to_base36
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
from actors.runtime import Context, Ref
from actors.services import Services

ASKABLE = frozenset({"roots", "sampling", "elicit.form", "elicit.url"})
"""What a client can be asked in the course of a call."""


def leased(spec: BackendSpec, bits: ClientBits) -> bool:
    """Whether calls take turns: something may be asked, and the transport does not say for which call."""
    return bool(bits & ASKABLE) and spec.sharing != "shared" and isinstance(spec.target, StdioTarget)


@dataclass(slots=True)
class Line:
    """One connection. `level` is the last one that the backend was told."""

    ref: Ref
    hello: Hello | None = None
    level: str | None = None


class Lines:
    """Those of one broker. `info` is the Implementation of the client that opens the first."""

    def __init__(self, backend: str, bits: ClientBits, services: Services, tree: Tree, ctx: Context) -> None:
        self.info = Raw(b"")
        self._backend = backend
        self._bits = bits
        self._services = services
        self._tree = tree
        self._ctx = ctx
        self._lines: dict[int, Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, line: int) -> Line | None:
        """One that is there."""
        return self._lines.get(line)

    def first(self) -> Line | None:
        """The one with the backend's hidden state."""
        return self._lines[min(self._lines)] if self._lines else None

    def number(self, ref: Ref) -> int:
        """Of a link; 0 for one that is none of ours."""
        return next((number for number, line in self._lines.items() if line.ref is ref), 0)

    def numbers(self) -> Iterable[int]:
        """Of all."""
        return tuple(self._lines)

    def open(self, line: int, grant: Grant, level: str | None) -> Line | None:
        """The connection with this number, which is made if it is not there; None without a configuration. Raises
        AtCapacity, SystemClosed."""
        found = self._lines.get(line)
        if found is not None:
            return found
        spec = self._services.table.value.backends.get(self._backend)
        if spec is None:
            return None
        level = level if spec.sharing != "shared" else None

        def make() -> LinkActor:
            profile, tree = self._profile(spec, grant), self._tree
            return LinkActor(spec, profile, self._services, tree.backends, level=level, eras=tree.eras)

        ref = start_link(spec, self._ctx.system.registry, self._tree.links, make)
        self._ctx.monitor(ref)
        ref.reply(Join(self._ctx.ref))
        found = self._lines[line] = Line(ref, level=level)
        return found

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

    def drop(self, line: int) -> Line | None:
        """One that has ended, or that is needed no more: it closes by itself."""
        found = self._lines.pop(line, None)
        if found is not None:
            self._ctx.demonitor(found.ref)
            found.ref.reply(Leave(self._ctx.ref))
        return found

    def adjust(self, line: int, levels: Iterable[str | None], tell: Callable[[Line, str, str | None], None]) -> None:
        """Tells a connection the level that the calls on it want, if it is another and the backend has logging: with
        the one of before, which it has again if it refuses."""
        found = self._lines.get(line)
        wanted = most_verbose(levels)
        if found is None or wanted is None or wanted == found.level:
            return
        spec = self._services.table.value.backends.get(self._backend)
        shared = spec is not None and spec.sharing == "shared"
        if shared or (found.hello is not None and not capabilities.parse(found.hello.capabilities).has(("logging",))):
            return
        before, found.level = found.level, wanted
        tell(found, wanted, before)


def most_verbose(levels: Iterable[str | None]) -> str | None:
    """Of several levels, the one that lets everything through that any of them does."""
    return min((level for level in levels if level is not None), key=LEVELS.index, default=None)
