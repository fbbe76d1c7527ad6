"""WebSocket on real sockets: what is checked before it is one, what passes, and what misbehaving peers get."""

import json
import struct

import pytest
import trio
import trio.testing
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from actors.duplex import Duplex
from actors.ports import Answer, Post
from actors.protocol.table import Limits
from gateway.http import websocket
from gateway.http.authorization import Authorization
from gateway.http.security import Security
from tests.support.harness import open_gateway
from tests.support.patience import PATIENCE
from tests.support.ws_client import WebSocket, handshake

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.fixture
def echo(door):
    """Every request is answered with its params as the result; `initialize` opens the session "s"."""

    async def answer(asked):
        if not isinstance(asked, Post):
            return Answer(405)
        message = json.loads(asked.body)
        headers = (("mcp-session-id", "s"),) if message.get("method") == "initialize" else ()
        if "id" not in message or "method" not in message:
            return Answer(202)
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": message.get("params")})
        return Answer(200, body.encode(), headers)

    door.answer = answer
    return door


@pytest.fixture
def app(echo, make_app):
    limits = Limits(message_bytes=100_000)
    return make_app(converse=Duplex(echo, limits), limits=limits)


async def open_ws(server, path="/ws", **headers) -> WebSocket:
    return await WebSocket.connect(await server.connect(), path, **headers)


async def alive(server) -> bool:
    return (await server.ask(HEALTH)).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_messages_pass_both_ways_under_the_subprotocol(app, echo, running):
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        assert b"sec-websocket-protocol: mcp" in ws.head.lower()
        assert (await ws.ask(1, "initialize", a=1))["result"] == {"a": 1}
        text = "ä€😀" * 1_000
        assert (await ws.ask("x", "tools/call", text=text))["result"] == {"text": text}
        posts = [asked for asked in echo.asked if isinstance(asked, Post)]
        assert [asked.headers.get("mcp-session-id") for asked in posts] == [None, "s"]
        assert not any(asked.mirrored for asked in posts)
    assert type(echo.asked[-1]).__name__ == "Delete"
    assert echo.gone == [posts[0].headers["stagedoor-affinity"]]
    assert server.log.events == []


async def test_a_name_leads_to_its_endpoint(app, echo, running):
    async with running(app, message=100_000) as server:
        await (await open_ws(server, "/ws/files")).ask(1, "initialize")
    assert echo.asked[0].endpoint == "files"


REFUSED = {
    "a foreign Origin": ({"origin": "https://evil.example"}, "/ws", 403),
    "an Origin that is null": ({"origin": "null"}, "/ws", 403),
    "another subprotocol": ({"sec-websocket-protocol": "graphql-ws"}, "/ws", 400),
    "an unknown endpoint": ({}, "/ws/nobody", 404),
    "another version": ({"sec-websocket-version": "8"}, "/ws", 426),
}


@pytest.mark.parametrize(("headers", "path", "status"), REFUSED.values(), ids=REFUSED)
async def test_what_is_refused_is_refused_before_it_is_a_websocket(app, echo, running, headers, path, status):
    async with running(app, message=100_000) as server:
        answer = await server.ask(handshake(path, **headers))
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert b'"error"' in answer
        assert await alive(server)
    assert echo.asked == []


async def test_a_foreign_host_and_a_missing_token_are_refused(echo, make_app, running):
    security = Security("127.0.0.1", tokens={"ann": "secret"})
    app = make_app(converse=Duplex(echo, Limits()), security=security)
    async with running(app, message=100_000) as server:
        foreign = handshake().replace(b"localhost", b"evil.example")
        assert (await server.ask(foreign)).startswith(b"HTTP/1.1 403 ")
        refused = await server.ask(handshake())
        assert refused.startswith(b"HTTP/1.1 401 ")
        assert b"www-authenticate: Bearer" in refused
        ws = await open_ws(server, authorization="Bearer secret")
        await ws.ask(1, "initialize")
    assert echo.asked[0].principal.name == "ann"


async def test_when_another_configuration_is_in_force_the_token_of_the_handshake_is_looked_at_again(
    echo, make_app, running
):
    security = Security("127.0.0.1", tokens={"ann": "secret"})
    app = make_app(converse=Duplex(echo, Limits()), security=security)
    async with running(app, message=100_000) as server:
        ws = await open_ws(server, authorization="Bearer secret")
        await ws.ask(1, "initialize")
        app.admit(security, Authorization)
        assert (await ws.ask(2, "tools/call", a=1))["result"] == {"a": 1}
        app.admit(Security("127.0.0.1", tokens={"ann": "another"}), Authorization)
        await ws.say({"jsonrpc": "2.0", "id": 3, "method": "tools/call"})
        assert (await ws.closed())[0] == 1008


