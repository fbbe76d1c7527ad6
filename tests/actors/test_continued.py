"""A call whose backend gives its events ids outlives the session's actor, and the process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors.ports import Failed, Principal, Refused, Rights
from actors.protocol.policy import Policy, Rule, Who, item
from actors.protocol.table import Limits
from actors.runtime.cell import Drain
from actors.upstreams.messages import PutDown
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import Backend, Request

WORK: dict[str, Any] = {"kind": "http", "tools": ("echo", "work"), "held": {"work"}}
ASKING = {"elicitation": {}, "roots": {}}


class Story:
    """A call at a backend, told over whichever connection there is."""

    def __init__(self, backend: Backend, request: Request) -> None:
        self.backend = backend
        self.request = request

    def progress(self, value: float, cursor: str) -> None:
        params = {"progressToken": self.request.token, "progress": value}
        self.backend.upstream.notify("notifications/progress", params, related=self.request.id, cursor=cursor)

    def log(self, data: str, cursor: str) -> None:
        params = {"level": "info", "data": data}
        self.backend.upstream.notify("notifications/message", params, related=self.request.id, cursor=cursor)

    def result(self, text: str, cursor: str = "last") -> None:
        result = {"content": [{"type": "text", "text": text}]}
        self.backend.upstream.transport.deliver({"id": self.request.id, "result": result}, self.request.id, cursor)


async def begun(client: Client, backend: Backend, name: str) -> tuple[Pending, Story]:
    """A call that has become a stream, of which one event was seen."""
    call = client.begin("tools/call", {"name": name}, progress="mine")
    story = Story(backend, await backend.next())
    backend.upstream.transport.prime("c0", story.request.id)
    story.progress(1, "c1")
    await call.next("notifications/progress")
    return call, story


async def crash(gateway: Gateway, client: Client) -> Gateway:
    """The session's actor crashes; its next message begins another life."""
    [alive] = gateway.actors.sessions.table.values()
    alive.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    alive.ref.reply("anything")
    await gateway.settle()
    gateway.crashes.clear()
    return gateway


def last(call: Pending) -> str:
    """The newest event id."""
    return [e.id for e in call.events if e.id is not None][-1]


def back(client: Client, call: Pending) -> Pending:
    """The client comes back for the rest."""
    rest = client.listen(last(call))
    rest.id = call.id
    return rest


def told(call: Pending) -> list[Any]:
    return [m.get("params", {}).get("progress", m.get("params", {}).get("data", "outcome")) for m in call.messages]


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_it_goes_on_after_a_crash_of_the_sessions_actor(autojump_clock, endpoint):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint)
        call, story = await begun(client, alpha, "work" if endpoint else "alpha__work")
        await crash(gateway, client)
        rest = back(client, call)
        await alpha.connected(2 if endpoint else len(alpha.upstreams))
        await gateway.settle()
        assert alpha.upstream.transport.picked_up == [(story.request.id, "c1")]
        story.progress(2, "c2")
        story.result("done")
        answer = await rest.response()
        assert answer["id"] == call.id
        assert answer["result"]["content"][0]["text"] == "done"
        assert told(rest) == [2, "outcome"]
        assert len(alpha.asked_for("tools/call")) == 1
        assert gateway.telemetry.total("stagedoor_requests_continued_total", "alpha") == 1
        assert gateway.actors.quotas.requests.total == 0


