"""Backends that die, hang, refuse, forget, or talk nonsense: who is told, who is not, and how they come back."""

import pytest
import trio

from actors.ports import Principal
from tests.support.door_client import Pending, RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend

KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])
WORK = {"tools": ("echo", "work"), "held": {"work"}}
PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


async def failure(gateway: Gateway, client, name: str) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await client.tool(name)
    return caught.value


# A loss -------------------------------------------------------------------------------------------------------


@KINDS
async def test_its_callers_are_told_at_once_and_nobody_else_notices(autojump_clock, kind):
    alpha, beta = Backend("alpha", kind=kind, **WORK), Backend("beta", kind=kind, **WORK)
    async with open_gateway(alpha, beta) as gateway:
        client, other = await gateway.connect(), await gateway.connect()
        dying = [client.begin("tools/call", {"name": "alpha__work"}) for _ in range(3)]
        lost = await alpha.next()
        for _ in dying[1:]:
            await alpha.next()
        spared = client.begin("tools/call", {"name": "beta__work"})
        his = other.begin("tools/call", {"name": "alpha__work"})
        survivors = [await beta.next(), await alpha.next()]
        before = trio.current_time()
        lost.upstream.die("signal 9")
        for call in dying:
            error = await call.error()
            assert error.code == -32603
            assert error.data["executed"] == "unknown"
            assert "signal 9" in error.message
        assert trio.current_time() - before < 0.5
        for request in survivors:
            request.text("unharmed")
        for call in (spared, his):
            assert (await call.result())["content"][0]["text"] == "unharmed"


@KINDS
async def test_it_comes_back_with_the_next_call(autojump_clock, kind):
    alpha = Backend("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        for _ in range(4):
            assert await client.tool("alpha__echo") == "alpha: echo"
            alpha.upstream.die()
            await gateway.settle()


async def test_with_a_subscription_it_comes_back_by_itself_subscribes_again_and_says_what_may_have_changed(
    autojump_clock,
):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.call("logging/setLevel", {"level": "error"})
        await client.call("resources/subscribe", {"uri": "alpha+test:///a"})
        own = alpha.upstream
        alpha.down = True
        own.die()
        await trio.sleep(20)
        alpha.down = False
        update = await events.next("notifications/resources/updated")
        assert update["params"]["uri"] == "alpha+test:///a"
        for kind in ("tools", "prompts", "resources"):
            await events.next(f"notifications/{kind}/list_changed")
        assert alpha.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]
        methods = alpha.upstream.methods
        assert methods.index("logging/setLevel") < methods.index("resources/subscribe")
        assert len([upstream for upstream in alpha.upstreams if upstream is not own]) < 12


