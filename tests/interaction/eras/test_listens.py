"""Subscriptions of clients without sessions, and of sessions on servers without (2026-07-28 patterns/subscriptions)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT, WITHOUT_TO_ANY
from tests.interaction.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import MODERN
from tests.support.wire_client import Message

pytestmark = pytest.mark.cells(WITHOUT_TO_ANY)
BOTH_ERAS = pytest.mark.cells(tuple(Cell(MODERN, "memory", "inproc", era) for era in ("modern", "legacy")))
FROM_SESSIONS = pytest.mark.cells(SESSIONS_TO_WITHOUT)

TOOLS, PROMPTS, RESOURCES = (f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))
UPDATED = "notifications/resources/updated"
FADED = 0.4
"""Seconds after which a subscription that was replaced is not heard any more."""


async def library(stage: Stage, name: str = "alpha", **more: Any) -> Backend:
    """A backend of which everything can be watched."""
    backend = await stage.backend(name, **more)
    backend.result("echo", text("yes"))
    backend.add("prompts", {"name": "p"})
    for uri in ("test:///a", "test:///b"):
        backend.add("resources", {"uri": uri, "name": uri[-1]})
    if backend.sessions:
        backend.answers("resources/subscribe", {})
        backend.answers("resources/unsubscribe", {})
    return backend


@pytest.mark.parametrize("id", [7, "7"])
@pytest.mark.requirement("pitfall-25", "bridge-listen", "pitfall-sub-resource")
async def test_what_is_honoured_comes_first_and_then_only_that(stage: Stage, route: Route, id: Any) -> None:
    backend = await library(stage)
    client = stage.modern(route.path)
    listening = client.begin_listening(route.uri("test:///a"), id=id, tools=True, prompts=False)
    assert await listening.acknowledged() == {
        "toolsListChanged": True,
        "resourceSubscriptions": [route.uri("test:///a")],
    }
    await _heard(backend)
    backend.announce(PROMPTS)
    backend.announce(UPDATED, "test:///b")
    backend.announce(UPDATED, "test:///a/part")
    assert await listening.updated() == route.uri("test:///a/part")
    backend.announce(TOOLS)
    await listening.changed("tools")
    assert listening.quiet
    # Neither progress nor log messages of calls come there.
    backend.result("loud", text("done"))
    await client.call(route.name("echo"))
    assert listening.quiet


async def _heard(backend: Backend) -> None:
    """Until the backend has somebody to tell."""
    with trio.fail_after(10):
        while not any(not connection.ended.is_set() for connection in backend.connections):
            await trio.sleep(0.01)
    await trio.sleep(0.05)


@pytest.mark.requirement("pitfall-7", "pitfall-25", "bridge-list-changed")
async def test_each_subscription_gets_its_own_copy_once(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    client = stage.modern(route.path)
    first = await client.listen(id=1, tools=True)
    second = await client.listen(id="1", tools=True)
    third = await stage.modern(route.path).listen(id=1, prompts=True)
    await _heard(backend)
    backend.announce(TOOLS)
    for listening in (first, second):
        await listening.changed("tools")
    await trio.sleep(0.3)
    assert first.quiet
    assert second.quiet
    assert third.quiet


@BOTH_ERAS
@pytest.mark.requirement("bridge-listen", "bridge-unsubscribe")
async def test_a_subscription_that_is_closed_is_over_for_the_server_too(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    client = stage.modern(route.path)
    both = [await client.listen(route.uri("test:///a")) for _ in range(2)]
    await trio.sleep(1)
    both[0].cut()
    await trio.sleep(1)
    if backend.sessions:
        assert len(backend.of("resources/subscribe")) == 1
        assert not backend.of("resources/unsubscribe")
    backend.announce(UPDATED, "test:///a")
    assert await both[1].updated() == route.uri("test:///a")
    both[1].cut()
    await trio.sleep(70)
    if backend.sessions:
        assert len(backend.of("resources/unsubscribe")) == 1
    else:
        assert not backend.live  # type: ignore[attr-defined]


@BOTH_ERAS
@pytest.mark.requirement("bridge-listen", "pitfall-25")
async def test_what_no_server_has_is_not_honoured(stage: Stage, route: Route) -> None:
    await stage.backend(capabilities={"tools": {}})
    listening = stage.modern(route.path).begin_listening(route.uri("test:///a"), tools=True, prompts=True)
    honoured = await listening.acknowledged()
    if route.name_prefix:
        assert "resourceSubscriptions" not in honoured
    else:
        assert honoured == {}
    nothing = await stage.modern(route.path).listen()
    assert nothing.honoured == {}


@BOTH_ERAS
@pytest.mark.requirement("bridge-listen-refused")
@pytest.mark.parametrize(
    "notifications", [None, [], {"toolsListChanged": "yes"}, {"resourceSubscriptions": "test:///a"}], ids=str
)
async def test_a_filter_that_is_none_is_refused_instead_of_acknowledged(stage: Stage, notifications: Any) -> None:
    await library(stage)
    client = stage.modern()
    params = {} if notifications is None else {"notifications": notifications}
    call = client.send(client.request_message("subscriptions/listen", params))
    error = await call.error()
    assert (error.code, call.exchange.status) == (INVALID_PARAMS, 400)


@BOTH_ERAS
@pytest.mark.requirement("bridge-listen-refused")
async def test_a_subscription_is_a_stream_or_nothing(stage: Stage) -> None:
    await library(stage)
    client = stage.modern()
    message = client.request_message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    exchange = client.post(message, accept="application/json")
    assert await exchange.head() == 406


@BOTH_ERAS
@pytest.mark.requirement("pitfall-25", "draining")
async def test_a_drain_ends_subscriptions_with_a_result(stage: Stage, route: Route) -> None:
    await library(stage)
    listening = await stage.modern(route.path).listen(id="x", tools=True)
    stage.nursery.start_soon(stage.drain)
    assert (await listening.result())["resultType"] == "complete"
    assert await listening.next() is None
    await stage.begin()


@BOTH_ERAS
@pytest.mark.requirement("pitfall-26", "bridge-relisten")
async def test_after_a_loss_everything_watched_is_watched_again_and_announced(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    listening = await stage.modern(route.path).listen(route.uri("test:///a"), tools=True, resources=True)
    await trio.sleep(1)
    for connection in list(backend.connections):
        connection.hang_up()
    expected = {(TOOLS, None), (RESOURCES, None), (UPDATED, route.uri("test:///a"))}
    seen: set[tuple[str, str | None]] = set()
    while seen != expected:
        message = await listening.next(within=120)
        assert message is not None
        seen.add((message["method"], message["params"].get("uri")))
        assert seen <= expected
    await trio.sleep(30)  # that something may have changed may be said more than once
    said = len(listening.exchange.unread)
    assert said <= 3
    backend.announce(UPDATED, "test:///a")
    await trio.sleep(5)
    assert len(listening.exchange.unread) == said + 1
    for _ in range(said):
        await listening.next()
    assert await listening.updated() == route.uri("test:///a")


@pytest.mark.cells(tuple(Cell(MODERN, "memory", kind, "modern") for kind in ("inproc", "http")))
@pytest.mark.requirement("pitfall-26", "bridge-relisten")
async def test_a_subscription_that_a_server_of_an_aggregate_ends_is_begun_again(stage: Stage, cell: Cell) -> None:
    backend = await stage.modern_backend()
    backend.result("echo", text("yes"))
    listening = await stage.modern("/mcp").listen(tools=True)
    upstream = await backend.listening()
    upstream.over.set()
    await listening.changed("tools")
    await backend.listening(2)
    await trio.sleep(0.3 if not cell.jumps else 5)
    assert listening.quiet
    backend.announce(TOOLS)
    await listening.changed("tools")


@BOTH_ERAS
@pytest.mark.requirement("bridge-list-changed", "list-changed")
async def test_a_change_drops_what_is_kept_before_it_is_told(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    if backend.modern:
        backend.hints = {"ttlMs": 600_000, "cacheScope": "public"}  # type: ignore[attr-defined]
    client = stage.modern(route.path)
    listening = await client.listen(tools=True)
    assert len((await client.request("tools/list"))["tools"]) == 1
    await trio.sleep(1)
    backend.result("more", text("more"))
    backend.announce(TOOLS)
    await listening.changed("tools")
    names = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
    assert names == [route.name("echo"), route.name("more")]


@BOTH_ERAS
@pytest.mark.requirement("bridge-list-changed")
async def test_changes_of_many_servers_are_one_message(stage: Stage) -> None:
    backends = [await library(stage, name) for name in ("alpha", "beta", "gamma")]
    listening = await stage.modern().listen(tools=True)
    await trio.sleep(1)
    for backend in backends:
        for _ in range(3):
            backend.announce(TOOLS)
    await listening.changed("tools")
    await trio.sleep(2)
    assert len(listening.exchange.unread) <= 1


# Sessions on servers without -------------------------------------------------------------------------------------


@FROM_SESSIONS
@pytest.mark.requirement("bridge-subscribe", "bridge-session-listens", "pitfall-sub-resource", "pitfall-24")
async def test_a_session_subscribes_to_a_server_without_sessions(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    client = await stage.connect(route.path)
    listening = await client.listen()
    await client.request("resources/list")
    for name in ("a", "b"):
        assert await client.request("resources/subscribe", {"uri": route.uri(f"test:///{name}")}) == {}
    await trio.sleep(FADED)
    backend.announce(UPDATED, "test:///a/part")
    message = await listening.message(UPDATED)
    assert message["params"] == {"uri": route.uri("test:///a/part")}
    for name in ("a", "none"):
        assert await client.request("resources/unsubscribe", {"uri": route.uri(f"test:///{name}")}) == {}
    await trio.sleep(FADED)
    backend.announce(UPDATED, "test:///a")
    backend.announce(UPDATED, "test:///b")
    assert (await listening.message(UPDATED))["params"] == {"uri": route.uri("test:///b")}
    backend.announce(TOOLS)
    await listening.message(TOOLS)


@FROM_SESSIONS
@pytest.mark.requirement("bridge-subscribe")
async def test_a_subscription_that_is_not_honoured_is_refused(stage: Stage, route: Route) -> None:
    backend = await stage.modern_backend()
    backend.add("resources", {"uri": "test:///a", "name": "a"})
    backend.honours = lambda wanted: {**wanted, "resourceSubscriptions": []}
    client = await stage.connect(route.path)
    error = await client.refused("resources/subscribe", {"uri": route.uri("test:///a")})
    assert (error.code, error.data["uri"]) == (INVALID_PARAMS, route.uri("test:///a"))


@FROM_SESSIONS
@pytest.mark.requirement("bridge-subscribe", "capability-absent")
async def test_a_server_without_subscriptions_refuses_them(stage: Stage) -> None:
    backend = await stage.modern_backend(capabilities={"resources": {}})
    backend.add("resources", {"uri": "test:///a", "name": "a"})
    client = await stage.connect("/mcp/alpha")
    assert (await client.refused("resources/subscribe", {"uri": "test:///a"})).code == METHOD_NOT_FOUND


@pytest.mark.cells(SESSIONS_TO_WITHOUT[:1])
@pytest.mark.requirement("pitfall-26", "bridge-session-listens")
async def test_after_a_loss_a_session_hears_what_may_have_changed(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    client = await stage.connect(route.path)
    listening = await client.listen()
    await client.request("tools/list")
    await client.request("resources/subscribe", {"uri": route.uri("test:///a")})
    await trio.sleep(1)
    backend.result("new", text("what it has learned meanwhile"))
    for connection in list(backend.connections):
        connection.hang_up()
    seen: set[str] = set()
    with trio.fail_after(200):
        while not {TOOLS, UPDATED} <= seen:
            message: Message | None = await listening.next(within=120)
            assert message is not None
            seen.add(message["method"])
    await trio.sleep(2)
    backend.announce(UPDATED, "test:///a")
    while (message := await listening.next()) is not None:
        if message["method"] == UPDATED:
            return


@BOTH_ERAS
@pytest.mark.requirement("bridge-log-outside", "bridge-shared-logs")
async def test_log_messages_outside_of_calls_reach_nobody(stage: Stage, route: Route) -> None:
    backend = await library(stage)
    client = stage.modern(route.path)
    listening = await client.listen(tools=True)
    await trio.sleep(1)

    @backend.tool("chat")
    async def chat(request: Request) -> Message:
        for connection in backend.connections:
            if not connection.ended.is_set():
                connection.notify("notifications/message", {"level": "error", "data": "to nobody"})
        await trio.sleep(1)
        return text("done")

    call = client.start_call(route.name("chat"))
    await call.complete()
    assert call.seen("notifications/message") == []
    assert listening.quiet