@pytest.mark.parametrize("comes", [True, False], ids=["its client comes back", "its connection stays"])
async def test_what_its_result_shows_is_still_decided_by_the_rights_that_it_was_asked_with(autojump_clock, comes):
    alpha = Backend("alpha", **WORK)
    dev, ops = (Rights("https://idp.test", "ann", groups=frozenset({group})) for group in ("dev", "ops"))
    shown = Rule("policy[1]", Who(groups=dev.groups), allow=(item("resource:alpha:*"),))
    async with open_replicas(2, alpha) as (one, two):
        for gateway in (one, two):
            gateway.change(policy=Policy([Rule("policy[0]", allow=(item("alpha:*"),)), shown]))
        client = one.client("alpha", Principal("ann"))
        client.rights = dev
        await client.initialize()
        client.to(one if comes else two)
        call, story = await begun(client, alpha, "work")
        one.kill()
        client.to(two)
        brings = back(client, call) if comes else call
        await trio.sleep(20)
        client.rights = ops
        await client.call("tools/list")
        link = {"type": "resource_link", "uri": "test:///a", "name": "a"}
        result = {"content": [link, {"type": "text", "text": "done"}]}
        alpha.upstream.transport.deliver({"id": story.request.id, "result": result}, story.request.id, "last")
        answer = await brings.response()
        assert [block["type"] for block in answer["result"]["content"]] == ["resource_link", "text"]


@asynccontextmanager
async def killed_after(
    alpha: Backend, act: Callable[[Client], Any], **client: Any
) -> AsyncIterator[tuple[Client, Any, Gateway]]:
    """What `act` did was all that the first process did; the client in front of the second."""
    store = MemoryStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as first:
        before = await first.connect("alpha", **client)
        came = await act(before)
    async with open_gateway(alpha, store=store) as second:
        after = second.client("alpha", **client)
        after.session, after.version = before.session, before.version
        yield after, came, second


async def test_it_goes_on_in_the_next_process(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with killed_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (call, story), gateway):
        rest = back(client, call)
        await alpha.connected(2)
        await gateway.settle()
        assert alpha.upstream.transport.resumed is not None
        assert "initialize" not in alpha.upstream.methods
        assert alpha.upstream.transport.picked_up == [(story.request.id, "c1")]
        story.log("still there", "c2")
        story.result("done")
        await rest.response()
        assert told(rest) == ["still there", "outcome"]
        assert len(alpha.asked_for("tools/call")) == 1


