"""What goes must go: nothing piles up, whatever is cancelled where, and whoever talks without end."""

import gc

import pytest
import trio

from actors.endpoints.session_endpoint import SessionEndpoint
from actors.ports import Principal
from actors.sessions.session import SessionActor
from actors.upstreams.legacy import LegacyUpstream
from tests.support.cancel import Scenario, cancel_everywhere
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool

ANN = Principal("ann")
MAY = {"sampling": {}, "roots": {}}
SAMPLE = {"messages": [], "maxTokens": 1}


def session_of(gateway: Gateway) -> SessionActor:
    [alive] = gateway.actors.sessions.table.values()
    actor = alive.ref.cell.actor
    assert isinstance(actor, SessionActor)
    return actor


def link_actors(gateway: Gateway) -> list[LegacyUpstream]:
    cells = (ref.cell for ref in gateway.system.registry)
    return [cell.actor for cell in cells if isinstance(cell.actor, LegacyUpstream)]


# Cancel everywhere --------------------------------------------------------------------------------------------


def cut(endpoint: str, prefix: str, kind: str) -> Scenario:
    """A session that does a bit of everything; at some point all its connections break."""

    async def scenario(scope: trio.CancelScope) -> None:
        alpha = Backend("alpha", tools=("echo", "work"), held={"work"}, kind=kind, timeout=30.0)
        async with open_gateway(alpha, Backend("beta"), link_idle=20.0, idle_ttl=400.0) as gateway:
            before = gateway.left()

            async def serve() -> None:
                while True:
                    request = await alpha.next()
                    if request.params["name"] == "work":
                        request.progress(1)
                        request.ask("sampling/createMessage", SAMPLE)
                        request.text("done")

            gateway.nursery.start_soon(serve)
            with scope:
                async with trio.open_nursery() as connections:
                    client = gateway.client(endpoint, ANN, capabilities=MAY)
                    client.nursery = connections
                    await client.initialize()
                    client.listen()
                    await client.names()
                    await client.tool(f"{prefix}echo")
                    await client.call("logging/setLevel", {"level": "info"})
                    await client.call("resources/subscribe", {"uri": "alpha+test:///a" if prefix else "test:///a"})
                    call = client.begin("tools/call", {"name": f"{prefix}work"}, progress=1)
                    alpha.upstreams[-1].notify("notifications/tools/list_changed")
                    await call.result()
                    cancelled = client.begin("tools/call", {"name": f"{prefix}work"})
                    await client.cancel(cancelled)
                    connections.cancel_scope.cancel()
            await trio.sleep(310)  # a question that came when its call had ended waits as long as a request
            for alive in gateway.actors.sessions.table.values():
                assert not kept_by(alive.ref.cell.actor), kept_by(alive.ref.cell.actor)
            assert gateway.left()["requests"] == gateway.left()["streams"] == 0
            await trio.sleep(500)  # the session's idle time
            assert gateway.left() == before
            assert alpha.open == []

    return scenario


def kept_by(actor: object) -> dict[str, int]:
    assert isinstance(actor, SessionActor)
    return {name: n for name, n in actor.endpoint.statistics().items() if n}


@pytest.mark.parametrize(
    ("endpoint", "prefix", "kind"),
    [("", "alpha__", "stdio"), ("", "alpha__", "http"), ("alpha", "", "stdio"), ("alpha", "", "http")],
)
def test_connections_of_a_client_that_break_at_any_point_leave_nothing_behind(endpoint, prefix, kind):
    cancel_everywhere(cut(endpoint, prefix, kind))


def test_a_system_that_ends_at_any_point_ends():
    async def scenario(scope: trio.CancelScope) -> None:
        alpha = Backend("alpha", tools=("echo", "work"), held={"work"})
        with scope:
            async with open_gateway(alpha, Backend("beta", kind="http")) as gateway:
                client = await gateway.connect(capabilities=MAY)
                client.listen()
                await client.tool("alpha__echo")
                client.begin("tools/call", {"name": "alpha__work"})
                request = await alpha.next()
                request.ask("sampling/createMessage", SAMPLE)
                await trio.sleep(1)
                await gateway.system.drain(8)
        assert alpha.open == []

    cancel_everywhere(scenario)


# Growth -------------------------------------------------------------------------------------------------------