async def test_without_a_subscription_nobody_calls_it_back(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        alpha.upstream.die()
        await trio.sleep(600)
        assert len(alpha.upstreams) == 1
        assert await client.tool("echo") == "alpha: echo"


async def test_an_unsubscribed_resource_is_not_asked_for_again(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        await client.call("resources/subscribe", {"uri": "test:///b"})
        await client.call("resources/unsubscribe", {"uri": "test:///a"})
        alpha.upstream.die()
        await trio.sleep(5)
        assert alpha.upstream.params_of("resources/subscribe") == [{"uri": "test:///b"}]


async def test_a_subscription_that_the_backend_refused_is_none(autojump_clock):
    alpha = Backend("alpha", mute={"resources/subscribe"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("resources/subscribe", {"uri": "test:///a"})
        (await alpha.next("resources/subscribe")).error(-32602, "no")
        await call.error()
        cancelled = client.begin("resources/subscribe", {"uri": "test:///b"})
        await alpha.next("resources/subscribe")
        await client.cancel(cancelled)
        alpha.upstream.die()
        await trio.sleep(60)
        assert len(alpha.upstreams) == 1


async def test_subscriptions_of_one_session_are_bounded(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        for n in range(1024):
            await client.call("resources/subscribe", {"uri": f"test:///{n}"})
        with pytest.raises(RpcError, match="too many subscriptions"):
            await client.call("resources/subscribe", {"uri": "test:///more"})
        await client.call("resources/unsubscribe", {"uri": "test:///0"})
        await client.call("resources/subscribe", {"uri": "test:///more"})


async def test_the_uris_of_subscriptions_are_bounded_each_and_in_all(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        with pytest.raises(RpcError, match="8192 bytes") as refused:
            await client.call("resources/subscribe", {"uri": "test:///" + "x" * 8192})
        assert refused.value.code == -32602
        for n in range(32):
            await client.call("resources/subscribe", {"uri": f"test:///{n:02}".ljust(8192, "x")})
        with pytest.raises(RpcError, match="too many subscriptions"):
            await client.call("resources/subscribe", {"uri": "test:///more"})
        await client.call("resources/unsubscribe", {"uri": "test:///00".ljust(8192, "x")})
        await client.call("resources/subscribe", {"uri": "test:///more"})


# A lost session (HTTP 404) --------------------------------------------------------------------------------------


async def test_a_backend_that_forgot_the_session_gets_the_refused_call_once_more_after_a_new_handshake(autojump_clock):
    alpha = Backend("alpha", kind="http", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.call("resources/subscribe", {"uri": "alpha+test:///a"})
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.upstream.lose_session(request)
        again = await alpha.next()
        assert again.upstream is request.upstream
        assert request.upstream.transport.restarts == 1
        assert request.upstream.methods.count("initialize") == 2
        assert request.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}] * 2
        again.text("at last")
        assert (await call.result())["content"][0]["text"] == "at last"
        assert gateway.telemetry.total("stagedoor_backend_sessions_lost_total", "alpha") == 1


async def test_a_backend_that_keeps_forgetting_is_an_error(autojump_clock):
    alpha = Backend("alpha", kind="http", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        for _ in range(2):
            request = await alpha.next()
            request.upstream.lose_session(request)
        error = await call.error()
        assert error.code == -32603
        assert error.data["reason"] == "session_lost"


# Connections that cannot be made ----------------------------------------------------------------------------------


async def test_a_backend_that_never_gets_ready_fails_after_the_connect_deadline_and_nothing_was_executed(
    autojump_clock,
):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.silent = True
        before = trio.current_time()
        error = await failure(gateway, client, "alpha__echo")
        assert 30 <= trio.current_time() - before < 31
        assert error.data == {"reason": "connect_timeout", "executed": "no", "backend": "alpha"}
        await gateway.settle()
        assert alpha.upstream.transport.closed


async def test_after_repeated_failures_it_fails_fast_and_is_tried_again_later(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.down = True
        for _ in range(20):
            await failure(gateway, client, "alpha__echo")
        tried = len(alpha.upstreams)
        assert tried <= 6
        error = await failure(gateway, client, "alpha__echo")
        assert error.data["reason"] == "backend_down"
        assert error.data["executed"] == "no"
        assert "scripted: down" in error.message
        assert gateway.telemetry.gauges["stagedoor_backend_up", ("alpha",)] == 0.0
        alpha.down = False
        await trio.sleep(31)
        assert await client.tool("alpha__echo") == "alpha: echo"
        assert gateway.telemetry.gauges["stagedoor_backend_up", ("alpha",)] == 1.0


async def test_a_connection_that_refuses_calls_counts_and_one_that_answers_again_clears_it(autojump_clock):
    alpha = Backend("alpha", kind="http", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        for _ in range(5):
            call = client.begin("tools/call", {"name": "alpha__work"})
            request = await alpha.next()
            request.upstream.transport.say(refused(request.id))
            assert (await call.error()).data["executed"] == "no"
        assert gateway.telemetry.gauges["stagedoor_backend_up", ("alpha",)] == 0.0
        assert await client.tool("alpha__echo") == "alpha: echo"
        assert gateway.telemetry.gauges["stagedoor_backend_up", ("alpha",)] == 1.0


def refused(id):
    from actors.ports import RequestFailed

    return RequestFailed(id, "connection_refused", "nobody listens", "no")


# The bound on processes -------------------------------------------------------------------------------------------


async def test_beyond_the_bound_on_processes_a_call_waits_and_then_fails(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=3) as gateway:
        clients = [await gateway.connect() for _ in range(3)]
        assert await clients[0].tool("alpha__echo") == "alpha: echo"
        assert await clients[1].tool("alpha__echo") == "alpha: echo"
        before = trio.current_time()
        error = await failure(gateway, clients[2], "alpha__echo")
        assert 10 <= trio.current_time() - before < 11
        assert error.code == -32603
        assert error.data == {"reason": "backend_full", "executed": "no", "backend": "alpha"}
        assert gateway.telemetry.gauges["stagedoor_child_processes", ("alpha",)] == 3.0
        waiting = clients[2].begin("tools/call", {"name": "alpha__echo"})
        await trio.sleep(5)
        await clients[0].delete()
        assert (await waiting.result())["content"][0]["text"] == "alpha: echo"


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_one_who_has_many_sessions_leaves_processes_to_others(endpoint: str, autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=16) as gateway:

        async def call(principal: Principal) -> Pending:
            client = gateway.client(endpoint, principal)
            await client.initialize()
            return client.begin("tools/call", {"name": "echo" if endpoint else "alpha__echo"})

        ann, bob = Principal("ann"), Principal("bob")
        for _ in range(14 if endpoint else 13):  # one more is for his lists
            assert "content" in await (await call(ann)).result()
        further = gateway.client(endpoint, ann)
        if endpoint:
            waiting = further.begin("initialize", PARAMS)
        else:
            await further.initialize()
            waiting = further.begin("tools/call", {"name": "alpha__echo"})
        assert "content" in await (await call(bob)).result()
        assert (await waiting.error()).data["reason"] == "backend_full"


async def test_one_who_has_as_many_processes_as_he_may_ends_those_of_nobody_else(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta", sharing="principal", idle_stop=600.0)
    async with open_gateway(alpha, beta, child_processes=16) as gateway:
        bob = gateway.client("beta", Principal("bob"))
        await bob.initialize()
        assert await bob.tool("echo") == "beta: echo"
        await bob.delete()
        for _ in range(14):
            ann = gateway.client("alpha", Principal("ann"))
            await ann.initialize()
        further = gateway.client("alpha", Principal("ann"))
        refused = await further.begin("initialize", PARAMS).error()
        assert refused.data["reason"] == "backend_full"
        assert not beta.upstream.transport.closed


async def test_a_place_is_kept_for_who_restarts_its_own_process(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=1) as gateway:
        client = await gateway.connect("alpha")
        for _ in range(3):
            alpha.upstream.die()
            await gateway.settle()
            assert await client.tool("echo") == "alpha: echo"


async def test_connections_over_http_take_no_place(autojump_clock):
    alpha = Backend("alpha", kind="http")
    async with open_gateway(alpha, child_processes=1) as gateway:
        for _ in range(3):
            client = await gateway.connect("alpha")
            assert await client.tool("echo") == "alpha: echo"
        assert len(alpha.open) == 3


async def test_a_place_that_comes_too_late_starts_no_process(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, child_processes=1, process_wait=40.0, link_connect=20.0) as gateway:
        holder = await gateway.connect("alpha")
        late = gateway.client("alpha")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        error = await late.begin("initialize", params).error()
        assert error.data["reason"] == "connect_timeout"
        await holder.delete()
        await trio.sleep(30)
        assert len(alpha.upstreams) == 1
        assert gateway.left()["upstreams"] == 0
