"""What either end notifies, and whether it may pass: progress of a call, log messages, changes."""

import msgspec
from msgspec import Raw

from actors.protocol import capabilities, codec, inflight, streams, tasks, translate
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.capabilities import LEVELS, level_of
from actors.protocol.methods import METHODS, UPDATED, Kind, Sender, known
from actors.protocol.modern.filter import FLAGS
from actors.protocol.session_state import Session

Step = streams.Step


def told(session: Session, event: ev.CallProgressed) -> Step:
    """A notification of a backend."""
    if event.method == "notifications/progress":
        return inflight.progressed(session, event)
    why = why_drop(session, event.method, Sender.SERVER)
    if why is not None:
        return session, [fx.Tally(why)]
    if event.method == "notifications/message" and not _loud_enough(session, event.params):
        return session, [fx.Tally("log_below_level")]
    params = event.params if event.as_is else translate.notification(event.method, event.params, session.version)
    frame = codec.encode_notification(event.method, params)
    return inflight.say(session, event, frame, _coalescing_key(event))


def why_drop(session: Session, method: str, sender: Sender) -> str | None:
    """Why a notification of this end goes nowhere: it is unknown, or of a feature that was not declared. None if it may
    pass. A transparent endpoint passes what only its two ends know."""
    row = known(method, sender, session.version)
    if row is None or row.kind is not Kind.NOTIFICATION:
        return "unknown_notification" if session.rules.gates or method in METHODS else None
    if not session.rules.gates or session.client is None or session.server is None:
        return None
    # The status of a task comes from the end that runs it, and that declared it.
    clients = METHODS[method].client_capability or (method == tasks.STATUS and sender is Sender.CLIENT)
    declared = session.client.capabilities if clients else session.server
    return None if capabilities.allows(declared, method, session.version) else "undeclared_notification"


class _Uri(msgspec.Struct):
    uri: str


def _coalescing_key(event: ev.CallProgressed) -> str | None:
    """`list_changed` of a kind and `updated` of a URI say the same however often they are said. (What else is called
    so, only its two ends know.)"""
    if event.method in FLAGS:
        return event.method
    if event.method == UPDATED:
        try:
            return f"{event.method} {msgspec.json.decode(event.params, type=_Uri).uri}"
        except (msgspec.DecodeError, RecursionError):
            return None
    return None


def _loud_enough(session: Session, params: Raw) -> bool:
    """A level that is not of the protocol passes, and lets all pass: those who agreed on it know what it means."""
    if session.level is None or session.level not in LEVELS:
        return True
    said = level(params)
    return said is None or LEVELS.index(said) >= LEVELS.index(session.level)


def level(params: Raw) -> str | None:
    """The log level that params name, if it is one (2025-11-25 server/utilities/logging)."""
    named = level_of(params)
    return named if named in LEVELS else None
