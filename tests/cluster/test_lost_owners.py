"""When the owner of a session is lost, what its clients have open elsewhere stays, and goes on with the next owner."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from actors.cluster import letters, owner
from actors.cluster.followed import PATIENCE
from actors.machines.cluster import lease
from actors.ports import Failed, Get, Refused, Streaming
from actors.sessions.router import MoveSession
from gateway.store.memory import MemoryStore
from tests.actors.test_continued import Story, begun
from tests.cluster.test_mail import elsewhere, http, numbers, owners, pair, sent
from tests.support.calls import reached
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway
from tests.support.mcp_backend import Backend

SOON = 15.0
"""Seconds in which whoever waits has heard something, whatever was lost."""


def slow(**more: Any) -> Backend:
    return http(**({"tools": ("echo", "slow"), "held": {"slow"}} | more))


async def outcome(call: Pending, within: float = SOON) -> Any:
    """What the one request was answered with, and that it was within so many seconds."""
    with trio.move_on_after(within) as scope:
        await call.end()
    assert not scope.cancelled_caught, f"nothing within {within} s: {call!r} {call.events}"
    outcomes = [m for m in call.messages if "method" not in m]
    assert len(outcomes) <= 1, outcomes
    assert numbers(call) == list(range(1, len(numbers(call)) + 1))
    return outcomes[0] if outcomes else call.status


def headers_of(client: Client) -> dict[str, str]:
    return {"mcp-session-id": client.session or "", "mcp-protocol-version": client.version}


def executions(backend: Backend) -> int:
    return len([r for r in backend.asked_for("tools/call") if r.params["name"] == "slow"])


def unknown(answer: Any) -> bool:
    return bool(answer["error"]["code"] == -32603 and answer["error"]["data"]["executed"] == "unknown")


# Killed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_call_that_a_dead_owner_never_read_runs_at_the_next(autojump_clock, at_once):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        await one.pause()
        call = client.begin("tools/call", {"name": "echo"})
        await two.settle()
        one.kill(at_once=at_once)
        assert (await outcome(call))["result"]["content"][0]["text"] == "alpha: echo"
        assert owners(two) == [1]
        assert two.telemetry.total("stagedoor_takeovers_total", "takeover") == 1


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_call_that_a_dead_owner_had_taken_ends_with_an_error_and_never_runs_again(autojump_clock, at_once):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        one.kill(at_once=at_once)
        assert unknown(await outcome(call, 1 if at_once else SOON))
        assert executions(alpha) == 1
        assert await client.tool("echo") == "alpha: echo"


@pytest.mark.parametrize("of", ["another message", "the call"])
async def test_a_call_that_came_by_mail_and_whose_session_crashes_ends_with_an_error_at_once(autojump_clock, of):
    """It is never said to be unexecuted."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        [alive] = one.actors.sessions.table.values()
        if of == "the call":
            alive.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        call = client.begin("tools/call", {"name": "slow"})
        await one.settle()
        alive.ref.reply("nonsense")
        await one.settle()
        one.crashes.clear()
        assert unknown(await outcome(call, 1))
        assert executions(alpha) == (of == "another message")
        assert await client.tool("echo") == "alpha: echo"


async def test_a_call_whose_session_has_crashed_ends_though_the_word_of_that_is_lost(autojump_clock):
    """Its client waits on a connection to another replica, and sends nothing."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        await lose_letters_while_it_crashes(one)
        assert unknown(await outcome(call, 20))
        assert executions(alpha) == 1


async def lose_letters_while_it_crashes(gateway: Gateway) -> None:
    """Its only session does, and nobody hears of it."""
    [alive] = gateway.actors.sessions.table.values()
    gateway.store.replica.post_office = lambda to, letter: ()  # type: ignore[attr-defined]
    alive.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    alive.ref.reply("nonsense")
    await gateway.settle()
    gateway.crashes.clear()
    gateway.store.replica.post_office = lambda to, letter: (0.0,)  # type: ignore[attr-defined]


async def test_a_get_stream_goes_on_though_the_word_that_its_session_has_crashed_is_lost(autojump_clock):
    """Nobody sends anything: its holder asks whether it still comes."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        events = client.listen()
        await trio.sleep(1)
        alpha.upstream.notify("notifications/message", {"level": "info", "data": 1})
        await trio.sleep(1)
        await lose_letters_while_it_crashes(one)
        await trio.sleep(SOON)
        assert owners(one, two) == [1, 0]
        await client.tool("echo")
        alpha.upstream.notify("notifications/message", {"level": "info", "data": 2})
        await trio.sleep(5)
        assert [m["params"]["data"] for m in events.seen("notifications/message")] == [1, 2]
        assert events.seen("notifications/tools/list_changed")
        assert numbers(events) == list(range(1, len(numbers(events)) + 1))
        assert sent(two, "held") in (1, 2)