async def test_it_may_go_on_more_than_once(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call, story = await begun(client, alpha, "work")
        await crash(gateway, client)
        await client.call("ping")
        await gateway.settle()
        story.progress(2, "c2")
        await gateway.settle()
        await trio.sleep(61)  # two crashes within a minute end a session
        await crash(gateway, client)
        rest = back(client, call)
        await gateway.settle()
        assert alpha.upstream.transport.picked_up == [(story.request.id, "c2")]
        story.result("done")
        await rest.response()
        assert told(rest) == [2, "outcome"]


async def test_a_call_that_the_backend_gave_no_place_for_gets_its_error(autojump_clock):
    alpha = Backend("alpha", **WORK)

    async def act(client: Client) -> Pending:
        call = client.begin("tools/call", {"name": "work"})
        (await alpha.next()).log("working")
        await call.next()
        return call

    async with killed_after(alpha, act) as (client, call, _):
        answer = await back(client, call).response()
        assert answer["error"]["data"] == {"reason": "owner_lost", "executed": "unknown"}


async def test_a_call_whose_rest_the_backend_no_longer_has_gets_one_error(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with killed_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (call, story), gateway):
        rest = back(client, call)
        await alpha.connected(2)
        await gateway.settle()
        alpha.upstream.transport.fail(story.request.id)
        answer = await rest.response()
        assert answer["error"]["data"]["executed"] == "unknown"


async def test_a_backend_that_has_forgotten_the_session_means_one_error_and_a_new_one(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with killed_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (call, story), gateway):
        rest = back(client, call)
        await alpha.connected(2)
        await gateway.settle()
        alpha.upstream.transport.fail(story.request.id)
        alpha.upstream.lose_session()
        assert (await rest.response())["error"]["data"]["executed"] == "unknown"
        assert await client.tool("echo") == "alpha: echo"
        assert alpha.methods.count("initialize") == 2


async def test_its_deadline_runs(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with killed_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (call, _story), _):
        rest = back(client, call)
        answer = await rest.response()
        assert answer["error"]["data"]["reason"] == "timeout"
        assert "notifications/cancelled" in alpha.upstream.methods


async def test_its_client_can_cancel_it(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with killed_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (call, story), gateway):
        rest = back(client, call)
        await client.cancel(call)
        assert (await rest.response())["error"]["code"] == -32800
        await gateway.settle()
        assert alpha.upstream.params_of("notifications/cancelled")[0]["requestId"] == story.request.id


def asks(alpha: Backend) -> Callable[[Client], Awaitable[tuple[Pending, Story, Any]]]:
    """A call in whose course its server asks something."""

    async def act(client: Client) -> tuple[Pending, Story, Any]:
        call, story = await begun(client, alpha, "work")
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        alpha.upstream.ask("elicitation/create", form, 7, related=story.request.id, cursor="c2")
        return call, story, await call.next("elicitation/create")

    return act


async def test_a_question_that_was_open_can_be_answered_in_the_next_process(autojump_clock):
    alpha = Backend("alpha", **WORK)

    async with killed_after(alpha, asks(alpha), capabilities=ASKING) as (client, (call, story, question), gateway):
        rest = back(client, call)
        await alpha.connected(2)
        await client.respond(question, {"action": "accept", "content": {}})
        await gateway.settle()
        [answer] = [m for m in alpha.upstream.messages if "method" not in m]
        assert (answer["id"], answer["result"]["action"]) == (7, "accept")
        story.result("thanks")
        await rest.response()
        assert told(rest) == ["outcome"]


async def test_ids_of_two_lives_are_never_the_same(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with killed_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (_, story), _):
        await client.tool("echo")
        ids = [m["id"] for upstream in alpha.upstreams for m in upstream.messages if "method" in m and "id" in m]
        assert len(ids) == len(set(ids))
        assert story.request.id in ids


# A drain ------------------------------------------------------------------------------------------------------


class LastingStore(MemoryStore):
    """What is in it is there for the next process."""

    durable = True


@asynccontextmanager
async def drained_after(
    alpha: Backend, act: Callable[[Client], Any], store: MemoryStore | None = None, **client: Any
) -> AsyncIterator[tuple[Client, Any, Gateway]]:
    """What `act` did was in flight until the deadline; the client in front of the next process."""
    store = store if store is not None else LastingStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as first:
        before = await first.connect("alpha", **client)
        came = await act(before)
        await first.system.drain(trio.current_time() + 8)
    async with open_gateway(alpha, store=store) as second:
        after = second.client("alpha", **client)
        after.session, after.version = before.session, before.version
        yield after, came, second


async def test_a_drain_that_overtakes_the_word_of_a_session_leaves_its_backend_s_session_all_the_same(autojump_clock):
    """The urgent lane is read first; what the session said last still waits in the mailbox of its connection."""
    alpha = Backend("alpha", kind="http")
    async with open_gateway(alpha, store=LastingStore(Limits(), trio.current_time)) as gateway:
        client = await gateway.connect("alpha")
        assert await client.tool("echo") == "alpha: echo"
        [upstream] = [ref for ref in gateway.system.registry if ref.name.startswith("LegacyUpstream")]
        [session] = [ref for ref in gateway.system.registry if ref.name.startswith("SessionActor")]
        upstream.reply(PutDown(session))
        upstream.urgent(Drain(trio.current_time() + 8))
        await trio.sleep(1)
        assert alpha.upstream.transport.let_go_of


async def test_at_the_deadline_of_a_drain_it_is_left_for_the_next_process(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with drained_after(alpha, lambda client: begun(client, alpha, "work")) as (client, (call, story), gateway):
        assert told(call) == [1]
        [put_down] = alpha.upstreams
        assert put_down.transport.let_go_of
        assert "notifications/cancelled" not in put_down.methods
        rest = back(client, call)
        await alpha.connected(2)
        await gateway.settle()
        assert alpha.upstream.transport.picked_up == [(story.request.id, "c1")]
        assert "initialize" not in alpha.upstream.methods
        story.progress(2, "c2")
        story.result("done")
        await rest.response()
        assert told(rest) == [2, "outcome"]
        assert len(alpha.asked_for("tools/call")) == 1


async def test_at_the_deadline_of_a_drain_whoever_is_left_is_told_when_to_come_back(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with drained_after(alpha, lambda client: begun(client, alpha, "work")) as (_, (call, _story), _):
        assert call.events[-1].retry == 1000
        assert call.done


async def test_at_the_deadline_of_a_drain_the_rest_gets_its_error(autojump_clock):
    """Of two calls, one has a place at its backend."""
    alpha = Backend("alpha", **WORK)

    async def act(client: Client) -> tuple[Pending, Pending]:
        call, _ = await begun(client, alpha, "work")
        other = client.begin("tools/call", {"name": "work"})
        (await alpha.next()).log("working")
        await other.next()
        return call, other

    async with drained_after(alpha, act) as (client, (call, other), _):
        assert (await other.response())["error"]["data"] == {"reason": "shutdown", "executed": "unknown"}
        assert "outcome" not in told(call)
        back(client, call)
        await alpha.connected(2)


async def test_at_the_deadline_of_a_drain_its_question_stays_open(autojump_clock):
    alpha = Backend("alpha", **WORK)

    async with drained_after(alpha, asks(alpha), capabilities=ASKING) as (client, (call, story, question), gateway):
        assert not [m for m in alpha.upstream.messages if "method" not in m], "the server was told that nobody answers"
        rest = back(client, call)
        await alpha.connected(2)
        await client.respond(question, {"action": "accept", "content": {}})
        await gateway.settle()
        [answer] = [m for m in alpha.upstream.messages if "method" not in m]
        assert (answer["id"], answer["result"]["action"]) == (7, "accept")
        story.result("thanks")
        await rest.response()
        assert told(rest) == ["outcome"]


async def test_with_a_store_that_ends_with_the_process_it_gets_its_error(autojump_clock):
    alpha = Backend("alpha", **WORK)
    store = MemoryStore(Limits(), trio.current_time)
    async with drained_after(alpha, lambda client: begun(client, alpha, "work"), store) as (_, (call, _story), _):
        assert (await call.response())["error"]["data"] == {"reason": "shutdown", "executed": "unknown"}


# What is answered is kept -------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Saves only when it is told to."""

    held: list[Callable[[], None]] | None = None

    def save(self, *args: Any) -> None:
        if self.held is None:
            super().save(*args)
        else:
            self.held.append(lambda: super(SlowStore, self).save(*args))

    def go(self) -> None:
        held, self.held = self.held or [], None
        for act in held:
            act()


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("resources/subscribe", {"uri": "test:///a"}, "subscriptions"),
        ("logging/setLevel", {"level": "error"}, "level"),
    ],
)
@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_change_is_in_the_record_before_it_is_answered(autojump_clock, method, params, field, endpoint):
    alpha = Backend("alpha")
    store = SlowStore(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect(endpoint)
        if not endpoint and "uri" in params:
            params = {"uri": "alpha+" + params["uri"]}
        await gateway.settle()
        store.held = []
        call = client.begin(method, params)
        await trio.sleep(2)
        assert call.answer is None
        assert not [m for m in call.messages if "result" in m]
        [record] = store.records().values()
        assert field not in record.fields
        store.go()
        assert await call.result() == {}
        [record] = store.records().values()
        assert field in record.fields
        assert await client.tool("echo" if endpoint else "alpha__echo") == "alpha: echo"


async def test_while_the_store_is_away_a_change_is_answered_all_the_same(autojump_clock):
    class Away(MemoryStore):
        away = False

        def save(self, key: Any, grant: Any, rev: Any, deltas: Any, done: Any) -> None:
            if self.away:
                done(Failed(Refused.AWAY))
            else:
                super().save(key, grant, rev, deltas, done)

    store = Away(Limits(), trio.current_time)
    async with open_gateway(Backend("alpha"), store=store) as gateway:
        client = await gateway.connect("alpha")
        await client.tool("echo")
        await gateway.settle()
        store.away = True
        assert await client.call("resources/subscribe", {"uri": "test:///a"}) == {}
        store.away = False
        await trio.sleep(5)
        [record] = store.records().values()
        assert b"test:///a" in record.fields["subscriptions"]
