"""Clients that read slowly, not at all, or leave; on real sockets where it is sockets that matter."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import pytest
import trio

from gateway.http.config import ServeConfig
from gateway.http.serve import serve
from gateway.http.sockets import addresses, close_listeners, open_listeners
from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import ACCEPT, WAIT, Event, Message
from tests.support.wire_http import SseParser

SOCKETS = pytest.mark.cells((Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http")))
STEADY = pytest.mark.cells((Cell(), Cell("2025-03-26"), Cell(NEWEST, "redis")))


# A stream that is not read -----------------------------------------------------------------------------------


@JUMPING
@pytest.mark.limits(outbox_events=8)
@pytest.mark.requirement("slow-consumer")
async def test_a_reader_that_stalls_is_let_go_and_resumes_from_the_log(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    more = trio.Event()

    @backend.tool("many")
    async def many(request: Request) -> Message:
        request.log("info", -1)
        await more.wait()
        for n in range(40):
            request.log("info", n)
            await trio.sleep(0.01)
        return text("done")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("many"))
    await call.message("notifications/message")
    call.exchange.stall()
    more.set()
    await trio.sleep(10)
    call.exchange.reading.set()
    heard = []
    while (message := await call.next()) is not None and "result" not in message:
        heard.append(message["params"]["data"])
    assert message is None, "let go before the end"
    resumed = await client.resume(call)
    assert await resumed.result() == text("done")
    heard += [m["params"]["data"] for m in resumed.messages[:-1]]
    assert heard == list(range(40)), "each once, in order"


@JUMPING
@pytest.mark.limits(outbox_events=8)
@pytest.mark.requirement("slow-consumer")
async def test_a_reader_that_stalls_slows_nobody_else(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("many")
    async def many(request: Request) -> Message:
        for n in range(100):
            request.log("info", n)
            await trio.sleep(0.001)
        return text("done")

    clients = [await stage.connect("/mcp/alpha") for _ in range(3)]
    stalled = clients[0].start_call("many")
    stalled.exchange.stall()
    began = trio.current_time()
    for client in clients[1:]:
        assert await client.call("many") == text("done")
    assert await clients[0].request("ping") == {}
    assert trio.current_time() - began < 1
    stalled.cut()


@JUMPING
@pytest.mark.limits(log_events=20, outbox_events=1000)
@pytest.mark.requirement("log-caps")
async def test_chatter_past_the_caps_of_the_log_is_left_out_and_the_answer_is_not(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("many")
    async def many(request: Request) -> Message:
        for n in range(200):
            request.log("info", n)
            request.progress(n)
        return text("done")

    client = await stage.connect(route.path)
    seen = 0
    for _ in range(3):
        call = client.start_call(route.name("many"), token=1)
        assert await call.result() == text("done")
        seen += len(call.messages) - 1
    # How many fit depends on how quickly they are written, and how many find room in the session's mailbox on how long
    # its turns are; those that don't are counted.
    refused = stage.telemetry.total("stagedoor_messages_dropped_total", "notification_refused")
    assert stage.telemetry.total("stagedoor_events_shed_total") == 3 * 400 - refused - seen > 0


# Everything at once ------------------------------------------------------------------------------------------


@STEADY
@pytest.mark.requirement("one-answer", "isolation")
async def test_many_clients_that_call_cancel_cut_and_resume_each_get_one_answer_a_call(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()

    @backend.tool("work")
    async def work(request: Request) -> Message:
        for n in range(int(request.arguments["n"])):
            request.progress(n)
            await trio.sleep(0.001)
        return text(request.arguments["who"])

    async def live(number: int) -> None:
        client = await stage.connect(route.path)
        for round in range(6):
            who = f"{number}/{round}"
            call = client.start_call(route.name("work"), token=round, who=who, n=3 + round)
            if round % 3 == 1 and await call.next() is not None and call.messages[-1].get("method"):
                call.cut()
                call = await client.resume(call)
            if round % 3 == 2:
                await client.accepted(call.cancel())
                response = await call.response()
                assert response.get("result", text(who)) == text(who)
            else:
                assert await call.result() == text(who)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(live, number)


# Real sockets ------------------------------------------------------------------------------------------------


class Socket:
    """A client of one HTTP connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h11 = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, headers: dict[str, str], message: Any = None) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        lines = {"Host": "127.0.0.1", "Accept": ACCEPT, "Content-Type": "application/json", **headers}
        if body:
            lines["Content-Length"] = str(len(body))
        request = h11.Request(method=method, target=path, headers=list(lines.items()))
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            await self.stream.send_all(self.h11.send(event) or b"")

    async def event(self) -> Any:
        with trio.fail_after(WAIT):
            while (event := self.h11.next_event()) is h11.NEED_DATA:
                self.h11.receive_data(await self.stream.receive_some(4096))
        return event

    async def result(self) -> Any:
        """Of a request that was sent, as JSON or at the end of a stream."""
        _, headers, body = await self.answer()
        if headers["content-type"] == "application/json":
            return json.loads(body)["result"]
        return [event.message for event in SseParser().feed(body) if event.data][-1]["result"]

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = await self.event()
        body = b""
        while isinstance(event := await self.event(), h11.Data):
            body += event.data
        if self.h11.our_state is h11.DONE and self.h11.their_state is h11.DONE:
            self.h11.start_next_cycle()
        return head.status_code, {name.decode(): value.decode() for name, value in head.headers}, body


