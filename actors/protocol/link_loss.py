"""The end of a connection: every call gets its one outcome, which says whether it may have been executed."""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import link_events as ev
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.link_calls import connect, failure
from actors.protocol.link_state import Link, Phase, Step, moved
from actors.protocol.persistent import PersistentMap


def end_calls(link: Link, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """Calls that were sent may have been executed, those that waited were not; open questions are void."""
    effects: ev.Effects = []
    for pending in link.pending.values():
        if pending.call is not None:
            error = failure(reason, message, "unknown", link.server, diagnostics)
            effects.append(ev.Finish(pending.call, False, error))
    for pending in link.waiting:
        if pending.call is not None:
            effects.append(ev.Finish(pending.call, False, failure(reason, message, "no", link.server, diagnostics)))
    effects += [ev.Withdraw(id) for id in link.asked]
    effects += [ev.Tally("unsaid") for _ in link.unsaid]
    return replace(link, pending=PersistentMap(), waiting=(), asked={}, unsaid=()), effects


def fail(
    link: Link, reason: str, message: str, *, counts: bool = True, diagnostics: Diagnostics = NO_DIAGNOSTICS
) -> Step:
    """The connection is lost, or could not be made."""
    ran = link.phase is Phase.READY
    shown = diagnostics.unstarted if ran else diagnostics
    link, ended = end_calls(link, reason, message, shown)
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


def closed(link: Link, event: ev.Closed) -> Step:
    """The transport has ended."""
    return fail(link, event.reason, event.message, counts=event.counts, diagnostics=event.diagnostics)


def expired(link: Link, event: ev.ConnectExpired) -> Step:
    """It took too long."""
    return fail(link, "connect_timeout", f"{link.named} was not ready in time", diagnostics=event.diagnostics)


def connect_refused(link: Link, event: ev.ConnectRefused) -> Step:
    """No transport could be had. It says nothing of the backend's health: the breaker or a bound has spoken."""
    finishes = [ev.Finish(p.call, False, event.payload) for p in link.waiting if p.call is not None]
    down = ev.Down("refused", reason_of(event.payload), event.payload, counts=False)
    link, ended = end_calls(replace(link, waiting=()), "refused", reason_of(event.payload))
    return _lost(link, [ev.StopClock(), *finishes, *ended, down])


def other_era(link: Link, event: ev.OtherEra) -> Step:
    """INITIALIZING: whoever waits is better served elsewhere."""
    calls = tuple(
        ev.Called(p.call, p.method, p.params, p.progress, p.eligible, p.final, p.version)
        for p in link.waiting
        if p.call is not None
    )
    link, ended = end_calls(replace(link, waiting=()), "era_changed", f"{link.named} speaks another protocol revision")
    leave = ev.HandOver() if link.hello is None else ev.Hang()  # a process that has served keeps to its era
    link = replace(moved(link, "lost"), subscriptions=(), hello=None, picking=())
    return link, [ev.StopClock(), leave, *ended, ev.Unfit(calls)]


def retry(link: Link, event: ev.RetryDue) -> Step:
    """WAITING: the back-off is over."""
    return connect(link, "back-off over")


def shut(link: Link, event: ev.Shut) -> Step:
    """The owner wants no more of it."""
    link, effects = end_calls(link, "closed", f"the connection to {link.named} was closed")
    return replace(moved(link, "shut"), subscriptions=()), [ev.StopClock(), ev.Hang(), *effects]


def wanted_closed(link: Link, event: ev.Wanted) -> Step:
    """CLOSED: there will be none."""
    message = f"the connection to {link.named} was closed"
    return link, [ev.Down("closed", message, failure("closed", message, "no", link.server), counts=False)]


class _ErrorObject(msgspec.Struct):
    message: str = ""
    code: int = 0


def reason_of(error: Raw) -> str:
    """The message of a JSON-RPC error object, cut to a length fit for logs."""
    try:
        return msgspec.json.decode(error, type=_ErrorObject).message[:500]
    except (msgspec.DecodeError, RecursionError):
        return "malformed error"


def refusal_of(error: Raw) -> str:
    """What a server says that refuses to speak with us: the message and the code of its JSON-RPC error."""
    try:
        said = msgspec.json.decode(error, type=_ErrorObject)
    except (msgspec.DecodeError, RecursionError):
        return "malformed error"
    return f"{said.message[:500]} (error {said.code})"
