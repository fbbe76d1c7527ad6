"""The tasks extension, between clients and servers without sessions."""

from typing import Any

import pytest
from trio.testing import MockClock

from actors.ports import Principal
from tests.actors.modern.conftest import Modern, Open
from tests.support.door_client import RpcError
from tests.support.mcp_backend import EVERYTHING
from tests.support.modern_client import ModernClient
from tests.support.peers import Peer, ServerRequested

TASKS = "io.modelcontextprotocol/tasks"
KNOWS = {"extensions": {TASKS: {}}}
TOLD = "notifications/tasks"
ACK = "notifications/subscriptions/acknowledged"
ENDPOINTS = pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])


def runs(name: str = "alpha", **more: Any) -> Peer:
    return Peer(name, capabilities={**EVERYTHING, "extensions": {TASKS: {}}}, **more)


def task(id: str = "T", status: str = "working", **more: Any) -> dict[str, Any]:
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": None}
    return {"taskId": id, "status": status, **times, **more}


async def made(at: Modern, client: ModernClient, tool: str, id: str = "T", peer: str = "alpha") -> dict[str, Any]:
    """What the client gets for a call that goes on as a task."""
    call = client.begin("tools/call", {"name": tool, "arguments": {}})
    asked = await at[peer].next()
    asked.result({"resultType": "task", **task(id)})
    return await call.result()


async def about(at: Modern, client: ModernClient, method: str, id: str, **more: Any) -> tuple[Any, ServerRequested]:
    call = client.begin(method, {"taskId": id, **more}, mcp_name=id)
    return call, await at["alpha"].next(method)


@ENDPOINTS
async def test_a_call_goes_on_as_a_task_under_an_id_that_says_nothing(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
) -> None:
    async with modern(runs(), Peer("beta")) as at:
        client = at.client(endpoint, capabilities=KNOWS)
        result = await made(at, client, prefix + "echo")
        assert result["resultType"] == "task"
        id = result["taskId"]
        assert id != "T"
        assert "alpha" not in id
        assert {k: result[k] for k in ("status", "createdAt", "ttlMs")} == {
            k: task()[k] for k in ("status", "createdAt", "ttlMs")
        }
        caller = at["alpha"].asked_for("tools/call")[0].message.client
        assert TASKS in bytes(caller.capabilities).decode()

        call, asked = await about(at, client, "tasks/get", id)
        assert asked.params["taskId"] == "T"
        asked.result({"resultType": "complete", **task(status="completed", result={"content": []})})
        found = await call.result()
        assert (found["taskId"], found["resultType"], found["result"]) == (id, "complete", {"content": []})

        call, asked = await about(at, client, "tasks/update", id, inputResponses={"k": {"action": "accept"}})
        assert (asked.params["taskId"], asked.params["inputResponses"]) == ("T", {"k": {"action": "accept"}})
        asked.result({"resultType": "complete"})
        assert (await call.result())["resultType"] == "complete"

        call, asked = await about(at, client, "tasks/cancel", id)
        asked.result({"resultType": "complete"})
        assert (await call.result())["resultType"] == "complete"


@ENDPOINTS
async def test_without_the_extension_there_are_no_tasks(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
) -> None:
    async with modern(runs()) as at:
        id = (await made(at, at.client(endpoint, capabilities=KNOWS), prefix + "echo"))["taskId"]
        client = at.client(endpoint)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            call = client.begin(method, {"taskId": id}, mcp_name=id)
            error = await call.error()
            assert (error.code, call.status) == (-32021, 400)
            assert error.data["requiredCapabilities"] == KNOWS
        call = client.begin("subscriptions/listen", {"notifications": {"taskIds": [id]}})
        assert (await call.error()).code == -32021
        with pytest.raises(RpcError, match="-32603"):
            await made(at, client, prefix + "echo")
        caller = at["alpha"].asked_for("tools/call")[-1].message.client
        assert TASKS not in bytes(caller.capabilities).decode()


@ENDPOINTS
async def test_a_task_of_another_client_and_one_of_nobody_cannot_be_told_apart(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
) -> None:
    async with modern(runs()) as at:
        ann = at.client(endpoint, Principal("ann"), capabilities=KNOWS)
        bob = at.client(endpoint, Principal("bob"), capabilities=KNOWS)
        id = (await made(at, ann, prefix + "echo"))["taskId"]
        errors = []
        for stranger in (id, "T", "none", id[:-2] + "xx"):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                error = await bob.begin(method, {"taskId": stranger}, mcp_name=stranger).error()
                errors.append((error.code, error.message, error.data))
        assert len(set(map(str, errors))) == 1
        assert errors[0][0] == -32602
        assert not at["alpha"].asked_for("tasks/get")


