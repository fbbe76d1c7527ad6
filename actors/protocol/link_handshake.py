"""The handshake with a backend, the first one and every later one (2025-11-25 lifecycle).

After a loss, log level and subscriptions are asked for again before any call goes out, and what may have changed
meanwhile is announced.
"""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import capabilities, codec, errors, payload
from actors.protocol import link_events as ev
from actors.protocol.diagnostics import Diagnostics, told_by, without_addresses
from actors.protocol.link_calls import dispatch, dispatch_waiting, member, upstream_id
from actors.protocol.link_loss import closed as loss_closed
from actors.protocol.link_loss import end_calls, fail, refusal_of
from actors.protocol.link_messages import pong, refuse
from actors.protocol.link_resume import changes, dropped, goes_on, resumed
from actors.protocol.link_state import Link, Pending, Step, moved
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.methods import SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.persistent import PersistentMap
from actors.protocol.versions import LATEST_HANDSHAKE, VERSIONS


def started(link: Link, event: ev.Started) -> Step:
    """There is a transport."""
    if link.kept and not event.fresh:
        return resumed(link, event)
    link, effects = dropped(link) if link.kept else (link, [])
    link = replace(link, related=event.related, warm=event.warm, listens=event.listens)
    link, more = _initialize(moved(link, "transport there"))
    return link, effects + more


def started_in_vain(link: Link, event: ev.Started) -> Step:
    """There is a transport that nobody waits for any more."""
    return link, [ev.Hang()]


def _initialize(link: Link) -> Step:
    id = upstream_id(link)
    params = Raw(
        b'{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}'
        % (LATEST_HANDSHAKE.encode(), bytes(link.profile.capabilities), bytes(link.profile.client_info))
    )
    link = replace(link, next_id=link.next_id + 1, pending=PersistentMap({id: Pending(None, "initialize")}))
    return link, [ev.Send(codec.encode_request(id, "initialize", params), id=id)]


# The answer --------------------------------------------------------------------------------------------------


def message(link: Link, event: ev.Incoming) -> Step:
    """INITIALIZING: the answer to `initialize`, or what a server may say before it."""
    message = event.message
    if isinstance(message, Result) and message.id in link.pending:
        return _welcomed(link, message.result)
    if isinstance(message, Error) and refuses(link, message, event.related):
        said = f"{link.named} refused to initialize: {refusal_of(message.error)}"
        detail = told_by(message.error, said, event.status)
        return fail(link, "initialize_refused", without_addresses(said), diagnostics=detail)
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


HELLO_BYTES = 1024 * 1024
"""What a backend may say of itself: it is kept as long as the link, and by the catalogue. (Icons are part of it.)"""
CAPABILITIES_BYTES = 64 * 1024
"""Of its capabilities, which are kept as values."""


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
        return fail(link, "initialize_malformed", f"{link.named} answered initialize with something malformed")
    if len(raw) > HELLO_BYTES or len(answer.capabilities) > CAPABILITIES_BYTES:
        return fail(link, "initialize_malformed", f"{link.named} says too much of itself")
    if answer.protocolVersion not in VERSIONS:
        return fail(
            link, "version", f"{link.named} speaks only revision {without_addresses(answer.protocolVersion[:40])!r}"
        )
    hello = ev.Hello(
        answer.protocolVersion, _copy(answer.capabilities), _copy(answer.serverInfo), answer.instructions, _copy(raw)
    )
    link = replace(moved(link, "initialize answered"), pending=PersistentMap(), hello=hello, tag=link.tag + 1)
    frame = codec.encode_notification("notifications/initialized", EMPTY)
    return link, [ev.UseVersion(hello.version), ev.Send(frame, tag=link.tag)]


def _copy(raw: Raw) -> Raw:
    """Raw values of one message share its buffer; what is kept must not keep that alive."""
    return Raw(bytes(raw))


def confirmed(link: Link, event: ev.Accepted) -> Step:
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


def listening(link: Link, event: ev.Listening) -> Step:
    """LISTENING: whatever a call makes the server say will be heard."""
    link = replace(moved(link, "stream there"), unheard=not event.heard)
    return goes_on(link) if link.kept else _ready(link)


def heard_of_late(link: Link, event: ev.Listening) -> Step:
    """READY: it was not waited for so long."""
    return (replace(link, unheard=False) if link.unheard else link), []


