"""The calls of a broker: a client without sessions, a backend that has them, and questions in between.

`step(calls, event)` gives the next state and the effects, without a clock, randomness or IO. The backend gets each call
once. What it asks meanwhile is the answer to the client's request; the call is *parked*, and goes on when the client
comes with answers, under another request. An event that has no row in the phase of its call is dropped and tallied.

Guarantees: each exchange has one answer, or was cancelled; each question has one answer upstream, or was taken back;
answers go to the questions of the round they were given for, once, and all of them or none; a call that nobody waits
for is cancelled, and its connection is not used for another until the backend listens again.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from actors.protocol import errors
from actors.protocol.bridge import input_required, refusals, request_state
from actors.protocol.bridge import parking_events as ev
from actors.protocol.messages import RequestId
from actors.protocol.persistent import PersistentMap


class Phase(Enum):
    """Where a call is."""

    WAITING = "waiting"
    """Every connection that may take it is taken; nothing was sent."""
    RUNNING = "running"
    """It is the backend's turn."""
    GATHERING = "gathering"
    """The backend has asked; more questions may come at once."""
    PARKED = "parked"
    """The questions are with the client, and no exchange is open: the backend waits."""
    KEPT = "kept"
    """It ended while it was parked: the outcome is for whoever comes with the answers."""
    SETTLING = "settling"
    """Given up and cancelled; its connection takes no other call until the backend shows that it listens."""
    OVER = "over"
    """Nothing is left of it."""


TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.WAITING, "connection free"): Phase.RUNNING,
    (Phase.WAITING, "cancelled"): Phase.OVER,
    (Phase.WAITING, "waited too long"): Phase.OVER,
    (Phase.RUNNING, "asked"): Phase.GATHERING,
    (Phase.RUNNING, "cancelled"): Phase.SETTLING,
    (Phase.RUNNING, "ended"): Phase.OVER,
    (Phase.RUNNING, "not sent"): Phase.OVER,
    (Phase.RUNNING, "connection gone"): Phase.OVER,
    (Phase.GATHERING, "asked"): Phase.GATHERING,
    (Phase.GATHERING, "withdrawn"): Phase.GATHERING,
    (Phase.GATHERING, "all withdrawn"): Phase.RUNNING,
    (Phase.GATHERING, "siblings' time over"): Phase.PARKED,
    (Phase.GATHERING, "no room"): Phase.SETTLING,
    (Phase.GATHERING, "cancelled"): Phase.SETTLING,
    (Phase.GATHERING, "ended"): Phase.OVER,
    (Phase.GATHERING, "connection gone"): Phase.OVER,
    (Phase.PARKED, "asked"): Phase.PARKED,
    (Phase.PARKED, "withdrawn"): Phase.PARKED,
    (Phase.PARKED, "answered"): Phase.RUNNING,
    (Phase.PARKED, "answered in part"): Phase.GATHERING,
    (Phase.PARKED, "ended"): Phase.KEPT,
    (Phase.PARKED, "expired"): Phase.SETTLING,
    (Phase.PARKED, "connection gone"): Phase.OVER,
    (Phase.KEPT, "answered"): Phase.OVER,
    (Phase.KEPT, "expired"): Phase.OVER,
    (Phase.KEPT, "connection gone"): Phase.OVER,
    (Phase.SETTLING, "ended"): Phase.OVER,
    (Phase.SETTLING, "settled"): Phase.OVER,
    (Phase.SETTLING, "grace over"): Phase.OVER,
    (Phase.SETTLING, "connection gone"): Phase.OVER,
}
"""By the phase and the cause. Whatever is not here changes nothing."""


class Rules(Struct, frozen=True):
    """`leased`: on this transport a question can be told to belong to a call only if no other could have raised it, so
    eligible calls take turns on each line. `lines`: how many there may be. `waiting`: calls that may wait.
    `server` is the name of the backend."""

    leased: bool
    lines: int = 1
    waiting: int = 256
    server: str | None = None


