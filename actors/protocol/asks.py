"""Requests that backends make of the client: sampling, elicitation, roots.

Each gets an id of ours that is unique in the session, goes out on the stream of the call that raised it, and comes back
to the backend that asked, once. A question that cannot reach a client is answered with an error, never left hanging
(SEP-2260; 2025-11-25 utilities/cancellation).
"""

from collections.abc import Collection

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, codec, errors, payload, session_record, streams, tasks, translate
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.messages import Error, Result, base36
from actors.protocol.methods import Sender, carried
from actors.protocol.session_record import Changes, of_ask
from actors.protocol.session_state import Ask, Session

Step = streams.Step

ID_DIGITS = 20
"""Of the number in an id: more than ever get used, and few enough to be read as a number."""


def asked(session: Session, event: ev.Asked) -> Step:
    """A backend asks. What the client did not declare is refused at once, unless it is the client's own to refuse."""
    refusal = _refusal(session, event)
    if refusal is not None:
        return session, [fx.AnswerBackend(event.backend, event.id, False, refusal.raw)]
    lowered = event.params if event.as_is else _lowered(session, event)
    if isinstance(lowered, translate.Unbridgeable):
        return session, [fx.AnswerBackend(event.backend, event.id, lowered.ok, lowered.payload)]
    ask_id = f"{base36(session.epoch)}.{session.next_ask}"
    token = payload.progress_token(lowered)
    params = payload.with_progress_token(lowered, ask_id) if token is not None else lowered
    frame = codec.encode_request(ask_id, event.method, params)
    ask = Ask(event.backend, event.id, event.call, event.method, frame, None, token)
    session = replace(session, next_ask=session.next_ask + 1)
    return _send(session, ask_id, ask, event)


def _lowered(session: Session, event: ev.Asked) -> Raw | translate.Unbridgeable:
    """The params in the words of the client's revision."""
    client = session.client.capabilities if session.client is not None else capabilities.NOTHING
    augmented = tasks.may_augment(client, session.version, event.method)
    return translate.server_request(event.method, event.params, session.version, tasks=augmented)


def _refusal(session: Session, event: ev.Asked) -> errors.ProtocolError | None:
    if session.client is None:
        return errors.internal("the session is not initialized", reason="no_client")
    if len(session.asks) >= session.rules.asks:
        return errors.internal("too many requests wait for an answer of the client", reason="too_many")
    try:
        payload.progress_token(event.params)
        if event.method in tasks.ASKING:
            return tasks.refusal(session.client.capabilities, session.version, event.method)
        if event.as_is:
            return None if carried(event.method, Sender.SERVER) else errors.method_not_found(event.method)
        return capabilities.client_refusal(session.client.bits, event.method, event.params)
    except errors.Malformed as malformed:
        return malformed.error


def _send(session: Session, ask_id: str, ask: Ask, event: ev.Asked) -> Step:
    name, session, effects = _stream_for(session, ask)
    if name is None:
        session = replace(session, asks={**session.asks, ask_id: ask})
        return session, [*effects, fx.StartAskClock(ask_id, False)]
    entry, moved = session.called(ask.call), Changes()
    if entry is not None:
        own = session.posts[entry.post].stream
        session, moved = session_record.place(session, entry, own, event)
        entry = session.called(ask.call) if own == name else None
    session, more = streams.put(session, name, ask.frame, requests=moved, asked={ask_id: of_ask(ask, entry, name)})
    session = replace(session, asks={**session.asks, ask_id: replace(ask, stream=name)})
    return session, [*effects, *more, fx.StartAskClock(ask_id, True)]


def _stream_for(session: Session, ask: Ask) -> tuple[str | None, Session, fx.Effects]:
    """The stream of its call (opened now if need be), else the newest GET stream, else none."""
    entry = session.called(ask.call)
    if entry is not None:
        name, session, effects = streams.carrier(session, entry.post)
        if name is not None:
            return name, session, effects
    return streams.reader(session), session, []


# Answers -----------------------------------------------------------------------------------------------------


def answered(session: Session, message: Result | Error) -> Step:
    """The client answers. A late answer is nobody's."""
    ask = session.asks.get(message.id) if isinstance(message.id, str) else None
    if ask is None:
        return session, [fx.Tally("late_answer")]
    ok = isinstance(message, Result)
    payload = message.result if isinstance(message, Result) else message.error
    session, effects = _forget(session, str(message.id), ask)
    return session, [*effects, fx.AnswerBackend(ask.backend, ask.id, ok, payload, ask.method)]


