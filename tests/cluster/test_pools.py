"""Affinity pools that another replica owns: one client's requests come to any of them, and reach one pool."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.cluster.letters import Letter, ToPool, encode
from actors.pools import letters
from actors.ports import Failed, Principal, Refused
from actors.protocol.meta import SERVER_KEY
from tests.support.harness import open_replicas
from tests.support.pooled import FORM, asker, client, echo, error_of, executed, reached_from, retry, suspend, text

KINDS = pytest.mark.parametrize("kind", ["stdio", "http"])


@KINDS
async def test_a_client_reaches_one_pool_whichever_replica_it_comes_to(autojump_clock: Any, kind: str) -> None:
    alpha = asker(kind)
    async with open_replicas(3, alpha) as replicas:
        for words in ("one", "two", "three", "four"):
            for gateway in replicas:
                assert await echo(client(gateway), words) == f"alpha: {words}"
        sessions = {request.upstream for request in alpha.asked_for("tools/call")}
        assert len(sessions) == 1


@KINDS
@pytest.mark.parametrize("fresh", [True, False])
async def test_a_suspended_call_goes_on_at_any_replica(autojump_clock: Any, kind: str, fresh: bool) -> None:
    alpha = asker(kind)
    async with open_replicas(3, alpha) as (one, two, three):
        if not fresh:
            assert await echo(client(one)) == await echo(client(two)) == await echo(client(three))
        before = executed(alpha)
        call = client(one).begin("tools/call", {"name": "ask"})
        request = [await alpha.next() for _ in range(before + 1)][-1]
        request.ask("elicitation/create", FORM)
        asked = await call.result()
        for gateway in (two, three):
            call = client(gateway).begin("tools/call", retry(asked))
            await gateway.settle()
            request.ask("elicitation/create", FORM)
            asked = await call.result()
            assert asked["resultType"] == "input_required"
        call = client(one).begin("tools/call", retry(asked))
        await one.settle()
        request.text("done")
        assert text(await call.result()) == "done"
        assert executed(alpha) == before + 1


async def test_who_comes_later_by_another_endpoint_hears_who_the_server_is(autojump_clock: Any) -> None:
    """From the replica of the pool's user, which was told when the connection was made."""
    alpha = asker("http")
    async with open_replicas(2, alpha, groups={"group": ("alpha",)}) as (one, two):
        assert await echo(client(one))
        call = {"name": "alpha__echo", "arguments": {"text": "hi"}}
        assert text(await client(two, endpoint="group").call("tools/call", call)) == "alpha: hi"
        found = await client(two).call("tools/list")
        assert found["_meta"][SERVER_KEY] == {"name": "alpha", "version": "1"}


# What goes through it ------------------------------------------------------------------------------------------


@KINDS
async def test_progress_logs_and_what_has_changed_come_through(autojump_clock: Any, kind: str) -> None:
    alpha = asker(kind)
    async with open_replicas(2, alpha) as (one, two):
        assert await echo(client(one)) == "alpha: hi"
        here = client(two)
        events = here.listen("test:///a", tools=True)
        await events.next("notifications/subscriptions/acknowledged")
        await alpha.next()
        call = here.begin("tools/call", {"name": "ask"}, progress="mine", level="info")
        request = await alpha.next()
        await two.settle()
        request.progress(1)
        request.log("half way")
        assert (await call.next("notifications/progress"))["params"]["progressToken"] == "mine"
        assert (await call.next("notifications/message"))["params"]["data"] == "half way"
        request.upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        request.upstream.notify("notifications/tools/list_changed")
        assert (await events.next("notifications/resources/updated"))["params"]["uri"] == "test:///a"
        await events.next("notifications/tools/list_changed")
        request.text("done")
        assert text(await call.result()) == "done"


