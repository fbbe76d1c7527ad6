"""The route machine: the way of one holder's letters to whoever owns one session.

A letter waits until the owner is known, is posted there, and leaves the route as soon as it was heard of: answered,
opened, attached, taken, refused. What becomes of it if nothing is heard is decided here:

* What nobody read is withdrawn, and goes to the next owner. What holds requests and was taken, or may have been, is
  never given to anyone again: the owner is asked whether it has them recorded (`Recover`), else they are lost.
* All others (notes, attachments, ends) mean the same when they come twice, and are sent again.
* Letters of one session don't overtake each other: while one is on its way anew, those behind it wait.

Everything that a process has for the session goes through its route while there is one, what is for a session in this
very process included (`HERE`); one without letters can be dropped, and its `owner` remembered for the next.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

HERE: Final = ""
"""In place of an incarnation: this process itself, by whatever name."""

QUIET: Final = 2.0
"""Seconds without a word after a post, before it is asked whether the owner lives."""
LATE: Final = 10.0
"""Seconds after which a letter is given up, if it can be withdrawn."""
GRACE: Final = 5.0
"""Further seconds for those that can't be."""
LEAVING: Final = 0.1
"""Seconds between two looks whether the store says what a former owner has said: that it is not the owner any more."""
LOOKS: Final = 30
"""Looks after which the store is right: it may own the session again, or still."""
HOPS: Final = 3
"""Owners that a letter is sent to, one after the other."""
LETTERS: Final = 1024
"""Letters of one session under way."""


class Kind(Enum):
    """What a letter is, as far as its way goes."""

    REQUESTS = "requests"
    """It holds requests, maybe among others: one owner takes it, or none."""
    NOTE = "note"
    """Notifications, responses, the end of the session: goes on when its connection breaks."""
    ATTACH = "attach"
    """A connection for a stream: nothing without that connection."""


class Why(Enum):
    """What is said of a letter that failed."""

    UNAVAILABLE = "unavailable"
    """No owner was found that takes it: surely not executed."""
    OVERLOADED = "overloaded"
    """There is no room for it: surely not executed."""
    REFUSED = "refused"
    """By the owner, or there is none: the reason that came with it. Surely not executed."""
    LOST = "lost"
    """It was taken, or may have been, and nothing of it is recorded."""


class Unposted(Enum):
    """Why a post did not succeed."""

    DEAD = "dead"
    INBOX_FULL = "inbox_full"
    AWAY = "away"
    """Nobody knows whether it is there."""


class Clock(Enum):
    """What runs for a letter."""

    QUIET = "quiet"
    LATE = "late"


# What happens (past tense) ----------------------------------------------------------------------------------


class Sent(Struct, frozen=True):
    """The process has a letter for the session. Numbers (`mid`) are this process's own, and never repeat."""

    mid: int
    kind: Kind


class Resolved(Struct, frozen=True):
    """Who owns the session; `HERE` if this process does, by now."""

    owner: str


class Unresolved(Struct, frozen=True):
    """Nobody does, and it can't be claimed: it has ended, or the store is away."""

    reason: object


class Posted(Struct, frozen=True):
    """The letter is in the inbox of `to`, under this name."""

    mid: int
    to: str
    entry: str


class NotPosted(Struct, frozen=True):
    """It is not, or nobody knows."""

    mid: int
    to: str
    reason: Unposted


class Heard(Struct, frozen=True):
    """The letter was answered, opened, attached or taken, here or there."""

    mid: int


class Refused(Struct, frozen=True):
    """It was not taken, and will not be."""

    mid: int
    reason: object


class Moved(Struct, frozen=True):
    """`by` has not taken it, and does not own the session; `owner` does, as far as is known there. `rests`: nobody
    does, and nobody has for a while."""

    mid: int
    by: str
    owner: str | None = None
    rests: bool = False


class OwnerDown(Struct, frozen=True):
    """An incarnation is dead, or has ended in order."""

    incarnation: str


class Released(Struct, frozen=True):
    """An incarnation has given the session up; what it has taken it answers still."""

    incarnation: str


class Renamed(Struct, frozen=True):
    """This process has another name: what is answered to letters that it has posted it never hears."""


