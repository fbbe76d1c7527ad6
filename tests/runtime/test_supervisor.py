"""Supervisors: what is restarted, with whom, how often, and what happens when that is too often."""

# ruff: noqa: PT012 - SystemFailed comes out of the whole `async with`

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.runtime import (
    NORMAL,
    SHUTDOWN,
    Actor,
    ActorDown,
    Child,
    Exit,
    Ref,
    Supervisor,
    System,
    SystemFailed,
    crashed,
    open_system,
)

CRASH = crashed(ValueError("x"))


class Part(Actor):
    """A child that writes down its life in a list shared by all, and ends as it is told."""

    def __init__(self, life: list[str]) -> None:
        self.life = life

    def started(self) -> None:
        self.life.append(f"+{self.ctx.name}")

    def receive(self, message: Any) -> None:
        if isinstance(message, Exit) and message.error is not None:
            raise message.error
        self.ctx.stop(message)

    def stopped(self, reason: Exit) -> None:
        self.life.append(f"-{self.ctx.name}")


@pytest.fixture
def life() -> list[str]:
    return []


@pytest.fixture
def where(system: System) -> Callable[[str], Ref]:
    def whereis(name: str) -> Ref:
        ref = system.registry.whereis(name)
        assert ref is not None, name
        return ref

    return whereis


def parts(life: list[str], names: str) -> list[Child]:
    return [Child(name, lambda: Part(life)) for name in names]


async def test_children_are_there_when_the_spawn_of_their_supervisor_returns_and_start_in_order(
    system: System, life: list[str]
) -> None:
    system.spawn(Supervisor(parts(life, "abc")), "core")
    assert all(system.registry.whereis(name) for name in ("core", "a", "b", "c"))
    await wait_all_tasks_blocked()
    assert life == ["+a", "+b", "+c"]


async def test_children_end_in_the_opposite_order(system: System, life: list[str]) -> None:
    ref = system.spawn(Supervisor(parts(life, "abc")), "core")
    await wait_all_tasks_blocked()
    life.clear()
    ref.stop()
    await ref.ended()
    assert life == ["-c", "-b", "-a"]
    assert len(system.registry) == 0


async def test_one_for_one_restarts_only_who_ended(system: System, life: list[str], where: Any) -> None:
    system.spawn(Supervisor(parts(life, "abc")), "core")
    await wait_all_tasks_blocked()
    life.clear()
    before = where("b")
    before.cast(CRASH)
    await wait_all_tasks_blocked()
    assert life == ["-b", "+b"]
    assert where("b") is not before


async def test_two_crashes_at_once_restart_each_child_once(system: System, life: list[str], where: Any) -> None:
    system.spawn(Supervisor(parts(life, "abc")), "core")
    await wait_all_tasks_blocked()
    life.clear()
    where("a").cast(CRASH)
    where("c").cast(CRASH)
    await wait_all_tasks_blocked()
    assert sorted(life) == ["+a", "+c", "-a", "-c"]
    assert [where(name).alive for name in "abc"] == [True] * 3


@pytest.mark.parametrize("reason", [NORMAL, SHUTDOWN, CRASH], ids=lambda reason: reason.kind.value)
async def test_a_child_is_started_again_whatever_ended_it(
    system: System, life: list[str], where: Any, reason: Exit
) -> None:
    system.spawn(Supervisor(parts(life, "a")), "core")
    where("a").cast(reason)
    await wait_all_tasks_blocked()
    assert life == ["+a", "-a", "+a"]
    assert where("a").alive


async def crash_often(where: Any, name: str, times: int, pause: float = 0.0) -> None:
    for _ in range(times):
        where(name).cast(CRASH)
        await wait_all_tasks_blocked()
        await trio.sleep(pause)


async def test_restarts_within_the_intensity_go_on_for_ever(
    system: System, life: list[str], where: Any, autojump_clock: MockClock
) -> None:
    ref = system.spawn(Supervisor(parts(life, "a")), "core")
    await crash_often(where, "a", 20, pause=1.7)
    assert ref.alive


async def test_over_intensity_a_supervisor_ends_with_its_children_and_the_reason(
    life: list[str], autojump_clock: MockClock
) -> None:
    names: list[str] = []
    with pytest.raises(SystemFailed) as failed:
        async with open_system(on_crash=lambda name, error: names.append(name)) as system:
            system.spawn(Supervisor(parts(life, "ab")), "core")
            await wait_all_tasks_blocked()
            while True:
                ref = system.registry.whereis("a")
                assert ref is not None
                ref.cast(CRASH)
                await trio.sleep(0.1)
    assert (failed.value.name, failed.value.reason.error) == ("core", CRASH.error)
    assert failed.value.__cause__ is CRASH.error
    assert str(failed.value) == "core gave up (crashed: ValueError('x'))"
    assert names == ["a", "a", "a", "a", "core"]
    assert life.count("+a") == 4
    assert life[-1] == "-b"


async def test_a_supervisor_under_a_supervisor_is_restarted_with_all_its_children(
    system: System, life: list[str], where: Any, autojump_clock: MockClock
) -> None:
    core = Supervisor(
        [
            Child("inner", lambda: Supervisor(parts(life, "ab"))),
            *parts(life, "c"),
        ]
    )
    ref = system.spawn(core, "core")
    await crash_often(where, "a", 3)
    first = where("inner")
    await crash_often(where, "a", 1)
    assert where("inner") is not first
    assert [where(name).alive for name in "abc"] == [True] * 3
    assert life.count("+b") == 2
    assert life.count("+c") == 1
    assert ref.alive


async def test_a_child_that_crashes_at_its_start_counts_like_any_crash(autojump_clock: MockClock) -> None:
    class Unlucky(Actor):
        def started(self) -> None:
            raise OSError("port in use")

    with pytest.raises(SystemFailed) as failed:
        async with open_system() as system:
            system.spawn(Supervisor([Child("unlucky", Unlucky)]))
            await trio.sleep_forever()
    assert isinstance(failed.value.reason.error, OSError)


async def test_a_factory_that_raises_ends_the_supervisor_and_at_the_top_the_system(life: list[str]) -> None:
    def broken() -> Actor:
        raise LookupError("config")

    with pytest.raises(SystemFailed) as failed:
        async with open_system() as system:
            system.spawn(Supervisor([*parts(life, "a"), Child("broken", broken)]))
            assert len(system.registry) == 0
            await trio.sleep_forever()
    assert isinstance(failed.value.reason.error, LookupError)
    assert life == []


async def test_an_inner_supervisor_that_cannot_start_its_children_is_its_parents_business(
    autojump_clock: MockClock,
) -> None:
    tries = []

    def broken() -> Actor:
        tries.append(1)
        raise LookupError("config")

    with pytest.raises(SystemFailed):
        async with open_system() as system:
            system.spawn(Supervisor([Child("inner", lambda: Supervisor([Child("broken", broken)]))]))
            await trio.sleep_forever()
    assert len(tries) == 4


async def test_callers_of_a_crashed_child_are_told_and_the_next_call_finds_the_new_one(
    system: System, life: list[str], where: Any
) -> None:
    system.spawn(Supervisor(parts(life, "a")), "core")
    with pytest.raises(ActorDown):
        await where("a").call(lambda reply: CRASH)
    await wait_all_tasks_blocked()
    assert where("a").alive


def test_two_children_with_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="one name"):
        Supervisor(parts([], "aa"))
