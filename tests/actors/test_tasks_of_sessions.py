"""Tasks of 2025-11-25 between clients and servers with sessions, run by either end for the other."""

from typing import Any

import pytest
import trio

from actors.protocol.limiting import Limit
from actors.protocol.policy import Policy, Rule, item, limited
from gateway.config.conditions import CelCondition
from tests.support.door_client import Client
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import EVERYTHING, Backend
from tests.support.task_backend import RELATED, TASKS, TaskBackend

STATUS = "notifications/tasks/status"
MAY = {"elicitation": {"form": {}}, "sampling": {}}
RUNS = {"list": {}, "cancel": {}, "requests": {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
OFFERED = {"cancel": {}, "requests": {"tools": {"call": {}}}}
ENDPOINTS = pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha")])
KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])


async def begun(client: Client, tool: str, ttl: int = 60_000) -> Any:
    """The task that a call of a tool became."""
    result = await client.call("tools/call", {"name": tool, "arguments": {"x": 1}, "task": {"ttl": ttl}})
    return result["task"]


def named(prefix: str, id: str, by: str = ":") -> str:
    return f"{prefix}{by}{id}" if prefix else id


async def warmed(gateway: Gateway, **more: Any) -> None:
    """The catalogue knows what its servers can do."""
    client = await gateway.connect(**more)
    await client.names()
    await client.delete()


@ENDPOINTS
@KINDS
async def test_a_tool_runs_as_a_task_of_the_client(autojump_clock: Any, kind: Any, endpoint: str, prefix: str) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect(endpoint)
        assert client.server["capabilities"]["tasks"] == OFFERED
        made = await begun(client, named(prefix, "may", "__"))
        task = await alpha.task()
        assert task.request.params["task"] == {"ttl": 60_000}
        id = named(prefix, task.id)
        assert made == {**task.flat, "taskId": id}
        assert await client.call("tasks/get", {"taskId": id}) == {**task.flat, "taskId": id}
        result = client.begin("tasks/result", {"taskId": id})
        task.complete("done")
        found = await result.result()
        assert found == {"content": [{"type": "text", "text": "done"}], "_meta": {RELATED: {"taskId": id}}}
        assert len(alpha.asked_for("tools/call")) == 1


@ENDPOINTS
async def test_a_task_is_cancelled_by_its_own_request_alone(autojump_clock: Any, endpoint: str, prefix: str) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        made = await begun(client, named(prefix, "must", "__"))
        cancelled = await client.call("tasks/cancel", {"taskId": made["taskId"]})
        assert (cancelled["taskId"], cancelled["status"]) == (made["taskId"], "cancelled")
        assert (await alpha.task()).status == "cancelled"


@ENDPOINTS
@KINDS
async def test_a_question_of_a_task_comes_on_the_stream_of_whoever_waits_for_its_result(
    autojump_clock: Any, kind: Any, endpoint: str, prefix: str
) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint, capabilities=MAY)
        first = await begun(client, named(prefix, "must", "__"))
        second = await begun(client, named(prefix, "must", "__"))
        waits = [client.begin("tasks/result", {"taskId": made["taskId"]}) for made in (first, second)]
        for task in (await alpha.task(), await alpha.task()):
            await task.wanted()
        for task, wait, made in zip(alpha.tasks, waits, (first, second), strict=True):
            asked = alpha.upstream.ask("elicitation/create", {**FORM, **task.related})  # on any stream
            question = await wait.next("elicitation/create")
            assert question["params"]["_meta"] == {RELATED: {"taskId": made["taskId"]}}
            meta = {RELATED: {"taskId": made["taskId"]}}
            await client.respond(question, {"action": "accept", "content": {}, "_meta": meta})
            assert (await asked.outcome())["result"]["_meta"] == task.related["_meta"]
            task.complete("thanks")
            assert (await wait.result())["content"][0]["text"] == "thanks"


@ENDPOINTS
async def test_a_status_comes_where_news_come(autojump_clock: Any, endpoint: str, prefix: str) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        events = client.listen()
        made = await begun(client, named(prefix, "may", "__"))
        task = await alpha.task()
        task.status = "completed"
        task.tell()
        told = await events.next(STATUS)
        assert told["params"] == {**task.flat, "taskId": made["taskId"]}


