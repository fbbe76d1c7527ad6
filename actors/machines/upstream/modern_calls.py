"""Requests to a modern backend: how a call comes in, is sent, asks its client, and gets its one outcome.

What may have been executed is never sent again, but for what changes nothing: a list, a read or a completion that a
broken stream has lost is asked for once more, under another id (2026-07-28, streamable-http, "Cancellation").
"""

from collections import Counter
from typing import Final, Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.machines.modern import input_required
from actors.machines.upstream import era
from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_listens as listens
from actors.machines.upstream.events import UNSENT_BYTES, UNSENT_MAX
from actors.machines.upstream.legacy_calls import failure, member
from actors.machines.upstream.modern_events import (
    Called,
    Caller,
    Effects,
    Failed,
    Judged,
    Keep,
    LeftOut,
    Notified,
    StartTimer,
    StopTimer,
    Withdraw,
)
from actors.machines.upstream.modern_state import (
    Asking,
    Consent,
    Phase,
    Probe,
    Question,
    Refresh,
    Running,
    Step,
    Upstream,
    connect,
    drop,
    moved,
    numbered,
    put,
    request,
)
from actors.protocol import capabilities, codec, errors, headers, outcomes, payload, translate
from actors.protocol.capabilities import LEVELS, TASKS
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.errors import BROKEN
from actors.protocol.messages import EMPTY
from actors.protocol.methods import ELICIT, LISTEN, METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.outcomes import UNANSWERED
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN

BROKEN_STREAM: Final = ("connection_lost", "no_response")
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
ROUNDS: Final = 10
"""Of server requests to the client, and of requests to come again; more is a failure of the backend."""
PAUSES: Final = (0.05, 0.1, 0.2, 0.25)
"""Seconds before a call is sent again that its backend only put off; the last one repeats."""
CONSENT_PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
"""The same while a person is busy in a browser, where the client has agreed to send them."""
CONSENT_ROUNDS: Final = 60
"""How often that is done: some five minutes. Such rounds do not count as server requests."""
ACCEPTED: Final = Raw(b'{"action":"accept"}')


# The way in --------------------------------------------------------------------------------------------------


def called(upstream: Upstream, event: Called) -> Step:
    """READY: what the backend does not know is done here, the rest is sent."""
    if event.client.drives:
        own = FOR_SESSIONS.get(event.method)
        if own is not None:
            return own(upstream, event)
        if event.method not in METHODS:  # between the eras only what is known
            return upstream, [ev.Finish(event.call, False, errors.method_not_found(event.method).raw)]
        # Nobody but the upstream connection goes on with a call of such a caller.
        event = replace(event, params=translate.client_request(event.method, event.params, MODERN))
    elif event.method == LISTEN:
        return listens.listened(upstream, event)
    return send(upstream, Running(event))


def called_early(upstream: Upstream, event: Called) -> Step:
    """On the way to READY: it waits."""
    return replace(upstream, waiting=(*upstream.waiting, event)), []


def called_away(upstream: Upstream, event: Called) -> Step:
    """No connection: it brings one."""
    upstream, _ = called_early(upstream, event)
    return connect(upstream)


def dispatch_waiting(upstream: Upstream) -> Step:
    """READY: sends every notification and every call that waited for the connection."""
    effects: Effects = []
    unsent, upstream = upstream.unsent, replace(upstream, unsent=())
    for event in unsent:
        upstream, sent = notified(upstream, event)
        effects += sent
    waiting, upstream = upstream.waiting, replace(upstream, waiting=())
    for held in waiting:
        upstream, sent = called(upstream, held) if isinstance(held, Called) else send(upstream, held)
        effects += sent
    return upstream, effects


def notified(upstream: Upstream, event: Notified) -> Step:
    """READY: of a client of this era, as it is. One that no header carries no server over HTTP can mean."""
    try:
        own = headers.outbound(event.method, event.params) if upstream.related else ()
    except errors.Malformed:
        return upstream, [ev.Count("unsendable_notification")]
    return upstream, [ev.Send(codec.encode_notification(event.method, event.params), headers=own)]


