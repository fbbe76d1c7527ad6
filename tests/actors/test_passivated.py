"""Sessions with connections leave memory, and their backends' sessions wait for them."""

from collections.abc import Collection, Mapping

import pytest
import trio

from actors.ports import Failed, Record, Refused
from actors.sessions.session import SessionActor
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Upstream

QUIET = 70.0
"""Seconds after which a session without messages has left memory."""
OVER = 1800.0
"""The idle TTL."""


def http(name: str = "alpha", **more: object) -> Backend:
    return Backend(name, kind="http", **more)  # type: ignore[arg-type]


def in_memory(gateway: Gateway) -> int:
    return len(gateway.actors.sessions.table)


def records(gateway: Gateway) -> Collection[Record]:
    """What the store holds."""
    store = gateway.store
    assert isinstance(store, MemoryStore)
    return store.records().values()


def record(gateway: Gateway) -> Mapping[str, bytes]:
    """The fields of the one session in the store."""
    [session] = records(gateway)
    return session.fields


def ended(upstream: Upstream) -> bool:
    """Whether the backend was told that its session is over."""
    return upstream.transport.closed and not upstream.transport.let_go_of


async def leaves(gateway: Gateway, client: Client) -> None:
    """Nothing is heard until the session has left memory."""
    await trio.sleep(QUIET)
    assert in_memory(gateway) == 0


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_session_goes_on_with_its_backends_session_and_without_a_handshake(autojump_clock, endpoint):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        tool = "echo" if endpoint else "alpha__echo"
        await client.tool(tool)
        own = alpha.upstream
        await leaves(gateway, client)
        assert own.transport.let_go_of
        assert await client.tool(tool) == "alpha: echo"
        upstream = alpha.upstream
        assert upstream is not own
        assert upstream.transport.resumed is not None
        assert upstream.transport.resumed.session == own.transport.session
        assert "initialize" not in upstream.methods
        assert upstream.transport.listens == 1
        ids = [m["id"] for each in (own, upstream) for m in each.messages if "method" in m and "id" in m]
        assert len(ids) == len(set(ids))


async def test_its_level_is_in_force_again(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("logging/setLevel", {"level": "error"})
        await leaves(gateway, client)
        await client.tool("echo")
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]


