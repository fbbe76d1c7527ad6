"""Requests that backends make of the client: sampling, elicitation, roots.

Each gets an id of ours that is unique in the session, goes out on the stream of the call that raised it, and comes back
to the backend that asked, once. A question that cannot reach a client is answered with an error, never left hanging
(SEP-2260; 2025-11-25 utilities/cancellation).
"""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import codec, errors, lowering, payload, streams
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.capabilities import ClientBits
from actors.protocol.messages import Error, Result
from actors.protocol.session_state import Ask, Session

Step = streams.Step


def asked(session: Session, event: ev.Asked) -> Step:
    """A backend asks. What the client did not declare is refused at once."""
    refusal = _refusal(session, event)
    if refusal is not None:
        return session, [fx.AnswerBackend(event.backend, event.id, False, refusal.raw)]
    lowered = lowering.server_request(event.method, event.params, session.version)
    if isinstance(lowered, lowering.Unbridgeable):
        return session, [fx.AnswerBackend(event.backend, event.id, lowered.ok, lowered.payload)]
    ask_id = f"{_base36(session.epoch)}.{session.next_ask}"
    token = payload.progress_token(lowered)
    params = payload.with_progress_token(lowered, ask_id) if token is not None else lowered
    frame = codec.encode_request(ask_id, event.method, params)
    ask = Ask(event.backend, event.id, event.call, event.method, frame, None, token)
    session = replace(session, next_ask=session.next_ask + 1)
    return _send(session, ask_id, ask)


def _refusal(session: Session, event: ev.Asked) -> errors.ProtocolError | None:
    if session.client is None:
        return errors.internal("the session is not initialized", reason="no_client")
    return refusal_for(session.client.bits, event.method, event.params)


def refusal_for(bits: ClientBits, method: str, params: Raw) -> errors.ProtocolError | None:
    """What a client with these capabilities would refuse (2025-11-25 client/sampling, client/elicitation,
    client/roots)."""
    if method == "roots/list":
        return None if "roots" in bits else errors.method_not_found(method)
    try:
        members = payload.members(params)
    except errors.Malformed as malformed:
        return malformed.error
    if method == "sampling/createMessage":
        if "sampling" not in bits:
            return errors.method_not_found(method)
        if ("tools" in members or "toolChoice" in members) and "sampling.tools" not in bits:
            return errors.invalid_params("the client can't sample with tools")
        return None
    if method == "elicitation/create":
        mode = payload.text_or_none(members.get("mode")) or "form"
        if not bits & {"elicit.form", "elicit.url"}:
            return errors.method_not_found(method)
        return (
            None if f"elicit.{mode}" in bits else errors.invalid_params(f"the client has no elicitation mode {mode!r}")
        )
    return errors.method_not_found(method)


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    out = ""
    while number:
        number, rest = divmod(number, 36)
        out = digits[rest] + out
    return out or "0"


def _send(session: Session, ask_id: str, ask: Ask) -> Step:
    name, session, effects = _stream_for(session, ask)
    if name is None:
        session = replace(session, asks={**session.asks, ask_id: ask})
        return session, [*effects, fx.StartAskClock(ask_id, False)]
    session, more = streams.put(session, name, ask.frame, asked={ask_id: name.encode()})
    session = replace(session, asks={**session.asks, ask_id: replace(ask, stream=name)})
    return session, [*effects, *more, fx.StartAskClock(ask_id, True)]


def _stream_for(session: Session, ask: Ask) -> tuple[str | None, Session, fx.Effects]:
    """The stream of its call (opened now if need be), else the newest GET stream, else none."""
    request_id = session.calls.get(ask.call) if ask.call is not None else None
    if request_id is not None:
        post_id = session.requests[request_id].post
        post = session.posts[post_id]
        if post.stream is not None:
            return post.stream, session, []
        if not post.broken:
            session, effects = streams.open_for_post(session, post_id, post)
            return session.posts[post_id].stream, session, effects
    gets = [n for n, s in session.streams.items() if s.post is None and s.connection is not None]
    return (gets[-1] if gets else None), session, []