async def test_without_an_upgrade_it_says_what_it_is(app, running):
    async with running(app, message=100_000) as server:
        answer = await server.ask(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 426 ")
        assert b"upgrade: websocket" in answer


async def test_a_client_without_a_subprotocol_gets_none(app, running):
    async with running(app, message=100_000) as server:
        ws = await open_ws(server, sec_websocket_protocol="")
        assert b"sec-websocket-protocol" not in ws.head.lower()
        await ws.ask(1, "initialize")


async def test_compression_is_never_agreed_on(app, running):
    async with running(app, message=100_000) as server:
        ws = await open_ws(server, sec_websocket_extensions="permessage-deflate; client_max_window_bits")
        assert b"extensions" not in ws.head.lower()
        await ws.ask(1, "initialize")


def frame(opcode: int, payload: bytes, *, fin: bool = True, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    short = size if size < 126 else 126 if size < 65536 else 127
    more = b"" if size < 126 else struct.pack("!H" if size < 65536 else "!Q", size)
    return bytes((opcode | (0x80 if fin else 0), 0x80 | short)) + more + b"\0\0\0\0" + payload


BAD = {
    "binary": ([frame(2, b"{}")], 1003),
    "no UTF-8": ([frame(1, b"\xff\xfe")], 1007),
    "too large": ([frame(1, b"x" * 200_000)], 1009),
    "too large in bytes, not in characters": ([frame(1, "😀".encode() * 30_000)], 1009),
    "too large, by its own word": ([frame(1, b"x" * 100_001, length=2**40)], 1009),
    "too large in fragments": ([frame(1, b"x" * 60_000, fin=False), frame(0, b"x" * 60_000, fin=False)], 1009),
    "empty fragments without end": ([frame(1, b"x", fin=False), *[frame(0, b"", fin=False)] * 2000], 1008),
    "fragments without end": ([frame(1, b"x", fin=False), *[frame(0, b"x", fin=False)] * 2000], 1008),
    "a continuation of nothing": ([frame(0, b"x")], 1002),
    "an unknown opcode": ([frame(7, b"x")], 1002),
    "a reserved bit": ([b"\xc1" + frame(1, b"x")[1:]], 1002),
    "no mask": ([b"\x81\x02{}"], 1002),
    "a ping that is too large": ([frame(9, b"x" * 126)], 1002),
    "garbage": ([b"\xff\xfe\x00garbage" * 20], 1002),
    "HTTP": ([HEALTH], 1002),
}


@pytest.mark.parametrize(("said", "code"), BAD.values(), ids=BAD)
async def test_what_is_no_message_ends_its_connection_with_the_reason(app, running, said, code):
    async with running(app, message=100_000) as server:
        ws, other = await open_ws(server), await open_ws(server)
        await ws.ask(1, "initialize")
        for data in said:
            await ws.stream.send_all(data)
        assert (await ws.closed())[0] == code
        assert (await other.ask(1, "initialize"))["id"] == 1
        assert await alive(server)
    assert server.log.events == []


async def test_a_message_that_is_never_whole_ends_its_connection_and_leaves_nothing(
    echo, make_app, running, monkeypatch
):
    monkeypatch.setattr(websocket, "PATIENCE", 0.2)
    limits = Limits(keep_alive=0.1)
    app = make_app(converse=Duplex(echo, limits), limits=limits)
    async with running(app) as server:
        ws = await open_ws(server)
        await ws.stream.send_all(frame(1, b"x" * 50_000, fin=False))
        while app.room.held == 0:
            await trio.sleep(0.01)
        data = await ws.stream.receive_some()
        while data == b"\x89\x00":
            await ws.stream.send_all(frame(10, b""))
            data = await ws.stream.receive_some()
        assert data[:4] == b"\x88" + bytes([len(data) - 2]) + struct.pack("!H", 1008)
        assert app.room.held == 0


async def test_messages_wait_within_what_all_may_take(echo, make_app, running):
    limits = Limits(bodies_bytes=150_000)
    app = make_app(converse=Duplex(echo, limits), limits=limits)
    async with running(app) as server:
        ws, other, small = await open_ws(server), await open_ws(server), await open_ws(server)
        await ws.stream.send_all(frame(1, b"x" * 100_000, fin=False))
        while app.room.held == 0:
            await trio.sleep(0.01)
        await other.stream.send_all(frame(1, b"x" * 100_000, fin=False))
        assert (await other.closed())[0] == 1013
        assert (await small.ask(1, "initialize"))["id"] == 1
        await ws.stream.aclose()
        with trio.fail_after(PATIENCE):
            while app.room.held:
                await trio.sleep(0.01)


async def test_an_end_while_messages_wait_is_no_fault(echo, make_app, running):
    duplex = Duplex(echo, Limits())
    app = make_app(converse=duplex)
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        await ws.ask(1, "initialize")
        echo.hang()
        for _ in range(4):  # one is taken, two wait, one is read and has no place; no more, for nobody would read it
            await ws.say({"jsonrpc": "2.0", "method": "notifications/x", "params": {"t": "x" * 50_000}})
        await echo.entered.wait()
        while app.room.held == 0:
            await trio.sleep(0.01)
        echo.answer = None
        duplex.stop()
        assert (await ws.closed())[0] == 1001
    assert server.log.events == []


async def test_what_is_no_json_gets_an_error_and_the_connection_goes_on(door, make_app, running):
    async with open_gateway() as gateway, running(make_app(converse=Duplex(gateway.door, Limits()))) as server:
        ws = await open_ws(server)
        await ws.say("no JSON")
        assert (await ws.next())["error"]["code"] == -32700
        assert (await ws.ask(1, "ping"))["result"] == {}


async def test_pings_are_answered_and_a_flood_of_them_ends_the_connection(app, running):
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        for _ in range(5):
            await ws.send(Ping(b"x"))
        await ws.ask(1, "initialize")
        assert ws.pongs == 5
        for _ in range(20):
            await ws.stream.send_all(frame(9, b"x") * 100)
        assert (await ws.closed())[0] == 1008
        assert await alive(server)


async def test_messages_that_come_too_fast_are_read_slower(app, running, monkeypatch):
    monkeypatch.setattr(websocket, "FRAMES", 100)
    monkeypatch.setattr(websocket, "BURST", 0.01)
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        began = trio.current_time()
        for id in range(30):
            await ws.ask(id, "ping")
        assert trio.current_time() - began > 0.2


async def test_a_peer_that_never_reads_is_cut_and_nobody_else_waits(app, running):
    async with running(app, write=0.5) as server:
        ws, other = await open_ws(server), await open_ws(server)
        await ws.ask(1, "initialize")
        text = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"t": "x" * 90_000}})
        with trio.move_on_after(PATIENCE):
            try:
                for id in range(1000):
                    await ws.send(TextMessage(text.replace('"id": 2', f'"id": {id + 2}')))
                    await other.ask(id, "ping")
            except trio.BrokenResourceError:
                pass
        while server.connections.stalled == 0:
            await trio.sleep(0.05)
        assert (await other.ask("y", "ping"))["id"] == "y"


