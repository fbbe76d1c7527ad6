"""To a server in this process."""

import logging
from typing import Final

import trio

from actors.ports import Headers
from actors.protocol.messages import RequestId
from actors.protocol.table import Limits
from actors.runtime.boundary import boundary
from gateway.client.errors import ConnectionLostError, not_resumable
from gateway.client.transport import Received
from gateway.wire.inproc import NativeServer

ENDED: Final = "the server has ended the session"

_LOG: Final = logging.getLogger("stagedoor.client")


class MemoryTransport:
    """One session with a server. It ends with the nursery."""

    session_id = None
    last_event_id = None

    def __init__(self, server: NativeServer, nursery: trio.Nursery, *, message_bytes: int = Limits().message_bytes):
        self._sender, self._inbox = trio.open_memory_channel[Received](1_000_000)
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
            raise ConnectionLostError(ENDED) from None

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._session.close()

    async def resume_from(self, event_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise not_resumable("a session in memory")

    def _said(self, frame: bytes, related: RequestId | None) -> None:
        try:
            self._sender.send_nowait(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.WouldBlock):
            self._session.close()

    async def _run(self) -> None:
        outcome = await boundary(self._session.run)
        if outcome.error is not None:
            _LOG.error("a session in memory crashed", exc_info=outcome.error)
        self._sender.close()

    @staticmethod
    def _crashed(method: str, error: BaseException) -> None:
        _LOG.error("a handler crashed in %s", method, exc_info=error)
