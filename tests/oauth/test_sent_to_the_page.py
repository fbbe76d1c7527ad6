"""What becomes of a call whose user was sent to the page, and does something else than to connect his account."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.protocol.table import Endpoint
from tests.oauth.test_user_accounts import TOKENS, URL_MODE, Browser, configured, flow_of, opened, text_of, user_of
from tests.support.authorized import ADDRESS, Running, open_authorized
from tests.support.oauth import open_oauth_world
from tests.support.patience import PATIENCE
from tests.support.wire_client import RpcError, WireClient

LATE = 0.3
"""Seconds that a call waits here."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.endpoints.connecting.WAITS", LATE)


async def session(gateway: Running) -> WireClient:
    client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
    await client.connect()
    return client


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_who_would_not_connect_has_a_result_that_says_so(era: str, action: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        if era == "legacy":
            client = await session(gateway)
            call: Any = client.start_call("a__whoami")
            await client.answer(await call.message("elicitation/create"), {"action": action})
            result = await call.result()
        else:
            modern = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
            call = modern.start_call("a__whoami")
            required = await call.required()
            (key,) = required["inputRequests"]
            result = await modern.retry(call, required, {key: {"action": action}}).complete()
        assert result["isError"] is True
        assert "did not" in text_of(result)
        assert world.calls() == []


@pytest.mark.parametrize("asked", [True, False])
async def test_what_was_to_become_a_task_has_an_error_where_no_account_is_connected(
    asked: bool, tmp_path: Path
) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE if asked else {})
        said = await client.connect()
        assert "call" in said["capabilities"]["tasks"]["requests"]["tools"]
        call = client.start("tools/call", {"name": "a__whoami", "arguments": {}, "task": {}})
        if asked:
            await client.answer(await call.message("elicitation/create"), {"action": "decline"})
        error = await call.error()
        assert (error.code, error.data["executed"]) == (-32603, "no")
        assert error.data["reason"] == ("declined" if asked else "not_connected")
        assert world.calls() == []


@pytest.mark.usefixtures("impatient")
async def test_who_takes_longer_gets_the_same_page_again_and_is_told_when_he_has_been_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = await session(gateway)
        other = await session(gateway)
        streams = [await client.listen(), await other.listen()]
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        await client.answer(asked, {"action": "accept"})
        refused = await call.error()
        (again,) = refused.data["elicitations"]
        assert (refused.code, again) == (-32042, asked["params"])
        assert world.calls() == []
        await Browser(gateway, world, "ann").connect(again["url"])
        told = await streams[0].message("notifications/elicitation/complete")
        assert told["params"] == {"elicitationId": again["elicitationId"]}
        for stream in streams:
            kinds = {str((await stream.next() or {}).get("method")).split("/")[1] for _ in range(3)}
            assert kinds == {"tools", "prompts", "resources"}
        assert user_of(await client.call("a__whoami")) == "ann"


async def test_nobody_else_is_told_that_somebody_has_connected(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = gateway.legacy(token=TOKENS["bob"], capabilities=URL_MODE)
        await client.connect()
        stream = await client.listen()
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        with pytest.raises(trio.TooSlowError):
            await stream.next(LATE)


@pytest.mark.usefixtures("impatient")
async def test_a_modern_client_that_comes_too_early_gets_the_same_page_and_nothing_runs(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
        call = client.start_call("a__whoami")
        required = await call.required()
        (question,) = required["inputRequests"].values()
        assert set(question["params"]) == {"mode", "message", "url"}  # 2026-07-28 has no `elicitationId`
        for _ in range(2):
            (key,) = required["inputRequests"]
            again = client.retry(call, required, {key: {"action": "accept"}})
            before, required = required, await again.required()
            assert required["inputRequests"] == before["inputRequests"]
        assert world.calls() == []


async def test_4_what_a_call_waits_with_is_nobody_elses(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        ann = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
        call = ann.start_call("a__whoami")
        required = await call.required()
        (key,) = required["inputRequests"]
        bob = gateway.modern(token=TOKENS["bob"], capabilities=URL_MODE)
        refused = await bob.retry(call, required, {key: {"action": "accept"}}).error()
        assert refused.code == -32602
        assert world.calls() == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("mode", ["warn", "block"])
async def test_who_has_not_connected_sees_what_was_accepted_of_the_server(era: str, mode: str, tmp_path: Path) -> None:
    accepted = [{"name": "whoami", "inputSchema": {"type": "object"}, "description": "as it was accepted"}]
    prompts = [{"name": "greet"}]
    pinned = {"v": 1, "lists": {"tools/list": accepted, "prompts/list": prompts}}
    (tmp_path / "stagedoor.lock").write_text(json.dumps({"version": 2, "servers": {"a": pinned}}))
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["gateway"]["pins"] = {"mode": mode}
        async with open_authorized(settings, tmp_path) as gateway:
            client: Any = await session(gateway)
            if era == "modern":
                client = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
            listed = (await client.request("tools/list"))["tools"]
            assert [(tool["name"], tool["description"]) for tool in listed] == [("a__whoami", "as it was accepted")]
            assert [prompt["name"] for prompt in (await client.request("prompts/list"))["prompts"]] == ["a__greet"]
            if mode == "block":
                return  # what the server says of it is something else
            await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
            assert user_of(await client.call("a__whoami")) == "ann"
            with trio.fail_after(PATIENCE):
                while [tool["name"] for tool in listed] != ["a__whoami", "a__of_ann"]:
                    listed = (await client.request("tools/list"))["tools"]
                    await trio.sleep(0.1)


async def test_a_client_that_can_not_ask_is_sent_there_by_its_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = await session(gateway)
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        await client.decline(asked, -32601)
        refused = await call.error()
        assert (refused.code, refused.data["elicitations"]) == (-32042, [asked["params"]])
        assert world.calls() == []


async def test_a_call_that_waits_for_an_account_ends_though_the_last_server_with_accounts_is_no_more(
    tmp_path: Path,
) -> None:
    """A reload may take it out of the file, and with it the pages."""
    async with opened(tmp_path) as (_, gateway):
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        now = replace(gateway.settings, auth=replace(gateway.settings.auth, browser=None))
        table = gateway.actors.services.table.value
        gateway.actors.replace_table(replace(table, backends={}, endpoints={"": Endpoint("", "aggregate", ())}))
        accounts = gateway.authorizing.accounts(lambda: now, ADDRESS, lambda: table, lambda *_: None)
        gateway.actors.services.accounts = accounts
        await client.answer(asked, {"action": "accept"})
        with pytest.raises(RpcError), trio.fail_after(PATIENCE):
            await call.result()
        assert (await client.request("tools/list"))["tools"] == []
        assert "crash" not in repr(gateway.log.events)
