"""A server gets another command, address or credential while the gateway runs: who has a connection keeps it, whoever
comes gets the new one, and nobody loses a session."""

import gc
from dataclasses import replace

import pytest
import trio

from actors.protocol.table import HttpTarget, NativeTarget, StdioTarget, Target
from tests.support.door_client import Pending, RpcError
from tests.support.harness import Gateway, open_gateway, open_replicas, table_of
from tests.support.mcp_backend import Backend, tool
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])
WORK = {"tools": ("echo", "work"), "held": {"work"}}
GRACE = 60.0
CHANGED = "notifications/tools/list_changed"
FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}


def another(backend: Backend) -> Target:
    """Where the next version of this server is."""
    match backend.spec.target:
        case StdioTarget(command):
            return StdioTarget(command, ("--new",))
        case HttpTarget(url):
            return HttpTarget(url, (("authorization", "Bearer new"),))
        case NativeTarget():
            return NativeTarget(backend)
    raise AssertionError(backend)


def roll(gateway: Gateway, old: Backend, new: Backend) -> None:
    """`new` is configured where `old` was."""
    gateway.backends[old.name] = new
    spec = replace(old.spec, target=another(new))
    gateway.change(backends={**gateway.services.table.value.backends, old.name: spec})


def next_version(kind: str = "stdio", **more: object) -> Backend:
    """Of the server alpha: it answers otherwise."""
    new = Backend("alpha", kind=kind, **{**WORK, **more})
    new.results["tools/call"] = lambda request: {"content": [{"type": "text", "text": "new"}]}
    return new


def told(events: Pending) -> list[str]:
    return [message["method"] for message in events.messages]


@KINDS
async def test_a_session_keeps_its_connection_and_the_next_one_gets_the_new_server(autojump_clock, kind):
    old, new = Backend("alpha", kind=kind, **WORK), next_version(kind)
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        merged, single = await gateway.connect(), await gateway.connect("alpha")
        streams = [merged.listen(), single.listen()]
        assert await merged.names() == ["alpha__echo", "alpha__work"]
        await merged.tool("alpha__echo")
        await old.next()
        running = [merged.begin("tools/call", {"name": "alpha__work"}), single.begin("tools/call", {"name": "work"})]
        requests = [await old.next(), await old.next()]
        roll(gateway, old, new)
        assert await merged.tool("alpha__echo") == await single.tool("echo") == "alpha: echo"
        fresh = await gateway.connect()
        assert await fresh.tool("alpha__echo") == "new"
        await trio.sleep(GRACE / 2)
        for request in requests:
            request.text("done")
        for call in running:
            assert (await call.result())["content"][0]["text"] == "done"
        assert [told(events) for events in streams] == [[], []]


@KINDS
async def test_after_the_grace_a_session_goes_on_with_the_new_server(autojump_clock, kind):
    old, new = Backend("alpha", kind=kind, **WORK), next_version(kind, tools=("echo", "more"))
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        merged, single = await gateway.connect(), await gateway.connect("alpha")
        bystander = await gateway.connect()
        streams = [merged.listen(), single.listen()]
        await merged.names()
        assert await merged.tool("alpha__echo") == "alpha: echo"
        await merged.call("resources/subscribe", {"uri": "alpha+test:///a"})
        await old.next()
        lost = merged.begin("tools/call", {"name": "alpha__work"})
        await old.next()
        roll(gateway, old, new)
        await trio.sleep(GRACE - 1)
        assert len(old.open) >= 2
        assert told(streams[0]) == told(streams[1]) == []
        await trio.sleep(10)
        error = await lost.error()
        assert (error.data["reason"], error.data["executed"]) == ("unconfigured", "unknown")
        assert not old.open
        for events in streams:
            await events.next(CHANGED)
        assert await merged.names() == ["alpha__echo", "alpha__more"]
        assert await merged.tool("alpha__echo") == await single.tool("echo") == "new"
        assert await bystander.tool("alpha__more") == "new"
        assert [u.params_of("resources/subscribe") for u in new.upstreams if u.params_of("resources/subscribe")] == [
            [{"uri": "test:///a"}]
        ]
        assert gateway.telemetry.total("stagedoor_backend_failures_total") == 0


