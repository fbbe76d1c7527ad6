"""The follow machine: one stream of a session that another process owns, for one connection here.

Event *n + 1* is written after event *n*, else the log is read: mail that is lost, doubled or late delays an event, and
never loses, doubles or reorders one. What the log itself has lost is said (`Gap`), never passed over.

A stream that is not recorded has numbers of its own, those of its mail, and no log: when one is missing, or the owner
is gone, it ends, and that is said as well.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

CHECK: Final = 10.0
"""Seconds between two looks at the head: the last event's mail may be the one that was lost."""
RETRY: Final = 1.0
"""Seconds before the store, or the session, is asked again."""
UNANSWERED: Final = 2
"""Heads asked for in vain after which the owner counts as lost."""


class Entry(Struct, frozen=True):
    """One event of the log."""

    epoch: int
    seq: int
    data: bytes


# What happens (past tense) ----------------------------------------------------------------------------------


class Frames(Struct, frozen=True):
    """Mail of the owner: events `first` to `last`, all of one epoch, as they go on the wire. `finished`: nothing
    follows."""

    epoch: int
    first: int
    last: int
    data: bytes
    finished: bool = False


class Page(Struct, frozen=True):
    """What the log has after the cursor. `lost`: (after, resumed) of a hole before the entries."""

    entries: tuple[Entry, ...]
    head: int
    finished: bool
    lost: tuple[int, int] | None = None


class NoPage(Struct, frozen=True):
    """The log could not be read. `passing`: it may be, later; else there is no such stream, or the cursor is none of
    its events any more."""

    passing: bool


class HeadSaid(Struct, frozen=True):
    """The last event of the stream, by its owner or the store; its epoch, or 0 if that is not known. `floor`: events up
    to it are lost."""

    epoch: int
    seq: int
    finished: bool
    floor: int = 0


class CheckDue(Struct, frozen=True):
    """Time to look at the head."""


class RetryDue(Struct, frozen=True):
    """Time to ask once more."""


class OwnerLost(Struct, frozen=True):
    """Who sent the frames is dead, or does not own the session any more."""


class Attached(Struct, frozen=True):
    """The session, wherever it is now, sends what comes after this event of the stream."""

    head: int


class NotAttached(Struct, frozen=True):
    """It does not. `passing`: it may, later; else there is no such session or stream any more."""

    passing: bool


class Superseded(Struct, frozen=True):
    """Another connection has the stream now."""


class Closed(Struct, frozen=True):
    """The connection is gone, or reads too slowly."""


FollowEvent: TypeAlias = (
    Frames | Page | NoPage | HeadSaid | CheckDue | RetryDue | OwnerLost | Attached | NotAttached | Superseded | Closed
)

# What it wants done (imperative) ----------------------------------------------------------------------------


@final
class Write(Struct, frozen=True):
    """These bytes go on the wire."""

    data: bytes


class WriteEntries(Struct, frozen=True):
    """These events go on the wire, under their ids."""

    entries: tuple[Entry, ...]


@final
class ReadLog(Struct, frozen=True):
    """Read what the log has after this event (0: from the beginning of the stream that was opened at this epoch):
    `Page` or `NoPage` follows."""

    epoch: int
    seq: int


class AskHead(Struct, frozen=True):
    """Ask for the head: `HeadSaid` follows, or nothing, or `OwnerLost`."""


@final
class Reattach(Struct, frozen=True):
    """Find the session, claim it if need be, and attach after this event: `Attached` or `NotAttached` follows."""

    epoch: int
    seq: int


class Gap(Struct, frozen=True):
    """The events after `after` and before `resumed` are lost; None: all that would have followed, as far as this
    connection can tell. `known`: the log knows of it, for they were trimmed, or it was put right."""

    after: int
    resumed: int | None
    known: bool = True


class Finish(Struct, frozen=True):
    """The connection ends. `whole`: after the last event of its stream."""

    whole: bool


class Detach(Struct, frozen=True):
    """Tell the owner that nobody reads here any more."""


class StartCheckClock(Struct, frozen=True):
    """`CheckDue` after `CHECK` seconds."""


class StartRetryClock(Struct, frozen=True):
    """`RetryDue` after `RETRY` seconds."""


class StopClocks(Struct, frozen=True):
    """It is over."""