class Question(Struct, frozen=True):
    """A question that has no answer. `id` is the backend's; `shown`: the client was asked."""

    id: RequestId
    method: str
    params: Raw
    shown: bool = False


class Held(Struct, frozen=True):
    """One call. `owner` is the exchange that waits for it, None while none does; `open` are its questions by key;
    `round` counts how often it was parked."""

    eligible: bool
    owner: ev.Owner | None
    line: int = 0
    phase: Phase = Phase.WAITING
    round: int = 0
    keys: int = 0
    open: dict[str, Question] = {}
    kept: tuple[bool, Raw] | None = None


class Calls(Struct, frozen=True):
    """All of one broker. `lines`: by number, the call that has the lease; `waiting`: calls that wait for one, in
    order."""

    rules: Rules
    held: PersistentMap[int, Held] = field(default_factory=PersistentMap)
    lines: dict[int, int | None] = {}
    waiting: tuple[int, ...] = ()
    opened: int = 0
    """Lines so far: a number is given once."""


Step = tuple[Calls, ev.Effects]


def moved(held: Held, cause: str) -> Held:
    """The call in the phase that this cause brings it to. KeyError for what can't come up in its phase."""
    return replace(held, phase=TRANSITIONS[held.phase, cause])


def put(calls: Calls, call: int, held: Held) -> Calls:
    """The calls with this one as it is; without it, if it is over."""
    if held.phase is not Phase.OVER:
        return replace(calls, held=calls.held.having(call, held))
    return replace(calls, held=calls.held.without(call))


def step(calls: Calls, event: ev.ParkingEvent) -> Step:
    """One event. Never raises for anything that a client or a backend can send."""
    return HANDLERS[type(event)](calls, event)


def _begun(calls: Calls, event: ev.Begun) -> Step:
    return _enqueue(calls, event.call, Held(event.eligible, event.owner))


def _warmed(calls: Calls, event: ev.Warmed) -> Step:
    calls, line = _first(calls)
    return calls, [ev.Connect(line)]


def _late(calls: Calls, what: str) -> Step:
    return calls, [ev.Tally(f"late_{what}")]


def _serves(calls: Calls, call: int, cause: str) -> Held | None:
    """The call, if this can come up in its phase."""
    held = calls.held.get(call)
    return held if held is not None and (held.phase, cause) in TRANSITIONS else None


# The backend asks --------------------------------------------------------------------------------------------


def _asked(calls: Calls, event: ev.Asked) -> Step:
    """A question gets a key that the call never had. One that comes while the client looks for answers to others is
    asked in the next round."""
    held = _serves(calls, event.call, "asked")
    if held is None:
        line = calls.held[event.call].line if event.call in calls.held else 0
        return calls, [ev.Answer(line, event.id, event.method, *refusals.abandoned(event.method))]
    gather: ev.Effects = [ev.StartGather(event.call)] if held.phase is Phase.RUNNING else []
    question = Question(event.id, event.method, event.params)
    asked = {**held.open, str(held.keys + 1): question}
    return put(calls, event.call, replace(moved(held, "asked"), keys=held.keys + 1, open=asked)), gather


def _withdrawn(calls: Calls, event: ev.Withdrawn) -> Step:
    for call, held in calls.held.items():
        left = {key: question for key, question in held.open.items() if question.id != event.id}
        if held.line == event.line and len(left) < len(held.open):
            last = held.phase is Phase.GATHERING and not left
            after = moved(held, "all withdrawn" if last else "withdrawn")
            return put(calls, call, replace(after, open=left)), []
    return _late(calls, "withdrawal")


def _gather_over(calls: Calls, event: ev.GatherOver) -> Step:
    """The questions are the answer to the client's request."""
    held = _serves(calls, event.call, "siblings' time over")
    if held is None:
        return calls, []
    if not event.room:
        error = errors.internal(
            "too many calls wait for answers of this client",
            reason="parked",
            executed="unknown",
            backend=calls.rules.server,
        )
        refused: ev.Effects = [ev.Outcome(held.owner, False, error.raw)]
        calls, effects = _give_up(calls, event.call, "no room", "too many calls wait for answers")
        return calls, refused + effects
    shown = {key: replace(question, shown=True) for key, question in held.open.items()}
    questions = tuple(input_required.Parked(key, q.method, q.params) for key, q in shown.items())
    parked = replace(moved(held, "siblings' time over"), owner=None, round=held.round + 1, open=shown)
    calls, effects = _serve(put(calls, event.call, parked))
    return calls, [ev.Park(held.owner, event.call, parked.round, questions), *effects]