async def test_a_thousand_calls_of_every_kind_of_end_leave_nothing_in_session_and_upstream(autojump_clock):
    alpha = Backend("alpha", tools=("echo", "work"), held={"work"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY)
        await client.tool("alpha__echo")
        await gateway.settle()
        timers = gateway.left()["timers"]
        for n in range(200):
            call = client.begin("tools/call", {"name": "alpha__work"}, progress=n)
            request = await alpha.next()
            match n % 5:
                case 0:
                    request.text("done")
                case 1:
                    request.error(-1, "no")
                case 2:
                    await client.cancel(call)
                case 3:
                    request.ask("roots/list", {})
                    request.text("done")
                case 4:
                    request.upstream.die()
            await call.response()
            unknown = client.begin("tools/call", {"name": f"alpha__unknown{n}"})
            await unknown.error()
        await gateway.settle()
        assert not any(session_of(gateway).endpoint.statistics().values())
        assert not any(n for upstream in link_actors(gateway) for n in upstream.statistics().values())
        assert gateway.left()["timers"] <= timers + 2


async def test_lists_that_a_backend_never_answers_do_not_pile_up(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, link_connect=5.0) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")  # a connection of its own
        alpha.mute.add("tools/list")
        for upstream in alpha.upstreams:
            upstream.notify("notifications/tools/list_changed")
        for _ in range(30):
            assert await client.names() == ["alpha__echo"]
        assert len(alpha.asked_for("tools/list")) <= 5
        endpoint = session_of(gateway).endpoint
        assert len(endpoint.calls) <= 1
        alpha.mute.clear()
        await trio.sleep(301)  # the request deadline: what is not answered by then is asked again
        alpha.lists["tools/list"].append(tool("new"))
        assert await client.names() == ["alpha__echo", "alpha__new"]


async def test_subscriptions_that_are_cancelled_do_not_pile_up(autojump_clock):
    alpha = Backend("alpha", mute={"resources/subscribe"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        for n in range(50):
            call = client.begin("resources/subscribe", {"uri": f"test:///{n}"})
            await alpha.next("resources/subscribe")
            await client.cancel(call)
            await call.error()
        assert not any(session_of(gateway).endpoint.statistics().values())


async def test_sessions_that_come_and_go_leave_nothing(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        first = await gateway.connect()
        await first.tool("alpha__echo")
        await first.delete()
        await trio.sleep(20)
        before = gateway.left()
        for _ in range(50):
            client = await gateway.connect()
            client.listen()
            await client.tool("alpha__echo")
            await client.delete()
        await trio.sleep(20)
        assert gateway.left() == before
        assert gateway.catalogue.statistics()["watchers"] == 0
        gateway.clients.clear()
        gc.collect()
        assert sum(isinstance(o, SessionActor) for o in gc.get_objects()) == 0


# Talk without end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        ("notifications/message", {"level": "error", "data": "x" * 100}),
        ("notifications/tools/list_changed", None),
        ("notifications/resources/updated", {"uri": "test:///a"}),
        ("notifications/custom", {"n": 1}),
        ("notifications/made/up/list_changed", None),
    ],
)
async def test_a_backend_that_talks_without_end_fills_no_mailbox_and_stops_no_other_session(autojump_clock, params):
    method, members = params
    alpha = Backend("alpha", tools=("echo", "work"), held={"work"})
    async with open_gateway(alpha, Backend("beta")) as gateway:
        for endpoint, prefix in (("", "alpha__"), ("alpha", "")):
            client = await gateway.connect(endpoint)
            await client.tool(f"{prefix}echo")
            upstream = alpha.upstream
            for _ in range(5000):
                upstream.notify(method, members)
            for _ in range(20):
                other = await gateway.connect("beta")
                assert await other.tool("echo") == "beta: echo"
            assert await client.tool(f"{prefix}echo") == "alpha: echo"
            await gateway.settle()
            await trio.sleep(5)
            endpoint = session_of_client(gateway, client)
            statistics = endpoint.host.ctx.ref.statistics()
            assert statistics.ordinary + statistics.reserved == 0
            assert not any(endpoint.statistics().values())


async def test_updates_of_ever_new_things_are_bounded(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        for n in range(20_000):
            alpha.upstream.notify("notifications/resources/updated", {"uri": f"test:///{n}"})
        await trio.sleep(5)
        assert await client.tool("echo") == "alpha: echo"
        [upstream] = link_actors(gateway)
        assert not any(upstream.statistics().values())


async def test_a_backend_that_asks_without_end_is_refused(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY)
        asked = [alpha.upstream.ask("roots/list", {}) for _ in range(1000)]
        for one in asked:
            assert "error" in await one.outcome()
        assert await client.tool("echo") == "alpha: echo"


def session_of_client(gateway: Gateway, client) -> SessionEndpoint:
    from actors.sessions.router import session_key

    actor = gateway.actors.sessions.table[session_key(client.session)].ref.cell.actor
    assert isinstance(actor, SessionActor)
    return actor.endpoint


def test_an_id_that_is_no_sessions_is_not_remembered():
    from actors.sessions import router

    router.session_key("x" * 24)
    before = router.short_key.cache_info().currsize
    assert router.session_key("x" * 60_000) != router.session_key("y" * 60_000)
    assert router.short_key.cache_info().currsize == before
