"""A fixed set of children, restarted by rule.

Children start in order, inside the spawn of their supervisor, and end in the opposite order when it ends. Who may be
restarted is a table. A supervisor that has to restart too often ends itself, with the reason of the last child, and
leaves the matter to its own supervisor; at the top, the system fails.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from actors.runtime.actor import Actor
from actors.runtime.exits import SHUTDOWN, Exit, ExitKind
from actors.runtime.intensity import Intensity, Restarts
from actors.runtime.ref import Ref


class Restart(Enum):
    """Whether a child that ended is started again; see RESTARTS."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


RESTARTS: Mapping[Restart, frozenset[ExitKind]] = MappingProxyType(
    {
        Restart.PERMANENT: frozenset({ExitKind.CRASHED, ExitKind.NORMAL, ExitKind.SHUTDOWN}),
        Restart.TRANSIENT: frozenset({ExitKind.CRASHED}),
        Restart.TEMPORARY: frozenset(),
    }
)
"""The exits after which a child is started again. PASSIVATED is never among them: such a child comes back by need."""


class Strategy(Enum):
    """Who else is restarted with a child."""

    ONE_FOR_ONE = "one_for_one"
    """Nobody."""
    REST_FOR_ONE = "rest_for_one"
    """Those started after it, which may depend on it."""


@dataclass(frozen=True, slots=True)
class Child:
    """How a child is made, each time anew."""

    name: str
    factory: Callable[[], Actor]
    restart: Restart = Restart.PERMANENT


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

    def __init__(
        self,
        children: Sequence[Child],
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity = Intensity(),  # noqa: B008 - frozen
    ) -> None:
        self._specs = {child.name: child for child in children}
        if len(self._specs) != len(children):
            raise ValueError(f"two children have one name: {[child.name for child in children]}")
        self._strategy = strategy
        self._restarts = Restarts(intensity)
        self._refs: dict[str, Ref] = {}

    def started(self) -> None:
        """Starts the children, in order."""
        for name in self._specs:
            self._start(name)

    def receive(self, message: Any) -> None:
        """Applies the rule to a child that ended."""
        assert isinstance(message, _Ended)
        spec = self._specs[message.name]
        if self.closing or spec.name in self._refs or message.reason.kind not in RESTARTS[spec.restart]:
            return
        if not self._restarts.allow(self.ctx.now()):
            self.ctx.stop(message.reason)
            return
        for name in self._with(spec.name):
            self._end(name)
        for name in self._with(spec.name):
            self._start(name)

    def stopped(self, reason: Exit) -> None:
        """Ends the children, last first."""
        self.closing = True
        for name in reversed(self._specs):
            self._end(name)

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

    def _with(self, name: str) -> list[str]:
        """The children that are restarted when this one is, in starting order."""
        if self._strategy is Strategy.ONE_FOR_ONE:
            return [name]
        names = list(self._specs)
        return names[names.index(name) :]

    def _start(self, name: str) -> None:
        spec = self._specs[name]
        cell = self.ctx.system.create(spec.factory(), name, self)
        self._refs[name] = cell.ref
        cell.start()

    def _end(self, name: str) -> None:
        ref = self._refs.pop(name, None)
        if ref is not None:
            ref.cell.end(SHUTDOWN)