# The client comes back ---------------------------------------------------------------------------------------


def _resumed(calls: Calls, event: ev.Resumed) -> Step:
    """Taken by the first who comes, for the round that its questions were of (replays: patterns/mrtr, "Server
    Requirements")."""
    held = _serves(calls, event.call, "answered")
    if held is None or held.round != event.round:
        return calls, [ev.Outcome(event.owner, False, request_state.invalid().raw)]
    if held.kept is not None:
        effects: ev.Effects = [ev.Unpark(event.call), ev.Outcome(event.owner, *held.kept), ev.Forget(event.call)]
        return put(calls, event.call, moved(held, "answered")), effects
    given = {key: answer for key, answer in event.answers.items() if key in held.open and held.open[key].shown}
    try:
        for key, answer in given.items():
            input_required.check(held.open[key].method, answer)
    except errors.Refusal as refusal:
        return calls, [ev.Outcome(event.owner, False, refusal.error.raw)]
    left = {key: question for key, question in held.open.items() if key not in given}
    taken = replace(moved(held, "answered in part" if left else "answered"), owner=event.owner, open=left)
    again: ev.Effects = [ev.StartGather(event.call)] if left else []
    asked = [(held.open[key], answer) for key, answer in given.items()]
    answers = [ev.Answer(held.line, q.id, q.method, True, answer) for q, answer in asked]
    return put(calls, event.call, taken), [ev.Unpark(event.call), *answers, *again]


# The end -----------------------------------------------------------------------------------------------------


def _ended(calls: Calls, event: ev.Ended) -> Step:
    held = _serves(calls, event.call, "ended")
    if held is None:
        return _late(calls, "outcome")
    after = replace(moved(held, "ended"), open={})
    if held.phase is Phase.PARKED:
        calls = put(calls, event.call, replace(after, kept=(event.ok, Raw(bytes(event.payload)))))
        return _release(calls, event.call)
    if held.phase is Phase.SETTLING:
        return _settled_by(calls, event.call, "ended")
    calls, effects = _release(put(calls, event.call, after), event.call)
    return calls, [ev.Outcome(held.owner, event.ok, event.payload), ev.Forget(event.call), *effects]


def _unsent(calls: Calls, event: ev.Unsent) -> Step:
    held = _serves(calls, event.call, "not sent")
    if held is None:
        return _late(calls, "return")
    calls, effects = _release(put(calls, event.call, moved(held, "not sent")), event.call)
    return calls, [ev.Forget(event.call), *effects]


def _cancelled(calls: Calls, event: ev.Cancelled) -> Step:
    held = _serves(calls, event.call, "cancelled")
    if held is None:
        return _late(calls, "cancel")
    if held.phase is Phase.WAITING:
        calls = _dequeue(put(calls, event.call, moved(held, "cancelled")), event.call)
        return calls, [ev.StopWait(event.call), ev.Forget(event.call)]
    return _give_up(calls, event.call, "cancelled", event.reason)


def _expired(calls: Calls, event: ev.Expired) -> Step:
    held = _serves(calls, event.call, "expired")
    if held is None:
        return calls, []
    if held.phase is Phase.KEPT:
        return put(calls, event.call, moved(held, "expired")), [ev.Unpark(event.call), ev.Forget(event.call)]
    calls, effects = _give_up(calls, event.call, "expired", "nobody came with answers")
    return calls, [ev.Unpark(event.call), *effects]