def notified_early(upstream: Upstream, event: Notified) -> Step:
    """On the way to READY: it waits. If that is too much, whoever has most loses what came last."""
    unsent, dropped = [*upstream.unsent, event], 0
    while (excess := _excess(unsent)) is not None:
        del unsent[excess]
        dropped += 1
    return replace(upstream, unsent=tuple(unsent)), [ev.Count("too_many_notifications")] * dropped


def _excess(unsent: list[Notified]) -> int | None:
    """The place of one too many: what comes last of the principal who has most."""
    sizes = [len(held.params) for held in unsent]
    large = len(unsent) > 1 and sum(sizes) > UNSENT_BYTES
    if len(unsent) <= UNSENT_MAX and not large:
        return None
    has: Counter[str] = Counter()
    for held, size in zip(unsent, sizes, strict=True):
        has[held.principal] += size if large else 1
    [(most, _)] = has.most_common(1)
    return max(place for place, held in enumerate(unsent) if held.principal == most)


def notified_away(upstream: Upstream, event: Notified) -> Step:
    """No connection: it brings one."""
    upstream, dropped = notified_early(upstream, event)
    upstream, effects = connect(upstream)
    return upstream, dropped + effects


def _done(upstream: Upstream, event: Called) -> Step:
    return upstream, [ev.Finish(event.call, True, Raw(b"{}"))]


def _leveled(upstream: Upstream, event: Called) -> Step:
    """The level comes with each call; there is nothing to be told."""
    if not upstream.declared.has(("logging",)):
        return upstream, [ev.Finish(event.call, False, errors.method_not_found(event.method).raw)]
    if member(event.params, "level") not in LEVELS:
        error = errors.invalid_params(f"level must be one of {', '.join(LEVELS)}")
        return upstream, [ev.Finish(event.call, False, error.raw)]
    return _done(upstream, event)


FOR_SESSIONS = {
    "ping": _done,
    SET_LEVEL: _leveled,
    SUBSCRIBE: listens.subscribed,
    UNSUBSCRIBE: listens.subscribed,
}
"""Requests of the other era that are answered here."""


# The way out -------------------------------------------------------------------------------------------------


def send(upstream: Upstream, running: Running) -> Step:
    """READY: sends the next request of a call."""
    called, id = running.called, f"{upstream.prefix}.{upstream.next_id}"
    client, params = called.client, called.params
    upstream, level = (upstream, client.level) if upstream.related else _level(upstream, client)
    try:
        if running.answers or running.state:
            more = {"inputResponses": running.answers or None, "requestState": running.state or None}
            params = payload.replace_members(params, more)
        mirrored = _mirrored(upstream, called) if upstream.mirrors else ()
        token = id if called.progress else None
        sent = request(upstream, id, called.method, params, client, level, token, mirrored, called.rights)
    except errors.Malformed as malformed:
        return upstream, [ev.Finish(called.call, False, malformed.error.raw)]
    running = running if running.level == level else replace(running, level=level)
    return replace(upstream, next_id=upstream.next_id + 1, pending=upstream.pending.having(id, running)), [sent]


def _level(upstream: Upstream, client: Caller) -> tuple[Upstream, str | None]:
    """The level to ask logs for where nothing relates a log message to a request: one only as long as all requests are
    of one principal; else somebody might hear what another one's call has caused."""
    if upstream.principal is None:
        upstream = replace(upstream, principal=client.principal)
    elif upstream.principal != client.principal:
        upstream = replace(upstream, mixed=True)
    return upstream, None if upstream.mixed else client.level


def _mirrored(upstream: Upstream, called: Called) -> tuple[headers.Mirrored, ...]:
    if called.method != "tools/call":
        return ()
    return upstream.mirrors.get(member(called.params, "name") or "", ())


def proceed(upstream: Upstream, running: Running) -> Step:
    """Sends the next request of a call as soon as that is possible."""
    if upstream.phase is Phase.READY:
        return send(upstream, running)
    upstream = replace(upstream, waiting=(*upstream.waiting, running))
    if upstream.phase in (Phase.IDLE, Phase.WAITING):
        return connect(upstream)
    return upstream, []


