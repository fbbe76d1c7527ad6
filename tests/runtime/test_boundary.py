"""The crash boundary: bugs are contained, cancellation passes, of a mixed group each half goes its way."""

import pytest
import trio

from actors.runtime import CANCELLED, NORMAL, Boundary, Exit, ExitKind, boundary, thread_boundary


class Exits(list[Exit]):
    def __call__(self, exit: Exit) -> None:
        self.append(exit)


async def fail(error: BaseException) -> None:
    raise error


async def test_a_normal_end_is_told() -> None:
    exits = Exits()
    assert await boundary(trio.sleep, 0, on_exit=exits) is NORMAL
    assert exits == [NORMAL]


@pytest.mark.parametrize(
    "error", [ValueError("x"), RecursionError(), MemoryError(), type("Odd", (BaseException,), {})()]
)
async def test_a_bug_of_any_kind_is_contained(error: BaseException) -> None:
    exits = Exits()
    reason = await boundary(fail, error, on_exit=exits)
    assert exits == [reason]
    assert reason.kind is ExitKind.CRASHED
    assert reason.error is error


async def test_an_exit_needs_no_callback() -> None:
    assert (await boundary(fail, ValueError("x"))).abnormal


async def test_a_single_bug_loses_the_groups_that_nurseries_put_on_it() -> None:
    error = OSError("x")
    reason = await boundary(fail, ExceptionGroup("outer", [ExceptionGroup("inner", [error])]))
    assert reason.error is error


async def test_several_bugs_stay_a_group() -> None:
    group = ExceptionGroup("two", [OSError(), ValueError()])
    assert (await boundary(fail, group)).error is group


async def test_cancellation_passes() -> None:
    exits = Exits()
    with trio.CancelScope() as scope:
        scope.cancel()
        await boundary(trio.sleep_forever, on_exit=exits)
    assert scope.cancelled_caught
    assert exits == [CANCELLED]


async def test_a_crash_while_being_cancelled_is_neither_lost_nor_fatal() -> None:
    """`except Exception` lets such a group through, and it ends the program."""
    exits = Exits()
    bug = KeyError("in clean-up")

    async def crash_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise bug

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash_when_cancelled)
            nursery.start_soon(trio.sleep_forever)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: boundary(both, on_exit=exits))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert [exit.error for exit in exits] == [bug]


async def test_of_a_mixed_group_only_the_cancelled_half_is_raised() -> None:
    exits = Exits()
    bug = ValueError("bug")
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            group = BaseExceptionGroup("mixed", [bug, BaseExceptionGroup("deeper", [cancelled])])
            with pytest.raises(BaseExceptionGroup) as raised:
                await boundary(fail, group, on_exit=exits)
            assert raised.group_contains(trio.Cancelled)
            assert raised.value.split(trio.Cancelled)[1] is None
    assert [exit.error for exit in exits] == [bug]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_what_is_meant_for_the_process_passes(error: BaseException) -> None:
    exits = Exits()
    with pytest.raises(type(error)):
        await boundary(fail, error, on_exit=exits)
    assert exits == [CANCELLED]


def test_the_thread_form_contains_and_tells_too() -> None:
    exits = Exits()

    def divide(by: int) -> None:
        1 / by

    assert thread_boundary(divide, 1, on_exit=exits) is NORMAL
    reason = thread_boundary(divide, 0, on_exit=exits)
    assert isinstance(reason.error, ZeroDivisionError)
    assert exits == [NORMAL, reason]


async def test_a_writer_thread_inside_the_boundary_ends_alone() -> None:
    exits = Exits()

    def write() -> None:
        raise OSError("disk")

    reason = await trio.to_thread.run_sync(lambda: thread_boundary(write, on_exit=exits))
    assert exits == [reason]


async def test_the_boundary_can_stand_round_a_body() -> None:
    with Boundary() as inside:
        await trio.lowlevel.checkpoint()
        raise ValueError("x")
    assert inside.exit.abnormal


def test_an_exit_reads_as_kind_and_cause() -> None:
    assert str(NORMAL) == "normal"
    assert str(Exit(ExitKind.CRASHED, ValueError("x"))) == "crashed: ValueError('x')"
    assert str(Exit(ExitKind.SHUTDOWN, detail="by the operator")) == "shutdown: by the operator"
