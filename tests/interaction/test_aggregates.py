"""What is peculiar to an aggregate: its introduction, its groups, its URIs (decisions of the gateway)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import NEWEST_ONLY
from tests.interaction.codes import INVALID_PARAMS, NOT_FOUND
from tests.interaction.stage import Stage
from tests.support.wire_client import Message, RpcError

pytestmark = pytest.mark.cells(NEWEST_ONLY)

ALL = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
    "completions": {},
    "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}},
}


@pytest.mark.requirement("capabilities-superset")
async def test_before_anybody_was_asked_an_aggregate_declares_all_that_may_be(stage: Stage) -> None:
    await stage.backend(capabilities={"tools": {}})
    client = await stage.connect()
    assert client.server_info["capabilities"] == ALL


@pytest.mark.requirement("capabilities-superset")
async def test_when_all_are_known_an_aggregate_declares_what_they_have(stage: Stage) -> None:
    (await stage.backend("alpha", capabilities={"tools": {}})).result("echo", text("yes"))
    await stage.backend("beta", capabilities={"resources": {"subscribe": True}, "experimental": {"x": {}}})
    await (await stage.connect()).request("tools/list")
    client = await stage.connect()
    assert client.server_info["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
    }


@pytest.mark.requirement("instructions-merged")
async def test_instructions_of_all_backends_stand_below_their_names(stage: Stage) -> None:
    for name in ("alpha", "beta"):
        backend = await stage.backend(name, instructions=f"how to use {name}\u200b\n# A heading")
        backend.result("echo", text("yes"))
    silent = await stage.backend("gamma")
    silent.result("echo", text("yes"))
    await (await stage.connect()).request("tools/list")
    instructions = (await stage.connect()).server_info["instructions"]
    for name in ("alpha", "beta"):
        assert f"# {name}\n" in instructions
        assert f"how to use {name}\n## A heading" in instructions
        assert f"{name}__" in instructions
    assert "gamma" not in instructions
    assert "\u200b" not in instructions


@pytest.mark.requirement("groups")
async def test_a_group_serves_its_backends_and_no_others(stage: Stage) -> None:
    for name in ("alpha", "beta", "gamma"):
        backend = await stage.backend(name)
        backend.result("echo", text(name))
    stage.group("pair", "gamma", "alpha")
    client = await stage.connect("/mcp/pair")
    listed = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
    assert listed == ["gamma__echo", "alpha__echo"]
    assert await client.call("gamma__echo") == text("gamma")
    assert (await client.start_call("beta__echo").error()).code == INVALID_PARAMS


@pytest.mark.requirement("resources-read", "isolation")
async def test_equal_uris_of_two_backends_are_two_resources(stage: Stage) -> None:
    for name in ("alpha", "my_Server", "4ever"):
        backend = await stage.backend(name)
        backend.add("resources", {"uri": "file:///same", "name": "same"})
        backend.answers("resources/read", {"contents": [{"uri": "file:///same", "text": name}]})
    client = await stage.connect()
    uris = [resource["uri"] for resource in (await client.request("resources/list"))["resources"]]
    assert len(set(uris)) == 3
    read = [(await client.request("resources/read", {"uri": uri}))["contents"][0] for uri in uris]
    assert [part["text"] for part in read] == ["alpha", "my_Server", "4ever"]
    assert [part["uri"] for part in read] == uris


@pytest.mark.requirement("resource-not-found", "templates-route")
async def test_the_case_of_a_prefix_makes_no_difference(stage: Stage) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "file:///A", "name": "a"})
    backend.answers("resources/read", {"contents": []})
    client = await stage.connect()
    assert await client.request("resources/read", {"uri": "ALPHA+file:///A"}) == {"contents": []}
    assert backend.of("resources/read")[0]["params"] == {"uri": "file:///A"}


@pytest.mark.requirement("isolation", "list-partial")
async def test_a_slow_backend_holds_up_neither_lists_for_long_nor_calls_of_others(stage: Stage) -> None:
    slow, quick = await stage.backend("slow"), await stage.backend("quick")
    quick.result("echo", text("yes"))

    @slow.on("initialize")
    async def late(request: Request) -> Message:
        await trio.sleep(25)
        return await slow.initialize(request)

    slow.result("echo", text("at last"))
    client = await stage.connect()
    stream = await client.listen()
    began = trio.current_time()
    assert await client.call("quick__echo") == text("yes")
    listed = await client.request("tools/list", within=60)
    assert [tool["name"] for tool in listed["tools"]] == ["quick__echo"]
    assert trio.current_time() - began < 2 * stage.limits.list_deadline + 5
    assert await stream.message("notifications/tools/list_changed", within=100)
    names = [tool["name"] for tool in (await client.request("tools/list", within=60))["tools"]]
    assert names == ["slow__echo", "quick__echo"]


@pytest.mark.requirement("backend-errors-pass")
async def test_the_uri_in_an_error_is_the_one_that_the_client_knows(stage: Stage) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "file:///a", "name": "a"})

    @backend.on("resources/read")
    async def read(request: Request) -> Message:
        raise RpcError({"code": NOT_FOUND, "message": "gone", "data": {"uri": request.params["uri"], "more": 1}})

    client = await stage.connect()
    error = await client.refused("resources/read", {"uri": "alpha+file:///a"})
    assert error.data == {"uri": "alpha+file:///a", "more": 1}