async def test_a_task_belongs_to_its_server_wherever_it_is_asked_about(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(runs(), runs("beta")) as at:
        alone, both = (at.client(e, capabilities=KNOWS) for e in ("alpha", ""))
        id = (await made(at, both, "alpha__echo"))["taskId"]
        call, asked = await about(at, alone, "tasks/get", id)
        asked.result(task())
        assert (await call.result())["resultType"] == "complete"
        other = (await made(at, both, "beta__echo", peer="beta"))["taskId"]
        assert (await alone.begin("tasks/get", {"taskId": other}, mcp_name=other).error()).code == -32602


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_what_only_the_other_era_has_is_not_found(modern: Open, autojump_clock: MockClock, method: str) -> None:
    async with modern(runs()) as at:
        call = at.client("alpha", capabilities=KNOWS).begin(method, {"taskId": "x"})
        assert (await call.error()).code == -32601
        assert call.status == 404


@ENDPOINTS
async def test_the_extension_is_offered_if_a_server_without_sessions_has_it(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
) -> None:
    for peer, offered in ((runs(), {TASKS: {}}), (runs(modern=False), {}), (Peer("alpha"), {})):
        async with modern(peer) as at:
            client = at.client(endpoint, capabilities=KNOWS)
            await client.call("tools/list")
            for _ in range(2):
                found = await client.call("server/discover")
            assert found["capabilities"].get("extensions", {}) == offered
            assert "tasks" not in found["capabilities"]


@ENDPOINTS
async def test_a_task_of_a_wrong_kind_is_no_task(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
) -> None:
    async with modern(runs()) as at:
        client = at.client(endpoint, capabilities=KNOWS)
        call = client.begin("tools/call", {"name": prefix + "echo", "arguments": {}})
        (await at["alpha"].next()).result({"resultType": "task", "taskId": "T", "status": "odd"})
        assert (await call.error()).code == -32603


@ENDPOINTS
async def test_a_subscription_hears_of_its_tasks_under_the_ids_it_named(
    modern: Open, autojump_clock: MockClock, endpoint: str, prefix: str
) -> None:
    async with modern(runs(), Peer("beta")) as at:
        client = at.client(endpoint, capabilities=KNOWS)
        ids = [(await made(at, client, prefix + "echo", "T"))["taskId"] for _ in range(2)]
        assert ids[0] != ids[1]  # two ids of one task: each is told its own
        other = (await made(at, client, prefix + "echo", "U"))["taskId"]
        first, second = (
            client.begin("subscriptions/listen", {"notifications": {"taskIds": [id, other, "none"]}}) for id in ids
        )
        for pending, id in zip((first, second), ids, strict=True):
            said = await pending.next(ACK)
            assert said["params"]["notifications"] == {"taskIds": [id, other]}
        listen = await at["alpha"].next("subscriptions/listen")
        assert listen.params["notifications"] == {"taskIds": ["T", "U"]}
        assert TASKS in bytes(listen.message.client.capabilities).decode()
        listen.tell(TOLD, **task("foreign"))
        listen.tell(TOLD, **task("T", status="completed", result={"content": []}))
        for pending, id in zip((first, second), ids, strict=True):
            told = await pending.next(TOLD)
            assert (told["params"]["taskId"], told["params"]["status"]) == (id, "completed")
            assert len(pending.seen(TOLD)) == 1


async def test_uris_in_a_tasks_result_are_those_of_the_endpoint(modern: Open, autojump_clock: MockClock) -> None:
    upstream = {"type": "resource_link", "uri": "test:///x", "name": "x"}
    async with modern(runs()) as at:
        client = at.client(capabilities=KNOWS)
        id = (await made(at, client, "alpha__echo"))["taskId"]
        call, asked = await about(at, client, "tasks/get", id)
        asked.result(task(status="completed", result={"content": [upstream]}))
        uri = (await call.result())["result"]["content"][0]["uri"]
        assert uri != "test:///x"
        assert "alpha" in uri
        call, asked = await about(at, client, "tasks/get", id)
        question = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}
        asked.result(task(status="input_required", inputRequests={"k": question}))
        found = await call.result()
        assert found["inputRequests"]["k"]["params"]["message"] == "[alpha] Who?"


async def test_a_server_with_sessions_hears_nothing_of_the_extension(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", capabilities=KNOWS)
        call = client.begin("tools/call", {"name": "echo", "arguments": {}})
        (await at["alpha"].next()).result({"content": [], "task": {"taskId": "x", "status": "working"}})
        assert (await call.result())["resultType"] == "complete"
