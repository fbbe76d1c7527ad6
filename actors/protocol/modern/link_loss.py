"""The end of a connection to a backend without sessions. A request that was out is lost; a call that waits for its
client, or for a timer, is not: the connection was no part of it."""

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import link_events as ev
from actors.protocol.bridge.eras import Case
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.link_calls import failure
from actors.protocol.link_loss import reason_of
from actors.protocol.modern.link_calls import PROBE_CLOCK, connect
from actors.protocol.modern.link_events import Called, Effects, Judged, Reconsidered, StopTimer, Unfit, Withdraw
from actors.protocol.modern.link_listens_lost import end_all, lose_all, take_changes
from actors.protocol.modern.link_state import Link, Running, Step, moved
from actors.protocol.modern.link_table import Phase
from actors.protocol.persistent import PersistentMap

REFUSALS = (Case.FOREIGN, Case.OTHER_VERSION, Case.ERROR)
"""What a server says that has read the probe, and is well."""


def _finish(waiting: Called | Running, error: Raw) -> ev.Finish:
    return ev.Finish((waiting.called if isinstance(waiting, Running) else waiting).call, False, error)


def _end_sent(link: Link, reason: str, message: str, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Step:
    """Calls whose request is out: it may have been executed. Subscriptions are taken up again later."""
    error = failure(reason, message, "unknown", link.server, diagnostics)
    effects: Effects = [_finish(p, error) for p in link.pending.values() if isinstance(p, Running)]
    link, changes = take_changes(link)
    effects += [_finish(called, error) for called in changes]
    link, more = lose_all(link, error)
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


def closed(link: Link, event: ev.Closed) -> Step:
    """The transport has ended."""
    return fail(link, event.reason, event.message, event.counts, event.diagnostics)


def expired(link: Link, event: ev.ConnectExpired) -> Step:
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
    link, returned = take_changes(link)
    effects: Effects = [ev.Tally("unknown_notification") for _ in link.unsaid]
    for waiting in (*link.waiting, *link.rebuilding):
        if isinstance(waiting, Called) or waiting.fresh:
            returned.append(waiting if isinstance(waiting, Called) else waiting.called)
        else:
            effects.append(_finish(waiting, error))
    link, ended = end_courses(replace(link, waiting=(), rebuilding=(), unsaid=()), error)
    link, more = end_all(link, error)
    link, sent = _end_sent(link, reason, message)
    leave = ev.HandOver() if case in REFUSALS and link.hello is None else ev.Hang()
    link = replace(moved(link, "other era"), lost={}, wishes={}, hello=None)
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
    return replace(link, asking={}, pausing={}), effects


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
    link, effects = end_all(link, unknown)
    link, sent = _end_sent(link, "closed", message)
    link, waiting = _end_waiting(link, failure("closed", message, "no", link.server))
    link, ended = end_courses(link, unknown)
    link = replace(moved(link, "shut"), lost={}, wishes={})
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
