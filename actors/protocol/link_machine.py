"""The machine of a link to a session-era backend: handshake, calls, requests of the backend, loss and recovery.

`step(link, event)` gives the next link and the effects, without a clock, randomness or IO. The table says which
function serves which event in which phase; an event that has no row there is dropped and tallied, and leaves the link
untouched. What passes over a connection that is there is in `link_calls`; here is how one comes about, how it goes on
with the session of an earlier one (2025-11-25 transports, "Session Management", "Resumability and Redelivery"), and how
it ends.

Guarantees: a call gets exactly one `Finish`, which says whether it may have been executed; what may have been sent is
never sent again, but for a request that the backend refused before execution because it did not know our session,
once; after a loss, log level and subscriptions are asked for again before anything else, and what may have been missed
is announced.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, codec, errors, payload, tasks, transport
from actors.protocol import link_calls as calls
from actors.protocol import link_events as ev
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics, reason_of, refusal_of, told_by, without_addresses
from actors.protocol.events import Place
from actors.protocol.link_calls import dispatch, dispatch_waiting, failure, member, notified, pong, refuse, upstream_id
from actors.protocol.link_state import LIVE, Link, Phase, Step, moved
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.methods import LIST_CHANGED, METHODS, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE, UPDATED
from actors.protocol.persistent import PersistentMap
from actors.protocol.versions import LATEST_HANDSHAKE, VERSIONS

UNSAID_MAX: Final = 256
"""Messages that wait for a transport: answers, cancels and notifications of the client. Further ones are dropped."""
UNSAID_BYTES: Final = 16 * 1024 * 1024
"""The same, in bytes; one alone may have more."""
HELLO_BYTES: Final = 1024 * 1024
"""What a backend may say of itself: it is kept as long as the link, and by the catalogue. (Icons are part of it.)"""
CAPABILITIES_BYTES: Final = 64 * 1024
"""Of its capabilities, which are kept as values."""


def step(link: Link, event: ev.LinkEvent) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((link.phase, type(event)))
    if handler is None:
        return link, [ev.Tally(f"{type(event).__name__} while {link.phase.value}")]
    return handler(link, event)


# A connection is wanted --------------------------------------------------------------------------------------


def _connect(link: Link, event: object) -> Step:
    """No connection: asks for a transport. A back-off does not hold a call up; whether the backend may be tried is the
    breaker's decision."""
    cause = "back-off over" if isinstance(event, ev.RetryDue) else "call"
    return moved(link, cause), [ev.StartClock(), ev.Connect()]


def _called_away(link: Link, event: ev.Called) -> Step:
    """No connection: the call brings one."""
    return _connect(calls.called_early(link, event)[0], event)


def _wanted_already(link: Link, event: ev.Wanted) -> Step:
    """It is there, or on its way: whoever joined hears of it."""
    return link, []


def _wanted_closed(link: Link, event: ev.Wanted) -> Step:
    """CLOSED: there will be none."""
    message = f"the connection to {link.named} was closed"
    return link, [ev.Down("closed", message, failure("closed", message, "no", link.server), counts=False)]


def _early(serve: Callable[[Link, Any], Step]) -> Callable[[Link, Any], Step]:
    """On the way to READY: what is to be sent in a session that was kept is sent as soon as there is a transport."""

    def early(link: Link, event: Any) -> Step:
        link, effects = serve(link, event)
        sends = [effect for effect in effects if isinstance(effect, ev.Send)]
        if not sends:
            return link, effects
        rest: ev.Effects = [effect for effect in effects if not isinstance(effect, ev.Send)]
        size = sum(len(send.frame) for send in (*link.unsaid, *sends))
        if len(link.unsaid) + len(sends) > UNSAID_MAX or (link.unsaid and size > UNSAID_BYTES):
            return link, [*rest, ev.Tally("unsaid")]
        return replace(link, unsaid=(*link.unsaid, *sends)), rest

    return early


def _notified_early(link: Link, event: ev.Notified) -> Step:
    """On the way to READY: it waits for a session to say it in. What the protocol has is for a backend that has heard
    of what it changes; it means nothing to one that is greeted after it."""
    if not link.kept and event.method in METHODS:
        return link, [ev.Tally(f"Notified while {link.phase.value}")]
    return _early(notified)(link, event)


