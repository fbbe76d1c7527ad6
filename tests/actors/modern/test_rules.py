"""Attack 9 for what comes again: a retry with the state of before, a task, a list's next page, a channel."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from actors.protocol.policy import Policy, Rule, item
from tests.actors.modern.conftest import Open
from tests.actors.modern.test_questions import ANN, ANSWER, FORM, QUESTION, again, ask
from tests.actors.modern.test_tasks import KNOWS, TOLD, about, made, runs, task
from tests.actors.test_duplex import connected
from tests.actors.test_tasks_of_sessions import begun
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient
from tests.support.peers import Peer
from tests.support.task_backend import TaskBackend

AT = "2026-01-01T00:00:00Z"
ALL = Rule("policy[0]", allow=(item("alpha:*"), item("resource:alpha:*"), item("prompt:alpha:*")))


def deny(*items: str) -> Policy:
    return Policy([ALL, Rule("policy[1]", deny=tuple(map(item, items)))])


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])
async def test_9_a_retry_with_a_state_from_before_the_rules_is_decided_anew(
    modern: Open, autojump_clock: MockClock, era: str, endpoint: str, prefix: str
):
    async with modern(Peer("alpha", modern=era == "modern")) as at:
        at.gateway.change(policy=Policy([ALL]))
        client = at.client(endpoint, ANN, capabilities=FORM)

        async def asked() -> Any:
            pending = client.begin("tools/call", {"name": f"{prefix}echo", "arguments": {"b": 1, "a": [2]}})
            call = await at["alpha"].next()
            if era == "legacy":
                call.suspend(QUESTION)
            else:
                ask(call, requestState="theirs")
            return (await pending.result())["requestState"]

        async def retry(state: str) -> Any:
            params = {**again(state, **{"q-1" if era == "legacy" else "k": ANSWER}), "name": f"{prefix}echo"}
            pending = client.begin("tools/call", params)
            await at.gateway.settle()
            return pending

        def came() -> int:
            return len(at["alpha"].resumes) if era == "legacy" else len(at["alpha"].asked_for("tools/call")) - 1

        before, state = came(), await asked()
        at.gateway.change(policy=deny("alpha:echo"))
        pending = await retry(state)
        assert (await pending.error()).code == -32602
        assert came() == before + (0 if era == "legacy" else 1)  # nothing but the call that asked
        at.gateway.change(policy=Policy([ALL]))
        before = came()
        await retry(state)
        assert came() == before + 1


@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])
async def test_9_a_task_of_what_is_hidden_now_is_unknown(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
):
    async with modern(runs(tools=("echo", "other"))) as at:
        at.gateway.change(policy=Policy([ALL]))
        client = at.client(endpoint, ANN, capabilities=KNOWS)
        id = (await made(at, client, f"{prefix}echo"))["taskId"]
        at.gateway.change(policy=deny("alpha:other"))
        call, asked = await about(at, client, "tasks/get", id)
        asked.result({"resultType": "complete", "taskId": "T", "status": "working"})
        await call.result()
        at.gateway.change(policy=deny("alpha:echo"))
        error = await client.begin("tasks/get", {"taskId": id}, mcp_name=id).error()
        assert (error.code, error.message) == (-32602, "Invalid params: Unknown task")
        assert len(at["alpha"].asked_for("tasks/get")) == 1


@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])
async def test_9_links_to_what_is_hidden_are_not_in_what_tasks_bring(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
):
    links = [{"type": "resource_link", "uri": f"test:///{x}", "name": x} for x in ("secret", "open")]
    done = task(status="completed", result={"content": [*links, {"type": "text", "text": "done"}]})
    async with modern(runs()) as at:
        at.gateway.change(policy=deny("resource:alpha:test:///secret"))
        client = at.client(endpoint, ANN, capabilities=KNOWS)
        id = (await made(at, client, f"{prefix}echo"))["taskId"]
        listening = client.begin("subscriptions/listen", {"notifications": {"taskIds": [id]}})
        listen = await at["alpha"].next("subscriptions/listen")
        listen.tell(TOLD, **done)
        call, asked = await about(at, client, "tasks/get", id)
        asked.result({"resultType": "complete", **done})
        for found in ((await call.result()), (await listening.next(TOLD))["params"]):
            assert [block["type"] for block in found["result"]["content"]] == ["resource_link", "text"]
            assert found["result"]["content"][0]["uri"].endswith("test:///open")


@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])
async def test_9_so_is_one_of_a_session(autojump_clock: MockClock, endpoint: str, prefix: str):
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        gateway.change(policy=Policy([ALL]))
        client = await gateway.connect(endpoint)
        id = (await begun(client, f"{prefix}may"))["taskId"]
        gateway.change(policy=deny("alpha:must"))
        assert (await client.call("tasks/get", {"taskId": id}))["taskId"] == id
        gateway.change(policy=deny("alpha:may"))
        error = await client.begin("tasks/result", {"taskId": id}).error()
        assert (error.code, error.message) == (-32602, "Invalid params: Unknown task")
        assert alpha.asked_for("tasks/result") == []


@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])
async def test_9_nothing_is_told_of_the_task_of_a_tool_that_is_hidden_now(
    autojump_clock: MockClock, endpoint: str, prefix: str
):
    alpha = TaskBackend()
    async with open_gateway(alpha) as gateway:
        gateway.change(policy=Policy([ALL]))
        client = await gateway.connect(endpoint)
        stream = client.listen()
        hidden, shown = [(await begun(client, f"{prefix}{name}"))["taskId"] for name in ("may", "must")]
        gateway.change(policy=deny("alpha:may"))
        for id in (hidden, shown):
            status = {"taskId": id.removeprefix("alpha:"), "status": "working", "createdAt": AT, "ttl": None}
            alpha.upstream.notify("notifications/tasks/status", {**status, "lastUpdatedAt": AT})
        assert (await stream.next("notifications/tasks/status"))["params"]["taskId"] == shown


async def test_9_a_page_of_before_the_rules_leads_nowhere(autojump_clock: MockClock):
    backend = Backend("alpha", tools=[f"t{n}" for n in range(1500)])
    async with open_gateway(backend) as gateway:
        gateway.change(policy=Policy([ALL]))
        client = await gateway.connect()
        cursor = (await client.call("tools/list"))["nextCursor"]
        gateway.change(policy=deny("alpha:t1"))
        assert (await client.begin("tools/list", {"cursor": cursor}).error()).code == -32602


@pytest.mark.parametrize("modern_era", [False, True], ids=["legacy", "modern"])
async def test_9_on_a_channel_it_is_the_same_and_a_step_up_is_an_error(autojump_clock: MockClock, modern_era: bool):
    backend = Backend("alpha", tools=("echo", "hidden", "gated"))
    gated = Rule("policy[2]", scopes=((item("alpha:gated"), frozenset({"s"})),))
    async with open_gateway(backend) as gateway:
        gateway.change(policy=Policy([ALL, Rule("policy[1]", deny=(item("alpha:hidden"),)), gated]))
        async with connected(gateway) as wire:
            if not modern_era:
                await wire.initialize()
            listed = await wire.call(1, "tools/list", modern=modern_era)
            assert [t["name"] for t in listed["result"]["tools"]] == ["alpha__echo", "alpha__gated"]
            hidden = await wire.call(2, "tools/call", {"name": "alpha__hidden", "arguments": {}}, modern=modern_era)
            assert hidden["error"]["code"] == -32602
            step_up = await wire.call(3, "tools/call", {"name": "alpha__gated", "arguments": {}}, modern=modern_era)
            assert step_up["error"]["code"] == -32603
            assert step_up["error"]["data"]["required_scopes"] == ["s"]
            assert backend.asked_for("tools/call") == []


@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha+")])
async def test_what_a_server_says_to_everybody_is_for_its_reader_alone(
    autojump_clock: MockClock, endpoint: str, prefix: str
):
    backend = ModernBackend("alpha", hints={"ttlMs": 1000, "cacheScope": "public"})
    read = {"contents": [{"uri": "test:///a", "text": "x"}], "ttlMs": 1000, "cacheScope": "public"}
    backend.results["resources/read"] = lambda request: {"resultType": "complete", **read}
    async with open_gateway(backend) as gateway:
        client = ModernClient(gateway.door, gateway.nursery, endpoint, ANN)
        for policy, scope in ((None, "public"), (Policy([ALL]), "private")):
            gateway.change(policy=policy)
            assert (await client.call("resources/read", {"uri": f"{prefix}test:///a"}))["cacheScope"] == scope
            assert (await client.call("resources/list"))["cacheScope"] == "private"