async def test_who_subscribes_elsewhere_and_leaves_is_unsubscribed_when_nobody_else_wants_it(
    autojump_clock: Any,
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        first, second = client(two).listen("test:///a"), client(two).listen("test:///a")
        for events in (first, second):
            await events.next("notifications/subscriptions/acknowledged")
        first.drop()
        await trio.sleep(5)
        assert "resources/unsubscribe" not in alpha.methods
        second.drop()
        await trio.sleep(400)
        assert "resources/unsubscribe" in alpha.methods


@KINDS
async def test_a_client_that_leaves_has_its_call_cancelled_there(autojump_clock: Any, kind: str) -> None:
    alpha = asker(kind)
    async with open_replicas(2, alpha) as (one, two):
        call, request = await reached_from(two, one, alpha)
        call.drop()
        with trio.fail_after(5):
            await request.cancelled.wait()
        assert await echo(client(two)) == "alpha: hi"


async def test_each_principal_has_its_own_wherever_it_comes(autojump_clock: Any) -> None:
    alpha = asker()
    ann, bob = Principal("ann"), Principal("bob")
    async with open_replicas(2, alpha) as (one, two):
        asked, _ = await suspend(client(one, ann), alpha)
        for gateway in (one, two):
            for principal in (bob, ann):
                await echo(client(gateway, principal))
        upstreams = {request.upstream for request in alpha.asked_for("tools/call")}
        assert len(upstreams) == 2
        error = await error_of(client(two, bob).begin("tools/call", retry(asked)))
        assert error.code == -32602


async def test_mail_of_another_principal_than_the_pools_is_refused(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one, Principal("ann")))
        (pool,) = one.actors.pools.children()
        me, heard = two.services.cluster.incarnation, []
        two.actors.affinity_pools.take = heard.append  # type: ignore[method-assign]
        enter = letters.Enter("alpha", ("elicit.form", "roots", "sampling"), "")
        for who, admitted in (("bob", False), ("ann", True)):
            body = ToPool(1, 0, letters.encode([enter]))
            letter = Letter(pool.name.removeprefix("broker-"), (me, 77), body, Principal(who), "")
            two.services.cluster.post(one.services.cluster.incarnation, encode(letter), lambda out: None)
            await two.settle()
            said = letters.to_holder(heard.pop(0).body.said)
            assert (said == (letters.Ended(letters.REFUSED),)) is not admitted


# The same retry ------------------------------------------------------------------------------------------------


async def test_the_same_retry_at_two_replicas_at_once_runs_once(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(3, alpha) as (one, two, three):
        asked, request = await suspend(client(one), alpha)
        calls = [client(gateway).begin("tools/call", retry(asked)) for gateway in (two, three)]
        await one.settle()
        request.text("done")
        for call in calls:
            await call.end()
        answers = [await call.response() for call in calls]
        assert [text(answer["result"]) for answer in answers if "result" in answer] == ["done"]
        assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32602]
        assert executed(alpha) == 1


# The owner goes ------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("at_once", [True, False])
async def test_what_was_in_flight_as_its_owner_died_may_have_been_executed(
    autojump_clock: Any, kind: str, at_once: bool
) -> None:
    alpha = asker(kind)
    async with open_replicas(2, alpha) as (one, two):
        call, _ = await reached_from(two, one, alpha)
        one.kill(at_once=at_once)
        before = trio.current_time()
        error = await error_of(call)
        assert trio.current_time() - before < (1 if at_once else 6)
        assert (error.code, error.data["executed"], error.data["reason"]) == (-32603, "unknown", "owner_lost")
        assert error.data["backend"] == "alpha"
        assert await echo(client(two)) == "alpha: hi"
        assert len([r for r in alpha.asked_for("tools/call") if r.params["name"] == "ask"]) == 1


@pytest.mark.parametrize("used", [True, False])
async def test_what_was_suspended_is_lost_with_its_owner_and_never_executed_again(
    autojump_clock: Any, used: bool
) -> None:
    alpha = asker()
    async with open_replicas(3, alpha) as (one, two, three):
        asked, _ = await suspend(client(one), alpha)
        if used:
            await echo(client(two))
        one.kill()
        await trio.sleep(10)
        before = executed(alpha)
        for gateway in (two, three):
            error = await error_of(client(gateway).begin("tools/call", retry(asked)))
            assert error.code == -32602
        assert executed(alpha) == before


async def test_a_retry_while_the_death_is_not_known_yet_ends_in_time(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        asked, _ = await suspend(client(one), alpha)
        one.kill()
        before = trio.current_time()
        error = await error_of(client(two).begin("tools/call", retry(asked)))
        assert error.code == -32602
        assert trio.current_time() - before < 15


async def test_what_a_dead_owner_never_read_is_done_elsewhere(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        assert await echo(client(two)) == "alpha: hi"
        two.life.store.replica.post_office = lambda to, letter: (60.0,)
        call = client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "late"}})
        await two.settle()
        assert executed(alpha) == 2
        one.kill()
        assert text(await call.result()) == "alpha: late"
        assert executed(alpha) == 3


