"""Clients that have one channel for everything, over HTTP: a WebSocket as a `Channel`, as far as the app sees it."""

from collections.abc import Callable
from typing import Final, Protocol

import trio

from actors.ports import Answer, Asker, Converse, HungUp, Rights
from actors.protocol.table import Limits
from gateway.http.bodies import Room
from gateway.http.request import Receive, Scope, peer_of
from gateway.http.response import Send, encoded, refusal
from gateway.http.rounds import ROUNDS
from gateway.http.token_life import TokenLife

SUBPROTOCOL: Final = "mcp"
GOING_AWAY: Final = 1001
NOT_ALLOWED: Final = 1008


class Socket(Protocol):
    """What a WebSocket tells beside ASGI."""

    heard: float
    """When the peer last said anything."""

    @property
    def waiting(self) -> bool:
        """Whether there is something to receive."""

    def listen(self, ready: Callable[[], object]) -> None:
        """Has it called whenever there is something to receive, and nobody waits for that."""

    def wake(self) -> None:
        """Whoever receives gets `websocket.woken`."""


def unfit(scope: Scope) -> Answer | None:
    """Why a request for a WebSocket can't be served; None if it can."""
    if not scope["valid"]:
        version = ("Sec-WebSocket-Version", "13")
        return refusal(426, "Upgrade required: this is no handshake of WebSocket 13", ("Upgrade", "websocket"), version)
    if scope["subprotocols"] and SUBPROTOCOL not in scope["subprotocols"]:
        return refusal(400, f"Bad request: the subprotocol is {SUBPROTOCOL}")
    return None


async def send_rejection(send: Send, answer: Answer) -> None:
    """Writes a whole answer in place of the handshake's."""
    headers = [*encoded(answer.headers), (b"content-type", b"application/json")]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})


async def serve_websocket(
    scope: Scope,
    receive: Receive,
    send: Send,
    converse: Converse,
    endpoint: str,
    asker: Asker,
    token_life: TokenLife,
    limits: Limits,
    room: Room,
) -> None:
    """Accepts the handshake, and serves the client until one of both ends it. What it sends takes its place in `room`
    until it is received here."""
    subprotocol = SUBPROTOCOL if scope["subprotocols"] else None
    await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": [], "room": room})
    channel = WebSocketChannel(receive, send, scope["socket"], limits.keep_alive, token_life, peer_of(scope))
    rounds = scope[ROUNDS]
    rounds.add(channel)
    try:
        await converse(channel, endpoint, asker.principal)
    finally:
        rounds.drop(channel)
    if token_life.over:
        await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": "the token is not good any more"})
    else:
        await send({"type": "websocket.close", "code": GOING_AWAY, "reason": "the gateway ends this connection"})


class WebSocketChannel:
    """Implements `Channel`. A peer of which nothing was heard from one ping to the next is gone. All that it says it
    says with the rights of the token that opened the connection, as the configuration in force has them."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        socket: Socket,
        keep_alive: float,
        token_life: TokenLife,
        peer: str = "",
    ) -> None:
        self._token_life = token_life
        self.peer = peer
        self._keep_alive = keep_alive
        self._receive = receive
        self._send = send
        self._socket = socket
        self._pinged: float | None = None

    @property
    def rights(self) -> Rights:
        return self._token_life.rights

    @property
    def waiting(self) -> bool:
        return self._socket.waiting

    def listen(self, ready: Callable[[], object]) -> None:
        self._socket.listen(ready)

    @property
    def patience(self) -> float:
        """As in `Visited`: until the next ping, or the end of the token."""
        return self._token_life.look(self._keep_alive)

    def visit(self) -> None:
        """As in `Visited`."""
        self._socket.wake()

    async def receive(self) -> bytes | None:
        while not self._token_life.over:
            message = await self._receive()
            await self._token_life.others()
            if message["type"] == "websocket.receive":
                return None if self._token_life.over else bytes(message["text"].encode())
            if message["type"] != "websocket.woken":
                raise HungUp
            if self._pinged is None or self._socket.heard >= self._pinged:
                self._pinged = trio.current_time()
                await self._send({"type": "websocket.ping"})
            elif trio.current_time() - self._pinged >= self._keep_alive / 2:  # it was said late if nobody looked up
                raise HungUp
        return None  # what is under way is answered still

    async def send(self, message: bytes) -> None:
        if not self._token_life.withdrawn:
            await self._send({"type": "websocket.send", "text": message.decode()})
