"""Tools that run as tasks only, called by clients that have no tasks: over sessions, and over pools."""

from typing import Any

import pytest
import trio

from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.pool_client import PoolClient, pools_of
from tests.support.task_backend import RELATED, TaskBackend

STATUS = "notifications/tasks/status"
MAY = {"elicitation": {"form": {}}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])
OLD = pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
MUST = {"name": "alpha__must", "arguments": {"x": 1}}


@OLD
@KINDS
async def test_it_is_run_as_a_task_and_answered_as_if_it_were_none(
    autojump_clock: Any, kind: Any, version: str
) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(version=version)
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        assert task.request.params["arguments"] == {"x": 1}
        await trio.sleep(3)
        task.complete("done")
        assert await call.result() == {"content": [{"type": "text", "text": "done"}]}
        assert len(alpha.asked_for("tools/call")) == 1
        assert len(alpha.asked_for("tasks/get")) >= 3


@pytest.mark.parametrize(("endpoint", "name"), [("alpha", "must"), ("", "alpha__must")])
async def test_its_caller_hears_nothing_of_the_task(autojump_clock: Any, endpoint: str, name: str) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        events = client.listen()
        call = client.begin("tools/call", {"name": name, "arguments": {"x": 1}})
        task = await alpha.task()
        task.tell()
        await trio.sleep(1)
        task.complete("done")
        task.tell()
        assert await call.result() == {"content": [{"type": "text", "text": "done"}]}
        task.tell()
        alpha.upstream.notify("notifications/message", {"level": "error", "data": "all was said"})
        await events.next("notifications/message")
        assert not events.seen(STATUS)
        assert not call.seen(STATUS)


async def test_other_tools_and_other_servers_are_called_as_ever(autojump_clock: Any) -> None:
    alpha, beta = TaskBackend(), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        for name in ("alpha__may", "alpha__never"):
            assert await client.tool(name) == f"alpha: {name[7:]}"
        assert await client.tool("beta__echo") == "beta: echo"
        assert alpha.tasks == []
        assert not any("task" in request.params for request in alpha.asked_for("tools/call"))


async def test_the_list_is_asked_for_once_and_again_when_it_has_changed(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        for _ in range(3):
            await client.tool("may")
        assert len(alpha.asked_for("tools/list")) == 1
        alpha.lists["tools/list"][1]["execution"] = {"taskSupport": "required"}
        alpha.upstream.notify("notifications/tools/list_changed")
        call = client.begin("tools/call", {"name": "may"})
        (await alpha.task()).complete("as a task")
        assert (await call.result())["content"][0]["text"] == "as a task"


@KINDS
async def test_its_questions_reach_the_caller_and_its_answers_the_server(autojump_clock: Any, kind: Any) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY, version="2025-06-18")
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        task.status = "input_required"
        asked = (await task.wanted()).ask("elicitation/create", {**FORM, **task.related})
        question = await call.next("elicitation/create")
        assert RELATED not in question["params"].get("_meta", {})
        await client.respond(question, {"action": "accept", "content": {}})
        assert (await asked.outcome())["result"]["action"] == "accept"
        task.complete("thanks")
        assert (await call.result())["content"][0]["text"] == "thanks"


async def test_a_question_of_the_task_on_no_calls_stream_is_of_its_call(autojump_clock: Any) -> None:
    alpha = TaskBackend(kind="http")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY)
        call = client.begin("tools/call", {"name": "must"})
        task = await alpha.task()
        await gateway.settle()
        asked = alpha.upstream.ask("elicitation/create", {**FORM, **task.related})
        await call.next("elicitation/create")
        task.complete("done")
        assert (await call.result())["content"][0]["text"] == "done"
        assert (await asked.outcome())["error"]["code"] == -32603


async def test_a_cancel_of_the_call_cancels_the_task(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        await trio.sleep(1)
        await client.cancel(call)
        await call.response()
        await gateway.settle()
        assert task.status == "cancelled"
        assert not any(m == "notifications/cancelled" for m in alpha.upstream.methods)


async def test_a_call_that_takes_too_long_ends_at_its_deadline_and_its_task_with_it(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha, request_deadline=20.0) as gateway:
        client = await gateway.connect()
        before = trio.current_time()
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        error = await call.error()
        assert (error.code, error.data["reason"]) == (-32603, "timeout")
        assert 20 <= trio.current_time() - before < 22
        await gateway.settle()
        assert task.status == "cancelled"


async def test_the_end_of_the_session_cancels_the_task(autojump_clock: Any) -> None:
    alpha = TaskBackend(kind="http")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        client.begin("tools/call", MUST)
        await alpha.task()
        await trio.sleep(1)
        await client.delete()
        await trio.sleep(10)
        assert alpha.methods.count("tasks/cancel") == 1


async def test_an_error_of_the_tool_is_the_callers_error(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        task.complete("broken", status="failed", isError=True)
        assert (await call.result())["isError"] is True
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        task.status = "failed"
        assert (await call.error()).code == -32603


async def test_a_status_that_is_told_saves_the_wait_for_the_next_poll(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        task.poll = 30_000
        await trio.sleep(1)
        before = trio.current_time()
        task.complete()
        task.tell()
        await call.result()
        assert trio.current_time() - before < 1


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_lost_connection_does_not_lose_the_task(autojump_clock: Any, kind: Any) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", MUST)
        task = await alpha.task()
        task.status = "input_required"
        await task.wanted()
        alpha.upstream.die()
        await gateway.settle()
        task.complete("still there")
        assert (await call.result())["content"][0]["text"] == "still there"
        assert len(alpha.upstreams) >= 2
        assert len(alpha.asked_for("tools/call")) == 1


async def test_a_client_that_runs_tasks_itself_gets_the_servers_own_answer(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        tasks = {"requests": {"elicitation": {"create": {}}}}
        client = await gateway.connect(capabilities={**MAY, "tasks": tasks})
        assert (await client.begin("tools/call", MUST).error()).code == -32601


@KINDS
async def test_over_a_pool_it_is_driven_and_its_questions_are_suspended(autojump_clock: Any, kind: Any) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", {"elicit.form"})
        call = client.tool("must")
        task = await alpha.task()
        task.status = "input_required"
        asked = (await task.wanted()).ask("elicitation/create", {**FORM, **task.related})
        suspended = await client.suspended(call)
        assert RELATED.encode() not in bytes(suspended.requests[0].params)
        await trio.sleep(60)
        call = client.accept(suspended)
        assert (await asked.outcome())["result"]["action"] == "accept"
        task.complete("done")
        assert await client.text(call) == "done"
        assert len(alpha.asked_for("tools/call")) == 1


async def test_over_a_pool_a_cancel_cancels_the_task(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = PoolClient(gateway, pools_of(gateway), "alpha", set())
        call = client.tool("must")
        task = await alpha.task()
        await trio.sleep(1)
        client.cancel(call)
        await trio.sleep(1)
        assert task.status == "cancelled"
