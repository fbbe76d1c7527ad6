"""The life of one actor: hooks, order, turns, its end."""

import gc
import weakref
from typing import Any

import pytest
import trio

from actors.runtime import NORMAL, SHUTDOWN, Actor, ActorDown, AlreadyStarted, ExitKind, System
from actors.runtime.cell import BURST_MESSAGES
from actors.runtime.dispatcher import TURN_BURSTS
from tests.support.garbage import uncollected

settled = trio.testing.wait_all_tasks_blocked


async def test_started_runs_before_the_first_message_and_stopped_after_the_last(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    assert ref.cast("one")
    assert ref.cast("two")
    ref.cast(lambda self: self.ctx.stop())
    ref.cast("never received")
    assert await ref.ended() is NORMAL
    assert actor.seen == ["started", "one", "two"]
    assert actor.reasons == [NORMAL]


async def test_spawn_runs_no_hook_by_itself(system: System, recorder: Any) -> None:
    actor = recorder()
    system.spawn(actor)
    assert actor.seen == []
    await settled()
    assert actor.seen == ["started"]


async def test_messages_of_one_sender_arrive_in_order_whatever_places_they_take(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    for number in range(100):
        assert (ref.reply if number % 3 else ref.cast)(number)
    await settled()
    assert actor.messages == list(range(100))


async def test_urgent_messages_are_read_first(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    ref.cast("work")
    ref.urgent("end")
    await settled()
    assert actor.messages == ["end", "work"]


async def test_new_work_is_refused_when_the_mailbox_is_full_but_replies_are_not(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    accepted = [ref.cast(number) for number in range(actor.mailbox_size + 1)]
    assert accepted == [True] * actor.mailbox_size + [False]
    assert ref.reply("answer")
    statistics = ref.statistics()
    assert (statistics.ordinary, statistics.reserved, statistics.refused) == (256, 1, 1)
    await settled()
    assert actor.messages == [*range(256), "answer"]
    assert ref.cast("again")


async def test_a_dead_actor_takes_nothing(system: System, recorder: Any) -> None:
    ref = system.spawn(recorder())
    ref.stop()
    assert ref.alive
    assert await ref.ended() is SHUTDOWN
    assert not ref.alive
    assert ref.reason is SHUTDOWN
    assert [ref.cast(1), ref.reply(1), ref.urgent(1), ref.stop()] == [False] * 4
    assert await ref.ended() is SHUTDOWN


async def test_several_may_wait_for_the_end_of_an_actor(system: System, recorder: Any) -> None:
    ref, reasons = system.spawn(recorder()), []

    async def wait() -> None:
        reasons.append(await ref.ended())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await settled()
        ref.stop()
    assert reasons == [SHUTDOWN, SHUTDOWN]


async def test_stop_ends_the_actor_before_its_next_message(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    await settled()
    ref.cast("queued")
    ref.stop()
    await ref.ended()
    assert actor.messages == []
    assert actor.reasons == [SHUTDOWN]


async def test_the_first_reason_to_stop_holds_but_a_crash_is_said(
    system: System, recorder: Any, crash_message: Any
) -> None:
    def stop_twice_and_crash(self: Any) -> None:
        stop_twice(self)
        crash_message(self)

    def stop_twice(self: Any) -> None:
        self.ctx.stop()
        self.ctx.stop(SHUTDOWN)

    refs = [system.spawn(recorder()) for _ in range(2)]
    refs[0].cast(stop_twice)
    refs[1].cast(stop_twice_and_crash)
    assert [(await ref.ended()).kind for ref in refs] == [ExitKind.NORMAL, ExitKind.CRASHED]


async def test_an_actor_ended_before_its_first_turn_has_no_hook_called(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    ref.stop()
    await ref.ended()
    assert actor.seen == []
    assert actor.reasons == []


async def test_a_turn_is_limited_in_messages_so_that_others_have_theirs(
    system: System, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.cell.perf_counter", lambda: 0.0)
    order: list[str] = []
    busy, other = system.spawn(recorder(), "busy"), system.spawn(recorder(), "other")
    await settled()
    for _ in range(BURST_MESSAGES * 2):
        busy.cast(lambda self: order.append("busy"))
    other.cast(lambda self: order.append("other"))
    await settled()
    assert order.index("other") == BURST_MESSAGES
    assert len(order) == BURST_MESSAGES * 2 + 1


async def test_a_turn_is_limited_in_time_too(system: System, recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    busy, other = system.spawn(recorder(), "busy"), system.spawn(recorder(), "other")
    await settled()
    clock = iter(range(1_000_000))
    monkeypatch.setattr("actors.runtime.cell.perf_counter", lambda: float(next(clock)))
    busy.cast(lambda self: order.append("busy"))
    busy.cast(lambda self: order.append("busy"))
    other.cast(lambda self: order.append("other"))
    await settled()
    assert order == ["busy", "other", "busy"]


async def test_actors_that_keep_each_other_busy_leave_the_loop_to_others(system: System) -> None:
    class Rally(Actor):
        def receive(self, message: Any) -> None:
            message.cast(self.ctx.ref)

    one, two = system.spawn(Rally()), system.spawn(Rally())
    one.cast(two)
    for _ in range(10):
        await trio.lowlevel.checkpoint()  # would not return if the dispatcher kept the loop
    one.stop()
    two.stop()


async def test_the_dispatcher_gives_the_loop_back_in_the_middle_of_a_long_queue(
    system: System, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []
    refs = [system.spawn(recorder()) for _ in range(3)]
    await settled()
    clock = iter(range(1_000_000))
    monkeypatch.setattr("actors.runtime.dispatcher.perf_counter", lambda: float(next(clock)))

    async def other_task() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            order.append("task")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_task)
        for ref in refs:
            ref.cast(lambda self: order.append("actor"))
    await settled()
    assert order.count("actor") == 3
    assert order != ["actor"] * 3 + ["task"] * 3


async def test_the_dispatcher_gives_the_loop_back_after_so_many_turns(system: System, recorder: Any) -> None:
    order: list[str] = []
    refs = [system.spawn(recorder()) for _ in range(TURN_BURSTS + 1)]
    await settled()

    async def other_task() -> None:
        for _ in range(2):
            await trio.lowlevel.checkpoint()
            order.append("task")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_task)
        for ref in refs:
            ref.cast(lambda self: order.append("actor"))
        await settled()
    assert order.count("actor") == TURN_BURSTS + 1
    assert "task" in order[: TURN_BURSTS + 2]


async def test_a_crash_ends_one_actor_and_no_other(
    system: System, recorder: Any, crash_message: Any, crashes: list[tuple[str, BaseException]]
) -> None:
    bad, good = recorder(), recorder()
    bad_ref, good_ref = system.spawn(bad, "bad"), system.spawn(good, "good")
    bad_ref.cast(crash_message)
    bad_ref.cast("lost")
    good_ref.cast("kept")
    reason = await bad_ref.ended()
    await settled()
    assert reason.kind is ExitKind.CRASHED
    assert isinstance(reason.error, ZeroDivisionError)
    assert bad.reasons == [reason]
    assert good.messages == ["kept"]
    assert crashes == [("bad", reason.error)]
    assert system.registry.whereis("bad") is None


async def test_a_raise_in_started_is_a_crash(system: System, crashes: list[tuple[str, BaseException]]) -> None:
    class Unlucky(Actor):
        def started(self) -> None:
            raise OSError("no")

    reason = await system.spawn(Unlucky(), "unlucky").ended()
    assert isinstance(reason.error, OSError)
    assert [name for name, _ in crashes] == ["unlucky"]


async def test_a_raise_in_stopped_makes_the_end_a_crash_but_never_hides_an_earlier_one(
    system: System, crashes: list[tuple[str, BaseException]]
) -> None:
    class Messy(Actor):
        def receive(self, message: Any) -> None:
            raise KeyError("first")

        def stopped(self, reason: Any) -> None:
            raise OSError("clean-up")

    asked, crashed = system.spawn(Messy(), "asked"), system.spawn(Messy(), "crashed")
    await settled()
    asked.stop()
    crashed.cast("go")
    assert isinstance((await asked.ended()).error, OSError)
    assert isinstance((await crashed.ended()).error, KeyError)
    assert [(name, type(error)) for name, error in crashes] == [
        ("asked", OSError),
        ("crashed", OSError),
        ("crashed", KeyError),
    ]


async def test_an_actor_that_receives_nothing_says_what_came(system: System) -> None:
    ref = system.spawn(Actor())
    ref.cast("surprise")
    reason = await ref.ended()
    assert isinstance(reason.error, NotImplementedError)
    assert "surprise" in str(reason.error)


async def test_an_actor_is_idle_when_nothing_waits_behind_the_message_in_hand(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor)
    for _ in range(2):
        ref.cast(lambda self: self.seen.append(self.ctx.idle))
    await settled()
    assert actor.messages == [False, True]


async def test_names_are_unique_and_end_with_their_actor(system: System, recorder: Any) -> None:
    ref = system.spawn(recorder(), "door")
    assert system.registry.whereis("door") is ref
    with pytest.raises(AlreadyStarted) as taken:
        system.spawn(recorder(), "door")
    assert taken.value.ref is ref
    ref.stop()
    await ref.ended()
    assert system.registry.whereis("door") is None
    assert system.spawn(recorder(), "door") is not ref


async def test_an_actor_without_a_name_gets_one_from_its_class(system: System, recorder: Any) -> None:
    taken = system.spawn(recorder(), "Recorder-2")
    names = [system.spawn(recorder()).name for _ in range(2)]
    assert taken.name not in names
    assert names == ["Recorder-1", "Recorder-3"]


async def test_an_actor_object_lives_once(system: System, recorder: Any) -> None:
    actor = recorder()
    system.spawn(actor, "one")
    with pytest.raises(ValueError, match="lives once"):
        system.spawn(actor, "two")
    assert system.registry.whereis("two") is None


async def test_what_an_actor_is_shows_in_reprs(system: System, recorder: Any) -> None:
    actor = recorder()
    ref = system.spawn(actor, "door")
    assert repr(ref) == "<Ref door: alive>"
    await settled()
    assert (actor.ctx.ref, actor.ctx.name, actor.ctx.system) == (ref, "door", system)
    ref.stop()
    await ref.ended()
    assert repr(ref) == "<Ref door: shutdown>"


async def test_a_crash_in_a_guarded_callback_is_its_actors(
    system: System, recorder: Any, crash_message: Any, crashes: list[tuple[str, BaseException]]
) -> None:
    actor = recorder()
    ref = system.spawn(actor, "one")
    await settled()
    callback = actor.ctx.guard(crash_message)
    callback(None)
    assert (await ref.ended()).kind is ExitKind.CRASHED
    callback(None)
    assert [(name, type(error)) for name, error in crashes] == [("one", ZeroDivisionError)] * 2


async def test_a_guarded_callback_that_crashes_in_a_turn_ends_its_actor_after_the_message_in_hand(
    system: System, recorder: Any, crash_message: Any, crashes: list[tuple[str, BaseException]]
) -> None:
    actor = recorder()
    ref = system.spawn(actor)

    def handle(self: Any) -> None:
        self.ctx.guard(crash_message)(None)
        self.seen.append("went on")

    ref.cast(handle)
    ref.cast("never received")
    assert (await ref.ended()).kind is ExitKind.CRASHED
    assert actor.messages == ["went on"]
    assert len(crashes) == 1


class Part:
    def __init__(self, whole: Actor) -> None:
        self.whole = whole


class Whole(Actor):
    disposable = True

    def started(self) -> None:
        self.part = Part(self)
        self.cleaned: list[str] = []

    def receive(self, message: Any) -> None:
        message(self)


class Slotted(Whole):
    """Whose parts are in slots: the more of them there are, the more a dict would weigh."""

    __slots__ = ("cleaned", "part")


async def clean_up(self: Whole) -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
            self.cleaned.append("still mine")


@pytest.mark.parametrize("kind", [Whole, Slotted])
@pytest.mark.parametrize("how", ["stopped", "crashed", "with a task", "crashed with a task", "its task crashed"])
async def test_a_disposable_actor_is_freed_at_once_with_all_that_it_is_made_of(
    system: System, crashes: list[tuple[str, BaseException]], autojump_clock: Any, how: str, kind: type[Whole]
) -> None:
    async def crash(self: Whole) -> None:
        raise ZeroDivisionError

    def end(self: Whole) -> None:
        if "task" in how:
            self.ctx.start_task("io", crash if how == "its task crashed" else clean_up, self)
        if how.startswith("crashed"):
            raise ZeroDivisionError
        if how != "its task crashed":
            self.ctx.stop()

    with uncollected() as found:
        ref = system.spawn(kind())
        ref.cast(lambda self: None)
        await settled()
        part = weakref.ref(ref.cell.actor.part)  # type: ignore[union-attr, attr-defined]
        ref.cast(end)
        await settled()
        ref.stop()
        await ref.ended()
        crashes.clear()
        await trio.sleep(2)
        assert part() is None
    assert not found
    assert not crashes


async def test_the_address_of_an_actor_that_has_ended_keeps_nothing_alive(system: System, recorder: Any) -> None:
    ref = system.spawn(recorder())
    ref.stop()
    reason = await ref.ended()
    assert (ref.cast("x"), ref.reply("x"), ref.urgent("x"), ref.stop()) == (False,) * 4
    assert (ref.alive, ref.reason, await ref.ended(), ref.statistics().size) == (False, reason, reason, 0)
    with pytest.raises(ActorDown):
        await ref.call(lambda reply: reply)
    assert [type(held) for held in gc.get_referents(ref.cell) if not isinstance(held, type)] == [type(reason)]
