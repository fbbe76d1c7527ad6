"""A client on one channel for everything: what it says, what it is told, and what ends with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors.duplex import Duplex
from actors.ports import ANONYMOUS
from actors.sessions.messages import EndSession
from tests.support.duplex_client import META, Wire
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend

CALL = {"name": "alpha__work", "arguments": {"text": "x"}}
ERAS = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])


@pytest.fixture(autouse=True, params=[True, False], ids=["called", "waiting"])
def kind_of_channel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says when there is something to receive, as over HTTP, and one that somebody must wait at, as stdio."""
    monkeypatch.setattr(Wire, "calls", request.param)


@asynccontextmanager
async def connected(gateway: Gateway, endpoint: str = "", **limits: Any) -> AsyncIterator[Wire]:
    wire = Wire()
    duplex = wire.duplex = Duplex(gateway.door, gateway.services.limits)

    async def serve() -> None:
        await duplex(wire, endpoint, ANONYMOUS)
        assert duplex.open == duplex.held == 0
        wire.ended.set()

    async with trio.open_nursery() as nursery:
        wire.nursery = nursery
        nursery.start_soon(serve)
        yield wire
        wire.hang_up()
        with trio.fail_after(3600):
            await wire.ended.wait()


def alpha(**more: Any) -> Backend:
    return Backend("alpha", tools=("work",), **more)


@ERAS
async def test_requests_are_answered_on_the_channel_whatever_else_is_under_way(autojump_clock, modern):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        if not modern:
            await wire.initialize()
        wire.ask("a", "tools/call", CALL, modern=modern)
        first = await backend.next()
        wire.ask(1, "tools/call", CALL, modern=modern)
        second = await backend.next()
        second.text("two")
        assert (await wire.answer(1))["result"]["content"][0]["text"] == "two"
        first.text("one")
        assert (await wire.answer("a"))["result"]["content"][0]["text"] == "one"


@ERAS
async def test_what_comes_before_an_answer_comes_before_it_and_once(autojump_clock, modern):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        if not modern:
            await wire.initialize()
        wire.ask(1, "tools/call", {**CALL, "_meta": {"progressToken": "t"}}, modern=modern)
        request = await backend.next()
        request.progress(1)
        await wire.next("notifications/progress")
        await trio.sleep(10)
        request.progress(2)
        request.text("done")
        await wire.answer(1)
        about = [m for m in wire.got if m.get("id") != 0]
        assert [m.get("method", "result") for m in about] == ["notifications/progress"] * 2 + ["result"]


