"""A supervisor of what is kept for clients without sessions: what their principal has of its places is bounded.

A client without a session says itself which of its requests belong together, by what it can be asked and by a header;
each of its words is another client. So a principal passes for no more of them than it may have sessions. The anonymous
principal is everybody, and nobody of them is refused for what others do: so many of its idle ones are kept, and of more
the one that has been idle for longest is evicted.
"""

from collections import Counter
from dataclasses import dataclass

from actors.ports import Principal
from actors.protocol.table import Limits
from actors.runtime import Actor, AtCapacity, DynamicSupervisor, Exit, Ref


class NoShareLeft(AtCapacity):
    """There may be room, but not for this principal."""


@dataclass(frozen=True, slots=True)
class Evict:
    """There are too many that are idle: end, if nothing has come meanwhile."""


class Evictable(Actor):
    """A child of `Shares`."""

    shares: "Shares | None" = None

    def idle(self) -> None:
        """To be called when it has nothing in hand any more."""
        if self.shares is not None:
            self.shares.idle(self.ctx.ref)

    def busy(self) -> None:
        """To be called when it has."""
        if self.shares is not None:
            self.shares.busy(self.ctx.ref)


class Shares(DynamicSupervisor):
    """Its children are temporary, and each is somebody's."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.sessions)
        self._limits = limits
        self._idle: dict[Ref, None] = {}
        """Of the anonymous principal, longest first."""
        self._owners: dict[str, str] = {}
        self._of: Counter[str] = Counter()

    def start_for(self, principal: Principal, actor: Evictable, name: str) -> Ref:
        """Starts a child of this principal's. Raises what `start_child` does, and NoShareLeft."""
        most = self._limits.sessions_anonymous if principal.anonymous else self._limits.sessions_per_principal
        if most and self._of[principal.name] >= most:
            raise NoShareLeft(f"{principal.name} has {most} of {self.ctx.name}")
        ref = self.start_child(actor, name)
        self._owners[ref.name] = principal.name
        self._of[principal.name] += 1
        if principal.anonymous and not most:
            actor.shares = self
        return ref

    def idle(self, ref: Ref) -> None:
        """This child has nothing in hand."""
        self._idle.pop(ref, None)
        self._idle[ref] = None
        most = self._limits.sessions_per_principal
        if most and len(self._idle) > most:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.reply(Evict())

    def busy(self, ref: Ref) -> None:
        """It has."""
        self._idle.pop(ref, None)

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        super().child_ended(ref, reason)
        self._idle.pop(ref, None)
        owner = self._owners.pop(ref.name, None)
        if owner is not None:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]