async def test_a_connection_ends_though_the_word_that_a_newer_one_has_its_stream_is_lost(autojump_clock):
    """It does not take the stream back."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        events = client.listen()
        await trio.sleep(1)
        alpha.upstream.notify("notifications/message", {"level": "info", "data": 1})
        await trio.sleep(1)
        one.store.replica.post_office = lambda to, letter: ()  # type: ignore[attr-defined]
        client.to(one)
        again = client.listen(events.events[-1].id)
        await trio.sleep(0.1)
        one.store.replica.post_office = lambda to, letter: (0.0,)  # type: ignore[attr-defined]
        with trio.fail_after(SOON):
            await events.end()
        alpha.upstream.notify("notifications/message", {"level": "info", "data": 2})
        await trio.sleep(5)
        assert [m["params"]["data"] for m in events.seen("notifications/message")] == [1]
        assert [m["params"]["data"] for m in again.seen("notifications/message")] == [2]


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_a_stream_that_is_in_no_log_is_followed_until_its_end(autojump_clock, version):
    """That the store knows nothing of it does not mean that its owner has lost it."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, version=version)
        one.store.open = lambda *args: args[-1](Failed(Refused.AWAY))  # type: ignore[method-assign]
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(60)
        request.text("done")
        assert (await outcome(call))["result"]["content"][0]["text"] == "done"
        assert [event.id for event in call.events] == [None, None]


