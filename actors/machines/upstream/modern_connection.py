"""The connection to a modern backend: whom it speaks to, and its end.

`server/discover` is sent before anything else, and again in doubt. When the connection is lost, a request that was
out is lost with it; a call that waits for its client, or for a timer, is not: the connection was no part of it.
"""

from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.machines.upstream import era
from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_listens as listens
from actors.machines.upstream.era import Case, Verdict
from actors.machines.upstream.legacy_calls import failure
from actors.machines.upstream.modern_calls import PROBE_CLOCK, dispatch_waiting, probe, wait_for_probe
from actors.machines.upstream.modern_events import (
    Called,
    Effects,
    Failed,
    Judged,
    Reconsidered,
    Spoke,
    StopTimer,
    Withdraw,
    WrongEra,
)
from actors.machines.upstream.modern_state import Phase, Probe, Running, Step, Upstream, connect, moved, taken
from actors.protocol import capabilities, errors, meta, payload
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics, reason_of, refusal_of, without_addresses
from actors.protocol.errors import BROKEN
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.persistent import EMPTY_MAP, PersistentMap
from actors.protocol.transport import UNAUTHORIZED
from actors.protocol.versions import MODERN

PROBES: Final = 2
"""Probes in a row that a modern server may refuse; then that is its failure."""
REFUSALS: Final = (Case.FOREIGN, Case.OTHER_VERSION, Case.ERROR)
"""What a server says that has read the probe, and is well."""


# Whom it speaks to -------------------------------------------------------------------------------------------


def started(upstream: Upstream, event: ev.Started) -> Step:
    """CONNECTING: there is a transport."""
    upstream = replace(
        moved(upstream, "transport there"),
        related=event.related,
        warm=event.warm,
        starts=event.starts,
        settled=event.settled,
        probes=0,
        principal=None,
        mixed=False,
    )
    return probe(upstream)


def started_in_vain(upstream: Upstream, event: ev.Started) -> Step:
    """There is a transport that nobody waits for any more."""
    return upstream, [ev.Hang()]


class _Discovered(msgspec.Struct):
    supportedVersions: tuple[str, ...]  # the wire's name  # noqa: N815
    capabilities: Raw = Raw(b"{}")
    instructions: str | None = None


def discovered(upstream: Upstream, id: RequestId, result: Raw) -> Step:
    """A result."""
    upstream = taken(replace(upstream, starts=False), id)
    try:
        found = msgspec.json.decode(result, type=_Discovered)
    except BROKEN:
        return _judged(
            upstream, Case.UNREADABLE, "malformed", f"{upstream.named} answered the probe with something malformed"
        )
    case = era.of_versions(found.supportedVersions)
    if case is not Case.MUTUAL:
        return _judged(upstream, case, "version", f"{upstream.named} names no revision of this era")
    server_info = _server_info(found, result)
    again = upstream.connected_before
    upstream = replace(
        moved(upstream, "discovered"),
        server_info=server_info,
        declared=capabilities.parse(server_info.capabilities),
        connected_before=True,
        attempt=0,
        probes=0,
        warm=False,
    )
    upstream, opened = listens.restore(upstream)
    upstream, sent = dispatch_waiting(upstream)
    before: Effects = [ev.StopClock(), StopTimer(PROBE_CLOCK), Judged(True), ev.Ready(server_info, again)]
    others = [other for other, pending in upstream.pending.items() if isinstance(pending, Probe)]
    for other in others:
        upstream = taken(upstream, other)
    return upstream, [*before, *(ev.Forget(other) for other in others), *opened, *sent]


def _server_info(found: _Discovered, result: Raw) -> ev.ServerInfo:
    """With the whole answer, unless it has more members than can be looked into."""
    try:
        payload.members(result)  # it will be changed for clients
        info, whole = payload.members(payload.meta_of(result)).get(meta.SERVER_KEY, EMPTY), Raw(bytes(result))
    except errors.Malformed:
        info, whole = EMPTY, Raw(b"{}")
    server = Raw(bytes(info)) if payload.is_object(info) else payload.dumps({"name": "server", "version": ""})
    return ev.ServerInfo(MODERN, Raw(bytes(found.capabilities)), server, found.instructions, whole)


def probe_refused(upstream: Upstream, id: RequestId, error: Raw, status: int | None) -> Step:
    """A JSON-RPC error."""
    case = era.of_error(error, status)
    said = f"{upstream.named} refused the probe: {refusal_of(error)}"
    detail = Diagnostics(status, detail=said)
    return _judged(taken(replace(upstream, starts=False), id), case, "probe_refused", without_addresses(said), detail)


def probe_failed(upstream: Upstream, event: Failed) -> Step:
    """No answer will come."""
    case = era.of_failure(event.reason, event.status)
    return _judged(taken(upstream, event.id), case, event.reason, event.message, event.diagnostics)