@KINDS
async def test_a_shared_connection_stays_with_those_who_had_it(autojump_clock, kind):
    old, new = Backend("alpha", kind=kind, sharing="shared", **WORK), next_version(kind)
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        clients = [await gateway.connect() for _ in range(2)]
        for client in clients:
            assert await client.tool("alpha__echo") == "alpha: echo"
        await clients[0].call("resources/subscribe", {"uri": "alpha+test:///a"})
        roll(gateway, old, new)
        for client in clients:
            assert await client.tool("alpha__echo") == "alpha: echo"
        newcomers = [await gateway.connect() for _ in range(2)]
        for client in newcomers:
            assert await client.tool("alpha__echo") == "new"
        assert len(new.open) == 1
        await trio.sleep(GRACE + 10)
        assert not old.open
        for client in (*clients, *newcomers):
            assert await client.tool("alpha__echo") == "new"
        assert len(new.open) == 1
        assert new.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_modern_server_is_called_anew_at_once_and_what_runs_ends_where_it_began(autojump_clock, kind):
    old = ModernBackend("alpha", kind=kind, **WORK)
    new = ModernBackend("alpha", kind=kind, tools=("echo", "more"))
    new.results["tools/call"] = lambda request: {
        "resultType": "complete",
        "content": [{"type": "text", "text": "new"}],
    }
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        session = await gateway.connect()
        assert await session.tool("alpha__echo") == "alpha: echo"
        client = ModernClient(gateway.door, gateway.nursery)
        await old.next()
        running = client.begin("tools/call", {"name": "alpha__work"})
        request = await old.next()
        dropped = client.begin("tools/call", {"name": "alpha__work"})
        other = await old.next()
        listening = client.listen(tools=True)
        await listening.next()
        roll(gateway, old, new)
        assert await listening.result()
        assert (await client.call("tools/call", {"name": "alpha__echo"}))["content"][0]["text"] == "new"
        assert [t["name"] for t in (await client.call("tools/list"))["tools"]] == ["alpha__echo", "alpha__more"]
        assert await session.tool("alpha__echo") == "alpha: echo"
        assert await (await gateway.connect()).tool("alpha__echo") == "new"
        dropped.drop()
        if kind == "stdio":
            with trio.fail_after(30):
                await other.cancelled.wait()
        request.text("done")
        assert (await running.result())["content"][0]["text"] == "done"
        await session.delete()
        await trio.sleep(10)
        assert not old.open


async def test_a_modern_call_that_outlives_the_grace_gets_an_error(autojump_clock):
    old, new = ModernBackend("alpha", kind="http", **WORK), ModernBackend("alpha", kind="http")
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        client = ModernClient(gateway.door, gateway.nursery)
        running = client.begin("tools/call", {"name": "alpha__work"})
        await old.next()
        roll(gateway, old, new)
        error = await running.error()
        assert (error.data["reason"], error.data["executed"]) == ("unconfigured", "unknown")
        assert trio.current_time() >= GRACE
        assert (await client.call("tools/call", {"name": "alpha__echo"}))["content"]


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_suspended_call_goes_on_where_it_waits(autojump_clock, kind):
    old, new = Backend("alpha", kind=kind, **WORK), next_version(kind)
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        client = ModernClient(gateway.door, gateway.nursery, "alpha", capabilities={"elicitation": {"form": {}}})
        call = client.begin("tools/call", {"name": "work"})
        request = await old.next()
        asked = request.ask("elicitation/create", FORM)
        waiting = await call.result()
        roll(gateway, old, new)
        (key,) = waiting["inputRequests"]
        answers = {"requestState": waiting["requestState"], "inputResponses": {key: {"action": "decline"}}}
        again = client.begin("tools/call", {"name": "work", **answers})
        assert (await asked.outcome())["result"] == {"action": "decline"}
        request.text("done")
        assert (await again.result())["content"][0]["text"] == "done"
        assert not new.upstreams  # what the server remembers of this client is where it was
        await trio.sleep(GRACE + 10)
        assert not old.open
        assert (await client.call("tools/call", {"name": "echo"}))["content"][0]["text"] == "new"