# The way back ------------------------------------------------------------------------------------------------


class _Typed(msgspec.Struct):
    resultType: str = outcomes.COMPLETE  # the wire's name  # noqa: N815


def result(upstream: Upstream, running: Running, result: Raw) -> Step:
    """A result; one that names no type is complete (2026-07-28, basic, "ResultType")."""
    try:
        kind = msgspec.json.decode(result, type=_Typed).resultType
    except BROKEN:
        return _malformed(upstream, running)
    if kind == outcomes.COMPLETE:
        return _complete(upstream, running, result)
    if not _may_hold(upstream, running.called, kind):
        return _malformed(upstream, running)
    if running.called.client.drives:
        return _required(upstream, running, result)
    return upstream, [ev.Finish(running.called.call, True, result)]


_TASKS: Final = TASKS.encode()


def _may_hold(upstream: Upstream, called: Called, kind: str) -> bool:
    """Whether a result of this type, which is not complete, may be the outcome of a call."""
    if called.client.as_is and not called.client.drives:
        return True
    if kind == outcomes.INPUT_REQUIRED or called.client.drives:
        return kind == outcomes.INPUT_REQUIRED and called.method in outcomes.MAY_ASK
    if kind != outcomes.TASK:
        return _extended(upstream, called.client)
    # A task instead of a result, for a client that has declared that it knows them.
    return called.method.startswith("tasks/") or (
        called.method == "tools/call" and payload.mentions(called.client.capabilities, _TASKS)
    )


def _extended(upstream: Upstream, client: Caller) -> bool:
    """Whether both ends have declared an extension, which may have types of its own."""
    if not payload.mentions(client.capabilities, b"extensions"):
        return False
    ours, theirs = (c.tree.get("extensions") for c in (capabilities.parse(client.capabilities), upstream.declared))
    return isinstance(ours, dict) and isinstance(theirs, dict) and not ours.keys().isdisjoint(theirs)


def _complete(upstream: Upstream, running: Running, result: Raw) -> Step:
    called = running.called
    effects: Effects = []
    if called.method == "tools/list" and upstream.related:
        upstream, result, effects = learn(upstream, result)
    if called.method in outcomes.CACHEABLE and running.fresh:
        effects.append(Keep(called.call, called.method, called.params, called.client, result))
    for consent in running.consents:
        params = payload.dumps({"elicitationId": consent.id})
        effects.append(ev.Notify(called.call, "notifications/elicitation/complete", params))
    if called.client.drives:
        result = translate.result(called.method, result, LATEST_HANDSHAKE, MODERN)
    return upstream, [*effects, ev.Finish(called.call, True, result)]


def _fails(
    upstream: Upstream,
    running: Running,
    reason: str,
    message: str,
    executed: errors.Executed,
    diagnostics: Diagnostics = NO_DIAGNOSTICS,
) -> Step:
    """A call ends with an error of ours."""
    return upstream, [
        ev.Finish(running.called.call, False, failure(reason, message, executed, upstream.server, diagnostics))
    ]


def _malformed(upstream: Upstream, running: Running) -> Step:
    """The backend answered, but not with what can be passed on."""
    return _fails(upstream, running, "malformed", "the server's answer is malformed", "yes")


def refused(upstream: Upstream, running: Running, error: Raw, status: int | None) -> Step:
    """A JSON-RPC error."""
    code = outcomes.code_of(error)
    if code == errors.HEADER_MISMATCH:
        return _rebuild(upstream, running)
    stale = upstream.related and status in (400, 404) and code in STALE_CODES
    if code == errors.UNSUPPORTED_PROTOCOL_VERSION or stale:
        if not running.doubted:
            return doubt(upstream, running)
        if not stale:
            return _fails(upstream, running, "version", "the server refused the protocol version", "no")
    called = running.called
    if called.client.drives:
        uri = member(called.params, "uri") if called.method == "resources/read" else None
        error = translate.error(called.method, error, LATEST_HANDSHAKE, MODERN, uri=uri)
    return upstream, [ev.Finish(called.call, False, error, theirs=True)]


