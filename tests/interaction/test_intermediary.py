"""`/mcp/<backend>` between peers of one revision: what they say to each other passes, whoever knows what it means.

On an aggregate nobody could say which server a strange method belongs to, or who is to answer; there the gates stay.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import InputNeeded, Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import METHOD_NOT_FOUND
from tests.interaction.era_backend import ModernBackend
from tests.interaction.scripts import EVERYTHING, FORM, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.modern_wire import Listening, ModernWire
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import Message, RpcError

SESSIONS = pytest.mark.cells(
    (
        *(Cell(revision) for revision in ("2024-11-05", "2025-03-26", "2025-06-18")),
        Cell(),
        Cell(NEWEST, "memory", "stdio"),
        Cell(NEWEST, "memory", "http"),
    )
)
"""Both ends speak the revision of the cell."""

WITHOUT = pytest.mark.cells((*(Cell(MODERN, "memory", kind, "modern") for kind in ("inproc", "http")),))
"""Neither end has sessions."""

EVERY_WITHOUT = pytest.mark.cells((*(Cell(MODERN, "memory", kind, "modern") for kind in ("inproc", "stdio", "http")),))
"""The same, over each transport."""

SEARCH, LOOKUP, BEAT, NEWS = "acme/search", "acme/lookup", "acme/heartbeat", "acme/things/list_changed"
TOPICS = "acme/topics"
PAGE = {"mode": "url", "message": "Sign in first", "url": "https://example.com/in?x=1", "elicitationId": "e-1"}


@SESSIONS
@pytest.mark.requirement("transparent-requests")
async def test_a_request_that_nobody_here_knows_is_between_client_and_server(stage: Stage, cell: Cell) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.extensions |= {SEARCH, "acme/unheard"}

    @backend.on(SEARCH)
    async def search(request: Request) -> Message:
        if request.params["query"] == "nothing":
            raise RpcError({"code": 404, "message": "no hits", "data": {"tried": 3}})
        return {"hits": [request.params["query"]], "total": 1}

    client = await stage.connect("/mcp/alpha")
    client.trusting = True
    assert await client.request(SEARCH, {"query": "x", "_meta": {"of": "mine"}}) == {"hits": ["x"], "total": 1}
    error = await client.refused(SEARCH, {"query": "nothing"})
    assert (error.code, error.message, error.data) == (404, "no hits", {"tried": 3})
    assert (await client.refused("acme/unheard")).code == METHOD_NOT_FOUND
    merged = await stage.connect("/mcp")
    assert (await merged.refused(SEARCH, {"query": "x"})).code == METHOD_NOT_FOUND


@SESSIONS
@pytest.mark.requirement("transparent-requests")
@pytest.mark.parametrize("sharing", ["session", "shared"])
async def test_members_that_their_revision_does_not_have_are_between_client_and_server(
    stage: Stage, cell: Cell, sharing: str
) -> None:
    backend = await stage.backend(
        revision=cell.revision, sharing=sharing, capabilities={"tools": {}, "completions": {}}
    )
    backend.trusting = True
    backend.result("echo", text("yes"))
    backend.answers("completion/complete", {"completion": {"values": ["x"]}})
    client = await stage.connect("/mcp/alpha")
    client.trusting = True
    asked = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "x"}}
    for _ in "12":  # with the first one the connection may still be made
        await client.request("completion/complete", {**asked, "context": {"arguments": {"b": "y"}}})
        await client.request("tools/call", {"name": "echo", "arguments": {}, "task": {"ttl": 1}, "inputResponses": 7})
    for request in backend.of("completion/complete"):
        assert request["params"]["context"] == {"arguments": {"b": "y"}}
    # The tasks of 2025-11-25 are known here: over a connection that others use too nobody has any.
    tasks = cell.revision != NEWEST or sharing == "session"
    for request in backend.of("tools/call"):
        assert (request["params"].get("task"), request["params"]["inputResponses"]) == (
            {"ttl": 1} if tasks else None,
            7,
        )
    merged = await stage.connect("/mcp")
    as_task = {"name": "alpha__echo", "arguments": {}, "task": {"ttl": 1}}
    if cell.revision == NEWEST and sharing == "session":  # it offers tasks, for others may run them: this one does not
        before = len(backend.of("tools/call"))
        with pytest.raises(RpcError, match="-32601"):
            await merged.request("tools/call", as_task)
        assert len(backend.of("tools/call")) == before
    else:
        await merged.request("tools/call", as_task)
        assert "task" not in backend.of("tools/call")[-1]["params"]


@SESSIONS
@pytest.mark.requirement("transparent-questions")
async def test_a_question_that_nobody_here_knows_is_answered_by_the_client(stage: Stage, cell: Cell) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.trusting = True

    @backend.tool("read")
    async def read(request: Request) -> Message:
        return text(str([await request.ask(LOOKUP, {"key": "theme"}), await _error(request, LOOKUP, {"key": "no"})]))

    client = await stage.connect("/mcp/alpha")
    client.extensions |= {LOOKUP}
    call = client.start_call("read")
    question = await call.message(LOOKUP)
    assert question["params"] == {"key": "theme"}
    await client.answer(question, {"value": "dark"})
    await client.decline(await call.message(LOOKUP), -7, "no such key")
    assert await call.result() == text("[{'value': 'dark'}, (-7, 'no such key')]")


async def _error(request: Request, method: str, params: Message) -> tuple[int, str]:
    with pytest.raises(RpcError) as refused:
        await request.ask(method, params)
    return refused.value.code, refused.value.message


@SESSIONS
@pytest.mark.requirement("transparent-notifications")
async def test_a_notification_that_nobody_here_knows_passes_both_ways(stage: Stage, cell: Cell) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.extensions |= {BEAT}

    @backend.tool("sync")
    async def sync(request: Request) -> Message:
        for seq in (1, 2):
            request.notify(BEAT, {"seq": seq})
        return text("done")

    client = await stage.connect("/mcp/alpha")
    client.extensions |= {BEAT}
    stream = await client.listen()
    call = client.start_call("sync")
    if cell.transport == "stdio":  # nothing says there that it belongs to the call
        assert [(await stream.message(BEAT))["params"] for _ in "12"] == [{"seq": 1}, {"seq": 2}]
        await call.result()
    else:
        await call.result()
        assert [m["params"] for m in call.messages[:-1]] == [{"seq": 1}, {"seq": 2}]
    await client.notify(BEAT, {"seq": 3})
    assert (await backend.connections[-1].wait_for(BEAT))["params"] == {"seq": 3}


@SESSIONS
@pytest.mark.requirement("transparent-notifications", "restart-session")
@pytest.mark.parametrize("lost", ["here", "there"])
async def test_what_a_client_notifies_brings_back_the_connection(stage: Stage, cell: Cell, lost: str) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.extensions |= {BEAT}
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    await client.call("echo")
    if lost == "here":
        await stage.crash()
    elif cell.transport != "http":
        await stage.break_connections(backend)
        with trio.fail_after(10):
            while not stage.log.of("backend_failed"):
                await trio.sleep(0)
    for seq in (1, 2, 3):
        await client.notify(BEAT, {"seq": seq})
    await client.call("echo")
    connection = backend.connections[-1]
    await connection.wait_for(BEAT, 3)  # over HTTP each is a request of its own
    assert [m["params"]["seq"] for m in connection.of(BEAT)] == [1, 2, 3]


@JUMPING
@pytest.mark.requirement("transparent-notifications")
async def test_what_a_client_notified_in_vain_is_counted(stage: Stage) -> None:
    """Over a connection that others use too it could be anybody's."""
    backend = await stage.backend(sharing="shared")
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    await client.notify(BEAT)
    await client.call("echo")
    assert not backend.of(BEAT)
    assert stage.telemetry.total("stagedoor_messages_dropped_total", "unknown_notification") == 1