@ENDPOINTS
@KINDS
@pytest.mark.parametrize("away", [False, True])
async def test_progress_of_a_task_goes_on_under_the_token_of_the_call_that_made_it(
    autojump_clock: Any, kind: Any, endpoint: str, prefix: str, away: bool
) -> None:
    alpha = TaskBackend(kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        call = {"name": named(prefix, "may", "__"), "arguments": {}, "task": {}}
        pending = client.begin("tools/call", call, progress="mine")
        made = (await pending.result())["task"]
        other = await begun(client, named(prefix, "may", "__"))  # of which nobody wants to hear
        task, unheard = await alpha.task(), await alpha.task()
        if away:
            await trio.sleep(600)  # its session may have left memory
            await client.call("tasks/get", {"taskId": made["taskId"]})
        events = client.listen()
        await gateway.settle()
        for value in (1, 2):
            said = {"progressToken": task.request.token, "progress": value, "total": 2}
            alpha.upstream.notify("notifications/progress", said | (task.related if value == 2 or away else {}))
            told = await events.next("notifications/progress")
            related = {"_meta": {RELATED: {"taskId": made["taskId"]}}}
            assert told["params"] == {"progressToken": "mine", "progress": value, "total": 2, **related}
        assert unheard.request.token is None
        assert other["taskId"] != made["taskId"]
        task.complete("done")
        assert (await client.call("tasks/result", {"taskId": made["taskId"]}))["content"][0]["text"] == "done"


async def test_progress_of_a_task_that_the_gateway_runs_is_that_of_the_call(autojump_clock: Any) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(version="2025-06-18")
        pending = client.begin("tools/call", {"name": "alpha__must", "arguments": {}}, progress="mine")
        task = await alpha.task()
        task.request.progress(1)
        told = await pending.next("notifications/progress")
        assert told["params"] == {"progressToken": "mine", "progress": 1}
        task.complete("done")
        assert (await pending.result())["content"][0]["text"] == "done"
        task.request.progress(2)  # too late
        await gateway.settle()


@ENDPOINTS
async def test_a_task_of_another_session_is_unknown(autojump_clock: Any, endpoint: str, prefix: str) -> None:
    alpha = TaskBackend(kind="http")
    async with open_gateway(alpha) as gateway:
        one, other = await gateway.connect(endpoint), await gateway.connect(endpoint)
        made = await begun(one, named(prefix, "may", "__"))
        await begun(other, named(prefix, "may", "__"))
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            for id in (made["taskId"], "none", "alpha:none", "gamma:x", ""):
                error = await other.begin(method, {"taskId": id}).error()
                assert error.code == -32602
            assert (await other.begin(method, {}).error()).code == -32602
        assert not any(method.startswith("tasks/") for method in alpha.methods)


@ENDPOINTS
async def test_lists_of_tasks_are_never_given(autojump_clock: Any, endpoint: str, prefix: str) -> None:
    async with open_gateway(TaskBackend()) as gateway:
        client = await gateway.connect(endpoint)
        assert (await client.begin("tasks/list").error()).code == -32601


@ENDPOINTS
@pytest.mark.parametrize("sharing", ["session", "shared"])
async def test_who_was_offered_no_tasks_can_ask_about_none(
    autojump_clock: Any, endpoint: str, prefix: str, sharing: Any
) -> None:
    alpha = Backend("alpha") if sharing == "session" else TaskBackend(sharing=sharing)
    async with open_gateway(alpha) as gateway:
        await warmed(gateway)
        client = await gateway.connect(endpoint)
        assert "tasks" not in client.server["capabilities"]
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await client.begin(method, {"taskId": "x"}).error()).code == -32601


@ENDPOINTS
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_older_clients_have_no_tasks(autojump_clock: Any, endpoint: str, prefix: str, version: str) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint, version=version)
        assert "tasks" not in client.server["capabilities"]
        tool = named(prefix, "may", "__")
        result = await client.call("tools/call", {"name": tool, "arguments": {}, "task": {}})
        assert result["content"][0]["text"] == "alpha: may"
        assert (await client.begin("tasks/get", {"taskId": "x"}).error()).code == -32601


