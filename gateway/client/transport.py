"""What carries the messages of one client to one server and back; users may bring their own."""

from typing import Final, Protocol, TypeAlias

from actors.ports import FrameReceived, Headers, RequestFailed, SessionLost

WAITING: Final = 64
"""Messages that wait to be written; who has a further one waits."""
ACCEPT: Final = 30.0
"""Seconds in which a POST of a notification or an answer is accepted."""
REFUSAL: Final = 1024 * 1024
"""Bytes of a refusal that are read."""

Received: TypeAlias = bytes | FrameReceived | RequestFailed | SessionLost
"""One message as JSON. Where a transport has more to say than that: a message with the HTTP status that it came with,
that a request will get no answer, that the server has forgotten the session."""


class Transport(Protocol):
    """A connection that is open. Messages are JSON texts in UTF-8, without line breaks."""

    @property
    def session_id(self) -> str | None:
        """What the server calls the session; None where it has no name."""

    @property
    def last_event_id(self) -> str | None:
        """The last event that has come of what belongs to no request; None where events have no names."""

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        """Gives a message on its way. `headers` are what HTTP repeats of it; other transports ignore them. Raises
        ConnectionLostError. Cancelled while it waits, it has sent the whole message or nothing of it."""

    async def receive(self) -> Received:
        """The next message, in order. Raises ConnectionLostError once nothing more can come."""

    async def close(self) -> None:
        """Ends the connection. May be called twice."""

    async def resume_from(self, event_id: str) -> None:
        """Asks for what came after this event, which `receive` then gives. RequestFailedError where that can't be."""
