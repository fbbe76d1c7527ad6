"""The machine of a link to a backend without sessions, which all its callers share (2026-07-28).

`step(link, event)` gives the next link and the effects, without a clock, randomness or IO. The table says which
function serves which event in which phase; an event that has no row there is dropped and tallied, and leaves the link
untouched. Changes of phase are looked up in `link_table`.

Guarantees: before it is known what speaks there, only `server/discover` is sent; a call gets exactly one `Finish`, or
is given back unsent; no id is given twice; what may have been executed is never sent again, but for what changes
nothing, once; a message goes to those whose own request it belongs to, and to nobody else.
"""

from collections.abc import Callable
from typing import Any

from actors.protocol import link_events as ev
from actors.protocol.modern import link_entry as entry
from actors.protocol.modern import link_events as mv
from actors.protocol.modern import link_incoming as incoming
from actors.protocol.modern import link_loop as loop
from actors.protocol.modern import link_loss as loss
from actors.protocol.modern import link_probe as probe
from actors.protocol.modern.link_state import Link, Step
from actors.protocol.modern.link_table import LIVE, Phase


def step(link: Link, event: mv.Event) -> Step:
    """One event. Never raises for anything a backend can send."""
    handler = TABLE.get((link.phase, type(event)))
    if handler is None:
        return link, [ev.Tally(f"{type(event).__name__} while {link.phase.value}")]
    return handler(link, event)


Handler = Callable[[Link, Any], Step]

_OPEN = tuple(phase for phase in Phase if phase is not Phase.CLOSED)
_CONNECTED = (Phase.PROBING, Phase.READY)

TABLE: dict[tuple[Phase, type], Handler] = {
    # Callers.
    (Phase.IDLE, mv.Called): entry.called_away,
    (Phase.WAITING, mv.Called): entry.called_away,
    (Phase.CONNECTING, mv.Called): entry.called_early,
    (Phase.PROBING, mv.Called): entry.called_early,
    (Phase.READY, mv.Called): entry.called,
    (Phase.UNFIT, mv.Called): loss.called_unfit,
    (Phase.CLOSED, mv.Called): loss.called_closed,
    (Phase.IDLE, ev.Notified): entry.notified_away,
    (Phase.WAITING, ev.Notified): entry.notified_away,
    (Phase.CONNECTING, ev.Notified): entry.notified_early,
    (Phase.PROBING, ev.Notified): entry.notified_early,
    (Phase.READY, ev.Notified): entry.notified,
    **{(phase, ev.Abandoned): entry.abandoned for phase in _OPEN},
    **{(phase, mv.AnswerGiven): loop.answered for phase in _OPEN},
    **{(phase, mv.Joined): entry.joined for phase in _OPEN if phase is not Phase.UNFIT},
    **{(phase, mv.Left): entry.left for phase in _OPEN},
    # The connection.
    (Phase.IDLE, ev.Wanted): probe.wanted_away,
    (Phase.WAITING, ev.Wanted): probe.wanted_away,
    **{(phase, ev.Wanted): probe.wanted_already for phase in LIVE},
    (Phase.UNFIT, ev.Wanted): loss.wanted_unfit,
    (Phase.CLOSED, ev.Wanted): loss.wanted_closed,
    (Phase.CONNECTING, ev.Started): probe.started,
    **{(phase, ev.Started): probe.started_in_vain for phase in Phase if phase not in LIVE},
    (Phase.CONNECTING, ev.ConnectRefused): loss.connect_refused,
    (Phase.UNFIT, mv.Reconsidered): loss.reconsidered,
    # The backend.
    **{(phase, mv.Heard): incoming.heard for phase in _CONNECTED},
    **{(phase, mv.Failed): incoming.failed for phase in _CONNECTED},
    **{(phase, mv.TimerDue): incoming.due for phase in _OPEN},
    (Phase.PROBING, mv.Spoke): probe.spoke,
    # The end.
    (Phase.CONNECTING, ev.Closed): loss.closed,
    (Phase.PROBING, ev.Closed): probe.closed,
    (Phase.READY, ev.Closed): loss.closed,
    (Phase.CONNECTING, ev.ConnectExpired): loss.expired,
    (Phase.PROBING, ev.ConnectExpired): probe.expired,
    (Phase.WAITING, ev.RetryDue): loss.retry,
    **{(phase, ev.Shut): loss.shut for phase in _OPEN},
}
"""Who serves what. Not here, by intent: late timers, what a transport says after its end, and notifications where there
will be no connection of this era."""
