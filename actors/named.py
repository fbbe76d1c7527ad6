"""The address of an actor by its name: it stays good when the actor is restarted."""

from collections.abc import Callable
from typing import Any

from actors.runtime import ActorDown, Exit, ExitKind, Ref, Reply, System

LIVES = 2
"""Of an actor to which a message is offered: one that was just ending, and the next."""

_ABSENT = Exit(ExitKind.SHUTDOWN, detail="not running")


class NamedRef:
    """Looks the name up for each message. Between a crash and the restart messages go nowhere, and say so."""

    __slots__ = ("_system", "name")

    def __init__(self, system: System, name: str) -> None:
        self._system = system
        self.name = name

    @property
    def ref(self) -> Ref | None:
        """The actor that has the name now."""
        return self._system.registry.whereis(self.name)

    def reply(self, message: Any) -> bool:
        """As `Ref.reply`; False if there is nobody."""
        ref = self.ref
        return ref is not None and ref.reply(message)

    async def call(self, make: Callable[[Reply], Any], admission: float) -> Any:
        """As `Ref.call`; ActorDown if there is nobody."""
        ref = self.ref
        if ref is None:
            raise ActorDown(self.name, _ABSENT)
        return await ref.call(make, admission)

    def ask(self, make: Callable[[Reply], Any], admission: float, done: Callable[[Any], object]) -> None:
        """As `Ref.ask`; ActorDown if there is nobody."""
        ref = self.ref
        if ref is None:
            done(ActorDown(self.name, _ABSENT))
        else:
            ref.ask(make, admission, done)