async def test_a_server_of_before_that_fails_says_nothing_of_the_new_one(autojump_clock):
    old, new = Backend("alpha", **WORK), next_version()
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        clients = [await gateway.connect("alpha") for _ in range(8)]
        roll(gateway, old, new)
        for upstream in list(old.open):
            upstream.die()
        await gateway.settle()
        assert gateway.telemetry.total("stagedoor_backend_failures_total") == 0
        for client in clients:
            assert await client.tool("echo") == "new"


async def test_what_is_taken_back_leaves_everybody_where_he_is(autojump_clock):
    old, new = Backend("alpha", **WORK), next_version()
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        client = await gateway.connect("alpha")
        before = gateway.services.table.value
        roll(gateway, old, new)
        await trio.sleep(GRACE / 2)
        gateway.backends["alpha"] = old
        gateway.change(backends=before.backends)
        await trio.sleep(2 * GRACE)
        assert await client.tool("echo") == "alpha: echo"
        assert len(old.upstreams) == 1


async def test_a_session_stays_in_memory_while_it_has_a_connection_of_before(autojump_clock):
    old, new = Backend("alpha", kind="http", **WORK), next_version("http")
    async with open_gateway(old, reload_grace=GRACE, passivate_after=5.0) as gateway:
        client = await gateway.connect("alpha")
        roll(gateway, old, new)
        await trio.sleep(GRACE / 2)
        assert await client.tool("echo") == "alpha: echo"
        assert len(old.upstreams) == 1
        await trio.sleep(2 * GRACE)
        assert not gateway.actors.sessions.table
        assert await client.tool("echo") == "new"


async def test_only_sessions_whose_tools_are_others_hear_of_other_filters(autojump_clock):
    alpha, beta = Backend("alpha", tools=("echo", "other")), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        single, merged, other = [await gateway.connect(name) for name in ("alpha", "", "beta")]
        modern = ModernClient(gateway.door, gateway.nursery, "alpha")
        listening = modern.listen(tools=True)
        await listening.next()
        await merged.names()
        streams = [client.listen() for client in (single, merged, other)]
        filtered = replace(alpha.spec, disabled_tools=("nothing-*",))
        gateway.change(backends={"alpha": filtered, "beta": beta.spec})
        await trio.sleep(5)
        assert [told(events) for events in streams] == [[], [], []]
        assert len(listening.messages) == 1
        running = single.begin("tools/call", {"name": "echo"})
        gateway.change(backends={"alpha": replace(alpha.spec, disabled_tools=("oth*",)), "beta": beta.spec})
        await running.result()
        await listening.next(CHANGED)
        await trio.sleep(5)
        assert [told(events) for events in streams] == [[CHANGED], [CHANGED], []]
        assert await single.names() == ["echo"]
        with pytest.raises(RpcError, match="Unknown tool"):
            await single.tool("other")


async def test_a_session_at_rest_on_a_single_server_hears_of_other_filters_when_it_comes_back(autojump_clock):
    alpha, beta = Backend("alpha", kind="http", tools=("echo", "other")), Backend("beta", kind="http")
    async with open_gateway(alpha, beta, passivate_after=5.0) as gateway:
        client, bystander = await gateway.connect("alpha"), await gateway.connect("beta")
        await trio.sleep(60)
        assert not gateway.actors.sessions.table
        gateway.change(backends={"alpha": replace(alpha.spec, disabled_tools=("oth*",)), "beta": beta.spec})
        events, silent = client.listen(), bystander.listen()
        await events.next(CHANGED)
        await trio.sleep(5)
        assert told(silent) == []


