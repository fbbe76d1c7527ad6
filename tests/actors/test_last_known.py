"""The last list known is the answer at once, also when nobody has heard of the backend for a while."""

import trio

from actors.ports import Principal
from actors.protocol.payload import dumps
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, tool


async def test_after_an_idle_close_the_last_list_is_the_answer_at_once_and_what_is_different_is_announced(
    autojump_clock,
):
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=7200.0) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        await trio.sleep(400)
        assert alpha.open == []
        alpha.lists["tools/list"] = [tool("later")]
        alpha.mute.add("initialize")
        before = trio.current_time()
        assert await client.names() == ["alpha__echo"]
        assert await client.names() == ["alpha__echo"]
        assert trio.current_time() - before < 0.1
        welcome = (await alpha.next("initialize"), await alpha.next("initialize"))[1]
        welcome.result(
            {
                "protocolVersion": alpha.version,
                "capabilities": alpha.capabilities,
                "serverInfo": {"name": "a", "version": "1"},
            }
        )
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__later"]
        await trio.sleep(5)
        assert len(events.messages) == 1


async def test_after_an_idle_close_many_may_ask_while_the_backend_is_being_connected(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=7200.0) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.upstream.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        await client.names()
        await trio.sleep(400)
        alpha.mute.add("initialize")
        before = trio.current_time()
        for _ in range(5):
            assert await client.names() == ["alpha__echo"]
        assert trio.current_time() - before < 0.1


async def test_after_an_idle_close_a_list_that_is_the_same_is_not_announced(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=7200.0) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        await trio.sleep(400)
        await client.names()
        await trio.sleep(5)
        assert events.messages == []


async def test_after_an_idle_close_a_tool_that_is_new_is_found_without_a_list(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, idle_ttl=7200.0) as gateway:
        client = await gateway.connect()
        await client.names()
        await trio.sleep(400)
        alpha.lists["tools/list"].append(tool("new"))
        assert await client.tool("alpha__new") == "alpha: new"


async def test_who_was_told_of_a_change_never_gets_the_list_from_before_it(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        alpha.lists["tools/list"] = [tool("later")]
        alpha.upstream.notify("notifications/tools/list_changed")
        await events.next("notifications/tools/list_changed")
        alpha.upstream.die()
        await gateway.settle()
        assert await client.names() == ["alpha__later"]


async def test_the_lists_kept_are_bounded_in_bytes_and_those_not_used_go_first(autojump_clock, monkeypatch):
    monkeypatch.setattr("actors.endpoints.catalogue.MAX_BYTES", 10_000)
    alpha = Backend("alpha", tools=[tool("big", description="x" * 4000)])
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect(principal=Principal(name)) for name in "abcd"]
        for client in clients:
            assert await client.names() == ["alpha__big"]
        statistics, size = gateway.catalogue.statistics(), len(dumps(alpha.lists["tools/list"][0]))
        assert (statistics["views"], statistics["bytes"]) == (2, 2 * size)
        listed = len(alpha.asked_for("tools/list"))
        for client in (clients[3], clients[2]):
            assert await client.names() == ["alpha__big"]
        assert len(alpha.asked_for("tools/list")) == listed
        assert await clients[0].names() == ["alpha__big"]
        assert len(alpha.asked_for("tools/list")) == listed + 1