def _give_up(calls: Calls, call: int, cause: str, reason: str) -> Step:
    """Nobody waits for the call: the backend is told, and what it asked is answered. What it has its turn for is
    waited for, since a question that it still raises would pass for another call's."""
    held = calls.held[call]
    effects: ev.Effects = [
        ev.Answer(held.line, question.id, question.method, *refusals.abandoned(question.method))
        for question in held.open.values()
    ]
    effects.append(ev.Cancel(held.line, call, reason))
    calls = put(calls, call, replace(moved(held, cause), owner=None, open={}))
    if calls.lines.get(held.line) == call:
        return calls, [*effects, ev.StartGrace(call, held.line)]
    calls, more = _settled_by(calls, call, "settled")
    return calls, effects + more


def _settled(calls: Calls, event: ev.Settled) -> Step:
    if _serves(calls, event.call, "settled") is None:
        return calls, []
    return _settled_by(calls, event.call, "settled")


def _settled_by(calls: Calls, call: int, cause: str) -> Step:
    calls, effects = _release(put(calls, call, moved(calls.held[call], cause)), call)
    return calls, [ev.StopGrace(call), ev.Forget(call), *effects]


def _grace_over(calls: Calls, event: ev.GraceOver) -> Step:
    held = _serves(calls, event.call, "grace over")
    if held is None:
        return calls, []
    calls, effects = _gone(put(calls, event.call, moved(held, "grace over")), held.line)
    return calls, [ev.StopGrace(event.call), ev.Forget(event.call), ev.Discard(held.line), *effects]


def _wait_over(calls: Calls, event: ev.WaitOver) -> Step:
    held = _serves(calls, event.call, "waited too long")
    if held is None:
        return calls, []
    if any(calls.held[n].phase is not Phase.PARKED for n in calls.lines.values() if n is not None):
        return calls, [ev.StartWait(event.call)]  # the backend is at work, which has deadlines of its own
    holders = set(calls.lines.values())
    for call in event.patient:
        if call in holders:
            calls, effects = _expired(calls, ev.Expired(call))
            return calls, [*effects, ev.StartWait(event.call)]
    error = errors.internal(
        "other calls to this server wait for their client", reason="busy", executed="no", backend=calls.rules.server
    )
    calls = _dequeue(put(calls, event.call, moved(held, "waited too long")), event.call)
    return calls, [ev.Outcome(held.owner, False, error.raw), ev.Forget(event.call)]


# Connections -------------------------------------------------------------------------------------------------


def _line_lost(calls: Calls, event: ev.LineLost) -> Step:
    """What was parked has ended with an error that its client would not understand: nothing is there to come back to.
    Who was to show that it listens need not any more."""
    effects: ev.Effects = []
    for call, held in calls.held.items():
        failed = held.kept is not None and not held.kept[0]
        if held.line != event.line or not (failed or held.phase is Phase.SETTLING):
            continue
        calls = put(calls, call, moved(held, "connection gone"))
        effects += [ev.Unpark(call) if failed else ev.StopGrace(call), ev.Forget(call)]
        calls, more = _release(calls, call)
        effects += more
    return calls, effects


def _line_gone(calls: Calls, event: ev.LineGone) -> Step:
    if event.line not in calls.lines:
        return calls, []
    return _gone(calls, event.line)


def _gone(calls: Calls, line: int) -> Step:
    """Every call on it is over, but for what has its outcome."""
    calls = _drop(calls, line)
    effects: ev.Effects = []
    for call, held in calls.held.items():
        if held.line != line or (held.kept is not None and held.kept[0]):
            continue
        calls = put(calls, call, moved(held, "connection gone"))
        if held.owner is not None:
            error = errors.internal(
                "the connection to the server ended",
                reason="link_ended",
                executed="unknown",
                backend=calls.rules.server,
            )
            effects.append(ev.Outcome(held.owner, False, error.raw))
        if held.phase in (Phase.PARKED, Phase.KEPT):
            effects.append(ev.Unpark(call))
        elif held.phase is Phase.SETTLING:
            effects.append(ev.StopGrace(call))
        effects.append(ev.Forget(call))
    calls, more = _serve(calls)
    return calls, effects + more