FollowEffect: TypeAlias = (
    Write
    | WriteEntries
    | ReadLog
    | AskHead
    | Reattach
    | Gap
    | Finish
    | Detach
    | StartCheckClock
    | StartRetryClock
    | StopClocks
)
Effects: TypeAlias = list[FollowEffect]

# The machine ------------------------------------------------------------------------------------------------


class Phase(Enum):
    """How far one followed stream is."""

    LIVE = "live"
    """Frames come by mail."""
    READING = "reading"
    """The log is read; what comes meanwhile is in it."""
    REATTACHING = "reattaching"
    """The session is looked for."""
    OVER = "over"


class Follow(Struct, frozen=True):
    """One followed stream. (`epoch`, `seq`): the last event that was written, or that its client said it has. `known`:
    the highest event that was heard of; `sought`: the highest one when the log was last asked. `behind`: who
    sends frames has said that it goes on behind this event. `owned`: whether somebody does. `asked`: at which event
    the head was asked for, and how often in vain. `waiting`: a question is put again when the clock rings."""

    epoch: int
    seq: int
    recorded: bool = True
    phase: Phase = Phase.LIVE
    known: int = 0
    sought: int = 0
    behind: int = 0
    owned: bool = True
    asked: int | None = None
    unanswered: int = 0
    waiting: bool = False


Step: TypeAlias = tuple[Follow, Effects]


def begin(epoch: int, seq: int, *, recorded: bool = True, head: int = 0) -> Step:
    """Follows a stream from an event on, of which the owner has said that it sends what comes after `head`. Whether the
    cursor of a client that comes back is one of its events, the log says."""
    follow = Follow(epoch, seq, recorded, known=head, behind=head)
    follow, effects = _read(follow) if recorded and max(head, seq) > 0 else (follow, [])
    return follow, [StartCheckClock(), *effects]


def step(follow: Follow, event: FollowEvent) -> Step:
    """Total: once it is over nothing changes any more."""
    if follow.phase is Phase.OVER:
        return follow, []
    return HANDLERS[type(event)](follow, event)


# Mail -------------------------------------------------------------------------------------------------------


def _frames(follow: Follow, event: Frames) -> Step:
    if event.epoch <= follow.epoch and event.last <= follow.seq:
        return follow, []  # doubled, or late
    if follow.phase is Phase.READING:
        return replace(follow, known=max(follow.known, event.last)), []
    if event.first == follow.seq + 1 and event.epoch >= follow.epoch:
        follow = replace(follow, epoch=event.epoch, seq=event.last, asked=None, unanswered=0)
        follow, over = _over(follow, whole=True) if event.finished else (follow, [])
        return follow, [Write(event.data), *over]
    return _missed(replace(follow, known=max(follow.known, event.last)))


def _missed(follow: Follow) -> Step:
    """There are events that were not written, or those that were written are not in the log: the log says which."""
    return _read(follow) if follow.recorded else _broken(follow)


def _broken(follow: Follow) -> Step:
    follow, over = _over(follow, whole=False)
    return follow, [Gap(follow.seq, None), *over]


def _over(follow: Follow, *, whole: bool) -> Step:
    return replace(follow, phase=Phase.OVER), [StopClocks(), Finish(whole)]


def _head_said(follow: Follow, event: HeadSaid) -> Step:
    asked = follow.asked
    follow = replace(follow, known=max(follow.known, event.seq), asked=None, unanswered=0)
    if follow.phase is Phase.READING:
        return follow, []
    other = event.seq <= follow.seq and event.epoch > follow.epoch
    # What was written before the head was asked for is in the log, unless the store has lost it.
    fewer = asked is not None and event.seq < asked
    ended = event.finished and event.seq == follow.seq
    if event.seq > follow.seq or other or fewer or (ended and event.epoch != follow.epoch):
        return _missed(follow)
    return _over(follow, whole=True) if ended else (follow, [])


# The log ----------------------------------------------------------------------------------------------------


def _read(follow: Follow) -> Step:
    return replace(follow, phase=Phase.READING, sought=follow.known), [ReadLog(follow.epoch, follow.seq)]


