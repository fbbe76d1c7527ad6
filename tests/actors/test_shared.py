"""Backends that the operator marked `shared`: one connection for all sessions, and nothing crosses between them."""

from actors.ports import Principal
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, tool

MAY_ALL = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}


def shared(**more) -> Backend:
    return Backend("alpha", tools=("echo", "work"), held={"work"}, sharing="shared", **more)


async def test_all_sessions_call_over_one_connection_at_the_same_time_and_each_gets_its_own_answer(autojump_clock):
    alpha = shared()
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect(principal=Principal(f"p{n}"), capabilities=MAY_ALL) for n in range(5)]
        calls = [
            client.begin("tools/call", {"name": "alpha__work", "arguments": {"n": n}}, id=1, progress=1)
            for n, client in enumerate(clients)
        ]
        requests = [await alpha.next() for _ in clients]
        assert len({request.upstream for request in requests}) == 1
        assert len({request.id for request in requests}) == len({request.token for request in requests}) == 5
        for request in reversed(requests):
            request.progress(request.params["arguments"]["n"] + 1)
            request.text(str(request.params["arguments"]["n"]))
        for n, call in enumerate(calls):
            assert (await call.result())["content"][0]["text"] == str(n)
            assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [n + 1]


async def test_it_is_told_of_no_client_and_may_ask_none(autojump_clock):
    alpha = shared(kind="http")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        events = client.listen()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        assert request.upstream.declared["capabilities"] == {}
        assert request.upstream.declared["clientInfo"]["name"] == "stagedoor"
        for asked in (request.ask("sampling/createMessage", {}), request.upstream.ask("roots/list", {})):
            assert (await asked.outcome())["error"]["code"] == -32601
        request.text("done")
        await call.result()
        assert len(call.messages) == 1
        assert events.messages == []
        await client.notify("notifications/roots/list_changed")
        await gateway.settle()
        assert "notifications/roots/list_changed" not in alpha.methods


async def test_its_logs_go_to_nobody(autojump_clock):
    for kind in ("stdio", "http"):
        alpha = shared(kind=kind)
        async with open_gateway(alpha) as gateway:
            client = await gateway.connect()
            events = client.listen()
            call = client.begin("tools/call", {"name": "alpha__work"})
            request = await alpha.next()
            request.log("secret of another")
            request.upstream.notify("notifications/message", {"level": "error", "data": "x"})
            request.text("done")
            await call.result()
            assert len(call.messages) == 1
            assert events.messages == []
            assert await client.call("logging/setLevel", {"level": "debug"}) == {}
            assert "logging/setLevel" not in alpha.methods


async def test_updates_reach_those_who_subscribed_and_changes_of_lists_everybody(autojump_clock):
    alpha = shared()
    async with open_gateway(alpha) as gateway:
        ann, bob = await gateway.connect(), await gateway.connect()
        anns, bobs = ann.listen(), bob.listen()
        await ann.call("resources/subscribe", {"uri": "alpha+test:///a"})
        await bob.tool("alpha__echo")
        await gateway.settle()
        alpha.lists["tools/list"].append(tool("new"))
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///a/part"})
        alpha.upstream.notify("notifications/tools/list_changed")
        await anns.next("notifications/resources/updated")
        await anns.next("notifications/tools/list_changed")
        await bobs.next("notifications/tools/list_changed")
        assert bobs.seen("notifications/resources/updated") == []


async def test_the_last_one_to_unsubscribe_or_to_leave_unsubscribes(autojump_clock):
    alpha = shared()
    uri = {"uri": "alpha+test:///a"}
    async with open_gateway(alpha) as gateway:
        ann, bob, eve = [await gateway.connect() for _ in range(3)]
        for client in (ann, bob):
            await client.call("resources/subscribe", uri)
        await eve.tool("alpha__echo")
        bobs = bob.listen()
        assert await ann.call("resources/unsubscribe", uri) == {}
        assert alpha.asked_for("resources/unsubscribe") == []
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        await bobs.next("notifications/resources/updated")
        await bob.delete()
        unsubscribed = await alpha.next("resources/unsubscribe")
        assert unsubscribed.params == {"uri": "test:///a"}
        alpha.upstream.die()
        await gateway.settle()
        await eve.tool("alpha__echo")
        assert alpha.upstream.params_of("resources/subscribe") == []


async def test_a_session_that_joins_a_connection_which_is_up_is_served_at_once(autojump_clock):
    alpha = shared(welcome={"instructions": "Hello."})
    async with open_gateway(alpha) as gateway:
        for _ in range(3):
            client = await gateway.connect("alpha")
            assert client.server["instructions"] == "Hello."
            assert await client.tool("echo") == "alpha: echo"
        listing = await gateway.connect()
        assert await listing.names() == ["alpha__echo", "alpha__work"]
        assert len(alpha.upstreams) == 1


async def test_the_connection_ends_with_the_last_session_and_a_later_one_begins_anew(autojump_clock):
    alpha = shared()
    async with open_gateway(alpha) as gateway:
        first, second = await gateway.connect("alpha"), await gateway.connect("alpha")
        await first.delete()
        await gateway.settle()
        assert len(alpha.open) == 1
        assert await second.tool("echo") == "alpha: echo"
        await second.delete()
        third = gateway.client("alpha")
        await third.initialize()  # while the old connection is closing
        assert await third.tool("echo") == "alpha: echo"
        await gateway.settle()
        assert len(alpha.open) == 1


async def test_what_one_session_cancels_the_others_keep(autojump_clock):
    alpha = shared()
    async with open_gateway(alpha) as gateway:
        ann, bob = await gateway.connect(), await gateway.connect()
        mine = ann.begin("tools/call", {"name": "alpha__work"})
        first = await alpha.next()
        his = bob.begin("tools/call", {"name": "alpha__work"})
        second = await alpha.next()
        await ann.cancel(mine)
        await first.cancelled.wait()
        await ann.delete()
        await gateway.settle()
        assert not second.cancelled.is_set()
        second.text("kept")
        assert (await his.result())["content"][0]["text"] == "kept"
        assert (await mine.error()).code == -32800


async def test_when_it_dies_every_caller_is_told_and_it_serves_again(autojump_clock):
    alpha = shared()
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect() for _ in range(3)]
        calls = [client.begin("tools/call", {"name": "alpha__work"}) for client in clients]
        for _ in calls:
            request = await alpha.next()
        request.upstream.die()
        for call in calls:
            assert (await call.error()).data["executed"] == "unknown"
        assert [await client.tool("alpha__echo") for client in clients] == ["alpha: echo"] * 3