@ENDPOINTS
async def test_older_servers_have_no_tasks(autojump_clock: Any, endpoint: str, prefix: str) -> None:
    alpha = TaskBackend(version="2025-06-18")
    async with open_gateway(alpha) as gateway:
        await warmed(gateway, capabilities=MAY)
        client = await gateway.connect(endpoint, capabilities={**MAY, "tasks": RUNS})
        assert "tasks" not in client.server["capabilities"]
        tool = named(prefix, "may", "__")
        assert "task" not in await client.call("tools/call", {"name": tool, "arguments": {}, "task": {}})
        assert "task" not in alpha.asked_for("tools/call")[0].params


async def test_an_aggregate_offers_tasks_if_a_server_has_them_or_may(autojump_clock: Any) -> None:
    async with open_gateway(Backend("alpha"), Backend("beta")) as gateway:
        assert (await gateway.connect()).server["capabilities"]["tasks"] == OFFERED
        await warmed(gateway)
        assert "tasks" not in (await gateway.connect()).server["capabilities"]
    async with open_gateway(TaskBackend(declares={"requests": TASKS["requests"]}), Backend("beta")) as gateway:
        await warmed(gateway)
        assert (await gateway.connect()).server["capabilities"]["tasks"] == {"requests": TASKS["requests"]}


async def test_over_a_shared_connection_there_are_none(autojump_clock: Any) -> None:
    alpha = TaskBackend(sharing="shared")
    async with open_gateway(alpha) as gateway:
        await warmed(gateway)
        for endpoint, tool in (("", "alpha__must"), ("alpha", "must")):
            client = await gateway.connect(endpoint)
            assert "tasks" not in client.server["capabilities"]
            call = client.begin("tools/call", {"name": tool, "arguments": {}, "task": {}})
            (await alpha.task()).complete("driven")
            assert (await call.result())["content"][0]["text"] == "driven"
        client = await gateway.connect()
        assert not any("execution" in tool for tool in (await client.call("tools/list"))["tools"])


async def test_a_server_that_cannot_cancel_is_not_asked_to(autojump_clock: Any) -> None:
    alpha = TaskBackend(declares={"requests": TASKS["requests"]})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        made = await begun(client, "alpha__may")
        assert (await client.begin("tasks/cancel", {"taskId": made["taskId"]}).error()).code == -32601


REFUSALS = [
    ("limit", {"limits": ((limited("alpha:*"), Limit(1, "h")),)}, (-32603, "limited")),
    ("condition", {"when": CelCondition("args.x == 2")}, (-32602, None)),
]


@ENDPOINTS
@pytest.mark.parametrize("as_task", [True, False])
@pytest.mark.parametrize(("kind", "of", "expected"), REFUSALS)
async def test_what_was_to_become_a_task_is_refused_with_an_error_and_not_with_a_result_of_the_tool(
    autojump_clock: Any, endpoint: str, prefix: str, as_task: bool, kind: str, of: Any, expected: Any
) -> None:
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        call = {"name": named(prefix, "may", "__"), "arguments": {"x": 1}, **({"task": {}} if as_task else {})}
        everything = item("*:*")
        if kind == "limit":
            rules = [Rule("policy[0]", allow=(everything,)), Rule("policy[1]", **of)]
            gateway.change(policy=Policy(rules))
            await client.call("tools/call", call)  # all that there is
        else:
            gateway.change(policy=Policy([Rule("policy[0]", allow=(everything,), **of)]))
        refused = client.begin("tools/call", call)
        if as_task:
            error = await refused.error()
            assert (error.code, (error.data or {}).get("reason")) == expected
        else:
            assert (await refused.result())["isError"] is True


@pytest.mark.parametrize("known", ["listed", "connected"])
async def test_no_task_is_made_of_a_server_that_runs_none_though_its_neighbour_does(
    autojump_clock: Any, known: str
) -> None:
    beta = Backend("beta")
    async with open_gateway(TaskBackend(), beta) as gateway:
        await warmed(gateway)
        client = await gateway.connect()
        assert client.server["capabilities"]["tasks"] == OFFERED
        if known == "connected":
            await client.call("tools/call", {"name": "beta__echo", "arguments": {}})
        before = len(beta.asked_for("tools/call"))
        error = await client.begin("tools/call", {"name": "beta__echo", "arguments": {}, "task": {}}).error()
        assert error.code == -32601
        assert len(beta.asked_for("tools/call")) == before


