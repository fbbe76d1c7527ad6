"""Merged lists without connections of one's own: the catalogue, and what happens when a session connects."""

import pytest
import trio

from actors.ports import Principal
from tests.support.door_client import RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool

SAMPLING = {"sampling": {}}


async def test_lists_need_no_connection_of_the_session_and_all_sessions_share_one(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta", kind="http")
    async with open_gateway(alpha, beta) as gateway:
        for _ in range(100):
            client = await gateway.connect()
            assert await client.names() == ["alpha__echo", "beta__echo"]
            assert await client.names("prompts/list") == ["alpha__hello", "beta__hello"]
        assert (len(alpha.upstreams), len(beta.upstreams)) == (1, 1)
        assert len(alpha.asked_for("tools/list")) == 1
        assert gateway.left()["upstreams"] == 2


async def test_one_connection_for_each_principal_and_each_set_of_client_capabilities(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        ann, bob = Principal("ann"), Principal("bob")
        for principal in (ann, bob):
            for capabilities in ({}, SAMPLING, {"roots": {}}, SAMPLING):
                client = await gateway.connect(principal=principal, capabilities=capabilities)
                await client.names()
        declared = [upstream.declared["capabilities"] for upstream in alpha.upstreams]
        assert declared == [{}, SAMPLING, {"roots": {}}] * 2


async def test_nothing_of_one_principals_lists_is_seen_by_another(autojump_clock):
    def mine(request):
        who = request.upstream.declared["clientInfo"]["name"]
        return {"tools": [tool(f"of-{who}")]}

    alpha = Backend("alpha")
    alpha.results["tools/list"] = mine
    async with open_gateway(alpha) as gateway:
        ann = await gateway.connect(principal=Principal("ann"), info={"name": "ann", "version": "1"})
        bob = await gateway.connect(principal=Principal("bob"), info={"name": "bob", "version": "1"})
        assert await ann.names() == ["alpha__of-ann"]
        assert await bob.names() == ["alpha__of-bob"]
        with pytest.raises(RpcError, match="Unknown tool"):
            await bob.tool("alpha__of-ann")


async def test_an_extension_that_is_not_passed_on_makes_no_view_of_its_own(autojump_clock):
    alpha = Backend("alpha")
    ui, other = {"io.modelcontextprotocol/ui": {"mimeTypes": ["a"]}}, {"com.example/x": {}}
    async with open_gateway(alpha) as gateway:
        for extensions in ({}, other, ui, {**ui, **other}):
            client = await gateway.connect(capabilities={"extensions": extensions})
            await client.names()
        assert [upstream.declared["capabilities"] for upstream in alpha.upstreams] == [{}, {"extensions": ui}]
        await gateway.connect("alpha", capabilities={"extensions": other})
        assert alpha.upstream.declared["capabilities"] == {"extensions": other}


async def test_many_who_ask_at_once_wait_for_one_fetch(autojump_clock):
    alpha = Backend("alpha", mute={"tools/list"})
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect() for _ in range(20)]
        waiting = [client.begin("tools/list") for client in clients]
        request = await alpha.next("tools/list")
        await gateway.settle()
        request.result({"tools": [tool("one")]})
        for pending in waiting:
            assert [t["name"] for t in (await pending.result())["tools"]] == ["alpha__one"]
        assert len(alpha.asked_for("tools/list")) == 1


async def test_a_sessions_own_connection_starts_with_its_first_call_read_or_subscription(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        for use in (
            lambda c: c.tool("alpha__echo"),
            lambda c: c.call("resources/read", {"uri": "alpha+test:///a"}),
            lambda c: c.call("resources/subscribe", {"uri": "alpha+test:///a"}),
            lambda c: c.call("prompts/get", {"name": "alpha__hello"}),
        ):
            client = await gateway.connect()
            await client.names()
            before = len(alpha.upstreams)
            await use(client)
            assert len(alpha.upstreams) == before + 1
            await use(client)
            assert len(alpha.upstreams) == before + 1


async def test_if_the_own_connection_lists_other_things_the_client_is_told_once(autojump_clock):
    alpha = Backend("alpha")
    alpha.results["tools/list"] = lambda r: {
        "tools": [tool("echo"), tool(f"extra-{alpha.upstreams.index(r.upstream)}")]
    }
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        assert await client.names() == ["alpha__echo", "alpha__extra-0"]
        await client.tool("alpha__echo")
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__echo", "alpha__extra-1"]
        await trio.sleep(5)
        assert len(events.messages) == 1


async def test_if_the_own_connection_lists_the_same_nothing_is_said(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        await client.names("resources/list", "uri")
        await client.tool("alpha__echo")
        await trio.sleep(5)
        assert events.messages == []


async def test_a_change_that_the_backend_announces_reaches_all_who_looked_and_is_fetched_by_the_next_list(
    autojump_clock,
):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect() for _ in range(3)]
        streams = [client.listen() for client in clients]
        for client in clients:
            await client.names()
        alpha.lists["tools/list"].append(tool("new"))
        for _ in range(10):
            alpha.upstream.notify("notifications/tools/list_changed")
        for client, events in zip(clients, streams, strict=True):
            await events.next("notifications/tools/list_changed")
            assert await client.names() == ["alpha__echo", "alpha__new"]
        await trio.sleep(5)
        assert [len(events.messages) for events in streams] == [1, 1, 1]
        assert len(alpha.asked_for("tools/list")) == 2


async def test_changes_that_never_stop_are_announced_all_the_same(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        for n in range(50):
            alpha.lists["tools/list"].append(tool(f"t{n}"))
            alpha.upstream.notify("notifications/tools/list_changed")
            await trio.sleep(0.05)
        assert len(events.seen("notifications/tools/list_changed")) >= 5


@pytest.mark.parametrize("own", [False, True])
async def test_a_change_while_its_list_is_being_fetched_is_found_and_announced(autojump_clock, own):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        if own:
            await client.tool("alpha__echo")
        assert await client.names() == ["alpha__echo"]
        alpha.mute.add("tools/list")
        before = len(alpha.asked_for("tools/list"))
        alpha.upstream.notify("notifications/tools/list_changed")
        await trio.sleep(1)
        [request] = alpha.asked_for("tools/list")[before:]
        request.upstream.notify("notifications/tools/list_changed")
        await gateway.settle()
        alpha.mute.clear()
        alpha.lists["tools/list"].append(tool("new"))
        request.result({"tools": [tool("echo")]})
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__echo", "alpha__new"]
        await trio.sleep(5)
        assert len(events.messages) == 1


async def test_the_catalogues_connection_closes_when_nobody_has_asked_for_a_while_and_comes_back(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.names()
        await trio.sleep(299)
        assert len(alpha.open) == 1
        await client.names()
        await trio.sleep(299)
        assert len(alpha.open) == 1
        await trio.sleep(2)
        assert alpha.open == []
        assert gateway.left()["upstreams"] == 0
        assert await client.names() == ["alpha__echo"]
        await gateway.settle()
        assert len(alpha.upstreams) == 2
        assert len(alpha.open) == 1


async def test_the_last_known_list_is_served_while_the_backend_is_away(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.down = True
        alpha.upstream.die()
        before = trio.current_time()
        for _ in range(5):
            assert await client.names() == ["alpha__echo", "beta__echo"]
        assert trio.current_time() - before < 1
        with pytest.raises(RpcError) as failed:
            await client.tool("alpha__echo")
        assert failed.value.data["executed"] in ("no", "unknown")
        assert await client.tool("beta__echo") == "beta: echo"


async def test_a_slow_backend_delays_the_others_once_by_the_list_deadline_and_is_announced_when_it_is_there(
    autojump_clock,
):
    alpha, beta = Backend("alpha"), Backend("beta", mute={"tools/list"})
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        events = client.listen()
        before = trio.current_time()
        assert await client.names() == ["alpha__echo"]
        assert 2 < trio.current_time() - before <= 3
        before = trio.current_time()
        assert await client.names() == ["alpha__echo"]
        assert trio.current_time() - before < 1
        (await beta.next("tools/list")).result({"tools": [tool("late")]})
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__echo", "beta__late"]


async def test_a_server_that_hangs_is_waited_for_once_whatever_clients_say_of_themselves(autojump_clock):
    hung = Backend("hung", kind="http", mute={"initialize"})
    async with open_gateway(hung, Backend("beta")) as gateway:
        began = trio.current_time()
        for capabilities in ({}, SAMPLING, {"roots": {}}):
            client = await gateway.connect(capabilities=capabilities)
            assert await client.names() == ["beta__echo"]
            assert await client.names("prompts/list") == ["beta__hello"]
        assert trio.current_time() - began <= 3
        began = trio.current_time()
        other = await gateway.connect(principal=Principal("bob"))  # to whom it may answer
        assert await other.names() == ["beta__echo"]
        assert 2 < trio.current_time() - began <= 3


async def test_a_name_that_nobody_has_is_looked_for_once_at_a_server_that_hangs(autojump_clock):
    hung = Backend("hung", kind="http", mute={"initialize"})
    async with open_gateway(hung, Backend("beta")) as gateway:
        client = await gateway.connect()
        await client.names()
        took = []
        for name in ("nobodys", "nobodys", "echo", "nobodys"):
            began = trio.current_time()
            if name == "echo":
                assert await client.tool(name) == "beta: echo"  # by its bare name
            else:
                with pytest.raises(RpcError, match="Unknown tool"):
                    await client.tool(name)
            took.append(round(trio.current_time() - began))
        assert took == [10, 0, 0, 0]
        began = trio.current_time()
        with pytest.raises(RpcError) as failed:
            await client.tool("hung__echo")  # its own name may be there any moment
        assert round(trio.current_time() - began) == 10
        assert failed.value.data["executed"] == "no"


async def test_a_server_that_is_slow_to_start_is_looked_at_though_lists_went_on_without_it(autojump_clock):
    slow = Backend("slow", kind="http", mute={"initialize"})
    async with open_gateway(slow, Backend("beta")) as gateway, trio.open_nursery() as nursery:

        async def start() -> None:
            request = await slow.next("initialize")
            await trio.sleep(8)
            slow.mute.clear()
            slow.answer(request)

        nursery.start_soon(start)
        client = await gateway.connect()
        events = client.listen()
        assert await client.names() == ["beta__echo"]
        assert await client.tool("slow__echo") == "slow: echo"
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["slow__echo", "beta__echo"]


async def test_who_comes_late_does_not_move_the_deadline_of_who_came_first(autojump_clock):
    alpha = Backend("alpha", mute={"tools/list"})
    async with open_gateway(alpha, Backend("beta")) as gateway:
        first, second = await gateway.connect(), await gateway.connect()
        start = trio.current_time()
        early = first.begin("tools/list")
        await trio.sleep(2)
        second.begin("tools/list")
        await early.result()
        assert trio.current_time() - start <= 3


async def test_a_fetch_that_is_never_answered_is_given_up_and_tried_again(autojump_clock):
    alpha = Backend("alpha", mute={"tools/list"}, timeout=60.0)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names() == []
        lost = await alpha.next("tools/list")
        await lost.cancelled.wait()
        again = await alpha.next("tools/list")
        again.result({"tools": [tool("at-last")]})
        await gateway.settle()
        assert await client.names() == ["alpha__at-last"]


async def test_a_dead_backend_neither_delays_nor_empties_the_others_and_is_announced_when_it_comes(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    beta.down = True
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        events = client.listen()
        before = trio.current_time()
        assert await client.names() == ["alpha__echo"]
        assert trio.current_time() - before < 1
        await trio.sleep(100)
        beta.down = False
        await events.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__echo", "beta__echo"]


async def test_nobody_asks_for_a_dead_backend_when_no_session_is_left(autojump_clock):
    alpha = Backend("alpha")
    alpha.down = True
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect()
        await client.names()
        await client.delete()
        await trio.sleep(60)
        tried = len(alpha.upstreams)
        await trio.sleep(3600)
        assert len(alpha.upstreams) == tried


async def test_if_no_backend_can_be_asked_that_is_an_error_and_not_an_empty_list(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    alpha.down = beta.down = True
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            with pytest.raises(RpcError) as failed:
                await client.names(method)
            assert failed.value.code == -32603
            assert failed.value.data["reason"] == "backends_down"


async def test_a_backend_without_a_feature_is_not_asked_for_it(autojump_clock):
    alpha = Backend("alpha", capabilities={"tools": {}})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names("prompts/list") == []
        assert await client.names() == ["alpha__echo"]
        assert await client.tool("alpha__echo") == "alpha: echo"
        await client.names("prompts/list")
        assert alpha.asked_for("prompts/list") == []


async def test_before_any_backend_answered_the_capabilities_are_the_superset_and_then_what_they_have(autojump_clock):
    alpha = Backend("alpha", capabilities={"tools": {}, "logging": {}})
    async with open_gateway(alpha) as gateway:
        first = await gateway.connect()
        assert {"tools", "prompts", "resources", "logging", "completions"} <= set(first.server["capabilities"])
        await first.names()
        second = await gateway.connect()
        assert second.server["capabilities"] == {"tools": {"listChanged": True}, "logging": {}}


async def test_a_crash_of_the_catalogue_costs_a_fetch(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        events = client.listen()
        await client.names()
        await crash_catalogue(gateway)
        assert await client.names() == ["alpha__echo"]
        assert len(alpha.upstreams) == 2
        alpha.lists["tools/list"].append(tool("new"))
        alpha.upstream.notify("notifications/tools/list_changed")
        await events.next("notifications/tools/list_changed")
        await trio.sleep(10)
        assert len(alpha.open) == 1  # the one that the crash left behind has ended


async def crash_catalogue(gateway: Gateway) -> None:
    ref = gateway.actors.tree.catalogue.ref
    assert ref is not None
    ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    ref.reply("anything")
    await gateway.settle()
    assert len(gateway.crashes) == 1
    gateway.crashes.clear()
