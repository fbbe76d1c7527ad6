"""Subscriptions of clients without sessions, to backends of both eras."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.ports import Principal
from tests.actors.modern.conftest import Open
from tests.support.door_client import Pending
from tests.support.modern_client import TAG
from tests.support.peers import Peer

ACK = "notifications/subscriptions/acknowledged"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"


async def acknowledged(pending: Pending) -> Any:
    """What is honoured."""
    return (await pending.next(ACK))["params"]["notifications"]


def said(pending: Pending) -> list[tuple[str, Any]]:
    """What came, but for the acknowledgement."""
    return [(m["method"], m["params"].get("uri")) for m in pending.messages if "method" in m][1:]


async def test_the_acknowledgement_comes_first_with_the_clients_own_id(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        for id in (7, "7"):
            pending = at.client("alpha").listen(tools=True, id=id)
            assert await acknowledged(pending) == {"toolsListChanged": True}
            call = await at["alpha"].next("subscriptions/listen")
            call.tell(TOOLS, _meta={TAG: "ours"})
            await pending.next(TOOLS)
            for message in pending.messages:
                tag = message["params"]["_meta"][TAG]
                assert (tag, type(tag)) == (id, type(id))
            pending.drop()
            await call.cancelled.wait()


async def test_only_what_the_backend_honours_is_acknowledged(modern: Open, autojump_clock: MockClock) -> None:
    peer = Peer("alpha")
    peer.honours = lambda wanted: {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}
    async with modern(peer) as at:
        pending = at.client("alpha").listen("a:1", "a:2", tools=True, prompts=True)
        assert await acknowledged(pending) == {"toolsListChanged": True, "resourceSubscriptions": ["a:1"]}


async def test_kinds_that_were_not_asked_for_progress_and_logs_never_come(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha"), Peer("beta", modern=False)) as at:
        for endpoint in ("alpha", "beta"):
            pending = at.client(endpoint).listen("a:1", tools=True)
            await acknowledged(pending)
            peer = at[endpoint]
            calls = peer.asked_for("subscriptions/listen")
            tell = calls[0].tell if calls else peer.changed
            tell(PROMPTS)
            tell(UPDATED, uri="b:1")
            tell("notifications/message", level="error", data="x")
            tell("notifications/progress", progressToken=1, progress=1)
            tell(UPDATED, uri="a:1/part")
            await pending.next(UPDATED)
            assert said(pending) == [(UPDATED, "a:1/part")]


async def test_same_wishes_share_one_subscription_upstream_and_end_with_the_last(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha")
        first, second = client.listen(tools=True, id=1), client.listen(tools=True, id=1)
        await acknowledged(first)
        await acknowledged(second)
        (call,) = at["alpha"].asked_for("subscriptions/listen")
        call.tell(TOOLS)
        await first.next(TOOLS)
        await second.next(TOOLS)
        first.drop()
        await at.gateway.settle()
        assert not call.cancelled.is_set()
        second.drop()
        await call.cancelled.wait()


async def test_a_backend_with_sessions_is_subscribed_to_once_for_each_resource(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha")
        first, second = client.listen("a:1", "a:2"), client.listen("a:1", "a:2")
        assert await acknowledged(first) == {"resourceSubscriptions": ["a:1", "a:2"]}
        await acknowledged(second)
        third = client.listen("a:2", tools=True)
        await acknowledged(third)
        uris = [call.params["uri"] for call in at["alpha"].asked_for("resources/subscribe")]
        assert sorted(set(uris)) == ["a:1", "a:2"]
        at["alpha"].changed(UPDATED, uri="a:2")
        for pending in (first, second, third):
            await pending.next(UPDATED)
        first.drop()
        await at.gateway.settle()
        assert at["alpha"].asked_for("resources/unsubscribe") == []
        second.drop()
        await at.gateway.settle()
        gone = at["alpha"].asked_for("resources/unsubscribe")
        assert [call.params["uri"] for call in gone] == ["a:1"]


async def test_a_backend_with_sessions_that_declares_nothing_is_not_subscribed_to(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False, capabilities={"tools": {}})) as at:
        pending = at.client("alpha").listen("a:1", tools=True)
        assert await acknowledged(pending) == {}


async def test_an_aggregate_merges_all_and_rewrites_addresses(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha"), Peer("beta", modern=False)) as at:
        uris = ("alpha+test:///a", "beta+test:///b", "nobody+test:///c")
        pending = at.client().listen(*uris, tools=True)
        honoured = await acknowledged(pending)
        assert honoured == {"toolsListChanged": True, "resourceSubscriptions": list(uris[:2])}
        (upstream,) = at["alpha"].asked_for("subscriptions/listen")
        assert upstream.params["notifications"]["resourceSubscriptions"] == ["test:///a"]
        upstream.tell(UPDATED, uri="test:///a")
        at["beta"].changed(UPDATED, uri="test:///b/part")
        upstream.tell(TOOLS)
        at["beta"].changed(TOOLS)
        await trio.sleep(1)
        assert sorted(said(pending), key=str) == [
            (UPDATED, "alpha+test:///a"),
            (UPDATED, "beta+test:///b/part"),
            (TOOLS, None),
        ]


async def test_one_slow_backend_does_not_hold_the_acknowledgement_up(modern: Open, autojump_clock: MockClock) -> None:
    slow = Peer("beta")
    async with modern(Peer("alpha"), slow) as at:
        slow.answers = False
        before = trio.current_time()
        pending = at.client().listen("alpha+a:1", "beta+b:1", tools=True)
        assert await acknowledged(pending) == {"toolsListChanged": True, "resourceSubscriptions": ["alpha+a:1"]}
        assert 9 < trio.current_time() - before < 21


async def test_a_subscription_that_a_backend_refuses_has_its_error_and_status(
    modern: Open, autojump_clock: MockClock
) -> None:
    peer = Peer("alpha")
    async with modern(peer) as at:
        peer.answers = False
        pending = at.client("alpha").listen(tools=True)
        (await peer.next("subscriptions/listen")).error(-32601, "no such thing")
        assert await pending.head() == 404
        assert (await pending.error()).code == -32601


async def test_after_a_loss_everything_may_have_changed(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("").listen("alpha+a:1", tools=True)
        await acknowledged(pending)
        (await at["alpha"].next("subscriptions/listen")).result({"resultType": "complete"})
        await at["alpha"].next("subscriptions/listen")
        await pending.next(TOOLS)
        assert (await pending.next(UPDATED))["params"]["uri"] == "alpha+a:1"
        assert len(pending.seen(ACK)) == 1


@pytest.mark.parametrize("failed", [False, True])
async def test_the_end_that_the_only_server_makes_is_the_clients(
    modern: Open, autojump_clock: MockClock, failed: bool
) -> None:
    async with modern(Peer("alpha")) as at:
        first, second = (at.client("alpha").listen(tools=True, id=id) for id in (1, "1"))
        for pending in (first, second):
            await acknowledged(pending)
        (call,) = at["alpha"].asked_for("subscriptions/listen")
        call.tell(TOOLS)
        if failed:
            call.error(-32603, "torn down", {"why": 1})
        else:
            call.result({"resultType": "complete"})
        for pending, id in ((first, 1), (second, "1")):
            await pending.next(TOOLS)
            if failed:
                error = await pending.error()
                assert (error.code, error.message, error.data) == (-32603, "torn down", {"why": 1})
            else:
                assert await pending.result() == {"resultType": "complete", "_meta": {TAG: id}}
            await pending.end()
        await trio.sleep(120)
        assert len(at["alpha"].asked_for("subscriptions/listen")) == 1, "whoever wants another one asks for it"


async def test_a_backend_that_ends_what_it_has_just_acknowledged_is_asked_ever_less_often(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        await acknowledged(at.client("").listen(tools=True))
        with trio.move_on_after(120):
            while True:
                (await at["alpha"].next("subscriptions/listen")).result({"resultType": "complete"})
        assert 5 < len(at["alpha"].asked_for("subscriptions/listen")) < 15
        await trio.sleep(120)
        at["alpha"].asked_for("subscriptions/listen")[-1].result({"resultType": "complete"})
        before = len(at["alpha"].asked_for("subscriptions/listen"))
        await trio.sleep(1)
        assert len(at["alpha"].asked_for("subscriptions/listen")) == before + 1


@pytest.mark.parametrize("modern_peer", [True, False])
async def test_after_the_end_of_a_link_too(modern: Open, autojump_clock: MockClock, modern_peer: bool) -> None:
    async with modern(Peer("alpha", modern=modern_peer)) as at:
        pending = at.client("alpha").listen("a:1", tools=True)
        await acknowledged(pending)
        at["alpha"].upstream.end()
        await pending.next(TOOLS)
        await pending.next(UPDATED)
        assert len(at["alpha"].upstreams) == 2


async def test_after_the_loss_of_a_connection_with_sessions_too(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        pending = at.client("alpha").listen("a:1", tools=True)
        await acknowledged(pending)
        at["alpha"].upstream.lose()
        await pending.next(TOOLS)
        await pending.next(UPDATED)
        assert len(at["alpha"].asked_for("resources/subscribe")) == 2


async def test_a_drain_ends_it_with_its_result(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").listen(tools=True, id="mine")
        await acknowledged(pending)
        at.gateway.nursery.start_soon(at.gateway.system.drain, 5.0)
        assert await pending.result() == {"resultType": "complete", "_meta": {TAG: "mine"}}
        await pending.end()


async def test_a_client_that_does_not_read_is_ended(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha"), outbox_bytes=20_000) as at:
        pending = at.client("alpha").listen("a:")
        await acknowledged(pending)
        (call,) = at["alpha"].asked_for("subscriptions/listen")
        for number in range(500):
            call.tell(UPDATED, uri=f"a:{number}/" + "x" * 100)
        await pending.end()
        assert pending.messages[-1]["result"]["resultType"] == "complete"
        await at.gateway.settle()
        assert call.cancelled.is_set()


async def test_a_filter_that_is_none_is_400(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").begin("subscriptions/listen", {"notifications": {"toolsListChanged": 3}})
        assert await pending.head() == 400
        assert (await pending.error()).code == -32602


async def test_an_empty_filter_is_acknowledged_as_such(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        assert await acknowledged(at.client("alpha").listen()) == {}
        assert at["alpha"].calls == []


async def test_a_client_has_so_many_and_no_more(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha", Principal("ann"))
        for _ in range(64):
            await acknowledged(client.listen(tools=True))
        assert await client.listen(tools=True).head() == 429
        assert len(at["alpha"].asked_for("subscriptions/listen")) == 1


async def test_an_actor_with_a_subscription_stays(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").listen(tools=True)
        await acknowledged(pending)
        await trio.sleep(600)
        assert len(at.supervisor) == 1
        pending.drop()
        await trio.sleep(301)
        assert len(at.supervisor) == 0
        assert at.gateway.actors.quotas.streams["listen"] == 0


async def test_what_only_the_two_ends_know_of_a_listen_reaches_the_server_with_it(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha")
        wanted: Any = {"notifications": {"toolsListChanged": True}}
        plain = client.begin("subscriptions/listen", wanted)
        await acknowledged(plain)
        special = client.begin("subscriptions/listen", {**wanted, "since": 7}, meta={"com.example/seat": "4B"})
        await acknowledged(special)
        first, second = at["alpha"].asked_for("subscriptions/listen")
        assert first.params == wanted, "what each request says of its client goes with the connection"
        assert second.params == {**wanted, "since": 7, "_meta": {"com.example/seat": "4B"}}
        traced = client.begin("subscriptions/listen", wanted, meta={"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
        await acknowledged(traced)
        assert len(at["alpha"].asked_for("subscriptions/listen")) == 2, "it shares that of the plain one"
        merged = at.client().begin("subscriptions/listen", {**wanted, "since": 8})
        await acknowledged(merged)
        assert at["alpha"].asked_for("subscriptions/listen")[-1].params == wanted


async def test_what_a_server_says_on_one_subscription_is_said_on_no_other(
    modern: Open, autojump_clock: MockClock
) -> None:
    """As on `a:1`, which the server says once to each who has subscribed to it, the second time a second later."""
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha")
        wanted: Any = {"notifications": {"resourceSubscriptions": ["a:1"]}}
        plain, other = client.begin("subscriptions/listen", wanted), client.listen("a:1", tools=True)
        own = client.begin("subscriptions/listen", wanted, meta={"com.example/seat": "4B"})
        pendings = (plain, other, own)
        for pending in pendings:
            await acknowledged(pending)
        calls = at["alpha"].asked_for("subscriptions/listen")
        for call in calls:
            seat = call.params.get("_meta", {}).get("com.example/seat")
            call.tell(UPDATED, uri="a:1", **({"_meta": {"com.example/for": seat}} if seat else {}))
            await trio.sleep(1)
        assert [said(pending) for pending in pendings] == [[(UPDATED, "a:1")]] * 3
        heard = [message["params"]["_meta"].get("com.example/for") for message in (p.messages[-1] for p in pendings)]
        assert heard == [None, None, "4B"]


async def test_a_resource_whose_subscription_was_refused_is_not_unsubscribed(
    modern: Open, autojump_clock: MockClock
) -> None:
    peer = Peer("alpha", modern=False)
    async with modern(peer) as at:
        peer.answers = False
        pending = at.client("alpha").listen("a:1", "a:2")
        (await peer.next("resources/subscribe")).error(-32602)
        (await peer.next("resources/subscribe")).result({})
        assert await acknowledged(pending) == {"resourceSubscriptions": ["a:2"]}
        pending.drop()
        await at.gateway.settle()
        assert [call.params["uri"] for call in peer.asked_for("resources/unsubscribe")] == ["a:2"]
