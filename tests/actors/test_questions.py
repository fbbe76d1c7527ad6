"""What backends ask and say unasked: whom it reaches, in whose words, and who answers when nobody can."""

import pytest
import trio

from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend, needs
from tests.support.modern_client import ModernClient

MAY_ALL = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "!"}, "model": "m"}
KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])


@KINDS
async def test_a_question_goes_out_on_the_stream_of_its_call_and_its_answer_to_the_backend_that_asked(
    autojump_clock, kind
):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        events = client.listen()
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        asked = request.ask("sampling/createMessage", SAMPLE)
        question = await call.next("sampling/createMessage")
        assert question["params"] == SAMPLE
        await client.respond(question, SAID)
        assert (await asked.outcome())["result"] == SAID
        request.text("done")
        assert (await call.result())["content"][0]["text"] == "done"
        assert events.messages == []
        assert len(asked.answers) == 1


@KINDS
async def test_an_elicitation_says_which_backend_asks(autojump_clock, kind):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        asked = (await alpha.next()).ask("elicitation/create", FORM)
        question = await call.next("elicitation/create")
        assert question["params"] == {**FORM, "message": "[alpha] Who?"}
        await client.respond(question, code=-1, message="no")
        assert (await asked.outcome())["error"] == {"code": -1, "message": "no"}


@pytest.mark.parametrize("server", [Backend, ModernBackend])
@pytest.mark.parametrize("sessions", [True, False], ids=["a client with sessions", "a client without"])
async def test_a_question_without_params_gets_none_in_the_words_of_either_era(autojump_clock, sessions, server):
    alpha, roots = server("alpha", tools=("ask",), held={"ask"}, kind="http"), {"roots": []}
    async with open_gateway(alpha) as gateway:
        modern = ModernClient(gateway.actors.door, gateway.nursery, "alpha", capabilities={"roots": {}})
        client = await gateway.connect("alpha", capabilities={"roots": {}}) if sessions else modern
        call = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        if server is Backend:
            request.upstream.transport.deliver({"id": "q", "method": "roots/list"}, request.id)
        else:
            needs(request, q={"method": "roots/list"})
        if sessions:
            question = await call.next("roots/list")
            await client.respond(question, roots)
        else:
            asked = await call.result()
            [(key, question)] = asked["inputRequests"].items()
            answers = {"inputResponses": {key: roots}, "requestState": asked.get("requestState")}
            call = client.begin("tools/call", {"name": "ask", **{k: v for k, v in answers.items() if v is not None}})
        assert question.get("params", {}) == {}
        if server is Backend:
            await gateway.settle()
            assert request.upstream.messages[-1]["result"] == roots
        else:
            request = await alpha.next()
            assert request.params["inputResponses"] == {"q": roots}
        request.text("done")
        assert (await call.result())["content"][0]["text"] == "done"


