"""Sessions that are given back on purpose: by a drain, and to be moved. What their servers can go on with goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from actors.sessions.router import MoveSession, Router
from tests.support.calls import reached
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend, Request

LASTING: dict[str, Any] = {"kind": "http", "tools": ("echo", "slow", "work"), "held": {"slow", "work"}}


def lasting(**more: Any) -> Backend:
    """Its events have ids."""
    return Backend("alpha", **(LASTING | more))


async def begun(client: Client, backend: Backend, name: str = "work") -> tuple[Pending, Request]:
    """A call whose answer can be had again."""
    call = client.begin("tools/call", {"name": name}, progress="mine")
    request = await backend.next()
    backend.upstream.transport.prime("c0", request.id)
    params = {"progressToken": request.token, "progress": 1}
    backend.upstream.notify("notifications/progress", params, related=request.id, cursor="c1")
    await call.next("notifications/progress")
    return call, request


def answer(backend: Backend, request: Request, text: str = "done") -> None:
    """Over whichever connection there is."""
    result = {"content": [{"type": "text", "text": text}]}
    backend.upstream.transport.deliver({"id": request.id, "result": result}, request.id, "last")


def back(client: Client, call: Pending) -> Pending:
    """The client comes back for the rest."""
    rest = client.listen([e.id for e in call.events if e.id][-1])
    rest.id = call.id
    return rest


@asynccontextmanager
async def draining(gateway: Gateway, seconds: float = 8.0) -> AsyncIterator[None]:
    """It drains meanwhile, then it is gone."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.system.drain, seconds)
        await gateway.settle()
        yield
    gateway.kill(at_once=True)
    await trio.sleep(0)


def in_memory(gateway: Gateway) -> int:
    return sum(alive.ref.alive for alive in gateway.actors.sessions.table.values())


# A drain ------------------------------------------------------------------------------------------------------