def unheard(link: Link, event: ev.SessionForgotten) -> Step:
    """LISTENING: a 404 to the GET stream of a session that was accepted a moment ago is that of a server which has no
    such stream (where it should say 405). Of a session that an earlier link began it means what it says."""
    if event.id is None and not link.kept:
        return listening(link, ev.Listening())
    return forgotten(link, event)


def _ready(link: Link) -> Step:
    assert link.hello is not None  # the backend has said who it is
    again, hello = link.connected_before, link.hello
    link = replace(link, connected_before=True, attempt=0)
    effects: ev.Effects = [ev.Ready(hello, again)]
    declared = capabilities.parse(hello.capabilities)
    link, more = _restore(link, declared)
    effects += more
    if again:
        effects += [ev.Tell(None, method, EMPTY) for method in changes(hello)]
    link, more = dispatch_waiting(link)
    return link, effects + more


def _restore(link: Link, declared: capabilities.Capabilities) -> Step:
    """Log level and subscriptions, once more; but for the subscriptions that a waiting call is about to change. (One
    that is about to change the level may be refused, and then this is the one.)"""
    effects: ev.Effects = []
    wanted: list[Pending] = []
    if link.level is not None and declared.has(("logging",)):
        wanted.append(Pending(None, SET_LEVEL, payload.dumps({"level": link.level})))
    changing = {member(p.params, "uri") for p in link.waiting if p.method in (SUBSCRIBE, UNSUBSCRIBE)}
    for uri in link.subscriptions:
        if uri not in changing:
            wanted.append(Pending(None, SUBSCRIBE, payload.dumps({"uri": uri})))
    for pending in wanted:
        link, sent = dispatch(link, pending)
        effects += sent
    return link, effects


def wanted_already(link: Link, event: ev.Wanted) -> Step:
    """It is there, or on its way: whoever joined hears of it."""
    return link, []


# When it does not come about ---------------------------------------------------------------------------------


def closed(link: Link, event: ev.Closed) -> Step:
    """INITIALIZING: the transport has ended. A process that was handed over may have ended for the probe that it
    refused: another one is started."""
    if not (link.warm and event.counts):
        return loss_closed(link, event)
    return replace(moved(link, "ended after a probe"), pending=PersistentMap(), warm=False), [ev.Connect()]


def refused(link: Link, event: ev.SendFailed) -> Step:
    """`initialize` could not be sent, or gets no answer."""
    if event.id not in link.pending:
        return link, [ev.Tally("late_failure")]
    return fail(link, event.reason, event.message, diagnostics=event.diagnostics)


def not_found(link: Link, event: ev.SessionForgotten) -> Step:
    """INITIALIZING: a 404 to `initialize` means a wrong endpoint. Any other is about the session before this one."""
    if event.id not in link.pending:
        return link, [ev.Tally("late_failure")]
    return fail(link, "not_found", f"{link.named} answered 404 to initialize", diagnostics=Diagnostics(404))


def not_confirmed(link: Link, event: ev.SessionForgotten) -> Step:
    """CONFIRMING: the session is gone before it began, unless the 404 is for a request of the one before."""
    if event.id is not None:
        return link, [ev.Tally("late_failure")]
    return fail(link, "not_found", f"{link.named} answered 404 to initialize", diagnostics=Diagnostics(404))


def forgotten(link: Link, event: ev.SessionForgotten) -> Step:
    """READY, 404: initialize anew without the old id; the refused request is sent once more, all others end (2025-11-25
    transports, "Session Management")."""
    if event.id is None and link.unheard and not link.kept:
        return replace(link, unheard=False), []  # as above: what is said late means no more
    refused = link.pending.get(event.id) if event.id is not None else None
    if event.id is not None and refused is None:
        return link, [ev.Tally("late_failure")]  # whoever comes next will find out
    rest = replace(link, pending=link.pending.without(event.id), waiting=()) if event.id is not None else link
    again: tuple[Pending, ...] = ()
    if refused is not None and refused.call is not None:
        again = (replace(refused, retried=True),)
    if link.lost_once or (refused is not None and refused.retried):
        # What was refused was not executed, so it counts among those that wait.
        rest = replace(rest, waiting=again + link.waiting)
        return fail(rest, "session_lost", f"{link.named} keeps losing our session")
    ended, effects = end_calls(replace(rest, waiting=()), "session_lost", f"{link.named} lost our session")
    ended = replace(moved(ended, "session forgotten"), waiting=again + link.waiting, lost_once=True, kept=False)
    link, more = _initialize(ended)
    return link, [ev.StartClock(), ev.Reset(), *effects, *more]
