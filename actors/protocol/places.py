"""Where requests stand at their backends, if those give their events ids: from there the rest of an answer can be had
after the loss of whoever waited for it (2025-11-25 transports, "Resumability and Redelivery").

A place goes into the record together with the last event that came of what the backend said: then neither is ever there
without the other, and nothing is shown twice or left out.
"""

from typing import TypeAlias

from msgspec.structs import replace

from actors.protocol import events as ev
from actors.protocol import streams
from actors.protocol.messages import RequestId
from actors.protocol.request_record import of_request, request_key
from actors.protocol.session_state import Session

Placing: TypeAlias = ev.CallProgressed | ev.Asked | ev.CallPlaced
Changes: TypeAlias = dict[str, bytes | None]

NOT_CONTINUED = frozenset(
    {"initialize", "tools/list", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
"""Requests whose answer is not all that they come to: the session has to do something of its own with it."""


def take(session: Session, id: RequestId, stream: str | None, event: Placing) -> tuple[Session, Changes]:
    """Takes down where a request stands; the change of the record, if it is recorded."""
    entry = session.requests[id]
    if event.place is None or entry.method in NOT_CONTINUED:
        return session, {}
    entry = replace(entry, backend=event.backend, place=event.place)
    session = replace(session, requests={**session.requests, id: entry})
    return session, {request_key(id): of_request(entry, stream)} if stream is not None else {}


def placed(session: Session, event: ev.CallPlaced) -> streams.Step:
    """The backend has told a place, and nothing else."""
    id = session.calls.get(event.call)
    if id is None:
        return session, []
    stream = session.posts[session.requests[id].post].stream
    session, moved = take(session, id, stream, event)
    return streams.note(session, stream, moved) if stream is not None else (session, [])
