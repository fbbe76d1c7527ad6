"""Runs the effects of the session machine: one small function each, in one table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.fronts.leaving import put_down, say_farewell
from actors.ports import UNAVAILABLE, Answer, Failed, Refused, Streaming
from actors.protocol import effects as fx
from actors.protocol import errors
from actors.protocol.errors import ProtocolError, encode_error_body
from actors.protocol.messages import RequestId
from actors.runtime import NORMAL
from actors.sessions.session_messages import AskDue, DeadlineDue, StreamRecorded, TurnDue
from actors.streams.connection import Connection
from actors.streams.follower import Follower
from actors.streams.recorder import handle

if TYPE_CHECKING:
    from actors.sessions.session import SessionActor


def refusal(error: ProtocolError, id: RequestId | None = None) -> Answer:
    """An error as the whole answer to a POST or GET."""
    return Answer(error.status, encode_error_body(error, id), error.headers)


# The client's side


def _accept(session: "SessionActor", effect: fx.Accept) -> None:
    session.answer_post(effect.post, Answer(202))


def _answer_post(session: "SessionActor", effect: fx.AnswerPost) -> None:
    if not session.answer_post(effect.post, Answer(200, effect.body)):
        session.services.telemetry.count("stagedoor_answers_dropped_total", ("connection_gone",))


def _refuse_post(session: "SessionActor", effect: fx.RefusePost) -> None:
    session.answer_post(effect.post, refusal(effect.error, effect.id))


def _open_stream(session: "SessionActor", effect: fx.OpenStream) -> None:
    waiting, owed = session.posts if effect.post is not None else session.gets, session.owed
    number = effect.post if effect.post is not None else effect.connection
    assert number is not None

    if effect.post is not None:
        owed.opens(effect.post, effect.stream)

    def opened(connection: Connection) -> None:  # perhaps after the actor's end
        owed.streamed(number)
        if effect.calls and session.recorder.records(effect.stream):
            calls = tuple(call for call in effect.calls if session.front.may_wait(call))
            if calls:
                session.ctx.ref.reply(StreamRecorded(effect.stream, calls))
        reply = waiting.pop(number, None)
        if reply is None or not reply.answer(Streaming(connection)):
            connection.close()

    session.recorder.open(effect, number, opened)


def _append(session: "SessionActor", effect: fx.Append) -> None:
    session.recorder.append(effect)
    session.owed.appended(effect.stream, effect.data, effect.finish)


def _follow(session: "SessionActor", effect: fx.Follow) -> None:
    reply = session.gets.pop(effect.connection, None)
    if reply is None:
        return
    connection, head = None, 0
    if effect.live or session.recorder.holds(effect.stream):
        connection, head = session.recorder.follow(effect, effect.connection)
    key = session.identity.key
    follower = Follower(session.services.store, key, effect.stream, effect.epoch, effect.seq, connection, head)
    if not reply.answer(follower):
        follower.close()


def _refuse_get(session: "SessionActor", effect: fx.RefuseGet) -> None:
    reply = session.gets.pop(effect.connection, None)
    if reply is not None:
        reply.answer(refusal(effect.error))


def _close_connection(session: "SessionActor", effect: fx.CloseConnection) -> None:
    retry = effect.retry
    if retry is not None:
        retry = int(retry * (1 + session.services.jitter()))
    session.recorder.close(effect.connection, retry)


# The backends' side


def _dispatch(session: "SessionActor", effect: fx.Dispatch) -> None:
    session.running.began(effect, session.ctx.now())
    session.front.dispatch(effect)


def _continue(session: "SessionActor", effect: fx.Continue) -> None:
    session.services.telemetry.count("stagedoor_requests_continued_total", (effect.backend,))
    session.front.go_on(effect)


def _release(session: "SessionActor", effect: fx.Release) -> None:
    for act in session.leaving.pop(effect.call, ()):
        act()


def _cancel_call(session: "SessionActor", effect: fx.CancelCall) -> None:
    session.running.forget(effect.call)
    session.leaving.pop(effect.call, None)
    session.front.cancel(effect.call, effect.reason)


def _broadcast(session: "SessionActor", effect: fx.Broadcast) -> None:
    session.front.broadcast(effect.method, effect.params)


def _use_level(session: "SessionActor", effect: fx.UseLevel) -> None:
    session.front.use_level(effect.level)


def _tell_backend(session: "SessionActor", effect: fx.TellBackend) -> None:
    session.front.tell(effect.backend, effect.method, effect.params)


def _answer_backend(session: "SessionActor", effect: fx.AnswerBackend) -> None:
    session.front.answer(effect.backend, effect.id, effect.ok, effect.payload)


# Clocks


def _start_turn_clock(session: "SessionActor", effect: fx.StartTurnClock) -> None:
    session.ctx.set_timer(("turn", effect.post), session.services.limits.stream_after, TurnDue(effect.post))


def _stop_turn_clock(session: "SessionActor", effect: fx.StopTurnClock) -> None:
    session.ctx.cancel_timer(("turn", effect.post))


def _start_deadline(session: "SessionActor", effect: fx.StartDeadline) -> None:
    latest = effect.accepted + session.services.limits.request_deadline_cap
    due = min(effect.since + session.front.deadline(effect.call), latest)
    session.ctx.set_timer(("deadline", effect.call), max(0.0, due - session.ctx.now()), DeadlineDue(effect.call))


def _stop_deadline(session: "SessionActor", effect: fx.StopDeadline) -> None:
    session.ctx.cancel_timer(("deadline", effect.call))


def _start_ask_clock(session: "SessionActor", effect: fx.StartAskClock) -> None:
    limits = session.services.limits
    seconds = limits.request_deadline if effect.stream else limits.server_request_wait
    session.ctx.set_timer(("ask", effect.ask), seconds, AskDue(effect.ask))


def _stop_ask_clock(session: "SessionActor", effect: fx.StopAskClock) -> None:
    session.ctx.cancel_timer(("ask", effect.ask))


# The record and the end


def _save(session: "SessionActor", effect: fx.Save) -> None:
    session.save(effect.fields)


def _end(session: "SessionActor", effect: fx.End) -> None:
    """The machine is closed: record, links and actor go. A session that is another's goes on there, and its backends'
    sessions with it."""
    (put_down if effect.reason == Refused.FENCED.value else say_farewell)(session.front)
    ending, ref = session.ending, session.ctx.ref

    def done(outcome: Any) -> None:
        away = isinstance(outcome, Failed) and outcome.reason in UNAVAILABLE
        for reply in ending:
            reply.answer(refusal(errors.store_away()) if away else Answer(200))
        # Only now: whoever asked for the end must not hear of it before it is recorded.
        ref.stop(NORMAL)

    session.services.store.end(session.identity.key, session.grant, effect.reason, done)
    session.services.log.info("session_ended", session=handle(session.identity.key), reason=effect.reason)
    session.services.telemetry.count("stagedoor_sessions_ended_total", (effect.reason,))


def _tally(session: "SessionActor", effect: fx.Tally) -> None:
    session.services.telemetry.count("stagedoor_messages_dropped_total", (effect.what,))


EFFECTS: dict[type, Callable[["SessionActor", Any], None]] = {
    fx.Accept: _accept,
    fx.AnswerPost: _answer_post,
    fx.RefusePost: _refuse_post,
    fx.OpenStream: _open_stream,
    fx.Append: _append,
    fx.Follow: _follow,
    fx.RefuseGet: _refuse_get,
    fx.CloseConnection: _close_connection,
    fx.Dispatch: _dispatch,
    fx.CancelCall: _cancel_call,
    fx.Release: _release,
    fx.Continue: _continue,
    fx.Broadcast: _broadcast,
    fx.UseLevel: _use_level,
    fx.TellBackend: _tell_backend,
    fx.AnswerBackend: _answer_backend,
    fx.StartTurnClock: _start_turn_clock,
    fx.StopTurnClock: _stop_turn_clock,
    fx.StartDeadline: _start_deadline,
    fx.StopDeadline: _stop_deadline,
    fx.StartAskClock: _start_ask_clock,
    fx.StopAskClock: _stop_ask_clock,
    fx.Save: _save,
    fx.End: _end,
    fx.Tally: _tally,
}
