"""The WebSocket transport against servers on real sockets, good and hostile: these speak in raw frames."""

import base64
import hashlib
import json
import socket
import struct
from contextlib import suppress
from functools import partial

import pytest
import trio

from actors.ports import FrameAccepted, FrameReceived, TransportClosed
from actors.protocol.table import BackendSpec, WebSocketTarget
from gateway.backends.http_call import HttpLimits
from gateway.backends.http_connector import HttpConnector
from gateway.backends.websocket import WebSocketTransport
from gateway.wire import websocket
from gateway.wire.websocket import WebSocketLimits
from tests.support.patience import PATIENCE

LIMITS = WebSocketLimits(message_bytes=2000, opening=5, close=0.2)
NOTE = b'{"jsonrpc":"2.0","method":"notifications/x"}'
TEXT, BINARY, CLOSE, PING, PONG, CONTINUED = 1, 2, 8, 9, 10, 0


def call(id: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call"}).encode()


def frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """As a server sends it, unmasked."""
    size = len(data)
    if size < 126:
        length = bytes([size])
    else:
        length = b"\x7e" + struct.pack(">H", size) if size < 1 << 16 else b"\x7f" + struct.pack(">Q", size)
    return bytes([opcode | (0x80 if last else 0)]) + length + data


class Peer:
    """One accepted connection."""

    def __init__(self, stream) -> None:
        self.stream = stream
        self.head = b""
        self._rest = b""

    async def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            chunk = await self.stream.receive_some(65536)
            if not chunk:
                raise trio.BrokenResourceError
            self._rest += chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def take_head(self) -> None:
        while not self.head.endswith(b"\r\n\r\n"):
            self.head += await self.read(1)

    async def upgrade(self, *lines: str) -> None:
        """Reads the request and agrees, with these further header lines."""
        await self.take_head()
        [key] = [line[19:] for line in self.head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: ")]
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
        own = [f"Sec-WebSocket-Accept: {accept}", *(lines or ("Sec-WebSocket-Protocol: mcp",))]
        text = "\r\n".join(["HTTP/1.1 101 X", "Upgrade: websocket", "Connection: Upgrade", *own])
        await self.say(f"{text}\r\n\r\n".encode())

    async def say(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def frame(self) -> tuple[int, bytes]:
        """The next frame of the client, unmasked."""
        first, second = await self.read(2)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(await self.read(2 if size == 126 else 8), "big")
        mask = await self.read(4)
        data = await self.read(size)
        return first & 0x0F, bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))


@pytest.fixture
async def connect(nursery, events, log):
    """Starts a server of this handler, and a transport to it."""
    connector = HttpConnector(log, nursery)

    async def start(handle, *, limits=LIMITS, target=None, slots=1, credentials=None):
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def serve(stream) -> None:
            with suppress(trio.BrokenResourceError):
                await handle(Peer(stream))

        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        headers = (("Authorization", "Bearer secret"), ("Sec-WebSocket-Protocol", "other"), ("Host", "h"))
        target = target or WebSocketTarget(f"ws://127.0.0.1:{port}/a?b=c", headers)
        transport = WebSocketTransport(
            "demo",
            target,
            events,
            slots=trio.CapacityLimiter(slots),
            log=log,
            limits=HttpLimits(flush=0.2),
            socket_limits=limits,
            credentials=credentials,
        )
        nursery.start_soon(transport.run)
        return transport

    with trio.fail_after(PATIENCE):
        yield start
    connector.close()


# As it should be


async def test_messages_are_text_messages_both_ways(connect, events):
    peers = []

    async def handle(peer):
        peers.append(peer)
        await peer.upgrade()
        assert await peer.frame() == (TEXT, call(1))
        assert await peer.frame() == (TEXT, NOTE)
        await peer.say(frame(TEXT, b'{"a"', last=False) + frame(PING, b"p") + frame(CONTINUED, ':"ü"}'.encode()))
        assert await peer.frame() == (PONG, b"p")
        assert await peer.frame() == (CLOSE, struct.pack(">H", 1000))
        await peer.say(frame(CLOSE, struct.pack(">H", 1000)))

    transport = await connect(handle)
    transport.send(call(1), id=1)
    transport.send(NOTE, tag=3)
    assert await events.next() == FrameAccepted(3)
    assert await events.next() == FrameReceived('{"a":"ü"}'.encode())
    transport.close()
    assert await events.next() == TransportClosed("closed", "demo was closed")
    [peer] = peers
    lines = {line.lower() for line in peer.head.decode().split("\r\n")}
    assert "get /a?b=c http/1.1" in lines
    assert {"sec-websocket-protocol: mcp", "authorization: bearer secret"} <= lines
    assert not {"sec-websocket-protocol: other", "host: h"} & lines
    assert not any(line.startswith("sec-websocket-extensions") for line in lines), "nothing is compressed"
    assert (transport.kind, transport.kept) == ("ws", None)


async def test_a_server_may_say_nothing_of_the_subprotocol(connect, events):
    async def handle(peer):
        await peer.upgrade("X-Other: 1")
        await peer.say(frame(TEXT, NOTE))
        await trio.sleep_forever()

    await connect(handle)
    assert await events.next() == FrameReceived(NOTE)


async def test_it_is_at_ws_on_a_unix_domain_socket(connect, events, nursery, tmp_path):
    heads = []

    async def serve(stream):
        peer = Peer(stream)
        await peer.upgrade()
        heads.append(peer.head)
        await peer.say(frame(TEXT, NOTE))
        await trio.sleep_forever()

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock.dup()))
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        await connect(serve, target=WebSocketTarget(f"unix:{tmp_path}/s"))
        assert await events.next() == FrameReceived(NOTE)
    assert b"GET /ws HTTP/1.1\r\nHost: localhost\r\n" in heads[0]