def _notified_away(link: Link, event: ev.Notified) -> Step:
    """No connection: what only its two ends know brings one."""
    if event.method in METHODS:
        return link, [ev.Tally(f"Notified while {link.phase.value}")]
    return _connect(_notified_early(link, event)[0], event)


def _started(link: Link, event: ev.Started) -> Step:
    """There is a transport."""
    if link.kept and not event.fresh:
        return _resumed(link, event)
    link, effects = _dropped(link) if link.kept else (link, [])
    link = replace(link, related=event.related, warm=event.warm, listens=event.listens)
    link, more = _initialize(moved(link, "transport there"))
    return link, effects + more


def _started_in_vain(link: Link, event: ev.Started) -> Step:
    """There is a transport that nobody waits for any more."""
    return link, [ev.Hang()]


# The handshake (2025-11-25 lifecycle) ------------------------------------------------------------------------


def _initialize(link: Link) -> Step:
    params = Raw(
        b'{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}'
        % (LATEST_HANDSHAKE.encode(), bytes(link.profile.capabilities), bytes(link.profile.client_info))
    )
    id = upstream_id(link)
    link = replace(link, next_id=link.next_id + 1, pending=PersistentMap({id: ev.Called(None, "initialize")}))
    return link, [ev.Send(codec.encode_request(id, "initialize", params), id=id)]


def _message(link: Link, event: ev.Incoming) -> Step:
    """INITIALIZING: the answer to `initialize`, or what a server may say before it."""
    message = event.message
    if isinstance(message, Result) and message.id in link.pending:
        return _welcomed(link, message.result)
    if isinstance(message, Error) and refuses(link, message, event.related):
        said = f"{link.named} refused to initialize: {refusal_of(message.error)}"
        detail = told_by(message.error, said, event.status)
        return _fail(link, "initialize_refused", without_addresses(said), diagnostics=detail)
    if isinstance(message, Request):
        early = errors.invalid_request("no request may come before the handshake is over")
        return link, [pong(message) if message.method == "ping" else refuse(message, early)]
    if isinstance(message, Notification) and message.method == "notifications/message":
        return link, [ev.Tell(None, message.method, message.params)]
    return link, [ev.Tally("message_before_handshake")]


def refuses(link: Link, error: Error, related: RequestId | None) -> bool:
    """INITIALIZING: whether this error answers `initialize`. Nothing else is on its way, so one without an id does too;
    one with another id may be for the connection that had the process before."""
    return error.id is None or error.id in link.pending or related in link.pending


class _InitializeResult(msgspec.Struct):
    protocolVersion: str  # the wire's name  # noqa: N815
    capabilities: Raw = Raw(b"{}")
    serverInfo: Raw = Raw(b"{}")  # noqa: N815
    instructions: str | None = None


def _welcomed(link: Link, raw: Raw) -> Step:
    try:
        answer = msgspec.json.decode(raw, type=_InitializeResult)
        payload.members(raw)  # it will be changed for the client
    except (msgspec.DecodeError, RecursionError, errors.Malformed):
        return _fail(link, "initialize_malformed", f"{link.named} answered initialize with something malformed")
    version, declared = answer.protocolVersion, answer.capabilities
    if len(raw) > HELLO_BYTES or len(declared) > CAPABILITIES_BYTES:
        return _fail(link, "initialize_malformed", f"{link.named} says too much of itself")
    if version not in VERSIONS:
        return _fail(link, "version", f"{link.named} speaks only revision {without_addresses(version[:40])!r}")
    # Raw values of one message share its buffer; what is kept must not keep that alive.
    info, whole = Raw(bytes(answer.serverInfo)), Raw(bytes(raw))
    hello = ev.Hello(version, payload.kept(declared), info, answer.instructions, whole)
    link = moved(_greeted(link, hello), "initialize answered")
    link = replace(link, pending=PersistentMap(), tag=link.tag + 1)
    frame = codec.encode_notification("notifications/initialized", EMPTY)
    return link, [ev.UseVersion(version), ev.Send(frame, tag=link.tag)]


def _greeted(link: Link, hello: ev.Hello) -> Link:
    server = capabilities.kept(hello.capabilities)
    return replace(link, hello=hello, runs_tasks=tasks.may_augment(server, hello.version, "tools/call"))


