"""A suspended call: asked once, executed once, answered once, whoever comes, stays away, or comes twice."""

from __future__ import annotations

import pytest

from actors.machines.modern import suspended_calls as ev
from actors.machines.modern.suspended_calls import Phase
from actors.protocol.errors import INTERNAL, INVALID_PARAMS
from actors.protocol.payload import dumps, loads
from tests.protocol.bridge.world import ANSWERS, ELICIT, ROOTS, SAMPLE, World


def keys(world: World, call: int) -> list[str]:
    return [question.key for question in world.asking[call].questions]


def code(world: World, owner: str) -> int:
    ok, payload = world.outcomes[owner]
    assert not ok
    found: int = payload["code"]
    return found


@pytest.mark.parametrize("serialized", [True, False])
def test_one_call_over_any_number_of_rounds(serialized: bool) -> None:
    world = World(serialized=serialized)
    call = world.begin()
    seen: list[str] = []
    owner = ""
    for round, method in enumerate((ELICIT, SAMPLE, ROOTS), start=1):
        world.ask(call, method)
        world.suspend()
        assert world.asking[call].round == round
        seen += keys(world, call)
        owner = world.resume(call)
    world.end(call)
    assert world.outcomes == {owner: (True, {"content": []})}
    assert world.sent == {call: 1}
    assert len(set(seen)) == 3
    world.finish()


def test_a_key_that_the_server_has_chosen_stands_once_in_a_call() -> None:
    world = World()
    call = world.begin()
    for key in ("name", "", "name", "color"):
        world.ask(call, ELICIT, key)
    world.suspend()
    assert keys(world, call) == ["name", "2", "3", "color"]
    world.resume(call)
    world.ask(call, ELICIT, "name")
    world.suspend()
    assert keys(world, call) == ["5"], "an answer to the first would else be one to this, too"
    world.resume(call)
    for n in range(2 * ev.KEYS_CHOSEN_MAX):
        world.ask(call, ELICIT, f"k{n}")
    world.suspend()
    assert sum(key.startswith("k") for key in keys(world, call)) == ev.KEYS_CHOSEN_MAX - 2
    world.resume(call)
    world.end(call)
    world.finish()


def test_questions_that_come_together_are_asked_together() -> None:
    world = World()
    call = world.begin()
    for method in (ELICIT, SAMPLE, ROOTS):
        world.ask(call, method)
    world.suspend()
    assert [question.method for question in world.asking[call].questions] == [ELICIT, SAMPLE, ROOTS]


def test_what_is_not_answered_is_asked_again_under_its_key_and_what_was_answered_is_not() -> None:
    world = World()
    call = world.begin()
    world.ask(call, ELICIT)
    world.ask(call, ROOTS)
    world.suspend()
    first = world.asking[call]
    world.resume(call, {keys(world, call)[0]: ANSWERS[ELICIT]})
    assert [answer.method for answer in world.answers] == [ELICIT]
    world.suspend()
    assert world.asking[call].round == 2
    assert world.asking[call].questions == first.questions[1:]
    world.resume(call)
    world.end(call)
    assert world.sent == {call: 1}


def test_answers_to_what_was_never_asked_are_ignored() -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    world.resume(call, {keys(world, call)[0]: ANSWERS[ELICIT], "17": dumps("what?")})
    assert len(world.answers) == 1
    assert world.calls.held[call].phase is Phase.RUNNING


def test_a_question_that_nobody_has_seen_can_not_be_answered() -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    world.ask(call, ROOTS)  # while the client looks for the first answer
    world.resume(call, {"1": ANSWERS[ELICIT], "2": ANSWERS[ROOTS]})
    assert [answer.method for answer in world.answers] == [ELICIT]
    world.suspend()
    assert [(q.key, q.method) for q in world.asking[call].questions] == [("2", ROOTS)]


