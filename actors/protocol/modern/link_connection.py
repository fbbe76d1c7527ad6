"""The connection to a backend without sessions: whom it speaks to, and its end.

`server/discover` is sent before anything else, and again in doubt. When the connection is lost, a request that was out
is lost with it; a call that waits for its client, or for a timer, is not: the connection was no part of it.
"""

from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, errors, payload
from actors.protocol import link_events as ev
from actors.protocol.bridge import eras
from actors.protocol.bridge.eras import Case, Verdict
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics, reason_of, refusal_of, without_addresses
from actors.protocol.link_calls import failure
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.modern import link_listens as listens
from actors.protocol.modern import meta
from actors.protocol.modern.link_calls import PROBE_CLOCK, dispatch_waiting, probe, wait_for_probe
from actors.protocol.modern.link_events import (
    Called,
    Effects,
    Failed,
    Judged,
    Reconsidered,
    Spoke,
    StopTimer,
    Unfit,
    Withdraw,
)
from actors.protocol.modern.link_state import Link, Phase, Probe, Running, Step, connect, moved, taken
from actors.protocol.persistent import PersistentMap
from actors.protocol.versions import MODERN

PROBES: Final = 2
"""Probes in a row that a modern server may refuse; then that is its failure."""
REFUSALS: Final = (Case.FOREIGN, Case.OTHER_VERSION, Case.ERROR)
"""What a server says that has read the probe, and is well."""


# Whom it speaks to -------------------------------------------------------------------------------------------


def started(link: Link, event: ev.Started) -> Step:
    """CONNECTING: there is a transport."""
    link = replace(
        moved(link, "transport there"),
        related=event.related,
        warm=event.warm,
        starts=event.starts,
        settled=event.settled,
        probes=0,
        principal=None,
        mixed=False,
    )
    return probe(link)


def started_in_vain(link: Link, event: ev.Started) -> Step:
    """There is a transport that nobody waits for any more."""
    return link, [ev.Hang()]


class _Discovered(msgspec.Struct):
    supportedVersions: tuple[str, ...]  # the wire's name  # noqa: N815
    capabilities: Raw = Raw(b"{}")
    instructions: str | None = None


def discovered(link: Link, id: RequestId, result: Raw) -> Step:
    """A result."""
    link = taken(replace(link, starts=False), id)
    try:
        found = msgspec.json.decode(result, type=_Discovered)
    except payload.BROKEN:
        return _judged(link, Case.UNREADABLE, "malformed", f"{link.named} answered the probe with something malformed")
    case = eras.of_versions(found.supportedVersions)
    if case is not Case.MUTUAL:
        return _judged(link, case, "version", f"{link.named} names no revision of this era")
    hello = _hello(found, result)
    again = link.connected_before
    link = replace(
        moved(link, "discovered"),
        hello=hello,
        declared=capabilities.parse(hello.capabilities),
        connected_before=True,
        attempt=0,
        probes=0,
        warm=False,
    )
    link, opened = listens.restore(link)
    link, sent = dispatch_waiting(link)
    before: Effects = [ev.StopClock(), StopTimer(PROBE_CLOCK), Judged(True), ev.Ready(hello, again)]
    others = [other for other, pending in link.pending.items() if isinstance(pending, Probe)]
    for other in others:
        link = taken(link, other)
    return link, [*before, *(ev.Forget(other) for other in others), *opened, *sent]


def _hello(found: _Discovered, result: Raw) -> ev.Hello:
    """With the whole answer, unless it has more members than can be looked into."""
    try:
        payload.members(result)  # it will be changed for clients
        info, whole = payload.members(payload.meta_of(result)).get(meta.SERVER_KEY, EMPTY), Raw(bytes(result))
    except errors.Malformed:
        info, whole = EMPTY, Raw(b"{}")
    server = Raw(bytes(info)) if payload.is_object(info) else payload.dumps({"name": "server", "version": ""})
    return ev.Hello(MODERN, Raw(bytes(found.capabilities)), server, found.instructions, whole)


def probe_refused(link: Link, id: RequestId, error: Raw, status: int | None) -> Step:
    """A JSON-RPC error."""
    case = eras.of_error(error, status)
    said = f"{link.named} refused the probe: {refusal_of(error)}"
    detail = Diagnostics(status, detail=said)
    return _judged(taken(replace(link, starts=False), id), case, "probe_refused", without_addresses(said), detail)