def failed(upstream: Upstream, running: Running, event: Failed) -> Step:
    """No response will come."""
    row = METHODS.get(running.called.method)
    harmless = row is not None and row.repeatable and running.fresh
    effects: Effects = []
    if event.status in NOT_OF_THIS_ERA and not running.doubted:
        if event.executed == "no":
            return doubt(upstream, running)
        upstream, effects = suspect(upstream)
    elif event.reason in BROKEN_STREAM and event.executed == "unknown" and harmless and not running.reissued:
        return proceed(upstream, replace(running, reissued=True))
    upstream, ended = _fails(
        upstream, running, event.reason, event.message, event.executed, event.diagnostics.unstarted
    )
    return upstream, effects + ended


def doubt(upstream: Upstream, running: Running) -> Step:
    """The call was refused before execution, and waits."""
    return suspect(replace(upstream, waiting=(*upstream.waiting, replace(running, doubted=True))))


def suspect(upstream: Upstream) -> Step:
    """The backend may have been upgraded, or rolled back: it is asked again what it speaks."""
    if upstream.phase is not Phase.READY:
        return upstream, []
    upstream, sent = probe(moved(upstream, "doubted"))
    return upstream, [Judged(None), ev.StartClock(), *sent]


def probe(upstream: Upstream) -> Step:
    """Asks `server/discover`: never anything that a server of the other era might execute."""
    upstream, id = numbered(replace(upstream, probes=upstream.probes + 1))
    return put(upstream, id, Probe()), [request(upstream, id, "server/discover", EMPTY), *wait_for_probe(upstream)]


PROBE_CLOCK: Final = ("probe",)


def wait_for_probe(upstream: Upstream) -> Effects:
    """How long silence may last until it means something. A process that has yet to start can't answer. Where the other
    era was refused, silence only means that the server is slow, or has lost the probe: it is asked once more, and then
    the connect deadline is all there is."""
    return (
        [] if upstream.starts or (upstream.settled and upstream.probes > 1) else [StartTimer(PROBE_CLOCK, era.SILENCE)]
    )


# Server requests to the client -------------------------------------------------------------------------------------


def _required(upstream: Upstream, running: Running, result: Raw) -> Step:
    """The backend has answered with server requests, or puts the call off."""
    try:
        needed = input_required.read(result)
    except errors.Malformed:
        needed = None
    if needed is None or any(method not in outcomes.QUESTIONS for method, _ in needed.requests.values()):
        return _malformed(upstream, running)
    state = payload.dumps(needed.state) if needed.state is not None else Raw(b"")
    running = replace(running, answers=Raw(b""), state=state)
    answers: dict[str, Raw] = {}
    questions: dict[str, tuple[Question, Raw]] = {}
    for key, (method, params) in needed.requests.items():
        if _agreed(running, key, method, params):
            answers[key] = ACCEPTED
        else:
            upstream, server_request_id = numbered(upstream)
            questions[server_request_id] = _question(server_request_id, key, method, params)
    if not questions and answers:
        return _pause(upstream, replace(running, answers=payload.dumps(answers)), CONSENT_PAUSES, CONSENT_ROUNDS)
    running = replace(running, round=running.round + 1)
    if running.round > ROUNDS:
        return _too_many(upstream, running)
    if not questions:
        return _pause(upstream, running, PAUSES, ROUNDS)
    call = running.called.call
    asking = Asking(running, {id: question for id, (question, _) in questions.items()}, answers)
    asks: Effects = [
        ev.ServerRequest(call, id, question.method, params) for id, (question, params) in questions.items()
    ]
    return replace(upstream, asking=upstream.asking.having(call, asking)), asks


class _Page(msgspec.Struct):
    url: str
    mode: Literal["url"]


