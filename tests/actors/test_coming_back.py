"""Sessions that come back at a bad moment: early, late, all at once, to another configuration, or to somebody else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from actors.ports import Failed, Principal, Refused
from actors.protocol.table import HttpTarget, Limits
from actors.sessions.expiry import Overdue
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request, Upstream

QUIET = 70.0
"""Seconds after which a session without messages has left memory."""
OVER = 1800.0
"""The idle TTL."""
ROOTS = {"roots": {"listChanged": True}}


def http(name: str = "alpha", **more: Any) -> Backend:
    return Backend(name, kind="http", **more)


def ended(backend: Backend) -> list[Upstream]:
    """Those over which the backend was told that its session is over."""
    return [
        upstream for upstream in backend.upstreams if upstream.transport.closed and not upstream.transport.let_go_of
    ]


async def leaves(gateway: Gateway) -> None:
    await trio.sleep(QUIET)
    assert not gateway.actors.sessions.table


async def working(client: Client, alpha: Backend) -> tuple[Pending, Request]:
    """A call that can be continued, of which one event was seen."""
    call = client.begin("tools/call", {"name": "work"}, progress="mine")
    request = await alpha.next()
    params = {"progressToken": request.token, "progress": 1}
    alpha.upstream.notify("notifications/progress", params, related=request.id, cursor="c1")
    await call.next("notifications/progress")
    return call, request


# What brings it back ------------------------------------------------------------------------------------------


async def test_the_answer_that_brings_a_session_back_reaches_its_backend(autojump_clock):
    """In the words of the backend's revision, whether or not the connection is up by then."""
    alpha = http(tools=("work",), held={"work"}, version="2025-06-18")
    store = MemoryStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as first:
        before = await first.connect("alpha", capabilities={"sampling": {"tools": {}}})
        call, request = await working(before, alpha)
        alpha.upstream.ask(
            "sampling/createMessage", {"messages": [], "maxTokens": 1}, 7, related=request.id, cursor="c2"
        )
        question = await call.next("sampling/createMessage")
    async with open_gateway(alpha, store=store) as second:
        client = second.client("alpha")
        client.session, client.version = before.session, before.version
        text = {"type": "text", "text": "yes"}
        await client.respond(question, {"role": "assistant", "model": "m", "content": [text]})
        await alpha.connected(2)
        await second.settle()
        [answer] = [m for m in alpha.upstream.messages if "method" not in m]
        assert (answer["id"], answer["result"]["content"]) == (7, text)


async def test_the_cancel_that_brings_a_session_back_reaches_its_backend(autojump_clock):
    alpha = http(tools=("work",), held={"work"})
    store = MemoryStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as first:
        before = await first.connect("alpha")
        call, request = await working(before, alpha)
    async with open_gateway(alpha, store=store) as second:
        client = second.client("alpha")
        client.session, client.version = before.session, before.version
        await client.cancel(call)
        await alpha.connected(2)
        await second.settle()
        assert alpha.upstream.params_of("notifications/cancelled")[0]["requestId"] == request.id
        assert second.actors.quotas.requests.total == 0


async def test_a_notification_that_brings_a_session_back_reaches_its_backends(autojump_clock):
    """Their sessions never ended, and so count on hearing of changes."""
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=ROOTS)
        await client.tool("echo")
        session = alpha.upstream.transport.session
        await leaves(gateway)
        await client.notify("notifications/roots/list_changed")
        await gateway.settle()
        assert alpha.upstream.transport.session == session
        assert "initialize" not in alpha.upstream.methods
        assert "notifications/roots/list_changed" in alpha.upstream.methods


# Room ---------------------------------------------------------------------------------------------------------


async def test_sessions_that_come_back_count_against_their_principal(autojump_clock):
    alpha = http()
    async with open_gateway(alpha, sessions_per_principal=2) as gateway:
        clients = []
        for _ in range(3):
            clients += [await gateway.connect("alpha", Principal("me")) for _ in range(2)]
            await leaves(gateway)
        heads: list[int] = []

        async def come(client: Client) -> None:
            heads.append(await client.begin("tools/call", {"name": "echo"}).head())

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(come, client)
        assert sorted(heads) == [200, 200, 429, 429, 429, 429]
        await leaves(gateway)
        for client in clients[:2]:
            assert await client.tool("echo") == "alpha: echo"
        assert gateway.actors.quotas.sessions.total == 2


