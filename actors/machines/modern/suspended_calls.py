"""The calls of an affinity pool: a modern client, a backend that has them, and server requests in between.

`step(calls, event)` gives the next state and the effects, without a clock, randomness or IO. The backend gets each
call once. What it asks meanwhile is the answer to the client's request; the call is *suspended*, and goes on when
the client comes with answers, under another request. An event that has no row in the phase of its call is dropped
and counted.

A *line* is one of the affinity pool's connections to its backend, a *call* the affinity pool's own number of a
call; an *owner* names a modern request with a client, and is opaque here.

Guarantees: each modern request has one answer, or was cancelled; each server request has one answer upstream, or
was taken back; answers go to the server requests of the round they were given for, once, and all of them or none; a
call that nobody waits for is cancelled, and its connection is not used for another until the backend listens again.
"""

from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any, Final, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.machines.modern import input_required, request_state
from actors.machines.modern.input_required import InputRequest
from actors.machines.upstream.legacy_calls import failure
from actors.protocol import capabilities, errors, messages, translate
from actors.protocol.capabilities import ClientBits
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.methods import METHODS
from actors.protocol.outcomes import UNANSWERED
from actors.protocol.persistent import EMPTY_MAP, PersistentMap
from actors.protocol.versions import MODERN

Owner: TypeAlias = Hashable

KEYS_CHOSEN_MAX: Final = 64
"""Keys that a backend may choose in the course of one call; all others are numbers."""

# Events ------------------------------------------------------------------------------------------------------


class Begun(Struct, frozen=True):
    """A call for the backend. `may_ask_back`: the backend may ask back while it runs."""

    call: int
    owner: Owner
    may_ask_back: bool


class Warmed(Struct, frozen=True):
    """A connection is wanted without a call."""


class ServerRequested(Struct, frozen=True):
    """The backend asks in the course of a call; its client can be asked this."""

    call: int
    id: RequestId
    method: str
    params: Raw = EMPTY
    key: str = ""
    """The one that it chose."""


class Withdrawn(Struct, frozen=True):
    """The backend no longer wants to know."""

    line: int
    id: RequestId


class GatherOver(Struct, frozen=True):
    """Server requests that belong together have come. `room`: one more call may be suspended."""

    call: int
    room: bool


class Resumed(Struct, frozen=True):
    """A client has come with answers, by key, to the server requests of this round."""

    call: int
    owner: Owner
    round: int
    answers: dict[str, Raw]


class Cancelled(Struct, frozen=True):
    """The modern request that waited for the call is gone."""

    call: int
    reason: str


class Expired(Struct, frozen=True):
    """Nobody came with answers in time."""

    call: int


class Ended(Struct, frozen=True):
    """The outcome of a call: its result, or the JSON-RPC error object."""

    call: int
    ok: bool
    payload: Raw


class Unsent(Struct, frozen=True):
    """The connection could not take it; whoever made the call makes it elsewhere."""

    call: int


class Settled(Struct, frozen=True):
    """The backend listens again, after a call that was given up."""

    call: int


class GraceOver(Struct, frozen=True):
    """It does not."""

    call: int


class WaitOver(Struct, frozen=True):
    """No connection became free in time. `patient`: calls that were suspended long enough to give way."""

    call: int
    patient: tuple[int, ...] = ()


class ConnectionLost(Struct, frozen=True):
    """The connection broke, and may come back; every call on it has its outcome already."""

    line: int


class ConnectionGone(Struct, frozen=True):
    """The connection has ended for good; of the calls on it nothing more will be heard."""

    line: int


SuspensionEvent: TypeAlias = (
    Begun
    | Warmed
    | ServerRequested
    | Withdrawn
    | GatherOver
    | Resumed
    | Cancelled
    | Expired
    | Ended
    | Unsent
    | Settled
    | GraceOver
    | WaitOver
    | ConnectionLost
    | ConnectionGone
)

# Effects -----------------------------------------------------------------------------------------------------


class Connect(Struct, frozen=True):
    """See to it that this line is there, or is coming."""

    line: int


class Dispatch(Struct, frozen=True):
    """Send the call on this line, which is opened for it if it is not there."""

    call: int
    line: int


class Suspend(Struct, frozen=True):
    """The server requests are the answer to this modern request; `Expired` is due when nobody comes back with
    answers."""

    owner: Owner
    call: int
    round: int
    questions: tuple[InputRequest, ...]


