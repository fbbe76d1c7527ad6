"""Calls whose connection broke before their client had an event id, or that were cancelled: what they ask, and who
waits for them."""

import pytest
import trio

from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

MAY_ALL = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
GIVEN = {"action": "accept", "content": {"name": "Ada"}}
KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])
BROKEN = pytest.mark.parametrize(("version", "after"), [("2025-06-18", 0), ("2025-11-25", 0), ("2025-06-18", 1.0)])
"""Before the answer is a stream, at once or not; and before there is an event on that stream."""


@BROKEN
@KINDS
async def test_what_it_asks_is_refused_within_the_wait_for_a_stream(autojump_clock, kind, version, after):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL, version=version)
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await trio.sleep(after)
        first.drop()
        await gateway.settle()
        before = trio.current_time()
        asked = request.ask("elicitation/create", FORM)
        second = client.begin("tools/call", {"name": "ask"})
        assert (await asked.outcome())["error"]["data"]["reason"] == "no_stream"
        assert 5 <= trio.current_time() - before < 6
        request.text("never mind")
        (await alpha.next()).text("done")
        assert (await second.result())["content"][0]["text"] == "done"


@BROKEN
@KINDS
@pytest.mark.parametrize("attached", ["before", "after"])
async def test_with_a_get_stream_what_it_asks_goes_there(autojump_clock, kind, version, after, attached):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL, version=version)
        events = client.listen() if attached == "before" else None
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await trio.sleep(after)
        first.drop()
        await gateway.settle()
        asked = request.ask("elicitation/create", FORM)
        await trio.sleep(4)
        events = events or client.listen()
        question = await events.next("elicitation/create")
        await trio.sleep(60)
        await client.respond(question, GIVEN)
        assert (await asked.outcome())["result"] == GIVEN
        second = client.begin("tools/call", {"name": "ask"})
        request.text("done")
        (await alpha.next()).text("done too")
        assert (await second.result())["content"][0]["text"] == "done too"
        assert events.seen("elicitation/create") == [question]


@BROKEN
@pytest.mark.parametrize("waits", ["before", "after"])
async def test_a_question_that_nobody_answers_holds_up_a_later_call_no_longer(autojump_clock, version, after, waits):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL, version=version)
        events = client.listen()
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await trio.sleep(after)
        second = client.begin("tools/call", {"name": "ask"}) if waits == "before" else None
        await gateway.settle()
        first.drop()
        await gateway.settle()
        asked = request.ask("elicitation/create", FORM)
        await events.next("elicitation/create")
        if second is None:
            await trio.sleep(60)
            assert not asked.answers, "its user may be at it"
            second = client.begin("tools/call", {"name": "ask"})
        before = trio.current_time()
        assert "error" in await asked.outcome()
        assert trio.current_time() - before < 6
        assert await events.next("notifications/cancelled")
        request.text("never mind")
        (await alpha.next()).text("done")
        assert (await second.result())["content"][0]["text"] == "done"


async def test_nor_do_those_that_waited_behind_another_before_it_had_its_turn(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL, version="2025-06-18")
        events = client.listen()
        calls = []
        for _ in range(3):
            calls.append(client.begin("tools/call", {"name": "ask"}))
            await gateway.settle()
        first, second, third = calls
        (await alpha.next()).text("done")
        await first.result()
        request = await alpha.next()
        second.drop()
        await gateway.settle()
        before = trio.current_time()
        asked = request.ask("elicitation/create", FORM)
        await events.next("elicitation/create")
        assert "error" in await asked.outcome()
        assert trio.current_time() - before < 6
        request.text("never mind")
        (await alpha.next()).text("done")
        assert (await third.result())["content"][0]["text"] == "done"


async def test_a_call_that_is_heard_of_holds_others_up_as_long_as_its_user_takes(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL)
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        client.begin("tools/call", {"name": "ask"})
        asked = request.ask("elicitation/create", FORM)
        question = await first.next("elicitation/create")
        await trio.sleep(120)
        await client.respond(question, GIVEN)
        assert (await asked.outcome())["result"] == GIVEN


async def test_a_client_that_has_an_event_id_is_asked_when_it_comes_back(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL)
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        await trio.sleep(1)
        first.drop()
        asked = request.ask("elicitation/create", FORM)
        await trio.sleep(60)
        rest = client.listen(first.events[-1].id)
        await client.respond(await rest.next("elicitation/create"), GIVEN)
        assert (await asked.outcome())["result"] == GIVEN


@pytest.mark.parametrize("done", ["answers the ping", "answers the call", "shows nothing"])
async def test_what_a_call_asks_after_it_was_given_up_is_never_another_calls(autojump_clock, done):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, mute={"ping"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL)
        first = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        second = client.begin("tools/call", {"name": "ask"})
        await client.cancel(first)
        ping = await alpha.next("ping")
        assert len(alpha.asked_for("tools/call")) == 1, "the server may still work on the first"
        if done == "answers the ping":
            ping.result({})
        elif done == "answers the call":
            request.error(0, "Request cancelled")
        else:
            before = trio.current_time()
            asked = request.ask("elicitation/create", FORM)
            assert (await asked.outcome())["error"]["data"]["reason"] == "no_stream"
            assert trio.current_time() - before < 6
        (await alpha.next()).text("done")
        assert (await second.result())["content"][0]["text"] == "done"
        assert second.seen("elicitation/create") == []


async def test_whose_question_it_is_is_known_again_when_the_server_has_answered_what_was_cancelled(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, mute={"ping"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL)
        first = client.begin("tools/call", {"name": "ask"})
        cancelled = await alpha.next()
        await client.cancel(first)
        second = client.begin("tools/call", {"name": "ask"})
        ping, request = await alpha.next("ping"), await alpha.next()
        for done in (lambda: ping.result({}), lambda: cancelled.error(0, "Request cancelled")):
            asked = request.ask("elicitation/create", FORM)
            assert (await asked.outcome())["error"]["data"]["reason"] == "no_stream", "it may be the first's"
            done()
        asked = request.ask("elicitation/create", FORM)
        await client.respond(await second.next("elicitation/create"), GIVEN)
        assert (await asked.outcome())["result"] == GIVEN
