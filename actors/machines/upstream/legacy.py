"""The machine of an upstream connection to a legacy backend: handshake, calls, requests of the backend, loss and
recovery.

`step(upstream, event)` gives the next upstream connection and the effects, without a clock, randomness or IO. The
table says which function serves which event in which phase; an event that has no row there is dropped and counted,
and leaves the upstream connection untouched. What passes over a connection that is there is in
`upstream/legacy_calls`; here is how one comes about, how it goes on with the session of an earlier one (2025-11-25
transports, "Session Management", "Resumability and Redelivery"), and how it ends.

Guarantees: a call gets exactly one `Finish`, which says whether it may have been executed; what may have been sent
is never sent again, but for a request that the backend refused before execution because it did not know our
session, once; after a loss, log level and subscriptions are asked for again before anything else, and what may have
been missed is announced.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.machines.session.events import Place
from actors.machines.session.state import NOTHING
from actors.machines.upstream import events as ev
from actors.machines.upstream import legacy_calls as calls
from actors.machines.upstream.events import UNSENT_BYTES, UNSENT_MAX
from actors.machines.upstream.legacy_calls import (
    dispatch,
    dispatch_waiting,
    failure,
    member,
    notified,
    pong,
    refuse,
    upstream_id,
)
from actors.machines.upstream.legacy_state import LIVE, Phase, Step, Upstream, moved
from actors.protocol import capabilities, codec, errors, payload, tasks, transport
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics, reason_of, refusal_of, told_by, without_addresses
from actors.protocol.errors import BROKEN
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.methods import LIST_CHANGED, METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, UPDATED
from actors.protocol.persistent import EMPTY_MAP, PersistentMap
from actors.protocol.transport import UNAUTHORIZED
from actors.protocol.versions import LATEST_HANDSHAKE, VERSIONS

SERVER_INFO_BYTES: Final = 1024 * 1024
"""What a backend may say of itself: it is kept as long as the upstream connection, and by the catalogue. (Icons are
part of it.)"""
CAPABILITIES_BYTES: Final = 64 * 1024
"""Of its capabilities, which are kept as values."""
NONE: Final[frozenset[RequestId]] = frozenset()


def step(upstream: Upstream, event: ev.UpstreamEvent) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((upstream.phase, type(event)))
    if handler is None:
        return upstream, [ev.Count(f"{type(event).__name__} while {upstream.phase.value}")]
    upstream, effects = handler(upstream, event)
    if upstream.to_replace and upstream.rests:
        upstream, more = _replaced(upstream)
        effects = [*effects, *more]
    return upstream, effects


# A connection is wanted --------------------------------------------------------------------------------------


def _connect(upstream: Upstream, event: object) -> Step:
    """No connection: asks for a transport. A back-off does not hold a call up; whether the backend may be tried is the
    breaker's decision."""
    cause = "back-off over" if isinstance(event, ev.RetryDue) else "call"
    return moved(upstream, cause), [ev.StartClock(), ev.Connect()]


def _called_away(upstream: Upstream, event: ev.Called) -> Step:
    """No connection: the call brings one."""
    return _connect(calls.called_early(upstream, event)[0], event)


def _wanted_already(upstream: Upstream, event: ev.Wanted) -> Step:
    """It is there, or on its way: whoever joined hears of it."""
    return upstream, []


def _wanted_closed(upstream: Upstream, event: ev.Wanted) -> Step:
    """CLOSED: there will be none."""
    message = f"the connection to {upstream.named} was closed"
    return upstream, [ev.Down("closed", message, failure("closed", message, "no", upstream.server), counts=False)]


