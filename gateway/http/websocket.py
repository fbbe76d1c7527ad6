"""WebSocket on one connection: stands where WholeStream does for a request, and speaks ASGI's websocket to the app.

The framing is wsproto's, under hypercorn's handshake; compression is never agreed on (it would cost each connection
hundreds of KiB). What the peer does wrong ends its connection with a close code that says so: 1002 what is no
WebSocket, 1003 binary, 1007 no UTF-8, 1008 floods and messages without end, 1009 what is too large; 1013 is for what
there is no room for now. Beside ASGI's messages the app may send `websocket.ping`, and receives `websocket.woken` after
`wake`; the scope has this object as `socket`. With `websocket.accept` the app says in which `room` messages wait.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import trio
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.ws_stream import Handshake
from hypercorn.typing import AppWrapper
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from actors.runtime.places import Place, Turns
from gateway.http.bodies import NoRoomError, Room, Share
from gateway.http.requests import Requests
from gateway.wire.http1_server import Head, encode_head

if TYPE_CHECKING:
    from gateway.http.http1 import Http1Protocol

FRAMES: Final = 5_000
"""Frames a second; what comes faster is read slower."""
CONTROLS: Final = 20
"""Pings and pongs a second, over any time but the first few seconds: more are a flood."""
BURST: Final = 10
"""So many seconds' worth may come at once."""
PATIENCE: Final = 60.0
"""Seconds from the first piece of a message to the last."""
AHEAD: Final = 2
"""Messages that are read before the app takes one."""
REASON: Final = 120
"""Characters of the reason of a close; a close frame has room for 123 bytes."""


def upgrades(head: Head) -> bool:
    """Whether this request asks for a WebSocket where there is one; elsewhere the offer is passed over."""
    return (
        head.method == "GET"
        and head.target.startswith(b"/ws")
        and any(name == b"upgrade" and b"websocket" in value.lower() for name, value in head.headers)
    )


class Budget:
    """So many things a second, `BURST` seconds' worth at once."""

    __slots__ = ("_left", "_rate", "_since")

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._left = float(rate * BURST)
        self._since = trio.current_time()

    def spend(self) -> float:
        """One more; the seconds for which there is nothing left."""
        now = trio.current_time()
        self._left = min(self._left + (now - self._since) * self._rate, self._rate * BURST) - 1
        self._since = now
        return max(0.0, -self._left / self._rate)


