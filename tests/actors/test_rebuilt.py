"""The backend side of a session that crashed and was rebuilt from its record, and of a table that is replaced."""

from typing import Any

import pytest
import trio
from msgspec import Raw

from actors.protocol.table import Endpoint
from actors.upstreams.messages import UpstreamOutcome
from tests.support.door_client import Client, RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool


async def crash(gateway: Gateway) -> None:
    """The session's actor."""
    [alive] = gateway.actors.sessions.table.values()
    alive.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    alive.ref.reply("anything")
    await gateway.settle()
    assert gateway.crashes
    gateway.crashes.clear()


async def rebuild(gateway: Gateway, client: Client) -> None:
    """The session's actor crashes; its next message begins another life."""
    await crash(gateway)
    assert await client.call("ping") == {}


@pytest.mark.parametrize(("apart", "status"), [(50, 404), (70, 200)])
async def test_one_that_crashes_twice_within_a_minute_has_ended(autojump_clock, apart, status):
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect("alpha")
        await rebuild(gateway, client)
        await trio.sleep(apart / 2)
        assert await client.call("ping") == {}  # else it would rest
        await trio.sleep(apart / 2)
        await crash(gateway)
        assert await client.begin("ping").head() == status


@pytest.mark.parametrize("endpoint", ["", "alpha"])
@pytest.mark.parametrize("sharing", ["session", "shared"])
async def test_its_subscriptions_and_its_level_are_in_force_again(autojump_clock, endpoint, sharing):
    alpha = Backend("alpha", resources=("https://example.com/a", "test:///a"), sharing=sharing)
    uris = ["test:///a" if endpoint else "alpha+test:///a", "https://example.com/a"]
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect(endpoint)
        for uri in uris:
            await client.call("resources/subscribe", {"uri": uri})
        await client.call("logging/setLevel", {"level": "error"})
        before = set(alpha.upstreams)
        await rebuild(gateway, client)
        events = client.listen()
        if sharing == "session":
            for _ in uris:
                update = await events.next("notifications/resources/updated")
                assert update["params"]["uri"] in uris
        await gateway.settle()
        [upstream] = [upstream for upstream in alpha.open if upstream.params_of("resources/subscribe")]
        if sharing == "session":
            assert upstream not in before
            assert "logging/setLevel" not in upstream.methods or upstream.params_of("logging/setLevel") == [
                {"level": "error"}
            ]
        upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        assert (await events.next("notifications/resources/updated"))["params"]["uri"] in uris


async def test_the_level_is_told_to_connections_of_the_new_life(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.call("logging/setLevel", {"level": "error"})
        await rebuild(gateway, client)
        await client.tool("alpha__echo")
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]


async def test_the_links_of_the_old_life_end_and_ids_are_never_repeated(autojump_clock):
    alpha = Backend("alpha", kind="http")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        old = alpha.upstream
        await rebuild(gateway, client)
        await client.tool("echo")
        await gateway.settle()
        assert old.transport.closed
        ids = [m["id"] for upstream in alpha.upstreams for m in upstream.messages if "method" in m and "id" in m]
        assert len(ids) == len(set(ids))


async def test_a_subscription_is_asked_for_again_also_if_the_backend_is_away_at_first(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        alpha.down = True
        await rebuild(gateway, client)
        events = client.listen()
        await alpha.connected(4)
        alpha.down = False
        await events.next("notifications/resources/updated")
        assert alpha.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]


# A table that is replaced --------------------------------------------------------------------------------------


async def test_a_filter_that_changes_holds_from_the_next_message_on(autojump_clock):
    alpha = Backend("alpha", tools=("a", "b"))
    async with open_gateway(alpha) as gateway:
        client, plain = await gateway.connect(), await gateway.connect("alpha")
        assert await client.names() == ["alpha__a", "alpha__b"]
        narrower = Backend("alpha", disabled_tools=("b",)).spec
        gateway.change(backends={"alpha": narrower})
        assert await client.names() == ["alpha__a"]
        for session, name in ((client, "alpha__b"), (plain, "b")):
            with pytest.raises(RpcError, match="Unknown tool"):
                await session.tool(name)
        assert await plain.names() == ["a"]


async def test_a_backend_that_is_added_or_removed_is_there_or_gone_with_the_next_message(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        table = gateway.services.table.value
        gateway.change(endpoints={**table.endpoints, "": Endpoint("", "aggregate", ("alpha",))})
        client = await gateway.connect()
        assert await client.names() == ["alpha__echo"]
        gateway.change(endpoints=table.endpoints)
        assert await client.names() == ["alpha__echo", "beta__echo"]
        assert await client.tool("beta__echo") == "beta: echo"
        gateway.change(endpoints={**table.endpoints, "": Endpoint("", "aggregate", ("beta",))})
        assert await client.names() == ["beta__echo"]
        with pytest.raises(RpcError, match="Unknown tool"):
            await client.tool("alpha__echo")


async def test_a_connection_is_made_as_it_is_configured_then(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        other = Backend("alpha", timeout=7.0).spec
        gateway.change(backends={"alpha": other})
        alpha.upstream.die()
        await gateway.settle()
        await client.tool("echo")
        assert alpha.upstream.transport.spec is other


async def test_names_of_one_configuration_are_not_taken_for_those_of_another(autojump_clock):
    alpha = Backend("alpha", tools=("t",))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["alpha__t"]
        gateway.change(separator="-")
        assert await client.names() == ["alpha-t"]
        assert await client.tool("alpha-t") == "alpha: t"
        alpha.lists["tools/list"] = [tool("u")]
        alpha.upstream.notify("notifications/tools/list_changed")
        alpha.upstreams[0].notify("notifications/tools/list_changed")
        await gateway.settle()
        assert await client.names() == ["alpha-u"]


async def test_a_late_outcome_is_not_taken_for_that_of_the_request_whose_id_is_empty(autojump_clock):
    """An id may be the empty text; the record holds its level only once the server has taken it."""
    alpha = Backend("alpha", mute={"logging/setLevel"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        pending = client.begin("logging/setLevel", {"level": "error"}, id="")
        request = await alpha.next("logging/setLevel")
        [(key, alive)] = gateway.actors.sessions.table.items()
        alive.ref.reply(UpstreamOutcome("alpha", 4711, True, Raw(b"{}")))  # as of a call that was cancelled meanwhile
        await gateway.settle()
        request.error(-32602, "no such level")
        assert (await pending.error()).code == -32602
        found: list[Any] = []
        gateway.store.read(key, found.append)
        assert "level" not in found[0].fields
