"""A client that is asked by requests, and a server that asks in its answers."""

import pytest

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from tests.support.modern_upstream import Drive, client

FORM = {"method": "elicitation/create", "params": {"message": "name?", "requestedSchema": {"type": "object"}}}
ROOTS = {"method": "roots/list"}
SAMPLE = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
URL = {"method": "elicitation/create", "params": {"mode": "url", "message": "sign in", "url": "https://a.test/1"}}


def needs(state: str | None = "s1", **requests: object) -> dict[str, object]:
    result: dict[str, object] = {"resultType": "input_required"}
    if requests:
        result["inputRequests"] = requests
    if state is not None:
        result["requestState"] = state
    return result


@pytest.fixture(params=[True, False], ids=["http", "stdio"])
def drive(request) -> Drive:
    drive = Drive(request.param).ready()
    drive.call(1, by=client(elicitation={"form": {}, "url": {}}, sampling={}, roots={}), name="ask", arguments={"a": 1})
    return drive


def said(drive: Drive, result: dict[str, object]) -> None:
    drive.result(drive.last("tools/call").id, result)


def test_all_questions_are_asked_at_once_and_their_answers_go_back_together(drive):
    said(drive, needs("täglich", name=FORM, roots=ROOTS))
    assert [ask.method for ask in drive.asks] == ["elicitation/create", "roots/list"]
    assert {ask.call for ask in drive.asks} == {1}
    drive.answer(drive.asks[1], {"roots": [{"uri": "file:///x"}]})
    assert drive.count("tools/call") == 1
    drive.answer(drive.asks[0], {"action": "accept", "content": {"name": "Ada"}})
    again = drive.last("tools/call")
    assert again.params["requestState"] == "täglich"
    assert again.params["inputResponses"] == {
        "roots": {"roots": [{"uri": "file:///x"}]},
        "name": {"action": "accept", "content": {"name": "Ada"}},
    }
    assert again.params["arguments"] == {"a": 1}
    said(drive, {"content": []})
    assert drive.outcomes[1] == (True, {"content": []})


def test_without_a_state_none_goes_back(drive):
    said(drive, needs(None, name=FORM))
    drive.answer(drive.asks[0], {"action": "decline"})
    assert "requestState" not in drive.last("tools/call").params
    assert drive.last("tools/call").params["inputResponses"] == {"name": {"action": "decline"}}


def test_a_state_alone_is_a_request_to_come_again_soon(drive):
    seconds = []
    for n in range(5):
        said(drive, needs(f"s{n}"))
        seconds.append(drive.timers[("pause", 1)])
        drive.due("pause", 1)
        assert drive.last("tools/call").params["requestState"] == f"s{n}"
        assert "inputResponses" not in drive.last("tools/call").params
    assert seconds == [0.05, 0.1, 0.2, 0.25, 0.25]


def test_rounds_have_an_end(drive):
    for _ in range(10):
        said(drive, needs("s", name=FORM))
        drive.answer(drive.asks[-1], {"action": "accept"})
    said(drive, needs("s", name=FORM))
    assert drive.outcomes[1][1]["data"]["reason"] == "input_rounds"
    assert len(drive.asks) == 10


def test_an_elicitation_that_fails_is_cancelled(drive):
    said(drive, needs(name=FORM))
    drive.answer(drive.asks[0], None)
    assert drive.last("tools/call").params["inputResponses"] == {"name": {"action": "cancel"}}


@pytest.mark.parametrize("question", [SAMPLE, ROOTS], ids=["sampling", "roots"])
def test_a_refusal_that_has_no_form_ends_a_tool_with_words(drive, question):
    said(drive, needs(one=question, two=FORM))
    drive.answer(drive.asks[0], None)
    ok, result = drive.outcomes[1]
    assert ok
    assert result["isError"]
    assert "rejected" in result["content"][0]["text"]
    assert mv.Withdraw("s1", str(drive.asks[1].id)) in drive.effects
    assert drive.count("tools/call") == 1