# What the client runs


@ENDPOINTS
@KINDS
async def test_a_client_runs_a_question_as_a_task_of_the_server_that_asked(
    autojump_clock: Any, kind: Any, endpoint: str, prefix: str
) -> None:
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint, capabilities={**MAY, "tasks": RUNS})
        events = client.listen()
        call = client.begin("tools/call", {"name": named(prefix, "ask", "__")})
        request = await alpha.next()
        assert request.upstream.declared["capabilities"]["tasks"] == {k: v for k, v in RUNS.items() if k != "list"}
        token = {"_meta": {"progressToken": "theirs"}}
        asked = request.ask("elicitation/create", {**FORM, "task": {"ttl": 1000}, **token})
        question = await call.next("elicitation/create")
        assert question["params"]["task"] == {"ttl": 1000}
        task = {"taskId": "mine", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttl": 1000}
        await client.respond(question, {"task": task})
        assert (await asked.outcome())["result"]["task"]["taskId"] == "mine"
        request.text("done")
        await call.result()
        # The token stays good as long as the task runs (2025-11-25, progress).
        own = {"progressToken": question["params"]["_meta"]["progressToken"], "progress": 1}
        own |= {"_meta": {RELATED: {"taskId": "mine"}}}
        await client.notify("notifications/progress", own)
        await gateway.settle()
        told = [m["params"] for m in alpha.upstream.messages if m.get("method") == "notifications/progress"]
        assert told == [{**own, "progressToken": "theirs"}]
        for method, result in (("tasks/get", task), ("tasks/result", {"action": "accept"}), ("tasks/cancel", task)):
            asked = alpha.upstream.ask(method, {"taskId": "mine"})
            question = await events.next(method)
            assert question["params"] == {"taskId": "mine"}
            await client.respond(question, result)
            assert (await asked.outcome())["result"] == result
        asked = alpha.upstream.ask("tasks/list", {})
        assert (await asked.outcome())["error"]["code"] == -32601


async def test_no_other_server_may_look_at_a_task_of_the_client_or_hear_of_it(autojump_clock: Any) -> None:
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    beta = Backend("beta", capabilities={**EVERYTHING, "tasks": TASKS})
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect(capabilities={**MAY, "tasks": RUNS})
        client.listen()
        await client.tool("beta__echo")
        call = client.begin("tools/call", {"name": "alpha__ask"})
        (await alpha.next()).ask("elicitation/create", {**FORM, "task": {}})
        task = {"taskId": "mine", "status": "working"}
        await client.respond(await call.next("elicitation/create"), {"task": task})
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await beta.upstream.ask(method, {"taskId": "mine"}).outcome())["error"]["code"] == -32602
        await client.notify(STATUS, {**task, "status": "completed"})
        await client.notify(STATUS, {**task, "taskId": "other"})
        await gateway.settle()
        assert alpha.upstream.params_of(STATUS) == [{**task, "status": "completed"}]
        assert STATUS not in beta.methods


async def test_a_server_cannot_ask_for_tasks_of_a_client_without_any(autojump_clock: Any) -> None:
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        assert "tasks" not in request.upstream.declared["capabilities"]
        request.ask("elicitation/create", {**FORM, "task": {}})
        assert "task" not in (await call.next("elicitation/create"))["params"]
        assert (await request.ask("tasks/get", {"taskId": "x"}).outcome())["error"]["code"] in (-32601, -32602)


@ENDPOINTS
async def test_a_session_that_comes_back_knows_its_tasks(autojump_clock: Any, endpoint: str, prefix: str) -> None:
    alpha = TaskBackend(kind="http")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        made = await begun(client, named(prefix, "may", "__"))
        await trio.sleep(600)
        assert len(gateway.actors.sessions.table) == 0
        (await alpha.task()).complete("kept")
        result = await client.call("tasks/result", {"taskId": made["taskId"]})
        assert result["content"][0]["text"] == "kept"
        assert result["_meta"] == {RELATED: {"taskId": made["taskId"]}}