@asynccontextmanager
async def listening(stage: Stage) -> AsyncIterator[int]:
    """The stage on a port."""
    listeners = open_listeners("127.0.0.1", 0)
    port = addresses(listeners)[0][1]
    stop = trio.Event()
    config = ServeConfig.within(stage.limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve(stage.http.app, listeners, config, stop=stop, log=stage.log))
        try:
            yield port
        finally:
            close_listeners(listeners)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Socket]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Socket(stream)


async def handshake(socket: Socket, path: str) -> dict[str, str]:
    """The headers of a session."""
    params = {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "socket", "version": "1"}}
    await socket.send("POST", path, {}, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    status, headers, _ = await socket.answer()
    assert status == 200
    session = {"Mcp-Session-Id": headers["mcp-session-id"], "Mcp-Protocol-Version": NEWEST}
    await socket.send("POST", path, session, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (await socket.answer())[0] == 202
    return session


def calling(name: str, id: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}}


@SOCKETS
@pytest.mark.requirement("disconnect-no-cancel", "resume", "pitfall-3")
async def test_on_a_real_socket_a_call_outlives_its_connection(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        request.log("info", "started")
        await go.wait()
        return text("done")

    async with listening(stage) as port:
        async with connect(port) as first:
            session = await handshake(first, route.path)
            await first.send("POST", route.path, session, calling(route.name("wait")))
            parser = SseParser()
            events: list[Event] = []
            assert (await first.event()).status_code == 200
            while len(events) < 2:
                events += parser.feed((await first.event()).data)
        go.set()
        async with connect(port) as second:
            await second.send("GET", route.path, {**session, "Last-Event-ID": str(events[-1].id)})
            status, _, body = await second.answer()
            assert status == 200
            [answer] = [event.message for event in SseParser().feed(body) if event.data]
            assert answer["result"] == text("done")
            assert not backend.of("notifications/cancelled")
            await second.send("DELETE", route.path, session)
            assert (await second.answer())[0] == 200


@SOCKETS
@pytest.mark.limits(write=0.3, outbox_events=64)
@pytest.mark.requirement("slow-consumer")
async def test_on_a_real_socket_a_client_that_never_reads_is_cut_and_harms_nobody(stage: Stage) -> None:
    backend = await stage.backend()
    finished = trio.Event()

    @backend.tool("flood")
    async def flood(request: Request) -> Message:
        for n in range(300):
            request.log("info", str(n) + "x" * 20_000)
            await trio.sleep(0)
        finished.set()
        return text("done")

    backend.result("echo", text("yes"))
    async with listening(stage) as port, connect(port) as stalled, connect(port) as lively:
        theirs, ours = await handshake(stalled, "/mcp/alpha"), await handshake(lively, "/mcp/alpha")
        await stalled.send("POST", "/mcp/alpha", theirs, calling("flood"))
        with trio.fail_after(WAIT):
            await finished.wait()
        await lively.send("POST", "/mcp/alpha", ours, calling("echo"))
        assert await lively.result() == text("yes")
        await lively.send("POST", "/mcp/alpha", theirs, {"jsonrpc": "2.0", "id": 9, "method": "ping"})
        assert (await lively.answer())[0] == 200, "its session lives"
        assert b'"done"' not in await rest_of(stalled)


async def rest_of(socket: Socket) -> bytes:
    """What comes of an answer before it ends, one way or the other."""
    body = b""
    with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
        while not isinstance(event := await socket.event(), h11.EndOfMessage):
            body += event.data if isinstance(event, h11.Data) else b""
    return body