class Unsuspend(Struct, frozen=True):
    """Nobody needs to come back any more; its place is free."""

    call: int


class Outcome(Struct, frozen=True):
    """The answer to this modern request."""

    owner: Owner
    ok: bool
    payload: Raw


class Answer(Struct, frozen=True):
    """The outcome of a server request, to the backend, in the client's words. `method` is the server request's."""

    line: int
    id: RequestId
    method: str
    ok: bool
    payload: Raw


class Cancel(Struct, frozen=True):
    """The backend is told that nobody waits for this call any more."""

    line: int
    call: int
    reason: str


class StartGather(Struct, frozen=True):
    """`GatherOver` when server requests that belong together have had their time."""

    call: int


class StartWait(Struct, frozen=True):
    """`WaitOver` when the call has waited too long for a connection."""

    call: int


class StopWait(Struct, frozen=True):
    """It waits no more."""

    call: int


class StartGrace(Struct, frozen=True):
    """Find out whether the backend listens on this line: `Settled`, or `GraceOver` when it does not in time."""

    call: int
    line: int


class StopGrace(Struct, frozen=True):
    """It is known, or of no interest any more."""

    call: int


class Discard(Struct, frozen=True):
    """Close this line."""

    line: int


class Forget(Struct, frozen=True):
    """The call is over."""

    call: int


class Count(Struct, frozen=True):
    """Count a thing that was dropped."""

    what: str


SuspensionEffect: TypeAlias = (
    Connect
    | Dispatch
    | Suspend
    | Unsuspend
    | Outcome
    | Answer
    | Cancel
    | StartGather
    | StartWait
    | StopWait
    | StartGrace
    | StopGrace
    | Discard
    | Forget
    | Count
)

Effects: TypeAlias = list[SuspensionEffect]

# State -------------------------------------------------------------------------------------------------------


class Phase(Enum):
    """Where a call is."""

    WAITING = "waiting"
    """Every connection that may take it is taken; nothing was sent."""
    RUNNING = "running"
    """It is the backend's turn."""
    GATHERING = "gathering"
    """The backend has asked; more server requests may come at once."""
    SUSPENDED = "suspended"
    """The server requests are with the client, and no modern request is open: the backend waits."""
    KEPT = "kept"
    """It ended while it was suspended: the outcome is for whoever comes with the answers."""
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
    (Phase.GATHERING, "siblings' time over"): Phase.SUSPENDED,
    (Phase.GATHERING, "no room"): Phase.SETTLING,
    (Phase.GATHERING, "cancelled"): Phase.SETTLING,
    (Phase.GATHERING, "ended"): Phase.OVER,
    (Phase.GATHERING, "connection gone"): Phase.OVER,
    (Phase.SUSPENDED, "asked"): Phase.SUSPENDED,
    (Phase.SUSPENDED, "withdrawn"): Phase.SUSPENDED,
    (Phase.SUSPENDED, "answered"): Phase.RUNNING,
    (Phase.SUSPENDED, "answered in part"): Phase.GATHERING,
    (Phase.SUSPENDED, "ended"): Phase.KEPT,
    (Phase.SUSPENDED, "expired"): Phase.SETTLING,
    (Phase.SUSPENDED, "connection gone"): Phase.OVER,
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
    """`serialized`: on this transport a server request can be told to belong to a call only if no other could have
    raised it, so such calls take turns on each line. `lines`: how many there may be. `waiting`: calls that may
    wait. `server` is the name of the backend."""

    serialized: bool
    lines: int = 1
    waiting: int = 256
    server: str = ""


class Question(Struct, frozen=True):
    """A server request that has no answer. `id` is the backend's; `shown`: the client was asked."""

    id: RequestId
    method: str
    params: Raw
    shown: bool = False


class Held(Struct, frozen=True):
    """One call. `owner` is the modern request that waits for it, None while none does; `open` are its server
    requests by key; `round` counts how often it was suspended."""

    may_ask_back: bool
    owner: Owner | None
    line: int = 0
    phase: Phase = Phase.WAITING
    round: int = 0
    keys: int = 0
    named: frozenset[str] = frozenset()
    """Keys that the backend has chosen."""
    open: dict[str, Question] = {}
    kept: tuple[bool, Raw] | None = None