def was_issued(session: Session, id: int | str | None) -> bool:
    """Whether this looks like an id that the session gave to one of its requests, in this life or an earlier one. (One
    that was never given is the client's fault.)"""
    if not isinstance(id, str):
        return False
    epoch, dot, number = id.partition(".")
    if not dot or not epoch.isalnum() or not (number.isascii() and number.isdigit() and len(number) <= ID_DIGITS):
        return False
    return epoch != base36(session.epoch) or int(number) < session.next_ask


def _forget(session: Session, ask_id: str, ask: Ask) -> Step:
    """It has its outcome. If it was sent it is in the record, which the next append changes."""
    asks = {i: a for i, a in session.asks.items() if i != ask_id}
    settled = session.settled if ask.stream is None else (*session.settled, ask_id)
    return replace(session, asks=asks, settled=settled), [fx.StopAskClock(ask_id)]


# Outcomes without an answer ----------------------------------------------------------------------------------


def expired(session: Session, event: ev.AskExpired) -> Step:
    """No stream to carry it, or no answer in time."""
    ask = session.asks.get(event.ask)
    if ask is None:
        return session, []
    reason = "no_stream" if ask.stream is None else "timeout"
    return _fail(session, event.ask, ask, "timeout", "the client did not answer in time", reason)


def fail_all(session: Session, message: str, reason: str, but: Collection[ev.CallId] = ()) -> Step:
    """Nobody will answer any more, but for questions in the course of these calls."""
    effects: fx.Effects = []
    for ask_id, ask in session.asks.items():
        if ask.call in but:
            continue
        session, more = _fail(session, ask_id, ask, message, message, reason)
        effects += more
    return session, effects


def _fail(session: Session, ask_id: str, ask: Ask, told: str, message: str, reason: str) -> Step:
    """The client is told that it need not answer, the backend that nobody will."""
    error = errors.internal(message, reason=reason).raw
    session, effects = _withdraw(session, ask_id, ask, told)
    return session, [*effects, fx.AnswerBackend(ask.backend, ask.id, False, error, ask.method)]


def withdrawn(session: Session, event: ev.AskWithdrawn) -> Step:
    """The backend no longer wants to know."""
    for ask_id, ask in session.asks.items():
        # Python takes 1 and True for equal, but no id is a truth value; a number and its text stay two ids.
        if ask.backend == event.backend and ask.id == event.id:
            return _withdraw(session, ask_id, ask, "withdrawn by the server")
    return session, []


def withdraw_of_call(session: Session, call: ev.CallId) -> Step:
    """A call has ended: its open questions are withdrawn from the client. (The link answers the backend.)"""
    return _withdraw_where(session, {i: a for i, a in session.asks.items() if a.call == call}, "the call has ended")


def backend_lost(session: Session, event: ev.BackendLost) -> Step:
    """A link is down: whatever its backend asked is void."""
    mine = {i: a for i, a in session.asks.items() if a.backend == event.backend}
    return _withdraw_where(session, mine, "the server is gone")


def _withdraw_where(session: Session, asks: dict[str, Ask], reason: str) -> Step:
    effects: fx.Effects = []
    for ask_id, ask in asks.items():
        session, more = _withdraw(session, ask_id, ask, reason)
        effects += more
    return session, effects


def _withdraw(session: Session, ask_id: str, ask: Ask, reason: str) -> Step:
    session, effects = _forget(session, ask_id, ask)
    if ask.stream is None or ask.stream not in session.streams:
        return session, effects
    session, more = streams.put(session, ask.stream, withdrawal(ask_id, reason))
    return session, effects + more


def withdrawal(ask_id: str, reason: str) -> bytes:
    """What tells the client that a question need not be answered any more."""
    return codec.encode_notification("notifications/cancelled", payload.dumps({"requestId": ask_id, "reason": reason}))


class _Token(msgspec.Struct):
    progressToken: int | str  # the wire's name  # noqa: N815


def progressed(session: Session, params: Raw) -> Step:
    """The client reports progress on a backend's request: the token goes back to the backend's own."""
    try:
        token = msgspec.json.decode(params, type=_Token).progressToken
    except (msgspec.DecodeError, RecursionError):
        return session, [fx.Tally("bad_progress")]
    ask = session.asks.get(token) if isinstance(token, str) else None
    if ask is None and not session.rules.gates and not was_issued(session, token):
        return session, [fx.Broadcast("notifications/progress", params)]  # what it means, both ends know
    if ask is None or ask.token is None:
        return session, [fx.Tally("late_progress")]
    try:
        translated = payload.replace_members(params, {"progressToken": payload.dumps(ask.token)})
    except errors.Malformed:
        return session, [fx.Tally("bad_progress")]
    return session, [fx.TellBackend(ask.backend, "notifications/progress", translated)]
