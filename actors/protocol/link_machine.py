"""The machine of a link to a session-era backend: handshake, calls, requests of the backend, loss and recovery.

`step(link, event)` gives the next link and the effects, without a clock, randomness or IO. The table says which
function serves which event in which phase; an event that has no row there is dropped and tallied, and leaves the link
untouched. Changes of phase are looked up in `link_table`.

Guarantees: a call gets exactly one `Finish`; what may have been sent is never sent again, but for a request that the
backend refused before execution because it did not know our session (2025-11-25 transports, "Session Management"),
once; after a loss, log level and subscriptions are asked for again before anything else, and what may have been missed
is announced.
"""

from collections.abc import Callable
from typing import Any

from actors.protocol import link_calls as calls
from actors.protocol import link_events as ev
from actors.protocol import link_handshake as handshake
from actors.protocol import link_loss as loss
from actors.protocol import link_messages as messages
from actors.protocol import link_resume as resume
from actors.protocol.link_state import Link, Step
from actors.protocol.link_table import LIVE, Phase


def step(link: Link, event: ev.LinkEvent) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((link.phase, type(event)))
    if handler is None:
        return link, [ev.Tally(f"{type(event).__name__} while {link.phase.value}")]
    return handler(link, event)


Handler = Callable[[Link, Any], Step]

TABLE: dict[tuple[Phase, type], Handler] = {
    # Calls.
    (Phase.IDLE, ev.Called): calls.called_away,
    (Phase.CONNECTING, ev.Called): calls.called_early,
    (Phase.INITIALIZING, ev.Called): calls.called_early,
    (Phase.CONFIRMING, ev.Called): calls.called_early,
    (Phase.LISTENING, ev.Called): calls.called_early,
    (Phase.READY, ev.Called): calls.called,
    (Phase.WAITING, ev.Called): calls.called_away,
    (Phase.CLOSED, ev.Called): calls.called_closed,
    (Phase.LISTENING, ev.SendFailed): calls.send_failed,
    (Phase.READY, ev.SendFailed): calls.send_failed,
    (Phase.IDLE, ev.Notified): resume.notified_away,
    (Phase.WAITING, ev.Notified): resume.notified_away,
    (Phase.CONNECTING, ev.Notified): resume.notified_early,
    (Phase.INITIALIZING, ev.Notified): resume.notified_early,
    (Phase.CONFIRMING, ev.Notified): resume.notified_early,
    (Phase.LISTENING, ev.Notified): calls.notified,
    (Phase.READY, ev.Notified): calls.notified,
    **{(phase, ev.Abandoned): calls.abandoned for phase in Phase if phase is not Phase.CLOSED},
    **{(phase, ev.Hold): calls.hold for phase in Phase if phase is not Phase.CLOSED},
    **{(phase, ev.Released): calls.released for phase in Phase if phase is not Phase.CLOSED},
    # The handshake.
    (Phase.IDLE, ev.Wanted): calls.wanted_away,
    **{(phase, ev.Wanted): handshake.wanted_already for phase in LIVE},
    (Phase.WAITING, ev.Wanted): calls.wanted_away,
    (Phase.CLOSED, ev.Wanted): loss.wanted_closed,
    (Phase.CONNECTING, ev.Started): handshake.started,
    (Phase.IDLE, ev.Started): handshake.started_in_vain,
    (Phase.WAITING, ev.Started): handshake.started_in_vain,
    (Phase.CLOSED, ev.Started): handshake.started_in_vain,
    (Phase.CONNECTING, ev.ConnectRefused): loss.connect_refused,
    (Phase.INITIALIZING, ev.Incoming): handshake.message,
    (Phase.INITIALIZING, ev.SendFailed): handshake.refused,
    (Phase.INITIALIZING, ev.SessionForgotten): handshake.not_found,
    (Phase.CONFIRMING, ev.Accepted): handshake.confirmed,
    (Phase.CONFIRMING, ev.SendFailed): handshake.refused,
    (Phase.CONFIRMING, ev.SessionForgotten): handshake.not_confirmed,
    (Phase.LISTENING, ev.Listening): handshake.listening,
    (Phase.READY, ev.Listening): handshake.heard_of_late,
    (Phase.LISTENING, ev.SessionForgotten): handshake.unheard,
    (Phase.READY, ev.SessionForgotten): handshake.forgotten,
    # A session of an earlier link, and a later one.
    (Phase.IDLE, ev.Continued): resume.continued,
    (Phase.WAITING, ev.Continued): resume.continued,
    (Phase.CONNECTING, ev.Continued): resume.continued,
    (Phase.CONNECTING, ev.AnswerGiven): resume.held(messages.answer_given),
    (Phase.CONNECTING, ev.Abandoned): resume.held(calls.abandoned),
    (Phase.LISTENING, ev.Continued): resume.continued_now,
    (Phase.READY, ev.Continued): resume.continued_now,
    (Phase.INITIALIZING, ev.Continued): resume.refused,
    (Phase.CONFIRMING, ev.Continued): resume.refused,
    (Phase.CLOSED, ev.Continued): resume.refused,
    (Phase.CONFIRMING, ev.Moved): resume.moved_on,
    (Phase.LISTENING, ev.Moved): resume.moved_on,
    (Phase.READY, ev.Moved): resume.moved_on,
    (Phase.LISTENING, ev.Missed): resume.missed_early,
    (Phase.READY, ev.Missed): resume.missed,
    **{(phase, ev.LeftOff): resume.left_off for phase in Phase if phase is not Phase.CLOSED},
    # Messages of the backend.
    (Phase.CONFIRMING, ev.Incoming): messages.incoming,
    (Phase.LISTENING, ev.Incoming): messages.incoming,
    (Phase.READY, ev.Incoming): messages.incoming,
    (Phase.CONFIRMING, ev.AnswerGiven): messages.answer_given,
    (Phase.LISTENING, ev.AnswerGiven): messages.answer_given,
    (Phase.READY, ev.AnswerGiven): messages.answer_given,
    # The end.
    **{(phase, ev.Closed): loss.closed for phase in LIVE},
    (Phase.INITIALIZING, ev.Closed): handshake.closed,
    **{(phase, ev.ConnectExpired): loss.expired for phase in LIVE if phase is not Phase.READY},
    (Phase.INITIALIZING, ev.OtherEra): loss.other_era,
    (Phase.WAITING, ev.RetryDue): loss.retry,
    **{(phase, ev.Shut): loss.shut for phase in Phase if phase is not Phase.CLOSED},
}
"""Who serves what. Not here, by intent: an `AnswerGiven` without a session to give it in, late timers, and what a
transport says after its end."""