def _confirmed(link: Link, event: transport.FrameAccepted) -> Step:
    """The first request waits for this: some servers refuse requests until they have seen `initialized`. And for the
    stream on which the server may ask something because of it, where there is one."""
    if event.tag != link.tag or link.hello is None:
        return link, [ev.Tally("late_acceptance")]
    opening: ev.Effects = [ev.StopClock(), ev.Listen(), *link.unsaid]
    link = replace(link, unsaid=())
    if link.listens:
        return moved(link, "stream asked for"), opening
    link, effects = _ready(moved(link, "initialized accepted"))
    return link, opening + effects


def _listening(link: Link, event: ev.Listening) -> Step:
    """LISTENING: whatever a call makes the server say will be heard."""
    link = replace(moved(link, "stream there"), unheard=not event.heard)
    return _goes_on(link) if link.kept else _ready(link)


def _heard_of_late(link: Link, event: ev.Listening) -> Step:
    """READY: it was not waited for so long."""
    return (replace(link, unheard=False) if link.unheard else link), []


def _ready(link: Link) -> Step:
    """Log level and subscriptions are asked for once more, but for the subscriptions that a waiting call is about to
    change. (One that is about to change the level may be refused, and then this is the one.)"""
    assert link.hello is not None  # the backend has said who it is
    again, hello = link.connected_before, link.hello
    link = replace(link, connected_before=True, attempt=0)
    effects: ev.Effects = [ev.Ready(hello, again)]
    wanted: list[tuple[str, dict[str, str]]] = []
    if link.level is not None and capabilities.parse(hello.capabilities).has(("logging",)):
        wanted.append((SET_LEVEL, {"level": link.level}))
    changing = {member(call.params, "uri") for call in link.waiting if call.method in (SUBSCRIBE, UNSUBSCRIBE)}
    wanted += [(SUBSCRIBE, {"uri": uri}) for uri in link.subscriptions if uri not in changing]
    for method, params in wanted:
        link, sent = dispatch(link, ev.Called(None, method, payload.dumps(params)))
        effects += sent
    if again:
        effects += _changes(hello)
    link, more = dispatch_waiting(link)
    return link, effects + more


def _changes(hello: ev.Hello) -> ev.Effects:
    """Whatever the backend lists, and may say that it has changed, may be another."""
    declared = capabilities.parse(hello.capabilities)
    return [ev.Tell(None, method, EMPTY) for kind, method in LIST_CHANGED.items() if declared.has((kind,))]


# In a session of an earlier link -----------------------------------------------------------------------------


def _resumed(link: Link, event: ev.Started) -> Step:
    """There is a transport, and the handshake was made over another one. Whether the backend still knows us will show
    with the first request."""
    assert link.hello is not None  # it is kept with the session
    effects: ev.Effects = [ev.StopClock(), ev.Listen(), *map(ev.PickUp, link.picking), *link.unsaid]
    link = moved(_greeted(link, link.hello), "session kept, stream asked for" if event.listens else "session kept")
    link = replace(link, related=event.related, listens=event.listens, attempt=0, picking=(), unsaid=())
    if event.listens:
        return link, effects
    link, more = _goes_on(link)
    return link, effects + more


def _goes_on(link: Link) -> Step:
    """READY. What may have been missed is said once."""
    assert link.hello is not None
    effects: ev.Effects = [ev.Ready(link.hello, True), *(_announced(link) if link.missed else [])]
    link, more = dispatch_waiting(replace(link, missed=False))
    return link, effects + more


def _announced(link: Link) -> ev.Effects:
    """Of each kind of list, and of each subscription."""
    if link.hello is None:
        return []
    updated = [ev.Tell(None, UPDATED, payload.dumps({"uri": uri})) for uri in link.subscriptions]
    return [*_changes(link.hello), *updated]


def _dropped(link: Link) -> Step:
    """The session that was kept is of no use, and the answers that were to be had in it are lost."""
    waiting = link.waiting
    link, effects = _end_calls(replace(link, waiting=()), "unconfigured", "the server has another configuration now")
    return replace(link, waiting=waiting, kept=False, missed=False, hello=None, picking=()), effects


