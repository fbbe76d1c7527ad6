"""Answers that ask, and requests that come again with answers: suspended, wrapped, run again."""

from dataclasses import replace
from typing import Any

import pytest
from trio.testing import MockClock

from actors.machines.modern.retry import STATE_BYTES, URLS_MAX
from actors.ports import Principal
from actors.protocol.table import HttpTarget
from tests.actors.modern.conftest import Open
from tests.support.peers import Peer, ServerRequested

ANN, BOB = Principal("ann"), Principal("bob")
FORM: Any = {"elicitation": {}}
URL: Any = {"elicitation": {"url": {}}}
ECHO: Any = {"name": "echo", "arguments": {"b": 1, "a": [2]}}
QUESTION = ("q-1", "elicitation/create", {"message": "how many?", "requestedSchema": {"type": "object"}})
ANSWER = {"action": "accept", "content": {"n": 2}}
ACCEPTED = {"action": "accept"}


def again(state: str, **answers: Any) -> Any:
    """The retry."""
    return {**ECHO, "inputResponses": answers, "requestState": state}


# Backends with sessions


async def test_a_suspended_call_goes_on_at_its_pool_with_the_answers(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO, level="info")
        (await at["alpha"].next()).suspend(QUESTION, suspend="park-7")
        asked = await pending.result()
        assert pending.status == 200
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["q-1"] == {"method": QUESTION[1], "params": QUESTION[2]}
        assert "ttlMs" not in asked

        retry = client.begin("tools/call", again(asked["requestState"], **{"q-1": ANSWER}), progress=5, level="debug")
        await at.gateway.settle()
        resume = at["alpha"].resumes[0].message
        assert (resume.incarnation, resume.suspend, resume.round) == ("life", "park-7", 1)
        assert (resume.progress, resume.level) == (True, "debug")
        assert bytes(resume.answers["q-1"]) == b'{"action": "accept", "content": {"n": 2}}'
        at["alpha"].resumes[0].result({"content": []})
        assert (await retry.result())["resultType"] == "complete"
        assert len(at["alpha"].asked_for("tools/call")) == 1


async def test_the_next_round_has_a_state_of_its_own(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO)
        (await at["alpha"].next()).suspend(QUESTION)
        state = (await pending.result())["requestState"]
        pending = client.begin("tools/call", again(state, **{"q-1": ANSWER}))
        await at.gateway.settle()
        at["alpha"].resumes[0].suspend(("q-2", *QUESTION[1:]), round=2)
        asked = await pending.result()
        assert list(asked["inputRequests"]) == ["q-2"]
        assert asked["requestState"] != state
        client.begin("tools/call", again(asked["requestState"], **{"q-2": ANSWER}))
        await at.gateway.settle()
        assert at["alpha"].resumes[1].message.round == 2


async def test_an_aggregate_says_who_asks(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("", ANN, capabilities=FORM)
        pending = client.begin("tools/call", {"name": "alpha__echo"})
        (await at["alpha"].next()).suspend(QUESTION)
        asked = await pending.result()
        assert asked["inputRequests"]["q-1"]["params"]["message"] == "[alpha] how many?"
        pending = client.begin("tools/call", {"name": "alpha__echo", "requestState": asked["requestState"]})
        await at.gateway.settle()
        at["alpha"].resumes[0].result({"content": []})
        await pending.result()


@pytest.mark.parametrize("how", ["bit", "principal", "tool", "arguments", "late", "kind", "nonsense", "number"])
async def test_a_state_that_is_not_this_requests_own_executes_nothing(
    modern: Open, autojump_clock: MockClock, how: str
) -> None:
    async with modern(Peer("alpha", modern=False, tools=("echo", "other")), park_ttl=60.0) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO)
        (await at["alpha"].next()).suspend(QUESTION)
        state: Any = (await pending.result())["requestState"]
        params, principal = again(state, **{"q-1": ANSWER}), ANN
        match how:
            case "bit":
                middle = len(state) // 2
                params["requestState"] = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
            case "principal":
                principal = BOB
            case "tool":
                params["name"] = "other"
            case "arguments":
                params["arguments"] = {"b": 1, "a": [3]}
            case "late":
                object.__setattr__(at.gateway.services, "wall", lambda: 1e12)
            case "kind":
                params["inputResponses"] = []
            case "nonsense":
                params["requestState"] = "nonsense"
            case "number":
                params["requestState"] = 3
        retry = at.client("alpha", principal, capabilities=FORM).begin("tools/call", params)
        assert await retry.head() == 400
        assert (await retry.error()).code == -32602
        assert at["alpha"].resumes == []
        assert len(at["alpha"].asked_for("tools/call")) == 1