class QuietDue(Struct, frozen=True):
    """The clock of this name has run out."""

    mid: int


class LateDue(Struct, frozen=True):
    """The clock of this name has run out."""

    mid: int


class AliveSaid(Struct, frozen=True):
    """Whether an incarnation is alive; None: nobody can tell."""

    incarnation: str
    alive: bool | None


class Withdrawn(Struct, frozen=True):
    """Whether the letter was taken back, unread; None: nobody can tell."""

    mid: int
    unread: bool | None


class Abandoned(Struct, frozen=True):
    """The connection that the letter came on is gone."""

    mid: int


class Recovered(Struct, frozen=True):
    """Whether the owner has the letter's requests recorded; if so, what follows comes from their stream."""

    mid: int
    found: bool


RouteEvent: TypeAlias = (
    Sent
    | Resolved
    | Unresolved
    | Posted
    | NotPosted
    | Heard
    | Refused
    | Moved
    | OwnerDown
    | Released
    | Renamed
    | QuietDue
    | LateDue
    | AliveSaid
    | Withdrawn
    | Abandoned
    | Recovered
)

# What it wants done (imperative) ----------------------------------------------------------------------------


class Resolve(Struct, frozen=True):
    """Find out who owns the session, and claim it if nobody does or `claim_from`, which is dead: `Resolved` or
    `Unresolved` follows. `after`: seconds to wait before."""

    claim_from: str | None = None
    after: float = 0.0


@final
class Post(Struct, frozen=True):
    """Mail the letter: `Posted` or `NotPosted` follows."""

    mid: int
    to: str


class GiveHere(Struct, frozen=True):
    """Hand the letter to the session in this process: `Heard`, `Refused` or `Moved` by HERE follows."""

    mid: int


class AskAlive(Struct, frozen=True):
    """Ask whether it lives: `AliveSaid` follows."""

    incarnation: str


@final
class Withdraw(Struct, frozen=True):
    """Take the letter back: `Withdrawn` follows."""

    mid: int
    to: str
    entry: str


class Recover(Struct, frozen=True):
    """Ask the owner (HERE: the session in this process) for what it has recorded of the letter's requests: `Recovered`
    follows, or `NotPosted`, or `Moved`. May be asked more than once."""

    mid: int
    to: str


class Detach(Struct, frozen=True):
    """Tell whoever has the letter that nobody waits for its outcome."""

    mid: int
    to: str


class Accept(Struct, frozen=True):
    """What was heard of the letter is what becomes of it. (Without this it came too late, and is dropped.)"""

    mid: int


@final
class Fail(Struct, frozen=True):
    """The letter has failed; `reason` as it was given, with REFUSED."""

    mid: int
    why: Why
    reason: object = None


class StartClock(Struct, frozen=True):
    """`QuietDue` or `LateDue` after so many seconds; one that runs for the letter begins anew."""

    mid: int
    clock: Clock
    seconds: float


class StopClocks(Struct, frozen=True):
    """The letter has left the route."""

    mid: int


RouteEffect: TypeAlias = (
    Resolve | Post | GiveHere | AskAlive | Withdraw | Recover | Detach | Accept | Fail | StartClock | StopClocks
)
Effects: TypeAlias = list[RouteEffect]

# The machine ------------------------------------------------------------------------------------------------


class Phase(Enum):
    """How far one letter is."""

    WAITING = "waiting"
    """Surely nobody has it."""
    GIVEN = "given"
    """The session in this process has it."""
    POSTING = "posting"
    """It may be in an inbox, under no name that is known."""
    POSTED = "posted"
    """It is in an inbox, or was read from there."""
    WITHDRAWING = "withdrawing"
    """It is being taken back."""
    TAKEN = "taken"
    """It was read, or may have been, and will not be heard of. Only for REQUESTS."""
    RECOVERING = "recovering"
    """The owner was asked what is recorded of it."""


ELSEWHERE: Final = (Phase.GIVEN, Phase.POSTING, Phase.POSTED)
"""Somebody may yet take it."""


