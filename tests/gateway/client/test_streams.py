"""Streams of a server whose every byte is set here, and what a transport makes of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from actors.ports import SessionLost
from gateway.client import (
    ClientError,
    ConnectionLostError,
    McpError,
    RequestFailedError,
    inbox,
    sse_2024,
    streamable_http,
)
from gateway.client.memory import MemoryTransport
from gateway.client.streamable_http import HttpTransport
from stagedoor import Context, Server, open_client
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


@pytest.mark.parametrize(("bound", "value"), [("MESSAGES", 5), ("BURST", 2000)])
async def test_a_server_in_this_process_that_floods_who_does_not_read_ends_its_session(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(inbox, bound, value)
    server = Server("loud")

    @server.tool
    async def flood(ctx: Context) -> None:
        for step in range(1000):
            await ctx.progress(step)

    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = {"name": "flood", "arguments": {}, "_meta": {"progressToken": 1}}
    transport = MemoryTransport(server, nursery)
    for said in (
        {"id": 0, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/call", "params": call},
    ):
        await transport.send(json.dumps({"jsonrpc": "2.0", **said}).encode())
    await trio.testing.wait_all_tasks_blocked()
    kept: list[Any] = []

    async def take() -> None:
        while True:
            kept.append(await transport.receive())

    with pytest.raises(ConnectionLostError, match="more came from the server than was taken"):
        await take()
    assert 0 < len(kept) < 12
    with pytest.raises(ConnectionLostError):
        await transport.send(b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}')


async def test_an_event_that_is_too_large_is_not_asked_for_again_and_again() -> None:
    large = b"id: 2\ndata: " + bytes(5000).hex().encode() + b"\n\n"
    server = Scripted(EVENTS + b"id: 1\ndata: {}\n\n", EVENTS + large)
    async with opened(server, message_bytes=1000) as transport:
        await transport.send(INITIALIZED, VERSION)
        assert await transport.receive() == b"{}"
        assert await transport.receive() == SessionLost(None)
        await trio.sleep(1)
    assert len(server.gets) == 2


class Stream2024:
    """HTTP+SSE: each request is answered on the stream; its POST, and that of a notification, as `accepts` says. Others
    get the refusal, if there is one."""

    def __init__(self, accepts: frozenset[str], refusal: bytes = b"") -> None:
        self.accepts = accepts
        self.refusal = refusal
        self.cut: list[str] = []
        self.heard: list[str] = []
        self._events, self._written = trio.open_memory_channel[bytes](9)

    async def serve(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        if head.startswith(b"GET"):
            await stream.send_all(EVENTS + b"event: endpoint\ndata: /post\n\n")
            async for event in self._written:
                await stream.send_all(event)
            return
        head, _, body = head.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += await stream.receive_some()
        said = json.loads(body)
        self.heard.append(said["method"])
        if said["method"] == "initialize":
            result = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
            self._answer(said, result)
        elif "id" in said and said["method"] != "tools/call":
            self._answer(said, {})
        if said["method"] in self.accepts:
            await stream.send_all(ACCEPTED)
        elif self.refusal:
            await stream.send_all(self.refusal)
        elif not await stream.receive_some():
            self.cut.append(said["method"])
        await stream.aclose()

    def _answer(self, said: dict[str, Any], result: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", "id": said["id"], "result": result}
        self._events.send_nowait(b"data: %b\n\n" % json.dumps(message).encode())


@asynccontextmanager
async def served(server: Any) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        with trio.fail_after(PATIENCE):
            yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.sleep(0.01)


async def test_a_post_that_is_never_answered_ends_with_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_2024, "ANSWERED", 0)
    server = Stream2024(frozenset({"initialize", "notifications/initialized", "notifications/cancelled"}))
    async with served(server) as url, trio.open_nursery() as nursery:
        transport = await sse_2024.open_sse(f"{url}/sse", nursery)
        async with open_client(transport, "2024-11-05") as client:
            await client.ping()
            await until(lambda: server.cut == ["ping"])
            async with trio.open_nursery() as calls:
                calls.start_soon(client.call_tool, "slow")
                await until(lambda: "tools/call" in server.heard)
                calls.cancel_scope.cancel()
            await until(lambda: server.cut == ["ping", "tools/call"])


async def test_a_notification_that_is_never_accepted_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_2024, "ACCEPT", 0.2)
    async with served(Stream2024(frozenset({"initialize"}))) as url, trio.open_nursery() as nursery:
        transport = await sse_2024.open_sse(f"{url}/sse", nursery)
        with pytest.raises(ConnectionLostError, match="in time"):
            async with open_client(transport, "2024-11-05"):
                pass


class Deaf(Stream2024):
    """Streamable HTTP: answers what it accepts, and nothing else ever."""

    async def serve(self, stream: trio.SocketStream) -> None:
        said = await stream.receive_some()
        if not said.startswith(b"POST"):
            await stream.send_all(REFUSED)
            await stream.aclose()
            return
        while not said.endswith(b"}"):
            said += await stream.receive_some()
        asked = json.loads(said.partition(b"\r\n\r\n")[2])
        self.heard.append(asked["method"])
        if asked["method"] == "initialize":
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": about}).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            await stream.send_all(head % len(body) + body)
        elif asked["method"] in self.accepts:
            await stream.send_all(ACCEPTED)
        elif not await stream.receive_some():
            self.cut.append(asked["method"])
        await stream.aclose()


@pytest.mark.parametrize("kind", ["sse", "http"])
async def test_a_request_that_is_withdrawn_ends_also_where_that_is_not_accepted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sse_2024 if kind == "sse" else streamable_http
    server = (Stream2024 if kind == "sse" else Deaf)(frozenset({"initialize", "notifications/initialized"}))
    async with served(server) as url, trio.open_nursery() as nursery:
        target = await sse_2024.open_sse(f"{url}/sse", nursery) if kind == "sse" else f"{url}/mcp"
        async with open_client(target, "2024-11-05" if kind == "sse" else "2025-11-25") as client:
            monkeypatch.setattr(module, "ACCEPT", 0.1)
            async with trio.open_nursery() as calls:
                calls.start_soon(client.call_tool, "slow")
                await until(lambda: "tools/call" in server.heard)
                calls.cancel_scope.cancel()
            await until(lambda: "tools/call" in server.cut)


REFUSAL = '{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"Bad Request: Missing session ID"}}'


def refused(id: str) -> bytes:
    body = (REFUSAL % id).encode()
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


class Refusing(Scripted):
    """Streamable HTTP that refuses every POST, by an error with this id."""

    def __init__(self, id: str) -> None:
        super().__init__(*[REFUSED] * 9)
        self._refused = refused(id)

    async def serve(self, stream: trio.SocketStream) -> None:
        head = await stream.receive_some()
        await stream.send_all(self._refused if head.startswith(b"POST") else REFUSED)
        await stream.aclose()


@pytest.mark.parametrize("id", ["null", '"server-error"', "99"])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_request_is_refused_whatever_id_its_refusal_has(version: str, id: str) -> None:
    """A server that has not read the request gives no id, or one of its own, as the official Python SDK 1 does."""
    async with served(Refusing(id)) as url:
        with pytest.raises(ClientError, match="Missing session ID"):
            async with open_client(f"{url}/mcp", version):
                pass


@pytest.mark.parametrize("id", ["null", '"server-error"', "99"])
async def test_a_message_is_refused_whatever_id_its_refusal_has(id: str) -> None:
    server = Stream2024(frozenset({"initialize", "notifications/initialized"}), refused(id))
    async with served(server) as url, trio.open_nursery() as nursery:
        transport = await sse_2024.open_sse(f"{url}/sse", nursery)
        async with open_client(transport, "2024-11-05") as client:
            with pytest.raises(McpError, match="Missing session ID") as failed:
                await client.call_tool("any")
            assert (failed.value.code, failed.value.status) == (-32600, 400)


class Small(Scripted):
    """Refuses what is larger than 200 bytes. Its streams name an endpoint, for a client of 2024-11-05."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Any] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        said = await stream.receive_some()
        if said.startswith(b"GET"):
            await stream.send_all(EVENTS + b"event: endpoint\ndata: /post\n\n")
            await trio.sleep_forever()
        while not said.endswith(b"}"):
            said += await stream.receive_some()
        body = said.partition(b"\r\n\r\n")[2]
        status = b"413 Content Too Large" if len(body) > 200 else b"202 Accepted"
        if len(body) <= 200:
            self.taken.append(json.loads(body))
        await stream.send_all(b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status)
        await stream.aclose()


