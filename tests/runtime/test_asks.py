"""Asks: calls without a task, with the same outcomes, given to a callback exactly once."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.runtime import Actor, ActorDown, MailboxFull, NotTaken, Reply, System
from tests.runtime.test_calls import Keeper, itself

ADMISSION = 2.0


async def test_what_the_actor_answers_goes_to_the_callback_once(system: System) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    ref = system.spawn(keeper)
    ref.ask(itself, ADMISSION, outcomes.append)
    await wait_all_tasks_blocked()
    assert outcomes == []
    assert keeper.replies[0].answer("first")
    assert outcomes == ["first"]
    assert not keeper.replies[0].answer("second")
    assert outcomes == ["first"]
    assert not ref.cell.pending  # type: ignore[union-attr]


async def test_what_the_actor_fails_it_with_is_given_as_a_value(system: System) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    ref = system.spawn(keeper)
    ref.ask(itself, ADMISSION, outcomes.append)
    await wait_all_tasks_blocked()
    error = LookupError("no such thing")
    assert keeper.replies[0].fail(error)
    assert outcomes == [error]
    assert ref.alive


async def test_asks_arrive_in_the_order_of_asking_also_between_casts(system: System) -> None:
    seen: list[Any] = []

    class Listener(Actor):
        def receive(self, message: Any) -> None:
            seen.append(message)

    ref = system.spawn(Listener())
    ref.cast("one")
    ref.ask(lambda reply: "two", ADMISSION, lambda _: None)
    ref.cast("three")
    await wait_all_tasks_blocked()
    assert seen == ["one", "two", "three"]


async def test_a_full_mailbox_is_said_before_the_ask_returns(system: System) -> None:
    ref, outcomes = system.spawn(Keeper(), "keeper"), list[Any]()
    assert ref.cast("one")
    assert ref.cast("two")
    ref.ask(itself, ADMISSION, outcomes.append)
    assert [type(outcome) for outcome in outcomes] == [MailboxFull]


async def test_so_is_a_dead_actor_and_the_reply_can_be_abandoned_all_the_same(system: System) -> None:
    ref, outcomes = system.spawn(Keeper(), "keeper"), list[Any]()
    ref.stop()
    await ref.ended()
    reply = ref.ask(itself, ADMISSION, outcomes.append)
    reply.abandon()
    assert [(type(outcome), outcome.taken) for outcome in outcomes] == [(ActorDown, False)]
    assert repr(reply) == "<Reply of one that has ended: settled>"


async def test_what_is_still_queued_at_the_admission_deadline_is_revoked(
    system: System, stalled: Callable[[System], Any], autojump_clock: MockClock
) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    ref = system.spawn(keeper)
    await wait_all_tasks_blocked()
    with stalled(system):
        ref.ask(itself, 1.5, outcomes.append)
        await trio.sleep(1.6)
        assert [type(outcome) for outcome in outcomes] == [NotTaken]
        assert ref.statistics().ordinary == 0
    await trio.sleep(10)
    assert keeper.replies == []
    assert len(outcomes) == 1


async def test_one_that_was_taken_has_no_deadline(system: System, autojump_clock: MockClock) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    system.spawn(keeper).ask(itself, 0.5, outcomes.append)
    await trio.sleep(100)
    assert outcomes == []
    assert keeper.replies[0].answer("late")
    assert outcomes == ["late"]


async def test_when_the_actor_dies_both_a_queued_and_a_taken_one_are_told(system: System) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    ref = system.spawn(keeper)
    ref.ask(itself, ADMISSION, outcomes.append)
    await wait_all_tasks_blocked()
    ref.cast(lambda: 1 // 0)
    ref.ask(itself, ADMISSION, outcomes.append)
    await ref.ended()
    assert sorted(outcome.taken for outcome in outcomes) == [False, True]


async def test_abandoning_a_queued_one_revokes_it_and_nothing_comes(
    system: System, stalled: Callable[[System], Any], autojump_clock: MockClock
) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    ref = system.spawn(keeper)
    await wait_all_tasks_blocked()
    with stalled(system):
        ref.ask(itself, ADMISSION, outcomes.append).abandon()
        assert ref.statistics().ordinary == 0
    await trio.sleep(10)
    assert (keeper.replies, keeper.told, outcomes) == ([], [], [])
    assert system.statistics().timers == 0


async def test_abandoning_a_taken_one_tells_the_actor_once_and_nothing_comes(system: System) -> None:
    keeper, outcomes = Keeper(), list[Any]()
    ref = system.spawn(keeper)
    reply = ref.ask(itself, ADMISSION, outcomes.append)
    await wait_all_tasks_blocked()
    reply.abandon()
    reply.abandon()
    await wait_all_tasks_blocked()
    assert keeper.told == ["abandoned"]
    assert keeper.replies[0].abandoned
    assert not keeper.replies[0].answer("nobody waits")
    assert outcomes == []
    assert ref.alive


async def test_a_raise_in_on_abandon_is_a_crash_of_the_actor(system: System) -> None:
    keeper = Keeper()
    ref = system.spawn(keeper)
    reply = ref.ask(itself, ADMISSION, lambda _: None)
    await wait_all_tasks_blocked()
    keeper.replies[0].on_abandon = lambda: 1 // 0
    reply.abandon()
    assert isinstance((await ref.ended()).error, ZeroDivisionError)


async def test_a_raise_in_a_guarded_callback_is_a_crash_of_who_asked(system: System) -> None:
    keeper = Keeper()
    ref = system.spawn(keeper)

    class Asker(Actor):
        def receive(self, message: Any) -> None:
            ref.ask(itself, ADMISSION, self.ctx.guard(lambda outcome: outcome / 0))

    asker = system.spawn(Asker())
    asker.cast("ask")
    await wait_all_tasks_blocked()
    assert keeper.replies[0].answer(1)
    assert isinstance((await asker.ended()).error, ZeroDivisionError)
    assert ref.alive


@pytest.mark.parametrize("outcome", ["answer", "abandon"])
async def test_asks_leave_nothing_behind(system: System, outcome: str) -> None:
    keeper = Keeper()
    ref = system.spawn(keeper)
    for _ in range(100):
        reply = ref.ask(lambda reply: reply, ADMISSION, lambda _: None)
        await wait_all_tasks_blocked()
        taken: Reply = keeper.replies.pop()
        taken.answer(1) if outcome == "answer" else reply.abandon()
    assert system.statistics().timers == 0
    assert not ref.cell.pending  # type: ignore[union-attr]
