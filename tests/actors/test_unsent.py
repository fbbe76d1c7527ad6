"""A call that was recorded before it was sent: whoever finds its record after the end of the process knows that it was
not executed, and nobody sends it whose record still says so."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors.machines.session import effects as fx
from actors.machines.session.record import read_request
from actors.ports import Deltas, Failed, Record, Refused, SessionKey
from actors.protocol.table import Limits
from actors.streams.recorder import Entry
from gateway.store.memory import MemoryStore
from tests.actors.test_continued import back, crash
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend

ASKING = {"elicitation": {}}
LOST = {"reason": "owner_lost"}


class Watched(MemoryStore):
    """Notes what becomes of the requests in the record; may be away, or slow to acknowledge."""

    def __init__(self) -> None:
        super().__init__(Limits(), trio.current_time)
        self.key: SessionKey = ""
        """Of the one session."""
        self.writes: list[tuple[str, bytes | None]] = []
        self.away = False
        self.slow = False
        self.late: list[Callable[[], None]] = []

    def create(self, key: SessionKey, *args: Any) -> None:
        self.key = key
        super().create(key, *args)

    def append(self, *args: Any, **more: Any) -> None:
        deltas = more.get("deltas") or Deltas()
        if self.away:
            args[5](Failed(Refused.AWAY))
            return
        self.writes += deltas.requests.items()
        if self.slow:
            self.late.append(lambda: MemoryStore.append(self, *args, **more))
        else:
            super().append(*args, **more)

    def acknowledge(self) -> None:
        self.slow, late, self.late = False, self.late, []
        for write in late:
            write()

    def record(self) -> Record:
        found: list[Any] = []
        self.read(self.key, found.append)
        return found[0]  # type: ignore[no-any-return]

    def unsent(self) -> list[bool]:
        """What the record says of each request in flight."""
        return [read_request(entry).unsent for entry in self.record().requests.values()]


async def stream(gateway: Gateway, call: Pending) -> None:
    """Waits until the call has become a stream, and all is recorded that is to be."""
    await call.head()
    await trio.sleep(0.5)
    await gateway.settle()


async def waits_for_a_connection(gateway: Gateway, client: Client, alpha: Backend) -> Pending:
    """A call while the server, whose connection was lost, starts."""
    alpha.upstream.die()
    await gateway.settle()
    alpha.mute.add("initialize")
    call = client.begin("tools/call", {"name": "echo" if client.endpoint else "alpha__echo"})
    await stream(gateway, call)
    return call


async def waits_for_its_turn(gateway: Gateway, client: Client, alpha: Backend) -> tuple[Pending, Pending]:
    """Two calls over standard streams, where one goes at a time."""
    running = client.begin("tools/call", {"name": "work"})
    await alpha.next()
    waiting = client.begin("tools/call", {"name": "echo"})
    await stream(gateway, running)
    await stream(gateway, waiting)
    return running, waiting


@asynccontextmanager
async def next_process(alpha: Backend, store: MemoryStore, before: Client, **more: Any) -> AsyncIterator[Client]:
    async with open_gateway(alpha, store=store) as gateway:
        client = gateway.client(before.endpoint, **more)
        client.session, client.version = before.session, before.version
        yield client


@pytest.mark.parametrize("endpoint", ["", "alpha"])
@pytest.mark.parametrize("sharing", ["session", "shared"])
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_after_a_kill_a_call_that_waited_for_a_connection_was_surely_not_executed(
    autojump_clock, endpoint, kind, sharing
):
    alpha, store = Backend("alpha", kind=kind, sharing=sharing), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect(endpoint)
        await client.tool("echo" if endpoint else "alpha__echo")
        call = await waits_for_a_connection(gateway, client, alpha)
        assert store.unsent() == [True]
    alpha.mute.clear()
    async with next_process(alpha, store, client) as client:
        answer = await back(client, call).response()
        assert answer["error"]["data"] == {**LOST, "executed": "no"}
    assert len(alpha.asked_for("tools/call")) == 1


async def test_after_a_kill_a_call_that_waited_for_its_turn_was_surely_not_executed_and_the_other_may_have(
    autojump_clock,
):
    alpha, store = Backend("alpha", tools=("echo", "work"), held={"work"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", capabilities=ASKING)
        running, waiting = await waits_for_its_turn(gateway, client, alpha)
    async with next_process(alpha, store, client, capabilities=ASKING) as client:
        for call, executed in ((running, "unknown"), (waiting, "no")):
            answer = await back(client, call).response()
            assert answer["error"]["data"] == {**LOST, "executed": executed}
    assert len(alpha.asked_for("tools/call")) == 1


async def test_after_a_kill_a_call_that_waited_for_the_first_list_of_its_server_was_surely_not_executed(
    autojump_clock,
):
    alpha, store = Backend("alpha", mute=("initialize",)), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__echo"})
        await stream(gateway, call)
        assert store.unsent() == [True]
    async with next_process(alpha, store, client) as client:
        answer = await back(client, call).response()
        assert answer["error"]["data"] == {**LOST, "executed": "no"}
    assert not alpha.asked_for("tools/call")


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_call_that_waited_is_sent_after_its_record_says_so_no_more(autojump_clock, endpoint):
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect(endpoint)
        call = await waits_for_a_connection(gateway, client, alpha) if endpoint else None
        if call is None:
            alpha.mute.add("initialize")
            call = client.begin("tools/call", {"name": "alpha__echo"})
            await stream(gateway, call)
        store.slow = True
        alpha.mute.clear()
        for request in [r for r in alpha.asked_for("initialize") if not r.upstream.transport.closed]:
            alpha.answer(request)
        await trio.sleep(1)
        await gateway.settle()
        assert store.late
        assert not alpha.asked_for("tools/call")
        store.acknowledge()
        request = await alpha.next()
        await trio.sleep(1)
        assert not any(store.unsent())
        request.text("done")
        assert (await call.response())["result"]["content"][0]["text"] == "done"
        assert gateway.actors.quotas.requests.total == 0
    assert len(alpha.asked_for("tools/call")) == 1


async def test_after_a_kill_a_call_that_waited_and_was_sent_may_have_been_executed(autojump_clock):
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        call = await waits_for_a_connection(gateway, client, alpha)
        alpha.answer(alpha.asked_for("initialize")[-1])
        await alpha.next()
    async with next_process(alpha, store, client) as client:
        answer = await back(client, call).response()
        assert answer["error"]["data"] == {**LOST, "executed": "unknown"}


async def test_a_call_may_have_been_executed_whose_record_says_it_was_not_sent_if_the_store_has_lost_something(
    autojump_clock,
):
    """That it was sent, for one."""
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        call = await waits_for_a_connection(gateway, client, alpha)
        before = store.snapshot()
        alpha.answer(alpha.asked_for("initialize")[-1])
        await alpha.next()
    store.lose(before)
    assert store.unsent() == [True]
    async with next_process(alpha, store, client) as client:
        answer = await back(client, call).response()
        assert answer["error"]["data"] == {**LOST, "executed": "unknown"}


async def test_an_owner_that_was_replaced_while_a_call_waited_never_sends_it(autojump_clock):
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        await waits_for_a_connection(gateway, client, alpha)
        session = store.record()
        store.claim(store.key, session.owner, session.epoch, "somebody else", lambda outcome: None)
        assert store.unsent() == [True]
        alpha.answer(alpha.asked_for("initialize")[-1])
        await trio.sleep(3600)
        assert not alpha.asked_for("tools/call")


async def test_while_the_store_is_away_a_held_call_waits_for_it_and_others_do_not(autojump_clock):
    alpha, store = Backend("alpha", tools=("echo", "work"), held={"work"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", capabilities=ASKING)
        running, waiting = await waits_for_its_turn(gateway, client, alpha)
        assert store.unsent() == [False, True]
        store.away = True
        alpha.requests[-1].text("done")
        assert await client.tool("echo") == "alpha: echo"
        assert len(alpha.asked_for("tools/call")) == 2
        store.away = False
        for call in (running, waiting):
            assert "result" in await (call if not call.done else back(client, call)).response()
        assert len(alpha.asked_for("tools/call")) == 3


async def test_while_the_store_is_away_a_held_call_ends_with_its_deadline(autojump_clock):
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        call = await waits_for_a_connection(gateway, client, alpha)
        store.away = True
        alpha.answer(alpha.asked_for("initialize")[-1])
        await trio.sleep(3600)
        store.away = False
        await trio.sleep(5)
        answer = await back(client, call).response()
        assert answer["error"]["data"]["reason"] == "timeout"
        assert not alpha.asked_for("tools/call")
        assert gateway.actors.quotas.requests.total == 0


async def test_a_held_call_that_is_cancelled_is_never_sent(autojump_clock):
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        call = await waits_for_a_connection(gateway, client, alpha)
        await client.cancel(call)
        assert (await call.response())["error"]["code"] == -32800
        alpha.answer(alpha.asked_for("initialize")[-1])
        await trio.sleep(60)
        assert not alpha.asked_for("tools/call")


async def test_calls_that_wait_for_their_turn_go_in_order(autojump_clock):
    alpha, store = Backend("alpha", tools=("a", "b", "c"), held={"a", "b", "c"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", capabilities=ASKING)
        calls = []
        for name in "abc":
            calls.append(client.begin("tools/call", {"name": name}))
            await stream(gateway, calls[-1])
        assert store.unsent() == [False, True, True]
        for call, name in zip(calls, "abc", strict=True):
            request = await alpha.next()
            assert request.params["name"] == name
            await gateway.settle()
            assert len(alpha.asked_for("tools/call")) == "abc".index(name) + 1
            request.text(name)
            await call.response()


async def test_a_crash_of_the_sessions_actor_tells_them_apart_too(autojump_clock):
    alpha, store = Backend("alpha", tools=("echo", "work"), held={"work"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", capabilities=ASKING)
        running, waiting = await waits_for_its_turn(gateway, client, alpha)
        await crash(gateway, client)
        for call, executed in ((running, "unknown"), (waiting, "no")):
            answer = await back(client, call).response()
            assert answer["error"]["data"]["executed"] == executed


async def test_a_call_that_is_sent_at_once_costs_no_write_more(autojump_clock):
    alpha, store = Backend("alpha", held={"echo"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", capabilities=ASKING)
        call = client.begin("tools/call", {"name": "echo"})
        request = await alpha.next()
        await stream(gateway, call)
        assert store.writes == []
        request.text("done")
        await call.response()
        assert [value for _, value in store.writes] == [None]


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_held_call_that_goes_to_a_server_of_the_other_era_is_cleared_first(autojump_clock, kind):
    alpha, store = ModernBackend("alpha", kind=kind, sessions=True), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha")
        call = await waits_for_a_connection(gateway, client, alpha)
        assert store.unsent() == [True]
        store.slow, alpha.sessions = True, False
        alpha.mute.clear()
        alpha.answer(alpha.asked_for("initialize")[-1])
        await trio.sleep(5)
        assert "server/discover" in alpha.methods
        assert not alpha.asked_for("tools/call")
        store.acknowledge()
        assert (await call.response())["result"]["content"][0]["text"] == "alpha: echo"
        assert len(alpha.asked_for("tools/call")) == 1


async def test_a_call_whose_tool_is_found_late_is_cleared_before_it_goes_to_a_server_that_is_there(autojump_clock):
    alpha, store = Backend("alpha", mute={"tools/list"}), Watched()
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect()
        await client.call("resources/read", {"uri": "alpha+test:///a"})
        call = client.begin("tools/call", {"name": "alpha__echo"})
        await stream(gateway, call)
        assert store.unsent() == [True]
        store.slow = True
        alpha.mute.clear()
        for request in alpha.asked_for("tools/list"):
            alpha.list(request)
        await trio.sleep(5)
        assert store.late
        assert not alpha.asked_for("tools/call")
        store.acknowledge()
        assert (await call.response())["result"]["content"][0]["text"] == "alpha: echo"


def test_what_a_held_call_waits_for_is_never_dropped():
    assert Entry(fx.Append("p1", 2, None, clears=1)).answers
