"""Dynamic supervisors: children that come and go, up to a bound."""

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from actors.runtime import (
    AlreadyStarted,
    AtCapacity,
    DynamicSupervisor,
    System,
    SystemClosed,
)


async def test_children_are_started_on_demand_and_found_by_name(system: System, recorder: Any) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions, "sessions")
    ref = sessions.start_child(recorder(), "one")
    assert system.registry.whereis("one") is ref
    assert sessions.start_child(recorder(), "two").name == "two"
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
    ref.cast(lambda self: self.ctx.stop())
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


async def test_a_child_that_crashes_ends_alone_and_is_not_started_again(
    system: System, recorder: Any, crash_message: Any
) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    ref, other = sessions.start_child(recorder(), "one"), sessions.start_child(recorder(), "two")
    ref.cast(crash_message)
    await ref.ended()
    await wait_all_tasks_blocked()
    assert sessions.children() == [other]


async def test_children_end_with_their_supervisor(system: System, recorder: Any) -> None:
    sessions = DynamicSupervisor(max_children=10)
    supervisor = system.spawn(sessions)
    good = sessions.start_child(recorder(), "good")
    await wait_all_tasks_blocked()
    supervisor.stop()
    await supervisor.ended()
    assert not good.alive
    assert len(sessions) == len(system.registry) == 0
    with pytest.raises(SystemClosed):
        sessions.start_child(recorder(), "late")


def test_at_least_one_child_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DynamicSupervisor(max_children=0)