@pytest.mark.parametrize("bad", [{"action": "maybe"}, {"content": {}}, []], ids=str)
def test_a_malformed_answer_goes_nowhere_and_leaves_the_call_as_it_was(bad: object) -> None:
    world = World()
    call = world.begin()
    world.ask(call, ROOTS)
    world.ask(call, ELICIT)
    world.suspend()
    first, second = keys(world, call)
    before = world.calls
    owner = world.resume(call, {first: ANSWERS[ROOTS], second: dumps(bad)})
    assert code(world, owner) == INVALID_PARAMS
    assert world.calls is before
    assert not world.answers
    world.resume(call)
    world.end(call)
    assert world.sent == {call: 1}


def test_the_second_of_two_retries_of_a_round_is_refused() -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    first = world.resume(call)
    second = world.resume(call, round=1)
    assert code(world, second) == INVALID_PARAMS
    world.end(call)
    assert world.outcomes[first][0]


def test_a_round_that_is_over_can_not_be_answered() -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    world.resume(call)
    world.ask(call)
    world.suspend()
    owner = world.resume(call, round=1)
    assert code(world, owner) == INVALID_PARAMS
    assert call in world.suspended


def test_a_call_that_nobody_knows_is_not_run_for_a_retry() -> None:
    world = World()
    assert code(world, world.resume(7)) == INVALID_PARAMS
    assert not world.sent


@pytest.mark.parametrize("ok", [True, False])
def test_what_ended_while_it_was_suspended_is_for_whoever_comes_with_the_answers(ok: bool) -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    world.end(call, ok)
    owner = world.resume(call)
    assert world.outcomes[owner][0] is ok
    assert not world.calls.held


def test_one_that_ended_while_it_was_suspended_does_not_keep_its_turn() -> None:
    world = World(lines=1)
    call = world.begin()
    world.ask(call)
    world.suspend()
    other = world.begin()
    assert not world.sent[other]
    world.end(call)
    assert world.sent[other] == 1


def test_the_client_leaves_while_the_backend_works_on_answers() -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    owner = world.resume(call)
    question = world.ask(call, SAMPLE)
    world.leave(owner)
    assert world.cancelled == [call]
    assert (world.answers[-1].id, world.answers[-1].ok) == (question, False)
    world.settle(call)
    assert not world.calls.held
    assert code(world, world.resume(call, round=1)) == INVALID_PARAMS
    assert world.sent == {call: 1}


def test_between_two_rounds_nobody_can_leave_and_time_decides() -> None:
    world = World()
    call = world.begin()
    for method in (ELICIT, SAMPLE, ROOTS):
        world.ask(call, method)
    world.suspend()
    world.leave(str(call))
    assert call in world.suspended
    world.do(ev.Expired(call))
    assert world.cancelled == [call]
    outcomes = {a.method: (a.ok, loads(a.payload)) for a in world.answers}
    assert outcomes[ELICIT] == (True, {"action": "cancel"})
    assert outcomes[SAMPLE][1]["code"] == -1
    assert outcomes[ROOTS][1]["code"] == INTERNAL
    assert code(world, world.resume(call, round=1)) == INVALID_PARAMS


def test_a_connection_is_used_again_once_the_backend_listens() -> None:
    world = World(lines=1)
    call = world.begin()
    world.leave(str(call))
    other = world.begin()
    assert not world.sent[other]
    world.settle(call)
    assert world.live == {other: 1}


def test_a_connection_whose_backend_does_not_listen_is_discarded() -> None:
    world = World(lines=1)
    call, listing = world.begin(), world.begin(may_ask_back=False)
    world.leave(str(call))
    other = world.begin()
    world.do(ev.GraceOver(call))
    assert world.closed == {1}
    assert world.live == {other: 2}
    assert code(world, str(listing)) == INTERNAL


def test_a_call_that_does_not_need_a_turn_is_never_in_the_way() -> None:
    world = World(lines=1)
    call, listing = world.begin(), world.begin(may_ask_back=False)
    assert world.sent[listing] == 1
    world.leave(str(listing))
    assert not world.settling
    world.end(call)
    world.finish()


def test_calls_take_turns_while_one_runs_and_pass_one_that_is_suspended() -> None:
    world = World(lines=2)
    first, second, third = world.begin(), world.begin(), world.begin()
    assert world.live == {first: 1}
    world.ask(first)
    world.suspend()
    assert world.live == {first: 1, second: 2}
    world.end(second)
    assert world.live == {first: 1, third: 2}