class Letter(Struct, frozen=True):
    """One letter under way. `to`: who has it, or had it, or is asked what is recorded of it. `down`: that one is no
    more, or does not know our name any more. `late`: it is to be given up as soon as it is known whether anybody has
    it."""

    mid: int
    kind: Kind
    phase: Phase = Phase.WAITING
    to: str | None = None
    entry: str | None = None
    hops: int = 0
    down: bool = False
    late: bool = False


class Route(Struct, frozen=True):
    """The letters of one session, in their order. `owner`: where they go; None: not known. `fallen`: the last owner
    that was found dead. `former`: the last one that gave a letter back and named nobody else, until the store does;
    `looks`: how often it has been asked."""

    owner: str | None = None
    letters: tuple[Letter, ...] = ()
    resolving: bool = False
    fallen: str | None = None
    former: str | None = None
    looks: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.letters and not self.resolving


Step: TypeAlias = tuple[Route, Effects]


def step(route: Route, event: RouteEvent) -> Step:
    """Total: what concerns no letter of the route, or comes too late, changes nothing."""
    route, effects = HANDLERS[type(event)](route, event)
    route, further = _flow(route)
    return route, effects + further


def find(route: Route, mid: int) -> Letter | None:
    """The letter, while it is under way."""
    for letter in route.letters:
        if letter.mid == mid:
            return letter
    return None


def _flow(route: Route) -> Step:
    """Sends what waits, in order, as far as nothing before it is on its way anew."""
    effects: Effects = []
    for letter in route.letters:
        if letter.phase is Phase.WITHDRAWING:
            break
        if letter.phase in ELSEWHERE and (letter.down or letter.to != route.owner):
            break
        if letter.phase not in (Phase.WAITING, Phase.TAKEN):
            continue
        if letter.hops >= HOPS:
            route, failed = _fail(route, letter, _of(letter))
            effects += failed
        elif route.owner is None:
            if not route.resolving:
                route = replace(route, resolving=True)
                effects.append(Resolve(route.fallen))
            break
        else:
            route, sent = _send(route, letter, route.owner)
            effects += sent
    return route, effects


def _send(route: Route, letter: Letter, to: str) -> Step:
    taken = letter.phase is Phase.TAKEN
    phase = Phase.RECOVERING if taken else Phase.GIVEN if to == HERE else Phase.POSTING
    route = _put(route, replace(letter, phase=phase, to=to, entry=None, down=False))
    if phase is Phase.GIVEN:
        return route, [GiveHere(letter.mid)]
    ask: RouteEffect = Recover(letter.mid, to) if taken else Post(letter.mid, to)
    return route, [ask, StartClock(letter.mid, Clock.QUIET, QUIET)]


def _of(letter: Letter) -> Why:
    return Why.UNAVAILABLE if letter.phase is Phase.WAITING else Why.LOST


def _put(route: Route, changed: Letter) -> Route:
    return replace(route, letters=tuple([changed if one.mid == changed.mid else one for one in route.letters]))


def _drop(route: Route, mid: int) -> Route:
    return replace(route, letters=tuple([letter for letter in route.letters if letter.mid != mid]))


def _fail(route: Route, letter: Letter, why: Why, reason: object = None) -> Step:
    return _drop(route, letter.mid), [StopClocks(letter.mid), Fail(letter.mid, why, reason)]


def _sent(route: Route, event: Sent) -> Step:
    if len(route.letters) >= LETTERS:
        return route, [Fail(event.mid, Why.OVERLOADED)]
    letter = Letter(event.mid, event.kind)
    return replace(route, letters=(*route.letters, letter)), [StartClock(event.mid, Clock.LATE, LATE)]


# Where the owner is -----------------------------------------------------------------------------------------


def _resolved(route: Route, event: Resolved) -> Step:
    """A session may be given back a moment after that was said: on a cluster the store keeps no order between the two,
    and letters would go to and fro."""
    if not route.resolving:
        return route, []
    if event.owner == route.former and route.letters and route.looks < LOOKS:
        return replace(route, looks=route.looks + 1), [Resolve(after=LEAVING)]
    return replace(route, owner=event.owner, resolving=False, former=None, looks=0), []


