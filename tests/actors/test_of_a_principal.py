"""Servers that the sessions of one principal share (`principal`, `pool`), and processes that nobody uses."""

import pytest
import trio

from actors.ports import Principal
from tests.support import pooled
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

MAY_ALL = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}
ANN, BOB = Principal("ann"), Principal("bob")


def server(sharing="principal", **more) -> Backend:
    return Backend("alpha", tools=("echo", "work"), held={"work"}, sharing=sharing, **more)


@pytest.mark.parametrize("sharing", ["principal", "pool"])
async def test_the_sessions_of_a_user_have_one_process_and_another_user_another(autojump_clock, sharing):
    alpha = server(sharing)
    async with open_gateway(alpha) as gateway:
        windows = [await gateway.connect(principal=ANN) for _ in range(15)]
        of_bob = await gateway.connect(principal=BOB)
        for client in (*windows, of_bob):
            assert await client.tool("alpha__echo") == "alpha: echo"
        called = {id(request.upstream) for request in alpha.requests if request.method == "tools/call"}
        assert len(called) == 2
        by_upstream = [
            sum(r.method == "tools/call" for r in alpha.requests if r.upstream is u) for u in alpha.upstreams
        ]
        assert sorted(by_upstream)[-2:] == [1, 15]


async def test_sessions_of_both_eras_of_one_user_have_the_same_process(autojump_clock):
    alpha = server()
    async with open_gateway(alpha) as gateway:
        legacy, modern = await gateway.connect(principal=ANN), pooled.client(gateway, ANN, endpoint="")
        assert await legacy.tool("alpha__echo") == "alpha: echo"
        await modern.call("tools/call", {"name": "alpha__echo", "arguments": {}})
        stranger = pooled.client(gateway, BOB, endpoint="")
        await stranger.call("tools/call", {"name": "alpha__echo", "arguments": {}})
        called = [id(request.upstream) for request in alpha.requests if request.method == "tools/call"]
        assert called[0] == called[1] != called[2]


async def test_nothing_of_one_user_reaches_another(autojump_clock):
    alpha = server()
    uri = {"uri": "alpha+test:///a"}
    async with open_gateway(alpha) as gateway:
        ann, bob = await gateway.connect(principal=ANN), await gateway.connect(principal=BOB)
        anns, bobs = ann.listen(), bob.listen()
        for client in (ann, bob):
            await client.call("resources/subscribe", uri)
        subscribed = [request for request in alpha.requests if request.method == "resources/subscribe"]
        assert len({id(request.upstream) for request in subscribed}) == 2
        subscribed[0].upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        await anns.next("notifications/resources/updated")
        await gateway.settle()
        assert bobs.seen("notifications/resources/updated") == []


async def test_it_may_ask_none_of_the_sessions_anything(autojump_clock):
    alpha = server()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(principal=ANN, capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        assert request.upstream.declared["capabilities"] == {}
        assert (await request.ask("sampling/createMessage", {}).outcome())["error"]["code"] == -32601
        request.text("done")
        await call.result()


async def test_a_process_whose_user_has_left_is_kept_for_a_while_and_never_given_to_another(autojump_clock):
    alpha = server(idle_stop=60.0)
    async with open_gateway(alpha) as gateway:
        first = await gateway.connect("alpha", principal=ANN)
        await first.tool("echo")
        await first.delete()
        of_bob = await gateway.connect("alpha", principal=BOB)
        await of_bob.tool("echo")
        again = await gateway.connect("alpha", principal=ANN)
        await again.tool("echo")
        called = [id(request.upstream) for request in alpha.requests if request.method == "tools/call"]
        assert called[0] == called[2] != called[1]
        await again.delete()
        await trio.sleep(40)
        await of_bob.tool("echo")
        await trio.sleep(40)
        assert list(alpha.open) == [alpha.requests[-1].upstream]


async def test_a_process_that_nobody_uses_is_stopped_and_the_next_call_starts_it_again(autojump_clock):
    alpha = server(idle_stop=60.0)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", principal=ANN)
        await client.tool("echo")
        for _ in range(5):  # as long as it is used, it stays
            await trio.sleep(40)
            await client.tool("echo")
        assert len(alpha.upstreams) == 1
        await trio.sleep(61)
        assert alpha.open == []
        assert await client.tool("echo") == "alpha: echo"
        assert len(alpha.upstreams) == 2


@pytest.mark.parametrize("sharing", ["session", "principal", "shared"])
async def test_a_call_and_a_subscription_are_uses(autojump_clock, sharing):
    alpha = server(sharing, idle_stop=30.0)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", principal=ANN)
        call = client.begin("tools/call", {"name": "work"})
        request = await alpha.next()
        await trio.sleep(100)
        request.text("late")
        assert (await call.result())["content"][0]["text"] == "late"
        await client.call("resources/subscribe", {"uri": "test:///a"})
        await trio.sleep(100)
        assert len(alpha.open) == 1
        await client.call("resources/unsubscribe", {"uri": "test:///a"})
        await trio.sleep(61)
        assert alpha.open == []


async def test_a_pool_has_no_more_processes_than_it_may_and_who_has_left_makes_room(autojump_clock):
    alpha = server("pool", idle_stop=3600.0, most=2)
    async with open_gateway(alpha, process_wait=5.0) as gateway:
        clients = [await gateway.connect("alpha", principal=Principal(f"p{n}")) for n in range(2)]
        for client in clients:
            await client.tool("echo")
        with pytest.raises(RpcError) as refused:
            await gateway.client("alpha", Principal("p3")).initialize()
        assert (refused.value.data["reason"], refused.value.data["executed"]) == ("backend_full", "no")
        await clients[0].delete()
        fourth = await gateway.connect("alpha", principal=Principal("p4"))
        assert await fourth.tool("echo") == "alpha: echo"
        assert len(alpha.open) == 2