def _early(serve: Callable[[Upstream, Any], Step]) -> Callable[[Upstream, Any], Step]:
    """On the way to READY: what is to be sent in a session that was kept is sent as soon as there is a transport."""

    def early(upstream: Upstream, event: Any) -> Step:
        upstream, effects = serve(upstream, event)
        sends = [effect for effect in effects if isinstance(effect, ev.Send)]
        if not sends:
            return upstream, effects
        rest: ev.Effects = [effect for effect in effects if not isinstance(effect, ev.Send)]
        size = sum(len(send.frame) for send in (*upstream.unsent, *sends))
        if len(upstream.unsent) + len(sends) > UNSENT_MAX or (upstream.unsent and size > UNSENT_BYTES):
            return upstream, [*rest, ev.Count("unsaid")]
        return replace(upstream, unsent=(*upstream.unsent, *sends)), rest

    return early


def _notified_early(upstream: Upstream, event: ev.Notified) -> Step:
    """On the way to READY: it waits for a session to say it in. What the protocol has is for a backend that has heard
    of what it changes; it means nothing to one that is greeted after it."""
    if not upstream.kept and event.method in METHODS:
        return upstream, [ev.Count(f"Notified while {upstream.phase.value}")]
    return _early(notified)(upstream, event)


def _notified_away(upstream: Upstream, event: ev.Notified) -> Step:
    """No connection: what only its two ends know brings one."""
    if event.method in METHODS:
        return upstream, [ev.Count(f"Notified while {upstream.phase.value}")]
    return _connect(_notified_early(upstream, event)[0], event)


def _started(upstream: Upstream, event: ev.Started) -> Step:
    """There is a transport."""
    if upstream.kept and not event.fresh:
        return _resumed(upstream, event)
    upstream, effects = _dropped(upstream) if upstream.kept else (upstream, [])
    upstream = replace(upstream, related=event.related, warm=event.warm, listens=event.listens)
    upstream, more = _initialize(moved(upstream, "transport there"))
    return upstream, effects + more


def _started_in_vain(upstream: Upstream, event: ev.Started) -> Step:
    """There is a transport that nobody waits for any more."""
    return upstream, [ev.Hang()]


def _started_otherwise(upstream: Upstream, event: ev.Started) -> Step:
    """INITIALIZING: over the transport before, the server could not be spoken to."""
    return _initialize(replace(upstream, related=event.related, listens=event.listens))


# The handshake (2025-11-25 lifecycle) ------------------------------------------------------------------------


def _initialize(upstream: Upstream) -> Step:
    params = Raw(
        b'{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}'
        % (LATEST_HANDSHAKE.encode(), bytes(upstream.profile.capabilities), bytes(upstream.profile.client_info))
    )
    id = upstream_id(upstream)
    upstream = replace(
        upstream, next_id=upstream.next_id + 1, pending=PersistentMap({id: ev.Called(None, "initialize")})
    )
    return upstream, [ev.Send(codec.encode_request(id, "initialize", params), id=id)]


def _message(upstream: Upstream, event: ev.Incoming) -> Step:
    """INITIALIZING: the answer to `initialize`, or what a server may say before it."""
    message = event.message
    if isinstance(message, Result) and message.id in upstream.pending:
        return _welcomed(upstream, message.result)
    if isinstance(message, Error) and refuses(upstream, message, event.related):
        said = f"{upstream.named} refused to initialize: {refusal_of(message.error)}"
        detail = told_by(message.error, said, event.status)
        return _fail(upstream, "initialize_refused", without_addresses(said), diagnostics=detail)
    if isinstance(message, Request):
        early = errors.invalid_request("no request may come before the handshake is over")
        return upstream, [pong(message) if message.method == "ping" else refuse(message, early)]
    if isinstance(message, Notification) and message.method == "notifications/message":
        return upstream, [ev.Notify(None, message.method, message.params)]
    return upstream, [ev.Count("message_before_handshake")]


def refuses(upstream: Upstream, error: Error, related: RequestId | None) -> bool:
    """INITIALIZING: whether this error answers `initialize`. Nothing else is on its way, so one without an id does too;
    one with another id may be for the connection that had the process before."""
    return error.id is None or error.id in upstream.pending or related in upstream.pending