def _missed(link: Link, event: transport.EventsMissed) -> Step:
    """The stream has a hole. While LISTENING, it is announced as soon as there is somebody to hear it."""
    placed = ev.Placed(None, Place("", None))
    return (link, [placed, *_announced(link)]) if link.phase is Phase.READY else (replace(link, missed=True), [placed])


def _continued(link: Link, event: ev.Continued) -> Step:
    """The rest of an answer is fetched in a session that was kept, as soon as there is a transport."""
    if not link.kept:
        return _not_continued(link, event)
    call = ev.Called(event.call, event.method, progress=event.progress)
    asked: dict[RequestId, ev.CallKey | None] = dict.fromkeys(event.asked, event.call)
    link = replace(link, pending=link.pending.having(event.place.id, call), asked={**link.asked, **asked})
    if link.phase in (Phase.LISTENING, Phase.READY):
        return link, [ev.PickUp(event.place)]
    link = replace(link, picking=(*link.picking, event.place))
    return (link, []) if link.phase is Phase.CONNECTING else _connect(link, event)


def _not_continued(link: Link, event: ev.Continued) -> Step:
    """The session in which it was asked is not the present one."""
    error = failure("not_resumable", "the rest of the answer can't be had", "unknown", link.server)
    return link, [ev.Finish(event.call, False, error)]


# When it is lost, or does not come about ---------------------------------------------------------------------