async def test_a_stream_that_is_in_no_log_ends_though_the_word_that_its_session_has_crashed_is_lost(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        one.store.open = lambda *args: args[-1](Failed(Refused.AWAY))  # type: ignore[method-assign]
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        await lose_letters_while_it_crashes(one)
        assert unknown(await outcome(call))


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_client_that_has_no_id_hears_once_that_its_session_has_crashed(autojump_clock, calls, recorded):
    """What the owner says last by mail, the holder does not say again."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, version="2025-03-26")
        if not recorded:
            one.store.open = lambda *args: args[-1](Failed(Refused.AWAY))  # type: ignore[method-assign]
        requests = [{"id": n, "method": "tools/call", "params": {"name": "slow"}} for n in range(calls)]
        call = client.post(requests if calls > 1 else requests[0])
        await trio.sleep(1)
        assert call.streaming
        [alive] = one.actors.sessions.table.values()
        alive.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        alive.ref.reply("nonsense")
        await call.end()
        one.crashes.clear()
        assert [m["id"] for m in call.messages] == [*range(calls)]
        assert all(map(unknown, call.messages))


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
@pytest.mark.parametrize("progress", [0, 1, 3])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_stream_that_was_open_goes_on_and_ends_with_one_outcome(autojump_clock, at_once, progress, version):
    """No event is lost or doubled, the client notices nothing but the time."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, version=version)
        call, request = await reached(client, alpha, progress="t")
        for step in range(progress):
            request.progress(step)
        await trio.sleep(1)
        assert call.streaming
        one.kill(at_once=at_once)
        assert unknown(await outcome(call))
        assert len(call.seen("notifications/progress")) == progress
        assert executions(alpha) == 1
        assert two.left()["requests"] == 0
        await trio.sleep(1)
        assert two.left()["streams"] == 0


async def test_a_call_at_a_backend_that_can_be_resumed_gets_its_real_answer(autojump_clock):
    alpha = http(tools=("echo", "work"), held={"work"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, story = await begun(client, alpha, "work")
        await trio.sleep(1)
        one.kill(at_once=True)
        await alpha.connected(2)
        await two.settle()
        story.progress(2, "c2")
        story.result("done")
        assert (await outcome(call))["result"]["content"][0]["text"] == "done"
        assert len(call.seen("notifications/progress")) == 2
        assert len(alpha.asked_for("tools/call")) == 1


async def test_a_get_stream_goes_on_with_the_next_owner(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        stream = client.listen()
        await stream.head()
        alpha.upstream.notify("notifications/tools/list_changed")
        await stream.next("notifications/tools/list_changed")
        one.kill()
        await trio.sleep(SOON)
        assert not stream.done
        assert await client.tool("echo") == "alpha: echo"
        before = len(stream.seen("notifications/prompts/list_changed"))
        alpha.upstream.notify("notifications/prompts/list_changed")
        await trio.sleep(1)
        assert len(stream.seen("notifications/prompts/list_changed")) == before + 1
        assert numbers(stream) == list(range(1, len(numbers(stream)) + 1))


@pytest.mark.parametrize("at_once", [False, True])
async def test_of_two_connections_that_lost_their_owner_the_newer_one_goes_on(autojump_clock, at_once):
    """The older one may be the last to find the next owner: it is not the one that its client reads any more."""
    alpha = http(tools=("echo", "work"), held={"work"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, story = await begun(client, alpha, "work")
        await trio.sleep(1)
        older = client.listen(call.events[0].id)
        await older.head()
        one.kill(at_once=at_once)
        newer = client.listen(call.events[0].id)
        await trio.sleep(SOON)
        assert older.done
        assert not newer.done
        story.result("done")
        await newer.end()
        assert numbers(newer) == [2, 3]
        assert newer.messages[-1]["result"]["content"][0]["text"] == "done"


async def test_the_newer_one_goes_on_too_while_the_last_event_is_on_its_way_into_the_log(autojump_clock, monkeypatch):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "slow"}, progress="t")
        (await alpha.next()).progress(1)
        await trio.sleep(1)
        older = client.listen(call.events[0].id)
        await older.head()
        append = two.store.append

        async def late(*args: Any, **more: Any) -> None:
            await trio.sleep(3)
            append(*args, **more)

        monkeypatch.setattr(two.store, "append", lambda *a, **m: client.nursery.start_soon(partial(late, *a, **m)))
        one.kill()
        newer = client.listen(call.events[0].id)
        await newer.end()
        assert numbers(newer) == [2, 3]
        assert unknown(newer.messages[-1])


async def test_the_next_owner_may_be_a_third_replica(autojump_clock):
    alpha = slow()
    async with pair(alpha, 3) as replicas:
        one, two, three = replicas
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        one.kill(at_once=True)
        client.to(three)
        assert await client.tool("echo") == "alpha: echo"
        assert unknown(await outcome(call))
        assert sorted(owners(two, three)) == [0, 1]


async def test_nothing_is_left_where_a_stream_was_taken_over_and_its_session_is_lost_again(autojump_clock):
    alpha = slow()
    async with pair(alpha, 3) as replicas:
        one, two, three = replicas
        client = await elsewhere(one, two)
        stream = client.listen()
        await stream.head()
        one.kill(at_once=True)
        await client.tool("echo")
        await trio.sleep(SOON)  # its stream is attached to the next owner when that is heard of, maybe after the answer
        assert (owners(two, three), two.left()["streams"]) == ([1, 0], 1)
        two.life.store.replica.cut_off()
        await trio.sleep(SOON)
        client.to(three)
        await client.tool("echo")
        two.life.store.replica.resume()
        await trio.sleep(SOON)
        assert (owners(two, three), two.left()["streams"]) == ([0, 1], 0)
        alpha.upstream.notify("notifications/prompts/list_changed")
        await stream.next("notifications/prompts/list_changed")


async def test_two_owners_may_be_lost_one_after_the_other(autojump_clock):
    alpha = slow()
    async with pair(alpha, 3) as replicas:
        one, two, three = replicas
        client = await elsewhere(one, two)
        stream = client.listen()
        await stream.head()
        one.kill(at_once=True)
        client.to(three)
        assert await client.tool("echo") == "alpha: echo"
        await trio.sleep(SOON)
        if owners(three) == [1]:
            three.kill(at_once=True)
        client.to(two)
        await trio.sleep(SOON)
        assert await client.tool("echo") == "alpha: echo"
        alpha.upstream.notify("notifications/prompts/list_changed")
        await stream.next("notifications/prompts/list_changed")


async def test_an_answer_to_a_question_that_got_its_202_is_not_lost_or_its_call_ends(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, capabilities={"elicitation": {}})
        call, request = await reached(client, alpha)
        request.ask("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
        question = await call.next("elicitation/create")
        await client.respond(question, {"action": "accept", "content": {}})
        one.kill()
        await outcome(call)
        assert executions(alpha) == 1


async def test_the_holder_is_lost_and_the_stream_is_resumed_at_the_owner(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        two.kill()
        client.to(one)
        rest = client.listen(call.events[-1].id)
        await rest.head()
        request.progress(2)
        request.text("done")
        await rest.end()
        assert numbers(call) + numbers(rest) == list(range(1, 5))
        await trio.sleep(10)
        assert one.left()["streams"] == one.left()["requests"] == 0


async def test_a_delete_whose_owner_dies_ends_the_session_all_the_same(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        await one.pause()
        statuses: list[int] = []

        async def delete() -> None:
            statuses.append(await client.delete())

        two.nursery.start_soon(delete)
        await two.settle()
        one.kill()
        await trio.sleep(SOON)
        assert statuses == [200]
        assert await client.begin("tools/list").head() == 404


# The mailer crashes ---------------------------------------------------------------------------------------------


async def crash(gateway: Gateway) -> None:
    """Its mailer, which begins another life."""
    ref = gateway.system.registry.whereis("mailer")
    assert ref is not None
    ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    ref.reply("anything")
    await gateway.settle()
    gateway.crashes.clear()


@pytest.mark.parametrize("side", [0, 1], ids=["owner", "holder"])
async def test_a_stream_goes_on_when_the_mailer_of_either_side_crashes(autojump_clock, side):
    alpha = slow()
    async with pair(alpha) as replicas:
        one, two = replicas
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        await crash(replicas[side])
        request.progress(2)
        await trio.sleep(SOON)
        request.text("done")
        assert "result" in await outcome(call)
        assert len(call.seen("notifications/progress")) == 2
        await trio.sleep(1)
        assert one.left()["streams"] == 0


async def test_a_call_that_the_mailer_had_when_it_crashed_ends_with_an_error(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        await crash(two)
        assert unknown(await outcome(call))
        assert await client.tool("echo") == "alpha: echo"


async def test_nothing_is_left_of_a_call_here_that_the_mailer_had_when_it_crashed(autojump_clock):
    """It went through the mailer, as all do while mail for their session is under way."""
    alpha = slow()
    async with pair(alpha) as (one, _):
        client = await one.connect("alpha")
        [key] = one.actors.sessions.table
        one.actors.sessions.under_way[key] += 1
        call, request = await reached(client, alpha, progress="t")
        await crash(one)
        assert unknown(await outcome(call))
        request.progress(1)
        await trio.sleep(1)
        assert one.left()["streams"] == 0
        assert await client.tool("echo") == "alpha: echo"


# Paused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2.5, 20.0])
async def test_an_owner_that_stood_still_never_answers_twice(autojump_clock, seconds):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        await one.pause()
        request.text("done")
        later = client.begin("tools/call", {"name": "echo"})
        await trio.sleep(seconds)
        await one.resume()
        answer = await outcome(call)
        assert "result" in answer or unknown(answer)
        assert "result" in await outcome(later)
        assert executions(alpha) == 1
        await trio.sleep(SOON)
        assert sum(owners(one, two)) == 1


async def test_connections_at_an_owner_that_lost_the_session_follow_the_next_one(autojump_clock):
    """Its client is connected there, and notices nothing."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await one.connect("alpha")
        stream = client.listen()
        await stream.head()
        await client.tool("echo")
        one.life.store.replica.cut_off()
        await trio.sleep(SOON)
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        one.life.store.replica.resume()
        await trio.sleep(SOON)
        assert owners(one, two) == [0, 1]
        assert not stream.done
        alpha.upstream.notify("notifications/prompts/list_changed")
        await stream.next("notifications/prompts/list_changed")


@pytest.mark.parametrize("opened", [False, True], ids=["no word yet", "a stream"])
@pytest.mark.parametrize("seconds", [1.0, 20.0])
async def test_a_holder_that_stood_still_gets_what_it_missed(autojump_clock, seconds, opened):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        if opened:
            request.progress(1)
            await trio.sleep(1)
        await two.pause()
        request.progress(2)
        await trio.sleep(seconds)
        await two.resume()
        request.text("done")
        answer = await outcome(call)
        assert "result" in answer
        assert len(call.seen("notifications/progress")) == 1 + opened
        assert executions(alpha) == 1


async def test_a_stream_of_which_no_word_came_is_found_in_the_record_of_its_dead_owner(autojump_clock):
    alpha = http(tools=("echo", "work"), held={"work"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "work"}, progress="mine")
        story = Story(alpha, await alpha.next())
        alpha.upstream.transport.prime("c0", story.request.id)
        Post(one, *[()] * 50)
        story.progress(1, "c1")
        await trio.sleep(1)
        assert call.status is None
        one.kill(at_once=True)
        await alpha.connected(2)
        await two.settle()
        story.result("done")
        assert (await outcome(call))["result"]["content"][0]["text"] == "done"
        assert len(call.seen("notifications/progress")) == 1
        assert len(alpha.asked_for("tools/call")) == 1


# Mail that is lost, doubled or late -------------------------------------------------------------------------------


class Post:
    """What becomes of the mail of a replica: `fates` of the letters to come, then nothing special."""

    def __init__(self, gateway: Gateway, *fates: tuple[float, ...]) -> None:
        self.fates = list(fates)
        assert gateway.life is not None
        gateway.life.store.replica.post_office = lambda to, letter: self.fates.pop(0) if self.fates else (0.0,)


@pytest.mark.parametrize("fate", [(), (0.0, 0.0), (3.0,), (0.0, 5.0)], ids=["lost", "doubled", "late", "late double"])
@pytest.mark.parametrize("side", ["holder", "owner"])
@pytest.mark.parametrize("number", range(6))
async def test_whatever_becomes_of_a_letter_each_event_comes_once_and_the_call_runs_once(
    autojump_clock, number, side, fate
):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        Post(one if side == "owner" else two, *[(0.0,)] * number, fate)
        call = client.begin("tools/call", {"name": "slow"}, progress="t")
        with trio.move_on_after(30):
            request = await alpha.next()
            while request.params["name"] != "slow":
                request = await alpha.next()
            for step in range(4):
                request.progress(step)
                await trio.sleep(1)
            request.text("done")
        answer = await outcome(call, 40)
        assert executions(alpha) <= 1
        if isinstance(answer, int):
            assert (answer, executions(alpha)) == (503, 0)
        elif "result" in answer:
            assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [0, 1, 2, 3]
        else:
            assert unknown(answer)


@pytest.mark.parametrize("ended", ["session", "stream"])
async def test_a_call_of_which_no_word_came_is_never_denied_for_what_ended_meanwhile(
    autojump_clock, monkeypatch, ended
):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        Post(one, (), ())
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(5)
        if ended == "session":
            await client.delete()
        else:

            async def gone(*args: Any) -> Any:
                return Failed(Refused.SEQ)

            monkeypatch.setattr(one.store, "replay", gone)
            monkeypatch.setattr(two.store, "replay", gone)
            request.text("done")
        assert unknown(await outcome(call, 20))
        assert executions(alpha) == 1


@pytest.mark.parametrize("why", ["guests", "mailbox"])
async def test_a_double_of_a_call_that_was_refused_does_not_run_either(autojump_clock, monkeypatch, why):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.call("ping")
        Post(two, (0.0, 1.0))
        with monkeypatch.context() as full:
            if why == "guests":
                full.setattr(owner, "MOST", 0)
            else:
                [alive] = one.actors.sessions.table.values()
                full.setattr(alive.ref.cell.mailbox, "size", 0)
            call = client.begin("tools/call", {"name": "slow"})
            await outcome(call)
            assert call.status == 503
        await trio.sleep(3)
        assert executions(alpha) == 0


async def test_a_double_of_a_call_whose_client_is_gone_does_not_run_either(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.call("ping")
        posted: list[tuple[str, bytes]] = []
        post = two.store.post

        def noted(to: str, letter: bytes, done: Any) -> None:
            posted.append((to, letter))
            post(to, letter, done)

        two.store.post = noted  # type: ignore[method-assign]
        call, request = await reached(client, alpha)
        call.drop()
        await trio.sleep(1)
        request.text("done")
        await trio.sleep(1)
        post(*posted[0], lambda _: None)
        await trio.sleep(1)
        assert executions(alpha) == 1


async def test_a_stream_that_was_not_told_of_a_move_finds_out_from_the_record(autojump_clock):
    alpha = slow()
    async with pair(alpha, 3) as (one, two, three):
        client = await elsewhere(one, two)
        stream = client.listen()
        await stream.head()
        Post(one, *[()] * 50)
        [key] = one.actors.sessions.table
        assert await one.actors.router.call(lambda reply: MoveSession(key, reply), 2.0) is True
        client.to(three)
        await client.tool("echo")
        await trio.sleep(SOON)
        assert owners(one, two, three) == [0, 0, 1]
        alpha.upstream.notify("notifications/prompts/list_changed")
        await stream.next("notifications/prompts/list_changed")


async def test_a_stream_that_misses_its_mail_finds_what_it_missed_in_the_log(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        await trio.sleep(1)
        Post(one, *[()] * 50)  # not one more letter of the owner arrives
        request.progress(1)
        await trio.sleep(1)
        request.text("done")
        assert "result" in await outcome(call)
        assert len(call.seen("notifications/progress")) == 1


# Who reads too slowly, and who is leaving ---------------------------------------------------------------------------


async def test_a_slow_reader_is_let_go_and_the_owner_keeps_nothing_for_it(autojump_clock):
    alpha = slow()
    async with pair(alpha, outbox_bytes=2000) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        answer = await two.actors.door.get(Get("alpha", client.principal, headers_of(client)))
        assert isinstance(answer, Streaming)
        for n in range(20):
            alpha.upstream.notify("notifications/message", {"level": "info", "data": f"{n}" * 300})
            await two.settle()
        assert two.telemetry.total("stagedoor_slow_consumers_total", "get") == 1
        chunks = []
        with trio.fail_after(SOON):
            while (chunk := await answer.source.receive()) is not None:
                chunks.append(chunk)
        assert chunks
        await trio.sleep(1)
        assert one.left()["streams"] == 0


async def test_what_was_written_far_away_makes_room_in_the_log(autojump_clock):
    alpha = slow()
    async with pair(alpha, log_events=64) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        stream = client.listen()
        await stream.head()
        for n in range(200):
            alpha.upstream.notify("notifications/message", {"level": "info", "data": n})
            await trio.sleep(1)
        assert [m["params"]["data"] for m in stream.seen("notifications/message")] == list(range(200))
        assert one.telemetry.total("stagedoor_events_shed_total") == 0


async def test_streams_by_mail_are_let_go_by_a_process_that_drains(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        stream = client.listen()
        await stream.head()
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await trio.sleep(1)
        two.nursery.start_soon(two.system.drain, 20.0)
        await stream.end()
        assert [event.retry for event in stream.events if event.retry is not None]
        request.text("done")
        assert "result" in await outcome(call)
        client.to(one)
        assert await client.tool("echo") == "alpha: echo"


async def test_a_process_that_drains_still_finds_the_sessions_of_others(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        busy = await two.connect("alpha")
        call, request = await reached(busy, alpha)
        client = await elsewhere(one, two)
        two.nursery.start_soon(two.system.drain, 20.0)
        await two.settle()
        assert await client.tool("echo") == "alpha: echo"
        request.text("done")
        await call.result()


async def test_streams_by_mail_stay_when_their_owner_drains(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        stream = client.listen()
        await stream.head()
        await one.system.drain(5.0)
        await trio.sleep(1)  # they are told, and need not wait until they look for it
        assert not stream.done
        assert owners(two) == [1]
        assert await client.tool("echo") == "alpha: echo"
        alpha.upstream.notify("notifications/prompts/list_changed")
        await stream.next("notifications/prompts/list_changed")


# The store is away meanwhile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.0, 4.0, 7.5, 12.0])
@pytest.mark.parametrize("what", ["log", "record"])
async def test_a_stream_whose_store_is_away_for_a_while_goes_on_when_it_is_back(
    autojump_clock, monkeypatch, seconds, what
):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "slow"}, progress="t")
        (await alpha.next()).progress(1)
        await call.next("notifications/progress")
        away_until = trio.current_time() + seconds
        store = two.store
        assert isinstance(store, MemoryStore)
        replay, read = store.replay, store.read

        async def no_log(*args: Any) -> Any:
            return Failed(Refused.AWAY) if trio.current_time() < away_until else await replay(*args)

        def no_record(key: Any, done: Any) -> None:
            if trio.current_time() < away_until:
                done(Failed(Refused.AWAY))
            else:
                read(key, done)

        if what == "log":
            monkeypatch.setattr(store, "replay", no_log)
        else:
            monkeypatch.setattr(store, "read", no_record)
        one.kill(at_once=True)
        answer = await outcome(call)
        if seconds > PATIENCE:  # the connection was closed; its client resumes
            assert answer == 200
            await trio.sleep(seconds - PATIENCE)
            resumed = client.listen(call.events[-1].id)
            await resumed.end()
            [answer] = resumed.messages
        assert unknown(answer)


@pytest.mark.parametrize("seconds", [1.0, 4.0, 12.0])
async def test_a_call_found_in_the_record_is_not_refused_because_its_log_can_not_be_read(
    autojump_clock, monkeypatch, seconds
):
    """It runs, or did: no answer may say that it was not begun."""
    alpha = http(tools=("echo", "work"), held={"work"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call = client.begin("tools/call", {"name": "work"}, progress="mine")
        story = Story(alpha, await alpha.next())
        alpha.upstream.transport.prime("c0", story.request.id)
        Post(one, *[()] * 50)
        story.progress(1, "c1")
        await trio.sleep(1)
        assert call.status is None
        away_until = trio.current_time() + seconds
        store = two.store
        assert isinstance(store, MemoryStore)
        replay = store.replay

        async def no_log(*args: Any) -> Any:
            return Failed(Refused.AWAY) if trio.current_time() < away_until else await replay(*args)

        monkeypatch.setattr(store, "replay", no_log)
        one.kill(at_once=True)
        await alpha.connected(2)
        await two.settle()
        story.result("done")
        answer = await outcome(call)
        if seconds < PATIENCE:
            assert answer["result"]["content"][0]["text"] == "done"
            assert len(call.seen("notifications/progress")) == 1
        else:
            assert unknown(answer)
        assert len(alpha.asked_for("tools/call")) == 1


# The holder has another name meanwhile --------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["the answer", "the stream"])
@pytest.mark.parametrize("progress", [False, True])
async def test_a_call_whose_holder_is_renamed_gets_its_answer_under_the_new_name(autojump_clock, lost, progress):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.call("ping")
        former = two.store.incarnation
        two.life.store.replica.cut_off()
        await trio.sleep(lease.TTL - (0.1 if lost == "the stream" else 0.6))
        call, request = await reached(client, alpha, progress="t" if progress else None)
        await trio.sleep(0.3)
        if progress:
            request.progress(1)
        await trio.sleep(0.5)
        two.life.store.replica.resume()
        await trio.sleep(0.5)
        request.text("done")
        assert "result" in await outcome(call, 2)
        assert len(call.seen("notifications/progress")) == progress
        assert executions(alpha) == 1
        assert two.store.incarnation != former


@pytest.mark.parametrize("what", ["a notification", "an event stream"])
async def test_what_else_a_renamed_holder_had_posted_is_heard_of_at_once(autojump_clock, monkeypatch, what):
    """The owner's first answer goes to a name whose inbox nobody reads any more."""
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.call("ping")
        former, post = two.store.incarnation, one.services.cluster.post
        unread = []

        def lose(to: str, letter: bytes, done: Any) -> None:
            if to == former:
                unread.append(letter)
                done("1-1")
            else:
                post(to, letter, done)

        monkeypatch.setattr(one.services.cluster, "post", lose)
        two.life.store.replica.cut_off()
        await trio.sleep(lease.TTL - 0.1)
        note = {"method": "notifications/roots/list_changed"}
        sent = client.post(note) if what == "a notification" else client.listen()
        await trio.sleep(0.2)
        two.life.store.replica.resume()
        await trio.sleep(2)
        assert unread
        assert two.store.incarnation != former
        assert sent.status == (202 if what == "a notification" else 200)


@pytest.mark.parametrize("progress", [False, True])
async def test_a_call_that_comes_twice_under_two_names_of_its_holder_runs_once(autojump_clock, monkeypatch, progress):
    """A store that has lost writes may have a letter again that was taken back and sent anew."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        post, sent = two.services.cluster.post, list[bytes]()

        def note(to: str, letter: bytes, done: Any) -> None:
            sent.append(letter)
            post(to, letter, done)

        monkeypatch.setattr(two.services.cluster, "post", note)
        call, request = await reached(client, alpha, progress="t" if progress else None)
        if progress:
            request.progress(1)
        await trio.sleep(1)
        [letter] = [letter for letter in map(letters.decode, sent) if isinstance(letter.body, letters.Deliver)]
        again = replace(letter, reply=("another name", letter.reply[1]))
        post(one.store.incarnation, letters.encode(again), lambda outcome: None)
        await trio.sleep(1)
        request.text("done")
        assert "result" in await outcome(call, 2)
        assert executions(alpha) == 1
