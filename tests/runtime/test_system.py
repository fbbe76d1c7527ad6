"""A system as a whole: how it ends, how it drains."""

# ruff: noqa: PT012 - what is raised comes out of the whole `async with`

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import actors.runtime
from actors.runtime import (
    SHUTDOWN,
    Actor,
    ActorDown,
    AtCapacity,
    Child,
    DynamicSupervisor,
    Exit,
    Supervisor,
    System,
    SystemClosed,
    SystemFailed,
    open_system,
)
from tests.support.cancel import cancel_everywhere


class Worker(Actor):
    """Takes `work` seconds to drain; None never ends by itself."""

    def __init__(self, diary: list[tuple[str, float]], work: float | None = 0.0) -> None:
        self.diary = diary
        self.work = work

    def drain(self, deadline: float) -> None:
        self.note("drain")
        if self.work is not None:
            self.ctx.set_timer("done", self.work, "done")

    def receive(self, message: Any) -> None:
        self.ctx.stop()

    def stopped(self, reason: Exit) -> None:
        self.note(reason.kind.value)

    def note(self, what: str) -> None:
        self.diary.append((f"{self.ctx.name} {what}", self.ctx.now()))


@pytest.fixture
def diary() -> list[tuple[str, float]]:
    return []


async def test_when_the_body_ends_all_actors_end_and_their_tasks_are_cancelled(recorder: Any) -> None:
    ended: list[str] = []

    async def io() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("task")

    actor = recorder()
    async with open_system() as system:
        ref = system.spawn(actor)
        ref.cast(lambda self: self.ctx.start_task("io", io))
        await wait_all_tasks_blocked()
    assert (ref.reason, actor.reasons, ended) == (SHUTDOWN, [SHUTDOWN], ["task"])
    with pytest.raises(SystemClosed):
        system.spawn(recorder())


async def test_who_calls_when_the_system_ends_is_told(recorder: Any) -> None:
    outcomes: list[Any] = []

    async def call(ref: Any) -> None:
        try:
            await ref.call(lambda reply: "never answered")
        except ActorDown as down:
            outcomes.append(down.reason)

    async with trio.open_nursery() as nursery, open_system() as system:
        nursery.start_soon(call, system.spawn(recorder()))
        await wait_all_tasks_blocked()
    assert outcomes == [SHUTDOWN]


async def test_an_error_of_the_body_comes_out_as_it_is(recorder: Any) -> None:
    with pytest.raises(LookupError):
        async with open_system() as system:
            ref = system.spawn(recorder())
            raise LookupError("x")
    assert ref.reason is SHUTDOWN


async def test_a_cancelled_body_ends_the_system(recorder: Any) -> None:
    with trio.CancelScope() as scope:
        async with open_system() as system:
            ref = system.spawn(recorder())
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert ref.reason is SHUTDOWN


async def test_an_interrupt_in_a_hook_ends_the_process_not_only_the_actor(recorder: Any) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with open_system() as system:
            ref, other = system.spawn(recorder()), system.spawn(recorder())
            ref.cast(interrupt)
            await trio.sleep_forever()
    assert not ref.alive
    assert other.reason is SHUTDOWN


async def test_actors_end_in_the_opposite_order_of_their_start(diary: list[tuple[str, float]]) -> None:
    async with open_system() as system:
        for name in ("store", "backends", "sessions"):
            system.spawn(Worker(diary), name)
        await wait_all_tasks_blocked()
    assert [what for what, _ in diary] == ["sessions shutdown", "backends shutdown", "store shutdown"]


