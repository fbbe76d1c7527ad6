"""Requests to a backend without sessions: how a call is sent, and how it gets its one outcome.

What may have been executed is never sent again, but for what changes nothing: a list, a read or a completion that a
broken stream has lost is asked for once more, under another id (2026-07-28, streamable-http, "Cancellation").
"""

from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, codec, errors, payload, translate
from actors.protocol import link_events as ev
from actors.protocol.bridge import eras
from actors.protocol.capabilities import TASKS
from actors.protocol.link_calls import failure, member
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.methods import METHODS
from actors.protocol.modern import headers, meta, outcomes, tool_headers
from actors.protocol.modern.caller import Caller
from actors.protocol.modern.link_events import Called, Effects, Failed, Judged, Keep, LeftOut, StartTimer
from actors.protocol.modern.link_state import (
    Link,
    Probe,
    Refresh,
    Running,
    Step,
    gateway,
    moved,
    next_id,
    numbered,
    put,
    taken,
)
from actors.protocol.modern.link_table import Phase
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN

BROKEN: Final = ("connection_lost", "no_response")
"""How a broken stream is reported."""
NOT_OF_THIS_ERA: Final = {400, 404, 405, 406}
"""HTTP statuses of a server that does not know such requests (any more), when no JSON-RPC error comes with them."""
STALE_CODES: Final = (errors.INVALID_REQUEST, errors.OVERLOADED)
"""With HTTP 400 or 404: a server of the handshake era misses its session."""
HEADERS: Final = "headers"
"""The reason given for a tool call whose headers the backend has refused."""
REFRESH_WITHIN: Final = 10.0
"""Seconds for a page of it."""
MIRRORS_MAX: Final = 4096
"""Tools with arguments in headers that are remembered; those that were listed longest ago go first."""
PAGES: Final = 64
"""Of a list of tools that is fetched for the sake of headers."""


# The way out -------------------------------------------------------------------------------------------------


def send(link: Link, running: Running) -> Step:
    """READY: sends the next request of a call."""
    called, id = running.called, next_id(link)
    link, level = _level(link, running)
    try:
        params = _params(running, id, level, link)
        own = headers.outbound(called.method, params, _mirrored(link, called)) if link.related else ()
    except errors.Malformed as malformed:
        return link, [ev.Finish(called.call, False, malformed.error.raw)]
    running = running if running.level == level else replace(running, level=level)
    link = replace(link, next_id=link.next_id + 1, pending=link.pending.having(id, running))
    return link, [ev.Send(codec.encode_request(id, called.method, params), id=id, headers=own)]


def _params(running: Running, id: str, level: str | None, link: Link) -> Raw:
    called = running.called
    params = called.params
    if not running.fresh:
        params = payload.replace_members(
            params, {"inputResponses": running.answers or None, "requestState": running.state or None}
        )
    token = id if called.progress else None
    client = called.client
    return meta.stamp(params, capabilities=client.capabilities, info=client.info or link.info, level=level, token=token)


def _level(link: Link, running: Running) -> tuple[Link, str | None]:
    """The level to ask logs for. Where nothing relates a log message to a request, only as long as all requests are of
    one principal: else somebody might hear what another one's call has caused."""
    client = running.called.client
    if link.related:
        return link, client.level
    if link.principal is None:
        link = replace(link, principal=client.principal)
    elif link.principal != client.principal:
        link = replace(link, mixed=True)
    return link, None if link.mixed else client.level


def _mirrored(link: Link, called: Called) -> tuple[tool_headers.Mirrored, ...]:
    if called.method != "tools/call" or not link.mirrors:
        return ()
    return link.mirrors.get(member(called.params, "name") or "", ())


def proceed(link: Link, running: Running) -> Step:
    """Sends the next request of a call as soon as that is possible."""
    if link.phase is Phase.READY:
        return send(link, running)
    link = replace(link, waiting=(*link.waiting, running))
    if link.phase in (Phase.IDLE, Phase.WAITING):
        return connect(link)
    return link, []


def connect(link: Link, cause: str = "call") -> Step:
    """Asks for a transport."""
    return moved(link, cause), [ev.StartClock(), ev.Connect()]


# The way back ------------------------------------------------------------------------------------------------


class _Typed(msgspec.Struct):
    resultType: str = outcomes.COMPLETE  # the wire's name  # noqa: N815


def result_type(result: Raw) -> str | None:
    """The type of a result; one without is complete (2026-07-28, basic, "ResultType"). None: it is none at all."""
    try:
        return msgspec.json.decode(result, type=_Typed).resultType
    except payload.BROKEN:
        return None


_TASKS: Final = TASKS.encode()