async def test_a_peer_that_says_nothing_any_more_is_gone(echo, make_app, running):
    limits = Limits(keep_alive=0.1)
    async with running(make_app(converse=Duplex(echo, limits), limits=limits)) as server:
        ws = await open_ws(server)
        await ws.ask(1, "initialize")
        with trio.fail_after(PATIENCE):  # pings are not answered
            while type(echo.asked[-1]).__name__ != "Delete":
                await trio.sleep(0.05)


@pytest.mark.parametrize("how", ["close", "cut"])
async def test_the_session_ends_with_its_connection_and_calls_are_given_up(echo, app, running, how):
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        await ws.ask(1, "initialize")
        echo.hang()
        await ws.say({"jsonrpc": "2.0", "id": 2, "method": "tools/call"})
        while len(echo.asked) < 2:
            await trio.sleep(0.01)

        async def answer(asked):
            return Answer(200)

        echo.answer = answer
        if how == "close":
            await ws.send(CloseConnection(1000))
            assert (await ws.closed())[0] == 1000
        else:
            await ws.stream.aclose()
        with trio.fail_after(PATIENCE):
            await echo.cancelled.wait()
            while type(echo.asked[-1]).__name__ != "Delete":
                await trio.sleep(0.01)


async def test_a_gateway_that_ends_says_so(echo, make_app, running):
    duplex = Duplex(echo, Limits())
    app = make_app(converse=duplex)
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        await ws.ask(1, "initialize")
        duplex.stop()
        server.stop.set()
        assert (await ws.closed())[0] == 1001
        with trio.fail_after(PATIENCE):
            await server.stopped.wait()


async def test_what_is_sent_before_the_handshake_is_answered_is_refused(app, running):
    async with running(app, message=100_000) as server:
        answer = await server.ask(handshake() + frame(1, b"{}"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert await alive(server)


async def test_nor_is_what_comes_while_a_request_before_it_is_answered(app, door, running, read):
    answering = trio.Event()

    async def answer(asked):
        await answering.wait()
        return Answer(200, b"{}")

    door.answer = answer
    headers = "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\nContent-Length: 2"
    before = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{{}}".encode()
    async with running(app, message=100_000) as server:
        stream = await server.connect()
        await stream.send_all(before + handshake())
        await door.entered.wait()
        await stream.send_all(frame(1, b"{}"))
        await trio.testing.wait_all_tasks_blocked()
        answering.set()
        answers = await read.all(stream)
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]
        assert await alive(server)


async def test_bytes_one_by_one_make_the_same_messages(app, running):
    async with running(app, message=100_000) as server:
        ws = await open_ws(server)
        data = ws.frames.send(TextMessage(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})))
        for at in range(len(data)):
            await ws.stream.send_all(data[at : at + 1])
        assert (await ws.next())["id"] == 1
        await ws.stream.send_all(b"".join(ws.frames.send(e) for e in (Ping(b""), BytesMessage(b"x"))))
        assert (await ws.closed())[0] == 1003