def test_a_refusal_that_has_no_form_ends_any_other_call_with_the_error():
    drive = Drive().ready()
    drive.call(1, "prompts/get", name="p")
    drive.result(drive.last("prompts/get").id, needs(one=SAMPLE))
    drive.answer(drive.asks[0], None)
    assert drive.outcomes[1] == (False, {"code": -1, "message": "rejected"})


def test_an_answer_of_the_wrong_shape_counts_as_none(drive):
    said(drive, needs(name=FORM))
    drive.answer(drive.asks[0], {"action": "perhaps"})
    assert drive.last("tools/call").params["inputResponses"] == {"name": {"action": "cancel"}}


def test_a_url_gets_an_id_and_its_end_is_told(drive):
    said(drive, needs(go=URL))
    asked = drive.asks[0]
    assert b'"elicitationId":"elicit-' in bytes(asked.params)
    drive.answer(asked, {"action": "accept"})
    said(drive, {"content": []})
    [(call, method, params)] = drive.told
    assert (call, method) == (1, "notifications/elicitation/complete")
    assert params["elicitationId"].encode() in bytes(asked.params)


def test_a_url_that_was_agreed_to_is_waited_for_and_not_asked_again(drive):
    said(drive, needs(go=URL))
    drive.answer(drive.asks[0], {"action": "accept"})
    for n in range(60):
        said(drive, needs(f"w{n}", again=URL))
        drive.due("pause", 1)
        assert drive.last("tools/call").params["inputResponses"] == {"again": {"action": "accept"}}
    assert len(drive.asks) == 1
    said(drive, needs("w", again=URL))
    assert drive.outcomes[1][1]["data"]["reason"] == "input_rounds"


def test_a_url_that_was_declined_is_no_consent(drive):
    said(drive, needs(go=URL))
    drive.answer(drive.asks[0], {"action": "decline"})
    said(drive, {"content": []})
    assert not drive.told


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": {"a": {"method": "ping"}}},
        {"resultType": "input_required", "inputRequests": []},
    ],
)
def test_questions_that_can_t_be_asked_are_no_answer(drive, result):
    said(drive, result)
    assert drive.outcomes[1][1]["code"] == -32603


def test_lists_can_t_ask():
    drive = Drive().ready()
    drive.call(1, "tools/list")
    drive.result(drive.last("tools/list").id, needs(name=FORM))
    assert drive.outcomes[1][1]["code"] == -32603


def test_a_cancelled_call_takes_its_questions_back(drive):
    said(drive, needs(name=FORM))
    drive.step(ev.Abandoned(1, "enough"))
    assert mv.Withdraw("s1", str(drive.asks[0].id)) in drive.effects
    drive.answer(drive.asks[0], {"action": "accept"})
    assert drive.count("tools/call") == 1
    assert not drive.upstream.asking


def test_a_cancelled_pause_is_over(drive):
    said(drive, needs("s"))
    drive.step(ev.Abandoned(1, "enough"))
    assert not drive.timers
    drive.due("pause", 1)
    assert drive.count("tools/call") == 1


def test_a_connection_that_ends_while_the_client_thinks_is_made_again(drive):
    said(drive, needs("s", name=FORM))
    drive.step(ev.Closed("exited", "gone"))
    assert not drive.outcomes
    drive.answer(drive.asks[0], {"action": "accept"})
    drive.discovered()
    assert drive.last("tools/call").params["requestState"] == "s"


def test_the_results_of_the_loop_are_not_kept():
    drive = Drive().ready()
    drive.call(1, "resources/read", uri="a")
    drive.result(drive.last("resources/read").id, needs("s", name=FORM))
    drive.answer(drive.asks[0], {"action": "accept"})
    drive.result(drive.last("resources/read").id, {"contents": [], "ttlMs": 9, "cacheScope": "public"})
    assert drive.outcomes[1][0]
    assert not any(isinstance(effect, mv.Keep) for effect in drive.effects)
