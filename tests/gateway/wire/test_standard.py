"""The standard streams as a channel: whole lines, whatever becomes of whoever says them."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing

from actors.ports import HungUp, TooLong
from gateway.wire.standard import StandardStreams


async def test_a_line_that_was_begun_is_finished_before_the_next_though_who_said_it_was_cancelled() -> None:
    (source, never), (taken, target) = os.pipe(), os.pipe()
    channel = StandardStreams(source, target, 1024, 60)
    long, heard = b"x" * (1 << 20), b""
    reader = trio.lowlevel.FdStream(taken)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.send, long)
            heard += await reader.receive_some(1000)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with trio.CancelScope() as scope:
            scope.cancel()
            await channel.send(b"never begun")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.send, b"next")
            while not heard.endswith(b"next\n"):
                heard += await reader.receive_some()
        assert heard.splitlines() == [long, b"next"]
    finally:
        await reader.aclose()
        for descriptor in (source, never, target):
            os.close(descriptor)


@pytest.mark.parametrize("reads", [True, False])
async def test_a_reader_may_take_its_time_but_has_to_take_something(
    autojump_clock: trio.testing.MockClock, reads: bool
) -> None:
    (source, never), (taken, target) = os.pipe(), os.pipe()
    channel = StandardStreams(source, target, 1024, 5)
    os.set_blocking(taken, False)
    line, heard = b"x" * (1 << 20), b""
    try:
        async with trio.open_nursery() as nursery:
            if not reads:
                with pytest.raises(HungUp):
                    await channel.send(line)
                return
            nursery.start_soon(channel.send, line)
            while len(heard) < len(line):
                await trio.sleep(4)
                heard += os.read(taken, 1 << 16)
        assert trio.current_time() > 10
    finally:
        for descriptor in (source, never, taken, target):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"%b"}}', 7),
        (b'{"method":"tools/call","params":{"a":"%b"},"jsonrpc":"2.0","id":"seven"}', "seven"),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"%b"}}', None),
        (b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"%b"}}', None),
    ],
)
async def test_of_a_line_that_is_too_long_it_is_told_which_request_it_was(line: bytes, request_id: object) -> None:
    (source, says), (never, target) = os.pipe(), os.pipe()
    try:
        channel = StandardStreams(source, target, 1024, 60)
        os.write(says, (long := line % (b"x" * 2000)) + b"\n")
        assert await channel.receive() == TooLong(len(long), request_id)
    finally:
        for descriptor in (source, says, never, target):
            os.close(descriptor)
