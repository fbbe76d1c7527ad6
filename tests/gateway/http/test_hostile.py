"""Peers that misbehave, on real sockets: each gets its answer or its end, and nobody else notices."""

import json
import os
import random
import socket
import struct
from functools import partial

import pytest
import trio
import trio.testing

from actors.ports import Answer, Streaming
from actors.protocol.table import Limits
from gateway.http.config import ServeConfig
from gateway.http.serve import serve
from gateway.http.sockets import open_unix_listener
from tests.gateway.http.conftest import RecordingLog
from tests.support.garbage import uncollected
from tests.support.patience import PATIENCE

ACCEPT = b"Accept: application/json, text/event-stream\r\n"
GET = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + ACCEPT + b"\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST_HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + ACCEPT


def post(body: bytes = b"{}", *, close: bool = False) -> bytes:
    closing = b"Connection: close\r\n" if close else b""
    return POST_HEAD + closing + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def alive(server) -> bool:
    answer = await server.ask(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    return answer.startswith(b"HTTP/1.1 200 OK\r\n")


def reset(stream: trio.SocketStream) -> None:
    """Closes with a RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: %b\r\n\r\n"
WEBSOCKET = (
    b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ODD = {
    "h2c with settings that are not base64": (HEALTH[:-2] + UPGRADE % b"%%%", [200]),
    "h2c with empty settings": (HEALTH[:-2] + UPGRADE % b"", [200]),
    "h2c, then the preface": (HEALTH[:-2] + UPGRADE % b"AAMAAABk" + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [200, 400]),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00", [400]),
    "garbage after an offer of WebSocket": (WEBSOCKET + b"\xff\xfe\x00garbage" * 20, [406, 400]),
    "garbage": (b"\x00\x01\x02\r\n\r\n", [400]),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),
    "two Hosts": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", [400]),
    "a smuggled length": (POST_HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
    "a head that is too large": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000, [431]),
    "a bad chunk": (POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n", [400]),
    "a URL of this host": (HEALTH.replace(b" /", b" http://localhost/"), [200]),
    "a URL of another host": (HEALTH.replace(b" /", b" http://evil/"), [403]),
    "a slash in a name": (GET.replace(b"/mcp", b"/mcp%2Ffiles"), [404]),
    "a slash at the end in disguise": (GET.replace(b"/mcp", b"/mcp%2f"), [404]),
    "a path in bytes": (HEALTH.replace(b"healthz", b"\xc3\xa9"), [400]),
    "good, then garbage": (HEALTH + b"garbage\r\n\r\n", [200, 400]),
}


@pytest.mark.parametrize(("data", "statuses"), ODD.values(), ids=ODD)
async def test_odd_input_gets_an_answer_and_harms_nobody(data, statuses, door, make_app, running):
    async with running(make_app()) as server:
        answer = await server.ask(data)
        assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == statuses
        assert await alive(server)
    assert door.asked == []
    assert server.log.events == []


async def test_a_refusal_says_why(make_app, running):
    async with running(make_app()) as server:
        answer = await server.ask(b"GET /healthz HTTP/1.1\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json\r\n" in head
    assert json.loads(body) == {
        "jsonrpc": "2.0",
        "error": {"code": -32600, "message": "Exactly one Host is required"},
    }


async def test_a_chunk_that_breaks_later_gets_400_and_no_call(door, make_app, running, read):
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await stream.send_all(b"zz\r\n")
        answer = await read.all(stream)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert door.asked == []
    assert server.log.events == []


@pytest.mark.parametrize(
    ("begun", "limit"),
    [(b"GET /healthz HT", {"head": 0.1}), (POST_HEAD + b"Content-Length: 9\r\n\r\n{", {"body": 0.1})],
    ids=["head", "body"],
)
async def test_a_request_that_does_not_get_done_is_timed_out(begun, limit, make_app, running, read):
    async with running(make_app(), linger=0.1, **limit) as server, await server.connect() as stream:
        await stream.send_all(begun)
        answer = await read.all(stream)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert answer.endswith(b'"message":"The request took too long to arrive"}}')
    assert b"connection: close\r\n" in answer


async def test_dripping_header_bytes_do_not_move_the_deadline(make_app, running, read):
    async with running(make_app(), head=0.3, linger=0.1) as server, await server.connect() as stream:
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nX: ")
        answers = []
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.02)

            nursery.start_soon(drip)
            with trio.fail_after(PATIENCE):
                answers.append(await read.until(stream, b"\r\n\r\n"))
            nursery.cancel_scope.cancel()
    assert answers[0].startswith(b"HTTP/1.1 408")


async def test_an_idle_connection_is_closed_without_a_word(make_app, running, read):
    async with running(make_app(), keep_alive=0.1) as server, await server.connect() as stream:
        assert await read.all(stream) == b""
        second = await server.connect()
        await second.send_all(HEALTH)
        answer = await read.all(second)
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_request_that_comes_as_its_connection_is_to_be_closed_is_answered(make_app, running, read, monkeypatch):
    wait_readable = trio.lowlevel.wait_readable
    late = [HEALTH]

    async def overtaken(fd):
        try:
            await wait_readable(fd)
        except trio.Cancelled:
            if late:
                os.write(stream.socket.fileno(), late.pop())
            raise

    monkeypatch.setattr("trio.lowlevel.wait_readable", overtaken)
    async with running(make_app(), keep_alive=0.1) as server, await server.connect() as stream:
        assert (await read.all(stream)).startswith(b"HTTP/1.1 200")
        assert not late


async def test_a_long_call_outlives_every_idle_deadline(door, make_app, running, read):
    release = trio.Event()

    async def answer(_):
        await release.wait()
        return Answer(200, b"1")

    door.answer = answer
    async with running(make_app(), keep_alive=0.05, head=0.05, body=0.05) as server:
        stream = await server.connect()
        await stream.send_all(post())
        await door.entered.wait()
        await trio.sleep(0.2)
        release.set()
        assert (await read.until(stream, b"\r\n\r\n1")).startswith(b"HTTP/1.1 200")


async def fill(door, stream) -> object:
    """Starts a stream and pushes events until the client, which does not read, has stopped it."""
    source = door.stream()
    await stream.send_all(GET)
    await door.entered.wait()
    for _ in range(100):
        source.push(b"data: " + b"x" * 500_000 + b"\n\n")
    return source


async def test_a_client_that_does_not_read_is_cut(door, make_app, running):
    async with running(make_app(), write=0.2) as server:
        stream = await server.connect()
        source = await fill(door, stream)
        await source.closed.wait()
        assert await alive(server)
        assert server.connections.stalled == 1
        assert server.log.names == ["client_stalled"]


async def test_a_client_that_reads_slowly_gets_all_of_it(door, make_app, running):
    """However long that takes: it is cut when it takes nothing."""

    async def answer(_):
        return Answer(200, b"x" * 20_000_000)

    door.answer = answer
    async with running(make_app(), write=2.0) as server:
        stream = await server.connect()
        stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 65536)
        await stream.send_all(post())
        came, began = 0, trio.current_time()
        while came < 20_000_000 and (data := await stream.receive_some()):
            came += len(data)
            await trio.sleep(0.05 if trio.current_time() - began < 4.5 else 0)
        assert came >= 20_000_000
        assert server.log.names == []


async def test_a_client_that_does_not_read_does_not_hold_the_end_of_the_process(door, make_app, running):
    async with running(make_app(), stop=0.3, write=30 * PATIENCE) as server:
        stream = await server.connect()
        source = await fill(door, stream)
        await trio.sleep(0.1)
        assert not source.closed.is_set()
        server.stop.set()
        with trio.fail_after(PATIENCE):
            await server.stopped.wait()
        assert source.closed.is_set()


async def test_a_client_that_goes_away_cancels_its_call(door, make_app, running):
    door.hang()
    async with running(make_app(), half_close=0.05) as server:
        stream = await server.connect()
        await stream.send_all(post())
        await door.entered.wait()
        await stream.aclose()
        await door.cancelled.wait()
        assert await alive(server)
    assert server.log.events == []


async def test_a_reset_during_a_call_cancels_it(door, make_app, running):
    door.hang()
    async with running(make_app(), half_close=60) as server:
        stream = await server.connect()
        await stream.send_all(post())
        await door.entered.wait()
        reset(stream)
        await door.cancelled.wait()
        assert await alive(server)
    assert server.log.events == []


async def test_a_client_that_leaves_its_stream_closes_the_source(door, make_app, running, read):
    source = door.stream(b"data: 1\n\n")
    async with running(make_app(), half_close=0.05) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await read.until(stream, b"data: 1")
        await stream.aclose()
        await source.closed.wait()


async def test_a_half_closed_client_gets_an_answer_that_is_ready_soon(door, make_app, running, read):
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(post() + post())
        await stream.send_eof()
        answer = await read.all(stream)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2


async def test_a_request_cut_by_a_half_close_gets_400(make_app, running, read):
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(POST_HEAD + b"Content-Length: 9\r\n\r\n{")
        await stream.send_eof()
        assert (await read.all(stream)).startswith(b"HTTP/1.1 400")


async def test_pipelined_requests_are_answered_in_order(door, make_app, running, read):
    async def answer(asked):
        await trio.lowlevel.checkpoint()
        return Answer(200, asked.body)

    door.answer = answer
    async with running(make_app()) as server:
        answers = await server.ask(post(b"[1]") + post(b"[2]") + post(b"[3]", close=True))
    assert [part[-3:] for part in answers.split(b"HTTP/1.1")[1:]] == [b"[1]", b"[2]", b"[3]"]


async def test_a_request_behind_a_stream_waits_and_the_end_is_still_seen(door, make_app, running, read):
    source = door.stream(b"data: 1\n\n")
    async with running(make_app(), half_close=0.05) as server:
        stream = await server.connect()
        await stream.send_all(GET + post())
        await read.until(stream, b"data: 1")
        await stream.aclose()
        await source.closed.wait()
    assert len(door.asked) == 1


async def test_a_flood_behind_a_stream_is_not_read_into_memory(door, make_app, running, read):
    source = door.stream(b"data: 1\n\n")
    async with running(make_app(), pipelined=10_000) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await read.until(stream, b"data: 1")
        sent = 0
        with trio.move_on_after(1):
            while True:
                await stream.send_all(HEALTH * 2000)
                sent += len(HEALTH) * 2000
                assert sent < 50_000_000
        source.push(None)
        assert await alive(server)


async def test_a_flood_of_requests_is_not_read_faster_than_it_is_answered(door, make_app, tmp_path):
    answers, sent, flood = trio.Semaphore(0), 0, post() * 100

    async def answer(asked):
        await answers.acquire()
        return Answer(200, asked.body)

    door.answer = answer
    path = str(tmp_path / "s")
    serving = partial(serve, stop=trio.Event(), log=RecordingLog())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving, make_app(), open_unix_listener(path), ServeConfig())
        async with await trio.open_unix_socket(path) as client:

            async def send() -> None:
                nonlocal sent
                while True:
                    await client.send_all(flood)
                    sent += len(flood)

            nursery.start_soon(send)
            await door.entered.wait()
            for number in range(1, 31):
                answers.release()
                while len(door.asked) <= number:
                    await trio.testing.wait_all_tasks_blocked()
            assert sent < 1_000_000  # what a socket holds, and three reads
            nursery.cancel_scope.cancel()


async def test_a_body_refused_early_still_lets_the_client_read_why(door, make_app, running, read):
    app = make_app(limits=Limits(message_bytes=1000))
    async with running(app) as server, await server.connect() as stream:
        size = 3_000_000
        async with trio.open_nursery() as nursery:

            async def upload() -> None:
                try:
                    await stream.send_all(POST_HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
                except trio.BrokenResourceError:
                    return

            nursery.start_soon(upload)
            answer = await read.until(stream, b"}}")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close\r\n" in answer
    assert door.asked == []


async def test_a_small_rest_of_a_body_is_dropped_and_the_connection_goes_on(door, make_app, running, read):
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n12")
        refused = await read.until(stream, b"}}")
        await stream.send_all(b"34" + post())
        answered = await read.until(stream, b"}")
    assert refused.startswith(b"HTTP/1.1 404")
    assert b"connection" not in refused
    assert answered.startswith(b"HTTP/1.1 200")


async def test_a_client_that_waits_for_100_continue_is_told_to(door, make_app, running, read):
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(POST_HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await read.until(stream, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"{}")
        assert (await read.until(stream, b"}")).startswith(b"HTTP/1.1 200")


async def test_bodies_that_do_not_end_take_bounded_memory_and_small_ones_go_on(door, make_app, running, read):
    large = b" " * 40_000
    async with running(make_app(limits=Limits(bodies_bytes=100_000))) as server:
        async with await server.connect() as first, await server.connect() as second:
            for stream in (first, second):
                await stream.send_all(POST_HEAD + b"Content-Length: 50000\r\n\r\n" + large)
            with trio.fail_after(PATIENCE):
                while not (answer := await server.ask(post(large))).startswith(b"HTTP/1.1 503 "):
                    await trio.lowlevel.checkpoint()
            assert b"retry-after: 1\r\n" in answer
            assert (await server.ask(post())).startswith(b"HTTP/1.1 200 ")
            await first.send_all(b" " * 10_000)
            assert (await read.until(first, b"}")).startswith(b"HTTP/1.1 200 ")
        with trio.fail_after(PATIENCE):
            while (await server.ask(post(large))).startswith(b"HTTP/1.1 503 "):
                await trio.lowlevel.checkpoint()


async def test_a_crash_in_the_app_is_a_500_to_its_client_alone(door, make_app, running, read):
    async def answer(_):
        raise RuntimeError("a bug")

    async with running(make_app()) as server:
        other = await server.connect()
        await other.send_all(post())
        await read.until(other, b"}")
        door.answer = answer
        head, _, body = (await server.ask(post())).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert b"content-type: application/json\r\n" in head
        assert json.loads(body) == {"jsonrpc": "2.0", "error": {"code": -32603, "message": "Internal error"}}
        door.answer = None
        await other.send_all(post())
        assert (await read.until(other, b"}")).startswith(b"HTTP/1.1 200")
    [(name, values)] = server.log.events
    assert name == "request_crashed"
    assert "a bug" in str(values["exc_info"])


@pytest.mark.parametrize("request_of", [post, lambda: GET], ids=["whole", "piecemeal"])
async def test_an_answer_whose_headers_cannot_be_written_is_a_500_that_is_whole(door, make_app, running, request_of):
    source = door.stream(b"data: 1\n\n", headers=(("Mcp-Session-Id", "a\r\nInjected: 1"),))
    async with running(make_app()) as server:
        head, _, body = (await server.ask(request_of())).partition(b"\r\n\r\n")
        assert await alive(server)
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"transfer-encoding" not in head
    assert b"Injected" not in head
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)["error"]["message"] == "Internal error"
    assert source.closed.is_set()


async def test_a_crash_in_a_stream_cuts_it_so_that_the_client_can_tell(door, make_app, running):
    source = door.stream(b"data: 1\n\n")

    async def receive():
        source.receive = boom
        return b"data: 1\n\n"

    async def boom():
        raise RuntimeError("a bug")

    source.receive = receive
    async with running(make_app()) as server:
        answer = await server.ask(GET)
        assert await alive(server)
    assert b"data: 1" in answer
    assert not answer.endswith(b"0\r\n\r\n")
    assert source.closed.is_set()


async def test_a_crash_of_a_connection_ends_that_one(door, make_app, running, read, monkeypatch):
    from gateway.http import http1

    async with running(make_app()) as server:
        other = await server.connect()
        with monkeypatch.context() as broken:
            broken.setattr(http1.Http1Protocol, "_advance", lambda self: 1 / 0)
            assert await server.ask(HEALTH) in {b"", b"<reset>"}
        await other.send_all(HEALTH)
        assert (await read.until(other, b"}")).startswith(b"HTTP/1.1 200")
    assert server.log.names == ["connection_crashed"]


async def test_too_many_connections_are_turned_away(make_app, running, read):
    async with running(make_app(), connections=1) as server:
        first = await server.connect()
        await first.send_all(HEALTH)
        await read.until(first, b"}")
        second = await server.connect()
        assert (await read.all(second)).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n")
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await alive(server)


async def test_a_connection_ends_after_its_share_of_requests(make_app, running):
    async with running(make_app(), requests_per_connection=2) as server:
        answers = (await server.ask(HEALTH * 3)).split(b"HTTP/1.1 ")[1:]
    assert [b"connection: close\r\n" in answer for answer in answers] == [False, True]


async def test_http_1_0_is_served_and_closed(door, make_app, running):
    door.stream(b"data: 1\n\n", None)
    async with running(make_app()) as server:
        health = await server.ask(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        kept = await server.ask(
            b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n"
            b"GET /mcp HTTP/1.0\r\nHost: localhost\r\n" + ACCEPT + b"\r\n"
        )
    assert b"connection: close\r\n" in health
    assert b"connection: keep-alive\r\n" in kept
    assert b"transfer-encoding" not in kept
    assert kept.endswith(b"\r\n\r\ndata: 1\n\n")


async def test_head_gets_the_head_alone(make_app, running):
    async with running(make_app()) as server:
        answer = await server.ask(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"content-length: 15\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


PIECES = [
    GET,
    HEALTH,
    post(),
    post(b"[]" * 1000),
    WEBSOCKET,
    HEALTH[:-2] + UPGRADE % b"%%%",
    POST_HEAD,
    POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    POST_HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    b"2\r\n{}\r\n",
    b"0\r\n\r\n",
    b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\xff" * 50,
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD /healthz HTTP/1.0\r\n\r\n",
    b"DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
]


@pytest.mark.parametrize("seed", range(8))
async def test_random_conversations_end_and_leave_nothing_behind(seed, door, make_app, running):
    chance = random.Random(seed)

    async def answer(_):
        if chance.random() < 0.3:
            await trio.lowlevel.checkpoint()
        if chance.random() < 0.2:
            return Streaming(FewEvents(chance.randrange(4)))
        return Answer(200, b"{}")

    door.answer = answer
    async with running(make_app(), half_close=0.02, linger=0.05, head=0.2, body=0.2) as server:

        async def converse() -> None:
            stream = await server.connect()
            data = b"".join(chance.choices(PIECES, k=chance.randrange(1, 6)))
            try:
                while data:
                    cut = chance.randrange(1, 400)
                    await stream.send_all(data[:cut])
                    data = data[cut:]
                ending = chance.choice(["close", "reset", "half", "read"])
                if ending == "reset":
                    reset(stream)
                    return
                if ending == "half":
                    await stream.send_eof()
                if ending != "close":
                    with trio.move_on_after(0.3):
                        async for _ in stream:
                            pass
            except trio.BrokenResourceError:
                pass
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(25):
                nursery.start_soon(converse)
        assert await alive(server)
        with trio.fail_after(PATIENCE):
            await server.connections.wait_quiet()
        server.stop.set()
        with trio.fail_after(PATIENCE):
            await server.stopped.wait()
    assert server.connections.open == set()
    assert server.connections.working == 0
    assert server.log.events == []


class FewEvents:
    """A source of so many events."""

    def __init__(self, count: int) -> None:
        self._left = count

    async def receive(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        self._left -= 1
        return b"data: 1\n\n" if self._left >= 0 else None

    def close(self) -> None:
        self._left = 0


@pytest.mark.parametrize("how", ["answered", "reset while it streams", "reset in a body", "refused"])
async def test_a_connection_is_freed_at_once_however_it_ends(door, make_app, running, read, how):
    async def visit(server) -> None:
        stream = await server.connect()
        match how:
            case "answered":
                await stream.send_all(post(close=True))
                await read.all(stream)
            case "refused":
                await stream.send_all(b"\x00\x01\r\n\r\n")
                await read.all(stream)
            case "reset in a body":
                await stream.send_all(post(b"x" * 100)[:-50])
                await trio.testing.wait_all_tasks_blocked(0.01)
            case _:
                source = door.stream(b"data: x\n\n")
                await stream.send_all(GET)
                await read.until(stream, b"data: x")
                reset(stream)
                source.push(*[b"data: y\n\n"] * 20)
                await source.closed.wait()
        server.clients.clear()
        if how != "reset while it streams":
            reset(stream)
        while server.connections.open:
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked(0.01)

    async with running(make_app()) as server:
        await visit(server)
        with uncollected() as found:
            for _ in range(3):
                await visit(server)
        assert not found
