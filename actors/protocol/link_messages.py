"""Messages of the backend: outcomes of our requests, its own requests, its notifications.

A message is passed on only as far as it is known whom it concerns: by the stream it came on, by our own id or token, or
because only one call could have caused it. What concerns nobody is dropped and counted, never handed round.
"""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import codec, errors
from actors.protocol import link_events as ev
from actors.protocol.link_calls import finished, member
from actors.protocol.link_resume import with_place
from actors.protocol.link_state import Link, Step
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.modern.meta import RELATED_TASK_KEY
from actors.protocol.payload import mentions
from actors.protocol.tasks import RESULT, related_task

_RELATED = RELATED_TASK_KEY.encode()

ASKED_MAX = 64
"""Requests of one backend that wait for an answer; a further one is refused, for each holds its params in memory."""


def incoming(link: Link, event: ev.Incoming) -> Step:
    """One message."""
    message = event.message
    if isinstance(message, Notification):
        link, effects = _notification(link, message, event.related)
    elif isinstance(message, Request):
        link, effects = _request(link, message, event.related)
    else:
        link, effects = _response(link, message, event.related)
    return link, effects if event.cursor is None else with_place(link, effects, event)


def _response(link: Link, message: Result | Error, related: RequestId | None) -> Step:
    id = message.id
    if id not in link.pending:
        # An error whose id could not be read belongs to the request on whose stream it came (2025-11-25 basic).
        id = related if isinstance(message, Error) else None
        if id not in link.pending:
            return link, [ev.Tally("late_response")]
    assert id is not None
    if link.lost_once and link.pending[id].call is not None:
        link = replace(link, lost_once=False)
    if isinstance(message, Result):
        return finished(link, id, True, message.result)
    return finished(link, id, False, message.error)


def pong(request: Request) -> ev.Send:
    """Answered here, at any time (2025-11-25 utilities/ping)."""
    return ev.Send(codec.encode_result(request.id, Raw(b"{}")))


def refuse(request: Request, error: errors.ProtocolError) -> ev.Send:
    """An error for a request of the backend."""
    return ev.Send(codec.encode_error(request.id, error))


def _request(link: Link, request: Request, related: RequestId | None) -> Step:
    if request.method == "ping":
        return link, [pong(request)]
    if request.id in link.asked:
        return link, [refuse(request, errors.invalid_request("this id is in use"))]
    if len(link.asked) >= ASKED_MAX:
        return link, [refuse(request, errors.internal("too many requests wait for an answer", reason="too_many"))]
    call, of_task = _owner(link, related, request.params)
    if related is not None and related not in link.pending and not of_task:
        # Its call has ended: nobody may be asked for it any more.
        ended = errors.internal("the call that raised this request has ended", reason="call_ended")
        return link, [refuse(request, ended)]
    link = replace(link, asked={**link.asked, request.id: call})
    return link, [ev.Ask(call, request.id, request.method, request.params)]


def _owner(link: Link, related: RequestId | None, params: Raw) -> tuple[ev.CallKey | None, bool]:
    """The call a message belongs to: that of its stream, else the only one that could have caused it. What belongs to a
    task may come on any stream, and is of the call that waits for its result; True for such a message."""
    task = related_task(params) if mentions(params, _RELATED) else None
    if task is not None and link.hello is not None and mentions(link.hello.capabilities, b'"tasks"'):
        waits = (p for p in link.pending.values() if p.method == RESULT and member(p.params, "taskId") == task)
        waiting = next(waits, None)
        return (waiting.call if waiting is not None else None), True
    if related is not None:
        pending = link.pending.get(related)
        return (pending.call if pending else None), False
    if link.related:
        return None, False
    eligible = [p.call for p in link.pending.values() if p.eligible]
    return (eligible[0] if len(eligible) == 1 else None), False


def _notification(link: Link, message: Notification, related: RequestId | None) -> Step:
    if message.method == "notifications/progress":
        return _progress(link, message)
    if message.method == "notifications/cancelled":
        return _withdrawn(link, message.params)
    if related is None and message.method != "notifications/message":
        return link, [ev.Tell(None, message.method, message.params)]
    return link, [ev.Tell(_owner(link, related, message.params)[0], message.method, message.params)]


class _Token(msgspec.Struct):
    progressToken: int | str  # the wire's name  # noqa: N815


def _progress(link: Link, message: Notification) -> Step:
    try:
        token = msgspec.json.decode(message.params, type=_Token).progressToken
    except (msgspec.DecodeError, RecursionError):
        return link, [ev.Tally("bad_progress")]
    pending = link.pending.get(token)
    if pending is None or not pending.progress or pending.call is None:
        return link, [ev.Tally("late_progress")]
    return link, [ev.Tell(pending.call, message.method, message.params)]


class _Cancelled(msgspec.Struct):
    requestId: int | str | None = None  # noqa: N815


def _withdrawn(link: Link, params: Raw) -> Step:
    try:
        id = msgspec.json.decode(params, type=_Cancelled).requestId
    except (msgspec.DecodeError, RecursionError):
        return link, [ev.Tally("bad_cancel")]
    if id is None or id not in link.asked:
        return link, [ev.Tally("late_cancel")]
    return replace(link, asked={i: c for i, c in link.asked.items() if i != id}), [ev.Withdraw(id)]


def answer_given(link: Link, event: ev.AnswerGiven) -> Step:
    """The client's answer to a request of the backend."""
    if event.id not in link.asked:
        return link, [ev.Tally("late_answer")]
    frame = codec.encode_result(event.id, event.payload) if event.ok else codec.encode(Error(event.id, event.payload))
    return replace(link, asked={i: c for i, c in link.asked.items() if i != event.id}), [ev.Send(frame)]