class _InitializeResult(msgspec.Struct):
    protocolVersion: str  # the wire's name  # noqa: N815
    capabilities: Raw = Raw(b"{}")
    serverInfo: Raw = Raw(b"{}")  # noqa: N815
    instructions: str | None = None


def _welcomed(upstream: Upstream, raw: Raw) -> Step:
    try:
        answer = msgspec.json.decode(raw, type=_InitializeResult)
        payload.members(raw)  # it will be changed for the client
    except (*BROKEN, errors.Malformed):
        return _fail(upstream, "initialize_malformed", f"{upstream.named} answered initialize with something malformed")
    version, declared = answer.protocolVersion, answer.capabilities
    if len(raw) > SERVER_INFO_BYTES or len(declared) > CAPABILITIES_BYTES:
        return _fail(upstream, "initialize_malformed", f"{upstream.named} says too much of itself")
    if version not in VERSIONS:
        return _fail(upstream, "version", f"{upstream.named} speaks only revision {without_addresses(version[:40])!r}")
    # Raw values of one message share its buffer; what is kept must not keep that alive.
    info, whole = payload.kept(answer.serverInfo), payload.kept(raw)
    server_info = ev.ServerInfo(version, payload.kept(declared), info, answer.instructions, whole)
    upstream = moved(_greeted(upstream, server_info), "initialize answered")
    upstream = replace(upstream, pending=EMPTY_MAP, tag=upstream.tag + 1)
    frame = codec.encode_notification("notifications/initialized", EMPTY)
    return upstream, [ev.UseVersion(version), ev.Send(frame, tag=upstream.tag)]


def _greeted(upstream: Upstream, server_info: ev.ServerInfo) -> Upstream:
    server = capabilities.kept(server_info.capabilities)
    return replace(
        upstream, server_info=server_info, runs_tasks=tasks.may_augment(server, server_info.version, "tools/call")
    )


def _confirmed(upstream: Upstream, event: transport.FrameAccepted) -> Step:
    """The first request waits for this: some servers refuse requests until they have seen `initialized`. And for the
    stream on which the server may ask something because of it, where there is one."""
    if event.tag != upstream.tag or upstream.server_info is None:
        return upstream, [ev.Count("late_acceptance")]
    opening: ev.Effects = [ev.StopClock(), ev.Listen(), *upstream.unsent]
    upstream = replace(upstream, unsent=())
    if upstream.listens:
        return moved(upstream, "stream asked for"), opening
    upstream, effects = _ready(moved(upstream, "initialized accepted"))
    return upstream, opening + effects


def _listening(upstream: Upstream, event: ev.Listening) -> Step:
    """LISTENING: whatever a call makes the server say will be heard."""
    upstream = replace(moved(upstream, "stream there"), unheard=not event.heard)
    return _goes_on(upstream) if upstream.kept else _ready(upstream)


def _heard_of_late(upstream: Upstream, event: ev.Listening) -> Step:
    """READY: it was not waited for so long. What the backend has said unasked meanwhile it had nowhere to say."""
    if not upstream.unheard:
        return upstream, []
    return replace(upstream, unheard=False), _announced(upstream)


def _ready(upstream: Upstream) -> Step:
    """Log level and subscriptions are asked for once more, but for the subscriptions that a waiting call is about to
    change. (One that is about to change the level may be refused, and then this is the one.)"""
    assert upstream.server_info is not None  # the backend has said who it is
    again, server_info = upstream.connected_before, upstream.server_info
    upstream = replace(upstream, connected_before=True, attempt=0)
    effects: ev.Effects = [ev.Ready(server_info, again)]
    wanted: list[tuple[str, dict[str, str]]] = []
    if upstream.level is not None and capabilities.parse(server_info.capabilities).has(("logging",)):
        wanted.append((SET_LEVEL, {"level": upstream.level}))
    changing = {member(call.params, "uri") for call in upstream.waiting if call.method in (SUBSCRIBE, UNSUBSCRIBE)}
    wanted += [(SUBSCRIBE, {"uri": uri}) for uri in upstream.subscriptions if uri not in changing]
    for method, params in wanted:
        upstream, sent = dispatch(upstream, ev.Called(None, method, payload.dumps(params)))
        effects += sent
    if again:
        effects += _changes(server_info)
    upstream, more = dispatch_waiting(upstream)
    return upstream, effects + more


