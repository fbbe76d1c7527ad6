"""Goes through what a dead replica has left: sessions with work in flight are taken over, all others wait for their
next message, and end at their time though nobody comes.

Every replica does so, each in an order of its own and no faster than a bound, so that a thousand sessions of one that
died do not fall upon the others at once. Two that look at the same session do no harm: one claims it, the other finds
it claimed.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from actors.machines.session import record as session_record
from actors.named import NamedRef
from actors.ports import UNAVAILABLE, ClusterListener, Failed, Incarnation, Record, Refused, SessionKey
from actors.runtime import Actor
from actors.services import Services
from actors.sessions.expiry import Orphaned
from actors.sessions.router import TakeOver

WAIT = 0.5
"""Seconds after a death before its sessions are looked at: those who hold connections of them come first."""
SPREAD = 1.0
"""Seconds over which the replicas begin."""
AT_ONCE = 20
PAUSE = 0.1
"""Sessions looked at in one turn, and seconds between two turns: 200 in a second."""
RETRY = 2.0
"""Seconds after which a store is asked again that was away."""
PAGES = 4
"""Turns of sessions that are known ahead; more are asked for when these are done."""


class ReplicaDown(Struct, frozen=True):
    """A replica has died, or ended."""

    incarnation: Incarnation


class Deaths(ClusterListener):
    """Tells the sweeper which replicas have died."""

    def __init__(self, sweeper: NamedRef) -> None:
        self._sweeper = sweeper

    def on_down(self, incarnation: Incarnation) -> None:
        self._sweeper.reply(ReplicaDown(incarnation))


class _Begin(Struct, frozen=True):
    incarnation: Incarnation


class _Turn(Struct, frozen=True):
    """Time to look at some more."""


class _Page(Struct, frozen=True):
    incarnation: Incarnation
    outcome: tuple[list[SessionKey], int] | Failed


class _Read(Struct, frozen=True):
    incarnation: Incarnation
    key: SessionKey
    outcome: Record | Failed


SweeperMessage: TypeAlias = ReplicaDown | _Begin | _Turn | _Page | _Read


@dataclass(slots=True)
class _Estate:
    """What one dead replica has left. `cursor`: of the next page; None while it is asked for, 0 when there is none."""

    cursor: int | None = None
    keys: deque[SessionKey] = field(default_factory=deque)
    reading: int = 0


class Sweeper(Actor):
    """Finds what dead replicas have left, and has it taken over or ended. Permanent: what it forgets in a crash is
    found by the other replicas, or by the next message of the session."""

    mailbox_size = 8192

    def __init__(self, services: Services, router: NamedRef, expiry: NamedRef) -> None:
        self._services = services
        self._router = router
        self._expiry = expiry
        self._estates: dict[Incarnation, _Estate] = {}
        self._turning = False

    def receive(self, message: SweeperMessage) -> None:
        match message:
            case ReplicaDown(incarnation):
                after = WAIT + SPREAD * self._services.jitter()
                self.ctx.set_timer(("begin", incarnation), after, _Begin(incarnation))
            case _Begin(incarnation):
                self._estates.setdefault(incarnation, _Estate(cursor=0))
                self._ask(incarnation, 0)
            case _Page(incarnation, outcome):
                self._page(incarnation, outcome)
            case _Turn():
                self._turn()
            case _Read(incarnation, key, outcome):
                self._read(incarnation, key, outcome)
            case _:
                assert_never(message)

    def _ask(self, incarnation: Incarnation, cursor: int) -> None:
        self._estates[incarnation].cursor = None
        ref = self.ctx.ref
        self._services.cluster.owned(incarnation, cursor, lambda out: ref.reply(_Page(incarnation, out)))

    def _page(self, incarnation: Incarnation, outcome: Any) -> None:
        estate = self._estates.get(incarnation)
        if estate is None:
            return
        if isinstance(outcome, Failed):
            del self._estates[incarnation]
            self.ctx.set_timer(("begin", incarnation), RETRY, _Begin(incarnation))
            return
        keys, estate.cursor = outcome
        order = sorted(keys, key=lambda _: self._services.jitter())
        estate.keys.extend(order)
        self._go_on()

    def _go_on(self) -> None:
        if not self._turning:
            self._turning = True
            self.ctx.set_timer("turn", 0.0, _Turn())

    def _turn(self) -> None:
        """The dead take turns too."""
        self._turning = False
        left = AT_ONCE
        for incarnation, estate in list(self._estates.items()):
            share = max(1, left // len(self._estates))
            while estate.keys and share and left:
                self._look(incarnation, estate, estate.keys.popleft())
                share, left = share - 1, left - 1
            if estate.cursor and len(estate.keys) < AT_ONCE * PAGES:
                self._ask(incarnation, estate.cursor)
            self._over(incarnation, estate)
        if any(estate.keys for estate in self._estates.values()):
            self._turning = True
            self.ctx.set_timer("turn", PAUSE, _Turn())

    def _over(self, incarnation: Incarnation, estate: _Estate) -> None:
        if estate.cursor == 0 and not estate.keys and not estate.reading:
            del self._estates[incarnation]

    def _look(self, incarnation: Incarnation, estate: _Estate, key: SessionKey) -> None:
        estate.reading += 1
        ref = self.ctx.ref
        self._services.store.read(key, lambda out: ref.reply(_Read(incarnation, key, out)))

    def _read(self, incarnation: Incarnation, key: SessionKey, outcome: Record | Failed) -> None:
        estate = self._estates.get(incarnation)
        if estate is None:
            return
        estate.reading -= 1
        if isinstance(outcome, Failed) and outcome.reason in UNAVAILABLE:
            estate.keys.append(key)
            self.ctx.set_timer("turn", RETRY, _Turn())
            self._turning = True
            return
        if not isinstance(outcome, Failed) or outcome.reason is not Refused.TOO_NEW:  # which others can read
            self._settle(incarnation, key, outcome)
        self._over(incarnation, estate)

    def _settle(self, incarnation: Incarnation, key: SessionKey, found: Record | Failed) -> None:
        """Nobody needs to look for it there any more, unless it is about to be taken over: who does that says so."""
        mine = isinstance(found, Record) and found.owner in (incarnation, None)
        if isinstance(found, Record) and mine and session_record.is_complete(found.fields):
            if found.requests or found.asked:
                self._router.reply(TakeOver(key, found, incarnation))
                return
            if found.owner is not None:
                self._expiry.reply(Orphaned(key))
        self._services.cluster.disown(incarnation, [key])
