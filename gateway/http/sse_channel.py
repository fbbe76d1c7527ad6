"""HTTP+SSE of 2024-11-05: one stream on which everything goes out, beginning with the place where to POST."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol
from urllib.parse import quote

from actors.ports import Answer, Asker, Converse, Principal, Rights
from actors.protocol import errors
from actors.protocol.errors import encode_error_body
from actors.protocol.sse import encode_event
from actors.protocol.table import Limits
from actors.runtime.places import Turns
from gateway.http.response import Header, Send, refusal
from gateway.http.rounds import Rounds
from gateway.http.sse_stream import COMMENT, EVENT_STREAM
from gateway.http.token_life import TokenLife

MESSAGES = "/messages"
PARAMETER = "sessionId"


class Messages(Protocol):
    """The messages of one client, as they come; `rights` are those of the last one that was received."""

    rights: Rights

    @property
    def waiting(self) -> bool:
        """Whether there is something to receive."""

    def listen(self, ready: Callable[[], object]) -> None:
        """Has it called whenever there is something to receive, and nobody waits for that."""

    def wake(self) -> None:
        """Whoever receives gets None."""

    async def receive(self) -> bytes | None:
        """The next one."""


class Post(Protocol):
    """Brings messages to the streams that they belong to, in whichever process these are."""

    def opened(
        self, principal: Principal, rights: Rights, endpoint: str
    ) -> AbstractContextManager[tuple[str, Messages]]:
        """A stream, for the time of a block: what names it to its client, and the client's messages."""

    async def say(self, token: str, principal: Principal, body: bytes, rights: Rights, endpoint: str) -> int:
        """A message of a client; an HTTP status."""

    def say_here(self, token: str, principal: Principal, body: bytes, rights: Rights, endpoint: str) -> bool:
        """The same without waiting; False: that has to be asked."""


def said(status: int) -> Answer:
    """The answer to a POST."""
    if status == 404:
        return refusal(404, "Not found: no such session")
    if status == 503:
        return refusal(503, "The session takes no message at the moment, try again", ("Retry-After", "1"))
    if status == 504:
        lost = errors.internal("nobody knows whether the session got the message", executed="unknown")
        return Answer(504, encode_error_body(lost))
    return Answer(status)


async def serve_sse(
    send: Send,
    post: Post,
    converse: Converse,
    endpoint: str,
    asker: Asker,
    token_life: TokenLife,
    limits: Limits,
    extra: tuple[Header, ...],
    rounds: Rounds,
    peer: str = "",
) -> None:
    """Serves the client on this stream, until one of both ends it."""
    await send({"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *extra]})
    with post.opened(asker.principal, asker.rights, endpoint) as (token, messages):
        channel = SseChannel(send, messages, limits.keep_alive, token_life, peer)
        path = f"{MESSAGES}/{quote(endpoint)}" if endpoint else MESSAGES
        await channel.write(encode_event(f"{path}?{PARAMETER}={token}".encode(), event="endpoint"))
        rounds.add(channel)
        try:
            await converse(channel, endpoint, asker.principal)
        finally:
            rounds.drop(channel)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class SseChannel:
    """Implements `Channel`."""

    def __init__(
        self, send: Send, messages: Messages, keep_alive: float, token_life: TokenLife, peer: str = ""
    ) -> None:
        self.peer = peer
        self._token_life = token_life
        self._send = send
        self._messages = messages
        self._keep_alive = keep_alive
        self._writing = Turns()

    @property
    def rights(self) -> Rights:
        """Those of the token of each POST."""
        return self._messages.rights

    @property
    def waiting(self) -> bool:
        return self._messages.waiting

    def listen(self, ready: Callable[[], object]) -> None:
        self._messages.listen(ready)

    @property
    def patience(self) -> float:
        """As in `Visited`: until the next comment, or the end of the token."""
        return self._token_life.look(self._keep_alive)

    def visit(self) -> None:
        """As in `Visited`."""
        self._messages.wake()

    async def receive(self) -> bytes | None:
        while not self._token_life.over:
            message = await self._messages.receive()
            if message is not None:
                self._token_life.renewed(self._messages.rights)
                return message
            await self.write(COMMENT)
        return None  # what is under way is answered still

    async def send(self, message: bytes) -> None:
        if not self._token_life.withdrawn:
            await self.write(encode_event(message, event="message"))

    async def write(self, data: bytes) -> None:
        """Some bytes of the stream."""
        async with self._writing:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