def answered(session: Session, message: Result | Error) -> Step:
    """The client answers. An id that was never given is the client's fault; a late answer is nobody's."""
    ask = session.asks.get(message.id) if isinstance(message.id, str) else None
    if ask is None:
        return session, [fx.Tally("late_answer")]
    ask_id = str(message.id)
    ok = isinstance(message, Result)
    payload = message.result if isinstance(message, Result) else message.error
    session, effects = _forget(session, ask_id)
    return session, [*effects, fx.AnswerBackend(ask.backend, ask.id, ok, payload)]


def was_issued(session: Session, id: int | str | None) -> bool:
    """Whether this looks like an id that the session gave to one of its requests, in this life or an earlier one."""
    if not isinstance(id, str):
        return False
    epoch, dot, number = id.partition(".")
    if not dot or not number.isascii() or not number.isdigit() or not epoch.isalnum():
        return False
    return epoch != _base36(session.epoch) or int(number) < session.next_ask


def _forget(session: Session, ask_id: str) -> Step:
    asks = {i: a for i, a in session.asks.items() if i != ask_id}
    return replace(session, asks=asks), [fx.StopAskClock(ask_id)]


def expired(session: Session, event: ev.AskExpired) -> Step:
    """No stream to carry it, or no answer in time."""
    ask = session.asks.get(event.ask)
    if ask is None:
        return session, []
    reason = "no_stream" if ask.stream is None else "timeout"
    error = errors.internal("the client did not answer in time", reason=reason).raw
    session, effects = _withdraw(session, event.ask, ask, "timeout")
    return session, [*effects, fx.AnswerBackend(ask.backend, ask.id, False, error)]


def withdrawn(session: Session, event: ev.AskWithdrawn) -> Step:
    """The backend no longer wants to know."""
    for ask_id, ask in session.asks.items():
        if ask.backend == event.backend and ask.id == event.id:
            return _withdraw(session, ask_id, ask, "withdrawn by the server")
    return session, []


def withdraw_of_call(session: Session, call: ev.CallId) -> Step:
    """A call has ended: its open questions are withdrawn from the client. (The link answers the backend.)"""
    effects: fx.Effects = []
    for ask_id, ask in list(session.asks.items()):
        if ask.call == call:
            session, more = _withdraw(session, ask_id, ask, "the call has ended")
            effects += more
    return session, effects


def withdraw_of_backend(session: Session, backend: str) -> Step:
    """A link is down: whatever its backend asked is void."""
    effects: fx.Effects = []
    for ask_id, ask in list(session.asks.items()):
        if ask.backend == backend:
            session, more = _withdraw(session, ask_id, ask, "the server is gone")
            effects += more
    return session, effects


def _withdraw(session: Session, ask_id: str, ask: Ask, reason: str) -> Step:
    session, effects = _forget(session, ask_id)
    if ask.stream is None or ask.stream not in session.streams:
        return session, effects
    frame = codec.encode_notification("notifications/cancelled", payload.dumps({"requestId": ask_id, "reason": reason}))
    session, more = streams.put(session, ask.stream, frame, asked={ask_id: None})
    return session, effects + more


class _Token(msgspec.Struct):
    progressToken: int | str  # the wire's name  # noqa: N815


def progressed(session: Session, params: Raw) -> Step:
    """The client reports progress on a backend's request: the token goes back to the backend's own."""
    try:
        token = msgspec.json.decode(params, type=_Token).progressToken
    except (msgspec.DecodeError, RecursionError):
        return session, [fx.Tally("bad_progress")]
    ask = session.asks.get(token) if isinstance(token, str) else None
    if ask is None or ask.token is None:
        return session, [fx.Tally("late_progress")]
    translated = payload.replace_members(params, {"progressToken": payload.dumps(ask.token)})
    return session, [fx.TellBackend(ask.backend, "notifications/progress", translated)]
