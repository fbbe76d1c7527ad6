"""What we believe about trio, executable: an upgrade that changes one of these says so here."""

# ruff: noqa: PT012 - what is raised comes out of a whole `async with`

from contextvars import ContextVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked


async def test_in_one_nursery_one_bug_cancels_all() -> None:
    """Hence a crash boundary for each independent thing."""
    cancelled = []

    async def innocent() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append("innocent")

    async def bug() -> None:
        raise ValueError("bug")

    with pytest.raises(ExceptionGroup):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(innocent)
            await wait_all_tasks_blocked()
            nursery.start_soon(bug)
    assert cancelled == ["innocent"]


async def test_except_exception_misses_a_bug_in_a_group_with_a_cancellation() -> None:
    """Hence the boundary splits groups."""
    caught = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            mixed = BaseExceptionGroup("mixed", [cancelled, ValueError("bug")])
    with pytest.raises(BaseExceptionGroup):
        try:
            raise mixed
        except Exception as error:
            caught.append(error)
    assert caught == []


async def test_an_unshielded_await_in_finally_never_happens_when_cancelled() -> None:
    """Hence synchronous clean-up, or a shield with a deadline."""
    said = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        finally:
            await trio.lowlevel.checkpoint()
            said.append("good-bye")
    assert said == []


async def test_closing_a_channel_drops_what_is_queued_in_it() -> None:
    """Hence a mailbox of our own, which revokes what is queued and fails the callers."""
    send, receive = trio.open_memory_channel[str](2)
    await send.send("a call")
    receive.close()
    with pytest.raises(trio.BrokenResourceError):
        await send.send("another")
    assert send.statistics().current_buffer_used in (0, 1)
    with pytest.raises(trio.ClosedResourceError):
        receive.receive_nowait()


async def test_except_oserror_round_a_nursery_never_matches() -> None:
    """Hence errors are caught inside the child, where they are raised."""

    async def fail() -> None:
        raise OSError("connection")

    with pytest.raises(ExceptionGroup) as raised:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
        except OSError:
            pytest.fail("it matched")
    assert raised.group_contains(OSError)


async def test_a_task_inherits_the_context_of_its_spawn() -> None:
    """Hence tasks are spawned from the dispatcher, whose context is nobody's."""
    trace = ContextVar("trace", default="none")
    seen = []

    async def child() -> None:
        seen.append(trace.get())

    trace.set("first request")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
    assert seen == ["first request"]


async def test_a_rescheduled_task_is_not_cancelled_any_more() -> None:
    """Hence an answered call returns its answer, whatever is cancelled after it."""
    results = []

    async def wait(scope: trio.CancelScope) -> None:
        with scope:
            tasks.append(trio.lowlevel.current_task())
            await trio.lowlevel.wait_task_rescheduled(lambda _: pytest.fail("aborted"))
            results.append("rescheduled")

    tasks: list[trio.lowlevel.Task] = []
    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, scope)
        await wait_all_tasks_blocked()
        trio.lowlevel.reschedule(tasks[0])
        scope.cancel()
    assert results == ["rescheduled"]


async def test_cancelling_a_scope_runs_the_abort_functions_at_once() -> None:
    """Hence `on_abandon` runs inside the turn of whoever cancelled."""
    aborted = []

    def abort(_: object) -> trio.lowlevel.Abort:
        aborted.append("abort")
        return trio.lowlevel.Abort.SUCCEEDED

    async def wait() -> None:
        with scope:
            await trio.lowlevel.wait_task_rescheduled(abort)

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        scope.cancel()
        assert aborted == ["abort"]


async def test_the_deadline_of_a_scope_in_use_can_be_brought_forward(autojump_clock: MockClock) -> None:
    """Hence the timer task needs no waking when an earlier timer is set."""

    async def wait() -> None:
        with scope:
            await trio.sleep_forever()

    scope = trio.CancelScope(deadline=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        scope.deadline = 5
    assert trio.current_time() == 5


async def test_a_scope_cancelled_before_it_is_entered_cancels_what_enters_it() -> None:
    """Hence a task can be cancelled before its first step."""
    scope = trio.CancelScope()
    scope.cancel()
    with scope:
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_nursery_raises_several_cancellations_as_one() -> None:
    """Hence a cancelled system leaves as plain as it came."""
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(trio.sleep_forever)


async def test_the_autojump_clock_jumps_exactly_to_the_next_deadline(autojump_clock: MockClock) -> None:
    """Hence no timer is late in tests, but where a test jumps the clock itself."""
    await trio.sleep(3.25)
    assert trio.current_time() == 3.25