async def test_an_owner_that_stood_still_answers_nothing_and_executes_nothing_twice(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        call, request = await reached_from(two, one, alpha)
        await one.pause()
        error = await error_of(call)
        assert error.data["executed"] == "unknown"
        assert await echo(client(two), "again") == "alpha: again"
        await one.resume()
        request.text("late")
        await trio.sleep(5)
        assert await echo(client(one), "there") == "alpha: there"
        owners = [r for r in alpha.asked_for("tools/call") if r.params["name"] == "echo"][1:]
        assert len({r.upstream for r in owners}) == 1
        assert len([r for r in alpha.asked_for("tools/call") if r.params["name"] == "ask"]) == 1


async def test_the_death_of_a_replica_that_uses_a_pool_cancels_its_calls_and_leaves_what_is_suspended(
    autojump_clock: Any,
) -> None:
    alpha = asker()
    async with open_replicas(3, alpha) as (one, two, three):
        await echo(client(one))
        asked, suspended = await suspend(client(two), alpha)
        client(two).begin("tools/call", {"name": "ask"})
        running = await alpha.next()
        two.kill()
        with trio.fail_after(10):
            await running.cancelled.wait()
        call = client(three).begin("tools/call", retry(asked))
        await three.settle()
        suspended.text("done")
        assert text(await call.result()) == "done"


# Who comes first -----------------------------------------------------------------------------------------------


async def test_two_that_come_at_once_make_one_pool(autojump_clock: Any) -> None:
    alpha = asker("stdio")
    async with open_replicas(3, alpha) as replicas:
        calls = [client(g).begin("tools/call", {"name": "echo", "arguments": {}}) for g in replicas for _ in range(3)]
        for call in calls:
            assert text(await call.result()) == "alpha: echo"
        assert len({request.upstream for request in alpha.asked_for("tools/call")}) == 1


async def test_the_next_use_after_a_pool_has_ended_makes_another_one_anywhere(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha, broker_idle=100.0, link_idle=20.0) as (one, two):
        before = [gateway.left() for gateway in (one, two)]
        await echo(client(one))
        await echo(client(two))
        await trio.sleep(1000)
        assert not list(one.actors.pools.children()) + list(two.actors.pools.children())
        assert not one.actors.affinity_pools.guests
        assert [gateway.left()["actors"] for gateway in (one, two)] == [left["actors"] for left in before]
        assert await echo(client(two)) == "alpha: hi"
        assert await echo(client(one)) == "alpha: hi"
        assert len(list(two.actors.pools.children())) == 1


async def test_a_pool_that_crashed_is_another_one_the_next_time(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        call, _ = await reached_from(two, one, alpha)
        (pool,) = one.actors.pools.children()
        pool.cell.actor.receive = None
        pool.reply(None)
        error = await error_of(call)
        assert error.data["executed"] == "unknown"
        assert await echo(client(two)) == "alpha: hi"
        assert await echo(client(one)) == "alpha: hi"
        one.crashes.clear()


# Mail ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["question", "answer"])
async def test_lost_mail_ends_what_hangs_on_it_within_a_time(autojump_clock: Any, lost: str) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        await echo(client(two))
        loser = two if lost == "question" else one
        loser.life.store.replica.post_office = lambda to, letter: ()
        before = trio.current_time()
        call = client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        await two.settle()
        loser.life.store.replica.post_office = lambda to, letter: (0.0,)
        if lost == "question":
            assert text(await call.result()) == "alpha: x", "it was surely not begun"
        else:
            assert (await error_of(call)).data["executed"] == "unknown"
        assert trio.current_time() - before < 15
        assert await echo(client(two)) == "alpha: hi"
        assert len([r for r in alpha.asked_for("tools/call") if r.params["arguments"].get("text") == "x"]) == 1


async def test_letters_are_counted_by_kind(autojump_clock: Any) -> None:
    async with open_replicas(2, asker()) as (one, two):
        await echo(client(one))
        await echo(client(two))
        for gateway, sent, received in ((one, "from_pool", "to_pool"), (two, "to_pool", "from_pool")):
            assert gateway.telemetry.total("stagedoor_letters_sent_total", sent) >= 2
            assert gateway.telemetry.total("stagedoor_letters_received_total", received) >= 2


async def test_doubled_mail_is_read_once(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        for gateway in (one, two):
            gateway.life.store.replica.post_office = lambda to, letter: (0.0, 0.1)
        await echo(client(one))
        for words in ("a", "b", "c"):
            assert await echo(client(two), words) == f"alpha: {words}"
            await trio.sleep(1)
        assert executed(alpha) == 4


@pytest.mark.parametrize(("reason", "told"), [(Refused.INBOX_FULL, "overloaded"), (Refused.AWAY, "store_away")])
async def test_a_call_that_can_not_be_posted_is_told_so_at_once(
    autojump_clock: Any, reason: Refused, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        await echo(client(two))
        monkeypatch.setattr(two.services.cluster, "post", lambda to, letter, done: done(Failed(reason)))
        first = client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "first"}})
        await two.settle()
        error = await error_of(client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "x"}}))
        assert (error.code, error.data["executed"], error.data["reason"]) == (-32603, "no", told)
        monkeypatch.undo()
        assert text(await first.result()) == "alpha: first"
        assert executed(alpha) == 3


