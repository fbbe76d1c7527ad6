"""Calls: admission, revocation, abandonment, and exactly one outcome whatever happens."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.runtime import (
    SHUTDOWN,
    Actor,
    ActorDown,
    ExitKind,
    MailboxFull,
    NotTaken,
    Ref,
    Reply,
    System,
    open_system,
)
from tests.support.cancel import cancel_everywhere


class Keeper(Actor):
    """Keeps the replies it takes, until told what to do with them."""

    mailbox_size = 2

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.told: list[str] = []

    def receive(self, message: Any) -> None:
        match message:
            case Reply():
                self.replies.append(message)
                message.on_abandon = lambda: self.ctx.ref.reply("abandoned")
            case str():
                self.told.append(message)
            case _:
                message()


def itself(reply: Reply) -> Any:
    return reply


class Callers:
    """Calls in tasks of their own, with what came of them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.outcomes: list[Any] = []

    def call(self, ref: Ref, **options: Any) -> trio.CancelScope:
        scope = trio.CancelScope()
        self.nursery.start_soon(self._call, ref, scope, options)
        return scope

    async def _call(self, ref: Ref, scope: trio.CancelScope, options: Any) -> None:
        with scope:
            try:
                self.outcomes.append(await ref.call(itself, **options))
            except (ActorDown, MailboxFull, NotTaken, LookupError) as error:
                self.outcomes.append(error)
        if scope.cancelled_caught:
            self.outcomes.append("cancelled")


async def test_an_answer_is_returned(system: System) -> None:
    class Adder(Actor):
        def receive(self, message: Any) -> None:
            reply, one, two = message
            reply.answer(one + two)

    ref = system.spawn(Adder())
    assert await ref.call(lambda reply: (reply, 1, 2)) == 3


async def test_a_failure_is_raised_and_the_actor_lives(system: System, nursery: trio.Nursery) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    callers.call(ref)
    await wait_all_tasks_blocked()
    error = LookupError("no such thing")
    assert keeper.replies[0].fail(error)
    await wait_all_tasks_blocked()
    assert callers.outcomes == [error]
    assert ref.alive


