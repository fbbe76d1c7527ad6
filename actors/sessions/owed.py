"""To whom an actor that ends in the middle of its work owes an answer.

The session's machine may have settled a request while the effect that tells the client was never run, so what counts
here is what was handed over: to the reply of a POST, or to the log of its stream.
"""

from dataclasses import dataclass, field

from actors.ports import Answer
from actors.protocol import codec, errors, sse
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import Error, Message, Request, RequestId, Result


@dataclass(slots=True)
class _Post:
    """`open` are the requests whose outcome is neither said nor on its way into the log; `waits`: its reply is open."""

    batch: bool
    ids: tuple[RequestId, ...]
    open: dict[RequestId, None]
    waits: bool = True


@dataclass(slots=True)
class Owed:
    """By the number of the POST."""

    posts: dict[int, _Post] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)

    def took(self, post: int, messages: tuple[Message, ...], batch: bool) -> None:
        """A POST was taken; one without requests is owed nothing."""
        ids = tuple(m.id for m in messages if isinstance(m, Request))
        if ids:
            self.posts[post] = _Post(batch, ids, dict.fromkeys(ids))

    def opens(self, post: int, stream: str) -> None:
        """Its answers go on this stream, which is being opened."""
        self.streams[stream] = post

    def streamed(self, post: int) -> None:
        """Whoever waited has the stream."""
        owed = self.posts.get(post)
        if owed is not None:
            owed.waits = False
            if not owed.open:
                del self.posts[post]

    def answered(self, post: int) -> None:
        """Whoever waited was told, or is gone."""
        self.posts.pop(post, None)

    def appended(self, stream: str, data: bytes | None, finish: bool) -> None:
        """An event is on its way into the log; `finish`: it is the last."""
        if finish:
            self.ended(stream)
            return
        owed = self.posts.get(self.streams.get(stream, 0))
        if owed is not None and owed.batch and data:
            message = codec.decode_message(data)
            if isinstance(message, Result | Error) and message.id is not None:
                owed.open.pop(message.id, None)

    def ended(self, stream: str) -> None:
        """Nothing more comes on it."""
        post = self.streams.pop(stream, 0)
        owed = self.posts.get(post)
        if owed is not None:
            owed.open.clear()
            if not owed.waits:
                del self.posts[post]

    def answer(self, post: int) -> Answer:
        """The whole answer to a POST that still waits."""
        owed = self.posts.get(post)
        if owed is not None:
            return Answer(200, _body(owed.ids, owed.batch))
        # A notification, or an answer of the client's, may be sent again.
        error = errors.overloaded("the session is being restored")
        return Answer(error.status, errors.encode_error_body(error), error.headers)

    def words(self, post: int) -> bytes:
        """The events for the connection of a POST whose client can't resume, because it never got an id."""
        owed = self.posts.get(post)
        ids = owed.open if owed is not None else ()
        return b"".join(sse.encode_event(codec.encode_error(id, _ended()), None) for id in ids)


def _ended() -> ProtocolError:
    return errors.internal("the session's actor ended", reason="actor_ended", executed="unknown")


def _body(ids: tuple[RequestId, ...], batch: bool) -> bytes:
    frames = [codec.encode_error(id, _ended()) for id in ids]
    return b"[" + b",".join(frames) + b"]" if batch else frames[0]