async def test_a_crash_callback_that_raises_harms_nobody(
    recorder: Any, crash_message: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_crash(name: str, error: BaseException) -> None:
        raise OSError("log disk full")

    async with open_system(on_crash=on_crash) as system:
        bad, good = system.spawn(recorder()), system.spawn(recorder())
        bad.cast(crash_message)
        await bad.ended()
        await wait_all_tasks_blocked()
        assert good.alive
    assert "log disk full" in capsys.readouterr().err


async def test_without_a_callback_crashes_are_printed(
    recorder: Any, crash_message: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_system() as system:
        ref = system.spawn(recorder())
        ref.cast(crash_message)
        await ref.ended()
    printed = capsys.readouterr().err
    assert printed.startswith(f"{ref.name} crashed\n")
    assert "ZeroDivisionError: told to" in printed


async def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(actors.runtime.__file__).with_name("README.md").read_text(encoding="utf-8")
    example = readme.split("```python\n")[1].split("```")[0]
    names = dict(vars(actors.runtime))
    exec(example, names)
    await names["main"]()
    assert capsys.readouterr().out == "1\n"


async def test_an_exception_that_cannot_even_be_printed_ends_one_actor_only(recorder: Any) -> None:
    class UnprintableError(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

    def crash(_: object) -> None:
        raise UnprintableError

    async with open_system() as system:
        bad, good = system.spawn(recorder()), system.spawn(recorder())
        bad.cast(crash)
        with pytest.raises(ActorDown):
            await bad.call(lambda reply: reply)
        assert good.alive


async def test_the_crash_of_a_plain_actor_at_the_top_ends_nothing_else(
    system: System, recorder: Any, crash_message: Any
) -> None:
    ref = system.spawn(recorder())
    ref.cast(crash_message)
    await ref.ended()
    assert system.failure is None


async def test_a_supervisor_at_the_top_that_is_told_to_end_ends_no_system(system: System) -> None:
    ref = system.spawn(Supervisor([]))
    ref.stop()
    await ref.ended()
    await trio.lowlevel.checkpoint()
    assert system.failure is None


async def test_a_failed_system_says_so_even_if_its_body_fails_in_its_own_clean_up() -> None:
    def broken() -> Actor:
        raise LookupError("config")

    with pytest.raises(SystemFailed):
        async with open_system() as system:
            system.spawn(Supervisor([Child("broken", broken)]))
            system.spawn(Supervisor([Child("broken", broken)]))
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("clean-up")


async def test_draining_lets_each_actor_finish_dependants_first(
    system: System, diary: list[tuple[str, float]], autojump_clock: MockClock
) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(
        Supervisor(
            [
                Child("store", lambda: Worker(diary, 1.0)),
                Child("backends", lambda: Worker(diary, 1.0)),
                Child("sessions", lambda: sessions),
            ]
        ),
        "core",
    )
    sessions.start_child(Worker(diary, 3.0), "slow")
    sessions.start_child(Worker(diary, 0.5), "quick")
    await system.drain(30)
    assert diary == [
        ("slow drain", 0.0),
        ("quick drain", 0.0),
        ("quick normal", 0.5),
        ("slow normal", 3.0),
        ("backends drain", 3.0),
        ("backends normal", 4.0),
        ("store drain", 4.0),
        ("store normal", 5.0),
    ]
    assert len(system.registry) == 0
    with pytest.raises(SystemClosed):
        system.spawn(Actor())


async def test_who_has_not_finished_at_the_deadline_is_ended(
    system: System, diary: list[tuple[str, float]], autojump_clock: MockClock
) -> None:
    system.spawn(Worker(diary, 1.0), "first")
    system.spawn(Worker(diary, None), "stuck")
    await system.drain(10)
    assert diary == [("stuck drain", 0.0), ("stuck shutdown", 10.0), ("first shutdown", 10.0)]


async def test_an_actor_that_has_nothing_to_finish_ends_at_once_when_draining(
    system: System, recorder: Any, autojump_clock: MockClock
) -> None:
    actor = recorder()
    system.spawn(actor)
    await system.drain(10)
    assert actor.reasons == [SHUTDOWN]
    assert trio.current_time() == 0.0


async def test_a_message_during_a_drain_is_not_behind_all_who_drain(
    system: System, diary: list[tuple[str, float]], autojump_clock: MockClock
) -> None:
    class Other(Actor):
        def receive(self, message: Any) -> None:
            diary.append(("other", self.ctx.now()))

    other, many = system.spawn(Other(), "other"), DynamicSupervisor(1000)
    system.spawn(many, "many")
    for _ in range(1000):
        many.start_child(Worker(diary))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.drain, 10)
        while not diary:
            await trio.lowlevel.checkpoint()
        other.cast("a message")
    assert [what for what, _ in diary].index("other") < 500


async def test_nor_does_it_wait_where_the_process_is_slow(
    system: System, diary: list[tuple[str, float]], mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who drain have work for half of the time there is."""
    monkeypatch.setattr("actors.runtime.dispatcher.TURN_BURSTS", 4)

    class Busy(Worker):
        def drain(self, deadline: float) -> None:
            mock_clock.jump(0.01)
            super().drain(deadline)

    class Other(Actor):
        mailbox_size = 2000

        def receive(self, sent: float) -> None:
            diary.append(("other", self.ctx.now() - sent))

    other, many = system.spawn(Other(), "other"), DynamicSupervisor(500)
    system.spawn(many, "many")
    for _ in range(500):
        many.start_child(Busy(diary))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.drain, 10)
        for _ in range(2000):
            other.cast(trio.current_time())
            await trio.lowlevel.checkpoint()
        mock_clock.jump(10)
    assert sum(what.endswith(" drain") for what, _ in diary) == 500
    assert max(waited for what, waited in diary if what == "other") < 0.5


async def test_a_crash_while_draining_is_not_restarted(
    system: System, diary: list[tuple[str, float]], autojump_clock: MockClock
) -> None:
    class Clumsy(Worker):
        def drain(self, deadline: float) -> None:
            raise ZeroDivisionError

    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    system.spawn(Supervisor([Child("static", lambda: Clumsy(diary))]))
    sessions.start_child(Clumsy(diary), "dynamic")
    await system.drain(10)
    assert [what for what, _ in diary] == ["static crashed", "dynamic crashed"]
    assert trio.current_time() == 0.0
    assert len(system.registry) == 0


async def test_a_draining_supervisor_starts_nothing_and_restarts_nobody(
    system: System, diary: list[tuple[str, float]], recorder: Any, crash_message: Any, autojump_clock: MockClock
) -> None:
    sessions = DynamicSupervisor(max_children=10)
    system.spawn(sessions)
    sessions.start_child(Worker(diary, 1.0), "slow")
    part = [Child("crashing", recorder)]
    system.spawn(Supervisor(part))
    crashing = system.registry.whereis("crashing")
    assert crashing is not None
    await wait_all_tasks_blocked()
    refused: list[str] = []

    async def try_to_start() -> None:
        await trio.sleep(0.5)
        try:
            sessions.start_child(Worker(diary))
        except (SystemClosed, AtCapacity) as error:
            refused.append(type(error).__name__)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(try_to_start)
        crashing.cast(crash_message)
        crashing.cell.burst()  # its restart is under way when the drain begins
        await system.drain(10)
    assert refused == ["SystemClosed"]
    assert len(system.registry) == 0


async def test_a_static_child_that_has_ended_is_no_part_of_the_drain(
    system: System, diary: list[tuple[str, float]], autojump_clock: MockClock
) -> None:
    system.spawn(Supervisor([Child(name, lambda: Worker(diary)) for name in "ab"]))
    await wait_all_tasks_blocked()
    ref = system.registry.whereis("a")
    assert ref is not None
    ref.cell.end(SHUTDOWN)  # its restart is under way when the drain begins
    await system.drain(10)
    assert [what for what, _ in diary] == ["a shutdown", "b drain", "b normal"]


async def test_a_drain_waits_for_actors_that_are_just_being_started(
    system: System, diary: list[tuple[str, float]], autojump_clock: MockClock
) -> None:
    system.spawn(Worker(diary, 1.0), "late")
    await system.drain(10)
    assert diary == [("late drain", 0.0), ("late normal", 1.0)]


async def test_statistics_count_what_there_is(system: System, recorder: Any) -> None:
    system.spawn(recorder()).cast(lambda self: self.ctx.set_timer("k", 100, "later"))
    assert (system.statistics().actors, system.statistics().ready) == (1, 1)
    await wait_all_tasks_blocked()
    statistics = system.statistics()
    assert (statistics.actors, statistics.ready, statistics.timers) == (1, 0, 1)


def test_a_whole_system_can_be_cancelled_at_every_checkpoint() -> None:
    """Calls, tasks, timers, a restart and a drain under way: whenever it is cancelled, all has ended after it."""

    class Busy(Actor):
        def started(self) -> None:
            self.ctx.set_timer("tick", 0.1, "tick")
            self.ctx.start_task("io", self.io)

        async def io(self) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 0.3)
                await trio.sleep(0.2)

        def receive(self, message: Any) -> None:
            match message:
                case "crash":
                    raise ZeroDivisionError
                case "tick":
                    self.ctx.set_timer("tick", 0.1, "tick")
                case (reply, value):
                    reply.answer(value)

        def drain(self, deadline: float) -> None:
            self.ctx.set_timer("tick", 0.1, "tick")
            self.ctx.stop()

    systems: list[System] = []

    async def scenario(scope: trio.CancelScope) -> None:
        with scope:
            async with open_system() as system:
                systems.append(system)
                system.spawn(Supervisor([Child("a", Busy), Child("b", Busy)]), "core")
                ref = system.registry.whereis("a")
                assert ref is not None
                assert await ref.call(lambda reply: (reply, 1)) == 1
                ref.cast("crash")
                await trio.sleep(0.5)
                await system.drain(5)
        assert len(systems[-1].registry) == len(systems[-1].timers) == 0
        assert systems[-1].failure is None

    assert len(cancel_everywhere(scenario)) > 30