def may_hold(link: Link, running: Running, kind: str | None) -> bool:
    """Whether a result of this type may be the outcome of this call."""
    called = running.called
    if kind == outcomes.COMPLETE:
        return True
    if kind is None or called.client.drives:
        return kind == outcomes.INPUT_REQUIRED and called.method in outcomes.MAY_ASK
    if called.client.as_is:
        return True
    if kind == outcomes.INPUT_REQUIRED:
        return called.method in outcomes.MAY_ASK
    if kind != outcomes.TASK:
        return _extended(link, called.client)
    # A task instead of a result, for a client that has declared that it knows them.
    return called.method.startswith("tasks/") or (
        called.method == "tools/call" and payload.mentions(called.client.capabilities, _TASKS)
    )


def _extended(link: Link, client: Caller) -> bool:
    """Whether both ends have declared an extension, which may have types of its own."""
    if not payload.mentions(client.capabilities, b"extensions"):
        return False
    ours, theirs = (c.tree.get("extensions") for c in (capabilities.parse(client.capabilities), link.declared))
    return isinstance(ours, dict) and isinstance(theirs, dict) and not ours.keys().isdisjoint(theirs)


def complete(link: Link, running: Running, result: Raw) -> Step:
    """The final result of a call."""
    called = running.called
    effects: Effects = []
    if called.method == "tools/list" and link.related:
        link, result, effects = learn(link, result)
    if running.fresh and called.method in outcomes.CACHEABLE:
        effects.append(Keep(called.call, called.method, called.params, called.client, result))
    for consent in running.consents:
        params = payload.dumps({"elicitationId": consent.id})
        effects.append(ev.Tell(called.call, "notifications/elicitation/complete", params))
    if called.client.drives:
        result = translate.result(called.method, result, LATEST_HANDSHAKE, MODERN)
    return link, [*effects, ev.Finish(called.call, True, result)]


def give_up(link: Link, running: Running, error: errors.ProtocolError) -> Step:
    """A call ends with an error of ours."""
    return link, [ev.Finish(running.called.call, False, error.raw)]


def malformed(link: Link, running: Running) -> Step:
    """The backend answered, but not with what can be passed on."""
    text = "the server's answer is malformed"
    return give_up(
        link, running, errors.internal(text, reason="malformed", executed="yes", backend=link.server or None)
    )


def refused(link: Link, running: Running, error: Raw, status: int | None) -> Step:
    """A JSON-RPC error."""
    code = outcomes.code_of(error)
    if code == errors.HEADER_MISMATCH:
        return _rebuild(link, running)
    stale = link.related and status in (400, 404) and code in STALE_CODES
    if code == errors.UNSUPPORTED_PROTOCOL_VERSION or stale:
        if not running.doubted:
            return doubt(link, running)
        if not stale:
            text, server = "the server refused the protocol version", link.server or None
            return give_up(link, running, errors.internal(text, reason="version", executed="no", backend=server))
    called = running.called
    if called.client.drives:
        uri = member(called.params, "uri") if called.method == "resources/read" else None
        error = translate.error(called.method, error, LATEST_HANDSHAKE, MODERN, uri=uri)
    return link, [ev.Finish(called.call, False, error, theirs=True)]


def failed(link: Link, running: Running, event: Failed) -> Step:
    """No response will come."""
    if event.status in NOT_OF_THIS_ERA and not running.doubted:
        if event.executed == "no":
            return doubt(link, running)
        link, effects = suspect(link)
        error = failure(event.reason, event.message, event.executed, link.server, event.diagnostics.unstarted)
        return link, [*effects, ev.Finish(running.called.call, False, error)]
    row = METHODS.get(running.called.method)
    harmless = row is not None and row.repeatable and running.fresh
    if event.reason in BROKEN and event.executed == "unknown" and harmless and not running.reissued:
        return proceed(link, replace(running, reissued=True))
    error = failure(event.reason, event.message, event.executed, link.server, event.diagnostics.unstarted)
    return link, [ev.Finish(running.called.call, False, error)]


def doubt(link: Link, running: Running) -> Step:
    """The call was refused before execution, and waits."""
    return suspect(replace(link, waiting=(*link.waiting, replace(running, doubted=True))))


def suspect(link: Link) -> Step:
    """The backend may have been upgraded, or rolled back: it is asked again what it speaks."""
    if link.phase is not Phase.READY:
        return link, []
    link, sent = probe(moved(link, "doubted"))
    return link, [Judged(None), ev.StartClock(), *sent]


def probe(link: Link) -> Step:
    """Asks `server/discover`: never anything that a server of the other era might execute."""
    link, id = numbered(replace(link, probes=link.probes + 1))
    own = gateway(link)
    params = meta.stamp(EMPTY, capabilities=own.capabilities, info=own.info, level=None, token=None)
    sent = headers.outbound("server/discover", params) if link.related else ()
    frame = codec.encode_request(id, "server/discover", params)
    return put(link, id, Probe()), [ev.Send(frame, id=id, headers=sent), *wait_for_probe(link)]


