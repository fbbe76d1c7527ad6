"""A supervisor of what is kept for clients without sessions: what their principal has of its places is bounded.

A client without a session says itself which of its requests belong together, by what it can be asked and by a header;
each of its words is another client. So a principal passes for no more of them than it may have sessions.
"""

from collections import Counter

from actors.ports import Principal
from actors.protocol.table import Limits
from actors.runtime import Actor, AtCapacity, DynamicSupervisor, Exit, Ref


class NoShareLeft(AtCapacity):
    """There may be room, but not for this principal."""


class Shares(DynamicSupervisor):
    """Its children are temporary, and each is somebody's."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.sessions)
        self._limits = limits
        self._owners: dict[str, str] = {}
        self._of: Counter[str] = Counter()

    def start_for(self, principal: Principal, actor: Actor, name: str) -> Ref:
        """Starts a child of this principal's. Raises what `start_child` does, and NoShareLeft."""
        most = self._limits.sessions_anonymous if principal.anonymous else self._limits.sessions_per_principal
        if most and self._of[principal.name] >= most:
            raise NoShareLeft(f"{principal.name} has {most} of {self.ctx.name}")
        ref = self.start_child(actor, name)
        self._owners[ref.name] = principal.name
        self._of[principal.name] += 1
        return ref

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        super().child_ended(ref, reason)
        owner = self._owners.pop(ref.name, None)
        if owner is not None:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]
