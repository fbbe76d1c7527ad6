"""Who has which name, and who wants to know when the bearer of a name ends.

Every actor has a unique name from its start to its end; entries are never cleaned up by others. Monitors are held here,
by name, and not in the actors: so they outlive an actor that leaves memory (PASSIVATED) and comes back.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.runtime.exits import AlreadyStarted, Exit, ExitKind
from actors.runtime.mailbox import Place

if TYPE_CHECKING:
    from actors.runtime.cell import Cell
    from actors.runtime.ref import Ref


@dataclass(frozen=True, slots=True)
class Down:
    """An actor that the receiver monitors has ended."""

    ref: "Ref"
    reason: Exit

    @property
    def name(self) -> str:
        """Its name."""
        return self.ref.name


class Monitor(Place):
    """One actor's interest in the end of another."""

    __slots__ = ("ref", "watcher")

    def __init__(self, watcher: "Cell", ref: "Ref") -> None:
        self.watcher = watcher
        self.ref = ref

    def down(self, reason: Exit) -> None:
        """Tells the watcher."""
        self.watcher.put(Down(self.ref, reason), self)

    def taken(self) -> None:
        """The Down is being received: the monitor has served."""
        self.watcher.monitors.pop(self.ref, None)


class Registry:
    """The names of one system."""

    def __init__(self) -> None:
        self._refs: dict[str, Ref] = {}
        self._monitors: dict[str, dict[Monitor, None]] = {}
        self._aliases: dict[Ref, list[str]] = {}

    def __len__(self) -> int:
        return len(self._refs)

    def whereis(self, name: str) -> "Ref | None":
        """The living actor with this name."""
        return self._refs.get(name)

    def register(self, name: str, ref: "Ref") -> None:
        """Gives a living actor one more name. Raises AlreadyStarted if the name is taken."""
        if not ref.alive:
            raise ValueError(f"{ref} has ended and cannot be registered")
        self.add(name, ref)
        self._aliases.setdefault(ref, []).append(name)

    def add(self, name: str, ref: "Ref") -> None:
        """The runtime's own: the name of an actor that is being started."""
        if name in self._refs:
            raise AlreadyStarted(name, self._refs[name])
        self._refs[name] = ref

    def forget(self, ref: "Ref") -> None:
        """The runtime's own: the actor has ended."""
        for name in (ref.name, *self._aliases.pop(ref, ())):
            del self._refs[name]

    def watch(self, monitor: Monitor) -> None:
        """The runtime's own: keeps a monitor with its name."""
        self._monitors.setdefault(monitor.ref.name, {})[monitor] = None

    def unwatch(self, monitor: Monitor) -> None:
        """The runtime's own: drops it, if it is here."""
        name = monitor.ref.name
        monitors = self._monitors.get(name)
        if monitors is not None:
            monitors.pop(monitor, None)
            if not monitors:
                del self._monitors[name]

    def tell(self, name: str, reason: Exit) -> None:
        """The runtime's own: tells the monitors of an actor that ended, in the order in which they were set."""
        if reason.kind is not ExitKind.PASSIVATED:
            for monitor in self._monitors.pop(name, ()):
                monitor.down(reason)