async def test_sessions_of_an_endpoint_that_is_no_more_end(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        gone, merged = await gateway.connect("beta"), await gateway.connect()
        events = gone.listen()
        await merged.names()
        table = table_of(alpha)
        gateway.change(backends=table.backends, endpoints=table.endpoints)
        assert await gone.begin("tools/list").head() == 404
        await events.end()
        assert len(gateway.actors.sessions.table) == 1
        assert await merged.names() == ["alpha__echo"]


async def test_streams_of_a_server_that_is_no_more_end_in_words(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta", kind="http", **WORK)
    async with open_gateway(alpha, beta) as gateway:
        legacy, modern = await gateway.connect("beta"), ModernClient(gateway.door, gateway.nursery, "beta")
        events, listens = legacy.listen(), modern.listen(tools=True)
        await listens.next("notifications/subscriptions/acknowledged")
        calls = [begin("tools/call", {"name": "work"}, progress="mine") for begin in (legacy.begin, modern.begin)]
        for call in calls:
            (await beta.next()).progress(1)
            await call.next("notifications/progress")
        table = table_of(alpha)
        gateway.change(backends=table.backends, endpoints=table.endpoints)
        for call in calls:
            error = await call.error()
            assert (error.data["reason"], error.data["executed"]) == ("unconfigured", "unknown")
        assert (await listens.result())["resultType"] == "complete"
        await events.end()
        assert await legacy.listen().head() == await modern.listen(tools=True).head() == 404


async def test_an_endpoint_that_is_back_soon_has_its_sessions(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client, before = await gateway.connect("beta"), gateway.services.table.value
        table = table_of(alpha)
        gateway.change(backends=table.backends, endpoints=table.endpoints)
        await trio.sleep(2)
        gateway.change(backends=before.backends, endpoints=before.endpoints)
        await trio.sleep(60)
        assert await client.tool("echo") == "beta: echo"


async def test_a_name_that_was_a_server_and_is_a_group_is_another_endpoint(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        session = await gateway.connect("beta")
        modern = ModernClient(gateway.door, gateway.nursery, "beta")
        assert [t["name"] for t in (await modern.call("tools/list"))["tools"]] == ["echo"]
        table = table_of(alpha, groups={"beta": ("alpha",)})
        gateway.change(backends=table.backends, endpoints=table.endpoints)
        assert [t["name"] for t in (await modern.call("tools/list"))["tools"]] == ["alpha__echo"]
        await trio.sleep(10)
        assert await session.begin("tools/list").head() == 404


async def test_every_replica_tells_its_own_sessions_and_the_older_table_is_still_served(autojump_clock):
    alpha, beta = Backend("alpha", kind="http", tools=("echo", "other")), Backend("beta", kind="http")
    async with open_replicas(2, alpha, beta) as (one, two):
        here, there = await one.connect(), await two.connect()
        streams = [here.listen(), there.listen()]
        await here.names()
        await there.names()
        one.change(backends={"alpha": replace(alpha.spec, disabled_tools=("oth*",)), "beta": beta.spec})
        await streams[0].next(CHANGED)
        await trio.sleep(5)
        assert told(streams[1]) == []  # its replica has the older file
        assert "alpha__other" in await there.names()
        two.change(backends={"alpha": replace(alpha.spec, disabled_tools=("oth*",)), "beta": beta.spec})
        await streams[1].next(CHANGED)


async def test_nothing_is_left_of_the_tables_of_before(autojump_clock):
    old, new = Backend("alpha", **WORK), next_version()
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        client = await gateway.connect("alpha")
        left = gateway.left()
        for n in range(5):
            spec = replace(old.spec, target=StdioTarget("alpha", (str(n),)))
            gateway.backends["alpha"] = new
            gateway.change(backends={"alpha": spec})
            assert await client.tool("echo") == "alpha: echo"
        assert len(old.upstreams) == 1
        await trio.sleep(GRACE + 10)
        assert await client.tool("echo") == "new"
        await trio.sleep(400)
        assert gateway.left() == left
        gc.collect()
        tables = [o for o in gc.get_objects() if type(o).__name__ == "Table" and "alpha" in o.backends]
        assert len(tables) == 1


async def test_a_new_tool_of_the_new_version_is_told_to_those_who_never_called_the_server(autojump_clock):
    old, new = Backend("alpha", **WORK), next_version(tools=("echo", "more"))
    async with open_gateway(old, reload_grace=GRACE) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        roll(gateway, old, new)
        await events.next(CHANGED)
        assert await client.names() == ["alpha__echo", "alpha__more"]
        assert tool("more") in new.lists["tools/list"]