def _end_calls(link: Link, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """Calls that were sent may have been executed, those that waited were not; open questions are void."""
    effects: ev.Effects = []
    ended: tuple[tuple[errors.Executed, Any], ...] = (("unknown", link.pending.values()), ("no", link.waiting))
    for executed, ending in ended:
        for call in ending:
            if call.call is not None:
                error = failure(reason, message, executed, link.server, diagnostics)
                effects.append(ev.Finish(call.call, False, error))
    effects += [ev.Withdraw(id) for id in link.asked]
    effects += [ev.Tally("unsaid") for _ in link.unsaid]
    return replace(link, pending=PersistentMap(), waiting=(), asked={}, unsaid=()), effects


def _fail(
    link: Link, reason: str, message: str, *, counts: bool = True, diagnostics: Diagnostics = NO_DIAGNOSTICS
) -> Step:
    """The connection is lost, or could not be made."""
    ran = link.phase is Phase.READY
    shown = diagnostics.unstarted if ran else diagnostics
    link, ended = _end_calls(link, reason, message, shown)
    error = failure(reason, message, "unknown" if ran else "no", link.server, shown)
    down = ev.Down(reason, message, error, counts, diagnostics, ran)
    return _lost(link, [ev.StopClock(), ev.Hang(), *ended, down])


def _lost(link: Link, effects: ev.Effects) -> Step:
    """With subscriptions the link comes back by itself; without any, the next call brings it back."""
    cause = "lost with subscriptions" if link.subscriptions else "lost"
    kept = link.kept and link.phase is Phase.CONNECTING  # nothing was said to the backend yet
    hello = link.hello if kept else None
    attempt = link.attempt + 1
    link = replace(moved(link, cause), hello=hello, kept=kept, attempt=attempt, lost_once=False, picking=())
    return link, [*effects, ev.BackOff(link.attempt)] if link.subscriptions else effects


def _closed(link: Link, event: ev.Closed) -> Step:
    """The transport has ended. A process that was handed over may have ended for the probe that it refused: another one
    is started."""
    if link.phase is Phase.INITIALIZING and link.warm and event.counts:
        return replace(moved(link, "ended after a probe"), pending=PersistentMap(), warm=False), [ev.Connect()]
    return _fail(link, event.reason, event.message, counts=event.counts, diagnostics=event.diagnostics)


def _expired(link: Link, event: ev.ConnectExpired) -> Step:
    """It took too long."""
    return _fail(link, "connect_timeout", f"{link.named} was not ready in time", diagnostics=event.diagnostics)


def _refused(link: Link, event: ev.ConnectRefused) -> Step:
    """No transport could be had: the breaker or a bound has spoken, and nothing is known of the backend's health."""
    finishes = [ev.Finish(call.call, False, event.payload) for call in link.waiting]
    message = reason_of(event.payload)
    link, ended = _end_calls(replace(link, waiting=()), "refused", message)
    return _lost(link, [ev.StopClock(), *finishes, *ended, ev.Down("refused", message, event.payload, counts=False)])


def _not_initialized(link: Link, event: ev.SendFailed) -> Step:
    """`initialize` could not be sent, or gets no answer."""
    if event.id not in link.pending:
        return link, [ev.Tally("late_failure")]
    return _fail(link, event.reason, event.message, diagnostics=event.diagnostics)


def _not_found(link: Link, event: transport.SessionLost) -> Step:
    """A 404 to `initialize`, or to `initialized`, means a wrong endpoint. Any other is about the session before."""
    if event.id not in link.pending if link.phase is Phase.INITIALIZING else event.id is not None:
        return link, [ev.Tally("late_failure")]
    return _fail(link, "not_found", f"{link.named} answered 404 to initialize", diagnostics=Diagnostics(404))


def _no_stream(link: Link, event: transport.SessionLost) -> Step:
    """LISTENING: a 404 to the GET stream of a session that was accepted a moment ago is that of a server which has no
    such stream (where it should say 405). Of a session that an earlier link began it means what it says."""
    if event.id is None and not link.kept:
        return _listening(link, ev.Listening())
    return _forgotten(link, event)


def _forgotten(link: Link, event: transport.SessionLost) -> Step:
    """READY, 404: initialize anew without the old id; the refused request is sent once more, all others end (2025-11-25
    transports, "Session Management")."""
    if event.id is None and link.unheard and not link.kept:
        return replace(link, unheard=False), []  # as above: what is said late means no more
    refused = link.pending.get(event.id) if event.id is not None else None
    if event.id is not None and refused is None:
        return link, [ev.Tally("late_failure")]  # whoever comes next will find out
    # What was refused was not executed, so it counts among those that wait.
    again = (replace(refused, retried=True),) if refused is not None and refused.call is not None else ()
    waiting = again + link.waiting
    rest = replace(link, pending=link.pending.without(event.id)) if event.id is not None else link
    if link.lost_once or (refused is not None and refused.retried):
        return _fail(replace(rest, waiting=waiting), "session_lost", f"{link.named} keeps losing our session")
    ended, effects = _end_calls(replace(rest, waiting=()), "session_lost", f"{link.named} lost our session")
    ended = replace(moved(ended, "session forgotten"), waiting=waiting, lost_once=True, kept=False)
    link, more = _initialize(ended)
    return link, [ev.StartClock(), ev.Reset(), *effects, *more]


def _other_era(link: Link, event: ev.OtherEra) -> Step:
    """INITIALIZING: whoever waits is better served elsewhere."""
    unfit = ev.Unfit(link.waiting)
    link, ended = _end_calls(replace(link, waiting=()), "era_changed", f"{link.named} speaks another protocol revision")
    leave = ev.HandOver() if link.hello is None else ev.Hang()  # a process that has served keeps to its era
    link = replace(moved(link, "lost"), subscriptions=(), hello=None, picking=())
    return link, [ev.StopClock(), leave, *ended, unfit]


def _shut(link: Link, event: ev.Shut | ev.LeftOff) -> Step:
    """The owner wants no more of it, or will come back to this session, if the backend has heard of it."""
    comes_back = isinstance(event, ev.LeftOff) and (link.kept or link.phase is Phase.READY)
    link, effects = _end_calls(link, "closed", f"the connection to {link.named} was closed")
    leave = ev.LetGo() if comes_back else ev.Hang()
    return replace(moved(link, "shut"), subscriptions=()), [ev.StopClock(), leave, *effects]


# The table ---------------------------------------------------------------------------------------------------

Handler = Callable[[Link, Any], Step]
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
    # A session of an earlier link, and a later one.
    (ev.Continued, (*_AWAY, Phase.CONNECTING, *_UP), _continued),
    (ev.Continued, (*_HELLO, Phase.CLOSED), _not_continued),
    (transport.Positioned, _SPOKEN, calls.positioned),
    (transport.EventsMissed, _UP, _missed),
    # What the backend says.
    (ev.Incoming, _SPOKEN, calls.incoming),
    (ev.SendFailed, _UP, calls.send_failed),
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
