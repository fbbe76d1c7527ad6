"""The table of backends and filters is replaced while the gateway runs."""

from dataclasses import replace

import pytest
import trio

from actors.protocol.table import Endpoint, HttpTarget, StdioTarget
from tests.support.door_client import Pending, RpcError
from tests.support.harness import Gateway, open_gateway, table_of
from tests.support.mcp_backend import Backend, tool
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

KINDS = ("tools", "prompts", "resources")
WORK = {"tools": ("echo", "work"), "held": {"work"}}


def use(gateway: Gateway, *backends: Backend) -> None:
    """These, and no others, are configured from now on."""
    table = table_of(*backends)
    gateway.change(backends=table.backends, endpoints=table.endpoints)


def told(events: Pending) -> list[str]:
    return [message["method"] for message in events.messages]


def each_once() -> list[str]:
    return [f"notifications/{kind}/list_changed" for kind in KINDS]


async def test_sessions_on_the_aggregate_hear_of_each_kind_once_and_see_what_is_there_now(autojump_clock):
    alpha, beta, gamma = Backend("alpha"), Backend("beta"), Backend("gamma")
    async with open_gateway(alpha, beta, gamma) as gateway:
        use(gateway, alpha, beta)
        client = await gateway.connect()
        events = client.listen()
        assert await client.names() == ["alpha__echo", "beta__echo"]
        use(gateway, alpha, gamma)
        use(gateway, gamma)
        use(gateway, alpha, gamma)
        await trio.sleep(5)
        assert sorted(told(events)) == sorted(each_once())
        assert await client.names() == ["alpha__echo", "gamma__echo"]
        assert await client.tool("gamma__echo") == "gamma: echo"
        with pytest.raises(RpcError, match="Unknown tool"):
            await client.tool("beta__echo")


async def test_sessions_that_it_does_not_touch_hear_nothing_and_keep_their_connections(autojump_clock):
    alpha, beta = Backend("alpha", **WORK), Backend("beta")
    async with open_gateway(alpha, beta, groups={"one": ("alpha",)}) as gateway:
        grouped, alone = await gateway.connect("one"), await gateway.connect("alpha")
        streams = [grouped.listen(), alone.listen()]
        await grouped.names()
        calls = [grouped.begin("tools/call", {"name": "alpha__work"}), alone.begin("tools/call", {"name": "work"})]
        requests = [await alpha.next(), await alpha.next()]
        before = gateway.services.table.value
        endpoints = {name: e for name, e in before.endpoints.items() if name != "beta"}
        endpoints[""] = Endpoint("", "aggregate", ("alpha",))
        gateway.change(backends={"alpha": before.backends["alpha"]}, endpoints=endpoints)
        await trio.sleep(5)
        for request in requests:
            request.text("done")
        for call in calls:
            assert (await call.result())["content"][0]["text"] == "done"
        assert [told(events) for events in streams] == [[], []]


async def test_calls_on_a_backend_that_is_gone_get_a_clear_error_and_its_connections_end(autojump_clock):
    alpha, beta = Backend("alpha", **WORK), Backend("beta", **WORK)
    async with open_gateway(alpha, beta) as gateway:
        client, other = await gateway.connect(), await gateway.connect("beta")
        lost = [
            client.begin("tools/call", {"name": "beta__work"}),
            other.begin("tools/call", {"name": "work"}),
        ]
        kept = client.begin("tools/call", {"name": "alpha__work"})
        running = await alpha.next()
        await beta.next()
        await beta.next()
        use(gateway, alpha)
        for call in lost:
            error = await call.error()
            assert (error.code, error.data["reason"], error.data["executed"]) == (-32603, "unconfigured", "unknown")
            assert "server 'beta' is no longer configured" in error.message
        running.text("kept")
        await kept.result()
        await trio.sleep(10)
        assert beta.open == []
        assert "beta" not in gateway.actors.backends.status
        assert await other.begin("tools/list").head() == 404