class WebSocketStream:
    """One connection that has asked for a WebSocket, from then on. `heard`: when the peer last said anything."""

    def __init__(self, protocol: "Http1Protocol", head: Head, message_bytes: int) -> None:
        self._protocol = protocol
        self._head = head
        self._message_bytes = message_bytes
        self._handshake = Handshake(head.headers, head.version)
        self._handshake.extensions = None
        self._frames: Connection | None = None
        self._share = Share(Room(0))
        self._parts: list[str] = []
        self._size = 0
        self._waiting = 0
        """Bytes of messages that the app has not received."""
        self._begun_at = 0.0
        self._texts: list[tuple[str, int]] = []
        """Messages that the app has not received, and their bytes."""
        self._app, self._room_for_more = Place(), Place()
        self._ready: Callable[[], object] | None = None
        self._woken = False
        self._writing = Turns()
        self._pong: Ping | None = None
        self._budget, self._controls = Budget(FRAMES), Budget(CONTROLS)
        self._rejecting = False
        self.heard = trio.current_time()
        self.closed = False

    def start(self, app: AppWrapper, requests: Requests) -> None:
        """Has the app look at it."""
        head, protocol = self._head, self._protocol
        path, _, query = head.target.partition(b"?")
        scope: Any = {
            "type": "websocket",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "http_version": head.version,
            "scheme": "wss" if protocol.ssl else "ws",
            "method": head.method,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": protocol.client,
            "server": protocol.server,
            "subprotocols": self._handshake.subprotocols or [],
            "valid": self._handshake.upgrade is not None and self._handshake.is_valid(),
            "socket": self,
            "extensions": {"websocket.http.response": {}},
        }
        inbox: Any = self
        requests.run(app, scope, inbox, self.send)

    async def receive(self) -> Mapping[str, Any]:
        """What the app receives."""
        while not self._texts:
            if self.closed:
                return {"type": "websocket.disconnect", "code": 1006}
            if self._woken:
                self._woken = False
                return {"type": "websocket.woken"}
            await self._app.wait()
        text, size = self._texts.pop(0)
        self._room_for_more.wake()
        self._waiting -= size
        self._hold()
        return {"type": "websocket.receive", "text": text}

    @property
    def waiting(self) -> bool:
        """Whether the app has something to receive."""
        return bool(self._texts) or self.closed or self._woken

    def listen(self, ready: Callable[[], object]) -> None:
        """Has it called whenever there is something to receive, and the app does not wait for that."""
        self._ready = ready

    def wake(self) -> None:
        """Has the app look up."""
        self._woken = True
        self._tell()

    def _tell(self) -> None:
        if not self._app.wake() and self._ready is not None:
            self._ready()

    def _hold(self) -> None:
        """Raises NoRoomError."""
        self._share.hold(0 if self.closed else self._waiting + self._size)

    # From the peer

    async def feed(self, data: bytes) -> None:
        """What came from it. Waits as long as the app takes no more, or it came too fast."""
        now = self.heard = trio.current_time()
        if self._frames is None:
            await self._fail(CloseReason.PROTOCOL_ERROR, "nothing may be sent before the handshake is answered")
            return
        if self._parts and now - self._begun_at > PATIENCE:
            await self._fail(CloseReason.POLICY_VIOLATION, f"a message that is not whole after {PATIENCE:g} s")
            return
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                await self._take(event)
                if self.closed:
                    return
        except RemoteProtocolError as error:
            code = getattr(error.event_hint, "code", None) or CloseReason.PROTOCOL_ERROR
            await self._fail(CloseReason(code), str(error))

    async def _take(self, event: Any) -> None:
        wait = self._budget.spend()
        if wait:
            await trio.sleep(wait)
        if isinstance(event, TextMessage):
            await self._text(event)
        elif isinstance(event, BytesMessage):
            await self._fail(CloseReason.UNSUPPORTED_DATA, "messages are text")
        elif isinstance(event, CloseConnection):
            await self._answer(event.response())
            self.end()
        elif self._controls.spend():
            await self._fail(CloseReason.POLICY_VIOLATION, "too many pings")
        elif isinstance(event, Ping):
            self._pong = event
            if not self._writing.taken:  # else whoever writes says it then
                await self._answer(None)

    async def _text(self, event: "Message[str]") -> None:
        if not self._parts:
            self._begun_at = trio.current_time()
        self._parts.append(event.data)
        self._size += len(event.data) if event.data.isascii() else len(event.data.encode())
        if self._size > self._message_bytes:
            await self._fail(CloseReason.MESSAGE_TOO_BIG, f"a message has at most {self._message_bytes} bytes")
            return
        try:
            self._hold()
        except NoRoomError:
            await self._fail(CloseReason.TRY_AGAIN_LATER, "no room for a message of this size, try again")
            return
        if event.message_finished:
            self._texts.append(("".join(self._parts), self._size))
            self._parts, self._waiting, self._size = [], self._waiting + self._size, 0
            self._tell()
            while len(self._texts) > AHEAD and not self.closed:
                await self._room_for_more.wait()
        elif len(self._parts) > self._message_bytes // 64:
            await self._fail(CloseReason.POLICY_VIOLATION, "a message in fragments without end")

    async def _fail(self, code: CloseReason, reason: str) -> None:
        """Ends the connection for what the peer did."""
        if self._frames is not None:
            await self._answer(CloseConnection(int(code), reason[:REASON]))
        self.end()
        await self._protocol.wire.finish()

    def end(self) -> None:
        """Nothing more is passed on."""
        self.closed = True
        self._tell()
        self._room_for_more.wake()
        self._share.hold(0)

    async def handle(self, _closed: StreamEvent) -> None:
        """The connection has ended."""
        self.end()

    # From the app

    async def send(self, message: Mapping[str, Any] | None) -> None:
        """What the app says; None when it has returned."""
        if message is None:
            await self._app_returned()
        elif self.closed:
            return
        elif message["type"] == "websocket.send":
            await self._answer(TextMessage(message["text"]))
        elif message["type"] == "websocket.ping":
            await self._answer(Ping())
        elif message["type"] == "websocket.accept":
            self._share = Share(message["room"])
            status, headers, self._frames = self._handshake.accept(message.get("subprotocol"), message["headers"])
            self._forget_handshake()
            await self._protocol.wire.write(encode_head(status, headers))
        elif message["type"] == "websocket.close":
            await self._answer(CloseConnection(message["code"], message.get("reason")))
        elif message["type"] == "websocket.http.response.start":
            self._rejecting = True
            self._protocol.begin_response(message["status"], [*message["headers"], (b"connection", b"close")])
        else:
            await self._protocol.send_body(message["body"], last=True)

    def _forget_handshake(self) -> None:
        """It is answered. What it said the app has seen, and may hold on to the scope for hours."""
        self._head.headers.clear()
        self._protocol.upgraded()
        del self._head, self._handshake

    async def _app_returned(self) -> None:
        if self._frames is None and not self._rejecting and not self.closed:
            self._protocol.begin_response(500, [(b"content-length", b"0"), (b"connection", b"close")])
            await self._protocol.send_body(b"", last=True)
        elif self._frames is not None and not self.closed:
            await self._answer(CloseConnection(int(CloseReason.INTERNAL_ERROR)))
        self.end()
        await self._protocol.wire.finish()

    async def _answer(self, event: Any) -> None:
        """Writes a frame; None: the pong that is owed."""
        assert self._frames is not None
        async with self._writing:
            while event is not None or self._pong is not None:
                if event is None:
                    assert self._pong is not None
                    event, self._pong = self._pong.response(), None
                try:
                    data = self._frames.send(event)
                except LocalProtocolError:  # a close was said already
                    return
                await self._protocol.wire.write(data)
                event = None