# The end of a process in order ---------------------------------------------------------------------------------


async def test_a_drain_lets_calls_of_others_end_and_new_ones_wait_for_the_next_owner(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        running, request = await reached_from(two, one, alpha)
        one.nursery.start_soon(one.system.drain, 8.0)
        await two.settle()
        waiting = client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "next"}})
        await trio.sleep(2)
        request.text("done")
        assert text(await running.result()) == "done"
        assert text(await waiting.result()) == "alpha: next"
        assert len(list(two.actors.pools.children())) == 1


async def test_what_does_not_end_before_the_drain_does_may_have_been_executed(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        running, request = await reached_from(two, one, alpha)
        before = trio.current_time()
        one.nursery.start_soon(one.system.drain, 8.0)
        error = await error_of(running)
        assert error.data["executed"] == "unknown"
        assert trio.current_time() - before < 9
        await request.cancelled.wait()
        assert await echo(client(two)) == "alpha: hi"


@pytest.mark.parametrize("how", ["crashed", "lost its last words"])
async def test_nothing_is_left_of_a_user_that_is_not_heard_of(autojump_clock: Any, how: str) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        call, request = await reached_from(two, one, alpha)
        if how == "crashed":
            (pool,) = two.actors.pools.children()
            pool.cell.actor.receive = None
            pool.reply(None)
            await error_of(call)
            two.crashes.clear()
        else:
            two.life.store.replica.post_office = lambda to, letter: ()
            call.drop()
        with trio.fail_after(130):
            await request.cancelled.wait()
        await trio.sleep(1)
        assert not one.actors.affinity_pools.guests


async def test_who_waits_for_the_server_hears_that_its_owner_is_gone(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        assert await echo(client(two)) == "alpha: hi"
        alpha.silent = True
        for upstream in alpha.open:
            upstream.die()
        await two.settle()
        call = client(two).begin("server/discover")
        await trio.sleep(1)
        one.kill()
        before = trio.current_time()
        await call.response()
        assert trio.current_time() - before < 40  # a connection has 30 s


async def test_where_nobody_tells_what_was_read_a_call_does_not_hang(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        await echo(client(two))
        two.life.store.replica.post_office = lambda to, letter: (60.0,)
        monkeypatch.setattr(two.services.cluster, "withdraw", lambda to, entry, done: None)
        call = client(two).begin("tools/call", {"name": "echo", "arguments": {}})
        await two.settle()
        one.kill()
        before = trio.current_time()
        assert (await error_of(call)).data["executed"] == "unknown"
        assert trio.current_time() - before < 15
        assert executed(alpha) == 2


async def test_what_waits_behind_a_letter_that_is_lost_is_done_elsewhere_once(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        await echo(client(two))
        post, held = two.services.cluster.post, []
        monkeypatch.setattr(two.services.cluster, "post", lambda to, letter, done: held.append((to, letter, done)))
        calls = []
        for words in ("first", "second"):
            calls.append(client(two).begin("tools/call", {"name": "echo", "arguments": {"text": words}}))
            await two.settle()
        assert len(held) == 1
        monkeypatch.setattr(two.services.cluster, "post", post)
        one.kill(at_once=True)
        await two.settle()
        post(*held[0])
        for call, words in zip(calls, ("first", "second"), strict=True):
            assert text(await call.result()) == f"alpha: {words}"
        assert executed(alpha) == 4


@pytest.mark.parametrize("second", ["at once", "late"])
async def test_a_letter_that_may_be_in_the_inbox_twice_is_not_begun_elsewhere(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        await echo(client(one))
        await echo(client(two))
        post, tries, held = two.services.cluster.post, [], []

        def posts(to: str, letter: bytes, done: Any) -> None:
            """The first attempt succeeds, and nobody hears of that."""
            tries.append(letter)
            if len(tries) == 1:
                post(to, letter, lambda out: done(Failed(Refused.AWAY)))
            elif len(tries) == 2 and second == "late":
                held.append((to, letter, done))
            else:
                post(to, letter, done)

        monkeypatch.setattr(two.services.cluster, "post", posts)
        two.life.store.replica.post_office = lambda to, letter: (20.0,)  # the owner reads nothing for so long
        call = client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        await two.settle()
        two.life.store.replica.post_office = lambda to, letter: (0.0,)
        await trio.sleep(13)  # the upstream connection counts as lost by then
        for words in held:
            post(*words)
        assert (await error_of(call)).data["executed"] == "unknown"
        await trio.sleep(60)
        assert len([r for r in alpha.asked_for("tools/call") if r.params["arguments"].get("text") == "x"]) == 1


async def test_what_comes_with_the_end_of_the_last_call_of_a_draining_owner_is_done(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, two):
        running, _ = await reached_from(two, one, alpha)
        post, held = two.services.cluster.post, []
        monkeypatch.setattr(two.services.cluster, "post", lambda *words: held.append(words))
        noted = client(two).begin("tools/call", {"name": "ask"})  # its letter is long on its way
        await two.settle()
        running.drop()
        noted.drop()
        await two.settle()
        call = client(two).begin("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        await two.settle()
        monkeypatch.setattr(two.services.cluster, "post", post)
        one.nursery.start_soon(one.system.drain, 8.0)
        await one.settle()
        for words in held:
            post(*words)
        assert text(await call.result()) == "alpha: x"


async def test_what_a_server_says_while_its_owner_is_unknown_has_a_bound(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as (one, _):
        await echo(client(one))
        upstream = (await alpha.next()).upstream
        monkeypatch.setattr(one.store, "claim", lambda *words, **more: words[-1](Failed(Refused.AWAY)))
        await one.pause()
        await trio.sleep(5)
        await one.resume()  # under another name, by which it can't claim anything
        await one.settle()
        for _ in range(40):
            for _ in range(50):
                upstream.notify("notifications/tools/list_changed")
            await one.settle()
        assert one.telemetry.total("stagedoor_messages_dropped_total", "overflow") > 0
        monkeypatch.undo()
        await trio.sleep(2)
        assert await echo(client(one)) == "alpha: hi"


async def test_who_subscribes_elsewhere_keeps_what_it_uses(autojump_clock: Any) -> None:
    alpha = asker()
    async with open_replicas(2, alpha, broker_idle=100.0, link_idle=20.0) as (one, two):
        await echo(client(one))
        events = client(two).listen("test:///a")
        await events.next("notifications/subscriptions/acknowledged")
        await trio.sleep(1000)
        assert "resources/unsubscribe" not in alpha.methods
        assert alpha.methods.count("resources/subscribe") == 1
        assert len(one.actors.affinity_pools.guests) == 1


@pytest.mark.parametrize("at", [0, 1])
async def test_what_is_suspended_outlives_a_lapse_of_its_owners_lease_in_which_nobody_needed_it(
    autojump_clock: Any, at: int
) -> None:
    alpha = asker()
    async with open_replicas(2, alpha) as replicas:
        one = replicas[0]
        asked, request = await suspend(client(one), alpha)
        before = one.services.cluster.incarnation
        await one.pause()
        await trio.sleep(5)
        await one.resume()
        assert one.services.cluster.incarnation != before
        await trio.sleep(1)
        call = client(replicas[at]).begin("tools/call", retry(asked))
        await one.settle()
        request.text("done")
        assert text(await call.result()) == "done"
        assert executed(alpha) == 1
