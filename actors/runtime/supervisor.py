"""Who starts actors, and starts them again.

A `Supervisor` has fixed children, which start in order inside its spawn and end in the opposite order; whichever ends
is started again alone. One that has to do so too often ends itself, with the reason of the last child, and leaves the
matter to its own supervisor; at the top, the system fails. A `DynamicSupervisor` has children that come and go, up to a
bound; none of them is started again.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actors.runtime.actor import Actor
from actors.runtime.exits import SHUTDOWN, AtCapacity, Exit, SystemClosed
from actors.runtime.ref import Ref

RESTARTS = 3
RESTARTS_WITHIN = 5.0
"""More restarts than this within so many seconds end the supervisor: its children do not recover by themselves."""


@dataclass(frozen=True, slots=True)
class Child:
    """How a child is made, each time anew."""

    name: str
    factory: Callable[[], Actor]


@dataclass(frozen=True, slots=True)
class _Ended:
    """A child has ended; the supervisor deals with it in its own turn."""

    name: str
    reason: Exit


class BaseSupervisor(Actor, ABC):
    """What the runtime asks of every supervisor."""

    eager = True
    closing = False
    """Nothing is started or restarted any more."""

    @abstractmethod
    def child_ended(self, ref: Ref, reason: Exit) -> None:
        """A child that the supervisor did not end itself has ended."""

    @abstractmethod
    def phases(self) -> Iterator[Sequence[Ref]]:
        """The children in the order in which they drain: those of one phase together, phase after phase."""


class Supervisor(BaseSupervisor):
    """Starts `children`, keeps them running, ends them. A factory that raises is a crash of the supervisor."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._specs = {child.name: child for child in children}
        if len(self._specs) != len(children):
            raise ValueError(f"two children have one name: {[child.name for child in children]}")
        self._restarts: deque[float] = deque()
        self._refs: dict[str, Ref] = {}

    def started(self) -> None:
        """Starts the children, in order."""
        for name in self._specs:
            self._start(name)

    def receive(self, message: Any) -> None:
        """Starts a child that ended again, unless that was needed too often."""
        assert isinstance(message, _Ended)
        if self.closing:
            return
        if self._too_often(self.ctx.now()):
            self.ctx.stop(message.reason)
        else:
            self._start(message.name)

    def stopped(self, reason: Exit) -> None:
        """Ends the children, last first."""
        self.closing = True
        for name in reversed(self._specs):
            ref = self._refs.pop(name, None)
            if ref is not None:
                ref.cell.end(SHUTDOWN)

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        """Leaves the decision to the supervisor's own turn."""
        if self._refs.get(ref.name) is ref:
            del self._refs[ref.name]
            self.ctx.ref.reply(_Ended(ref.name, reason))

    def phases(self) -> Iterator[Sequence[Ref]]:
        """One child at a time, last first."""
        for name in reversed(self._specs):
            if name in self._refs:
                yield [self._refs[name]]

    def _start(self, name: str) -> None:
        cell = self.ctx.system.create(self._specs[name].factory(), name, self)
        self._refs[name] = cell.ref
        cell.start()

    def _too_often(self, now: float) -> bool:
        """Whether one more restart is one too many; it is counted if not."""
        times = self._restarts
        while times and now - times[0] >= RESTARTS_WITHIN:
            times.popleft()
        times.append(now)
        return len(times) > RESTARTS


class DynamicSupervisor(BaseSupervisor):
    """Starts children on demand; spawn it before use. One child's crash is no other child's business."""

    def __init__(self, max_children: int) -> None:
        if max_children < 1:
            raise ValueError("max_children must be at least 1")
        self._max_children = max_children
        self._children: dict[str, Ref] = {}

    def __len__(self) -> int:
        """How many children are alive."""
        return len(self._children)

    def children(self) -> list[Ref]:
        """The children that are alive."""
        return [*self._children.values()]

    def start_child(self, actor: Actor, name: str | None = None) -> Ref:
        """Starts `actor`. Raises AtCapacity, AlreadyStarted, or SystemClosed when it is ending or draining."""
        if self.closing:
            raise SystemClosed(f"{self.ctx.name} is ending")
        if len(self._children) >= self._max_children:
            raise AtCapacity(f"{self.ctx.name} has {self._max_children} children")
        cell = self.ctx.system.create(actor, name, self)
        self._children[cell.ref.name] = cell.ref
        cell.start()
        return cell.ref

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        """Frees its place at once."""
        if self._children.get(ref.name) is ref:
            del self._children[ref.name]

    def stopped(self, reason: Exit) -> None:
        """Ends the children, last first."""
        self.closing = True
        children, self._children = self._children, {}
        for ref in reversed(children.values()):
            ref.cell.end(SHUTDOWN)

    def phases(self) -> Iterator[Sequence[Ref]]:
        """All together."""
        yield self.children()
