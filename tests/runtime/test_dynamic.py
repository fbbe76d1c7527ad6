"""Dynamic supervisors: children that come and go, each with an intensity of its own."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.runtime import (
    PASSIVATED,
    Actor,
    AlreadyStarted,
    AtCapacity,
    Child,
    DynamicSupervisor,
    Intensity,
    Restart,
    Supervisor,
    System,
    SystemClosed,
)


async def test_children_are_started_on_demand_and_found_by_name(system: System, recorder: Any) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions, "sessions")
    ref = sessions.start_child(recorder(), "one")
    assert system.registry.whereis("one") is ref
    assert system.spawn(recorder(), "two", supervisor=sessions).name == "two"
    assert sessions.start_child(recorder()).name == "Recorder-1"
    assert len(sessions) == 3


async def test_over_capacity_a_child_is_refused_and_an_end_frees_the_place_at_once(
    system: System, recorder: Any
) -> None:
    sessions = DynamicSupervisor(max_children=1)
    system.spawn(sessions)
    ref = sessions.start_child(recorder(), "one")
    with pytest.raises(AtCapacity):
        sessions.start_child(recorder(), "two")
    ref.cast(lambda self: self.ctx.stop(PASSIVATED))
    await ref.ended()
    assert sessions.start_child(recorder(), "one").alive


async def test_a_name_is_given_once(system: System, recorder: Any) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    ref = sessions.start_child(recorder(), "one")
    outside = system.spawn(recorder(), "outside")
    for name, bearer in (("one", ref), ("outside", outside)):
        with pytest.raises(AlreadyStarted) as taken:
            sessions.start_child(recorder(), name)
        assert taken.value.ref is bearer
    assert len(sessions) == 1


async def test_a_child_without_a_factory_is_temporary(system: System, recorder: Any, crash_message: Any) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    ref = sessions.start_child(recorder(), "one")
    ref.cast(crash_message)
    await ref.ended()
    await wait_all_tasks_blocked()
    assert len(sessions) == 0


async def test_a_child_with_a_factory_is_started_again_and_keeps_its_name_meanwhile(
    system: System, recorder: Any, crash_message: Any
) -> None:
    again = recorder()
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    ref = sessions.start_child(recorder(), "one", factory=lambda: again)
    taken = []

    def try_to_take(_: object) -> None:
        with pytest.raises(AlreadyStarted) as error:
            sessions.start_child(recorder(), "one")
        taken.append(error.value.ref)

    witness = system.spawn(recorder())
    await wait_all_tasks_blocked()
    ref.cast(crash_message)
    witness.cast(try_to_take)  # runs between the crash and the supervisor's turn
    await wait_all_tasks_blocked()
    assert taken == [None]
    assert again.seen == ["started"]
    assert system.registry.whereis("one") is again.ctx.ref
    assert len(sessions) == 1


@pytest.mark.parametrize("restart", [Restart.TRANSIENT, Restart.PERMANENT])
async def test_the_restart_rule_is_the_childs(system: System, recorder: Any, restart: Restart) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    ref = sessions.start_child(recorder(), "one", factory=recorder, restart=restart)
    ref.stop()
    await ref.ended()
    await wait_all_tasks_blocked()
    assert (system.registry.whereis("one") is not None) is (restart is Restart.PERMANENT)


async def test_a_child_that_crashes_too_often_is_given_up_alone(
    system: System, recorder: Any, crash_message: Any, autojump_clock: MockClock
) -> None:
    sessions = DynamicSupervisor(max_children=10, intensity=Intensity(1, 60.0))
    supervisor = system.spawn(sessions)
    names = ["bad", "good"]
    for name in names:
        sessions.start_child(recorder(), name, factory=recorder)
    for name in ["bad", "good", "bad"]:
        ref = system.registry.whereis(name)
        assert ref is not None
        ref.cast(crash_message)
        await trio.sleep(1)
    assert supervisor.alive
    assert [system.registry.whereis(name) is not None for name in names] == [False, True]
    assert len(sessions) == 1


async def test_a_factory_that_raises_is_a_crash_of_the_supervisor_which_its_own_restarts(
    system: System, recorder: Any, crash_message: Any, crashes: list[tuple[str, BaseException]]
) -> None:
    made: list[DynamicSupervisor] = []

    def factory() -> DynamicSupervisor:
        made.append(DynamicSupervisor(max_children=10))
        return made[-1]

    def broken() -> Actor:
        raise LookupError("record")

    system.spawn(Supervisor([Child("sessions", factory)]), "core")
    other = made[0].start_child(recorder(), "other")
    ref = made[0].start_child(recorder(), "one", factory=broken)
    ref.cast(crash_message)
    await wait_all_tasks_blocked()
    assert [name for name, _ in crashes] == ["one", "sessions"]
    assert not other.alive
    assert len(made) == 2
    assert made[1].start_child(recorder(), "one").alive


async def test_children_end_with_their_supervisor_also_one_that_is_being_restarted(
    system: System, recorder: Any, crash_message: Any
) -> None:
    sessions = DynamicSupervisor(max_children=10)
    supervisor = system.spawn(sessions)
    bad = sessions.start_child(recorder(), "bad", factory=recorder)
    good = sessions.start_child(recorder(), "good")
    await wait_all_tasks_blocked()
    bad.cast(crash_message)
    bad.cell.burst()
    supervisor.stop()
    await supervisor.ended()
    assert not good.alive
    assert len(sessions) == len(system.registry) == 0
    with pytest.raises(SystemClosed):
        sessions.start_child(recorder(), "late")


def test_at_least_one_child_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DynamicSupervisor(max_children=0)