def probe_failed(link: Link, event: Failed) -> Step:
    """No answer will come."""
    case = eras.of_failure(event.reason, event.status)
    return _judged(taken(link, event.id), case, event.reason, event.message, event.diagnostics)


def spoke(link: Link, event: Spoke) -> Step:
    """PROBING: the process has started, and its silence counts from here on."""
    link = replace(link, starts=False)
    return link, wait_for_probe(link)


def silent(link: Link) -> Step:
    """PROBING: a server of the handshake era may wait for `initialize`, and say nothing to anything else. One that has
    refused `initialize` is asked again; it may still answer the first probe."""
    if link.settled:
        return probe(link)
    return _judged(link, Case.SILENT, "silent", f"{link.named} did not answer the probe")


def probe_expired(link: Link, event: ev.ConnectExpired) -> Step:
    """PROBING: the connect deadline has passed. Nothing was heard of the process at all: this is its silence."""
    return silent(link) if link.starts and not link.settled else overdue(link, event)


def probe_closed(link: Link, event: ev.Closed) -> Step:
    """PROBING: the transport has ended. A process that was handed over may have ended for the `initialize` that it
    refused: another one is started."""
    if not event.counts:
        return lost(link, event)
    if link.warm:
        link = replace(moved(link, "ended after initialize"), pending=PersistentMap(), warm=False)
        return link, [StopTimer(PROBE_CLOCK), ev.Connect()]
    pending = PersistentMap({id: p for id, p in link.pending.items() if not isinstance(p, Probe)})
    case = eras.of_failure(event.reason)
    return _judged(replace(link, pending=pending), case, event.reason, event.message, event.diagnostics)