async def test_a_session_for_which_there_is_no_room_may_try_as_often_as_it_likes(autojump_clock):
    """A claim that comes to nothing counts against a session: it would be taken for one that always crashes."""
    alpha = http()
    async with open_gateway(alpha, sessions=1, store=MemoryStore(Limits(), trio.current_time)) as gateway:
        early = await gateway.connect("alpha")
        await early.tool("echo")
        await leaves(gateway)
        late = await gateway.connect("alpha")
        late.listen()
        for _ in range(6):
            assert await early.begin("tools/call", {"name": "echo"}).head() == 503
        assert await late.delete() == 200
        await gateway.settle()
        assert await early.tool("echo") == "alpha: echo"


# While it leaves ----------------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Says what became of a release when it is told to; then it may be away."""

    away = False
    told: Callable[[], None] | None = None

    def release(self, key: Any, grant: Any, done: Any, **more: Any) -> None:
        def later(outcome: Any) -> None:
            self.told = lambda: done(outcome)

        super().release(key, grant, later, **more)

    def claim(self, *args: Any, **more: Any) -> None:
        if self.away:
            args[-1](Failed(Refused.AWAY))
        else:
            super().claim(*args, **more)


async def test_a_message_as_it_leaves_and_the_store_goes_away_costs_neither_it_nor_its_backends_sessions(
    autojump_clock,
):
    alpha = http()
    store = SlowStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await trio.sleep(61)
        call = client.begin("tools/call", {"name": "echo"})
        events = client.listen()
        await gateway.settle()
        assert store.told is not None
        store.away = True
        store.told()
        assert await call.head() == 503
        assert await events.head() == 503
        store.away = False
        assert await client.tool("echo") == "alpha: echo"
        assert not ended(alpha)
        assert len(alpha.asked_for("tools/call")) == 2


async def test_a_session_that_is_another_processs_keeps_its_backends_sessions(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        store = gateway.store
        assert isinstance(store, MemoryStore)
        [(key, record)] = store.records().items()
        store.claim(key, record.owner, record.epoch, "somebody else", lambda outcome: None)
        client.begin("logging/setLevel", {"level": "error"})
        await trio.sleep(10)
        assert not gateway.actors.sessions.table
        assert not gateway.actors.tree.upstreams.children()
        assert not ended(alpha)


# Another configuration, and the end ---------------------------------------------------------------------------


async def test_a_session_that_is_kept_is_not_shown_to_an_address_that_comes_while_it_waits(autojump_clock):
    alpha, beta = http("alpha"), http("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.tool("beta__echo")
        await leaves(gateway)
        await client.tool("beta__echo")
        seen = len(alpha.upstreams)
        specs = gateway.services.table.value.backends
        gateway.change(backends={**specs, "alpha": replace(specs["alpha"], target=HttpTarget("http://other.test/mcp"))})
        await client.tool("alpha__echo")
        assert await client.delete() == 200
        await trio.sleep(10)
        assert len(alpha.upstreams) > seen
        assert not [upstream for upstream in alpha.upstreams[seen:] if upstream.transport.resumed is not None]


async def test_a_session_ends_well_though_a_server_that_it_was_to_go_back_to_is_gone(autojump_clock):
    alpha, beta = http("alpha"), http("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.tool("beta__echo")
        await leaves(gateway)
        await client.tool("beta__echo")
        gateway.change(backends={"beta": gateway.services.table.value.backends["beta"]})
        assert await client.delete() == 200


async def test_a_session_that_ends_before_its_connections_are_back_ends_at_its_backends(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        session = alpha.upstream.transport.session
        await leaves(gateway)
        assert await client.delete() == 200
        await trio.sleep(10)
        assert [upstream.transport.session for upstream in ended(alpha)] == [session]


async def test_nothing_that_goes_on_holds_up_the_end_of_those_whose_time_is_over(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await leaves(gateway)
        expiry = gateway.actors.tree.expiry.ref
        assert expiry is not None
        await trio.sleep(OVER - 100)
        for _ in range(2000):
            expiry.reply(Overdue("00" * 16))
            await trio.sleep(0.05)
        assert ended(alpha)
