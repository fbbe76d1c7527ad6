"""WebSocket, subprotocol `mcp`: each message is one text message, and the connection is the session."""

from collections.abc import Iterable
from typing import Final

import trio

from actors.ports import Headers
from actors.protocol.table import Limits
from actors.runtime.boundary import boundary
from gateway.client.errors import ConnectionLostError, RequestFailedError, not_resumable
from gateway.client.transport import WAITING, Received
from gateway.wire.errors import WireError
from gateway.wire.http_session import OURS
from gateway.wire.url import SOCKET, parse_url
from gateway.wire.websocket import ON_SOCKET, RefusedError, WebSocket, WebSocketLimits, open_websocket

ON_UNIX: Final = "ws+unix:"
"""Before the path of a Unix domain socket: `unix:` alone is HTTP there."""


class WebSocketTransport:
    """Made by `open_ws`."""

    session_id = None
    last_event_id = None

    def __init__(self, socket: WebSocket, nursery: trio.Nursery) -> None:
        self._socket = socket
        self._outbox, self._to_write = trio.open_memory_channel[bytes](WAITING)
        self._gone: str | None = None
        self._written = trio.Event()
        nursery.start_soon(self._write)
        nursery.start_soon(self._keep_alive)

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        try:
            await self._outbox.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ConnectionLostError(self._gone or "the connection was closed", executed="no") from None

    async def receive(self) -> Received:
        try:
            return await self._socket.receive()
        except WireError as error:
            self._gone = self._gone or str(error)
            self._to_write.close()
            raise ConnectionLostError(self._gone) from None

    async def close(self) -> None:
        """Writes what waits, then closes the WebSocket."""
        self._gone = self._gone or "the connection was closed"
        self._outbox.close()
        with trio.move_on_after(1):
            await self._written.wait()
        await self._socket.close()

    async def resume_from(self, event_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise not_resumable("a WebSocket")

    async def _write(self) -> None:
        """The one writer, so that no message is written in part."""
        try:
            async for message in self._to_write:
                await self._socket.send(message)
        except (WireError, trio.ClosedResourceError) as error:
            self._gone = self._gone or str(error)
            self._to_write.close()
            self._socket.abort()
        finally:
            self._written.set()

    async def _keep_alive(self) -> None:
        outcome = await boundary(self._socket.keep_alive)
        if outcome.error is not None:
            self._gone = self._gone or str(outcome.error)
            self._socket.abort()


async def open_ws(
    url: str,
    nursery: trio.Nursery,
    *,
    headers: Iterable[tuple[str, str]] = (),
    message_bytes: int = Limits().message_bytes,
) -> WebSocketTransport:
    """Connects. RequestFailedError where that can't be, with the HTTP status if there was one."""
    limits = WebSocketLimits(message_bytes=message_bytes)
    address = f"{SOCKET}:{url[len(ON_UNIX) :]}" if url.lower().startswith(ON_UNIX) else url
    own = [(name, value) for name, value in headers if name.lower() not in OURS]
    try:
        socket = await open_websocket(nursery, parse_url(address, ON_SOCKET), own, limits=limits)
    except WireError as error:
        status = error.status if isinstance(error, RefusedError) else None
        raise RequestFailedError(error.detail, reason="connect", executed="no", status=status) from error
    return WebSocketTransport(socket, nursery)