# Servers that refuse, or are none


async def says(text: str, peer) -> None:
    await peer.take_head()
    await peer.say(text.encode())
    await trio.sleep(0.1)


@pytest.mark.parametrize("status", [302, 401, 404, 500])
async def test_a_refusal_is_told_with_its_status_and_nothing_was_executed(connect, events, status):
    text = f"HTTP/1.1 {status} X\r\nLocation: http://example.com/\r\nContent-Length: 2\r\n\r\nno"
    transport = await connect(partial(says, text))
    transport.send(call(1), id=1)
    failed = await events.next()
    assert (failed.id, failed.reason, failed.status, failed.executed) == (1, "http_status", status, "no")
    assert (await events.next()).reason == "http_status"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n",
        "HTTP/1.1 101 X\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\n" + "X: y\r\n" * 100_000 + "\r\n",
    ],
    ids=["end", "garbage", "chunks", "accept", "upgrade", "endless"],
)
async def test_what_is_no_handshake_is_an_error(connect, events, text):
    transport = await connect(partial(says, text))
    transport.send(call(1), id=1)
    failed = await events.next()
    assert (failed.id, failed.executed) == (1, "no")
    assert isinstance(await events.next(), TransportClosed)


@pytest.mark.parametrize("line", ["Sec-WebSocket-Protocol: other", "Sec-WebSocket-Extensions: permessage-deflate"])
async def test_what_was_not_asked_for_is_no_handshake(connect, events, line):
    transport = await connect(lambda peer: peer.upgrade(line))
    transport.send(call(1), id=1)
    assert (await events.next()).executed == "no"


async def test_a_server_that_says_nothing_meets_the_deadline(connect, events):
    transport = await connect(lambda peer: trio.sleep_forever(), limits=WebSocketLimits(opening=0.1))
    transport.send(call(1), id=1)
    failed = await events.next()
    assert (failed.executed, "within 0.1 s" in failed.message) == ("no", True)


async def test_closing_does_not_wait_for_a_handshake(connect, events):
    transport = await connect(lambda peer: trio.sleep_forever())
    await trio.testing.wait_all_tasks_blocked()
    transport.close()
    assert await events.next() == TransportClosed("closed", "demo was closed")


async def test_there_are_so_many_connections_and_no_more(connect, events, log):
    slots = trio.CapacityLimiter(1)
    slots.acquire_on_behalf_of_nowait(object())
    target = WebSocketTarget("ws://127.0.0.1:1/")
    transport = WebSocketTransport("demo", target, events, slots=slots, log=log, limits=HttpLimits())
    transport.send(call(1), id=1)
    await transport.run()
    assert (await events.next()).reason == "backend_full"
    assert (await events.next()).reason == "backend_full"


async def test_a_url_that_is_none_is_told_by_whoever_asks_over_it(nursery, events, log):
    connector = HttpConnector(log, nursery)
    transport = connector.connect(BackendSpec("demo", WebSocketTarget("ws:///")), events)
    transport.send(call(1), id=1)
    assert (await events.next()).reason == "config"
    connector.close()


# Hostile servers