def _page(follow: Follow, event: Page) -> Step:
    """What is new in it is written; then it goes on live, or reads on, or looks for the session."""
    if follow.phase is not Phase.READING:
        return follow, []
    effects: Effects = []
    fresh = tuple(entry for entry in event.entries if entry.seq > follow.seq)
    resumed = fresh[0].seq if fresh else event.lost[1] if event.lost is not None else follow.seq + 1
    if event.lost is not None or resumed > follow.seq + 1:
        effects.append(Gap(follow.seq, resumed))
        follow = replace(follow, seq=resumed - 1)
    if fresh:
        effects.append(WriteEntries(fresh))
        follow = replace(follow, epoch=fresh[-1].epoch, seq=fresh[-1].seq)
    follow, further = _after_page(follow, event, read=bool(fresh))
    return follow, effects + further


def _after_page(follow: Follow, event: Page, *, read: bool) -> Step:
    if event.finished and follow.seq >= event.head:
        return _over(follow, whole=True)
    if follow.seq < max(event.head, follow.known) and (read or follow.known > follow.sought):
        return _read(follow)
    if follow.known > max(event.head, follow.seq):
        # What is mailed was acknowledged before: if the log does not have it, the store has lost it.
        return _lost(follow) if follow.owned and follow.known == follow.behind else _broken(follow)
    if not follow.owned:
        return _reattach(follow)
    return replace(follow, phase=Phase.LIVE, known=follow.seq), []


def _lost(follow: Follow) -> Step:
    """Its owner goes on behind it, with an end that is still to come, and finds that out as well."""
    gap = Gap(follow.seq, follow.known + 1, known=False)
    return replace(follow, phase=Phase.LIVE, seq=follow.known), [gap]


def _no_page(follow: Follow, event: NoPage) -> Step:
    if follow.phase is not Phase.READING:
        return follow, []
    if not event.passing:
        return _broken(follow)
    return replace(follow, waiting=True), [StartRetryClock()]


# The owner --------------------------------------------------------------------------------------------------


def _owner_lost(follow: Follow, event: OwnerLost) -> Step:
    """What it has recorded is in the log, perhaps the end; what is not is nobody's any more."""
    if not follow.recorded:
        return _broken(follow)
    follow = replace(follow, owned=False, asked=None, unanswered=0)
    return _read(follow) if follow.phase is Phase.LIVE else (follow, [])


def _reattach(follow: Follow) -> Step:
    return replace(follow, phase=Phase.REATTACHING), [Reattach(follow.epoch, follow.seq)]


def _attached(follow: Follow, event: Attached) -> Step:
    if follow.phase is not Phase.REATTACHING:
        return follow, []
    # The log is read even if there is nothing new: after a loss it may be another stream by the same name.
    return _read(replace(follow, owned=True, known=max(follow.seq, event.head), behind=event.head))


def _not_attached(follow: Follow, event: NotAttached) -> Step:
    if follow.phase is not Phase.REATTACHING:
        return follow, []
    if not event.passing:
        return _broken(follow)
    return replace(follow, waiting=True), [StartRetryClock()]


# Clocks, and the end ----------------------------------------------------------------------------------------


def _check_due(follow: Follow, event: CheckDue) -> Step:
    """One who is asked in vain may be alive and not know the session any more. Of what is not recorded nobody knows."""
    clock: Effects = [StartCheckClock()]
    if follow.phase is not Phase.LIVE or not follow.recorded:
        return follow, clock
    if follow.unanswered >= UNANSWERED:
        follow, effects = _owner_lost(follow, OwnerLost())
        return follow, [*clock, *effects] if follow.phase is not Phase.OVER else effects
    return replace(follow, asked=follow.seq, unanswered=follow.unanswered + 1), [*clock, AskHead()]


def _retry_due(follow: Follow, event: RetryDue) -> Step:
    if not follow.waiting:
        return follow, []
    follow = replace(follow, waiting=False)
    return _read(follow) if follow.phase is Phase.READING else _reattach(follow)


def _superseded(follow: Follow, event: Superseded) -> Step:
    return _over(follow, whole=False)


def _closed(follow: Follow, event: Closed) -> Step:
    return replace(follow, phase=Phase.OVER), [StopClocks(), Detach()]


HANDLERS: Final[dict[type, Callable[..., Step]]] = {
    Frames: _frames,
    Page: _page,
    NoPage: _no_page,
    HeadSaid: _head_said,
    CheckDue: _check_due,
    RetryDue: _retry_due,
    OwnerLost: _owner_lost,
    Attached: _attached,
    NotAttached: _not_attached,
    Superseded: _superseded,
    Closed: _closed,
}