async def test_a_session_without_work_is_given_back_at_once_and_goes_on_elsewhere(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        async with draining(one):
            assert not in_memory(one)
            client.to(two)
            assert await client.tool("echo") == "alpha: echo"
        assert alpha.methods.count("initialize") == 1


async def test_what_comes_before_the_store_says_that_it_was_given_back_waits_for_that(autojump_clock, monkeypatch):
    """On a cluster letters are in other hands than records."""
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.tool("echo")
        given_back: list[Callable[[], None]] = []
        release = one.store.release
        monkeypatch.setattr(
            one.store, "release", lambda *what, **more: given_back.append(partial(release, *what, **more))
        )
        async with draining(one):
            client.to(two)
            calls = [client.begin("tools/call", {"name": "echo"}) for _ in range(2)]
            await trio.sleep(1)
            for do in given_back:
                do()
            for call in calls:
                assert (await call.result())["content"][0]["text"] == "alpha: echo"


async def test_a_session_that_was_being_claimed_as_the_drain_began_is_given_back(autojump_clock, monkeypatch):
    alpha = lasting()
    async with open_replicas(3, alpha) as (one, two, three):
        client, busy = await one.connect("alpha"), await two.connect("alpha")
        await client.tool("echo")
        busy.begin("tools/call", {"name": "slow"})
        await alpha.next()
        one.kill(at_once=True)
        claims: list[Callable[[], None]] = []
        claim = two.store.claim
        monkeypatch.setattr(two.store, "claim", lambda *what, **more: claims.append(partial(claim, *what, **more)))
        client.to(two)
        refused = client.listen()
        await two.settle()
        async with draining(two):
            assert await refused.head() == 503
            for do in claims:
                do()
            assert [record.tries for record in three.store.records().values()] == [0, 0]  # type: ignore[attr-defined]
            client.to(three)
            assert await client.tool("echo") == "alpha: echo"
            assert in_memory(three) == 1


async def test_a_claim_of_which_the_store_tells_a_router_that_ends_is_given_back(autojump_clock, monkeypatch):
    """It is told in time, and has no time to read it."""
    alpha = lasting()
    async with open_replicas(3, alpha) as (one, two, three):
        client, busy = await one.connect("alpha"), await two.connect("alpha")
        await client.tool("echo")
        busy.begin("tools/call", {"name": "slow"})
        await alpha.next()
        one.kill(at_once=True)
        claims: list[Callable[[], None]] = []
        claim, drain = two.store.claim, Router.drain
        monkeypatch.setattr(two.store, "claim", lambda *what, **more: claims.append(partial(claim, *what, **more)))

        def drain_late(router: Router, deadline: float) -> None:
            while claims:
                claims.pop()()
            drain(router, deadline)

        monkeypatch.setattr(Router, "drain", drain_late)
        client.to(two)
        passed_on = client.begin("tools/call", {"name": "echo"})
        await two.settle()
        async with draining(two):
            assert (await passed_on.result())["content"][0]["text"] == "alpha: echo"
            assert in_memory(three) == 1
            client.to(three)
            assert await client.tool("echo") == "alpha: echo"


async def test_what_comes_on_a_kept_connection_is_done_by_another(autojump_clock):
    """Something else is in flight there, so that the process, and its clients' connections, last for a while."""
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client, busy = await one.connect("alpha"), await one.connect("alpha")
        call, request = await reached(busy, alpha)
        async with draining(one):
            assert await client.tool("echo") == "alpha: echo"
            assert await client.tool("echo") == "alpha: echo"
            assert in_memory(two) == 1
            assert (await client.begin("ping").result()) == {}
            request.text("done")
            await call.result()
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert alpha.methods.count("initialize") == 2


async def test_what_comes_while_its_session_is_being_given_back_waits_for_that(autojump_clock, monkeypatch):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client, busy = await one.connect("alpha"), await one.connect("alpha")
        call, request = await reached(busy, alpha)
        released = one.services.store.release

        def late(*arguments: Any, **more: Any) -> None:
            one.services.store.release = released
            one.nursery.start_soon(after, 0.5, lambda: released(*arguments, **more))

        monkeypatch.setattr(one.services.store, "release", late)
        async with draining(one):
            assert await client.tool("echo") == "alpha: echo"
            assert in_memory(two) == 1
            request.text("done")
            await call.result()


async def after(seconds: float, act: Callable[[], object]) -> None:
    await trio.sleep(seconds)
    act()


async def test_a_process_that_drains_alone_refuses_what_it_gave_back(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client, busy = await one.connect("alpha"), await one.connect("alpha")
        call, request = await reached(busy, alpha)
        async with draining(two):
            pass
        await trio.sleep(5)
        async with draining(one):
            refused = client.begin("tools/call", {"name": "echo"})
            assert await refused.head() == 503
            request.text("done")
            await call.result()
        assert len(alpha.asked_for("tools/call")) == 1


async def test_what_comes_while_something_runs_is_done_too(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        call, request = await reached(client, alpha)
        async with draining(one):
            assert await client.tool("echo") == "alpha: echo"
            request.text("done")
            assert (await call.result())["content"][0]["text"] == "done"
            await one.settle()
            assert not in_memory(one)


@pytest.mark.parametrize("how", ["drained", "moved"])
@pytest.mark.parametrize("where", ["here", "by mail"])
async def test_an_answer_that_comes_while_its_stream_is_opened_is_brought(autojump_clock, monkeypatch, where, how):
    """The store takes its time."""
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        if where == "by mail":
            client.to(two)
        acknowledged_late(one, monkeypatch, "open", 1.0)
        call, request = await reached(client, alpha)
        await trio.sleep(0.3)
        if how == "moved":
            one.nursery.start_soon(move, one)
            await one.settle()
            request.text("done")
            assert (await call.result())["content"][0]["text"] == "done"
        else:
            async with draining(one):
                request.text("done")
                assert (await call.result())["content"][0]["text"] == "done"
        await one.settle()
        assert not in_memory(one)


def acknowledged_late(gateway: Gateway, monkeypatch: Any, name: str, seconds: float) -> None:
    """The store does it at once, and says so later."""
    store = gateway.services.store
    method = getattr(store, name)

    def late(*arguments: Any, **more: Any) -> None:
        *rest, done = arguments
        method(*rest, lambda out: gateway.nursery.start_soon(after, seconds, lambda: done(out)), **more)

    monkeypatch.setattr(store, name, late)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_what_comes_too_late_is_not_begun_but_by_the_next_owner(autojump_clock, replicas):
    alpha = lasting()
    async with open_replicas(replicas, alpha) as (one, *others):
        client = await one.connect("alpha", capabilities={"roots": {}})
        call, request = await reached(client, alpha, progress="mine")
        asked = request.ask("roots/list", {})
        question = await call.next("roots/list")
        async with draining(one):
            await trio.sleep(5.5)
            late = client.begin("tools/call", {"name": "echo"})
            await trio.sleep(0.5)
            assert late.status is None
            await client.respond(question, {"roots": []})
            await asked.outcome()
            request.text("done")
            await call.result()
            assert await late.head() == (200 if others else 503)
        assert len(alpha.asked_for("tools/call")) == replicas
        assert [in_memory(other) for other in others] == [1] * len(others)


async def test_at_the_deadline_what_can_go_on_goes_on_and_the_rest_hears_an_error(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        lost = client.begin("tools/call", {"name": "slow"}, progress="other")
        await alpha.next()
        call, request = await begun(client, alpha)
        got = client.listen()
        await got.head()
        async with draining(one):
            await got.end()
            assert got.events[-1].retry
            error = await lost.error()
            assert error.data["reason"] == "shutdown"
            await call.end()
            assert call.events[-1].retry
        assert not request.cancelled.is_set()
        client.to(two)
        rest = back(client, call)
        await two.settle()
        answer(alpha, request)
        assert (await rest.result())["content"][0]["text"] == "done"
        assert len(alpha.asked_for("tools/call")) == 2


async def test_work_is_left_where_others_look_for_it(autojump_clock):
    """Nobody comes for it: the other replica takes it over all the same."""
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call, request = await begun(client, alpha)
        async with draining(one):
            await call.end()
        await trio.sleep(5)
        assert in_memory(two) == 1
        answer(alpha, request)
        await trio.sleep(1)
        client.to(two)
        assert (await back(client, call).result())["content"][0]["text"] == "done"


async def test_a_connection_of_an_older_client_is_lost_not_closed(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", version="2025-06-18")
        call, request = await begun(client, alpha)
        [connection] = session_of(one).recorder.connections.values()
        async with draining(one):
            await trio.sleep(6.9)
            assert not connection.lost
            await trio.sleep(0.2)
            assert connection.lost
        assert not call.seen("notifications/cancelled")
        client.to(two)
        rest = back(client, call)
        await two.settle()
        answer(alpha, request)
        await rest.result()


def session_of(gateway: Gateway) -> Any:
    [alive] = gateway.actors.sessions.table.values()
    return alive.ref.cell.actor


async def test_a_server_of_the_process_is_started_anew_and_what_may_have_changed_is_said_once(autojump_clock):
    alpha = Backend("alpha")
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        await client.call("logging/setLevel", {"level": "error"})
        await client.call("resources/subscribe", {"uri": "test:///a"})
        async with draining(one):
            assert not in_memory(one)
        client.to(two)
        events = client.listen()
        await trio.sleep(5)
        assert sorted(m["method"] for m in events.messages) == [
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        ]
        assert alpha.methods.count("initialize") == 2
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]
        assert alpha.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]
        assert await client.tool("echo") == "alpha: echo"
        await trio.sleep(5)
        assert len(events.messages) == 4


# Moved --------------------------------------------------------------------------------------------------------


async def move(gateway: Gateway) -> Any:
    [key] = gateway.actors.sessions.table
    router = gateway.system.registry.whereis("router")
    assert router is not None
    return await router.call(lambda reply: MoveSession(key, reply))


async def test_a_session_is_moved_with_its_calls(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", capabilities={"roots": {}})
        call, request = await begun(client, alpha)
        asked = alpha.upstream.ask("roots/list", {}, related=request.id, cursor="c2")
        question = await call.next("roots/list")
        lost = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        [connection] = session_of(one).recorder.connections.values()
        assert await move(one) is True
        assert not in_memory(one)
        assert connection.lost
        error = await lost.error()
        assert (error.data["reason"], error.data["executed"]) == ("moved", "unknown")
        client.to(two)
        rest = back(client, call)
        await two.settle()
        await client.respond(question, {"roots": []})
        await two.settle()
        assert [m["result"] for m in alpha.upstream.messages if m.get("id") == asked.id] == [{"roots": []}]
        answer(alpha, request)
        assert (await rest.result())["content"][0]["text"] == "done"
        assert not request.cancelled.is_set()
        assert alpha.methods.count("initialize") == 1
        [record] = two.store.records().values()
        assert record.owner == two.services.cluster.incarnation


async def test_what_nobody_else_wants_is_gone_on_with_here(autojump_clock):
    alpha = lasting()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha")
        call, request = await begun(client, alpha)
        call.drop()
        assert await move(one) is True
        assert not in_memory(one)
        await trio.sleep(6)
        assert in_memory(one) == 1
        answer(alpha, request)
        assert (await back(client, call).result())["content"][0]["text"] == "done"
        assert alpha.methods.count("tools/call") == 1


async def test_whoever_comes_here_waits_for_the_next_owner_for_a_while(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        assert await move(one) is True
        began = trio.current_time()
        assert await client.tool("echo") == "alpha: echo"
        assert 5 <= trio.current_time() - began < 6
        assert in_memory(one) == 1
        assert in_memory(two) == 0


async def test_the_while_begins_when_it_was_given_back(autojump_clock):
    alpha = lasting()
    async with open_replicas(1, alpha) as (one,):
        client = await one.connect("alpha")
        call, request = await begun(client, alpha)
        call.drop()
        asked = trio.current_time()
        assert await move(one) is True
        assert trio.current_time() - asked >= 2
        await trio.sleep(4.9)
        assert not in_memory(one)
        await trio.sleep(1)
        assert in_memory(one) == 1
        answer(alpha, request)
        assert (await back(client, call).result())["content"][0]["text"] == "done"


@pytest.mark.parametrize("ready", [False, True])
async def test_only_a_session_that_is_here_and_initialized_can_be_moved(autojump_clock, ready):
    async with open_replicas(2, lasting()) as (one, two):
        client = one.client("alpha")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opened = client.begin("initialize", params)
        await opened.result()
        client.session = opened.headers["mcp-session-id"]
        if ready:
            await client.notify("notifications/initialized")
        assert await move(one) is ready
        [key] = one.store.records()
        router = two.system.registry.whereis("router")
        assert await router.call(lambda reply: MoveSession(key, reply)) is False


async def test_no_quick_call_fails_while_it_is_moved(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        [key] = one.actors.sessions.table
        router = one.system.registry.whereis("router")
        outcome: list[Any] = []

        async def moving() -> None:
            outcome.append(await router.call(lambda reply: MoveSession(key, reply)))

        one.nursery.start_soon(moving)
        calls = [client.begin("tools/call", {"name": "echo"}) for _ in range(5)]
        for call in calls:
            assert (await call.result())["content"][0]["text"] == "alpha: echo"
        assert outcome == [True]
        assert len(alpha.asked_for("tools/call")) == 5


@pytest.mark.parametrize("how", ["its client ends it", "it crashes"])
async def test_whoever_moves_a_session_that_ends_meanwhile_is_told(autojump_clock, how):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, _):
        client = await one.connect("alpha")
        client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        outcome: list[Any] = []

        async def moving() -> None:
            outcome.append(await move(one))

        one.nursery.start_soon(moving)
        await one.settle()
        if how == "it crashes":
            [alive] = one.actors.sessions.table.values()
            alive.ref.reply("nonsense")
            await one.settle()
            one.crashes.clear()
        else:
            assert await client.delete() == 200
        with trio.fail_after(5):
            while not outcome:
                await trio.sleep(0.1)
        assert outcome == [False]