def _changes(server_info: ev.ServerInfo) -> ev.Effects:
    """Whatever the backend lists, and may say that it has changed, may be another."""
    declared = capabilities.parse(server_info.capabilities)
    return [ev.Notify(None, method, EMPTY) for kind, method in LIST_CHANGED.items() if declared.has((kind,))]


# In a session of an earlier upstream connection -----------------------------------------------------------------------


def _resumed(upstream: Upstream, event: ev.Started) -> Step:
    """There is a transport, and the handshake was made over another one. Whether the backend still knows us will show
    with the first request."""
    assert upstream.server_info is not None  # it is kept with the session
    effects: ev.Effects = [ev.StopClock(), ev.Listen(), *map(ev.PickUp, upstream.picking), *upstream.unsent]
    upstream = moved(
        _greeted(upstream, upstream.server_info), "session kept, stream asked for" if event.listens else "session kept"
    )
    upstream = replace(upstream, related=event.related, listens=event.listens, attempt=0, picking=(), unsent=())
    if event.listens:
        return upstream, effects
    upstream, more = _goes_on(upstream)
    return upstream, effects + more


def _goes_on(upstream: Upstream) -> Step:
    """READY. What may have been missed is said once."""
    assert upstream.server_info is not None
    effects: ev.Effects = [ev.Ready(upstream.server_info, True), *(_announced(upstream) if upstream.missed else [])]
    upstream, more = dispatch_waiting(replace(upstream, missed=False))
    return upstream, effects + more


def _announced(upstream: Upstream) -> ev.Effects:
    """Of each kind of list, and of each subscription."""
    if upstream.server_info is None:
        return []
    updated = [ev.Notify(None, UPDATED, payload.dumps({"uri": uri})) for uri in upstream.subscriptions]
    return [*_changes(upstream.server_info), *updated]


def _dropped(upstream: Upstream) -> Step:
    """The session that was kept is of no use, and the answers that were to be had in it are lost."""
    waiting = upstream.waiting
    upstream, effects = _end_calls(
        replace(upstream, waiting=()), "unconfigured", "the server has another configuration now"
    )
    return replace(upstream, waiting=waiting, kept=False, missed=False, server_info=None, picking=()), effects


def _missed(upstream: Upstream, event: transport.EventsMissed) -> Step:
    """The stream has a hole. While LISTENING, it is announced as soon as there is somebody to hear it."""
    placed = ev.Placed(None, Place("", None))
    return (
        (upstream, [placed, *_announced(upstream)])
        if upstream.phase is Phase.READY
        else (replace(upstream, missed=True), [placed])
    )


def _continued(upstream: Upstream, event: ev.Continued) -> Step:
    """The rest of an answer is fetched in a session that was kept, as soon as there is a transport."""
    if not upstream.kept:
        return _not_continued(upstream, event)
    call = ev.Called(event.call, event.method, progress=event.progress)
    asked: dict[RequestId, ev.CallKey | None] = dict.fromkeys(event.asked, event.call)
    upstream = replace(
        upstream, pending=upstream.pending.having(event.place.id, call), asked={**upstream.asked, **asked}
    )
    if upstream.phase in (Phase.LISTENING, Phase.READY):
        return upstream, [ev.PickUp(event.place)]
    upstream = replace(upstream, picking=(*upstream.picking, event.place))
    return (upstream, []) if upstream.phase is Phase.CONNECTING else _connect(upstream, event)


def _not_continued(upstream: Upstream, event: ev.Continued) -> Step:
    """The session in which it was asked is not the present one."""
    error = failure("not_resumable", "the rest of the answer can't be had", "unknown", upstream.server)
    return upstream, [ev.Finish(event.call, False, error)]


