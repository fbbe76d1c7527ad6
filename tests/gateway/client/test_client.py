"""What a client does with any server."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from gateway.client import McpError
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.e2e

TOOLS = {"add", "steps", "stalls", "sampled", "sized", "folders", "chat", "slow", "ended", "broken"}


async def test_lists_are_all_there_by_await_and_come_page_by_page(opening: Any) -> None:
    async with opening() as client:
        tools = await client.list_tools()
        assert {tool.name for tool in tools} >= TOOLS
        assert tools[0].input_schema["type"] == "object"
        assert [tool.name async for tool in client.list_tools()] == [tool.name for tool in tools]
        assert tools[0].raw["inputSchema"] == tools[0].input_schema
        assert [resource.uri for resource in await client.list_resources()] == ["shop://price"]
        assert [template.uri_template for template in await client.list_templates()] == ["shop://items/{name}"]
        (prompt,) = await client.list_prompts()
        assert (prompt.name, prompt.arguments[0].name, prompt.arguments[0].required) == ("greet", "name", True)


async def test_results_are_typed_and_have_what_came(opening: Any) -> None:
    async with opening() as client:
        assert client.server_info["name"] == "shop"
        assert client.instructions == "Ask for the price."
        await client.ping()
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert not result.is_error
        assert result.structured_content == {"result": 3} == result.raw["structuredContent"]
        assert result.content[0].type == "text"
        assert (await client.read_resource("shop://items/hat")).contents[0].text == "a hat"
        read = await client.read_resource("shop://price")
        assert (read.text, read.raw["contents"][0]["uri"]) == ("7", "shop://price")
        prompt = await client.get_prompt("greet", {"name": "Ada"})
        assert (prompt.messages[0].role, prompt.messages[0].content.text) == ("user", "Hello Ada")
        assert (await client.complete("greet", "name", "A")).values == ["Ada", "Alan"]
        reference = {"type": "ref/prompt", "name": "greet"}
        completion = await client.complete(reference, "name", "B")
        assert completion.raw["completion"]["values"] == ["Bob"]


async def test_a_tool_that_fails_is_a_result_and_a_refusal_has_its_code(opening: Any) -> None:
    async with opening() as client:
        result = await client.call_tool("broken")
        assert result.is_error
        assert "out of stock" in result.text
        with pytest.raises(McpError) as refused:
            await client.request("no/such/method")
        assert refused.value.code in (-32601, -32602)
        assert refused.value.raw["message"] == refused.value.message


async def test_handlers_answer_what_a_server_asks_meanwhile(opening: Any) -> None:
    asked: list[dict[str, Any]] = []

    async def sample(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {
            "role": "assistant",
            "content": {"type": "text", "text": "a hat"},
            "model": "m",
            "stopReason": "endTurn",
        }

    def elicit(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return {"action": "accept", "content": {"size": 7}}

    async with opening(sampling=sample, elicitation=elicit, roots=["file:///a", "file:///b"]) as client:
        assert (await client.call_tool("sampled")).text == "a hat"
        assert (await client.call_tool("sized")).text == "accept 7"
        assert (await client.call_tool("folders")).text == "file:///a file:///b"
    assert asked[0]["messages"][0]["content"]["text"] == "What is it?"
    assert asked[1]["requestedSchema"]["properties"]["size"]["type"] == "integer"


async def test_words_stand_for_answers(opening: Any) -> None:
    async with opening(sampling=lambda params: "a cap", elicitation=lambda params: "decline") as client:
        assert (await client.call_tool("sampled")).text == "a cap"
        assert (await client.call_tool("sized")).text == "decline"


async def test_progress_comes_in_order_and_before_the_result(opening: Any) -> None:
    seen: list[Any] = []

    async def note(value: float, total: float | None, message: str | None) -> None:
        await trio.sleep(0)
        seen.append((value, total, message))

    async with opening() as client:
        assert (await client.call_tool("steps", {"count": 3}, progress=note)).text == "there"
        assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        await client.call_tool("steps", {"count": 2}, progress=lambda *step: seen.append(step))
    assert seen[3:] == [(1, 2, "step 1"), (2, 2, "step 2")]


async def test_what_progress_raises_ends_the_call(opening: Any) -> None:
    def stop(value: float, total: float | None, message: str | None) -> None:
        raise KeyError(message)

    async with opening() as client:
        with pytest.raises(KeyError):
            # Not a tool that ends: a server on the SDK 1.x that is told so at the same moment is deaf from then on.
            await client.call_tool("stalls", progress=stop)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_cancelling_the_scope_of_a_call_stops_it_at_the_server(opening: Any) -> None:
    async with opening() as client:
        before = len((await client.call_tool("ended")).structured_content["result"])
        with trio.fail_after(PATIENCE):
            while len((await client.call_tool("ended")).structured_content["result"]) == before:
                with trio.move_on_after(0.3) as scope:  # again where the server had not begun by then
                    await client.call_tool("slow")
                assert scope.cancelled_caught


async def test_the_log_is_told(opening: Any) -> None:
    told: list[dict[str, Any]] = []
    async with opening(log=told.append) as client:
        await client.call_tool("chat", {"level": "warning"})
        with trio.fail_after(PATIENCE):
            while not told:
                await trio.sleep(0.02)
    assert (told[0]["level"], told[0]["data"]) == ("warning", "psst")


async def test_what_the_block_raises_comes_out_as_it_is(opening: Any) -> None:
    with pytest.raises(KeyError):
        async with opening():
            raise KeyError("mine")
    with pytest.raises(McpError):
        async with opening() as client:
            await client.request("no/such/method")
    with trio.move_on_after(0.3) as scope:
        async with opening() as client:
            await client.call_tool("slow")
    assert scope.cancelled_caught


async def test_many_calls_at_once(opening: Any) -> None:
    async with opening() as client, trio.open_nursery() as nursery:

        async def one(n: int) -> None:
            assert (await client.call_tool("add", {"a": n, "b": n})).structured_content == {"result": 2 * n}

        for n in range(30):
            nursery.start_soon(one, n)


async def test_a_level_is_set_in_both_eras(opening: Any) -> None:
    told: list[dict[str, Any]] = []
    async with opening(log=told.append) as client:
        if "logging" not in client.capabilities:
            pytest.skip("the server does not log by level")
        await client.set_level("error")
        await client.call_tool("chat", {"level": "warning"})
        await client.call_tool("chat", {"level": "critical"})
        with trio.fail_after(PATIENCE):
            while "critical" not in [params["level"] for params in told]:
                await trio.sleep(0.02)
    assert [params["level"] for params in told] == ["critical"]


async def test_changes_of_a_resource_are_iterated(opening: Any) -> None:
    async with opening() as client:
        if not client.capabilities.get("resources", {}).get("subscribe"):
            pytest.skip("the server has no subscriptions")
        with trio.fail_after(PATIENCE):
            async with client.subscribe("shop://price") as updates:
                await client.call_tool("sell")
                assert (await anext(updates)).uri == "shop://price"
            async with trio.open_nursery() as nursery:

                async def sell() -> None:
                    while True:
                        await client.call_tool("sell")
                        await trio.sleep(0.05)

                nursery.start_soon(sell)
                async for update in client.subscribe("shop://price"):
                    assert update.raw["uri"] == "shop://price"
                    break
                nursery.cancel_scope.cancel()


def test_an_error_of_a_gateway_tells_whether_the_server_did_it() -> None:
    assert McpError(-32000, "no room", {"executed": "no"}).executed == "no"
    for data in (None, {}, "no", ["executed"], {"executed": "yes"}):
        assert McpError(-32603, "lost", data).executed == "unknown"