async def test_what_the_client_did_not_declare_is_refused_at_once(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        assert request.upstream.declared["capabilities"] == {}
        for method, params in (("sampling/createMessage", SAMPLE), ("elicitation/create", FORM), ("roots/list", {})):
            assert (await request.ask(method, params).outcome())["error"]["code"] == -32601


async def test_a_question_outside_any_call_goes_to_the_get_stream_or_is_refused_after_a_wait(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        await client.tool("alpha__echo")
        before = trio.current_time()
        asked = alpha.upstream.ask("roots/list", {})
        assert (await asked.outcome())["error"]["code"] == -32603
        assert 5 <= trio.current_time() - before < 6
        events = client.listen()
        await gateway.settle()
        asked = alpha.upstream.ask("roots/list", {})
        await client.respond(await events.next("roots/list"), {"roots": [{"uri": "file:///w"}]})
        assert (await asked.outcome())["result"] == {"roots": [{"uri": "file:///w"}]}


@pytest.mark.parametrize("kind", ["http", "inproc"])
async def test_where_questions_say_whose_they_are_calls_take_no_turns(autojump_clock, kind):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL)
        running = [(client.begin("tools/call", {"name": "ask"}), await alpha.next()) for _ in range(2)]
        for call, request in reversed(running):
            asked = request.ask("sampling/createMessage", SAMPLE)
            await client.respond(await call.next("sampling/createMessage"), SAID)
            assert (await asked.outcome())["result"] == SAID
        for call, request in running:
            request.text("done")
            await call.result()


async def test_over_stdio_calls_of_a_client_that_can_be_asked_take_turns(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities=MAY_ALL)
        calls = [client.begin("tools/call", {"name": "ask"}) for _ in range(2)]
        first = await alpha.next()
        await trio.sleep(1)
        assert len(alpha.asked_for("tools/call")) == 1
        first.text("done")
        (await alpha.next()).text("done")
        for call in calls:
            await call.result()


async def test_the_catalogues_connection_has_nobody_to_ask(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        await client.names()
        asked = alpha.upstream.ask("roots/list", {})
        assert (await asked.outcome())["error"]["code"] == -32601


async def test_a_question_ends_with_its_call_for_both_sides(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        asked = request.ask("sampling/createMessage", SAMPLE)
        question = await call.next("sampling/createMessage")
        request.text("never mind")
        assert (await call.next("notifications/cancelled"))["params"]["requestId"] == question["id"]
        await call.end()
        assert "error" in await asked.outcome()
        await client.post({"id": question["id"], "result": SAID}).head()
        await gateway.settle()
        assert len(asked.answers) == 1


async def test_a_question_that_the_backend_takes_back_is_taken_back_from_the_client(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        asked = request.ask("sampling/createMessage", SAMPLE)
        question = await call.next("sampling/createMessage")
        request.notify("notifications/cancelled", {"requestId": asked.id})
        assert (await call.next("notifications/cancelled"))["params"]["requestId"] == question["id"]
        request.text("done")
        await call.result()
        assert asked.answers == []


async def test_a_backend_that_dies_takes_its_questions_along(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        request.ask("sampling/createMessage", SAMPLE)
        question = await call.next("sampling/createMessage")
        request.upstream.die()
        assert (await call.next("notifications/cancelled"))["params"]["requestId"] == question["id"]
        assert (await call.error()).data["executed"] == "unknown"


async def test_on_a_connection_that_relates_nothing_one_call_runs_at_a_time_if_the_client_can_be_asked(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        calls = []
        for _ in range(3):
            calls.append(client.begin("tools/call", {"name": "alpha__ask"}))
            await gateway.settle()
        for number, call in enumerate(calls):
            assert len(alpha.asked_for("tools/call")) == number + 1
            request = await alpha.next()
            asked = request.ask("sampling/createMessage", SAMPLE)
            question = await call.next("sampling/createMessage")
            await client.respond(question, SAID)
            await asked.outcome()
            request.text("done")
            await call.result()
        plain = await gateway.connect()
        for _ in range(3):
            plain.begin("tools/call", {"name": "alpha__ask"})
        await gateway.settle()
        assert len(alpha.asked_for("tools/call")) == 6


# Notifications ------------------------------------------------------------------------------------------------


@KINDS
async def test_progress_comes_on_the_stream_of_its_call_under_the_clients_token(autojump_clock, kind):
    alpha = Backend("alpha", tools=("work",), held={"work"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"}, progress="mine")
        request = await alpha.next()
        assert request.token != "mine"
        for value in (1, 1, 0.5, 2):
            request.progress(value, total=2)
        request.text("done")
        await call.result()
        seen = [m["params"] for m in call.seen("notifications/progress")]
        assert seen == [{"progressToken": "mine", "progress": v, "total": 2} for v in (1, 2)]


@KINDS
async def test_logs_name_their_backend_and_obey_the_level(autojump_clock, kind):
    alpha = Backend("alpha", tools=("work",), held={"work"}, kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.call("logging/setLevel", {"level": "warning"})
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.log("quiet", "info")
        request.log("loud", "error", logger="disk")
        request.log("plain", "error")
        request.text("done")
        await call.result()
        seen = [(m["params"]["data"], m["params"]["logger"]) for m in call.seen("notifications/message")]
        assert seen == [("loud", "alpha/disk"), ("plain", "alpha")]


async def test_the_level_reaches_every_connection_with_logging_also_one_made_later_or_just_being_made(autojump_clock):
    alpha, beta, late = Backend("alpha"), Backend("beta"), Backend("late")
    mute = Backend("mute", capabilities={"tools": {}})
    async with open_gateway(alpha, beta, mute, late) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        own = alpha.upstream
        await client.tool("mute__echo")
        beta.mute.add("initialize")
        begun = client.begin("tools/call", {"name": "beta__echo"})
        await beta.next("initialize")
        handshake = await beta.next("initialize")
        await client.call("logging/setLevel", {"level": "error"})
        handshake.result({"protocolVersion": "2025-11-25", "capabilities": {"logging": {}, "tools": {}}})
        await begun.result()
        await client.tool("late__echo")
        for upstream in (own, beta.upstream, late.upstream):
            assert upstream.params_of("logging/setLevel") == [{"level": "error"}]
        assert "logging/setLevel" not in mute.methods


async def test_after_a_loss_the_level_is_told_again(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.call("logging/setLevel", {"level": "error"})
        await gateway.settle()
        alpha.upstream.die()
        await client.tool("alpha__echo")
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]


async def test_a_level_that_a_backend_did_not_take_is_told_again_on_its_next_connection(autojump_clock):
    alpha = Backend("alpha", mute={"logging/setLevel"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.call("logging/setLevel", {"level": "error"})
        await gateway.settle()
        alpha.upstream.die()
        await client.tool("alpha__echo")
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]


async def test_an_unknown_level_is_refused_and_told_nobody(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        error = await client.begin("logging/setLevel", {"level": "loud"}).error()
        assert error.code == -32602
        assert "logging/setLevel" not in alpha.methods


async def test_a_change_of_roots_is_told_to_every_backend_that_is_connected(autojump_clock):
    alpha, beta, gamma = (Backend(n) for n in ("alpha", "beta", "gamma"))
    async with open_gateway(alpha, beta, gamma) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        await client.tool("alpha__echo")
        await client.tool("beta__echo")
        own = (alpha.upstream, beta.upstream)
        await client.notify("notifications/roots/list_changed")
        await gateway.settle()
        for upstream in own:
            assert upstream.declared["capabilities"]["roots"] == {"listChanged": True}
            assert upstream.methods.count("notifications/roots/list_changed") == 1
        assert "notifications/roots/list_changed" not in gamma.methods


async def test_progress_of_the_client_on_a_question_goes_back_under_the_backends_own_token(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        request.ask("sampling/createMessage", {**SAMPLE, "_meta": {"progressToken": "theirs"}})
        question = await call.next("sampling/createMessage")
        token = question["params"]["_meta"]["progressToken"]
        assert token != "theirs"
        await client.notify("notifications/progress", {"progressToken": token, "progress": 1})
        await gateway.settle()
        assert request.upstream.params_of("notifications/progress") == [{"progressToken": "theirs", "progress": 1}]


async def test_that_an_elicitation_is_complete_reaches_the_session_that_was_asked_and_no_other(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        other = await gateway.connect(capabilities=MAY_ALL)
        await client.tool("alpha__echo")
        mine = alpha.upstream
        await other.tool("alpha__echo")
        events, others = client.listen(), other.listen()
        await gateway.settle()
        mine.notify("notifications/elicitation/complete", {"elicitationId": "e1"})
        await events.next("notifications/elicitation/complete")
        assert others.messages == []


# Older revisions ----------------------------------------------------------------------------------------------


async def test_the_first_call_too_is_in_the_words_of_an_older_backend(autojump_clock):
    alpha = Backend("alpha", version="2025-03-26")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        params = {
            "ref": {"type": "ref/prompt", "name": "alpha__hello"},
            "argument": {"name": "a", "value": ""},
            "context": {"arguments": {}},
        }
        for _ in range(2):
            await client.call("completion/complete", params)
        assert all("context" not in r.params for r in alpha.asked_for("completion/complete"))
        transparent = await gateway.connect("alpha")
        await transparent.call("completion/complete", {**params, "ref": {"type": "ref/prompt", "name": "hello"}})
        assert "context" not in alpha.asked_for("completion/complete")[-1].params


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_clients_answer_is_in_the_words_of_an_older_backend(autojump_clock, endpoint):
    alpha = Backend("alpha", tools=("ask",), held={"ask"}, version="2025-06-18")
    name = "ask" if endpoint else "alpha__ask"
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(endpoint, capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": name})
        request = await alpha.next()
        asked = request.ask("sampling/createMessage", SAMPLE)
        await client.respond(await call.next("sampling/createMessage"), {**SAID, "content": blocks})
        assert (await asked.outcome())["result"]["content"] == {"type": "text", "text": "one\ntwo"}
        asked = request.ask("sampling/createMessage", SAMPLE)
        await client.respond(await call.next("sampling/createMessage"), {**SAID, "content": [*blocks, image]})
        assert (await asked.outcome())["error"]["code"] == -32603
        request.text("done")
        await call.result()


async def test_an_older_client_gets_results_in_its_own_words(autojump_clock):
    alpha = Backend("alpha")
    alpha.results["tools/call"] = lambda r: {
        "content": [{"type": "resource_link", "uri": "test:///x", "name": "x"}],
        "structuredContent": {"a": 1},
    }
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(version="2025-03-26")
        result = await client.call("tools/call", {"name": "alpha__echo"})
        assert "structuredContent" not in result
        assert result["content"][0] == {"type": "text", "text": "x: alpha+test:///x"}
