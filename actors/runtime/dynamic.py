"""Any number of children of one kind, up to a bound, that come and go.

One child's crashes are no other child's business: the intensity is counted for each child, and a child that crashes too
often is given up alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actors.runtime.actor import Actor
from actors.runtime.exits import SHUTDOWN, AlreadyStarted, AtCapacity, Exit, SystemClosed
from actors.runtime.intensity import Intensity, Restarts
from actors.runtime.ref import Ref
from actors.runtime.supervisor import RESTARTS, BaseSupervisor, Restart


@dataclass(slots=True)
class _Child:
    """`ref` is None between a crash and the restart: the name stays taken meanwhile."""

    ref: Ref | None
    factory: Callable[[], Actor] | None
    restart: Restart
    restarts: Restarts | None = None


@dataclass(frozen=True, slots=True)
class _Again:
    """A child is to be started again, in the supervisor's own turn."""

    name: str
    reason: Exit


class DynamicSupervisor(BaseSupervisor):
    """Starts children on demand; spawn it before use."""

    def __init__(self, max_children: int, intensity: Intensity = Intensity()) -> None:  # noqa: B008 - frozen
        if max_children < 1:
            raise ValueError("max_children must be at least 1")
        self._max_children = max_children
        self._intensity = intensity
        self._children: dict[str, _Child] = {}

    def __len__(self) -> int:
        """The children, those being restarted included."""
        return len(self._children)

    def children(self) -> list[Ref]:
        """Those that are alive."""
        return [child.ref for child in self._children.values() if child.ref is not None]

    def start_child(
        self,
        actor: Actor,
        name: str | None = None,
        factory: Callable[[], Actor] | None = None,
        restart: Restart = Restart.TRANSIENT,
    ) -> Ref:
        """Starts `actor`. With a factory it is started again as `restart` says, from what the factory makes; without
        one it is temporary.

        Raises AtCapacity, AlreadyStarted, or SystemClosed when it is ending or draining.
        """
        if self.closing:
            raise SystemClosed(f"{self.ctx.name} is ending")
        if len(self._children) >= self._max_children:
            raise AtCapacity(f"{self.ctx.name} has {self._max_children} children")
        if name in self._children:
            raise AlreadyStarted(name, self._children[name].ref)
        cell = self.ctx.system.create(actor, name, self)
        self._children[cell.ref.name] = _Child(cell.ref, factory, restart if factory else Restart.TEMPORARY)
        cell.start()
        return cell.ref

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        """Frees its place at once, unless it is to be restarted."""
        child = self._children.get(ref.name)
        if child is None or child.ref is not ref:
            return
        if self.closing or reason.kind not in RESTARTS[child.restart] or not self._allowed(child):
            del self._children[ref.name]
        else:
            child.ref = None
            self.ctx.ref.reply(_Again(ref.name, reason))

    def receive(self, message: Any) -> None:
        """Starts a child again."""
        assert isinstance(message, _Again)
        child = self._children[message.name]
        if self.closing:
            del self._children[message.name]
            return
        assert child.factory is not None
        cell = self.ctx.system.create(child.factory(), message.name, self)
        child.ref = cell.ref
        cell.start()

    def stopped(self, reason: Exit) -> None:
        """Ends the children, last first."""
        self.closing = True
        children, self._children = self._children, {}
        for child in reversed(children.values()):
            if child.ref is not None:
                child.ref.cell.end(SHUTDOWN)

    def phases(self) -> Iterator[Sequence[Ref]]:
        """All together."""
        yield self.children()

    def _allowed(self, child: _Child) -> bool:
        if child.restarts is None:
            child.restarts = Restarts(self._intensity)
        return child.restarts.allow(self.ctx.now())
