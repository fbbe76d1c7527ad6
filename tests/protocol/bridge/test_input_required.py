"""Results that ask, and answers that come with a retry."""

from __future__ import annotations

import pytest
from msgspec import Raw

from actors.machines.modern import input_required as ir
from actors.protocol.errors import INVALID_PARAMS, Malformed, Refusal
from actors.protocol.payload import dumps, loads

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


def test_a_result_that_asks_is_read_as_it_was_built() -> None:
    built = ir.build([ir.InputRequest("1", ELICIT, Raw(b'{"message":"?"}')), ir.InputRequest("2", ROOTS)], "token")
    asked = loads(built)["inputRequests"]
    assert asked == {"1": {"method": ELICIT, "params": {"message": "?"}}, "2": {"method": ROOTS, "params": {}}}
    read = ir.read(built)
    assert read is not None
    assert read.state == "token"
    assert {k: (m, bytes(p)) for k, (m, p) in read.requests.items()} == {
        "1": (ELICIT, b'{"message":"?"}'),
        "2": (ROOTS, b"{}"),
    }


def test_what_is_not_there_is_left_out() -> None:
    assert loads(ir.build([], "token")) == {"resultType": "input_required", "requestState": "token"}
    assert "requestState" not in loads(ir.build([ir.InputRequest("1", ROOTS)], None))


def test_a_question_that_came_without_params_is_passed_on_with_empty_ones() -> None:
    asked = dumps({"resultType": "input_required", "inputRequests": {"r": {"method": ROOTS}}})
    passed = ir.exposed(asked, lambda method, params: params)
    assert loads(passed)["inputRequests"] == {"r": {"method": ROOTS, "params": {}}}


def test_a_state_that_is_an_empty_text_is_a_state() -> None:
    read = ir.read(dumps({"resultType": "input_required", "requestState": ""}))
    assert read is not None
    assert read.state == ""


@pytest.mark.parametrize("result", [{}, {"resultType": "complete"}, {"resultType": 7}, {"content": []}])
def test_a_result_that_does_not_ask_is_none(result: dict[str, object]) -> None:
    assert ir.read(dumps(result)) is None


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"inputRequests": {}},
        {"inputRequests": []},
        {"inputRequests": {"1": {}}},
        {"inputRequests": {"1": {"method": 7}}},
        {"requestState": 7},
    ],
)
def test_one_that_asks_in_a_wrong_form_is_malformed(members: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        ir.read(dumps({"resultType": "input_required", **members}))


def test_one_that_asks_without_measure_is_malformed() -> None:
    def asking(many: int) -> Raw:
        questions = {str(n): {"method": "roots/list"} for n in range(many)}
        return dumps({"resultType": "input_required", "inputRequests": questions})

    read = ir.read(asking(ir.QUESTIONS_MAX))
    assert read is not None
    assert len(read.requests) == ir.QUESTIONS_MAX
    with pytest.raises(Malformed):
        ir.read(asking(ir.QUESTIONS_MAX + 1))


def test_answers_and_state_come_from_the_params() -> None:
    params = dumps({"name": "x", "inputResponses": {"1": {"action": "accept"}}, "requestState": "s"})
    assert {k: loads(v) for k, v in ir.answers(params).items()} == {"1": {"action": "accept"}}
    assert ir.state_of(params) == "s"
    assert ir.answers(dumps({"name": "x"})) == {}
    assert ir.state_of(dumps({"name": "x"})) is None


@pytest.mark.parametrize("given", [[], "x", 7, None])
def test_answers_that_are_no_object_are_refused(given: object) -> None:
    with pytest.raises(Refusal) as refused:
        ir.answers(dumps({"inputResponses": given}))
    assert refused.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("given", [[], {}, 7, None])
def test_a_state_that_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(Refusal):
        ir.state_of(dumps({"requestState": given}))


GOOD = [
    (ELICIT, {"action": "accept", "content": {"a": "x", "b": 1, "c": 1.5, "d": True, "e": ["x"]}}),
    (ELICIT, {"action": "decline"}),
    (ELICIT, {"action": "cancel", "resultType": "complete"}),
    (SAMPLE, {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}}),
    (SAMPLE, {"role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}], "stopReason": "endTurn"}),
    (ROOTS, {"roots": []}),
    (ROOTS, {"roots": [{"uri": "file:///a", "name": "a"}]}),
]
BAD = [
    (ELICIT, {}),
    (ELICIT, {"action": "yes"}),
    (ELICIT, {"action": "accept", "content": []}),
    (ELICIT, {"action": "accept", "content": {"a": {}}}),
    (ELICIT, []),
    (SAMPLE, {"role": "assistant", "content": {"type": "text"}}),
    (SAMPLE, {"role": "system", "model": "m", "content": {"type": "text"}}),
    (SAMPLE, {"role": "assistant", "model": "m", "content": "hi"}),
    (SAMPLE, {"action": "accept"}),
    (ROOTS, {}),
    (ROOTS, {"roots": [{"name": "a"}]}),
    (ROOTS, None),
    ("tools/list", {"tools": []}),
]


@pytest.mark.parametrize(("method", "answer"), GOOD, ids=str)
def test_a_result_of_the_method_is_an_answer(method: str, answer: object) -> None:
    ir.check(method, dumps(answer))


@pytest.mark.parametrize(("method", "answer"), BAD, ids=str)
def test_anything_else_is_refused(method: str, answer: object) -> None:
    with pytest.raises(Refusal) as refused:
        ir.check(method, dumps(answer))
    assert refused.value.error.code == INVALID_PARAMS


def test_an_answer_too_deep_to_read_is_refused_like_any_other() -> None:
    with pytest.raises(Refusal):
        ir.check(ELICIT, Raw(b'{"action":"accept","content":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"))
