"""What a session that lives does about what the store has lost of it, once its record there can be compared with what
it should say."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.session import streams
from actors.machines.session.rebuild import RecordLike
from actors.machines.session.record import Fields, read_request, read_server_request, request_id, request_key
from actors.machines.session.state import Session, Stream
from actors.protocol import codec, errors
from actors.protocol.messages import RequestId

Table: TypeAlias = Mapping[str, bytes]


def cut_off(session: Session, found: RecordLike, ending: Collection[str]) -> list[str]:
    """The streams that are over here, and not in the store: it has lost their end."""
    unfinished = (name for name, head in found.streams.items() if not head.finished)
    return [name for name in unfinished if name not in session.streams and name not in ending]


def reconcile(
    session: Session, found: RecordLike, requests: Table, asked: Table, ending: Collection[str]
) -> streams.Step:
    """The record is as `found`, and the session has a new epoch since; of requests and server requests it should say
    this. The last events of the streams `ending` are on their way.

    A stream that is cut off gets errors in place of its answers. What else the record says that is not so any more
    would come back in the session's next life: a request answered twice, or the rest of an answer fetched from too
    early a place.
    """
    effects: fx.Effects = []
    for name in cut_off(session, found, ending):
        head = found.streams[name]
        unanswered = [request_id(key) for key, value in found.requests.items() if read_request(value).stream == name]
        stream = Stream(head.seq, opener=head.opener)
        session = replace(session, streams={**session.streams, name: stream})
        session, more = _end(session, name, unanswered)
        effects += more
    for name in session.streams:
        said = _changes(name, found.requests, requests, lambda value: read_request(value).stream)
        open_questions = _changes(name, found.asked, asked, lambda value: read_server_request(value).stream)
        if said or open_questions:
            session, more = streams.note(session, name, said, asked=open_questions)
            effects += more
    return session, effects


def _end(session: Session, name: str, unanswered: list[RequestId]) -> streams.Step:
    """The last events of a stream once more, as far as that can be done."""
    if not unanswered:
        return streams.put(session, name, None, finish=True)
    effects: fx.Effects = []
    for id in unanswered:
        error = errors.internal("the answer was lost by the store", reason="events_lost", executed="unknown")
        last, frame = id is unanswered[-1], codec.encode_error(id, error)
        session, more = streams.put(session, name, frame, finish=last, requests={request_key(id): None})
        effects += more
    return session, effects


def _changes(name: str, found: Table, right: Table, stream_of: Callable[[bytes], str]) -> Fields:
    """What makes the one table the other, of the entries of one stream."""
    changed: Fields = {key: None for key, value in found.items() if key not in right and stream_of(value) == name}
    changed |= {key: value for key, value in right.items() if found.get(key) != value and stream_of(value) == name}
    return changed
