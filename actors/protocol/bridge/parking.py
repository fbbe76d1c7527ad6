"""The calls of a broker: a client without sessions, a backend that has them, and questions in between.

`step(calls, event)` gives the next state and the effects, without a clock, randomness or IO. The backend gets each call
once. What it asks meanwhile is the answer to the client's request; the call is *parked*, and goes on when the client
comes with answers, under another request. An event that has no row in the phase of its call is dropped and tallied.

Guarantees: each exchange has one answer, or was cancelled; each question has one answer upstream, or was taken back;
answers go to the questions of the round they were given for, once, and all of them or none; a call that nobody waits
for is cancelled, and its connection is not used for another until the backend listens again.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import errors
from actors.protocol.bridge import input_required, refusals, request_state
from actors.protocol.bridge import parking_events as ev
from actors.protocol.bridge import parking_lines as lines
from actors.protocol.bridge.parking_state import Calls, Held, Phase, Question, Step, moved, put
from actors.protocol.bridge.parking_table import TRANSITIONS


def step(calls: Calls, event: ev.ParkingEvent) -> Step:
    """One event. Never raises for anything that a client or a backend can send."""
    return HANDLERS[type(event)](calls, event)


def _begun(calls: Calls, event: ev.Begun) -> Step:
    return lines.enqueue(put(calls, event.call, Held(event.eligible, event.owner)), event.call)


def _warmed(calls: Calls, event: ev.Warmed) -> Step:
    calls, line = lines.first(calls)
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
    calls, effects = lines.serve(put(calls, event.call, parked))
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
        return lines.release(calls, event.call)
    if held.phase is Phase.SETTLING:
        return _settled_by(calls, event.call, "ended")
    calls, effects = lines.release(put(calls, event.call, after), event.call)
    return calls, [ev.Outcome(held.owner, event.ok, event.payload), ev.Forget(event.call), *effects]


def _unsent(calls: Calls, event: ev.Unsent) -> Step:
    held = _serves(calls, event.call, "not sent")
    if held is None:
        return _late(calls, "return")
    calls, effects = lines.release(put(calls, event.call, moved(held, "not sent")), event.call)
    return calls, [ev.Forget(event.call), *effects]


def _cancelled(calls: Calls, event: ev.Cancelled) -> Step:
    held = _serves(calls, event.call, "cancelled")
    if held is None:
        return _late(calls, "cancel")
    if held.phase is Phase.WAITING:
        calls = lines.dequeue(put(calls, event.call, moved(held, "cancelled")), event.call)
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
    calls, effects = lines.release(put(calls, call, moved(calls.held[call], cause)), call)
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
    calls = lines.dequeue(put(calls, event.call, moved(held, "waited too long")), event.call)
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
        calls, more = lines.release(calls, call)
        effects += more
    return calls, effects


def _line_gone(calls: Calls, event: ev.LineGone) -> Step:
    if event.line not in calls.lines:
        return calls, []
    return _gone(calls, event.line)


def _gone(calls: Calls, line: int) -> Step:
    """Every call on it is over, but for what has its outcome."""
    calls = lines.drop(calls, line)
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
    calls, more = lines.serve(calls)
    return calls, effects + more


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
