"""What becomes of the messages of a client on a duplex connection, decided without IO."""

import json
from typing import Any

import pytest

from actors.machines.duplex import Conversation, Delivered, Refused, Requested, Withdrawn, one_line

LEVEL = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/logLevel": "info"}


def said(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


@pytest.fixture
def conversation() -> Conversation:
    made = Conversation(8, 1000)
    made.session = "s"
    return made


def asked(conversation: Conversation, **members: Any) -> Requested:
    step = conversation.take(said(method="tools/call", **members))
    assert isinstance(step, Requested)
    return step


def test_ids_differ_by_type(conversation):
    asked(conversation, id=1)
    asked(conversation, id="1")
    assert isinstance(conversation.take(said(id=1, method="tools/list")), Refused)


def test_an_id_may_be_used_again_when_its_request_is_over(conversation):
    conversation.over(asked(conversation, id=1).exchange)
    asked(conversation, id=1)


def test_only_the_error_of_a_cancel_is_kept_from_who_cancelled(conversation):
    exchange = asked(conversation, id=1).exchange
    assert conversation.take(said(method="notifications/cancelled", params={"requestId": 1})) == Delivered()
    assert conversation.outgoing(exchange, said(id=1, error={"code": -32800, "message": "cancelled"})) == ()
    result = said(id=1, result={})
    assert conversation.outgoing(exchange, result) == (result,)
    assert exchange.errors_for_pending() == []


def test_what_nobody_cancelled_is_passed_on(conversation):
    exchange = asked(conversation, id=1).exchange
    error = said(id=1, error={"code": -32800, "message": "cancelled"})
    assert conversation.outgoing(exchange, error) == (error,)


@pytest.mark.parametrize("params", [None, {}, {"requestId": {}}, {"requestId": 7}, [], "x"])
def test_a_cancel_of_nothing_means_nothing(conversation, params):
    asked(conversation, id=1)
    assert conversation.take(said(method="notifications/cancelled", params=params)) in (
        Delivered(),
        Delivered(answered=True),
    )


def test_a_modern_request_that_is_cancelled_ends(conversation):
    asked(conversation, id=1, params={"_meta": LEVEL})
    assert conversation.take(said(method="notifications/cancelled", params={"requestId": 1})) == Withdrawn(1)


def test_a_log_message_that_could_be_anybodys_is_nobodys(conversation):
    one = asked(conversation, id=1, params={"_meta": LEVEL}).exchange
    log = said(method="notifications/message", params={"level": "info", "data": 1})
    assert conversation.outgoing(one, log) == (log,)
    two = asked(conversation, id=2, params={"_meta": LEVEL}).exchange
    assert conversation.outgoing(one, log) == conversation.outgoing(two, log) == ()
    conversation.over(one)
    assert conversation.outgoing(two, log) == (log,)


def test_what_is_owed_is_one_error_for_each_request_without_an_answer(conversation):
    step = conversation.take(json.dumps([{"jsonrpc": "2.0", "id": n, "method": "tools/list"} for n in (1, 2)]).encode())
    assert isinstance(step, Requested)
    conversation.outgoing(step.exchange, said(id=1, result={}))
    [error] = step.exchange.errors_for_pending()
    assert json.loads(error)["id"] == 2
    assert json.loads(error)["error"]["data"]["executed"] == "unknown"


def test_a_message_is_one_line_whatever_stands_between_its_tokens():
    spread = b'{\r\n "a": "x\\ny"\n}'
    assert json.loads(one_line(spread)) == json.loads(spread)
    assert b"\n" not in one_line(spread)


MODERN = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


@pytest.mark.parametrize(("modern", "code"), [(False, -32000), (True, -32603)], ids=["legacy", "modern"])
def test_one_request_too_many_was_not_executed(modern, code):
    conversation = Conversation(0, 1000)
    conversation.session = "s"
    refused = conversation.take(said(id=1, method="tools/call", params={"_meta": MODERN} if modern else {}))
    assert isinstance(refused, Refused)
    [answer] = map(json.loads, refused.answers)
    assert (answer["id"], answer["error"]["code"]) == (1, code)
    assert answer["error"]["data"] == {"executed": "no"}


def test_of_a_retry_too_many_nobody_knows():
    retry = said(id=1, method="tools/call", params={"_meta": MODERN, "requestState": "x"})
    refused = Conversation(0, 1000).take(retry)
    assert isinstance(refused, Refused)
    assert json.loads(refused.answers[0])["error"]["data"] == {"executed": "unknown"}


def batch() -> bytes:
    return json.dumps([{"jsonrpc": "2.0", "id": n, "method": "tools/list"} for n in (1, 2)]).encode()


def test_every_request_of_a_batch_too_many_is_told():
    conversation = Conversation(1, 1000)
    conversation.session = "s"
    refused = conversation.take(batch())
    assert isinstance(refused, Refused)
    assert [json.loads(answer)["id"] for answer in refused.answers] == [1, 2]


def test_a_batch_before_the_handshake_is_told_what_is_missing_here():
    refused = Conversation(8, 1000).take(batch())
    assert isinstance(refused, Refused)
    told = [json.loads(answer) for answer in refused.answers]
    assert [(answer["id"], answer["error"]["message"]) for answer in told] == [
        (1, "The session is not initialized yet"),
        (2, "The session is not initialized yet"),
    ]


@pytest.mark.parametrize("named", [{}, {"id": 1}], ids=["nameless", "by the first"])
def test_what_refuses_a_whole_batch_answers_each_of_its_requests(conversation, named):
    step = conversation.take(batch())
    assert isinstance(step, Requested)
    error = {"code": -32000, "message": "no room", "data": {"executed": "no"}}
    told = [json.loads(answer) for answer in conversation.refusing(step.exchange, said(error=error, **named))]
    assert [(answer["id"], answer["error"]) for answer in told] == [(1, error), (2, error)]
    assert step.exchange.errors_for_pending() == []


def test_a_refusal_without_an_id_answers_the_request_and_ends_its_subscription(conversation):
    listening = said(id=1, method="subscriptions/listen", params={"_meta": MODERN})
    step = conversation.take(listening)
    assert isinstance(step, Requested)
    answer, end = map(json.loads, conversation.refusing(step.exchange, said(error={"code": 1, "message": "no"})))
    assert answer["id"] == 1
    assert end["params"] == {"requestId": 1}
