"""The end of the serve loop: no new connection, replies say close, idle connections last, a deadline for the rest."""

import os
import socket

import pytest
import trio

from actors.ports import Answer
from actors.protocol.table import Limits
from gateway.http.config import ServeConfig
from tests.support.patience import PATIENCE

LONG = 30 * PATIENCE
"""Seconds: who waits for this is not seen to end."""
ACCEPT = b"Accept: application/json, text/event-stream\r\n"
GET = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + ACCEPT + b"\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    + ACCEPT
    + b"Content-Length: 2\r\n\r\n{}"
)


async def test_with_nothing_in_work_it_ends_at_once(make_app, running, read):
    async with running(make_app(), keep_alive=LONG, stop=LONG) as server:
        idle = await server.connect()
        await idle.send_all(HEALTH)
        await read.until(idle, b"}")
        server.stop.set()
        with trio.fail_after(PATIENCE):
            await server.stopped.wait()
        assert await read.all(idle) == b""


async def test_what_is_in_work_is_finished_and_idle_connections_are_closed_last(door, make_app, running, read):
    release = trio.Event()

    async def answer(_):
        await release.wait()
        return Answer(200, b"1")

    door.answer = answer
    async with running(make_app()) as server:
        idle = await server.connect()
        await idle.send_all(HEALTH)
        await read.until(idle, b"}")
        busy = await server.connect()
        await busy.send_all(POST)
        await door.entered.wait()
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(OSError, match="all attempts to connect"):
            await server.connect()
        await idle.send_all(HEALTH)  # still served, for the last time
        assert b"connection: close\r\n" in await read.all(idle)
        release.set()
        answered = await read.all(busy)
        await server.stopped.wait()
    assert answered.startswith(b"HTTP/1.1 200")
    assert b"connection: close\r\n" in answered


async def test_a_stream_that_ends_by_itself_is_written_whole(door, make_app, running, read):
    source = door.stream(b"data: 1\n\n")
    async with running(make_app()) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await read.until(stream, b"data: 1")
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        source.push(b"retry: 100\n\n", None)
        assert (await read.all(stream)).endswith(b"retry: 100\n\n\r\n0\r\n\r\n")
        await server.stopped.wait()


async def test_a_connection_ends_with_an_answer_that_had_begun_before_the_stop(door, make_app, running, read):
    """Its head could not say so yet, and no answer comes any more to what would be asked on it later."""
    source = door.stream(b"data: 1\n\n")
    async with running(make_app(), stop=LONG) as server:
        stream, other = await server.connect(), await server.connect()
        await stream.send_all(GET)
        await read.until(stream, b"data: 1")
        door.hang()
        await other.send_all(POST)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        source.push(None)
        assert await read.all(stream) == b"0\r\n\r\n"
        assert not server.stopped.is_set()
        await other.aclose()


@pytest.mark.parametrize("at_once", [HEALTH, HEALTH[:20], b""])
async def test_what_was_asked_before_such_an_answer_ended_is_answered(door, make_app, running, read, at_once):
    """`at_once`: what of it came together with what is answered."""
    source = door.stream(b"data: 1\n\n")
    async with running(make_app(), stop=LONG) as server:
        stream = await server.connect()
        await stream.send_all(GET + at_once)
        await read.until(stream, b"data: 1")
        server.stop.set()
        if later := HEALTH.removeprefix(at_once):
            await stream.send_all(later)
        await trio.testing.wait_all_tasks_blocked(0.01)
        source.push(None)
        last = (await read.all(stream)).removeprefix(b"0\r\n\r\n")
        assert last.startswith(b"HTTP/1.1 200")
        assert b"connection: close\r\n" in last


async def test_calls_that_do_not_end_are_cut_at_the_deadline(door, make_app, running, read):
    door.hang()
    async with running(make_app(), stop=0.1) as server:
        stream = await server.connect()
        await stream.send_all(POST)
        await door.entered.wait()
        server.stop.set()
        with trio.fail_after(PATIENCE):
            await server.stopped.wait()
        assert door.cancelled.is_set()
        assert await read.all(stream) == b""


async def test_half_a_head_does_not_hold_the_end(make_app, running):
    async with running(make_app(), head=LONG, stop=LONG) as server:
        stream = await server.connect()
        await stream.send_all(HEALTH + b"GET /heal")
        await stream.receive_some()
        server.stop.set()
        with trio.fail_after(PATIENCE):
            await server.stopped.wait()


async def test_in_an_idle_grace_idle_connections_are_served_once_more_and_then_closed_whatever_is_in_work(
    door, make_app, running, read
):
    door.hang()
    async with running(make_app(), idle_grace=lambda: 1.0, stop=PATIENCE) as server:
        busy, idle, quiet = [await server.connect() for _ in range(3)]
        await busy.send_all(POST)
        await door.entered.wait()
        for stream in (idle, quiet):
            await stream.send_all(HEALTH)
            await read.until(stream, b"}")
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await idle.send_all(HEALTH)
        assert b"connection: close\r\n" in await read.all(idle)
        assert await read.all(quiet) == b""
        assert not server.stopped.is_set()
        await busy.aclose()


async def test_idle_connections_are_closed_half_way_to_the_deadline_whatever_is_in_work(door, make_app, running, read):
    door.hang()
    async with running(make_app(), stop=4.0) as server:
        busy, idle = await server.connect(), await server.connect()
        await busy.send_all(POST)
        await door.entered.wait()
        await idle.send_all(HEALTH)
        await read.until(idle, b"}")
        server.stop.set()
        assert await read.all(idle) == b""
        assert not door.cancelled.is_set()
        await busy.aclose()


def test_the_last_connections_are_cut_when_the_drain_is_over():
    config = ServeConfig.within(Limits(drain_grace=5.0, drain_deadline=8.0))
    assert config.stop == 8.0, "from the end of the grace on"


async def test_a_request_that_has_come_and_was_not_read_is_answered(make_app, running, read):
    async with running(make_app()) as server:
        late, idle = await server.connect(), await server.connect()
        for stream in (late, idle):
            await stream.send_all(HEALTH)
            await read.until(stream, b"}")
        os.write(late.socket.fileno(), HEALTH)  # the loop has no turn between this and
        server.connections.close_idle()
        assert os.read(idle.socket.fileno(), 1) == b""  # before the client can send what nobody would read
        await read.until(late, b"}")


async def test_connections_that_were_made_and_not_accepted_yet_are_answered(make_app, running, read):
    async with running(make_app()) as server:
        queued = [
            socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)
        ]  # the loop has no turn before
        for client in queued:
            client.sendall(HEALTH)
        server.stop.set()
        await server.stopped.wait()
        for client in queued:
            with client:
                assert client.recv(12) == b"HTTP/1.1 200"