def spoke(upstream: Upstream, event: Spoke) -> Step:
    """PROBING: the process has started, and its silence counts from here on."""
    upstream = replace(upstream, starts=False)
    return upstream, wait_for_probe(upstream)


def silent(upstream: Upstream) -> Step:
    """PROBING: a server of the handshake era may wait for `initialize`, and say nothing to anything else. One that has
    refused `initialize` is asked again; it may still answer the first probe."""
    if upstream.settled:
        return probe(upstream)
    return _judged(upstream, Case.SILENT, "silent", f"{upstream.named} did not answer the probe")


def probe_expired(upstream: Upstream, event: ev.ConnectExpired) -> Step:
    """PROBING: the connect deadline has passed. Nothing was heard of the process at all: this is its silence."""
    return silent(upstream) if upstream.starts and not upstream.settled else overdue(upstream, event)


def probe_closed(upstream: Upstream, event: ev.Closed) -> Step:
    """PROBING: the transport has ended. A process that was handed over may have ended for the `initialize` that it
    refused: another one is started."""
    if not event.counts:
        return lost(upstream, event)
    if upstream.warm:
        upstream = replace(moved(upstream, "ended after initialize"), pending=EMPTY_MAP, warm=False)
        return upstream, [StopTimer(PROBE_CLOCK), ev.Connect()]
    pending = PersistentMap({id: p for id, p in upstream.pending.items() if not isinstance(p, Probe)})
    case = era.of_failure(event.reason)
    return _judged(replace(upstream, pending=pending), case, event.reason, event.message, event.diagnostics)


def _judged(
    upstream: Upstream, case: Case, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS
) -> Step:
    verdict = era.PROBE[case]
    if verdict is Verdict.LEGACY:
        return wrong_era(upstream, case, diagnostics.detail or message)
    if verdict is Verdict.MODERN and upstream.probes < PROBES:
        return probe(upstream)
    return fail(upstream, reason, message, diagnostics=diagnostics)


def wanted_already(upstream: Upstream, event: ev.Wanted) -> Step:
    """It is there, or on its way: whoever joined hears of it."""
    return upstream, []


def wanted_away(upstream: Upstream, event: ev.Wanted) -> Step:
    """A connection is wanted without a call."""
    return connect(upstream)


# The end of a connection -------------------------------------------------------------------------------------


def _finish(waiting: Called | Running, error: Raw) -> ev.Finish:
    return ev.Finish((waiting.called if isinstance(waiting, Running) else waiting).call, False, error)