def _url(method: str, params: Raw) -> str | None:
    """The URL that a client is to open."""
    try:
        return msgspec.json.decode(params, type=_Page).url if method == ELICIT else None
    except BROKEN:
        return None


def _agreed(running: Running, key: str, method: str, params: Raw) -> bool:
    """Whether the client has agreed to this before: it is not done yet, and they are not asked twice."""
    url = _url(method, params)
    return url is not None and any(consent.url == url or consent.key == key for consent in running.consents)


def _question(server_request_id: str, key: str, method: str, params: Raw) -> tuple[Question, Raw]:
    """A server request as a client of the other era gets it: a URL has an id there."""
    url, id = _url(method, params), f"elicit-{server_request_id}"
    lowered = translate.server_request(method, params, LATEST_HANDSHAKE, MODERN, elicitation_id=id)
    # What can't be asked of this client is found out where its revision is known.
    asked = params if isinstance(lowered, translate.Unbridgeable) else lowered
    if url is None:
        return Question(key, method), asked
    return Question(key, method, Consent(key, url, id)), asked


def _pause(upstream: Upstream, running: Running, pauses: tuple[float, ...], most: int) -> Step:
    if running.pauses >= most:
        return _too_many(upstream, running)
    seconds = pauses[min(running.pauses, len(pauses) - 1)]
    running = replace(running, pauses=running.pauses + 1)
    call = running.called.call
    return replace(upstream, pausing=upstream.pausing.having(call, running)), [StartTimer(("pause", call), seconds)]


def _too_many(upstream: Upstream, running: Running) -> Step:
    return _fails(upstream, running, "input_rounds", "the server needs input without end", "unknown")


def due(upstream: Upstream, call: ev.CallKey) -> Step:
    """The pause is over."""
    running = upstream.pausing.get(call)
    return (
        (upstream, [])
        if running is None
        else proceed(replace(upstream, pausing=upstream.pausing.without(call)), running)
    )


# Answers -----------------------------------------------------------------------------------------------------


def answered(upstream: Upstream, event: ev.AnswerGiven) -> Step:
    """One answer of the client."""
    asking = next((asking for asking in upstream.asking.values() if event.id in asking.open), None)
    if asking is None:
        return upstream, [ev.Count("late_answer")]
    question, call = asking.open[str(event.id)], asking.running.called.call
    rest = {id: other for id, other in asking.open.items() if id != event.id}
    ok, answer = _checked(question, event.ok, event.payload)
    if not ok:
        if question.method != ELICIT:
            return _stopped(upstream, replace(asking, open=rest), event.payload)
        answer = UNANSWERED
    running = asking.running
    if question.consent is not None and ok and member(answer, "action") == "accept":
        running = replace(running, consents=(*running.consents, question.consent))
    asking = Asking(running, rest, {**asking.answers, question.key: answer})
    if rest:
        return replace(upstream, asking=upstream.asking.having(call, asking)), []
    upstream = replace(upstream, asking=upstream.asking.without(call))
    return proceed(upstream, replace(running, answers=payload.dumps(asking.answers)))


def _checked(question: Question, ok: bool, answer: Raw) -> tuple[bool, Raw]:
    """An answer that is none of its kind counts as an error."""
    if ok:
        try:
            input_required.check(question.method, answer)
        except errors.Refusal:
            return False, answer
    return translate.answer(question.method, ok, answer, MODERN)


def _stopped(upstream: Upstream, asking: Asking, error: Raw) -> Step:
    """The client did not give what the call can't do without. A model that called a tool is told so as a result."""
    called = asking.running.called
    effects: Effects = [Withdraw(called.caller, id) for id in asking.open]
    upstream = replace(upstream, asking=upstream.asking.without(called.call))
    try:
        message = errors.parse_error_member(error).message
    except ValueError:
        message = "the client's answer is malformed"
        error = failure("malformed_answer", message, "unknown", upstream.server)
    if called.method != "tools/call":
        return upstream, [*effects, ev.Finish(called.call, False, error)]
    words = errors.as_result(f"The client did not provide what the tool needs: {message}")
    return upstream, [*effects, ev.Finish(called.call, True, words)]