class Calls(Struct, frozen=True):
    """All of one affinity pool. `lines`: by number, the call that has the lease; `waiting`: calls that wait for
    one, in order."""

    rules: Rules
    held: PersistentMap[int, Held] = EMPTY_MAP
    lines: dict[int, int | None] = {}
    waiting: tuple[int, ...] = ()
    opened: int = 0
    """Lines so far: a number is given once."""


Step = tuple[Calls, Effects]


def moved(held: Held, cause: str) -> Held:
    """The call in the phase that this cause brings it to. KeyError for what can't come up in its phase."""
    return replace(held, phase=TRANSITIONS[held.phase, cause])


def put(calls: Calls, call: int, held: Held) -> Calls:
    """The calls with this one as it is; without it, if it is over."""
    if held.phase is not Phase.OVER:
        return replace(calls, held=calls.held.having(call, held))
    return replace(calls, held=calls.held.without(call))


def step(calls: Calls, event: SuspensionEvent) -> Step:
    """One event. Never raises for anything that a client or a backend can send."""
    row = OF_CALLS.get(type(event))
    if row is None:
        return OF_ALL[type(event)](calls, event)
    cause, handler, late = row
    # Every event of OF_CALLS names its call.
    held = calls.held.get(event.call)  # type: ignore[union-attr]
    if held is None or (held.phase, cause) not in TRANSITIONS:
        return calls, late(event, held)
    return handler(calls, event, held)


def _begun(calls: Calls, event: Begun) -> Step:
    return _enqueue(calls, event.call, Held(event.may_ask_back, event.owner))


def _warmed(calls: Calls, event: Warmed) -> Step:
    calls, line = _first(calls)
    return calls, [Connect(line)]


def _counted(what: str) -> Callable[[Any, Held | None], Effects]:
    return lambda event, held: [Count(f"late_{what}")]


def _dropped(event: SuspensionEvent, held: Held | None) -> Effects:
    return []


# The backend asks --------------------------------------------------------------------------------------------


def _asked(calls: Calls, event: ServerRequested, held: Held) -> Step:
    """A server request gets a key that the call never had. One that comes while the client looks for answers to
    others is asked in the next round."""
    gather: Effects = [StartGather(event.call)] if held.phase is Phase.RUNNING else []
    key, named = str(held.keys + 1), held.named
    if event.key and event.key not in named and len(named) < KEYS_CHOSEN_MAX:
        key, named = event.key, named | {event.key}
    asked = {**held.open, key: Question(event.id, event.method, event.params)}
    return put(calls, event.call, replace(moved(held, "asked"), keys=held.keys + 1, named=named, open=asked)), gather


def _asked_late(event: ServerRequested, held: Held | None) -> Effects:
    return [Answer(held.line if held is not None else 0, event.id, event.method, *abandoned(event.method))]


def _withdrawn(calls: Calls, event: Withdrawn) -> Step:
    for call, held in calls.held.items():
        left = {key: question for key, question in held.open.items() if question.id != event.id}
        if held.line == event.line and len(left) < len(held.open):
            last = held.phase is Phase.GATHERING and not left
            after = moved(held, "all withdrawn" if last else "withdrawn")
            return put(calls, call, replace(after, open=left)), []
    return calls, [Count("late_withdrawal")]


def _gather_over(calls: Calls, event: GatherOver, held: Held) -> Step:
    """The server requests are the answer to the client's request."""
    if not event.room:
        error = _failure(calls, "parked", "too many calls wait for answers of this client")
        calls, effects = _give_up(calls, event.call, held, "no room", "too many calls wait for answers")
        return calls, [Outcome(held.owner, False, error), *effects]
    shown = {key: replace(question, shown=True) for key, question in held.open.items()}
    questions = tuple(InputRequest(key, q.method, q.params) for key, q in shown.items())
    suspended = replace(moved(held, "siblings' time over"), owner=None, round=held.round + 1, open=shown)
    calls, effects = put(calls, event.call, suspended), [Suspend(held.owner, event.call, suspended.round, questions)]
    return _served(calls, effects) if calls.rules.serialized else (calls, effects)


# The client comes back ---------------------------------------------------------------------------------------


