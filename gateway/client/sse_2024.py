"""HTTP+SSE of 2024-11-05: one stream for all that the server says, and an endpoint that it names for all that it is
told. The session is the stream: where it ends, all ends."""

from collections.abc import Iterable
from typing import Final, Literal

import trio

from actors.ports import FrameReceived, Headers, RequestFailed
from actors.protocol import codec
from actors.protocol.messages import Error, Notification, Request, RequestId, Result
from actors.protocol.sse import SseDecoder, SseEvent, SseTooLargeError
from actors.protocol.table import Limits
from actors.runtime.boundary import boundary
from gateway.client.errors import ConnectionLostError, not_resumable
from gateway.client.inbox import Inbox
from gateway.client.transport import ACCEPT, REFUSAL, Received
from gateway.wire.errors import WireError
from gateway.wire.http1_client import encode_headers
from gateway.wire.http_rules import Kind, as_answer, executed_by, instead, kind_of, read, worded
from gateway.wire.http_session import configured_headers
from gateway.wire.pool import Pool, Response
from gateway.wire.sse_2024 import ON_SOCKET, WITHIN, endpoint_of
from gateway.wire.url import Url, parse_url

ANSWERED: Final = 30.0
"""Seconds in which a request is, once it is answered on the stream."""


class SseTransport:
    """Made by `open_sse`."""

    session_id = None
    last_event_id = None

    def __init__(self, pool: Pool, endpoint: Url, headers: bytes, stream: "_Events", nursery: trio.Nursery) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._headers = headers + encode_headers([("Accept", "*/*"), ("Content-Type", "application/json")])
        self._stream = stream
        self._inbox = Inbox()
        self._nursery = nursery
        self._running: dict[RequestId, trio.CancelScope] = {}
        """The POSTs of requests."""
        self._gone = "the server ended the stream"
        nursery.start_soon(self._read)

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        """A request is posted beside the others: a server may answer the POST only after the call."""
        await trio.lowlevel.checkpoint()
        match codec.decode_message(message):
            case Request(id=id):
                scope = self._running[id] = trio.CancelScope()
                self._nursery.start_soon(self._request, id, message, scope)
            case Notification(method="notifications/cancelled", params=params):
                try:
                    await self._deliver(message)
                finally:
                    self._settled(codec.loads(params).get("requestId"), 0)
            case said:
                status = await self._deliver(message)
                if status >= 400 and isinstance(said, Result):
                    await self._deliver(instead(said, status))

    async def receive(self) -> Received:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            raise ConnectionLostError(self._gone) from None

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._gone = "the connection was closed"
        self._stream.close()
        self._inbox.close()
        self._pool.close()

    async def resume_from(self, event_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise not_resumable("HTTP+SSE")

    async def _request(self, id: RequestId, message: bytes, scope: trio.CancelScope) -> None:
        with scope:
            outcome = await boundary(self._ask, id, message)
            if outcome.error is not None:
                unsent = isinstance(outcome.error, WireError) and not outcome.error.sent
                executed: Literal["no", "unknown"] = "no" if unsent else "unknown"
                self._inbox.put(RequestFailed(id, "broken", str(outcome.error), executed))
        self._running.pop(id, None)

    async def _ask(self, id: RequestId, message: bytes) -> None:
        status, body = await self._post(message)
        if 200 <= status < 300:
            return
        answer = as_answer(body, id)
        if answer is not None:
            self._inbox.put(FrameReceived(answer, id, status=status))
        else:
            why = f"the server answered with HTTP {worded(status)}"
            self._inbox.put(RequestFailed(id, "http_status", why, executed_by(status), status))

    async def _deliver(self, message: bytes) -> int:
        """A message that has no answer. The status of HTTP."""
        try:
            with trio.fail_after(ACCEPT):
                return (await self._post(message))[0]
        except WireError as error:
            raise ConnectionLostError(str(error), executed="unknown" if error.sent else "no") from error
        except trio.TooSlowError as error:
            raise ConnectionLostError("the server did not accept a message in time") from error

    async def _post(self, message: bytes) -> tuple[int, bytes]:
        with await self._pool.request("POST", self._endpoint, self._headers, message) as response:
            return response.status, await response.read(REFUSAL)

    def _settled(self, id: object, within: float) -> None:
        """Nobody waits for this request: its POST has so many seconds to end."""
        scope = self._running.get(id) if isinstance(id, int | str) else None
        if scope is not None:
            scope.deadline = min(scope.deadline, trio.current_time() + within)

    async def _read(self) -> None:
        outcome = await boundary(self._read_events)
        if outcome.error is not None:
            self._gone = f"the stream broke: {outcome.error}"
        self._inbox.close()

    async def _read_events(self) -> None:
        while (event := await self._stream.next()) is not None:
            if event.event == "message" and event.data:
                await self._inbox.room()
                self._inbox.put(event.data)
                if self._running:
                    message = read(event.data)
                    if isinstance(message, Result | Error):
                        self._settled(message.id, ANSWERED)


class _Events:
    """The events of a response, one by one."""

    def __init__(self, response: Response, limit: int) -> None:
        self._response = response
        self._decoder = SseDecoder(limit)
        self._left: list[SseEvent] = []

    async def next(self) -> SseEvent | None:
        """None at the end. Raises WireError, SseTooLargeError."""
        while not self._left:
            chunk = await self._response.receive_some()
            if not chunk:
                return None
            self._left = self._decoder.feed(chunk)
        return self._left.pop(0)

    def close(self) -> None:
        self._response.close()


async def open_sse(
    url: str,
    nursery: trio.Nursery,
    *,
    headers: Iterable[tuple[str, str]] = (),
    message_bytes: int = Limits().message_bytes,
) -> SseTransport:
    """Opens the stream, and waits for the endpoint. ConnectionLostError where there is none."""
    base, pool, configured = parse_url(url, ON_SOCKET), Pool(), configured_headers(headers)
    stream: _Events | None = None
    opened = False
    try:
        with trio.fail_after(WITHIN):
            accept = encode_headers([("Accept", "text/event-stream")])
            response = await pool.request("GET", base, configured + accept)
            stream = _Events(response, 2 * message_bytes)
            events = kind_of(response.status, response.header(b"content-type")) is Kind.EVENTS
            first = await stream.next() if events else None
        if first is None or first.event != "endpoint":
            raise ConnectionLostError("the server names no endpoint for messages", executed="no")
        transport = SseTransport(pool, endpoint_of(base, first.data), configured, stream, nursery)
        opened = True
    except (WireError, SseTooLargeError, ValueError) as error:
        raise ConnectionLostError(f"the server names no endpoint for messages: {error}", executed="no") from error
    except trio.TooSlowError:
        raise ConnectionLostError("the server names no endpoint for messages in time", executed="no") from None
    finally:
        if not opened:
            if stream is not None:
                stream.close()
            pool.close()
    return transport