async def test_arguments_in_another_order_are_the_same(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO)
        (await at["alpha"].next()).suspend(QUESTION)
        state = (await pending.result())["requestState"]
        client.begin("tools/call", {**again(state), "arguments": {"a": [2], "b": 1}})
        await at.gateway.settle()
        assert len(at["alpha"].resumes) == 1


# Backends without sessions


def ask(call: ServerRequested, **members: Any) -> None:
    """The backend asks."""
    questions = {"k": {"method": QUESTION[1], "params": QUESTION[2]}}
    call.result({"resultType": "input_required", "inputRequests": questions, **members})


async def test_a_backends_own_state_goes_out_sealed_and_comes_back_byte_for_byte(
    modern: Open, autojump_clock: MockClock
) -> None:
    upstream = 'secret "state" \\ \u00e9'
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO)
        ask(await at["alpha"].next(), requestState=upstream)
        asked = await pending.result()
        assert "secret" not in asked["requestState"]
        retry = client.begin("tools/call", again(asked["requestState"], k=ANSWER))
        call = await at["alpha"].next()
        assert call.params["requestState"] == upstream
        assert call.params["inputResponses"] == {"k": ANSWER}
        call.text("done")
        await retry.result()


async def test_a_backends_own_state_may_be_long(modern: Open, autojump_clock: MockClock) -> None:
    upstream = "s" * STATE_BYTES
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO)
        ask(await at["alpha"].next(), requestState=upstream)
        client.begin("tools/call", again((await pending.result())["requestState"], k=ANSWER))
        assert (await at["alpha"].next()).params["requestState"] == upstream