def _resumed(calls: Calls, event: Resumed, held: Held) -> Step:
    """Taken by the first who comes, for the round that its server requests were of (replays: patterns/mrtr, "Server
    Requirements")."""
    if held.round != event.round:
        return calls, _resumed_late(event, held)
    if held.kept is not None:
        effects: Effects = [Unsuspend(event.call), Outcome(event.owner, *held.kept), Forget(event.call)]
        return put(calls, event.call, moved(held, "answered")), effects
    given = {key: answer for key, answer in event.answers.items() if key in held.open and held.open[key].shown}
    try:
        for key, answer in given.items():
            input_required.check(held.open[key].method, answer)
    except errors.Refusal as refusal:
        return calls, [Outcome(event.owner, False, refusal.error.raw)]
    left = {key: question for key, question in held.open.items() if key not in given}
    taken = replace(moved(held, "answered in part" if left else "answered"), owner=event.owner, open=left)
    again: Effects = [StartGather(event.call)] if left else []
    asked = [(held.open[key], answer) for key, answer in given.items()]
    answers = [Answer(held.line, q.id, q.method, True, answer) for q, answer in asked]
    return put(calls, event.call, taken), [Unsuspend(event.call), *answers, *again]


def _resumed_late(event: Resumed, held: Held | None) -> Effects:
    return [Outcome(event.owner, False, request_state.invalid().raw)]


# The end -----------------------------------------------------------------------------------------------------


def _ended(calls: Calls, event: Ended, held: Held) -> Step:
    if held.phase is Phase.SETTLING:
        return _over(calls, event.call, held, "ended", [StopGrace(event.call), Forget(event.call)])
    if held.phase is Phase.SUSPENDED:
        kept = replace(moved(held, "ended"), open={}, kept=(event.ok, Raw(bytes(event.payload))))
        return _released(put(calls, event.call, kept), event.call, [])
    return _over(calls, event.call, held, "ended", [Outcome(held.owner, event.ok, event.payload), Forget(event.call)])


def _over(calls: Calls, call: int, held: Held, cause: str, effects: Effects) -> Step:
    """Nothing is left of the call; others may have its turn."""
    calls = put(calls, call, moved(held, cause))
    return _released(calls, call, effects) if calls.rules.serialized else (calls, effects)


def _unsent(calls: Calls, event: Unsent, held: Held) -> Step:
    return _over(calls, event.call, held, "not sent", [Forget(event.call)])


def _cancelled(calls: Calls, event: Cancelled, held: Held) -> Step:
    if held.phase is Phase.WAITING:
        calls = _dequeue(put(calls, event.call, moved(held, "cancelled")), event.call)
        return calls, [StopWait(event.call), Forget(event.call)]
    return _give_up(calls, event.call, held, "cancelled", event.reason)


def _expired(calls: Calls, event: Expired, held: Held) -> Step:
    if held.phase is Phase.KEPT:
        return put(calls, event.call, moved(held, "expired")), [Unsuspend(event.call), Forget(event.call)]
    calls, effects = _give_up(calls, event.call, held, "expired", "nobody came with answers")
    return calls, [Unsuspend(event.call), *effects]


def _give_up(calls: Calls, call: int, held: Held, cause: str, reason: str) -> Step:
    """Nobody waits for the call: the backend is told, and what it asked is answered. What it has its turn for is
    waited for, since a server request that it still raises would pass for another call's."""
    effects: Effects = [
        Answer(held.line, question.id, question.method, *abandoned(question.method)) for question in held.open.values()
    ]
    effects.append(Cancel(held.line, call, reason))
    held = replace(moved(held, cause), owner=None, open={})
    if calls.lines.get(held.line) == call:
        return put(calls, call, held), [*effects, StartGrace(call, held.line)]
    return _over(calls, call, held, "settled", [*effects, StopGrace(call), Forget(call)])


def _settled(calls: Calls, event: Settled, held: Held) -> Step:
    return _over(calls, event.call, held, "settled", [StopGrace(event.call), Forget(event.call)])


def _grace_over(calls: Calls, event: GraceOver, held: Held) -> Step:
    calls, effects = _gone(put(calls, event.call, moved(held, "grace over")), held.line)
    return calls, [StopGrace(event.call), Forget(event.call), Discard(held.line), *effects]


