"""Payloads of odd spelling or great size, on every way through the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import EVERYWHERE, JUMPING, STORES
from tests.interaction.codes import INTERNAL
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Call, Message

STRANGE = 'line\nbreak \r\n tab\t nul\u0000 sep\u2028\u2029 bom\ufeff \U0001f600 \\ " </script> data: x\n\nid: 7\n\n'


@pytest.mark.requirement("meta-untouched")
async def test_text_that_looks_like_framing_passes_as_it_is(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("echo")
    async def echo(request: Request) -> Message:
        request.log("info", request.arguments["say"])
        return text(request.arguments["say"])

    client = await stage.connect(route.path)
    call = client.start_call(route.name("echo"), say=STRANGE)
    assert await call.result() == text(STRANGE)
    assert call.messages[0]["params"]["data"] == STRANGE
    assert backend.of("tools/call")[0]["params"]["arguments"] == {"say": STRANGE}


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("meta-untouched")
async def test_messages_written_over_several_lines_pass(stage: Stage, route: Route) -> None:
    """A line break between tokens is JSON, and would be the end of a line on stdio, of a field in an event stream."""
    backend = await stage.backend()
    deep = {"a": [1, {"b": "c"}], "d": {}}

    @backend.tool("echo")
    async def echo(request: Request) -> None:
        assert request.arguments == deep
        connection = request.connection
        connection.running.pop(request.id)
        indent = None if stage.cell.transport == "stdio" else 2
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": deep}}
        answer = {"jsonrpc": "2.0", "id": request.id, "result": {**text("done"), "_meta": deep}}
        for message in (log, answer):
            connection.write(json.dumps(message, indent=indent).encode(), request.id)

    client = await stage.connect(route.path)
    message = client.request_message("tools/call", {"name": route.name("echo"), "arguments": deep})
    for line_end in ("\n", "\r\n"):
        message = client.request_message("tools/call", {"name": route.name("echo"), "arguments": deep})
        body = json.dumps(message, indent=4).replace("\n", line_end).encode()
        call = Call(client, client.post(body), message["id"])
        assert (await call.result())["_meta"] == deep
        assert call.messages[0]["params"]["data"] == deep


@pytest.mark.cells(
    (Cell(), Cell(NEWEST, "memory", "stdio"), Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http"))
)
@pytest.mark.requirement("tools-call", "resume")
async def test_a_large_answer_passes_and_can_be_read_again(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    large = "x" * 3_000_000

    @backend.tool("large")
    async def give(request: Request) -> Message:
        if request.arguments["log"]:
            request.log("info", "here it comes")
        assert request.arguments["sent"] == large
        return text(large)

    client = await stage.connect(route.path)
    assert await client.call(route.name("large"), log=False, sent=large) == text(large)
    call = client.start_call(route.name("large"), log=True, sent=large)
    assert await call.result() == text(large)
    again = await client.resume(call, call.events[0].id)
    assert await again.result() == text(large)


@JUMPING
@pytest.mark.limits(message_bytes=10_000)
@pytest.mark.requirement("body-too-large")
async def test_a_message_of_exactly_the_limit_passes(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    for extra, status in ((0, 200), (1, 413)):
        message = client.request_message("tools/call", {"name": "echo", "arguments": {"say": ""}})
        padding = 10_000 - len(json.dumps(message)) + extra
        message["params"]["arguments"]["say"] = "x" * padding
        exchange = client.post(json.dumps(message).encode())
        assert await exchange.head() == status


@JUMPING
@pytest.mark.requirement("meta-untouched")
@pytest.mark.parametrize(
    "arguments",
    [
        {"deep": {"x": [[[[[[[[[[1]]]]]]]]]]}},
        {"": "", " ": 1, "\u00e4": 2, "jsonrpc": "1.0", "id": 7, "method": "x", "progressToken": 1},
        {"_meta": {"progressToken": "inner"}, "name": "other", "uri": "file:///x", "cursor": ""},
        {str(n): n for n in range(500)},
    ],
    ids=["deep", "names", "reserved", "many"],
)
async def test_arguments_are_nobodys_business(stage: Stage, route: Route, arguments: dict[str, Any]) -> None:
    backend = await stage.backend()

    @backend.tool("echo")
    async def echo(request: Request) -> Message:
        return {"content": [], "structuredContent": request.arguments, "_meta": {"uri": "file:///x"}}

    client = await stage.connect(route.path)
    got = await client.call(route.name("echo"), **arguments)
    assert got == {"content": [], "structuredContent": arguments, "_meta": {"uri": "file:///x"}}


@JUMPING
@pytest.mark.requirement("bad-body")
async def test_members_that_come_twice_are_one_message_all_the_same(stage: Stage) -> None:
    client = await stage.connect()
    exchange = client.post(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"ping"}')
    assert await exchange.head() in (200, 400)
    client.request_message("ping", id=1), client.request_message("ping", id=2)
    assert await client.start("ping", id=3).result() == {}


# Around the handshake ----------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("log-related", "backend-requests-before-ready")
async def test_what_a_backend_logs_before_it_is_ready_is_not_lost(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.on("initialize")
    async def logs(request: Request) -> Message:
        request.log("warning", "starting")
        return await backend.initialize(request)

    client = await stage.connect("/mcp/alpha")
    stream = await client.listen()
    assert (await stream.message("notifications/message"))["params"]["data"] == "starting"


@JUMPING
@pytest.mark.limits(link_connect=20)
@pytest.mark.requirement("deadline", "backend-down")
async def test_a_backend_that_never_answers_the_handshake_is_an_error_in_time(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.on("initialize")
    async def never(request: Request) -> None:
        await trio.sleep_forever()

    client = stage.client("/mcp/alpha")
    began = trio.current_time()
    error = await client.start("initialize", client.introduction()).error(within=60)
    assert error.code == INTERNAL
    assert trio.current_time() - began == pytest.approx(20, abs=1)
    assert backend.name in error.message or error.data


@JUMPING
@pytest.mark.requirement("backend-down", "backend-returns")
async def test_a_backend_that_was_down_for_long_is_tried_again(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect()
    assert await client.call("alpha__echo") == text("yes")
    server_info = backend.handlers["initialize"]
    backend.refuses("initialize", INTERNAL, "down")
    for connection in backend.connections:
        connection.hang_up()
    await trio.sleep(1)
    for _ in range(10):
        assert (await client.start_call("alpha__echo").error()).code == INTERNAL
    attempts = len(backend.of("initialize"))
    backend.handlers["initialize"] = server_info
    await trio.sleep(120)  # by a clock that jumps
    assert await client.call("alpha__echo") == text("yes")
    assert attempts < 14, "not one attempt a call"


@pytest.mark.cells((Cell(NEWEST, "memory", "stdio"),))
@pytest.mark.limits(child_processes=1, process_wait=0.2)
@pytest.mark.requirement("backend-down")
async def test_a_process_too_many_waits_for_its_place_and_says_why_it_got_none(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    first = await stage.connect("/mcp/alpha")
    second = stage.client("/mcp/alpha")
    error = await second.start("initialize", second.introduction()).error()
    assert error.code == INTERNAL
    assert error.data["reason"] == "backend_full"
    assert error.data["executed"] == "no"
    third = stage.client("/mcp/alpha")
    waiting = third.start("initialize", third.introduction())
    assert await first.end() == 200
    assert (await waiting.result())["serverInfo"] == backend.info


@pytest.mark.cells(STORES)
@pytest.mark.requirement("session-delete", "one-answer", "pitfall-11")
async def test_a_session_may_be_ended_while_everything_is_under_way(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("wait")
    async def wait(request: Request) -> None:
        request.log("info", "started")
        await trio.sleep_forever()

    for _ in range(5):
        client = await stage.connect(route.path)
        calls = [client.start_call(route.name("wait")) for _ in range(5)]
        await calls[0].message("notifications/message")
        assert await client.end() == 200
        for call in calls:
            status = await call.exchange.head()
            assert status in (200, 404), status
            if status == 200:
                assert (await call.error()).code == INTERNAL
