"""Backends that fail, and what their callers get (decisions of the gateway)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import trio

from actors.protocol.table import HttpTarget, StdioTarget
from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import INTERNAL
from tests.interaction.stage import Cell, Route, Stage
from tests.support.processes import free_port
from tests.support.schemas import NEWEST
from tests.support.wire_client import Message

HTTP = pytest.mark.cells((Cell(NEWEST, "memory", "http"),))
STDIO = pytest.mark.cells((Cell(NEWEST, "memory", "stdio"),))
PIPES = pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "stdio"), Cell("2025-06-18", "redis", "stdio")))


# A backend that ends -----------------------------------------------------------------------------------------


@PIPES
@pytest.mark.requirement("backend-exit", "backend-returns")
async def test_a_backend_that_ends_in_a_call_is_an_explicit_error_and_comes_back(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    other = await stage.backend("beta")
    go = trio.Event()

    @backend.tool("die")
    async def die(request: Request) -> None:
        request.connection.hang_up()
        await trio.sleep_forever()

    backend.result("echo", text("back"))

    @other.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        return text("untouched")

    client = await stage.connect(route.path)
    bystander = await stage.connect("/mcp")
    kept = bystander.start_call("beta__wait")
    error = await client.start_call(route.name("die")).error()
    assert error.code == INTERNAL
    assert error.data["executed"] == "unknown"
    assert await client.call(route.name("echo")) == text("back")
    go.set()
    assert await kept.result() == text("untouched")
    assert len(other.of("tools/call")) == 1


@PIPES
@pytest.mark.requirement("backend-returns", "restored-subscriptions", "restored-level", "pitfall-26")
async def test_after_a_loss_level_and_subscriptions_are_in_force_and_changes_announced(stage: Stage) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "file:///a", "name": "a"})
    backend.answers("resources/subscribe", {})
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    stream = await client.listen()
    await client.request("resources/subscribe", {"uri": "file:///a"})
    await client.request("logging/setLevel", {"level": "warning"})
    number = len(backend.connections)
    backend.connections[0].hang_up()
    again = await backend.connection(number + 1)
    assert (await again.wait_for("resources/subscribe"))["params"] == {"uri": "file:///a"}
    assert (await again.wait_for("logging/setLevel"))["params"] == {"level": "warning"}
    heard = set()
    while "notifications/resources/updated" not in heard or "notifications/tools/list_changed" not in heard:
        message = await stream.next()
        assert message is not None
        heard.add(message["method"])
    again.notify("notifications/resources/updated", {"uri": "file:///a"})
    assert (await stream.message("notifications/resources/updated"))["params"] == {"uri": "file:///a"}


@JUMPING
@pytest.mark.requirement("backend-down")
async def test_a_backend_that_can_not_be_started_is_an_error_and_the_others_go_on(stage: Stage) -> None:
    stage.target("gone", StdioTarget("/no/such/program"))
    stage.target("away", HttpTarget(f"http://127.0.0.1:{free_port()}/mcp"))
    good = await stage.backend("good")
    good.result("echo", text("yes"))
    client = await stage.connect()
    assert await client.call("good__echo") == text("yes")
    assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == ["good__echo"]
    error = await client.start_call("gone__x").error()
    assert error.code == INTERNAL, "nobody can say that a server which can't be asked does not have it"


@pytest.mark.cells((Cell(NEWEST, "memory", "stdio"),))
@pytest.mark.requirement("backend-down")
async def test_alone_a_backend_that_can_not_be_reached_is_an_error_that_names_it(stage: Stage) -> None:
    stage.target("gone", StdioTarget("/no/such/program"))
    stage.target("away", HttpTarget(f"http://127.0.0.1:{free_port()}/mcp"))
    stage.target("silent", StdioTarget(sys.executable, ("-c", "raise SystemExit(3)")))
    for name in ("gone", "away", "silent"):
        client = stage.client(f"/mcp/{name}")
        error = await client.start("initialize", client.introduction()).error()
        assert error.code == INTERNAL


@JUMPING
@pytest.mark.requirement("last-known-list")
async def test_while_a_backend_is_away_its_last_known_list_is_served_and_calls_fail_properly(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    first = await stage.connect()
    assert await first.call("alpha__echo") == text("yes")
    await first.request("tools/list")
    backend.refuses("initialize", INTERNAL, "away")
    for connection in list(backend.connections):
        connection.hang_up()
    later = await stage.connect()
    assert [tool["name"] for tool in (await later.request("tools/list", within=60))["tools"]] == ["alpha__echo"]
    error = await later.start_call("alpha__echo").error()
    assert error.code == INTERNAL
    assert error.data.get("backend") == "alpha" or error.data["reason"]


# A backend that talks nonsense -------------------------------------------------------------------------------


PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b,"progress":%b}}'

NONSENSE: dict[str, bytes] = {
    "no json": b"hello from a print statement",
    "half": b'{"jsonrpc":"2.0","id":',
    "bad utf-8": b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\xff"}}',
    "no message": b'{"hello":1}',
    "array": b"[]",
    "response to nothing": b'{"jsonrpc":"2.0","id":"nobody","result":{}}',
    "error to nothing": b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}',
    "unknown notification": b'{"jsonrpc":"2.0","method":"notifications/unheard"}',
    "progress for nobody": PROGRESS % (b'"x"', b"1"),
    "progress without sense": PROGRESS % (b"{}", b'"a"'),
    "cancel of nothing": b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}',
    "request with a bad id": b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    "empty": b"",
    "deep": b'{"jsonrpc":"2.0","method":"notifications/x","params":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
}


@pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "stdio"), Cell(NEWEST, "memory", "http")))
@pytest.mark.requirement("backend-nonsense")
@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_of_a_backend_harms_nothing(stage: Stage, name: str) -> None:
    backend = await stage.backend()

    @backend.tool("babble")
    async def babble(request: Request) -> Message:
        for _ in range(3):
            request.connection.write(NONSENSE[name])
        return text("sense")

    client = await stage.connect()
    client.trusting = True
    assert await client.call("alpha__babble") == text("sense")
    assert await client.call("alpha__babble") == text("sense")


@JUMPING
@pytest.mark.requirement("backend-nonsense")
@pytest.mark.parametrize("result", [b"7", b"null", b'"x"', b"[]"])
async def test_a_result_that_is_no_object_fails_its_call_alone(stage: Stage, route: Route, result: bytes) -> None:
    backend = await stage.backend()

    @backend.tool("odd")
    async def odd(request: Request) -> None:
        request.connection.running.pop(request.id)
        request.connection.write(
            b'{"jsonrpc":"2.0","id":"%b","result":%b}' % (str(request.id).encode(), result), request.id
        )

    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    assert (await client.start_call(route.name("odd")).error()).code == INTERNAL
    assert await client.call(route.name("echo")) == text("yes")


@JUMPING
@pytest.mark.requirement("one-answer")
async def test_a_backend_that_answers_twice_is_heard_once(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("twice")
    async def twice(request: Request) -> None:
        request.connection.running.pop(request.id)
        for n in range(3):
            request.answer(text(str(n)))

    client = await stage.connect(route.path)
    stream = await client.listen()
    assert await client.call(route.name("twice")) == text("0")
    await trio.sleep(1)
    assert [event for event in stream.exchange.unread if event.data] == []
    assert stage.telemetry.total("stagedoor_messages_dropped_total", "late_response") == 2


@JUMPING
@pytest.mark.requirement("backend-asks-nonsense")
async def test_every_question_of_a_backend_gets_one_answer(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    answers: list[Any] = []

    @backend.tool("asks")
    async def asks(request: Request) -> Message:
        connection = request.connection
        for id in (b"1", b'"1"', b"1.5", b"null", b'{"a":1}'):
            connection.write(b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"x"}}' % id)
        await trio.sleep(1)
        answers.extend(m for m in connection.received if "method" not in m)
        backend.faults.clear()  # the answers are to questions that the books don't know
        return text("done")

    client = await stage.connect(route.path)
    assert await client.call(route.name("asks")) == text("done")
    ids = [answer.get("id") for answer in answers if answer.get("id") is not None]
    assert sorted(map(repr, ids)) == ["'1'", "1"]
    assert all("error" in answer for answer in answers)


@JUMPING
@pytest.mark.limits(message_bytes=20_000)
@pytest.mark.requirement("backend-too-large")
async def test_an_answer_over_the_size_limit_fails_its_call_alone(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("big", text("x" * 30_000))
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    assert (await client.start_call(route.name("big")).error()).code == INTERNAL
    assert await client.call(route.name("echo")) == text("yes")


@JUMPING
@pytest.mark.requirement("backend-floods")
async def test_a_backend_that_floods_reaches_only_its_own_session_and_all_calls_are_answered(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("flood")
    async def flood(request: Request) -> Message:
        for n in range(5000):
            request.log("info", n)
        return text("done")

    backend.result("echo", text("yes"))
    client, other = await stage.connect("/mcp/alpha"), await stage.connect("/mcp/alpha")
    flooded = client.start_call("flood")
    assert await other.call("echo") == text("yes")
    assert await flooded.result() == text("done")