async def test_a_call_may_be_answered_by_a_later_message_and_only_once(
    system: System, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    callers.call(ref)
    await trio.sleep(100)  # taken: no deadline is left
    (reply,) = keeper.replies
    assert reply.answer("late")
    assert not reply.answer("again")
    assert not reply.fail(ValueError())
    await wait_all_tasks_blocked()
    assert callers.outcomes == ["late"]
    assert not reply.abandoned


async def test_a_full_mailbox_refuses_a_call_at_once(system: System) -> None:
    ref = system.spawn(Keeper())
    assert ref.cast("one")
    assert ref.cast("two")
    with pytest.raises(MailboxFull):
        await ref.call(itself)


async def test_a_dead_actor_refuses_a_call_at_once_with_its_reason(system: System) -> None:
    ref = system.spawn(Keeper(), "keeper")
    ref.stop()
    await ref.ended()
    with pytest.raises(ActorDown) as down:
        await ref.call(itself)
    assert down.value.reason is SHUTDOWN
    assert str(down.value) == "keeper is down (shutdown)"


async def test_a_call_that_is_still_queued_at_the_admission_deadline_is_revoked(
    system: System, nursery: trio.Nursery, stalled: Callable[[System], Any], autojump_clock: MockClock
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    await wait_all_tasks_blocked()
    start = trio.current_time()
    with stalled(system):
        callers.call(ref, admission=1.5)
        await trio.sleep(1.4)
        assert ref.statistics().ordinary == 1
        await trio.sleep(0.11)
        assert isinstance(callers.outcomes[0], NotTaken)
        assert ref.statistics().ordinary == 0
    await wait_all_tasks_blocked()
    assert keeper.replies == []
    assert trio.current_time() - start == pytest.approx(1.51)


async def test_an_admission_without_deadline_waits(
    system: System, nursery: trio.Nursery, stalled: Callable[[System], Any], autojump_clock: MockClock
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    await wait_all_tasks_blocked()
    with stalled(system):
        callers.call(ref, admission=float("inf"))
        await trio.sleep(1e6)
    await wait_all_tasks_blocked()
    assert len(keeper.replies) == 1
    keeper.replies[0].answer(1)


async def test_cancelling_a_queued_call_revokes_it(
    system: System, nursery: trio.Nursery, stalled: Callable[[System], Any]
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    await wait_all_tasks_blocked()
    with stalled(system):
        scope = callers.call(ref)
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert ref.statistics().ordinary == 0
    await wait_all_tasks_blocked()
    assert (keeper.replies, keeper.told) == ([], [])
    assert callers.outcomes == ["cancelled"]


async def test_cancelling_a_taken_call_marks_its_reply_and_tells_the_actor(
    system: System, nursery: trio.Nursery
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    scope = callers.call(ref)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert keeper.told == ["abandoned"]
    assert keeper.replies[0].abandoned
    assert not keeper.replies[0].answer("nobody waits")
    assert ref.alive


async def test_an_answer_that_came_first_wins_over_a_cancellation(system: System, nursery: trio.Nursery) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    scope = callers.call(ref)
    await wait_all_tasks_blocked()
    assert keeper.replies[0].answer("in time")
    scope.cancel()
    await wait_all_tasks_blocked()
    assert callers.outcomes == ["in time"]
    assert keeper.told == []


async def test_a_raise_in_on_abandon_is_a_crash_of_the_actor(system: System, nursery: trio.Nursery) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    scope = callers.call(ref)
    await wait_all_tasks_blocked()
    keeper.replies[0].on_abandon = lambda: 1 // 0
    scope.cancel()
    assert isinstance((await ref.ended()).error, ZeroDivisionError)
    await wait_all_tasks_blocked()
    assert callers.outcomes == ["cancelled"]


async def test_a_raise_in_on_abandon_during_the_actors_own_turn_ends_it_after_that(
    system: System, nursery: trio.Nursery
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    scope = callers.call(ref)
    await wait_all_tasks_blocked()

    def cancel_its_own_caller() -> None:
        keeper.replies[0].on_abandon = lambda: 1 // 0
        scope.cancel()
        keeper.told.append("turn goes on")

    ref.cast(cancel_its_own_caller)
    assert isinstance((await ref.ended()).error, ZeroDivisionError)
    assert keeper.told == ["turn goes on"]


async def test_when_the_actor_dies_its_queued_and_its_taken_calls_fail_at_once(
    system: System, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper), Callers(nursery)
    callers.call(ref)
    await wait_all_tasks_blocked()
    assert len(keeper.replies) == 1
    ref.cast(lambda: 1 // 0)
    callers.call(ref)
    start = trio.current_time()
    await ref.ended()
    await wait_all_tasks_blocked()
    assert [error.reason.kind for error in callers.outcomes] == [ExitKind.CRASHED] * 2
    assert sorted(error.taken for error in callers.outcomes) == [False, True]
    assert trio.current_time() == start
    assert not keeper.replies[0].answer("too late")


async def test_a_call_may_be_answered_in_stopped(system: System, nursery: trio.Nursery) -> None:
    class Polite(Keeper):
        def stopped(self, reason: Any) -> None:
            for reply in self.replies:
                reply.answer("good-bye")

    ref, callers = system.spawn(Polite()), Callers(nursery)
    callers.call(ref)
    await wait_all_tasks_blocked()
    ref.stop()
    await wait_all_tasks_blocked()
    assert callers.outcomes == ["good-bye"]


async def test_a_call_answered_while_it_is_made_returns_and_its_message_is_still_received(system: System) -> None:
    keeper = Keeper()
    ref = system.spawn(keeper)

    def make(reply: Reply) -> Reply:
        reply.answer("early")
        return reply

    assert await ref.call(make) == "early"
    await wait_all_tasks_blocked()
    assert not keeper.replies[0].answer("again")


async def test_calls_leave_no_timer_behind(system: System) -> None:
    class Echo(Actor):
        def receive(self, message: Reply) -> None:
            message.answer(None)

    ref = system.spawn(Echo())
    for _ in range(1000):
        await ref.call(itself)
    assert system.statistics().timers == 0
    assert system.timers.kept <= 65


async def test_a_reply_shows_its_state(system: System, nursery: trio.Nursery) -> None:
    keeper = Keeper()
    ref, callers = system.spawn(keeper, "keeper"), Callers(nursery)
    callers.call(ref)
    await wait_all_tasks_blocked()
    assert repr(keeper.replies[0]) == "<Reply of keeper: taken>"
    keeper.replies[0].answer(1)


def test_a_call_can_be_cancelled_at_every_checkpoint() -> None:
    """Whatever happened, the actor is consistent: it serves the next call, and no reply of the dead one is pending."""

    class Server(Actor):
        def __init__(self) -> None:
            self.abandoned = 0

        def receive(self, message: Any) -> None:
            match message:
                case Reply():
                    message.on_abandon = lambda: self.ctx.ref.reply("abandoned")
                    self.ctx.set_timer(message, 0.5, ("finish", message))
                case ("finish", reply):
                    if not reply.answer("done"):
                        self.abandoned += 1
                case "abandoned":
                    self.abandoned += 1

    outcomes = []

    async def scenario(scope: trio.CancelScope) -> None:
        async with open_system() as system:
            server = Server()
            ref = system.spawn(server, "server")
            outcome = None
            with scope:
                outcome = await ref.call(itself)
            outcomes.append(outcome)
            assert outcome == "done" or scope.cancelled_caught
            assert await ref.call(itself) == "done"
            assert server.abandoned in (0, 2)
            assert (not ref.cell.pending, system.statistics().timers) == (True, 0)
            assert ref.statistics().ordinary == 0

    cancel_everywhere(scenario)
    assert outcomes.count("done") > 1
    assert outcomes.count(None) > 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from([0.5, 2.0])),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("answer"), st.integers(0, 9)),
        st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.3, 1.0])),
        st.tuples(st.sampled_from(["stall", "resume", "crash", "stop", "cast"]), st.none()),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_every_call_has_exactly_one_outcome_and_runs_only_if_it_was_not_revoked(steps: list[tuple[str, Any]]) -> None:
    async def scenario() -> None:
        async with open_system() as system, trio.open_nursery() as nursery:
            keeper = Keeper()
            ref, callers = system.spawn(keeper), Callers(nursery)
            cell = ref.cell
            schedule = system.dispatcher.schedule
            held: list[Any] = []
            scopes = []
            for step, value in steps:
                match step:
                    case "call":
                        scopes.append(callers.call(ref, admission=value))
                    case "cancel" if value < len(scopes):
                        scopes[value].cancel()
                    case "answer" if value < len(keeper.replies):
                        keeper.replies[value].answer(value)
                    case "sleep":
                        await trio.sleep(value)
                    case "stall":
                        system.dispatcher.schedule = held.append  # type: ignore[method-assign, assignment]
                    case "resume":
                        system.dispatcher.schedule = schedule  # type: ignore[method-assign]
                        while held:
                            schedule(held.pop())
                    case "crash":
                        ref.cast(lambda: 1 // 0)
                    case "stop":
                        ref.stop()
                    case "cast":
                        ref.cast("cast")
            system.dispatcher.schedule = schedule  # type: ignore[method-assign]
            while held:
                schedule(held.pop())
            await trio.sleep(3)
            waiting = [reply for reply in keeper.replies if reply.answer("last")]
            await wait_all_tasks_blocked()
            assert len(callers.outcomes) == len(scopes)
            revoked = [outcome for outcome in callers.outcomes if isinstance(outcome, NotTaken | MailboxFull)]
            assert len(keeper.replies) <= len(scopes) - len(revoked)
            assert callers.outcomes.count("last") == len(waiting)
            assert not cell.pending
            assert system.statistics().timers == 0

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