def test_the_last_line_keeps_calls_waiting_for_a_time() -> None:
    world = World(lines=2)
    first, second = world.begin(), world.begin()
    for call in (first, second):
        world.ask(call)
        world.suspend()
    third = world.begin()
    assert not world.sent[third]
    world.do(ev.WaitOver(third))
    ok, error = world.outcomes[str(third)]
    assert (ok, error["code"], error["data"]["executed"]) == (False, INTERNAL, "no")


def test_one_that_is_suspended_long_enough_gives_way_to_one_that_waits() -> None:
    world = World(lines=1)
    first, second = world.begin(), world.begin()
    world.ask(first)
    world.suspend()
    world.do(ev.WaitOver(second, (first,)))
    assert world.cancelled == [first]
    assert not world.sent[second]
    world.settle(first)
    assert world.sent[second] == 1
    world.end(second)
    world.finish()


def test_a_call_waits_on_while_the_backend_is_at_work() -> None:
    world = World(lines=1)
    first, second = world.begin(), world.begin()
    world.do(ev.WaitOver(second))
    assert world.said == [ev.StartWait(second)]
    world.end(first)
    assert world.sent[second] == 1


def test_more_calls_than_may_wait_are_refused() -> None:
    world = World(lines=1, waiting=1)
    world.begin()
    world.begin()
    assert code(world, str(world.begin())) == INTERNAL


def test_another_line_is_closed_when_the_first_is_free_again() -> None:
    world = World(lines=2)
    first, second = world.begin(), world.begin()
    world.ask(first)
    world.suspend()
    world.end(second)
    assert not world.closed
    world.resume(first)
    world.end(first)
    assert world.closed == {2}
    assert world.live == {}


def test_one_call_more_than_may_be_suspended_gets_an_error_and_is_given_up() -> None:
    world = World(serialized=False, room=1)
    first, second = world.begin(), world.begin()
    for call in (first, second):
        world.ask(call)
        world.suspend()
    assert code(world, str(second)) == INTERNAL
    assert world.cancelled == [second]
    assert world.answers[-1].ok
    assert call not in world.suspended


def test_a_question_taken_back_is_not_asked() -> None:
    world = World()
    call = world.begin()
    question = world.ask(call)
    world.questions.clear()
    world.do(ev.Withdrawn(1, question))
    assert world.calls.held[call].phase is Phase.RUNNING
    world.suspend()
    assert call not in world.suspended


def test_a_question_taken_back_while_the_client_looks_for_its_answer_needs_none() -> None:
    world = World()
    call = world.begin()
    question = world.ask(call)
    world.suspend()
    world.questions.clear()
    world.do(ev.Withdrawn(1, question))
    world.resume(call, {"1": ANSWERS[ELICIT]})
    assert not world.answers
    assert world.calls.held[call].phase is Phase.RUNNING


@pytest.mark.parametrize("for_good", [True, False])
def test_nothing_is_there_to_come_back_to_when_the_connection_is_lost(for_good: bool) -> None:
    world = World(lines=2)
    suspended, running = world.begin(), world.begin(may_ask_back=False)
    world.ask(suspended)
    world.suspend()
    world.lose(1, for_good=for_good)
    assert code(world, str(running)) == INTERNAL
    assert code(world, world.resume(suspended, round=1)) == INVALID_PARAMS
    world.finish()


def test_a_result_outlives_its_connection() -> None:
    world = World()
    call = world.begin()
    world.ask(call)
    world.suspend()
    world.end(call)
    world.lose(1, for_good=True)
    assert world.outcomes[world.resume(call, round=1)][0]


def test_what_a_connection_could_not_take_is_nobody_s_any_more() -> None:
    world = World(lines=1)
    call, other = world.begin(), world.begin()
    world.live.pop(call)
    world.exchanges[str(call)] = "cancelled"  # whoever made it makes it elsewhere
    world.do(ev.Unsent(call))
    assert world.sent[other] == 1
    assert not world.outcomes