def _judged(link: Link, case: Case, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    verdict = eras.PROBE[case]
    if verdict is Verdict.LEGACY:
        return unfit(link, case, diagnostics.detail or message)
    if verdict is Verdict.MODERN and link.probes < PROBES:
        return probe(link)
    return fail(link, reason, message, diagnostics=diagnostics)


def wanted_already(link: Link, event: ev.Wanted) -> Step:
    """It is there, or on its way: whoever joined hears of it."""
    return link, []


def wanted_away(link: Link, event: ev.Wanted) -> Step:
    """A connection is wanted without a call."""
    return connect(link)


# The end of a connection -------------------------------------------------------------------------------------


def _finish(waiting: Called | Running, error: Raw) -> ev.Finish:
    return ev.Finish((waiting.called if isinstance(waiting, Running) else waiting).call, False, error)


def _end_sent(link: Link, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """Calls whose request is out: it may have been executed. Subscriptions are taken up again later."""
    error = failure(reason, message, "unknown", link.server, diagnostics)
    effects: Effects = [_finish(p, error) for p in link.pending.values() if isinstance(p, Running)]
    link, changes = listens.take_changes(link)
    effects += [_finish(called, error) for called in changes]
    link, more = listens.lose_all(link, error)
    return replace(link, pending=PersistentMap()), effects + more


def _end_waiting(link: Link, error: Raw) -> Step:
    """Calls that were not sent. Of notifications nobody is told."""
    effects: Effects = [_finish(waiting, error) for waiting in (*link.waiting, *link.rebuilding)]
    effects += [ev.Tally("lost_notification") for _ in link.unsaid]
    return replace(link, waiting=(), rebuilding=(), unsaid=()), effects


def fail(link: Link, reason: str, message: str, counts: bool = True, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """The connection is lost, or could not be made; `counts`: as a failure of the backend."""
    ran = link.phase is Phase.READY
    # One process serves everybody: what it wrote while it ran may be about somebody else.
    shown = diagnostics.unstarted if ran or link.connected_before else diagnostics
    link, effects = _end_sent(link, reason, message, shown)
    link, more = _end_waiting(link, failure(reason, message, "no", link.server, shown))
    error = failure(reason, message, "unknown" if ran else "no", link.server, shown)
    down = ev.Down(reason, message, error, counts, diagnostics, ran)
    return _lost(link, [ev.StopClock(), StopTimer(PROBE_CLOCK), ev.Hang(), *effects, *more, down])


def _lost(link: Link, effects: Effects) -> Step:
    """With subscriptions the link comes back by itself; without any, the next call brings it back."""
    subscribed = any(listen.called is not None or listen.owner is not None for listen in link.lost.values())
    link = moved(link, "lost with subscriptions" if subscribed else "lost")
    link = replace(link, hello=None, attempt=link.attempt + 1)
    return link, [*effects, ev.BackOff(link.attempt)] if subscribed else effects


def lost(link: Link, event: ev.Closed) -> Step:
    """The transport has ended."""
    return fail(link, event.reason, event.message, event.counts, event.diagnostics)


def overdue(link: Link, event: ev.ConnectExpired) -> Step:
    """It took too long."""
    return fail(link, "connect_timeout", f"{link.named} was not ready in time", diagnostics=event.diagnostics)


def connect_refused(link: Link, event: ev.ConnectRefused) -> Step:
    """No transport could be had. It says nothing of the backend's health: the breaker or a bound has spoken."""
    link, effects = _end_waiting(link, event.payload)
    down = ev.Down("refused", reason_of(event.payload), event.payload, counts=False)
    return _lost(link, [ev.StopClock(), *effects, down])


def retry(link: Link, event: ev.RetryDue) -> Step:
    """WAITING: the back-off is over."""
    return connect(link, "back-off over")


# The other era -----------------------------------------------------------------------------------------------


def unfit(link: Link, case: Case, said: str) -> Step:
    """The backend speaks the other era, by what it `said`: what was not sent goes back to those who want it,
    subscriptions too. Calls in the middle of their course can't be taken up elsewhere. A process that has done nothing
    but refuse the probe can serve whoever speaks that era."""
    reason, message = "era_changed", f"{link.named} speaks another protocol revision than before"
    error = failure(reason, message, "unknown", link.server)
    link, returned = listens.take_changes(link)
    effects: Effects = [ev.Tally("unknown_notification") for _ in link.unsaid]
    for waiting in (*link.waiting, *link.rebuilding):
        if isinstance(waiting, Called) or waiting.fresh:
            returned.append(waiting if isinstance(waiting, Called) else waiting.called)
        else:
            effects.append(_finish(waiting, error))
    link, ended = end_courses(replace(link, waiting=(), rebuilding=(), unsaid=()), error)
    link, more = listens.end_all(link, error)
    link, sent = _end_sent(link, reason, message)
    leave = ev.HandOver() if case in REFUSALS and link.hello is None else ev.Hang()
    link = replace(moved(link, "other era"), lost=PersistentMap(), wishes=PersistentMap(), hello=None)
    judged = Judged(False, sure=case is not Case.SILENT, said=said)
    before: Effects = [ev.StopClock(), StopTimer(PROBE_CLOCK), leave, judged]
    return link, [*before, *effects, *ended, *more, *sent, Unfit(tuple(returned))]


def end_courses(link: Link, error: Raw) -> Step:
    """Calls that wait for their client or for a timer end."""
    effects: Effects = []
    for asking in link.asking.values():
        effects += [Withdraw(asking.running.called.caller, id) for id in asking.open]
        effects.append(_finish(asking.running, error))
    effects += [_finish(running, error) for running in link.pausing.values()]
    return replace(link, asking=PersistentMap(), pausing=PersistentMap()), effects


def called_unfit(link: Link, event: Called) -> Step:
    """UNFIT: the caller should know; perhaps the news was on its way."""
    return link, [Unfit((event,), news=False)]


def wanted_unfit(link: Link, event: ev.Wanted) -> Step:
    """UNFIT: there will be no connection of this era."""
    return link, [Unfit(())]


def reconsidered(link: Link, event: Reconsidered) -> Step:
    """UNFIT: the backend may be asked again."""
    return moved(link, "reconsidered"), []


# The owner's end ---------------------------------------------------------------------------------------------


def shut(link: Link, event: ev.Shut) -> Step:
    """The owner wants no more of it."""
    message = _closed(link)
    unknown = failure("closed", message, "unknown", link.server)
    link, effects = listens.end_all(link, unknown)
    link, sent = _end_sent(link, "closed", message)
    link, waiting = _end_waiting(link, failure("closed", message, "no", link.server))
    link, ended = end_courses(link, unknown)
    link = replace(moved(link, "shut"), lost=PersistentMap(), wishes=PersistentMap())
    return link, [ev.StopClock(), StopTimer(PROBE_CLOCK), ev.Hang(), *effects, *sent, *waiting, *ended]


def called_closed(link: Link, event: Called) -> Step:
    """CLOSED: too late."""
    return link, [ev.Finish(event.call, False, failure("closed", _closed(link), "no", link.server))]


def wanted_closed(link: Link, event: ev.Wanted) -> Step:
    """CLOSED: there will be none."""
    message = _closed(link)
    return link, [ev.Down("closed", message, failure("closed", message, "no", link.server), counts=False)]


def _closed(link: Link) -> str:
    return f"the connection to {link.named} was closed"
