"""Timers: exact, replaceable, never delivered once cancelled, and lenient after a stall of the loop."""

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.runtime import Actor, System
from actors.runtime.timers import LATE, Timers


class Clocked(Actor):
    """Writes down when each message came."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, float]] = []

    def receive(self, message: Any) -> None:
        if callable(message):
            message(self.ctx)
        else:
            self.seen.append((message, self.ctx.now()))


async def test_a_timer_arrives_as_a_message_when_it_is_due(system: System, autojump_clock: MockClock) -> None:
    actor = Clocked()
    ref = system.spawn(actor)
    ref.cast(lambda ctx: [ctx.set_timer(key, key, f"after {key}") for key in (3, 1, 2)])
    await trio.sleep(10)
    assert actor.seen == [("after 1", 1.0), ("after 2", 2.0), ("after 3", 3.0)]
    assert system.statistics().timers == 0


async def test_an_earlier_timer_is_not_kept_waiting_by_a_later_one(system: System, autojump_clock: MockClock) -> None:
    actor = Clocked()
    ref = system.spawn(actor)
    ref.cast(lambda ctx: ctx.set_timer("late", 100, "late"))
    await trio.sleep(1)
    ref.cast(lambda ctx: ctx.set_timer("soon", 1, "soon"))
    await trio.sleep(1.5)
    assert actor.seen == [("soon", 2.0)]


async def test_a_timer_with_the_same_key_is_replaced(system: System, autojump_clock: MockClock) -> None:
    actor = Clocked()
    ref = system.spawn(actor)
    ref.cast(lambda ctx: ctx.set_timer("k", 1, "first"))
    ref.cast(lambda ctx: ctx.set_timer("k", 2, "second"))
    await trio.sleep(5)
    assert actor.seen == [("second", 2.0)]


async def test_a_cancelled_timer_never_comes(system: System, autojump_clock: MockClock) -> None:
    actor = Clocked()
    ref = system.spawn(actor)
    ref.cast(lambda ctx: ctx.set_timer("k", 1, "no"))
    ref.cast(lambda ctx: ctx.cancel_timer("k"))
    ref.cast(lambda ctx: ctx.cancel_timer("unknown"))
    await trio.sleep(5)
    assert actor.seen == []
    assert system.statistics().timers == 0


@pytest.mark.parametrize("replace", [False, True])
async def test_a_timer_cancelled_or_replaced_while_its_message_is_queued_never_comes(
    system: System, autojump_clock: MockClock, stalled: Any, replace: bool
) -> None:
    actor = Clocked()
    ref = system.spawn(actor)
    ref.cast(lambda ctx: ctx.set_timer("k", 1, "no"))
    await wait_all_tasks_blocked()
    with stalled(system):
        ref.cast(lambda ctx: ctx.set_timer("k", 1, "yes") if replace else ctx.cancel_timer("k"))
        await trio.sleep(2)
        assert ref.statistics().reserved == 1
    await trio.sleep(5)
    assert actor.seen == ([("yes", 3.0)] if replace else [])
    assert system.statistics().timers == 0


async def test_a_timer_can_be_set_again_from_its_own_message(system: System, autojump_clock: MockClock) -> None:
    class Ticker(Clocked):
        def started(self) -> None:
            self.ctx.set_timer("tick", 1, "tick")

        def receive(self, message: Any) -> None:
            super().receive(message)
            self.ctx.set_timer("tick", 1, "tick")

    actor = Ticker()
    system.spawn(actor)
    await trio.sleep(3.5)
    assert actor.seen == [("tick", 1.0), ("tick", 2.0), ("tick", 3.0)]


async def test_timers_end_with_their_actor_and_a_dead_actor_sets_none(
    system: System, autojump_clock: MockClock
) -> None:
    class Parting(Clocked):
        def stopped(self, reason: object) -> None:
            self.ctx.set_timer("clean-up", 1, "too late")

    actor = Parting()
    ref = system.spawn(actor)
    ref.cast(lambda ctx: ctx.set_timer("k", 1, "no"))
    await wait_all_tasks_blocked()
    assert system.statistics().timers == 1
    ref.stop()
    await ref.ended()
    actor.ctx.set_timer("after", 1, "no")
    assert system.statistics().timers == 0


async def test_after_a_stall_a_timer_waits_for_what_the_stall_held_back(system: System) -> None:
    """What came in while the loop stood still is read before the timeout that it would have prevented."""
    clock = MockClock()

    async def scenario() -> None:
        timers = Timers()
        fired: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            timers.start(1.0, lambda: fired.append(trio.current_time()))
            await wait_all_tasks_blocked()
            clock.jump(1.0 + LATE * 2)
            await wait_all_tasks_blocked()
            assert fired == []
            assert len(timers) == 1
            clock.jump(LATE)
            await wait_all_tasks_blocked()
            assert fired == [pytest.approx(1.0 + LATE * 3)]
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(lambda: trio.run(scenario, clock=clock))


async def test_a_timer_is_deferred_only_once() -> None:
    clock = MockClock()

    async def scenario() -> None:
        timers = Timers()
        fired: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            timers.start(1.0, lambda: fired.append(trio.current_time()))
            timers.start(1.0 + LATE * 5, lambda: fired.append("in time"))
            await wait_all_tasks_blocked()
            clock.jump(1.0 + LATE * 5)
            await wait_all_tasks_blocked()
            assert fired == ["in time"]
            clock.jump(50)
            await wait_all_tasks_blocked()
            assert fired == ["in time", pytest.approx(51.0 + LATE * 5)]
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(lambda: trio.run(scenario, clock=clock))


async def test_a_deferred_timer_can_still_be_cancelled() -> None:
    clock = MockClock()

    async def scenario() -> None:
        timers = Timers()
        fired: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            timer = timers.start(1.0, lambda: fired.append("timeout"))
            await wait_all_tasks_blocked()
            clock.jump(2)
            await wait_all_tasks_blocked()
            timers.cancel(timer)
            timers.cancel(timer)
            clock.jump(2)
            await wait_all_tasks_blocked()
            assert (fired, len(timers), timers.kept) == ([], 0, 0)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(lambda: trio.run(scenario, clock=clock))


async def test_the_heap_is_bounded_by_the_live_timers_and_loses_none(autojump_clock: MockClock) -> None:
    timers, dice = Timers(), random.Random(1)
    fired: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        live = {}
        for number in range(5000):
            seconds = dice.uniform(1, 100)
            timer = timers.start(seconds, partial(fired.append, number))
            if number % 50:
                timers.cancel(timer)
            else:
                live[number] = seconds
            assert timers.kept <= 2 * len(live) + 66
        assert len(timers) == len(live) == 100
        await trio.sleep(101)
        nursery.cancel_scope.cancel()
    assert fired == sorted(live, key=live.__getitem__)


class Steps(trio.abc.Instrument):
    """Counts the turns of each task."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of[task.name] += 1


async def test_cancelled_timers_wake_nobody(autojump_clock: MockClock) -> None:
    timers, fired, steps = Timers(), list[float](), Steps()
    trio.lowlevel.add_instrument(steps)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run, name="timers")
        await wait_all_tasks_blocked()
        soon = [timers.start(1 + n / 100, lambda: fired.append(-1.0)) for n in range(100)]
        timers.start(3, lambda: fired.append(trio.current_time()))
        for timer in soon:
            timers.cancel(timer)
        steps.of.clear()
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(steps)
    assert fired == [3.0]
    assert steps.of["timers"] <= 4, "one for the deadline that it knew of, one for the timer that fires, and its end"
