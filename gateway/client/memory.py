"""To a server in this process."""

import logging
from typing import Final

import trio

from actors.ports import Headers
from actors.protocol.messages import RequestId
from actors.protocol.table import Limits
from actors.runtime.boundary import boundary
from gateway.client.errors import ConnectionLostError, not_resumable
from gateway.client.inbox import Inbox
from gateway.client.transport import Received
from gateway.wire.inproc import NativeServer

ENDED: Final = "the server has ended the session"
FLOODED: Final = "more came from the server than was taken"

_LOG: Final = logging.getLogger("stagedoor.client")


class MemoryTransport:
    """One session with a server. It ends with the nursery."""

    session_id = None
    last_event_id = None

    def __init__(self, server: NativeServer, nursery: trio.Nursery, *, message_bytes: int = Limits().message_bytes):
        self._inbox = Inbox()
        self._flooded = False
        self._session = server.connect(self._said, self._crashed, message_bytes)
        nursery.start_soon(self._run)

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        await trio.lowlevel.checkpoint()
        if not self._session.receive(message):
            raise ConnectionLostError("the server takes no more messages", executed="no")

    async def receive(self) -> Received:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            raise ConnectionLostError(FLOODED if self._flooded else ENDED) from None

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._session.close()

    async def resume_from(self, event_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise not_resumable("a session in memory")

    def _said(self, frame: bytes, related: RequestId | None) -> None:
        self._inbox.put(frame)
        if self._inbox.overflows:
            self._flooded = True
            self._inbox.close()
            self._session.close()

    async def _run(self) -> None:
        outcome = await boundary(self._session.run)
        if outcome.error is not None:
            _LOG.error("a session in memory crashed", exc_info=outcome.error)
        self._inbox.close()

    @staticmethod
    def _crashed(method: str, error: BaseException) -> None:
        _LOG.error("a handler crashed in %s", method, exc_info=error)