# When it is lost, or does not come about ---------------------------------------------------------------------


def _end_calls(upstream: Upstream, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """Calls that were sent may have been executed, those that waited were not; open server requests are void."""
    effects: ev.Effects = []
    ended: tuple[tuple[errors.Executed, Any], ...] = (("unknown", upstream.pending.values()), ("no", upstream.waiting))
    for executed, ending in ended:
        for call in ending:
            if call.call is not None:
                error = failure(reason, message, executed, upstream.server, diagnostics)
                effects.append(ev.Finish(call.call, False, error))
    effects += [ev.Withdraw(id) for id in upstream.asked]
    effects += [ev.Count("unsaid") for _ in upstream.unsent]
    upstream = replace(upstream, pending=EMPTY_MAP, waiting=(), asked=NOTHING, unsent=(), settling=None)
    return replace(upstream, grace_over=False, unanswered=NONE, doubtful=NONE, to_replace=False), effects


def _fail(
    upstream: Upstream, reason: str, message: str, *, counts: bool = True, diagnostics: Diagnostics = NO_DIAGNOSTICS
) -> Step:
    """The connection is lost, or could not be made."""
    ran = upstream.phase is Phase.READY
    shown = diagnostics.unstarted if ran else diagnostics
    upstream, ended = _end_calls(upstream, reason, message, shown)
    error = failure(reason, message, "unknown" if ran else "no", upstream.server, shown)
    down = ev.Down(reason, message, error, counts and reason not in UNAUTHORIZED, diagnostics, ran)
    return _lost(upstream, [ev.StopClock(), ev.Hang(), *ended, down])


def _lost(upstream: Upstream, effects: ev.Effects) -> Step:
    """With subscriptions the upstream connection comes back by itself; without any, the next call brings it back."""
    cause = "lost with subscriptions" if upstream.subscriptions else "lost"
    kept = upstream.kept and upstream.phase is Phase.CONNECTING  # nothing was said to the backend yet
    server_info = upstream.server_info if kept else None
    attempt = upstream.attempt + 1
    upstream = replace(
        moved(upstream, cause), server_info=server_info, kept=kept, attempt=attempt, lost_once=False, picking=()
    )
    return upstream, [*effects, ev.BackOff(upstream.attempt)] if upstream.subscriptions else effects


def _closed(upstream: Upstream, event: ev.Closed) -> Step:
    """The transport has ended. A process that was handed over may have ended for the probe that it refused: another one
    is started."""
    if upstream.phase is Phase.INITIALIZING and upstream.warm and event.counts:
        return replace(moved(upstream, "ended after a probe"), pending=EMPTY_MAP, warm=False), [ev.Connect()]
    return _fail(upstream, event.reason, event.message, counts=event.counts, diagnostics=event.diagnostics)


def _expired(upstream: Upstream, event: ev.ConnectExpired) -> Step:
    """It took too long."""
    return _fail(upstream, "connect_timeout", f"{upstream.named} was not ready in time", diagnostics=event.diagnostics)


def _replaced(upstream: Upstream) -> Step:
    """READY: what the backend asks over this connection can't be told to belong to a call, and none runs. What waits
    goes over the next one."""
    waiting = upstream.waiting
    text = f"the connection to {upstream.named} was replaced: a call that was cancelled got no answer"
    upstream, effects = _fail(replace(upstream, waiting=()), ev.REPLACED, text, counts=False)
    if not waiting and not upstream.subscriptions:
        return upstream, effects
    upstream, more = _connect(replace(upstream, waiting=waiting), None)
    return upstream, [*effects, *more]


def _refused(upstream: Upstream, event: ev.ConnectRefused) -> Step:
    """No transport could be had: the breaker or a bound has spoken, and nothing is known of the backend's health."""
    finishes = [ev.Finish(call.call, False, event.payload) for call in upstream.waiting]
    message = reason_of(event.payload)
    upstream, ended = _end_calls(replace(upstream, waiting=()), "refused", message)
    return _lost(
        upstream, [ev.StopClock(), *finishes, *ended, ev.Down("refused", message, event.payload, counts=False)]
    )


def _not_initialized(upstream: Upstream, event: ev.SendFailed) -> Step:
    """`initialize` could not be sent, or gets no answer."""
    if event.id not in upstream.pending:
        return upstream, [ev.Count("late_failure")]
    return _fail(upstream, event.reason, event.message, diagnostics=event.diagnostics)


def _not_found(upstream: Upstream, event: transport.SessionLost) -> Step:
    """A 404 to `initialize`, or to `initialized`, means a wrong endpoint. Any other is about the session before."""
    if event.id not in upstream.pending if upstream.phase is Phase.INITIALIZING else event.id is not None:
        return upstream, [ev.Count("late_failure")]
    return _fail(upstream, "not_found", f"{upstream.named} answered 404 to initialize", diagnostics=Diagnostics(404))


def _no_stream(upstream: Upstream, event: transport.SessionLost) -> Step:
    """LISTENING: a 404 to the GET stream of a session that was accepted a moment ago is that of a server which has
    no such stream (where it should say 405). Of a session that an earlier upstream connection began it means what
    it says."""
    if event.id is None and not upstream.kept:
        return _listening(upstream, ev.Listening())
    return _forgotten(upstream, event)


def _forgotten(upstream: Upstream, event: transport.SessionLost) -> Step:
    """READY, 404: initialize anew without the old id; the refused request is sent once more, all others end (2025-11-25
    transports, "Session Management")."""
    if event.id is None and upstream.unheard and not upstream.kept:
        return replace(upstream, unheard=False), []  # as above: what is said late means no more
    refused = upstream.pending.get(event.id) if event.id is not None else None
    if event.id is not None and refused is None:
        return upstream, [ev.Count("late_failure")]  # whoever comes next will find out
    # What was refused was not executed, so it counts among those that wait.
    again = (replace(refused, retried=True),) if refused is not None and refused.call is not None else ()
    waiting = again + upstream.waiting
    rest = replace(upstream, pending=upstream.pending.without(event.id)) if event.id is not None else upstream
    if upstream.lost_once or (refused is not None and refused.retried):
        return _fail(replace(rest, waiting=waiting), "session_lost", f"{upstream.named} keeps losing our session")
    ended, effects = _end_calls(replace(rest, waiting=()), "session_lost", f"{upstream.named} lost our session")
    ended = replace(moved(ended, "session forgotten"), waiting=waiting, lost_once=True, kept=False)
    upstream, more = _initialize(ended)
    return upstream, [ev.StartClock(), ev.Reset(), *effects, *more]


def _other_era(upstream: Upstream, event: ev.OtherEra) -> Step:
    """INITIALIZING: whoever waits is better served elsewhere."""
    wrong_era = ev.WrongEra(upstream.waiting)
    upstream, ended = _end_calls(
        replace(upstream, waiting=()), "era_changed", f"{upstream.named} speaks another protocol revision"
    )
    leave = ev.HandOver() if upstream.server_info is None else ev.Hang()  # a process that has served keeps to its era
    upstream = replace(moved(upstream, "lost"), subscriptions=(), server_info=None, picking=())
    return upstream, [ev.StopClock(), leave, *ended, wrong_era]


def _shut(upstream: Upstream, event: ev.Shut | ev.LeftOff) -> Step:
    """The owner wants no more of it, or will come back to this session, if the backend has heard of it."""
    comes_back = isinstance(event, ev.LeftOff) and (upstream.kept or upstream.phase is Phase.READY)
    upstream, effects = _end_calls(upstream, "closed", f"the connection to {upstream.named} was closed")
    leave = ev.LetGo() if comes_back else ev.Hang()
    return replace(moved(upstream, "shut"), subscriptions=()), [ev.StopClock(), leave, *effects]


# The table ---------------------------------------------------------------------------------------------------

Handler = Callable[[Upstream, Any], Step]
_OPEN = tuple(phase for phase in Phase if phase is not Phase.CLOSED)
_UP = (Phase.LISTENING, Phase.READY)
_HELLO = (Phase.INITIALIZING, Phase.CONFIRMING)
_SPOKEN = (Phase.CONFIRMING, *_UP)
_AWAY = (Phase.IDLE, Phase.WAITING)

_ROWS: tuple[tuple[type, tuple[Phase, ...], Handler], ...] = (
    # Calls, and what else goes to the backend.
    (ev.Called, _AWAY, _called_away),
    (ev.Called, (Phase.CONNECTING, *_HELLO, Phase.LISTENING), calls.called_early),
    (ev.Called, (Phase.READY,), calls.called),
    (ev.Called, (Phase.CLOSED,), calls.called_closed),
    (ev.Hold, _OPEN, calls.hold),
    (ev.Released, _OPEN, calls.released),
    (ev.Abandoned, (*_AWAY, *_HELLO, *_UP), calls.abandoned),
    (ev.Abandoned, (Phase.CONNECTING,), _early(calls.abandoned)),
    (ev.AnswerGiven, _SPOKEN, calls.answer_given),
    (ev.AnswerGiven, (Phase.CONNECTING,), _early(calls.answer_given)),
    (ev.Notified, _AWAY, _notified_away),
    (ev.Notified, (Phase.CONNECTING, *_HELLO), _notified_early),
    (ev.Notified, _UP, calls.notified),
    # The handshake.
    (ev.Wanted, _AWAY, _connect),
    (ev.Wanted, LIVE, _wanted_already),
    (ev.Wanted, (Phase.CLOSED,), _wanted_closed),
    (ev.Started, (Phase.CONNECTING,), _started),
    (ev.Started, (Phase.INITIALIZING,), _started_otherwise),
    (ev.Started, (*_AWAY, Phase.CLOSED), _started_in_vain),
    (ev.ConnectRefused, (Phase.CONNECTING,), _refused),
    (ev.Incoming, (Phase.INITIALIZING,), _message),
    (transport.FrameAccepted, (Phase.CONFIRMING,), _confirmed),
    (ev.Listening, (Phase.LISTENING,), _listening),
    (ev.Listening, (Phase.READY,), _heard_of_late),
    (ev.SendFailed, _HELLO, _not_initialized),
    (transport.SessionLost, _HELLO, _not_found),
    (transport.SessionLost, (Phase.LISTENING,), _no_stream),
    (transport.SessionLost, (Phase.READY,), _forgotten),
    (ev.OtherEra, (Phase.INITIALIZING,), _other_era),
    # A session of an earlier upstream connection, and a later one.
    (ev.Continued, (*_AWAY, Phase.CONNECTING, *_UP), _continued),
    (ev.Continued, (*_HELLO, Phase.CLOSED), _not_continued),
    (transport.Positioned, _SPOKEN, calls.positioned),
    (transport.EventsMissed, _UP, _missed),
    # What the backend says.
    (ev.Incoming, _SPOKEN, calls.incoming),
    (ev.SendFailed, _UP, calls.send_failed),
    (ev.GraceOver, (Phase.READY,), calls.grace_over),
    # The end.
    (ev.Closed, LIVE, _closed),
    (ev.ConnectExpired, tuple(phase for phase in LIVE if phase is not Phase.READY), _expired),
    (ev.RetryDue, (Phase.WAITING,), _connect),
    (ev.Shut, _OPEN, _shut),
    (ev.LeftOff, _OPEN, _shut),
)

TABLE: dict[tuple[Phase, type], Handler] = {
    (phase, event): handler for event, phases, handler in _ROWS for phase in phases
}
"""Who serves what. Not here, by intent: an `AnswerGiven` without a session to give it in, late timers, and what a
transport says after its end."""
