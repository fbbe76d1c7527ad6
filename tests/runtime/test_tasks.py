"""Tasks of actors, and monitors."""

from contextvars import ContextVar
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.runtime import (
    CANCELLED,
    NORMAL,
    SHUTDOWN,
    Down,
    ExitKind,
    System,
    TaskEnded,
)


async def test_a_task_does_io_and_its_end_arrives_as_a_message(
    system: System, recorder: Any, autojump_clock: MockClock
) -> None:
    actor = recorder()
    ref = system.spawn(actor)

    async def fetch(seconds: float) -> None:
        await trio.sleep(seconds)
        ref.reply("fetched")

    ref.cast(lambda self: self.ctx.start_task("fetch", fetch, 2.0))
    await trio.sleep(3)
    fetched, ended = actor.messages
    assert fetched == "fetched"
    assert isinstance(ended, TaskEnded)
    assert (ended.name, ended.reason) == ("fetch", NORMAL)
    assert repr(ended.task) == "<Task fetch>"


async def test_a_crash_of_a_task_is_told_to_its_actor_which_lives(
    system: System, recorder: Any, crashes: list[tuple[str, BaseException]]
) -> None:
    async def crash() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise OSError("connection")

    actor = recorder()
    ref = system.spawn(actor, "link")
    ref.cast(lambda self: self.ctx.start_task("io", crash))
    await wait_all_tasks_blocked()
    (ended,) = actor.messages
    assert ended.reason.kind is ExitKind.CRASHED
    assert isinstance(ended.reason.error, OSError)
    assert ref.alive
    assert [(name, type(error)) for name, error in crashes] == [("link/io", OSError)]


