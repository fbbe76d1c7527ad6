"""The writer of an event stream, with a clock that jumps."""

import pytest
import trio

from actors.ports import Streaming
from gateway.http.sse_stream import COMMENT, FIRST_EVENT, send_stream


class Writes:
    """A `send` that records [(time since the start, body)]."""

    def __init__(self) -> None:
        self.bodies: list[tuple[float, bytes]] = []
        self._began = trio.current_time()

    async def send(self, message) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.body":
            self.bodies.append((round(trio.current_time() - self._began, 3), message["body"]))


async def test_keep_alives_come_between_events_and_only_in_silence(door, autojump_clock):
    writes = Writes()
    source = door.stream(b"1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_stream, writes.send, Streaming(source), 25)
        await trio.sleep(60)
        source.push(b"2")
        await trio.sleep(20)
        source.push(b"3", None)
    assert writes.bodies == [(0, b"1"), (25, COMMENT), (50, COMMENT), (60, b"2"), (80, b"3"), (80, b"")]
    assert source.closed.is_set()


async def test_a_silent_stream_sends_its_head_at_once(door, autojump_clock):
    writes = Writes()
    with trio.move_on_after(30):
        await send_stream(writes.send, Streaming(door.stream()), 25)
    assert writes.bodies == [(FIRST_EVENT, COMMENT), (25 + FIRST_EVENT, COMMENT)]


async def test_the_source_is_closed_when_the_connection_ends(door, autojump_clock):
    writes = Writes()
    source = door.stream(b"1")
    with trio.move_on_after(1):
        await send_stream(writes.send, Streaming(source), 25)
    assert source.closed.is_set()


async def test_the_source_is_closed_when_the_write_fails(door):
    source = door.stream(b"1")

    async def send(_):
        raise trio.BrokenResourceError

    with pytest.raises(trio.BrokenResourceError):
        await send_stream(send, Streaming(source), 25)
    assert source.closed.is_set()


async def test_calls_and_streams_are_counted_while_they_last(ask, make_app, door):
    app = make_app()
    source = door.stream(b"1")
    stream = door.answer
    answering = trio.Event()

    async def answer(asked):
        await answering.wait()
        return await stream(asked)

    door.answer = answer
    async with trio.open_nursery() as nursery:

        async def get():
            await ask("GET", headers={"accept": "*/*"}, app=app)

        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        assert (app.calls, app.streams) == (1, 0)
        answering.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (app.calls, app.streams) == (0, 1)
        source.push(None)
    assert (app.calls, app.streams) == (0, 0)
