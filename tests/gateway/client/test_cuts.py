"""Connections that break: what can be fetched is fetched, and no call is sent twice."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from gateway.client import ConnectionLostError, McpError, RequestFailedError, streamable_http, subscriptions
from stagedoor import open_client
from tests.e2e import cutter as cutters
from tests.gateway.client.conftest import CONFIG, by_sdk
from tests.support.patience import PATIENCE
from tests.support.processes import Programs

pytestmark = pytest.mark.e2e

SESSIONS = "2025-11-25"


@pytest.fixture(scope="module")
def gateway(shared_programs: Programs) -> str:
    return shared_programs.gateway(CONFIG).endpoint("shop")


class Cutting:
    """The server at this URL, by way of a cutter."""

    def __init__(self, url: str, after: bytes) -> None:
        self._entered = cutters.cutting(url, after)
        self._path = urlsplit(url).path

    def __enter__(self) -> Cutting:
        self._cutter = self._entered.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered.__exit__(*raised)

    @property
    def url(self) -> str:
        return self._cutter.url + self._path

    @property
    def cuts(self) -> int:
        return self._cutter.cuts


async def executions(url: str) -> Any:
    async with open_client(url) as client:
        return (await client.call_tool("executed")).structured_content["result"]


async def test_an_answer_whose_stream_is_cut_is_fetched(gateway: str) -> None:
    before = await executions(gateway)
    seen: list[str] = []
    with Cutting(gateway, b'"step 2"') as cutter, trio.fail_after(PATIENCE):
        async with open_client(cutter.url, SESSIONS) as client:
            result = await client.call_tool("walk", {"count": 5}, progress=lambda *step: seen.append(step[2]))
    assert (cutter.cuts, result.text) == (1, "there")
    assert seen == [f"step {n}" for n in range(1, 6)]
    assert await executions(gateway) == before + 1


async def test_the_stream_of_what_belongs_to_no_request_goes_on_after_a_cut(gateway: str) -> None:
    with Cutting(gateway, b"notifications/resources/updated") as cutter, trio.fail_after(PATIENCE):
        async with open_client(cutter.url, SESSIONS) as client, client.subscribe("shop://price") as updates:
            await client.call_tool("sell")
            await anext(updates)
            before = client.transport.last_event_id
            await client.call_tool("sell")
            assert (await anext(updates)).uri == "shop://price"
            assert before is not None
            assert client.transport.session_id is not None
            assert client.transport.last_event_id != before
    assert cutter.cuts == 1


async def test_without_sessions_a_cut_ends_the_call_and_nothing_is_sent_again(gateway: str) -> None:
    before = await executions(gateway)
    with Cutting(gateway, b'"step 2"') as cutter, trio.fail_after(PATIENCE):
        async with open_client(cutter.url) as client:
            with pytest.raises(RequestFailedError) as failed:
                await client.call_tool("walk", {"count": 5}, progress=lambda *step: None)
            assert (failed.value.code, failed.value.executed) == (None, "unknown")
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
    assert await executions(gateway) == before + 1


async def test_a_subscription_without_sessions_is_made_again_after_a_cut_and_told_of_it(gateway: str) -> None:
    with Cutting(gateway, b"notifications/resources/updated") as cutter, trio.fail_after(PATIENCE):
        async with open_client(cutter.url) as client, client.subscribe("shop://price") as updates:
            await client.call_tool("sell")
            # The update that was cut off may be lost with its connection: then what is told of the cut comes first.
            assert (await anext(updates)).uri == "shop://price"
            async with trio.open_nursery() as nursery:

                async def sell() -> None:
                    while True:
                        await client.call_tool("sell")
                        await trio.sleep(0.1)

                nursery.start_soon(sell)
                for _ in range(3):
                    assert (await anext(updates)).uri == "shop://price"
                nursery.cancel_scope.cancel()
        assert cutter.cuts == 1


async def test_of_a_server_without_event_ids_nothing_can_be_fetched(shared_programs: Programs) -> None:
    with Cutting(by_sdk(shared_programs), b'"step 2"') as cutter, trio.fail_after(PATIENCE):
        async with open_client(cutter.url) as client:
            with pytest.raises(RequestFailedError, match="ended without an answer"):
                await client.call_tool("steps", {"count": 5}, progress=lambda *step: None)
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_a_session_that_the_server_has_forgotten_is_begun_anew(programs: Programs) -> None:
    gateway = programs.gateway(CONFIG)
    told: list[Any] = []
    async with open_client(gateway.endpoint("shop"), SESSIONS, log=told.append) as client:
        await client.set_level("error")
        async with client.subscribe("shop://price") as updates:
            gateway.program.kill()
            programs.gateway(CONFIG, in_place_of=gateway)
            with trio.fail_after(PATIENCE):
                await anext(updates)
                assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
                await client.call_tool("sell")
                await anext(updates)
            await client.call_tool("chat", {"level": "warning"})
    assert told == []


async def test_a_server_that_is_away_fails_what_is_asked_of_it(programs: Programs) -> None:
    gateway = programs.gateway(CONFIG)
    async with open_client(gateway.endpoint("shop"), SESSIONS) as client, trio.open_nursery() as nursery:

        async def walk() -> None:
            with pytest.raises((RequestFailedError, ConnectionLostError, McpError)):
                await client.call_tool("slow")

        nursery.start_soon(walk)
        await trio.sleep(0.5)
        with trio.fail_after(PATIENCE):
            await trio.to_thread.run_sync(gateway.program.kill)
            with pytest.raises(RequestFailedError) as failed:
                await client.ping()
            assert failed.value.executed == "no"
        nursery.cancel_scope.deadline = trio.current_time() + PATIENCE


@pytest.mark.parametrize("version", [SESSIONS, None])
async def test_a_subscription_to_a_server_that_does_not_come_back_ends(
    version: str | None, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (streamable_http, subscriptions):
        monkeypatch.setattr(module, "LISTENS", 2)
    gateway = programs.gateway(CONFIG)
    async with open_client(gateway.endpoint("shop"), version) as client, client.subscribe("shop://price") as updates:
        gateway.program.kill()
        with trio.fail_after(PATIENCE), pytest.raises(RequestFailedError):
            async for _ in updates:
                pass