# -------------------------------------------------------------------------------------- which connection a call goes on
#
# The first line is where the backend's hidden state is, and takes what it can. Where calls take turns, one that is
# parked keeps its turn for as long as a human thinks. So when the turns of all lines are with parked calls, another
# line is opened for the next call, up to the bound; beyond it calls wait, not for ever.


def _first(calls: Calls) -> tuple[Calls, int]:
    """The line for what needs no turn."""
    for line in calls.lines:
        return calls, line
    return _another(calls)


def _enqueue(calls: Calls, call: int, held: Held) -> Step:
    """A new call goes out, or waits for its turn."""
    if not (calls.rules.leased and held.eligible):
        calls, line = _first(calls)
        return _send(calls, call, held, line)
    if len(calls.waiting) >= calls.rules.waiting:
        error = errors.internal(
            "too many calls wait for this server", reason="busy", executed="no", backend=calls.rules.server
        )
        return calls, [ev.Outcome(held.owner, False, error.raw), ev.Forget(call)]
    calls, effects = _serve(replace(put(calls, call, held), waiting=(*calls.waiting, call)))
    return calls, effects if call not in calls.waiting else [*effects, ev.StartWait(call)]


def _serve(calls: Calls) -> Step:
    """Calls that wait take the lines that are free, in order; lines that nobody needs any more are closed."""
    effects: ev.Effects = []
    while calls.waiting:
        calls, line = _free(calls)
        if line is None:
            return calls, effects
        call, *rest = calls.waiting
        calls, sent = _send(replace(calls, waiting=tuple(rest)), call, calls.held[call], line)
        effects += sent
    spare = [line for line, holder in calls.lines.items() if holder is None][1:] if calls.rules.leased else []
    lines = {line: holder for line, holder in calls.lines.items() if line not in spare}
    return replace(calls, lines=lines), [*effects, *map(ev.Discard, spare)]


def _free(calls: Calls) -> tuple[Calls, int | None]:
    for line, holder in calls.lines.items():
        if holder is None:
            return calls, line
    all_parked = all(calls.held[n].phase is Phase.PARKED for n in calls.lines.values() if n is not None)
    if all_parked and len(calls.lines) < calls.rules.lines:
        return _another(calls)
    return calls, None


def _another(calls: Calls) -> tuple[Calls, int]:
    line = calls.opened + 1
    return replace(calls, opened=line, lines={**calls.lines, line: None}), line


def _send(calls: Calls, call: int, held: Held, line: int) -> Step:
    held = replace(moved(held, "connection free"), line=line)
    if calls.rules.leased and held.eligible:
        calls = replace(calls, lines={**calls.lines, line: call})
    return put(calls, call, held), [ev.StopWait(call), ev.Dispatch(call, line)]


def _release(calls: Calls, call: int) -> Step:
    """A call needs its turn no more."""
    mine = [line for line, holder in calls.lines.items() if holder == call]
    if not mine:
        return calls, []
    return _serve(replace(calls, lines={**calls.lines, mine[0]: None}))


def _dequeue(calls: Calls, call: int) -> Calls:
    """A call waits no more."""
    return replace(calls, waiting=tuple(n for n in calls.waiting if n != call))


def _drop(calls: Calls, line: int) -> Calls:
    """A line is no more."""
    return replace(calls, lines={n: holder for n, holder in calls.lines.items() if n != line})


HANDLERS: dict[type, Callable[[Calls, Any], Step]] = {
    ev.Begun: _begun,
    ev.Warmed: _warmed,
    ev.Asked: _asked,
    ev.Withdrawn: _withdrawn,
    ev.GatherOver: _gather_over,
    ev.Resumed: _resumed,
    ev.Cancelled: _cancelled,
    ev.Expired: _expired,
    ev.Ended: _ended,
    ev.Unsent: _unsent,
    ev.Settled: _settled,
    ev.GraceOver: _grace_over,
    ev.WaitOver: _wait_over,
    ev.LineLost: _line_lost,
    ev.LineGone: _line_gone,
}