def _wait_over(calls: Calls, event: WaitOver, held: Held) -> Step:
    holders = {call: calls.held[call] for call in calls.lines.values() if call is not None}
    if any(holder.phase is not Phase.SUSPENDED for holder in holders.values()):
        return calls, [StartWait(event.call)]  # the backend is at work, which has deadlines of its own
    for call in event.patient:
        if call in holders:
            calls, effects = _expired(calls, Expired(call), holders[call])
            return calls, [*effects, StartWait(event.call)]
    calls = _dequeue(put(calls, event.call, moved(held, "waited too long")), event.call)
    return calls, _busy(calls, event.call, held, "other calls to this server wait for their client")


def _busy(calls: Calls, call: int, held: Held, message: str) -> Effects:
    return [Outcome(held.owner, False, _failure(calls, "busy", message, "no")), Forget(call)]


def _failure(calls: Calls, reason: str, message: str, executed: errors.Executed = "unknown") -> Raw:
    return failure(reason, message, executed, calls.rules.server)


# What becomes of a server request (SEP-2260: always an answer, and at once) ------------------------------------------


def abandoned(method: str) -> messages.Outcome:
    """Of a call that was given up, or whose client did not come back."""
    other = errors.internal("the call that raised this request was given up", reason="call_ended")
    return _refusal(method, "the client is gone", other)


def unasked(method: str) -> messages.Outcome:
    """Of no call, or of one during which nobody can be asked: there is no way to a modern client. (An empty
    list of roots would be a statement.)"""
    return _refusal(method, "no call is there to carry this request", errors.method_not_found(method))


def doubtful() -> errors.ProtocolError:
    """Of nobody knows which call: one that was cancelled may still ask."""
    text = "it can't be told which call raised this request: one that was cancelled has no answer"
    return errors.internal(text, reason="doubtful")


def _refusal(method: str, why: str, other: errors.ProtocolError) -> messages.Outcome:
    if method == "elicitation/create":
        return True, UNANSWERED
    return False, (errors.rejected(why) if method == "sampling/createMessage" else other).raw


def for_client(during: str, bits: ClientBits, method: str, params: Raw) -> Raw | messages.Outcome:
    """The params of the server request that a backend asks during a request of this method, of a client with these
    bits.

    The outcome for the backend instead, where nobody can be asked: during a request that may not be answered with
    server requests, and for what this client did not declare (2026-07-28, patterns/mrtr, "Supported Requests").
    """
    row = METHODS.get(during)
    if row is None or not row.may_ask_back:
        return unasked(method)
    try:
        refusal = capabilities.client_refusal(bits, method, params)
    except errors.Malformed as malformed:
        refusal = malformed.error
    if refusal is not None or method == "ping":
        return unasked(method) if refusal is None else (False, refusal.raw)
    asked = translate.server_request(method, params, MODERN)
    if isinstance(asked, translate.Unbridgeable):
        return asked.ok, asked.payload
    # A copy: the params are kept while a human thinks, and the frame that they came in is not.
    return Raw(bytes(asked))


# Connections -------------------------------------------------------------------------------------------------


def _line_lost(calls: Calls, event: ConnectionLost) -> Step:
    """What was suspended has ended with an error that its client would not understand: nothing is there to come
    back to. Who was to show that it listens need not any more."""
    effects: Effects = []
    for call, held in calls.held.items():
        failed = held.kept is not None and not held.kept[0]
        if held.line != event.line or not (failed or held.phase is Phase.SETTLING):
            continue
        calls = put(calls, call, moved(held, "connection gone"))
        effects += [Unsuspend(call) if failed else StopGrace(call), Forget(call)]
        calls, effects = _released(calls, call, effects)
    return calls, effects


def _line_gone(calls: Calls, event: ConnectionGone) -> Step:
    return _gone(calls, event.line) if event.line in calls.lines else (calls, [])


def _gone(calls: Calls, line: int) -> Step:
    """Every call on it is over, but for what has its outcome."""
    calls = replace(calls, lines={n: holder for n, holder in calls.lines.items() if n != line})
    effects: Effects = []
    for call, held in calls.held.items():
        if held.line != line or (held.kept is not None and held.kept[0]):
            continue
        calls = put(calls, call, moved(held, "connection gone"))
        if held.owner is not None:
            error = _failure(calls, "link_ended", "the connection to the server ended")
            effects.append(Outcome(held.owner, False, error))
        if held.phase in (Phase.SUSPENDED, Phase.KEPT):
            effects.append(Unsuspend(call))
        elif held.phase is Phase.SETTLING:
            effects.append(StopGrace(call))
        effects.append(Forget(call))
    return _served(calls, effects) if calls.rules.serialized else (calls, effects)