async def test_a_question_of_the_server_is_answered_on_the_same_channel(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize(elicitation={})
        wire.ask(1, "tools/call", CALL)
        request = await backend.next()
        form = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        asked = request.ask("elicitation/create", form)
        question = await wire.next("elicitation/create")
        wire.say({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        assert (await asked.outcome())["result"] == {"action": "decline"}
        request.text("done")
        await wire.answer(1)


async def test_what_belongs_to_no_request_comes_too(autojump_clock):
    backend = alpha()
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        await wire.call(1, "tools/call", CALL)
        backend.upstream.notify("notifications/message", {"level": "error", "data": "fire"})
        assert (await wire.next("notifications/message"))["params"]["data"] == "fire"


@ERAS
async def test_a_cancelled_request_ends_at_the_server_and_gets_no_answer(autojump_clock, modern):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        if not modern:
            await wire.initialize()
        wire.ask(1, "tools/call", CALL, modern=modern)
        await backend.next()
        wire.tell("notifications/cancelled", {"requestId": 1})
        await trio.sleep(1)
        assert "notifications/cancelled" in backend.upstream.methods
        await trio.sleep(1000)
        assert [m for m in wire.got if m.get("id") == 1] == []


@ERAS
async def test_a_client_that_is_gone_takes_its_calls_and_its_session_with_it(autojump_clock, modern):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway:
        async with connected(gateway) as wire:
            if not modern:
                await wire.initialize()
                assert len(gateway.actors.sessions.table) == 1
            wire.ask(1, "tools/call", CALL, modern=modern)
            await backend.next()
            wire.hang_up()
            await wire.ended.wait()
        await trio.sleep(1)
        assert "notifications/cancelled" in backend.upstream.methods or not backend.open
        assert len(gateway.actors.sessions.table) == 0


async def test_at_the_end_of_input_what_is_under_way_is_answered_first(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        wire.ask(1, "tools/call", CALL)
        request = await backend.next()
        wire.finish()
        await trio.sleep(2)
        request.text("done")
        await wire.answer(1)
        with trio.fail_after(1):
            await wire.ended.wait()


async def test_at_the_end_of_input_nothing_is_waited_for_beyond_the_drain(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        wire.ask(1, "tools/call", CALL)
        await backend.next()
        wire.ask(2, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}, modern=True)
        await wire.next("notifications/subscriptions/acknowledged")
        wire.finish()
        began = trio.current_time()
        await wire.ended.wait()
        assert trio.current_time() - began == pytest.approx(gateway.services.limits.drain_deadline)
        error = (await wire.answer(1))["error"]
        assert (error["code"], error["data"]) == (-32603, {"reason": "stream_lost", "executed": "unknown"})


async def test_an_answer_that_goes_out_at_the_end_of_that_time_is_not_cut(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        wire.ask(1, "tools/call", CALL)
        first = await backend.next()
        wire.ask(2, "tools/call", CALL)
        await backend.next()
        wire.finish()
        await trio.sleep(gateway.services.limits.drain_deadline - 1)
        wire.slowness = 2
        first.text("done")
        await wire.ended.wait()
        told = {message["id"]: message for message in wire.got if message.get("id") in (1, 2)}
        assert told[1]["result"]["content"][0]["text"] == "done"
        assert told[2]["error"]["data"] == {"reason": "stream_lost", "executed": "unknown"}
        assert len(wire.got) == 3, "each once, besides the answer to initialize"


async def test_a_gateway_that_ends_serves_what_is_under_way(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        wire.ask(1, "tools/call", CALL)
        request = await backend.next()
        wire.duplex.stop()
        await trio.sleep(2)
        request.text("done")
        await wire.answer(1)
        with trio.fail_after(1):
            await wire.ended.wait()


BAD = {
    "no JSON": (b"{]", -32700),
    "no UTF-8": (b'{"jsonrpc": "2.0", "method": "\xff"}', -32700),
    "no message": (b"[1]", -32600),
    "nothing": (b"[]", -32600),
    "too large": (b'{"jsonrpc": "2.0", "method": "%b"}' % (b"x" * 5_000_000), -32600),
    "a null id": (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
    "too deep": (b"[" * 100_000, -32700),
}


@pytest.mark.parametrize(("said", "code"), BAD.values(), ids=BAD)
async def test_bad_input_gets_an_error_and_the_connection_goes_on(autojump_clock, said, code):
    async with open_gateway(alpha()) as gateway, connected(gateway) as wire:
        await wire.initialize()
        wire.say(said)
        wire.ask(2, "tools/call", CALL)
        assert "result" in await wire.answer(2)
        [error] = [m["error"]["code"] for m in wire.got if "error" in m]
        assert error == code


async def test_before_the_handshake_a_request_is_refused_in_plain_words_and_a_ping_is_not(autojump_clock):
    async with open_gateway(alpha()) as gateway, connected(gateway) as wire:
        refused = await wire.call(1, "tools/call", CALL)
        assert "initialized" in refused["error"]["message"]
        assert refused["error"]["data"] == {"executed": "no"}
        assert (await wire.call(2, "ping"))["result"] == {}
        await wire.initialize()
        assert "result" in await wire.call(3, "tools/call", CALL)
        assert "error" in await wire.call(4, "initialize", {})


@ERAS
async def test_an_id_that_is_under_way_is_not_taken_twice(autojump_clock, modern):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        if not modern:
            await wire.initialize()
        wire.ask(1, "tools/call", CALL, modern=modern)
        request = await backend.next()
        wire.ask(1, "tools/call", CALL, modern=modern)
        assert (await wire.answer(1))["error"]["code"] == -32600
        request.text("done")
        await trio.sleep(1)
        assert "result" in wire.got[-1]


@ERAS
async def test_more_than_may_be_under_way_is_refused(autojump_clock, modern):
    backend = alpha(held={"work"})
    async with open_gateway(backend, requests_per_session=3) as gateway, connected(gateway) as wire:
        if not modern:
            await wire.initialize()
        for id in range(1, 5):
            wire.ask(id, "tools/call", CALL, modern=modern)
        assert "error" in await wire.answer(4)
        wire.tell("notifications/cancelled", {"requestId": 1})
        await trio.sleep(1)
        wire.ask(5, "tools/call", CALL, modern=modern)
        await trio.sleep(1)
        assert [m for m in wire.got if m.get("id") == 5] == []


async def test_a_client_that_reads_nothing_is_let_go_and_harms_nobody(autojump_clock):
    backend = alpha()
    async with open_gateway(backend) as gateway, connected(gateway) as other:
        async with connected(gateway) as wire:
            await wire.initialize()
            await other.initialize()
            wire.stuck = True
            for id in range(1, 200):
                wire.ask(id, "tools/call", CALL)
            assert "result" in await other.call(1, "tools/call", CALL)
            with trio.fail_after(60):
                await wire.ended.wait()
        assert "result" in await other.call(2, "tools/call", CALL)
        assert len(gateway.actors.sessions.table) == 1


async def test_a_session_that_ends_elsewhere_ends_its_connection(autojump_clock):
    async with open_gateway(alpha()) as gateway, connected(gateway) as wire:
        await wire.initialize()
        await trio.sleep(1)
        [alive] = gateway.actors.sessions.table.values()
        await alive.ref.call(lambda reply: EndSession(reply, "operator"))
        with trio.fail_after(10):
            await wire.ended.wait()


async def test_a_subscription_ends_by_a_cancel_and_its_end_is_said_twice(autojump_clock):
    backend = alpha()
    filter = {"notifications": {"toolsListChanged": True}}
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        wire.ask("s", "subscriptions/listen", filter, modern=True)
        await wire.next("notifications/subscriptions/acknowledged")
        wire.tell("notifications/cancelled", {"requestId": "s"})
        wire.ask("t", "subscriptions/listen", filter, modern=True)
        await trio.sleep(5)
        assert not [m for m in wire.got if m.get("id") == "s"]
        gateway.nursery.start_soon(gateway.system.drain, 5)
        await wire.answer("t")
        ended = await wire.next("notifications/cancelled")
        assert ended["params"] == {"requestId": "t"}
        assert wire.got[-2]["id"] == "t"


async def test_messages_keep_their_order(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        for id in range(1, 31):
            wire.ask(id, "tools/call", {**CALL, "arguments": {"text": str(id)}})
        seen = [(await backend.next()).params["arguments"]["text"] for _ in range(30)]
        assert seen == [str(id) for id in range(1, 31)]


async def test_a_batch_of_the_revision_that_has_them_is_answered(autojump_clock):
    async with open_gateway(alpha()) as gateway, connected(gateway) as wire:
        await wire.initialize("2025-03-26")
        await trio.sleep(1)
        calls = [{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": CALL} for id in (1, 2)]
        before = len(wire.got)
        wire.say(json.dumps(calls).encode())
        await trio.sleep(1)
        [answers] = wire.got[before:]
        assert {m["id"] for m in answers} == {1, 2}


async def test_what_is_refused_in_a_drain_was_not_executed_but_of_a_retry_nobody_knows(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire, connected(gateway) as late:
        wire.ask(1, "tools/call", CALL, modern=True)
        request = await backend.next()
        gateway.nursery.start_soon(gateway.system.drain, 5)
        await trio.sleep(0.1)
        refused = await wire.call(2, "tools/call", CALL, modern=True)
        assert refused["error"]["data"] == {"executed": "no"}
        retry = await wire.call(3, "tools/call", {**CALL, "inputResponses": {}, "requestState": "s"}, modern=True)
        assert retry["error"]["data"] == {"executed": "unknown"}
        opening = await late.initialize()
        assert opening["error"]["data"] == {"executed": "no"}
        request.text("done")
        await wire.answer(1)


async def test_an_endpoint_that_is_gone_is_said_to_each_request(autojump_clock):
    async with open_gateway(alpha()) as gateway, connected(gateway, "nowhere") as wire:
        error = (await wire.call(1, "tools/call", CALL, modern=True))["error"]
        assert error["message"] == "No such endpoint"
        assert error["data"] == {"executed": "no"}
        retry = await wire.call(2, "tools/call", {**CALL, "inputResponses": {}, "requestState": "s"}, modern=True)
        assert retry["error"]["data"] == {"executed": "unknown"}


@pytest.mark.parametrize("left", ["nothing", "nothing for long", "a call", "a question"])
async def test_what_is_kept_for_a_client_without_a_name_ends_with_its_channel(autojump_clock, left):
    backend = alpha(held={"work"})
    asking = {"_meta": META | {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}}
    async with open_gateway(backend) as gateway:
        actors = gateway.actors

        def kept() -> int:
            return len([*actors.pools.children(), *actors.modern_requests.children()])

        async with connected(gateway) as wire:
            wire.ask(1, "tools/call", {**CALL, **asking}, modern=True)
            request = await backend.next()
            if left == "a question":
                request.ask("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
                assert (await wire.answer(1))["result"]["resultType"] == "input_required"
            elif left != "a call":
                request.text("done")
                await wire.answer(1)
            if left == "nothing for long":
                await trio.sleep(gateway.services.limits.link_idle + 1)
            assert kept() == (1 if left == "nothing for long" else 2)
        with trio.fail_after(10):
            while kept() or request.upstream in backend.open:
                await trio.sleep(0.1)


async def test_a_channel_that_ends_takes_nothing_from_others(autojump_clock):
    backend = alpha()
    async with open_gateway(backend) as gateway, connected(gateway) as stays:
        await stays.call(1, "tools/call", CALL, modern=True)
        kept = set(gateway.actors.pools.children())
        async with connected(gateway) as wire:
            await wire.call(1, "tools/call", CALL, modern=True)
            assert len(list(gateway.actors.pools.children())) == 2
        await trio.sleep(60)
        assert set(gateway.actors.pools.children()) == kept
        await stays.call(2, "tools/call", CALL, modern=True)


def tasks_in(nursery: trio.Nursery) -> int:
    """And in the nurseries of these."""
    return sum(1 + sum(map(tasks_in, task.child_nurseries)) for task in nursery.child_tasks)


async def test_a_client_that_says_nothing_keeps_one_task_and_what_the_server_says_comes_all_the_same(autojump_clock):
    backend = alpha()
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        for id in range(1, 4):
            await wire.call(id, "tools/call", CALL)
        await trio.sleep(5)
        assert tasks_in(wire.nursery) <= (1 if wire.calls else 2)
        for word in ("fire", "water", "earth"):
            backend.upstream.notify("notifications/message", {"level": "error", "data": word})
            await trio.sleep(5)
            assert wire.got[-1]["params"]["data"] == word
        assert tasks_in(wire.nursery) <= (1 if wire.calls else 2)


async def test_what_comes_while_a_call_runs_is_read_and_its_task_ends_with_it(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        await trio.sleep(5)
        requests = []
        for id in range(1, 9):
            wire.ask(id, "tools/call", CALL)
            requests.append(await backend.next())
        wire.ask("p", "ping")
        assert (await wire.answer("p"))["result"] == {}
        assert tasks_in(wire.nursery) >= 8
        for id, request in enumerate(requests, 1):
            request.text("done")
            assert "result" in await wire.answer(id)
        await trio.sleep(5)
        assert tasks_in(wire.nursery) <= (1 if wire.calls else 2)


async def test_messages_that_come_together_do_not_wait_for_the_first_ones_answer(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        await trio.sleep(5)
        for id in (1, 2, 3):
            wire.ask(id, "tools/call", CALL)
        wire.ask("p", "ping")
        with trio.fail_after(5):
            requests = [await backend.next() for _ in range(3)]
            assert (await wire.answer("p"))["result"] == {}
        for id, request in enumerate(requests, 1):
            request.text("done")
            assert "result" in await wire.answer(id)
        await trio.sleep(5)
        assert tasks_in(wire.nursery) <= (1 if wire.calls else 2)


async def test_while_a_call_runs_somebody_reads_on_after_each_message(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        await wire.initialize()
        await trio.sleep(5)
        wire.ask(1, "tools/call", CALL)
        request = await backend.next()
        for number in range(3):
            wire.tell("notifications/roots/list_changed")
            wire.ask(f"p{number}", "ping")
            await trio.sleep(1)
        with trio.fail_after(5):
            assert (await wire.answer("p2"))["result"] == {}
        request.text("done")
        assert "result" in await wire.answer(1)
        await trio.sleep(5)
        assert tasks_in(wire.nursery) <= (1 if wire.calls else 2)


async def test_a_message_that_goes_out_is_whole_though_its_request_is_cancelled(autojump_clock):
    backend = alpha(held={"work"})
    async with open_gateway(backend) as gateway, connected(gateway) as wire:
        said, send = list[bool](), wire.send

        async def slowly(message: bytes) -> None:
            said.append(False)
            await trio.sleep(5)
            said[-1] = True
            await send(message)

        wire.send = slowly  # type: ignore[method-assign]
        wire.ask(1, "tools/call", CALL, modern=True)
        (await backend.next()).text("done")
        await trio.sleep(1)
        wire.tell("notifications/cancelled", {"requestId": 1})
        await trio.sleep(10)
        assert said == [True]
        wire.ask(1, "tools/call", CALL, modern=True)
        request = await backend.next()
        wire.tell("notifications/cancelled", {"requestId": 1})
        await request.cancelled.wait()
        assert said == [True], "of what does not go out nothing is said"


async def test_what_comes_while_the_connection_ends_starts_nothing(autojump_clock):
    async with open_gateway(alpha()) as gateway, connected(gateway) as wire:
        await wire.initialize()
        await trio.sleep(5)
        wire.duplex.stop()
        for number in range(5):
            wire.tell("notifications/roots/list_changed")
            wire.ask(f"p{number}", "ping")
            await trio.lowlevel.checkpoint()
        with trio.fail_after(60):
            await wire.ended.wait()