def _unresolved(route: Route, event: Unresolved) -> Step:
    """For those that wait it is the answer; of those that were taken nothing can be found any more."""
    if not route.resolving:
        return route, []
    route = replace(route, resolving=False)
    effects: Effects = []
    for letter in route.letters:
        if letter.phase in (Phase.WAITING, Phase.TAKEN):
            waits = letter.phase is Phase.WAITING
            route, failed = _fail(route, letter, Why.REFUSED if waits else Why.LOST, event.reason if waits else None)
            effects += failed
    return route, effects


def _moved(route: Route, event: Moved) -> Step:
    """Whoever says so has not executed it, even if it is dead by now."""
    letter = find(route, event.mid)
    if letter is None or letter.to != event.by or letter.phase is Phase.WAITING:
        return route, []
    if route.owner == event.by:
        known = event.owner if event.owner != event.by else None
        former = event.by if known is None and event.by != HERE and not event.rests else None
        route = replace(route, owner=known, former=former, looks=0)
    phase = Phase.TAKEN if letter.phase is Phase.RECOVERING else Phase.WAITING
    return _again(route, letter, phase)


def _again(route: Route, letter: Letter, phase: Phase) -> Step:
    """The letter goes on to the next owner, unless its time is over."""
    # Whoever was asked what is recorded of it may say more than once that it has not the session, and yet had it once.
    to = None if phase is Phase.TAKEN else letter.to
    letter = replace(letter, phase=phase, to=to, hops=letter.hops + 1)
    if letter.late and phase is Phase.WAITING:
        return _fail(route, letter, Why.UNAVAILABLE)
    return _put(route, letter), []


def _released(route: Route, event: Released) -> Step:
    return (replace(route, owner=None) if route.owner == event.incarnation else route), []


def _alive_said(route: Route, event: AliveSaid) -> Step:
    return _down(route, event.incarnation) if event.alive is False else (route, [])


def _owner_down(route: Route, event: OwnerDown) -> Step:
    return _down(route, event.incarnation)


def _down(route: Route, incarnation: str) -> Step:
    """What it has not read is taken back; what it was only asked is asked of the next."""
    if route.owner == incarnation:
        route = replace(route, owner=None, fallen=incarnation)
    if route.former == incarnation:
        route = replace(route, former=None)
    effects: Effects = []
    for letter in route.letters:
        if letter.to != incarnation or letter.down:
            continue
        if letter.phase is Phase.RECOVERING:
            route, further = _again(route, letter, Phase.TAKEN)
        elif letter.phase in (Phase.POSTING, Phase.POSTED):
            route, further = _orphaned(route, letter)
        else:
            continue
        effects += further
    return route, effects


def _renamed(route: Route, event: Renamed) -> Step:
    """Whoever has one of our letters is asked by the name that we have now."""
    effects: Effects = []
    for letter in route.letters:
        if letter.phase in (Phase.POSTING, Phase.POSTED) and not letter.down:
            route, further = _orphaned(route, letter)
            effects += further
    return route, effects


def _orphaned(route: Route, letter: Letter) -> Step:
    if letter.kind is not Kind.REQUESTS:
        return _again(route, letter, Phase.WAITING)
    letter = replace(letter, down=True)
    if letter.phase is Phase.POSTING:
        return _put(route, letter), []  # the name comes, to take it back by
    return _reclaim(route, letter)


def _reclaim(route: Route, letter: Letter) -> Step:
    """Takes a letter back, if it has a name to take it back by."""
    if letter.entry is None or letter.to is None:
        return _taken(route, letter)
    return _put(route, replace(letter, phase=Phase.WITHDRAWING)), [Withdraw(letter.mid, letter.to, letter.entry)]


# What becomes of a letter -----------------------------------------------------------------------------------


def _posted(route: Route, event: Posted) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.phase is not Phase.POSTING or letter.to != event.to:
        return route, []
    letter = replace(letter, phase=Phase.POSTED, entry=event.entry)
    return _reclaim(route, letter) if letter.down or letter.late else (_put(route, letter), [])


