"""Replicas whose wall clocks differ: nothing goes by them but the end of what is sealed, with a minute of grace."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.actors.test_continued import back, begun
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend, needs
from tests.support.pooled import FORM, asker, client, retry, suspend, text

HOURS = 3 * 3600.0


def ahead(gateway: Gateway, seconds: float) -> None:
    """The wall clock of its machine goes so far ahead of the true time."""
    object.__setattr__(gateway.services, "wall", lambda: trio.current_time() + seconds)


@pytest.mark.parametrize("skew", [-60.0, 60.0])
async def test_a_suspended_call_goes_on_at_a_replica_with_another_clock(autojump_clock: Any, skew: float) -> None:
    alpha = asker()
    async with open_replicas(2, alpha, park_ttl=30.0) as (one, two):
        ahead(two, skew)
        for here, there in ((one, two), (two, one)):
            asked, request = await suspend(client(here), alpha)
            await trio.sleep(29)
            call = client(there).begin("tools/call", retry(asked))
            await there.settle()
            request.text("done")
            assert text(await call.result()) == "done"


@pytest.mark.parametrize(("skew", "good"), [(59.0, True), (62.0, False)])
async def test_what_is_sealed_is_good_for_a_minute_after_its_time(autojump_clock: Any, skew: float, good: bool) -> None:
    alpha = ModernBackend("alpha", tools=("ask",), held={"ask"})
    async with open_replicas(2, alpha, park_ttl=30.0) as (one, two):
        ahead(two, skew)
        call = client(one).begin("tools/call", {"name": "ask"})
        needs(await alpha.next(), "kept", q={"method": "elicitation/create", "params": {"mode": "form", **FORM}})
        asked = await call.result()
        await trio.sleep(29)
        call = client(two).begin("tools/call", retry(asked))
        if good:
            (await alpha.next()).result({"resultType": "complete", "content": []})
            assert (await call.result())["content"] == []
        else:
            assert (await call.error()).code == -32602
        assert len(alpha.asked_for("tools/call")) == 1 + good


def http(**more: Any) -> Backend:
    return Backend("alpha", kind="http", **more)


@pytest.mark.parametrize("skew", [-HOURS, HOURS])
async def test_a_session_at_rest_ends_at_its_time_whatever_the_clocks_say(autojump_clock: Any, skew: float) -> None:
    alpha = http()
    async with open_replicas(2, alpha, idle_ttl=600.0) as (one, two):
        ahead(two, skew)
        for here, there in ((one, two), (two, one)):
            user = await here.connect("alpha")
            await user.tool("echo")
            await trio.sleep(500)
            assert len(here.actors.sessions.table) == 0
            user.to(there)
            assert await user.tool("echo") == "alpha: echo"
            await trio.sleep(500)
            assert len(there.store.records()) == 1  # type: ignore[attr-defined]
            await trio.sleep(150)
            assert there.store.records() == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("skew", [-HOURS, HOURS])
async def test_leases_epochs_and_what_is_in_flight_know_no_wall_clock(autojump_clock: Any, skew: float) -> None:
    alpha = http(tools=("echo", "work"), held={"work"})
    async with open_replicas(2, alpha) as (one, two):
        ahead(two, skew)
        user = await one.connect("alpha")
        call, story = await begun(user, alpha, "work")
        await trio.sleep(10)
        assert two.actors.sessions.table.keys() == set()
        [before] = [record.epoch for record in two.store.records().values()]  # type: ignore[attr-defined]
        one.kill()
        await trio.sleep(6)
        story.result("done")
        user.to(two)
        answer = await back(user, call).response()
        assert answer["result"]["content"][0]["text"] == "done"
        assert len(alpha.asked_for("tools/call")) == 1
        [after] = two.store.records().values()  # type: ignore[attr-defined]
        assert after.owner == two.store.owner
        assert before < after.epoch < before + 60_000
