"""What becomes of clients without sessions when the gateway's own things change, fail, or are used up."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.modern import requests as exchanges
from actors.ports import Principal
from tests.support.door_client import RpcError
from tests.support.harness import Gateway, open_gateway, table_of
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import PREFIX, TAG, VERSION, ModernClient


def client(at: Gateway, endpoint: str = "", **more: Any) -> ModernClient:
    """A client without sessions."""
    return ModernClient(at.actors.door, at.nursery, endpoint, **more)


def server(name: str = "alpha") -> ModernBackend:
    """A server without sessions."""
    return ModernBackend(name, kind="http", tools=("echo", "slow"), held={"slow"})


async def test_another_table_of_backends_ends_subscriptions_and_shows_other_tools(autojump_clock: MockClock) -> None:
    alpha, beta = server("alpha"), server("beta")
    async with open_gateway(alpha, beta) as at:
        both = at.services.table.value
        at.services.table.value = replace(table_of(alpha), digest="one")
        one = client(at)
        subscribed = one.listen(tools=True)
        await subscribed.next()
        running = one.begin("tools/call", {"name": "alpha__slow"})
        request = await alpha.next()
        at.actors.replace_table(both)
        assert (await subscribed.result())["_meta"] == {TAG: subscribed.id}
        names = [tool["name"] for tool in (await one.call("tools/list"))["tools"]]
        assert names == ["alpha__echo", "alpha__slow", "beta__echo", "beta__slow"]
        request.text("done")
        assert (await running.result())["content"][0]["text"] == "done"


async def test_a_backend_that_is_gone_ends_its_calls(autojump_clock: MockClock) -> None:
    alpha, beta = server("alpha"), server("beta")
    async with open_gateway(alpha, beta) as at:
        running = client(at).begin("tools/call", {"name": "beta__slow"})
        await beta.next()
        at.actors.replace_table(replace(table_of(alpha), digest="one"))
        assert (await running.error()).code == -32603
        pending = client(at).begin("tools/call", {"name": "beta__slow"})
        assert await pending.head() == 400


async def test_after_a_crash_everybody_is_told_and_the_next_request_is_served(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = server()
    async with open_gateway(alpha) as at:
        before = at.left()
        one = client(at)
        waiting = one.begin("tools/call", {"name": "alpha__slow"})
        await alpha.next()
        streaming = one.begin("tools/call", {"name": "alpha__slow"}, progress=1)
        (await alpha.next()).progress(1)
        await streaming.next()
        subscribed = one.listen(tools=True)
        await subscribed.next()

        def broken(*_: object) -> None:
            raise RuntimeError("on purpose")

        with monkeypatch.context() as patch:
            patch.setattr(exchanges, "step", broken)
            crashing = one.begin("tools/call", {"name": "alpha__echo"})
            for pending in (waiting, streaming, crashing):
                error = await pending.error()
                assert (error.code, error.data["reason"]) == (-32603, "crashed")
            await subscribed.end()
            assert "result" not in subscribed.messages[-1]
        at.crashes.clear()
        assert at.actors.quotas.requests.total == at.actors.quotas.modern_requests == 0
        assert (await one.call("tools/call", {"name": "alpha__echo"}))["content"]
        await trio.sleep(1000)
        assert at.left() == before


async def test_there_is_room_for_so_many_and_no_more(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "IN_FLIGHT_MAX", 2)
    monkeypatch.setattr(exchanges, "STREAMS_MAX", 2)
    alpha = server()
    async with open_gateway(alpha) as at:
        for principal in (Principal("ann"), Principal("bob")):
            one = client(at, "alpha", principal=principal)
            one.begin("tools/call", {"name": "slow"})
            await alpha.next()
            await one.listen(tools=True).next()
        other = client(at, "alpha", principal=Principal("eve"))
        assert await other.begin("tools/call", {"name": "slow"}).head() == 503
        assert await other.listen(tools=True).head() == 503


async def test_one_principal_can_not_pass_for_more_clients_than_it_may_have_sessions(autojump_clock: MockClock) -> None:
    alpha, old = server(), Backend("old")
    limits = {"sessions_per_principal": 2, "link_idle": 10.0, "broker_idle": 1000.0}
    async with open_gateway(alpha, old, **limits) as at:
        ann, bob = Principal("ann"), Principal("bob")
        for one in range(2):
            await client(at, "old", principal=ann, affinity=str(one)).call("tools/call", {"name": "echo"})
        refused = client(at, "old", principal=ann, affinity="2").begin("tools/call", {"name": "echo"})
        assert await refused.head() == 429
        await client(at, "old", principal=ann, affinity="0").call("tools/call", {"name": "echo"})
        await client(at, "old", principal=bob).call("tools/call", {"name": "echo"})
        await trio.sleep(20)
        # What was kept for the first two is still there: of that, too, there is no more.
        await client(at, "alpha", principal=ann, affinity="2").call("tools/call", {"name": "echo"})
        with pytest.raises(RpcError, match="no connection"):
            await client(at, "old", principal=ann, affinity="3").call("tools/call", {"name": "echo"})
        await trio.sleep(2000)
        await client(at, "old", principal=ann, affinity="3").call("tools/call", {"name": "echo"})


async def test_everybody_without_a_name_has_a_bound_if_one_is_set(autojump_clock: MockClock) -> None:
    async with open_gateway(server(), sessions_per_principal=1, sessions_anonymous=3) as at:
        for one in range(3):
            await client(at, "alpha", affinity=str(one)).call("tools/call", {"name": "echo"})
        assert await client(at, "alpha", affinity="3").begin("tools/call", {"name": "echo"}).head() == 429


async def test_subscriptions_that_nobody_has_acknowledged_need_room_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "STREAMS_MAX", 2)
    alpha = server()
    alpha.mute.add("subscriptions/listen")
    async with open_gateway(alpha) as at:
        waiting = [client(at, "alpha", affinity=str(n)).listen(tools=True) for n in range(2)]
        await at.settle()
        assert await client(at, "alpha").listen(tools=True).head() == 503
        waiting[0].drop()
        await at.settle()
        later = client(at, "alpha").listen(tools=True)
        await at.settle()
        assert later.status is None


async def test_a_principal_has_so_many_subscriptions_whatever_it_passes_for(autojump_clock: MockClock) -> None:
    async with open_gateway(server(), requests_per_principal=2) as at:
        ann = Principal("ann")
        first = client(at, "alpha", principal=ann, affinity="0").listen(tools=True)
        await first.next()
        await client(at, "alpha", principal=ann, affinity="1").listen(tools=True).next()
        assert await client(at, "alpha", principal=ann, affinity="2").listen(tools=True).head() == 429
        await client(at, "alpha", principal=Principal("bob")).listen(tools=True).next()
        first.drop()
        await at.settle()
        await client(at, "alpha", principal=ann, affinity="2").listen(tools=True).next()


@pytest.mark.parametrize("info", [None, {}, {"name": 5}, {"name": "x" * 100_000, "version": "1"}])
async def test_what_a_client_says_of_itself_is_nobody_elses_trouble(autojump_clock: MockClock, info: Any) -> None:
    old = Backend("old")
    async with open_gateway(old) as at:
        said = {} if info is None else {f"{PREFIX}clientInfo": info}
        meta = {f"{PREFIX}protocolVersion": VERSION, f"{PREFIX}clientCapabilities": {}, **said}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
        first = client(at).post(message, {"mcp-protocol-version": VERSION, "mcp-method": "tools/list"})
        assert [tool["name"] for tool in (await first.result())["tools"]] == ["old__echo"]
        assert {asked.params["clientInfo"]["name"] for asked in old.asked_for("initialize")} == {"stagedoor"}
        assert (await client(at).call("tools/list"))["tools"]


async def test_a_subscription_that_clients_share_names_the_gateway(autojump_clock: MockClock) -> None:
    alpha = server()
    async with open_gateway(alpha) as at:
        for _ in range(2):
            await client(at, "alpha").listen(tools=True).next()
        (asked,) = alpha.asked_for("subscriptions/listen")
        assert asked.params["_meta"][f"{PREFIX}clientInfo"]["name"] == "stagedoor"


async def test_work_waits_outside_while_the_loop_is_late(autojump_clock: MockClock) -> None:
    alpha = server()
    async with open_gateway(alpha, overloaded=True) as at:
        pending = client(at).begin("tools/list")
        assert await pending.head() == 503
        assert pending.headers["retry-after"] == "1"
        assert alpha.upstreams == []


async def test_everybody_without_a_name_may_subscribe_as_long_as_there_is_room(autojump_clock: MockClock) -> None:
    async with open_gateway(server()) as at:
        for _ in range(100):
            await client(at, "alpha").listen(tools=True).next()


async def test_a_session_and_an_exchange_at_the_same_time_in_a_drain(autojump_clock: MockClock) -> None:
    alpha, old = server(), Backend("old", tools=("slow",), held={"slow"})
    async with open_gateway(alpha, old) as at:
        session = await at.connect("old")
        call = session.begin("tools/call", {"name": "slow"})
        request = await old.next()
        exchange = client(at, "old").begin("tools/call", {"name": "slow"})
        other = await old.next()
        subscribed = client(at, "alpha").listen(tools=True)
        await subscribed.next()
        at.nursery.start_soon(at.system.drain, 8.0)
        await subscribed.result()
        request.text("one")
        other.text("two")
        assert (await call.result())["content"][0]["text"] == "one"
        assert (await exchange.result())["content"][0]["text"] == "two"


async def test_what_is_kept_for_clients_without_a_name_is_bounded_and_the_longest_unused_goes(
    autojump_clock: MockClock,
) -> None:
    """Whoever invents affinities gets a client for each, at an endpoint of each kind of server."""
    alpha, old = server(), Backend("old", tools=("echo", "slow"), held={"slow"})
    async with open_gateway(alpha, old, sessions_per_principal=5) as at:
        actors = at.actors
        for one in range(40):
            for name in ("alpha", "old"):
                await client(at, name, affinity=str(one)).call("tools/call", {"name": "echo"})
            await at.settle()
            assert len(actors.modern_requests) <= 5
            assert len(actors.pools) <= 5 + len(actors.modern_requests)
        await client(at, "old", affinity="38").call("tools/call", {"name": "echo"})
        for one in range(40, 44):
            await client(at, "alpha", affinity=str(one)).call("tools/call", {"name": "echo"})
        connections = len(old.upstreams)
        await client(at, "old", affinity="38").call("tools/call", {"name": "echo"})
        assert len(old.upstreams) == connections, "it was used more recently than the others"


async def test_no_client_with_something_in_hand_goes_for_want_of_room(autojump_clock: MockClock) -> None:
    alpha, old = server(), Backend("old", tools=("echo", "slow"), held={"slow"})
    async with open_gateway(alpha, old, sessions_per_principal=3) as at:
        calls, requests, streams = [], [], []
        for one in range(6):
            calls.append(client(at, "old", affinity=f"busy {one}").begin("tools/call", {"name": "slow"}))
            while (request := await old.next()).params["name"] != "slow":
                pass
            requests.append(request)
            streams.append(client(at, "alpha", affinity=f"listens {one}").listen(tools=True))
            await streams[-1].next()
        for one in range(20):
            for name in ("alpha", "old"):
                await client(at, name, affinity=str(one)).call("tools/call", {"name": "echo"})
        for request in requests:
            request.text("done")
        for call in calls:
            assert (await call.result())["content"][0]["text"] == "done"
        assert not any(stream.done for stream in streams)
        for stream in streams:
            stream.drop()
        await at.settle()
        assert len(at.actors.modern_requests) <= 3
