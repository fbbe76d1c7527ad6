"""Runs the effects of the exchange machine: one small function each, in one table."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors import ports
from actors.exchanges.exchange_messages import ClockDue, Gone
from actors.exchanges.exchange_running import Running
from actors.protocol import sse
from actors.protocol.modern import exchange_events as ev
from actors.protocol.modern.exchange import HEAD_WAITS
from actors.streams.connection import Connection

if TYPE_CHECKING:
    from actors.exchanges.exchanges import ExchangesActor


def _dispatch(actor: "ExchangesActor", call: int, running: Running, effect: ev.Dispatch) -> None:
    actor.dispatch(call, running, effect)


def _cancel(actor: "ExchangesActor", call: int, running: Running, effect: ev.Cancel) -> None:
    actor.times.forget(call)
    actor.front.cancel(call, effect.reason)


def _answer(actor: "ExchangesActor", call: int, running: Running, effect: ev.Answer) -> None:
    running.reply.answer(ports.Answer(effect.status, effect.body))


def _open_stream(actor: "ExchangesActor", call: int, running: Running, effect: ev.OpenStream) -> None:
    ref, limits, streams = actor.ctx.ref, actor.services.limits, actor.ledger.streams

    def closed(connection: Connection, whole: bool) -> None:
        streams["post"] -= 1
        ref.reply(Gone(call))

    bounds = (limits.outbox_events, limits.outbox_bytes)
    connection = running.connection = Connection(call, f"exchange-{call}", bounds, closed)
    streams["post"] += 1
    if not running.reply.answer(ports.Streaming(connection)):
        connection.close()


def _write(actor: "ExchangesActor", call: int, running: Running, effect: ev.Write) -> None:
    """Without event ids: there is nothing to come back to. What waits too long is not waited for."""
    connection = running.connection
    if connection is None:
        return
    fits = connection.put(0, sse.encode_event(effect.frame), urgent=effect.last)
    if effect.last:
        connection.end()
    elif not fits:
        actor.services.telemetry.count("stagedoor_slow_consumers_total", ("post",))
        connection.cut()
        actor.step(call, ev.Overflowed())


def _start_head_clock(actor: "ExchangesActor", call: int, running: Running, effect: ev.StartHeadClock) -> None:
    running.head_due = actor.ctx.now() + HEAD_WAITS
    _look_later(actor, call, running)


def _stop_head_clock(actor: "ExchangesActor", call: int, running: Running, effect: ev.StopHeadClock) -> None:
    running.head_due = math.inf


def _start_deadline(actor: "ExchangesActor", call: int, running: Running, effect: ev.StartDeadline) -> None:
    latest = effect.accepted + actor.services.limits.request_deadline_cap
    running.due = min(effect.since + actor.front.deadline(call), latest)
    _look_later(actor, call, running)


def _stop_deadline(actor: "ExchangesActor", call: int, running: Running, effect: ev.StopDeadline) -> None:
    running.head_due = running.due = math.inf
    actor.ctx.cancel_timer(("clock", call))


def _look_later(actor: "ExchangesActor", call: int, running: Running) -> None:
    """One timer for both clocks, since most calls end before either: it is set anew only for what comes earlier."""
    nearer = min(running.head_due, running.due)
    if nearer < running.looks_at:
        running.looks_at = nearer
        actor.ctx.set_timer(("clock", call), max(0.0, nearer - actor.ctx.now()), ClockDue(call))


def clock_due(actor: "ExchangesActor", message: ClockDue) -> None:
    """Looks which of both clocks it was."""
    running = actor.running.get(message.call)
    if running is None:
        return
    running.looks_at, now = math.inf, actor.ctx.now()
    if running.due <= now:
        actor.step(message.call, ev.DeadlineDue(actor.front.calls.get(message.call)))
        return
    if running.head_due <= now:
        running.head_due = math.inf
        actor.step(message.call, ev.HeadDue())
    _look_later(actor, message.call, running)


def _tally(actor: "ExchangesActor", call: int, running: Running, effect: ev.Tally) -> None:
    actor.services.telemetry.count("stagedoor_messages_dropped_total", (effect.what,))


EFFECTS: dict[type, Callable[["ExchangesActor", int, Running, Any], None]] = {
    ev.Dispatch: _dispatch,
    ev.Cancel: _cancel,
    ev.Answer: _answer,
    ev.OpenStream: _open_stream,
    ev.Write: _write,
    ev.StartHeadClock: _start_head_clock,
    ev.StopHeadClock: _stop_head_clock,
    ev.StartDeadline: _start_deadline,
    ev.StopDeadline: _stop_deadline,
    ev.Tally: _tally,
}