def withdrawn(upstream: Upstream, call: ev.CallKey) -> Step:
    """Nobody waits for a call that waits for its client, or for a timer: nothing of it is at the backend."""
    asking = upstream.asking.get(call)
    if asking is not None:
        caller = asking.running.called.caller
        return replace(upstream, asking=upstream.asking.without(call)), [Withdraw(caller, id) for id in asking.open]
    if call in upstream.pausing:
        return replace(upstream, pausing=upstream.pausing.without(call)), [StopTimer(("pause", call))]
    return upstream, []


# Headers of tools --------------------------------------------------------------------------------------------


def learn(upstream: Upstream, result: Raw) -> tuple[Upstream, Raw, Effects]:
    """What the tools of a list want in headers. Those that want what is not allowed are left out of it: no client on
    HTTP may call them (2026-07-28, streamable-http, "Schema Extension")."""
    if not upstream.mirrors and not payload.mentions(result, headers.ANNOTATION.encode()):
        return upstream, result, []
    mirrors, kept = dict(upstream.mirrors), []
    effects: Effects = []
    try:
        tools = payload.elements(payload.members(result).get("tools", Raw(b"[]")))
        for tool in tools:
            name = member(tool, "name") or ""
            mirrors.pop(name, None)
            try:
                mirrored = headers.of_tool(tool)
            except headers.IllegalAnnotation as illegal:
                effects.append(LeftOut(name[:200], str(illegal)))
                continue
            kept.append(tool)
            if mirrored:
                mirrors[name] = mirrored
            if len(mirrors) > MIRRORS_MAX:
                del mirrors[next(iter(mirrors))]
    except errors.Malformed:
        return upstream, result, []
    if len(kept) < len(tools):
        result = payload.replace_members(result, {"tools": payload.dumps(kept)})
    return replace(upstream, mirrors=mirrors), result, effects


def _rebuild(upstream: Upstream, running: Running) -> Step:
    """The backend misses a header, or found another value: once, the list of tools is fetched anew."""
    called = running.called
    if not upstream.related or called.method != "tools/call" or running.rebuilt or not called.mends:
        return _fails(upstream, running, HEADERS, "the server and the gateway disagree about headers", "no")
    upstream = replace(upstream, rebuilding=(*upstream.rebuilding, replace(running, rebuilt=True)))
    if any(isinstance(pending, Refresh) for pending in upstream.pending.values()):
        return upstream, []
    return refresh(upstream, Refresh(), Raw(b"{}"))


def refresh(upstream: Upstream, pending: Refresh, params: Raw) -> Step:
    """Fetches a page of the list of tools."""
    upstream, id = numbered(upstream)
    sent = request(upstream, id, "tools/list", params)
    return put(upstream, id, pending), [sent, StartTimer(("refresh", id), REFRESH_WITHIN)]


def refreshed(upstream: Upstream, pending: Refresh, result: Raw) -> Step:
    """A page has come; after the last one the calls that waited for it go out again."""
    upstream, result, effects = learn(upstream, result)
    try:
        cursor = payload.members(result).get("nextCursor")
    except errors.Malformed:
        cursor = None
    if cursor is not None and payload.text_or_none(cursor) is not None and pending.pages < PAGES:
        params = payload.dumps({"cursor": cursor})
        upstream, more = refresh(upstream, Refresh(pending.pages + 1), params)
        return upstream, effects + more
    return resume(upstream, effects)


def resume(upstream: Upstream, effects: Effects) -> Step:
    """Sends the calls that waited for the list, whether it came or not."""
    rebuilding, upstream = upstream.rebuilding, replace(upstream, rebuilding=())
    for running in rebuilding:
        upstream, more = proceed(upstream, running)
        effects += more
    return upstream, effects


def unrefreshed(upstream: Upstream, id: str) -> Step:
    """The list does not come."""
    if not isinstance(upstream.pending.get(id), Refresh):
        return upstream, []
    upstream, effects = drop(upstream, id, "it took too long")
    return resume(upstream, effects)
