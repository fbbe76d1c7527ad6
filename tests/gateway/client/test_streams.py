"""Streams of a server whose every byte is set here, and what a transport makes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from actors.ports import SessionLost
from gateway.client import RequestFailedError
from gateway.client.memory import MemoryTransport
from gateway.client.streamable_http import HttpTransport
from tests.gateway.client import shop
from tests.support.patience import PATIENCE

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
VERSION = [("MCP-Protocol-Version", "2025-11-25")]


class Scripted:
    """A server that answers each GET with the next of these, and accepts every POST."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.gets: list[bytes] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        if head.startswith(b"GET"):
            self.gets.append(head.lower())
            await stream.send_all(self._answers.pop(0))
        else:
            await stream.send_all(ACCEPTED)
        await stream.aclose()


@asynccontextmanager
async def opened(server: Scripted, **limits: Any) -> AsyncIterator[HttpTransport]:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        transport = HttpTransport(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp", nursery, **limits)
        with trio.fail_after(PATIENCE):
            yield transport
            await transport.close()
        nursery.cancel_scope.cancel()


async def test_what_came_after_an_event_can_be_asked_for() -> None:
    server = Scripted(EVENTS + b'id: 8\ndata: {"a": 1}\n\n', REFUSED)
    async with opened(server) as transport:
        await transport.resume_from("7")
        assert await transport.receive() == b'{"a": 1}'
        with pytest.raises(RequestFailedError) as refused:
            await transport.resume_from("9")
    assert (refused.value.reason, refused.value.executed) == ("not_resumed", "no")
    assert [b"last-event-id: %d" % n in head for n, head in zip((7, 9), server.gets, strict=True)] == [True, True]


async def test_where_nothing_has_a_number_nothing_can_be_asked_for(nursery: trio.Nursery) -> None:
    transport = MemoryTransport(shop.server, nursery)
    with pytest.raises(RequestFailedError) as refused:
        await transport.resume_from("7")
    await transport.close()
    assert refused.value.reason == "not_resumed"


async def test_an_event_that_is_too_large_is_not_asked_for_again_and_again() -> None:
    large = b"id: 2\ndata: " + bytes(5000).hex().encode() + b"\n\n"
    server = Scripted(EVENTS + b"id: 1\ndata: {}\n\n", EVENTS + large)
    async with opened(server, message_bytes=1000) as transport:
        await transport.send(INITIALIZED, VERSION)
        assert await transport.receive() == b"{}"
        assert await transport.receive() == SessionLost(None)
        await trio.sleep(1)
    assert len(server.gets) == 2