@pytest.mark.cells((Cell(NEWEST, "memory", "http"),))
@pytest.mark.requirement("transparent-notifications")
async def test_a_notification_that_finds_no_session_at_the_server_is_logged(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {BEAT}
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    await client.call("echo")
    await stage.break_connections(backend)  # its sessions are gone
    await client.notify(BEAT, {"seq": 1})
    with trio.fail_after(10):
        while not stage.log.of("backend_post_refused"):
            await trio.sleep(0)
    assert "session" in stage.log.of("backend_post_refused")[0]["why"]
    await client.notify(BEAT, {"seq": 2})
    assert (await (await backend.connection(2)).wait_for(BEAT))["params"] == {"seq": 2}


@JUMPING
@pytest.mark.requirement("transparent-notifications")
async def test_what_only_its_name_has_in_common_with_a_change_of_lists_is_said_each_time(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {NEWS}
    backend.result("echo", text("yes"))
    client = await stage.connect("/mcp/alpha")
    client.extensions |= {NEWS}
    await client.call("echo")
    for seq in (1, 2):
        backend.announce(NEWS, f"x:{seq}")
    await client.call("echo")
    stream = await client.listen()
    assert [(await stream.message(NEWS))["params"] for _ in "12"] == [{"uri": "x:1"}, {"uri": "x:2"}]


@JUMPING
@pytest.mark.requirement("transparent-notifications", "pitfall-30")
async def test_what_nobody_here_knows_reaches_nobody_over_a_shared_connection(stage: Stage) -> None:
    """But for what comes in the course of a call: of anything else its server could not say whom it concerns."""
    backend = await stage.backend(sharing="shared")
    backend.extensions |= {NEWS, BEAT}

    @backend.tool("sync")
    async def sync(request: Request) -> Message:
        for method in (NEWS, BEAT, "notifications/tools/list_changed"):
            request.connection.notify(method, {"of": "somebody"})
        return text("done")

    one, two = [await stage.connect("/mcp/alpha") for _ in "12"]
    streams = [await client.listen() for client in (one, two)]
    await one.call("sync")
    for stream in streams:
        assert (await stream.next() or {})["method"] == "notifications/tools/list_changed"


@SESSIONS
@pytest.mark.requirement("transparent-questions")
async def test_what_the_client_did_not_declare_it_refuses_itself(stage: Stage, cell: Cell) -> None:
    asking(await stage.backend(revision=cell.revision))
    client = await stage.connect("/mcp/alpha", capabilities={})
    client.extensions |= {"elicitation/create"}
    call = client.start_call("ask", method="elicitation/create", params=FORM)
    question = await call.message("elicitation/create")
    assert question["params"] == FORM
    await client.decline(question, -32600, "Elicitation not supported")
    assert (await call.result())["_meta"]["code"] == -32600


@pytest.mark.cells((Cell("2025-06-18"),))
@pytest.mark.requirement("transparent-questions")
async def test_an_answer_of_the_client_is_not_put_into_other_words_for_its_own_revision(
    stage: Stage, cell: Cell
) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.trusting = True
    heard: list[Message] = []

    @backend.tool("write")
    async def write(request: Request) -> Message:
        heard.append(await request.ask("sampling/createMessage", {"messages": [], "maxTokens": 1}))
        return text("done")

    client = await stage.connect("/mcp/alpha", capabilities=EVERYTHING)
    call = client.start_call("write")
    answer = {"role": "assistant", "model": "m", "content": [{"type": "text", "text": one} for one in "ab"]}
    await client.answer(await call.message("sampling/createMessage"), answer)
    await call.result()
    assert heard == [answer]


@JUMPING
@pytest.mark.requirement("transparent-questions")
async def test_a_shared_connection_asks_nobody(stage: Stage) -> None:
    """Its server could not say whom it asks."""
    asking(await stage.backend(sharing="shared"))
    client = await stage.connect("/mcp/alpha", capabilities=EVERYTHING)
    call = client.start_call("ask", method=LOOKUP, params={})
    assert (await call.result())["_meta"]["code"] == METHOD_NOT_FOUND
    assert len(call.messages) == 1


@SESSIONS
@pytest.mark.requirement("transparent-capabilities")
async def test_the_server_hears_what_the_client_declares_word_by_word(stage: Stage, cell: Cell) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.result("echo", text("yes"))
    declared = {
        "roots": {"listChanged": True},
        "experimental": {"x-vendor/telemetry": {"rate": 5}},
        "extensions": {"com.example/flags": {"a": [1]}},
        "strange": 5,
    }
    client = await stage.connect("/mcp/alpha", capabilities=declared)
    await client.call("echo")
    told = backend.connections[-1].client["capabilities"]
    if cell.revision == NEWEST:
        assert told == declared
    else:  # the server is offered the newest revision, and might misread the rest
        assert told == {name: value for name, value in declared.items() if name != "strange"}
    merged = await stage.connect("/mcp", capabilities=declared)
    await merged.call("alpha__echo")
    assert backend.connections[-1].client["capabilities"] == {"roots": {"listChanged": True}}


@SESSIONS
@pytest.mark.requirement("transparent-errors")
@pytest.mark.parametrize(
    "error",
    [
        {"code": -32002, "message": "not here", "data": {"uri": "x:1"}},
        {"code": -32042, "message": "sign in", "data": {"elicitations": [PAGE], "more": 1}},
        {"code": -32021, "message": "odd"},
        {"code": 7, "message": "odd", "data": [1]},
    ],
    ids=str,
)
async def test_errors_of_the_server_are_the_clients(stage: Stage, cell: Cell, error: Any) -> None:
    backend = await stage.backend(revision=cell.revision)
    backend.result("needs", text("yes"))
    backend.refuses("tools/call", error["code"], error["message"], error.get("data"))
    client = await stage.connect("/mcp/alpha", capabilities={})
    seen = await client.start_call("needs").error()
    assert (seen.code, seen.message, seen.data) == (error["code"], error["message"], error.get("data"))


@JUMPING
@pytest.mark.requirement("url-never-lost")
async def test_a_page_that_a_client_cannot_be_sent_to_is_told_in_words(stage: Stage) -> None:
    backend = await stage.backend()
    backend.add("resources", {"uri": "x:1", "name": "x"})
    backend.result("needs", text("yes"))
    for method in ("tools/call", "resources/read"):
        backend.refuses(method, -32042, "sign in", {"elicitations": [PAGE]})
    for client, uri in (
        (await stage.connect("/mcp", capabilities={"elicitation": {}}), "alpha+x:1"),
        (stage.modern("/mcp", capabilities={"elicitation": {}}), "alpha+x:1"),
        (stage.modern("/mcp/alpha", capabilities={}), "x:1"),
    ):
        name = "needs" if uri == "x:1" else "alpha__needs"
        result = await client.call(name)
        assert result["isError"]
        assert result["content"][0]["text"] == f"sign in\n\n{PAGE['message']}\n{PAGE['url']}"
        error = await client.refused("resources/read", {"uri": uri})
        assert error.code == -32603
        assert error.data["elicitations"] == [{"url": PAGE["url"], "message": PAGE["message"]}]


@JUMPING
@pytest.mark.requirement("params-always")
async def test_a_request_without_params_comes_with_empty_ones(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("roots")
    async def roots(request: Request) -> Message:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("roots"))
    question = await call.message("roots/list")
    assert question["params"] == {}
    await client.answer(question, {"roots": []})
    await call.result()
    await client.request("tools/list")
    assert all("params" in m for m in backend.connections[-1].received if "id" in m and "method" in m)
    modern = stage.modern(route.path, capabilities=EVERYTHING)
    required = await modern.start_call(route.name("roots")).required()
    assert [q["params"] for q in required["inputRequests"].values()] == [{}]


# Without sessions --------------------------------------------------------------------------------------------


@WITHOUT
@pytest.mark.requirement("transparent-requests")
async def test_without_sessions_too_a_request_that_nobody_here_knows_passes(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {SEARCH, "acme/unheard"}
    said: list[Message] = []

    @backend.on(SEARCH)
    async def search(request: Request) -> Message:
        said.append(request.params)
        if request.params["query"] == "nothing":
            raise RpcError({"code": 404, "message": "no hits", "data": {"tried": 3}})
        return {"hits": [request.params["query"]]}

    client = stage.modern("/mcp/alpha", capabilities={"experimental": {"x-vendor/y": {"z": 1}}})
    client.extensions |= {SEARCH, "acme/unheard"}
    client.trusting = True
    assert (await client.request(SEARCH, {"query": "x"}))["hits"] == ["x"]
    assert said[0]["_meta"][rules.CAPABILITIES] == {"experimental": {"x-vendor/y": {"z": 1}}}
    error = await client.refused(SEARCH, {"query": "nothing"})
    assert (error.code, error.message, error.data) == (404, "no hits", {"tried": 3})
    unheard = client.start("acme/unheard")
    assert (await unheard.error()).code == METHOD_NOT_FOUND
    assert unheard.exchange.status == 404
    merged = stage.modern("/mcp")
    merged.extensions |= {SEARCH}
    assert (await merged.refused(SEARCH, {"query": "x"})).code == METHOD_NOT_FOUND
    assert len(said) == 2


@WITHOUT
@pytest.mark.requirement("transparent-capabilities")
async def test_without_sessions_too_a_server_introduces_itself_in_its_own_words(stage: Stage) -> None:
    backend = await stage.backend(instructions="Ask first.")
    discover = backend.handlers["server/discover"]

    @backend.on("server/discover")
    async def more(request: Request) -> Message:
        return {**(await discover(request) or {}), "acme": {"plan": 9}, "_meta": {"acme/of": "mine"}}

    found = await stage.modern("/mcp/alpha").request("server/discover")
    assert (found["acme"], found["instructions"]) == ({"plan": 9}, "Ask first.")
    assert found["_meta"] == {rules.SERVER: backend.info, "acme/of": "mine"}
    session = await stage.connect("/mcp/alpha", revision=NEWEST)
    assert set(session.server_info) == {"protocolVersion", "capabilities", "serverInfo", "instructions"}


@pytest.mark.cells((Cell(MODERN),))
@pytest.mark.requirement("transparent-requests")
async def test_a_request_that_nobody_here_knows_does_not_cross_the_eras(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {SEARCH}
    backend.answers(SEARCH, {"hits": []})
    client = stage.modern("/mcp/alpha")
    client.extensions |= {SEARCH}
    for _ in "12":  # before the era of the server is known, and after
        assert (await client.refused(SEARCH)).code == METHOD_NOT_FOUND
        await client.request("tools/list") if backend.items else None
    assert not backend.of(SEARCH)
    server = await stage.modern_backend("gamma", era="modern")
    server.extensions |= {SEARCH}
    server.result("echo", text("yes"))
    session = await stage.connect("/mcp/gamma", revision=NEWEST)
    session.extensions |= {SEARCH}
    session.trusting = True
    for _ in "12":
        assert (await session.refused(SEARCH)).code == METHOD_NOT_FOUND
        await session.call("echo")
    assert not server.of(SEARCH)


@WITHOUT
@pytest.mark.requirement("transparent-notifications")
async def test_without_sessions_too_what_is_known_keeps_its_direction(stage: Stage) -> None:
    backend = await stage.backend()
    backend.trusting = True
    theirs = ("notifications/initialized", "notifications/roots/list_changed", "tools/call", "roots/list")
    others = ("notifications/elicitation/complete", "notifications/tasks/status", "notifications/tasks")
    own = "notifications/subscriptions/acknowledged"

    @backend.tool("sync")
    async def sync(request: Request) -> Message:
        for method in (*theirs, *others, own, BEAT):
            request.notify(method, {"taskId": "t", "elicitationId": "e"})
        return text("done")

    client = stage.modern("/mcp/alpha")
    client.extensions |= {BEAT}
    call = client.start_call("sync")
    await call.complete()
    assert [m["method"] for m in call.messages[:-1]] == [BEAT]


@WITHOUT
@pytest.mark.requirement("transparent-notifications", "progress")
async def test_without_sessions_too_what_a_server_says_in_a_call_passes(stage: Stage) -> None:
    backend = await stage.backend()
    backend.trusting = True

    @backend.tool("sync")
    async def sync(request: Request) -> Message:
        request.notify(BEAT, {"seq": 1})
        for progress in (1, 1, 0.5):
            request.progress(progress)
        return text("done")

    client = stage.modern("/mcp/alpha")
    client.extensions |= {BEAT}
    client.trusting = True
    call = client.start_call("sync", token="mine")
    await call.complete()
    assert [m["method"] for m in call.messages[:-1]] == [BEAT, *["notifications/progress"] * 3]
    assert [p["progress"] for p in call.seen("notifications/progress")] == [1, 1, 0.5]


@EVERY_WITHOUT
@pytest.mark.requirement("transparent-notifications")
async def test_without_sessions_too_what_a_client_notifies_reaches_the_server(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {BEAT, "notifications/progress"}
    client = stage.modern("/mcp/alpha")
    await client.notify(BEAT, {"seq": 1, "_meta": {"of": "mine"}})  # with it the connection is made
    connection = await backend.connection(1)
    assert (await connection.wait_for(BEAT))["params"] == {"seq": 1, "_meta": {"of": "mine"}}
    for seq in (2, 3):
        await client.notify(BEAT, {"seq": seq})
    assert (await connection.wait_for(BEAT, 3))["params"] == {"seq": 3}
    assert [m["params"].get("seq") for m in connection.of(BEAT)] == [1, 2, 3]
    token = {"progressToken": "known elsewhere", "progress": 1}
    await client.notify("notifications/progress", token)
    assert (await connection.wait_for("notifications/progress"))["params"] == token
    assert all("id" not in m for m in connection.of(BEAT))
    assert len(backend.connections) == 1


@EVERY_WITHOUT
@pytest.mark.requirement("transparent-notifications", "bridge-posted-cancel")
async def test_without_sessions_only_what_no_table_knows_is_passed_on(stage: Stage, cell: Cell) -> None:
    backend = await stage.backend()
    backend.extensions |= {BEAT, "a\x01b"}
    backend.result("echo", text("yes"))
    client = stage.modern("/mcp/alpha")
    await client.call("echo")
    before = len(backend.connections[-1].received)
    for method in (
        "notifications/cancelled",
        "notifications/initialized",
        "notifications/roots/list_changed",
        "notifications/tasks",
        "tools/call",
        "tasks/cancel",
    ):
        await client.notify(method, {"requestId": 1, "name": "echo"}, mcp_name=None)
    await stage.modern("/mcp").notify(BEAT, {"seq": 1})
    await client.notify("a\x01b", mcp_method="strange")  # no header carries it
    await client.notify(BEAT, {"seq": 2})
    connection = backend.connections[-1]
    assert (await connection.wait_for(BEAT))["params"] == {"seq": 2}
    said = [m["method"] for m in connection.received[before:] if "id" not in m]
    assert said == ([BEAT] if cell.transport == "http" else ["a\x01b", BEAT])


@pytest.mark.cells((Cell(MODERN),))
@pytest.mark.requirement("transparent-notifications")
async def test_a_notification_that_nobody_here_knows_does_not_cross_the_eras(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = stage.modern("/mcp/alpha")
    for _ in "12":  # before the era of the server is known, and after
        await client.notify(BEAT)
        await client.call("echo")
    assert not [m for c in backend.connections for m in c.of(BEAT)]
    other = await stage.modern_backend("beta", era="modern")
    other.result("echo", text("yes"))
    session = await stage.connect("/mcp/beta", revision=NEWEST)
    await session.notify(BEAT)
    await session.call("echo")
    assert not [m for c in other.connections for m in c.of(BEAT)]


@WITHOUT
@pytest.mark.requirement("transparent-errors")
@pytest.mark.parametrize("code", [-32002, -32042, -32050, 7])
async def test_without_sessions_too_errors_are_the_clients(stage: Stage, code: int) -> None:
    backend = await stage.backend()
    backend.trusting = True
    backend.add("resources", {"uri": "x:1", "name": "x"})
    backend.refuses("resources/read", code, "odd", {"a": 1})
    client = stage.modern("/mcp/alpha")
    client.trusting = True
    error = await client.refused("resources/read", {"uri": "x:1"})
    assert (error.code, error.message, error.data) == (code, "odd", {"a": 1})


@WITHOUT
@pytest.mark.requirement("transparent-errors")
async def test_without_sessions_too_no_error_of_the_server_is_taken_for_one_of_ours(stage: Stage) -> None:
    """Neither is its call made again for what stands in it, nor an old answer given in its place."""
    backend = await stage.backend()
    backend.trusting, backend.hints = True, {"ttlMs": 1, "cacheScope": "public"}
    ran: list[Request] = []

    @backend.tool("sync")
    async def sync(request: Request) -> Message:
        ran.append(request)
        raise RpcError({"code": -32603, "message": "no", "data": {"reason": "headers", "executed": "no"}})

    client = stage.modern("/mcp/alpha")
    client.trusting = True
    assert (await client.refused("tools/call", {"name": "sync"})).data == {"reason": "headers", "executed": "no"}
    assert len(ran) == 1
    await client.request("tools/list")
    await trio.sleep(0.01)
    backend.refuses("tools/list", -32603, "out of order", {"a": 1})
    assert (await client.refused("tools/list")).data == {"a": 1}


@WITHOUT
@pytest.mark.requirement("transparent-questions")
async def test_without_sessions_too_a_question_that_was_not_declared_is_the_clients(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        if "q" not in request.answers:
            raise InputNeeded({"q": {"method": "elicitation/create", "params": FORM}})
        return text(str(request.answers["q"]))

    client = stage.modern("/mcp/alpha", capabilities={})
    client.trusting = True
    call = client.start_call("ask")
    required, key, question = await call.question()
    assert question == {"method": "elicitation/create", "params": FORM}
    done = await client.retry(call, required, {key: {"action": "decline"}}).complete()
    assert done["content"] == text("{'action': 'decline'}")["content"]


@WITHOUT
@pytest.mark.requirement("log-levels", "transparent-requests")
async def test_without_sessions_too_a_level_that_only_the_server_knows_leaves_nothing_out(stage: Stage) -> None:
    backend = await stage.backend()
    backend.extensions |= {"tools/call"}

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        if request.params["_meta"][rules.LEVEL] == "silent":
            raise RpcError({"code": -32602, "message": "no such level", "data": {"levels": 9}})
        request.log("debug", "quiet")
        request.log("error", "loud")
        return text("done")

    client = stage.modern("/mcp/alpha")
    message = client.request_message("tools/call", {"name": "logs", "arguments": {}})
    message["params"]["_meta"][rules.LEVEL] = "chatty"
    call = client.send(message)
    await call.complete()
    assert [m["params"]["data"] for m in call.messages[:-1]] == ["quiet", "loud"]
    message = client.request_message("tools/call", {"name": "logs", "arguments": {}})
    message["params"]["_meta"][rules.LEVEL] = "silent"
    error = await client.send(message).error()
    assert (error.code, error.message, error.data) == (-32602, "no such level", {"levels": 9})


@pytest.mark.cells((*(Cell(MODERN, "memory", kind) for kind in ("inproc", "stdio", "http")),))
@pytest.mark.requirement("log-levels")
async def test_a_level_that_nobody_here_knows_does_not_cross_the_eras(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = stage.modern("/mcp/alpha")
    for _ in "12":  # before the era of the server is known, and after
        message = client.request_message("tools/call", {"name": "echo", "arguments": {}})
        message["params"]["_meta"][rules.LEVEL] = "chatty"
        assert (await client.send(message).error()).code == -32602
        await client.call("echo")
    assert len(backend.of("tools/call")) == 2
    assert not backend.of("logging/setLevel")


@WITHOUT
@pytest.mark.requirement("transparent-extensions")
@pytest.mark.parametrize("declares", [True, False])
async def test_a_type_of_an_extension_that_both_ends_declared_passes(
    stage: Stage, route: Route, declares: bool
) -> None:
    apps = {"io.modelcontextprotocol/ui": {}}
    backend = await stage.backend(capabilities={"tools": {}, "extensions": apps})
    backend.trusting = True
    backend.result("buy", {"resultType": "receipt", "receiptToken": "r-117"})
    client = stage.modern(route.path, capabilities={"extensions": apps} if declares else {})
    client.trusting = True
    call = client.start_call(route.name("buy"))
    if declares or not route.name_prefix:
        result = await call.result()
        assert (result["resultType"], result["receiptToken"]) == ("receipt", "r-117")
    else:
        assert (await call.error()).code == -32603


def _listening(client: ModernWire, **wanted: Any) -> Listening:
    message = client.request_message("subscriptions/listen", {"notifications": wanted})
    return Listening(client, client.post(message), message)


async def _watched(stage: Stage) -> ModernBackend:
    """A server that knows more kinds of changes than anybody else, and grants part of them."""
    backend = await stage.modern_backend(capabilities={"tools": {"listChanged": True}})
    backend.extensions |= {BEAT, NEWS}
    backend.trusting = True
    backend.honours = lambda wanted: {**wanted, TOPICS: wanted[TOPICS][:1]} if TOPICS in wanted else wanted
    return backend


@EVERY_WITHOUT
@pytest.mark.requirement("transparent-notifications", "pitfall-30")
async def test_a_filter_that_only_the_server_knows_is_its_clients_alone(stage: Stage) -> None:
    backend = await _watched(stage)
    clients = [stage.modern("/mcp/alpha") for _ in "12"]
    listening = []
    for client in clients:
        client.extensions |= {BEAT}
        listening.append(_listening(client, toolsListChanged=True, **{TOPICS: ["a", "b"]}))
        assert await listening[-1].acknowledged() == {"toolsListChanged": True, TOPICS: ["a"]}
    for number, own in enumerate((await backend.listening(1), await backend.listening(2))):
        assert own.request.params["notifications"] == {"toolsListChanged": True, TOPICS: ["a", "b"]}
        own.tell("notifications/tools/list_changed", {})
        for seq in (1, 2):
            own.tell(BEAT, {"of": number, "seq": seq})
    for number, (client, heard) in enumerate(zip(clients, listening, strict=True)):
        client.trusting = True
        said = []
        while len(said) < 2:
            message = await heard.next()
            assert message is not None
            said += [message["params"]] if message["method"] == BEAT else []
        tag = {rules.SUBSCRIPTION: heard.id}
        assert said == [{"of": number, "seq": seq, "_meta": tag} for seq in (1, 2)]
    listening[0].cut()
    with trio.fail_after(10):
        while len(backend.live) > 1:
            await trio.sleep(0.01)
    backend.live[0].tell(BEAT, {"seq": 3})
    assert (await listening[1].message(BEAT))["seq"] == 3


@WITHOUT
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("transparent-notifications", "pitfall-30")
async def test_what_only_a_server_knows_is_said_to_those_who_listen_there(stage: Stage) -> None:
    backend = await _watched(stage)
    backend.result("echo", text("yes"))
    session = await stage.connect("/mcp/alpha", revision=NEWEST, token="token-of-ann")
    await session.call("echo")
    stream = await session.listen()
    ann, bob = (stage.modern("/mcp/alpha", token=f"token-of-{name}") for name in ("ann", "bob"))
    ann.extensions |= {NEWS}
    bob.extensions |= {NEWS}
    one, other, third = await ann.listen(tools=True), await ann.listen(tools=True), await ann.listen(prompts=True)
    bobs = await bob.listen(tools=True)
    among = _listening(stage.modern("/mcp", token="token-of-ann"), toolsListChanged=True, **{TOPICS: ["a"]})
    assert await among.acknowledged() == {"toolsListChanged": True}
    await backend.listening(5)  # that of the sessions, one for each filter of a principal, and the aggregate's
    assert all(TOPICS not in listen.request.params["notifications"] for listen in backend.listens)
    for number, listen in enumerate(backend.listens):
        listen.tell(NEWS, {"at": number})
        listen.tell("tools/call", {})
        listen.tell("notifications/initialized", {})
    at = [(await listening.message(NEWS))["at"] for listening in (one, other, third, bobs)]
    assert at[0] == at[1]
    assert len(set(at)) == 3
    backend.announce("notifications/tools/list_changed")
    for listening in (one, other, bobs, among):
        await listening.changed("tools")
    await stream.message("notifications/tools/list_changed")
    assert all(listening.quiet for listening in (one, other, third, bobs, among))
    assert not any(NEWS in event.data for event in stream.exchange.unread)
    assert stage.telemetry.total("stagedoor_messages_dropped_total", "not_subscribed") == 2 * 5 + 2


@WITHOUT
@pytest.mark.requirement("transparent-notifications", "pitfall-30")
async def test_what_only_a_server_knows_is_said_to_nobody_who_is_unknown_unless_alone(stage: Stage) -> None:
    backend = await _watched(stage)
    client = stage.modern("/mcp/alpha")
    client.extensions |= {NEWS}
    one, other = await client.listen(tools=True), await client.listen(tools=True)
    listen = await backend.listening()
    listen.tell(NEWS, {"seq": 1})
    backend.announce("notifications/tools/list_changed")
    for listening in (one, other):
        await listening.changed("tools")
    assert stage.telemetry.total("stagedoor_messages_dropped_total", "not_subscribed") == 1
    alone = await client.listen(prompts=True)
    (await backend.listening(2)).tell(NEWS, {"seq": 2})
    assert (await alone.message(NEWS))["seq"] == 2
