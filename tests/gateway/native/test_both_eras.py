"""The same handlers behind the gateway for clients of both eras: what they ask, say and raise arrives as each era has
it, and what they do happens once (docs/decisions/one-life-for-a-handler.md)."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from typing import Any

import pytest
import trio

from gateway.client import McpError
from stagedoor import open_client
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, shared_programs

__all__ = ["shared_programs"]
pytestmark = pytest.mark.e2e

ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
NATIVE = "tests.gateway.native.inquirer:server"
CONFIG = {
    "mcpServers": {"inquirer": {"native": NATIVE}, "hasty": {"native": NATIVE, "timeout": 1}},
}


@pytest.fixture(scope="module")
def gateway(shared_programs: Programs) -> Gateway:
    return shared_programs.gateway(CONFIG)


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(gateway: Gateway, era: str) -> Any:
    return partial(open_client, gateway.endpoint("inquirer"), ERAS[era])


async def counted(client: Any) -> dict[str, int]:
    found: dict[str, int] = (await client.call_tool("counts")).structured_content
    return found


async def test_what_a_handler_asks_is_answered_and_what_it_does_happens_once(opened: Any) -> None:
    asked: list[str] = []

    def elicit(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params["message"])
        assert params["requestedSchema"]["properties"]["city"]["type"] == "string"
        return {"action": "accept", "content": {"city": "Rome"}}

    def sample(params: dict[str, Any]) -> str:
        asked.append(params["messages"][0]["content"]["text"])
        return "wet"

    async with opened(sampling=sample, elicitation=elicit, roots=["file:///a"]) as client:
        before = await counted(client)
        result = await client.call_tool("plan")
        assert result.structured_content == {
            "action": "accept",
            "trip": {"city": "Rome", "days": 3},
            "said": "wet",
            "roots": ["file:///a"],
        }
        after = await counted(client)
    assert asked == ["Where to?", "What is Rome like?"]
    assert {what: after[what] - before.get(what, 0) for what in ("before", "between", "after")} == {
        "before": 1,
        "between": 1,
        "after": 1,
    }


async def test_a_page_may_be_asked_for(opened: Any) -> None:
    pages: list[str] = []

    def elicit(params: dict[str, Any]) -> dict[str, Any]:
        pages.append(params["url"])
        return {"action": "accept"}

    async with opened(elicitation=elicit) as client:
        assert (await client.call_tool("visit")).text == "accept"
    assert pages == ["https://example.com/pay"]


async def test_progress_and_log_arrive_and_the_level_holds(opened: Any) -> None:
    steps, told = [], []
    async with opened(log=told.append) as client:
        await client.set_level("warning")
        await client.call_tool("talks", progress=lambda *step: steps.append(step))
        with trio.fail_after(PATIENCE):
            while not told:
                await trio.sleep(0.02)
    assert steps == [(n, 3, f"step {n}") for n in (1, 2, 3)]
    assert [message["data"] for message in told] == [{"what": "a warning"}]


async def test_a_client_that_can_do_nothing_is_not_asked(opened: Any) -> None:
    async with opened() as client:
        assert (await client.call_tool("asks_anyway")).text == "ClientUnableError"


async def test_a_client_is_told_what_it_would_have_to_declare_as_its_era_has_it(opened: Any, era: str) -> None:
    words = "This needs a client that can do sampling, and this one has not declared it"
    async with opened() as client:
        with pytest.raises(McpError) as caught:
            await client.get_prompt("needs")
        assert caught.value.code == (-32021 if era == "modern" else -32600)
        assert caught.value.data == {"requiredCapabilities": {"sampling": {}}}
        if era == "modern":
            with pytest.raises(McpError) as caught:
                await client.call_tool("needs")
            assert (caught.value.code, caught.value.data) == (-32021, {"requiredCapabilities": {"sampling": {}}})
        else:
            result = await client.call_tool("needs")
            assert result.is_error
            assert result.text == words
            assert result.raw["_meta"] == {"stagedoor/requiredCapabilities": {"sampling": {}}}
        assert (await counted(client)).get("needed", 0) == 0


async def test_a_cancelled_call_cancels_its_handler(opened: Any) -> None:
    async with opened() as client:
        before = (await counted(client)).get("cancelled", 0)
        with trio.fail_after(PATIENCE):
            while (await counted(client)).get("cancelled", 0) == before:
                with trio.move_on_after(0.3):  # again where the server had not begun by then
                    await client.call_tool("endless")


async def test_the_state_stays_with_its_connection(opened: Any, era: str) -> None:
    async with opened() as client:
        assert [(await client.call_tool("remembers")).structured_content["result"] for _ in range(2)] == [1, 2]


async def test_errors_keep_their_codes_as_far_as_the_era_has_room_for_them(opened: Any, era: str) -> None:
    async with opened() as client:
        for code in (42, -1, -31999, -32602, -32050, -32000):
            with pytest.raises(McpError) as caught:
                await client.call_tool("fails", {"code": code})
            if era == "modern" and code in (-32050, -32000):
                assert caught.value.code == -32603
                assert caught.value.data == {"code": code, "data": {"why": "told"}}
            else:
                assert (caught.value.code, caught.value.data) == (code, {"why": "told"})
        with pytest.raises(McpError) as caught:
            await client.read_resource("inquirer://gone")
        assert caught.value.code == (-32602 if era == "modern" else -32002)
        assert caught.value.data == {"uri": "inquirer://gone"}


async def test_bad_arguments_and_bad_output_harm_their_own_call(opened: Any) -> None:
    async with opened() as client:
        refused = await client.call_tool("fails", {"code": "x"})
        assert refused.is_error
        assert refused.text.startswith("code: ")
        lied = await client.call_tool("lies")
        assert lied.is_error
        assert 'n: "none" is not of type "integer"' in lied.text
        assert (await client.call_tool("quick")).text == "quick"


async def test_one_that_never_ends_is_ended_at_its_deadline_alone(gateway: Gateway, era: str) -> None:
    async with open_client(gateway.endpoint("hasty"), ERAS[era]) as client:
        before = (await counted(client)).get("cancelled", 0)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(McpError):
                    await client.call_tool("endless")

            nursery.start_soon(wait)
            for _ in range(10):
                assert (await client.call_tool("quick")).text == "quick"
        with trio.fail_after(PATIENCE):
            while (await counted(client)).get("cancelled", 0) == before:
                await trio.sleep(0.02)


async def test_one_that_blocks_the_loop_is_named_in_a_warning_and_a_metric(gateway: Gateway, opened: Any) -> None:
    async with opened() as client:
        assert (await client.call_tool("blocks")).text == "blocked"
        assert (await client.call_tool("quick")).text == "quick"
    gateway.program.wait_output("native_handler_blocks_the_loop")
    [line] = [line for line in gateway.program.output().splitlines() if "blocks_the_loop" in line][:1]
    assert "blocks" in line
    assert "inquirer" in line

    def metrics() -> str:
        with urllib.request.urlopen(f"{gateway.admin}/metrics") as answer:
            text: str = answer.read().decode()
            return text

    told = [line for line in (await trio.to_thread.run_sync(metrics)).splitlines() if "native_blocked" in line]
    counts = [line for line in told if line.startswith("stagedoor_native_blocked_seconds_count")]
    counted = [line for line in counts if not line.endswith(" 0.0")]
    assert len(counted) == 1, told
    for label in ('server="inquirer"', 'mcp_method_name="tools/call"', 'gen_ai_tool_name="blocks"'):
        assert label in counted[0]


async def test_one_that_floods_with_progress_holds_nobody_up(opened: Any) -> None:
    async with opened() as flooded, opened() as other:
        async with trio.open_nursery() as nursery:
            seen: list[float] = []

            async def flood() -> None:
                result = await flooded.call_tool(
                    "floods", {"times": 20_000}, progress=lambda value, *_: seen.append(value)
                )
                assert result.text == "flooded"

            nursery.start_soon(flood)
            for _ in range(20):
                assert (await other.call_tool("quick")).text == "quick"
        assert seen == sorted(set(seen))
        assert (await flooded.call_tool("quick")).text == "quick"


async def test_a_handler_is_told_the_principal(shared_programs: Programs, era: str) -> None:
    tokens = {"ann": "token-of-ann", "bob": "token-of-bob"}
    gateway = shared_programs.gateway(
        {
            "mcpServers": {
                "inquirer": {"native": NATIVE},
                "everybodys": {"native": NATIVE, "sharing": "shared"},
            },
            "gateway": {"auth": {"tokens": tokens}},
        }
    )
    for name, token in tokens.items():
        headers = {"authorization": f"Bearer {token}"}
        async with open_client(gateway.endpoint("inquirer"), ERAS[era], headers=headers) as client:
            assert (await client.call_tool("who")).text == name
        async with open_client(gateway.endpoint("everybodys"), ERAS[era], headers=headers) as client:
            assert (await client.call_tool("who")).text == "None"


async def test_a_handler_is_told_the_rights_of_the_token_that_came_with_the_call(
    shared_programs: Programs, era: str
) -> None:
    tokens = {"ann": {"token": "token-of-ann", "groups": ["dev"], "scopes": ["read"]}, "bob": "token-of-bob"}
    servers = {"inquirer": {"native": NATIVE}}
    gateway = shared_programs.gateway({"mcpServers": servers, "gateway": {"auth": {"tokens": tokens}}})
    for token, told in (("token-of-ann", ["dev", "read", "ann"]), ("token-of-bob", ["bob"])):
        headers = {"authorization": f"Bearer {token}"}
        async with open_client(gateway.endpoint("inquirer"), ERAS[era], headers=headers) as client:
            assert json.loads((await client.call_tool("may")).text) == {"result": told}


async def test_nobody_in_particular_has_no_name(opened: Any) -> None:
    async with opened() as client:
        assert (await client.call_tool("who")).text == "None"
