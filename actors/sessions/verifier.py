"""After a lapse of this process's lease, or a loss of the store, has everything that it owns claimed again: what
another has taken over ends here, though nobody asks for it."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

from msgspec import Struct

from actors.doubt import Doubt
from actors.named import NamedRef
from actors.ports import ClusterListener, Incarnation
from actors.record import Renamed
from actors.runtime import Actor, Ref

AT_ONCE = 200
PAUSE = 0.1
"""Claims in one turn, and seconds between two turns: those with messages come first, for they don't wait for theirs."""
LOOK = 10.0
"""Seconds between two looks at who else is there."""


class _Turn(Struct, frozen=True):
    """Time for some more."""


class _Look(Struct, frozen=True):
    """Time to look who else is there."""


VerifierMessage: TypeAlias = Renamed | _Turn | _Look


class Verifier(Actor):
    """Has everything claimed again after a lapse of the lease. Permanent. `owners`: the actors that own a record. What
    it forgets in a crash is claimed by its next message."""

    def __init__(self, doubt: Doubt, owners: Callable[[], Sequence[Ref]], *, looks: bool) -> None:
        """`looks`: the store may be away for us and not for others, so that it counts who else is there."""
        self._doubt = doubt
        self._looks = looks
        self._owners = owners
        self._queue: deque[Ref] = deque()

    def started(self) -> None:
        self._look()

    def receive(self, message: VerifierMessage) -> None:
        match message:
            case Renamed():
                self._queue = deque(self._owners())
                self._turn()
            case _Turn():
                self._turn()
            case _Look():
                self._look()
            case _:
                assert_never(message)

    def drain(self, deadline: float) -> None:
        """Sessions that drain after it need to know whether anybody will go on with them."""
        self._doubt.look(self.ctx.now())
        super().drain(deadline)

    def _turn(self) -> None:
        for _ in range(min(AT_ONCE, len(self._queue))):
            self._queue.popleft().reply(Renamed())
        if self._queue:
            self.ctx.set_timer("turn", PAUSE, _Turn())

    def _look(self) -> None:
        self._doubt.look(self.ctx.now())
        if self._looks:
            self.ctx.set_timer("look", LOOK, _Look())


class LeaseListener(ClusterListener):
    """Tells the verifier; the rest is for others."""

    def __init__(self, verifier: NamedRef, doubt: Doubt, now: Callable[[], float]) -> None:
        self._verifier = verifier
        self._doubt = doubt
        self._now = now

    def on_renamed(self, former: Incarnation, now: Incarnation) -> None:
        self.on_loss()

    def on_loss(self) -> None:
        self._doubt.new_term(self._now())
        self._verifier.reply(Renamed())