async def test_requests_for_a_recorded_backend_that_the_configuration_lacks_fail_with_a_clear_error(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        merged, single = await gateway.connect(), await gateway.connect("beta")
        await merged.tool("beta__echo")
        gateway.change(backends={"alpha": alpha.spec})  # and the endpoints still name it
        for _ in range(2):
            with pytest.raises(RpcError, match="no longer configured") as refused:
                await single.tool("echo")
            assert refused.value.data == {"reason": "unconfigured", "executed": "no", "backend": "beta"}
            with pytest.raises(RpcError, match="server 'beta', which may have it, can't be asked"):
                await merged.tool("beta__echo")
            assert await merged.names() == ["alpha__echo"]
            await trio.sleep(20)
        assert beta.open == []


async def test_a_backend_that_leaves_the_endpoint_alone_is_left_with_an_error_for_what_ran_there(autojump_clock):
    alpha, beta = Backend("alpha", **WORK), Backend("beta", **WORK)
    async with open_gateway(alpha, beta) as gateway:
        client, other = await gateway.connect(), await gateway.connect("beta")
        lost = client.begin("tools/call", {"name": "beta__work"})
        kept = other.begin("tools/call", {"name": "work"})
        first, second = await beta.next(), await beta.next()
        mine, running = (first, second) if first.upstream is not beta.upstreams[0] else (second, first)
        endpoints = gateway.services.table.value.endpoints
        gateway.change(endpoints={**endpoints, "": Endpoint("", "aggregate", ("alpha",))})
        error = await lost.error()
        assert (error.data["reason"], error.data["executed"]) == ("unconfigured", "unknown")
        await mine.cancelled.wait()
        running.text("kept")
        await kept.result()
        assert await client.names() == ["alpha__echo", "alpha__work"]
        await trio.sleep(10)
        assert mine.upstream.transport.closed
        assert await other.tool("echo") == "beta: echo"


async def test_subscriptions_do_not_bring_a_backend_back_that_is_gone(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.call("resources/subscribe", {"uri": "beta+test:///a"})
        use(gateway, alpha)
        await trio.sleep(300)
        assert (len(beta.upstreams), beta.open) == (1, [])


async def test_a_backend_with_another_target_is_connected_anew(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha, reload_grace=0.0) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.call("resources/subscribe", {"uri": "alpha+test:///a"})
        call = client.begin("tools/call", {"name": "alpha__work"})
        await alpha.next()
        old = alpha.upstream
        alpha.lists["tools/list"] = [tool("other")]
        spec = replace(alpha.spec, target=StdioTarget("other"))
        gateway.change(backends={"alpha": spec})
        assert (await call.error()).data["reason"] == "unconfigured"
        assert await client.names() == ["alpha__other"]
        assert await client.tool("alpha__other") == "alpha: other"
        assert old.transport.closed
        assert alpha.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]
        await trio.sleep(5)
        changed = {"notifications/prompts/list_changed", "notifications/resources/list_changed"}
        assert set(told(events)) == {*changed, "notifications/resources/updated"}  # its tools, it was just given
        assert gateway.telemetry.total("stagedoor_backend_failures_total") == 0


async def test_a_shared_connection_follows_its_target_too(autojump_clock):
    alpha = Backend("alpha", sharing="shared")
    async with open_gateway(alpha, reload_grace=0.0) as gateway:
        clients = [await gateway.connect() for _ in range(3)]
        for client in clients:
            assert await client.tool("alpha__echo") == "alpha: echo"
        old = alpha.upstream
        gateway.change(backends={"alpha": replace(alpha.spec, target=StdioTarget("other"))})
        await trio.sleep(0.1)  # the grace is over: what would be in flight then gets an error
        for client in clients:
            assert await client.tool("alpha__echo") == "alpha: echo"
        assert old.transport.closed
        assert len(alpha.open) == 1


async def test_another_filter_changes_what_is_listed_and_what_can_be_called(autojump_clock):
    alpha = Backend("alpha", tools=("echo", "other"))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.tool("alpha__other")
        own = alpha.upstream
        gateway.change(backends={"alpha": replace(alpha.spec, disabled_tools=("oth*",))})
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__echo"]
        with pytest.raises(RpcError, match="Unknown tool"):
            await client.tool("alpha__other")
        assert await client.tool("alpha__echo") == "alpha: echo"
        assert own in alpha.open


async def test_a_session_that_was_not_in_memory_is_told_when_it_comes_back(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client, bystander = await gateway.connect(), await gateway.connect("alpha")
        await client.names()
        await trio.sleep(120)
        use(gateway, beta, alpha)
        events = client.listen()
        await trio.sleep(5)
        assert sorted(told(events)) == sorted(each_once())
        events.drop()
        await trio.sleep(120)
        again = client.listen()
        await trio.sleep(5)
        assert told(again) == []
        assert len(gateway.log.events("session_reconfigured")) == 1
        assert await bystander.tool("echo") == "alpha: echo"


async def test_at_an_endpoint_that_is_gone_there_are_no_sessions_any_more(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta, groups={"both": ("alpha", "beta")}) as gateway:
        living, away = await gateway.connect("both"), await gateway.connect("both")
        single = await gateway.connect("beta")
        await living.tool("alpha__echo")
        await trio.sleep(120)
        use(gateway, alpha)
        for client in (living, away, single):
            for method, params in (("tools/list", None), ("tools/call", {"name": "alpha__echo"})):
                pending = client.begin(method, params)
                assert await pending.head() == 404
                assert pending.messages[0]["error"]["message"] == "No such endpoint"


async def test_a_list_that_is_being_fetched_from_a_server_that_is_gone_is_nobodys(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta", mute={"tools/list"})
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        pending = client.begin("tools/list")
        request = await beta.next("tools/list")
        before = trio.current_time()
        use(gateway, alpha)
        assert [t["name"] for t in (await pending.result())["tools"]] == ["alpha__echo"]
        assert trio.current_time() - before < 1
        request.result({"tools": [tool("ghost")]})
        assert await client.names() == ["alpha__echo"]
        await trio.sleep(10)
        assert beta.open == []


async def test_what_a_backend_says_in_the_moment_in_which_it_goes_harms_no_session(autojump_clock):
    alpha, beta = Backend("alpha", **WORK), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.result({"content": [{"type": "resource_link", "uri": "test:///a", "name": "a"}]})
        request.upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        use(gateway, beta)
        response = await call.response()
        assert "result" in response or response["error"]["data"]["reason"] == "unconfigured"
        assert await client.names() == ["beta__echo"]


async def test_what_a_server_without_sessions_said_of_itself_does_not_count_for_its_successor(autojump_clock):
    alpha = ModernBackend("alpha", kind="http", capabilities={"tools": {}}, welcome={"instructions": "the old one"})
    async with open_gateway(alpha) as gateway:
        old, new = [ModernClient(gateway.actors.door, gateway.nursery, capabilities=c) for c in ({}, {"sampling": {}})]
        await old.call("tools/list")
        assert "the old one" in (await old.call("server/discover"))["instructions"]
        alpha.capabilities, alpha.welcome = {"tools": {}, "prompts": {}}, {}
        spec = gateway.services.table.value.backends["alpha"]
        gateway.change(backends={"alpha": replace(spec, target=HttpTarget("http://other.test/mcp"))})
        await gateway.settle()
        assert (await new.call("prompts/list"))["prompts"]
        assert "instructions" not in await new.call("server/discover")