def _end_sent(upstream: Upstream, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """Calls whose request is out: it may have been executed. Subscriptions are taken up again later."""
    error = failure(reason, message, "unknown", upstream.server, diagnostics)
    effects: Effects = [_finish(p, error) for p in upstream.pending.values() if isinstance(p, Running)]
    upstream, changes = listens.take_changes(upstream)
    effects += [_finish(called, error) for called in changes]
    upstream, more = listens.lose_all(upstream, error)
    return replace(upstream, pending=EMPTY_MAP), effects + more


def _end_waiting(upstream: Upstream, error: Raw) -> Step:
    """Calls that were not sent. Of notifications nobody is told."""
    effects: Effects = [_finish(waiting, error) for waiting in (*upstream.waiting, *upstream.rebuilding)]
    effects += [ev.Count("lost_notification") for _ in upstream.unsent]
    return replace(upstream, waiting=(), rebuilding=(), unsent=()), effects


def fail(
    upstream: Upstream, reason: str, message: str, counts: bool = True, diagnostics: Diagnostics = NO_DIAGNOSTICS
) -> Step:
    """The connection is lost, or could not be made; `counts`: as a failure of the backend."""
    ran = upstream.phase is Phase.READY
    # One process serves everybody: what it wrote while it ran may be about somebody else.
    shown = diagnostics.unstarted if ran or upstream.connected_before else diagnostics
    upstream, effects = _end_sent(upstream, reason, message, shown)
    upstream, more = _end_waiting(upstream, failure(reason, message, "no", upstream.server, shown))
    error = failure(reason, message, "unknown" if ran else "no", upstream.server, shown)
    down = ev.Down(reason, message, error, counts and reason not in UNAUTHORIZED, diagnostics, ran)
    return _lost(upstream, [ev.StopClock(), StopTimer(PROBE_CLOCK), ev.Hang(), *effects, *more, down])


def _lost(upstream: Upstream, effects: Effects) -> Step:
    """With subscriptions the upstream connection comes back by itself; without any, the next call brings it back."""
    subscribed = any(listen.called is not None or listen.owner is not None for listen in upstream.lost.values())
    upstream = moved(upstream, "lost with subscriptions" if subscribed else "lost")
    upstream = replace(upstream, server_info=None, attempt=upstream.attempt + 1)
    return upstream, [*effects, ev.BackOff(upstream.attempt)] if subscribed else effects


def lost(upstream: Upstream, event: ev.Closed) -> Step:
    """The transport has ended."""
    return fail(upstream, event.reason, event.message, event.counts, event.diagnostics)


def overdue(upstream: Upstream, event: ev.ConnectExpired) -> Step:
    """It took too long."""
    return fail(upstream, "connect_timeout", f"{upstream.named} was not ready in time", diagnostics=event.diagnostics)


def connect_refused(upstream: Upstream, event: ev.ConnectRefused) -> Step:
    """No transport could be had. It says nothing of the backend's health: the breaker or a bound has spoken."""
    upstream, effects = _end_waiting(upstream, event.payload)
    down = ev.Down("refused", reason_of(event.payload), event.payload, counts=False)
    return _lost(upstream, [ev.StopClock(), *effects, down])


def retry(upstream: Upstream, event: ev.RetryDue) -> Step:
    """WAITING: the back-off is over."""
    return connect(upstream, "back-off over")


# The other era -----------------------------------------------------------------------------------------------


def wrong_era(upstream: Upstream, case: Case, said: str) -> Step:
    """The backend speaks the other era, by what it `said`: what was not sent goes back to those who want it,
    subscriptions too. Calls in the middle of their course can't be taken up elsewhere. A process that has done nothing
    but refuse the probe can serve whoever speaks that era."""
    reason, message = "era_changed", f"{upstream.named} speaks another protocol revision than before"
    error = failure(reason, message, "unknown", upstream.server)
    upstream, returned = listens.take_changes(upstream)
    effects: Effects = [ev.Count("unknown_notification") for _ in upstream.unsent]
    for waiting in (*upstream.waiting, *upstream.rebuilding):
        if isinstance(waiting, Called) or waiting.fresh:
            returned.append(waiting if isinstance(waiting, Called) else waiting.called)
        else:
            effects.append(_finish(waiting, error))
    upstream, ended = end_courses(replace(upstream, waiting=(), rebuilding=(), unsent=()), error)
    upstream, more = listens.end_all(upstream, error)
    upstream, sent = _end_sent(upstream, reason, message)
    leave = ev.HandOver() if case in REFUSALS and upstream.server_info is None else ev.Hang()
    upstream = replace(moved(upstream, "other era"), lost=EMPTY_MAP, wishes=EMPTY_MAP, server_info=None)
    judged = Judged(False, sure=case is not Case.SILENT, said=said)
    before: Effects = [ev.StopClock(), StopTimer(PROBE_CLOCK), leave, judged]
    return upstream, [*before, *effects, *ended, *more, *sent, WrongEra(tuple(returned))]


def end_courses(upstream: Upstream, error: Raw) -> Step:
    """Calls that wait for their client or for a timer end."""
    effects: Effects = []
    for asking in upstream.asking.values():
        effects += [Withdraw(asking.running.called.caller, id) for id in asking.open]
        effects.append(_finish(asking.running, error))
    effects += [_finish(running, error) for running in upstream.pausing.values()]
    return replace(upstream, asking=EMPTY_MAP, pausing=EMPTY_MAP), effects


def called_wrong_era(upstream: Upstream, event: Called) -> Step:
    """UNFIT: the caller should know; perhaps the news was on its way."""
    return upstream, [WrongEra((event,), news=False)]


def wanted_wrong_era(upstream: Upstream, event: ev.Wanted) -> Step:
    """UNFIT: there will be no connection of this era."""
    return upstream, [WrongEra(())]


def reconsidered(upstream: Upstream, event: Reconsidered) -> Step:
    """UNFIT: the backend may be asked again."""
    return moved(upstream, "reconsidered"), []


# The owner's end ---------------------------------------------------------------------------------------------


def shut(upstream: Upstream, event: ev.Shut) -> Step:
    """The owner wants no more of it."""
    message = _closed(upstream)
    unknown = failure("closed", message, "unknown", upstream.server)
    upstream, effects = listens.end_all(upstream, unknown)
    upstream, sent = _end_sent(upstream, "closed", message)
    upstream, waiting = _end_waiting(upstream, failure("closed", message, "no", upstream.server))
    upstream, ended = end_courses(upstream, unknown)
    upstream = replace(moved(upstream, "shut"), lost=EMPTY_MAP, wishes=EMPTY_MAP)
    return upstream, [ev.StopClock(), StopTimer(PROBE_CLOCK), ev.Hang(), *effects, *sent, *waiting, *ended]


def called_closed(upstream: Upstream, event: Called) -> Step:
    """CLOSED: too late."""
    return upstream, [ev.Finish(event.call, False, failure("closed", _closed(upstream), "no", upstream.server))]


def wanted_closed(upstream: Upstream, event: ev.Wanted) -> Step:
    """CLOSED: there will be none."""
    message = _closed(upstream)
    return upstream, [ev.Down("closed", message, failure("closed", message, "no", upstream.server), counts=False)]


def _closed(upstream: Upstream) -> str:
    return f"the connection to {upstream.named} was closed"