PROBE_CLOCK: Final = ("probe",)


def wait_for_probe(link: Link) -> Effects:
    """How long silence may last until it means something. A process that has yet to start can't answer. Where the other
    era was refused, silence only means that the server is slow, or has lost the probe: it is asked once more, and then
    the connect deadline is all there is."""
    return [] if link.starts or (link.settled and link.probes > 1) else [StartTimer(PROBE_CLOCK, eras.SILENCE)]


# Headers of tools --------------------------------------------------------------------------------------------


def learn(link: Link, result: Raw) -> tuple[Link, Raw, Effects]:
    """What the tools of a list want in headers. Those that want what is not allowed are left out of it: no client on
    HTTP may call them (2026-07-28, streamable-http, "Schema Extension")."""
    if not link.mirrors and not payload.mentions(result, tool_headers.ANNOTATION.encode()):
        return link, result, []
    mirrors, kept = dict(link.mirrors), []
    effects: Effects = []
    try:
        tools = payload.elements(payload.members(result).get("tools", Raw(b"[]")))
        for tool in tools:
            name = member(tool, "name") or ""
            mirrors.pop(name, None)
            try:
                mirrored = tool_headers.of_tool(tool)
            except tool_headers.IllegalAnnotation as illegal:
                effects.append(LeftOut(name[:200], str(illegal)))
                continue
            kept.append(tool)
            if mirrored:
                mirrors[name] = mirrored
            if len(mirrors) > MIRRORS_MAX:
                del mirrors[next(iter(mirrors))]
    except errors.Malformed:
        return link, result, []
    if len(kept) < len(tools):
        result = payload.replace_members(result, {"tools": payload.dumps(kept)})
    return replace(link, mirrors=mirrors), result, effects


def _rebuild(link: Link, running: Running) -> Step:
    """The backend misses a header, or found another value: once, the list of tools is fetched anew."""
    called = running.called
    if not link.related or called.method != "tools/call" or running.rebuilt or not called.mends:
        text, server = "the server and the gateway disagree about headers", link.server or None
        error = errors.internal(text, reason=HEADERS, executed="no", backend=server)
        return give_up(link, running, error)
    link = replace(link, rebuilding=(*link.rebuilding, replace(running, rebuilt=True)))
    if any(isinstance(pending, Refresh) for pending in link.pending.values()):
        return link, []
    return refresh(link, Refresh(), Raw(b"{}"))


def refresh(link: Link, pending: Refresh, params: Raw) -> Step:
    """Fetches a page of the list of tools."""
    link, id = numbered(link)
    own = gateway(link)
    params = meta.stamp(params, capabilities=own.capabilities, info=own.info, level=None, token=None)
    frame = codec.encode_request(id, "tools/list", params)
    send = ev.Send(frame, id=id, headers=headers.outbound("tools/list", params))
    return put(link, id, pending), [send, StartTimer(("refresh", id), REFRESH_WITHIN)]


def refreshed(link: Link, pending: Refresh, result: Raw) -> Step:
    """A page has come; after the last one the calls that waited for it go out again."""
    link, result, effects = learn(link, result)
    try:
        cursor = payload.members(result).get("nextCursor")
    except errors.Malformed:
        cursor = None
    if cursor is not None and payload.text_or_none(cursor) is not None and pending.pages < PAGES:
        params = payload.dumps({"cursor": cursor})
        link, more = refresh(link, Refresh(pending.pages + 1), params)
        return link, effects + more
    return resume(link, effects)


def resume(link: Link, effects: Effects) -> Step:
    """Sends the calls that waited for the list, whether it came or not."""
    rebuilding, link = link.rebuilding, replace(link, rebuilding=())
    for running in rebuilding:
        link, more = proceed(link, running)
        effects += more
    return link, effects


def unrefreshed(link: Link, id: str) -> Step:
    """The list does not come."""
    if not isinstance(link.pending.get(id), Refresh):
        return link, []
    link, effects = drop(link, id, "it took too long")
    return resume(link, effects)


# The end of interest -----------------------------------------------------------------------------------------


def drop(link: Link, id: RequestId, reason: str) -> Step:
    """Cancels a request: over HTTP by closing its stream, else by a notification (2026-07-28, cancellation)."""
    effects: Effects = []
    if not link.related:
        params = payload.dumps({"requestId": id, "reason": reason})
        effects.append(ev.Send(codec.encode_notification("notifications/cancelled", params)))
    return taken(link, id), [*effects, ev.Forget(id)]