async def test_a_backends_own_state_that_no_client_could_bring_back_is_said_to_be_too_long(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha", ANN, capabilities=FORM).begin("tools/call", ECHO)
        ask(await at["alpha"].next(), requestState="s" * (STATE_BYTES + 1))
        error = await pending.error()
        assert (error.code, error.data["reason"], error.data["executed"]) == (-32603, "state_too_large", "unknown")


async def test_another_principal_gets_nothing_of_it(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha", ANN, capabilities=FORM).begin("tools/call", ECHO)
        ask(await at["alpha"].next(), requestState="s")
        state = (await pending.result())["requestState"]
        retry = at.client("alpha", BOB, capabilities=FORM).begin("tools/call", again(state, k=ANSWER))
        assert await retry.head() == 400
        assert len(at["alpha"].asked_for("tools/call")) == 1


async def test_no_state_upstream_is_no_state_downstream(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha", ANN, capabilities=FORM)
        pending = client.begin("tools/call", ECHO)
        ask(await at["alpha"].next())
        assert "requestState" not in await pending.result()
        client.begin("tools/call", {**ECHO, "inputResponses": {"k": ANSWER}})
        assert (await at["alpha"].next()).params["inputResponses"] == {"k": ANSWER}


async def test_a_question_that_this_request_did_not_declare_is_refused(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("").begin("tools/call", {**ECHO, "name": f"alpha__{ECHO['name']}"})
        ask(await at["alpha"].next())
        assert await pending.head() == 400
        error = await pending.error()
        assert (error.code, error.data) == (-32021, {"requiredCapabilities": {"elicitation": {"form": {}}}})


# The way of 2025-11-25 to send a user to an address


def send_away(call: ServerRequested) -> None:
    entries = [{"mode": "url", "elicitationId": "e", "url": "https://a.test/", "message": "log in"}]
    call.error(-32042, "go there", {"elicitations": entries})


async def test_a_call_runs_again_once_the_user_has_been_where_the_backend_sent_them(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=URL)
        pending = client.begin("tools/call", ECHO)
        send_away(await at["alpha"].next())
        asked = await pending.result()
        params = {"mode": "url", "message": "log in", "url": "https://a.test/"}
        assert asked["inputRequests"] == {"url-1": {"method": "elicitation/create", "params": params}}
        retry = client.begin("tools/call", again(asked["requestState"], **{"url-1": {"action": "accept"}}))
        call = await at["alpha"].next()
        assert not {"requestState", "inputResponses"} & call.params.keys()
        call.result({"content": []})
        await retry.result()


async def test_a_user_may_be_sent_to_many_long_addresses(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=URL)
        pending = client.begin("tools/call", ECHO)
        entries = [{"mode": "url", "elicitationId": "e", "url": f"https://a.test/{n:03000}"} for n in range(URLS_MAX)]
        (await at["alpha"].next()).error(-32042, "go there", {"elicitations": entries})
        asked = await pending.result()
        client.begin("tools/call", again(asked["requestState"], **dict.fromkeys(asked["inputRequests"], ACCEPTED)))
        await at["alpha"].next()


async def test_what_was_not_answered_is_asked_again_and_runs_nothing(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=URL)
        pending = client.begin("tools/call", ECHO)
        send_away(await at["alpha"].next())
        asked = await pending.result()
        once_more = await client.call("tools/call", again(asked["requestState"]))
        assert once_more["inputRequests"] == asked["inputRequests"]
        assert len(at["alpha"].asked_for("tools/call")) == 1


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_who_would_not_go_ends_the_call(modern: Open, autojump_clock: MockClock, action: str) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=URL)
        pending = client.begin("tools/call", ECHO)
        send_away(await at["alpha"].next())
        state = (await pending.result())["requestState"]
        assert (await client.call("tools/call", again(state, **{"url-1": {"action": action}})))["isError"]
        assert len(at["alpha"].asked_for("tools/call")) == 1


async def test_a_client_that_can_not_open_addresses_is_told_them_in_words(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        pending = at.client("alpha", ANN, capabilities=FORM).begin("tools/call", ECHO)
        send_away(await at["alpha"].next())
        result = await pending.result()
        assert result["isError"] is True
        assert "https://a.test/" in result["content"][0]["text"]


async def test_codes_that_the_era_does_not_have_never_reach_the_client(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha", ANN, capabilities=URL)
        for code in (-32042, -32002, -32001, -32022):
            pending = client.begin("tools/call", ECHO)
            (await at["alpha"].next()).error(code)
            assert (await pending.error()).code == -32603
        pending = client.begin("resources/read", {"uri": "a:b"})
        (await at["alpha"].next("resources/read")).error(-32002)
        error = await pending.error()
        assert (pending.status, error.code, error.data) == (400, -32602, {"uri": "a:b"})


async def test_nothing_is_remembered_of_calls_that_wait_for_their_client(
    modern: Open, autojump_clock: MockClock
) -> None:
    http = HttpTarget("http://alpha")
    peer = Peer("alpha", modern=False, known=False)
    async with modern(peer) as at:
        backends = at.gateway.services.table.value.backends
        at.gateway.change(backends={**backends, "alpha": replace(backends["alpha"], target=http)})
        for n in range(3):
            pending = at.client("alpha", ANN, capabilities=FORM).begin("tools/call", ECHO)
            (await peer.next()).suspend(QUESTION, suspend=str(n))
            await pending.result()
            peer.known = False  # as after a loss
        await at.gateway.settle()
        (actor,) = [ref.cell.actor for ref in at.supervisor.children()]
        assert not any(actor.endpoint.statistics().values())