# Which connection a call goes on -----------------------------------------------------------------------------
#
# The first line is where the backend's hidden state is, and takes what it can. Where calls take turns, one that is
# suspended keeps its turn for as long as a human thinks. So when the turns of all lines are with suspended calls,
# another line is opened for the next call, up to the bound; beyond it calls wait, not for ever.


def _first(calls: Calls) -> tuple[Calls, int]:
    """The line for what needs no turn."""
    for line in calls.lines:
        return calls, line
    return _another(calls)


def _enqueue(calls: Calls, call: int, held: Held) -> Step:
    """A new call goes out, or waits for its turn."""
    if not (calls.rules.serialized and held.may_ask_back):
        calls, line = _first(calls)
        return _send(calls, call, held, line)
    if len(calls.waiting) >= calls.rules.waiting:
        return calls, _busy(calls, call, held, "too many calls wait for this server")
    calls, effects = _served(replace(put(calls, call, held), waiting=(*calls.waiting, call)), [], new=call)
    return calls, effects if call not in calls.waiting else [*effects, StartWait(call)]


def _served(calls: Calls, effects: Effects, new: int | None = None) -> Step:
    """After these effects calls that wait take the lines that are free, in order; lines that nobody needs any more are
    closed. For a `new` call no clock runs yet."""
    while calls.waiting:
        calls, line = _free(calls)
        if line is None:
            return calls, effects
        call, *rest = calls.waiting
        calls, sent = _send(replace(calls, waiting=tuple(rest)), call, calls.held[call], line)
        effects = [*effects, *([] if call == new else [StopWait(call)]), *sent]
    spare = [line for line, holder in calls.lines.items() if holder is None][1:]
    lines = {line: holder for line, holder in calls.lines.items() if line not in spare}
    return replace(calls, lines=lines), [*effects, *map(Discard, spare)]


def _free(calls: Calls) -> tuple[Calls, int | None]:
    for line, holder in calls.lines.items():
        if holder is None:
            return calls, line
    all_suspended = all(calls.held[n].phase is Phase.SUSPENDED for n in calls.lines.values() if n is not None)
    if all_suspended and len(calls.lines) < calls.rules.lines:
        return _another(calls)
    return calls, None


def _another(calls: Calls) -> tuple[Calls, int]:
    line = calls.opened + 1
    return replace(calls, opened=line, lines={**calls.lines, line: None}), line


def _send(calls: Calls, call: int, held: Held, line: int) -> Step:
    held = replace(moved(held, "connection free"), line=line)
    if calls.rules.serialized and held.may_ask_back:
        calls = replace(calls, lines={**calls.lines, line: call})
    return put(calls, call, held), [Dispatch(call, line)]


def _released(calls: Calls, call: int, effects: Effects) -> Step:
    """A call needs its turn no more, after these effects."""
    mine = [line for line, holder in calls.lines.items() if holder == call]
    return _served(replace(calls, lines={**calls.lines, mine[0]: None}), effects) if mine else (calls, effects)


def _dequeue(calls: Calls, call: int) -> Calls:
    """A call waits no more."""
    return replace(calls, waiting=tuple(n for n in calls.waiting if n != call))


OF_ALL: Final[dict[type, Callable[[Calls, Any], Step]]] = {
    Begun: _begun,
    Warmed: _warmed,
    Withdrawn: _withdrawn,
    ConnectionLost: _line_lost,
    ConnectionGone: _line_gone,
}
OF_CALLS: Final[dict[type, tuple[str, Callable[[Calls, Any, Held], Step], Callable[[Any, Held | None], Effects]]]] = {
    ServerRequested: ("asked", _asked, _asked_late),
    GatherOver: ("siblings' time over", _gather_over, _dropped),
    Resumed: ("answered", _resumed, _resumed_late),
    Cancelled: ("cancelled", _cancelled, _counted("cancel")),
    Expired: ("expired", _expired, _dropped),
    Ended: ("ended", _ended, _counted("outcome")),
    Unsent: ("not sent", _unsent, _counted("return")),
    Settled: ("settled", _settled, _dropped),
    GraceOver: ("grace over", _grace_over, _dropped),
    WaitOver: ("waited too long", _wait_over, _dropped),
}
"""Events of one call: the cause that must be possible in its phase, what follows, and what follows if it is not."""
