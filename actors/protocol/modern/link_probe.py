"""Whom the link speaks to: the answer to `server/discover`, which is sent before anything else, and again in doubt."""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, errors, payload
from actors.protocol import link_events as ev
from actors.protocol.bridge import eras
from actors.protocol.bridge.eras import Case, Verdict
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics, without_addresses
from actors.protocol.link_loss import refusal_of
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.modern import link_listens as listens
from actors.protocol.modern import meta
from actors.protocol.modern.link_calls import PROBE_CLOCK, connect, probe, wait_for_probe
from actors.protocol.modern.link_entry import dispatch_waiting
from actors.protocol.modern.link_events import Effects, Failed, Judged, Spoke, StopTimer
from actors.protocol.modern.link_loss import closed as loss_closed
from actors.protocol.modern.link_loss import expired as loss_expired
from actors.protocol.modern.link_loss import fail, unfit
from actors.protocol.modern.link_state import Link, Probe, Step, moved, taken
from actors.protocol.persistent import PersistentMap
from actors.protocol.versions import MODERN

PROBES = 2
"""Probes in a row that a modern server may refuse; then that is its failure."""


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


def answered(link: Link, id: RequestId, result: Raw) -> Step:
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


def refused(link: Link, id: RequestId, error: Raw, status: int | None) -> Step:
    """A JSON-RPC error."""
    case = eras.of_error(error, status)
    said = f"{link.named} refused the probe: {refusal_of(error)}"
    detail = Diagnostics(status, detail=said)
    return _judged(taken(replace(link, starts=False), id), case, "probe_refused", without_addresses(said), detail)


def failed(link: Link, event: Failed) -> Step:
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


def expired(link: Link, event: ev.ConnectExpired) -> Step:
    """PROBING: the connect deadline has passed. Nothing was heard of the process at all: this is its silence."""
    return silent(link) if link.starts and not link.settled else loss_expired(link, event)


def closed(link: Link, event: ev.Closed) -> Step:
    """PROBING: the transport has ended. A process that was handed over may have ended for the `initialize` that it
    refused: another one is started."""
    if not event.counts:
        return loss_closed(link, event)
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
