"""How a command reaches an admin listener, and what it says of one that does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from gateway import admin_client
from gateway.admin_client import operate
from tests.support.ports import free_port

SERVERS = b'{"listen": "127.0.0.1:8080", "servers": []}'


@asynccontextmanager
async def admin(asked: list[str]) -> AsyncIterator[str]:
    """It says how its servers are, and nothing of sessions."""

    async def handle(stream: trio.SocketStream) -> None:
        while data := await stream.receive_some():
            asked.append(data.decode().split(" ")[1])
            if not asked[-1].startswith("/api/servers"):
                await trio.sleep_forever()
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(SERVERS)
                + SERVERS
            )

    async with trio.open_nursery() as nursery:
        listeners: Any = await nursery.start(
            lambda task_status: trio.serve_tcp(handle, 0, host="127.0.0.1", task_status=task_status)
        )
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("what", "words"), [("list", "in time"), ("move", "it may have been done all the same")])
async def test_what_is_not_answered_in_time_is_not_said_to_be_nowhere(
    monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    monkeypatch.setattr(admin_client, "ACT_WAIT", 0.2)
    asked: list[str] = []
    async with admin(asked) as place:
        answer = await operate("http://127.0.0.1:8080/mcp", place, what, "abcdef", {})
    assert answer is not None
    status, body = answer
    assert status == 504
    assert body["error"].endswith(words)
    assert len(asked) == 2


async def test_where_nobody_listens_there_is_no_admin_listener() -> None:
    assert await operate("http://127.0.0.1:8080/mcp", f"http://127.0.0.1:{free_port()}", "end", "abcdef", {}) is None