def _not_posted(route: Route, event: NotPosted) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.phase not in (Phase.POSTING, Phase.RECOVERING) or letter.to != event.to:
        return route, []
    if event.reason is Unposted.DEAD:
        asked = letter.phase is Phase.RECOVERING
        route, effects = _again(route, letter, Phase.TAKEN if asked else Phase.WAITING)
        route, further = _down(route, event.to)
        return route, effects + further
    if letter.phase is Phase.RECOVERING:
        return route, []  # asked again when it has been quiet for a while
    if event.reason is Unposted.INBOX_FULL:
        return _fail(route, letter, Why.OVERLOADED)
    letter = replace(letter, phase=Phase.POSTED)
    return _reclaim(route, letter) if letter.down or letter.late else (_put(route, letter), [])


def _heard(route: Route, event: Heard) -> Step:
    if find(route, event.mid) is None:
        return route, []
    return _drop(route, event.mid), [StopClocks(event.mid), Accept(event.mid)]


def _refused(route: Route, event: Refused) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.phase is Phase.WAITING:
        return route, []
    if letter.phase is Phase.RECOVERING:
        return _fail(route, letter, Why.LOST)
    return _fail(route, letter, Why.REFUSED, event.reason)


def _withdrawn(route: Route, event: Withdrawn) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.phase is not Phase.WITHDRAWING:
        return route, []
    return _again(route, letter, Phase.WAITING) if event.unread else _taken(route, letter)


def _taken(route: Route, letter: Letter) -> Step:
    if letter.kind is not Kind.REQUESTS:
        return _give_up(route, letter) if letter.late else _again(route, letter, Phase.WAITING)
    return _put(route, replace(letter, phase=Phase.TAKEN)), []


def _recovered(route: Route, event: Recovered) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.phase is not Phase.RECOVERING:
        return route, []
    return _heard(route, Heard(event.mid)) if event.found else _give_up(route, letter)


def _give_up(route: Route, letter: Letter) -> Step:
    """It is lost; whoever has it need not look for us any more."""
    detach: Effects = [Detach(letter.mid, letter.to)] if letter.to and not letter.down else []
    route, effects = _fail(route, letter, Why.LOST)
    return route, detach + effects


def _abandoned(route: Route, event: Abandoned) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.kind is Kind.NOTE:
        return route, []
    posted = letter.phase in (Phase.POSTING, Phase.POSTED, Phase.RECOVERING) and not letter.down
    detach: Effects = [Detach(letter.mid, letter.to)] if letter.to and posted else []
    return _drop(route, letter.mid), [StopClocks(letter.mid), *detach]


# Clocks -----------------------------------------------------------------------------------------------------


def _quiet_due(route: Route, event: QuietDue) -> Step:
    letter = find(route, event.mid)
    if letter is None or letter.to is None or letter.phase not in (Phase.POSTING, Phase.POSTED, Phase.RECOVERING):
        return route, []
    effects: Effects = [StartClock(letter.mid, Clock.QUIET, QUIET)]
    if letter.phase is Phase.RECOVERING:
        effects.append(Recover(letter.mid, letter.to))
    if letter.to != HERE:
        effects.append(AskAlive(letter.to))
    return route, effects


def _late_due(route: Route, event: LateDue) -> Step:
    """The first time it is taken back if it can be; the second time it is over."""
    letter = find(route, event.mid)
    if letter is None:
        return route, []
    if letter.phase is Phase.WAITING:
        return _fail(route, letter, Why.UNAVAILABLE)
    if letter.phase is Phase.GIVEN:
        return _put(route, replace(letter, late=True)), []
    if letter.late:
        return _give_up(route, letter)
    letter = replace(letter, late=True)
    wait = StartClock(letter.mid, Clock.LATE, GRACE)
    if letter.phase is not Phase.POSTED:
        return _put(route, letter), [wait]
    route, effects = _reclaim(route, letter)
    return route, [wait, *effects]


HANDLERS: Final[dict[type, Callable[..., Step]]] = {
    Sent: _sent,
    Resolved: _resolved,
    Unresolved: _unresolved,
    Posted: _posted,
    NotPosted: _not_posted,
    Heard: _heard,
    Refused: _refused,
    Moved: _moved,
    OwnerDown: _owner_down,
    Released: _released,
    Renamed: _renamed,
    QuietDue: _quiet_due,
    LateDue: _late_due,
    AliveSaid: _alive_said,
    Withdrawn: _withdrawn,
    Abandoned: _abandoned,
    Recovered: _recovered,
}