async def test_it_may_leave_and_come_back_again_and_again(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        before = gateway.left()
        for _ in range(5):
            assert await client.tool("echo") == "alpha: echo"
            await leaves(gateway, client)
        assert alpha.methods.count("initialize") == 1
        assert (
            len({upstream.transport.session for upstream in alpha.upstreams if upstream.methods[:1] != ["initialize"]})
            == 1
        )
        assert gateway.left()["actors"] < before["actors"]


async def test_what_was_missed_is_announced_once(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        await leaves(gateway, client)
        events = client.listen()
        await gateway.settle()
        await trio.sleep(5)
        assert sorted(m["method"] for m in events.messages) == [
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
            "notifications/resources/updated",
            "notifications/tools/list_changed",
        ]
        assert "resources/subscribe" not in alpha.upstream.methods


async def test_where_the_backend_can_say_what_came_nothing_is_announced(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///a"}, cursor="g-7")
        await leaves(gateway, client)
        assert record(gateway)["e:alpha"] == b"g-7"
        events = client.listen()
        await trio.sleep(5)
        assert [m["method"] for m in events.messages] == ["notifications/resources/updated"]
        assert alpha.upstream.transport.resumed.cursor == "g-7"


async def test_a_backend_that_has_forgotten_it_gets_a_handshake_and_the_request_once_more(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        await leaves(gateway, client)
        alpha.mute.add("tools/call")
        call = client.begin("tools/call", {"name": "echo"})
        refused = await alpha.next()
        alpha.mute.clear()
        refused.upstream.lose_session(refused)
        assert (await call.result())["content"][0]["text"] == "alpha: echo"
        assert alpha.upstream.methods[:2] == ["tools/call", "initialize"]
        assert alpha.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]


@pytest.mark.parametrize("kind", ["stdio", "inproc"])
async def test_with_a_connection_of_this_process_it_stays_where_it_is(autojump_clock, kind):
    alpha, beta = Backend("alpha", kind=kind), http("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.names()
        await client.tool("alpha__echo")
        await client.tool("beta__echo")
        own, other = alpha.upstream, beta.upstream
        await trio.sleep(QUIET)
        assert in_memory(gateway) == 1
        assert await client.tool("alpha__echo") == "alpha: echo"
        assert await client.names() == ["alpha__echo", "beta__echo"]
        assert (alpha.upstream, beta.upstream) == (own, other)
        await trio.sleep(OVER + 10)
        assert in_memory(gateway) == 0
        assert ended(own)
        assert ended(other)


async def test_one_that_stays_where_it_is_has_its_record_for_as_long(autojump_clock):
    alpha = Backend("alpha", kind="stdio")
    async with open_gateway(alpha, idle_ttl=28_800.0) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await trio.sleep(3500)  # soon enough after the last time that the store was told
        await client.tool("echo")
        await trio.sleep(27_000)
        await client.tool("echo")
        await client.tool("echo")
        assert len(records(gateway)) == 1


async def test_after_its_idle_time_it_is_unknown_and_its_backends_are_told(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        session = alpha.upstream.transport.session
        await trio.sleep(OVER - 30)
        assert not [upstream for upstream in alpha.upstreams if ended(upstream)]
        await trio.sleep(40)
        [told] = [upstream for upstream in alpha.upstreams if ended(upstream)]
        assert told.transport.resumed.session == session
        assert told.messages == []
        assert await client.begin("tools/list").head() == 404
        assert gateway.telemetry.total("stagedoor_sessions_ended_total", "idle") == 1


@pytest.mark.parametrize("life", ["without calls", "server lost its session", "event stream cut", "asked in vain"])
async def test_after_its_idle_time_the_store_has_nothing_of_it(autojump_clock, life):
    """Also where no server has a session of its that waits."""
    alpha = http(tools=("echo", "ask"), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("" if life == "without calls" else "alpha", capabilities={"elicitation": {}})
        if life == "event stream cut":
            events = client.listen()
            await gateway.settle()
            alpha.upstream.notify("notifications/tools/list_changed")
            await gateway.settle()
            events.drop()
        elif life == "server lost its session":
            await client.tool("echo")
            alpha.upstream.die("the server was killed")
        elif life == "asked in vain":
            call = client.begin("tools/call", {"name": "ask"})
            (await alpha.next()).ask("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
            await gateway.settle()
            call.drop()
            while gateway.actors.quotas.requests.total:
                await trio.sleep(1)
        await trio.sleep(OVER - QUIET)
        assert records(gateway)
        assert in_memory(gateway) == 0
        await trio.sleep(QUIET + 10)
        assert not records(gateway)
        assert await client.begin("tools/list").head() == 404
        assert gateway.telemetry.total("stagedoor_sessions_ended_total", "idle") == 1


async def test_what_comes_while_it_leaves_is_bounded_and_may_be_given_up(autojump_clock, monkeypatch):
    monkeypatch.setattr(SessionActor, "mailbox_size", 8)
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        release, held = gateway.store.release, []
        monkeypatch.setattr(gateway.store, "release", lambda *args, **more: held.append(args))
        await trio.sleep(QUIET)
        calls = []
        for _ in range(20):
            calls.append(client.begin("tools/call", {"name": "echo"}))
            await gateway.settle()
        waiting, refused = calls[:8], calls[8:]
        assert [await call.head() for call in refused] == [503] * 12
        waiting[0].drop()
        await gateway.settle()
        release(*held.pop())
        for call in waiting[1:]:
            assert "result" in await call.response()
        assert sum(upstream.methods.count("tools/call") for upstream in alpha.upstreams) == 8


@pytest.mark.parametrize("step", ["read", "claim"])
async def test_its_end_waits_for_a_store_that_is_away(autojump_clock, step):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await leaves(gateway, client)
        done = getattr(gateway.store, step)
        setattr(gateway.store, step, lambda *args: args[-1](Failed(Refused.AWAY)))
        await trio.sleep(OVER)
        assert record(gateway)
        setattr(gateway.store, step, done)
        await trio.sleep(10)
        assert not records(gateway)
        assert [upstream for upstream in alpha.upstreams if ended(upstream)]


async def test_what_is_heard_meanwhile_puts_its_end_off(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        for _ in range(3):
            await client.tool("echo")
            await trio.sleep(OVER - 100)
        assert await client.tool("echo") == "alpha: echo"
        assert not [upstream for upstream in alpha.upstreams if ended(upstream)]


async def test_a_record_that_is_over_can_not_be_brought_back(autojump_clock):
    """Also where nobody has word of its end."""
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await leaves(gateway, client)
        [key] = gateway.store.records()
        gateway.services.cluster.due_at(key, None)
        await trio.sleep(OVER)
        assert record(gateway)
        assert await client.begin("tools/list").head() == 404
        await trio.sleep(1)
        assert [upstream for upstream in alpha.upstreams if ended(upstream)]
        assert not records(gateway)


async def test_a_session_that_is_deleted_right_after_it_came_back_ends_at_its_backends(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        own = alpha.upstream
        await leaves(gateway, client)
        assert await client.delete() == 200
        await trio.sleep(5)
        assert ended(alpha.upstream)
        assert alpha.upstream.transport.resumed.session == own.transport.session


async def test_the_sessions_of_backends_are_in_no_log_and_in_no_record(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        secret = alpha.upstream.transport.session
        await leaves(gateway, client)
        fields = record(gateway)
        assert "b:alpha" in fields
        assert secret.encode() not in b"".join(fields.values())
        await client.tool("echo")
        assert alpha.upstream.transport.resumed.session == secret
        assert secret not in repr(gateway.log.lines)


async def test_a_session_that_is_kept_is_not_shown_to_another_address(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await leaves(gateway, client)
        moved = Backend("elsewhere", kind="http")
        spec = gateway.services.table.value.backends["alpha"]
        gateway.change(backends={"alpha": type(spec)("alpha", moved.spec.target)})
        assert await client.tool("echo") == "alpha: echo"
        assert alpha.upstream.transport.resumed is None
        assert alpha.upstream.methods[0] == "initialize"


async def test_a_backend_that_is_away_when_it_comes_back_costs_the_call_and_not_the_session(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        session = (await alpha.next()).upstream.transport.session
        await leaves(gateway, client)
        alpha.mute.add("tools/call")
        call = client.begin("tools/call", {"name": "echo"})
        (await alpha.next()).fail("no")
        assert (await call.error()).data["executed"] == "no"
        alpha.mute.clear()
        assert await client.tool("echo") == "alpha: echo"
        assert alpha.upstream.transport.session == session