@pytest.mark.parametrize("kind", ["sse", "http"])
async def test_whose_answer_is_refused_hears_that_there_is_none(kind: str) -> None:
    """Whoever asked would wait for as long as it has patience."""
    server = Small()
    answer = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"text": "x" * 200}}).encode()
    async with served(server) as url, trio.open_nursery() as nursery:
        transport = (
            await sse_2024.open_sse(f"{url}/sse", nursery) if kind == "sse" else HttpTransport(f"{url}/mcp", nursery)
        )
        await transport.send(answer, VERSION)
        await transport.send(b'{"jsonrpc":"2.0","id":8,"result":{}}', VERSION)
        await transport.close()
        nursery.cancel_scope.cancel()
    [failed, small] = server.taken
    assert (failed["id"], failed["error"]["code"]) == (7, -32603)
    assert "413 " in failed["error"]["message"]
    assert small == {"jsonrpc": "2.0", "id": 8, "result": {}}


UNREADABLE = [b"", b"{}", b"[]", b"x", b'{"jsonrpc":"2.0","id":{},"result":{}}', b"[{}]", b'[{"id":1},{"id":null}]']


class Answering:
    """A server that says the same to every request."""

    def __init__(self, kind: str, answer: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
        self._said = head + answer if kind == "json" else EVENTS + b"data: %b\n\n" % answer

    async def serve(self, stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(self._said)
        await stream.aclose()


@pytest.mark.parametrize("kind", ["json", "events"])
async def test_an_answer_that_can_not_be_read_fails_its_request(kind: str) -> None:
    """It is nobody's by its id; by its stream it is."""
    for answer in UNREADABLE:
        async with served(Answering(kind, answer)) as url:
            with pytest.raises(ClientError):
                async with open_client(f"{url}/mcp", "2025-11-25"):
                    pass


class Flooding(Scripted):
    """Has more to say than sockets hold."""

    MESSAGES = [b'{"n": %d, "text": "%s"}' % (n, b"x" * 60_000) for n in range(400)]

    def __init__(self) -> None:
        super().__init__(EVENTS + b"".join(b"data: %b\n\n" % message for message in self.MESSAGES), REFUSED)
        self.said_all = False

    async def serve(self, stream: trio.SocketStream) -> None:
        await super().serve(stream)
        self.said_all = self.said_all or bool(self.gets)


async def test_a_server_whose_messages_nobody_takes_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "ROOM", 100_000)
    server = Flooding()
    async with opened(server) as transport:
        await transport.send(INITIALIZED, VERSION)
        await until(lambda: len(server.gets) == 1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not server.said_all
        assert [await transport.receive() for _ in server.MESSAGES] == server.MESSAGES
        await until(lambda: server.said_all)


async def test_more_answers_than_may_wait_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MESSAGES", 2)
    waiting = inbox.Inbox()
    for message in (b"1", b"2", b"3", b"4"):
        waiting.put(message)
    assert [await waiting.receive(), await waiting.receive()] == [b"1", b"2"]
    with pytest.raises(trio.EndOfChannel):
        await waiting.receive()


async def test_who_waits_for_room_when_the_connection_ends_goes_on(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(inbox, "ROOM", 1)
    waiting, went_on = inbox.Inbox(), trio.Event()
    waiting.put(b"1")

    async def read_on() -> None:
        await waiting.room()
        went_on.set()

    nursery.start_soon(read_on)
    await trio.testing.wait_all_tasks_blocked()
    assert not went_on.is_set()
    waiting.close()
    await went_on.wait()