async def then(data: bytes, peer: Peer) -> None:
    """Agrees, reads one message, and says this."""
    await peer.upgrade()
    await peer.frame()
    await peer.say(data)
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(BINARY, NOTE), "socket_closed"),
        (frame(TEXT, b"x" * 2001), "too_large"),
        (frame(TEXT, "ü".encode() * 1500), "too_large"),
        (frame(TEXT, b"x" * 1500, last=False) + frame(CONTINUED, b"x" * 1500, last=False), "too_large"),
        (frame(TEXT, b"", last=False) + frame(CONTINUED, b"", last=False) * 10_000, "too_large"),
        (frame(PING, b"x" * 100) * 100, "too_large"),
        (frame(TEXT, b"\xff\xfe"), "socket_closed"),
        (b"\xff\xff\xff\xff", "socket_closed"),
        (frame(CONTINUED, b"x"), "socket_closed"),
        (b"\xc1\x02{}", "socket_closed"),
        (frame(CLOSE, struct.pack(">H", 4000) + b"at 10.0.0.1"), "socket_closed"),
        (frame(CLOSE) + frame(PING) * 10, "socket_closed"),
    ],
    ids=[
        *("binary", "large", "large in bytes", "fragments", "empty fragments", "pings", "not UTF-8", "garbage"),
        *("no beginning", "compressed", "close", "ping after close"),
    ],
)
async def test_a_server_that_breaks_the_rules_loses_its_connection(connect, events, monkeypatch, data, reason):
    monkeypatch.setattr(websocket, "BESIDES", 2000)
    transport = await connect(partial(then, data))
    transport.send(call(1), id=1)
    closed = await events.next()
    assert isinstance(closed, TransportClosed), "what was sent may have been executed: the end tells"
    assert closed.reason == reason
    assert "10.0.0.1" not in closed.message


async def test_what_was_not_written_to_a_server_that_never_reads_was_not_executed(connect, events):
    async def handle(peer):
        await peer.upgrade()
        await trio.sleep_forever()

    transport = await connect(handle, limits=WebSocketLimits(write=0.2, close=0.1))
    large = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * 16_000_000}).encode()
    transport.send(large, id=1)
    while "1 to write" in repr(transport):
        await trio.sleep(0.01)
    transport.send(call(2), id=2)
    failed = await events.next()
    assert (failed.id, failed.executed) == (2, "no")
    closed = await events.next()
    assert (closed.reason, "did not read" in closed.message) == ("connection_lost", True)


async def test_a_server_that_is_gone_without_a_word_is_noticed(connect, events):
    async def handle(peer):
        await peer.upgrade()
        await trio.sleep_forever()

    await connect(handle, limits=WebSocketLimits(ping=0.05, pong=0.1, close=0.1))
    closed = await events.next()
    assert (closed.reason, "did not answer a ping" in closed.message) == ("connection_lost", True)


async def test_one_that_answers_pings_stays(connect, events):
    done = trio.Event()

    async def handle(peer):
        await peer.upgrade()
        for _ in range(3):
            opcode, data = await peer.frame()
            assert opcode == PING
            await peer.say(frame(PONG, data))
        done.set()
        await trio.sleep_forever()

    await connect(handle, limits=WebSocketLimits(ping=0.02, pong=5))
    await done.wait()
    assert not events.all


async def test_a_talkative_server_leaves_others_their_turns(connect, events):
    async def handle(peer):
        await peer.upgrade()
        await peer.say(frame(TEXT, NOTE) * 2000)
        await trio.sleep_forever()

    await connect(handle)
    assert await events.longest_run(2000) <= 64


# Accounts


class Account:
    """Of a user: `lost` says that it is another one."""

    def bound(self, lost):
        self.lost = lost
        return lambda: None

    async def prepare(self):
        self.lost()  # what is found before anything is sent is nothing to the connection

    def lines(self):
        return b"Authorization: Bearer his\r\n"


@pytest.mark.parametrize("changes", [False, True])
async def test_an_account_that_is_taken_back_during_the_handshake_is_not_gone_on_with(connect, events, changes):
    account = Account()

    async def handle(peer):
        await peer.take_head()
        if changes:
            account.lost()
        await peer.upgrade()
        await peer.say(frame(TEXT, NOTE))
        await peer.frame()

    await connect(handle, credentials=account)
    if changes:
        assert (await events.next()).reason == "not_connected"
    else:
        assert await events.next() == FrameReceived(NOTE)