async def test_what_is_no_coroutine_function_crashes_the_task_and_not_the_actor(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    ref.cast(lambda self: self.ctx.start_task("io", lambda: 1))
    await wait_all_tasks_blocked()
    assert isinstance(actor.messages[0].reason.error, TypeError)
    assert ref.alive


async def test_a_cancelled_task_cleans_up_and_then_its_end_arrives(system: System, recorder: Any) -> None:
    async def io() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ref.reply("cleaned up")

    actor, tasks = recorder(), []
    ref = system.spawn(actor)
    ref.cast(lambda self: tasks.append(self.ctx.start_task("io", io)))
    await wait_all_tasks_blocked()
    tasks[0].cancel()
    await wait_all_tasks_blocked()
    assert actor.messages == ["cleaned up", TaskEnded("io", CANCELLED, tasks[0])]


async def test_a_task_that_crashes_while_being_cancelled_loses_nothing(
    system: System, recorder: Any, crashes: list[tuple[str, BaseException]]
) -> None:
    async def io() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("clean-up")

    actor, tasks = recorder(), []
    ref = system.spawn(actor, "link")
    ref.cast(lambda self: tasks.append(self.ctx.start_task("io", io)))
    await wait_all_tasks_blocked()
    tasks[0].cancel()
    await wait_all_tasks_blocked()
    assert isinstance(actor.messages[0].reason.error, KeyError)
    assert ref.alive
    assert [name for name, _ in crashes] == ["link/io"]


async def test_tasks_are_cancelled_when_their_actor_ends(system: System, recorder: Any, crash_message: Any) -> None:
    ended = []

    async def io() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("io")

    ref = system.spawn(recorder())
    ref.cast(lambda self: self.ctx.start_task("io", io))
    await wait_all_tasks_blocked()
    ref.cast(crash_message)
    await ref.ended()
    await wait_all_tasks_blocked()
    assert ended == ["io"]


async def test_a_task_started_by_an_actor_that_has_ended_is_cancelled_at_once(system: System, recorder: Any) -> None:
    ran = []

    async def io() -> None:
        await trio.lowlevel.checkpoint()
        ran.append("io")

    actor = recorder()
    ref = system.spawn(actor)
    await wait_all_tasks_blocked()
    ref.stop()
    await ref.ended()
    actor.ctx.start_task("io", io)
    await wait_all_tasks_blocked()
    assert ran == []


async def test_a_task_does_not_inherit_the_context_of_who_sent_the_message(system: System, recorder: Any) -> None:
    """Else the first request's trace id would stick to the actor's IO for life."""
    trace = ContextVar("trace", default="none")
    seen = []

    async def io() -> None:
        seen.append(trace.get())

    ref = system.spawn(recorder())
    trace.set("first request")
    ref.cast(lambda self: self.ctx.start_task("io", io))
    await wait_all_tasks_blocked()
    assert seen == ["none"]


async def test_a_monitor_is_told_once_after_all_that_the_actor_sent_before(
    system: System, recorder: Any, crash_message: Any
) -> None:
    watcher, watched = recorder(), recorder()
    watcher_ref, ref = system.spawn(watcher), system.spawn(watched, "watched")
    watcher_ref.cast(lambda self: self.ctx.monitor(ref))
    watcher_ref.cast(lambda self: self.ctx.monitor(ref))
    await wait_all_tasks_blocked()
    ref.cast(lambda _: watcher_ref.reply("last words"))
    ref.cast(crash_message)
    reason = await ref.ended()
    await wait_all_tasks_blocked()
    assert watcher.messages == ["last words", Down(ref, reason)]
    assert watcher_ref.cell.monitors == {}


async def test_the_monitor_of_an_actor_that_is_gone_already_is_told_at_once(system: System, recorder: Any) -> None:
    watcher, ref = recorder(), system.spawn(recorder())
    watcher_ref = system.spawn(watcher)
    ref.stop()
    await ref.ended()
    watcher_ref.cast(lambda self: self.ctx.monitor(ref))
    await wait_all_tasks_blocked()
    assert watcher.messages == [Down(ref, SHUTDOWN)]


async def test_demonitor_ends_the_interest_even_if_the_message_waits_already(system: System, recorder: Any) -> None:
    watcher = recorder()
    refs = [system.spawn(recorder()) for _ in range(2)]
    watcher_ref = system.spawn(watcher)
    watcher_ref.cast(lambda self: [self.ctx.monitor(ref) for ref in refs])
    watcher_ref.cast(lambda self: self.ctx.demonitor(refs[0]))
    await wait_all_tasks_blocked()

    def end_both(self: Any) -> None:
        for ref in refs:
            ref.cell.end(SHUTDOWN)
        self.ctx.demonitor(refs[1])
        self.ctx.demonitor(refs[1])

    watcher_ref.cast(end_both)
    await wait_all_tasks_blocked()
    assert watcher.messages == []


async def test_monitors_end_with_the_watcher_and_a_dead_watcher_sets_none(system: System, recorder: Any) -> None:
    watcher = recorder()
    one, other = system.spawn(recorder()), system.spawn(recorder())
    watcher_ref = system.spawn(watcher)
    watcher_ref.cast(lambda self: [self.ctx.monitor(ref) for ref in (one, other)])
    await wait_all_tasks_blocked()
    watcher_ref.stop()
    await watcher_ref.ended()
    watcher.ctx.monitor(one)
    for ref in (one, other):
        ref.stop()
        await ref.ended()
    await wait_all_tasks_blocked()
    assert watcher.messages == []


async def test_two_watchers_of_one_actor_are_told_apart(system: System, recorder: Any) -> None:
    watchers = [recorder(), recorder()]
    ref = system.spawn(recorder())
    for watcher in watchers:
        system.spawn(watcher).cast(lambda self: self.ctx.monitor(ref))
    await wait_all_tasks_blocked()
    watchers[0].ctx.demonitor(ref)
    ref.stop()
    await ref.ended()
    await wait_all_tasks_blocked()
    assert [watcher.messages for watcher in watchers] == [[], [Down(ref, SHUTDOWN)]]
