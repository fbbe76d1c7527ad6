"""Results, questions and errors in the words of the other era, and the methods that only one of them has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interaction.backend import Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT, WITHOUT_TO_ANY, WITHOUT_TO_SESSIONS
from tests.interaction.codes import INTERNAL, INVALID_PARAMS, METHOD_NOT_FOUND
from tests.interaction.scripts import ASKS, EVERYTHING
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN, NEWEST, REVISIONS
from tests.support.wire_client import Message, RpcError

FROM_SESSIONS = pytest.mark.cells(SESSIONS_TO_WITHOUT)
FROM_ANY_REVISION = pytest.mark.cells(tuple(Cell(revision, "memory", "inproc", "modern") for revision in REVISIONS))
TO_SESSIONS = pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
TO_BOTH = pytest.mark.cells(tuple(Cell(MODERN, "memory", "inproc", era) for era in ("modern", "legacy")))

AUDIO = {"type": "audio", "data": "c291bmQ=", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "test:///a", "name": "a"}
RICH: Message = {
    "content": [
        *text("t")["content"],
        {"type": "image", "data": "aW1n", "mimeType": "image/png"},
        AUDIO,
        LINK,
        {"type": "resource", "resource": {"uri": "test:///b", "text": "b"}},
    ],
    "structuredContent": {"n": 1},
}
ICONS = [{"src": "https://example.com/i.png"}]


async def any_client(stage: Stage, cell: Cell, path: str = "/mcp", **options: Any) -> Any:
    """A client of the cell's revision."""
    return stage.modern(path, **options) if cell.revision == MODERN else await stage.connect(path, **options)


def rewritten(route: Route) -> list[Message]:
    """RICH's content as the client sees it."""
    content = [dict(block) for block in RICH["content"]]
    content[3]["uri"] = route.uri("test:///a")
    content[4]["resource"] = {"uri": route.uri("test:///b"), "text": "b"}
    return content


@pytest.mark.cells((*WITHOUT_TO_ANY, *SESSIONS_TO_WITHOUT))
@pytest.mark.requirement("bridge-calls", "pitfall-24", "pitfall-tool-errors")
async def test_content_of_every_kind_passes_between_the_eras(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    backend.result("rich", RICH, title="Rich", icons=ICONS, outputSchema={"type": "object"})
    backend.result("fails", {**text("no such city"), "isError": True})
    client = await any_client(stage, cell, route.path)
    listed = (await client.request("tools/list"))["tools"][0]
    assert (listed["title"], listed["icons"], listed["outputSchema"]) == ("Rich", ICONS, {"type": "object"})
    got = await client.call(route.name("rich"))
    assert got["content"] == rewritten(route)
    assert got["structuredContent"] == {"n": 1}
    failed = await client.call(route.name("fails"))
    assert (failed["isError"], failed["content"]) == (True, text("no such city")["content"])
    assert (await client.start_call(route.name("none")).error()).code == INVALID_PARAMS


@pytest.mark.cells((*WITHOUT_TO_ANY, *SESSIONS_TO_WITHOUT))
@pytest.mark.requirement("bridge-lists", "bridge-calls", "bridge-completion")
async def test_every_list_read_prompt_and_completion_passes_between_the_eras(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.backend()
    backend.add("prompts", {"name": "p", "arguments": [{"name": "a"}]})
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    backend.add("resourceTemplates", {"uriTemplate": "test:///{x}", "name": "t"})
    backend.answers("prompts/get", {"messages": [{"role": "user", "content": LINK}]})
    backend.answers("resources/read", {"contents": [{"uri": "test:///r", "blob": "AAAA"}]})
    backend.answers("completion/complete", {"completion": {"values": ["v"], "total": 1}})
    client = await any_client(stage, cell, route.path)
    prompts, resources, templates = [
        (await client.request(f"{kind}/list"))[key]
        for kind, key in (
            ("prompts", "prompts"),
            ("resources", "resources"),
            ("resources/templates", "resourceTemplates"),
        )
    ]
    assert prompts == [{"name": route.name("p"), "arguments": [{"name": "a"}]}]
    assert resources == [{"uri": route.uri("test:///r"), "name": "r"}]
    assert templates == [{"uriTemplate": route.uri("test:///{x}"), "name": "t"}]
    got = await client.request("prompts/get", {"name": route.name("p"), "arguments": {"a": "1"}})
    assert got["messages"][0]["content"] == {**LINK, "uri": route.uri("test:///a")}
    read = await client.request("resources/read", {"uri": route.uri("test:///r")})
    assert read["contents"] == [{"uri": route.uri("test:///r"), "blob": "AAAA"}]
    for ref in (
        {"type": "ref/prompt", "name": route.name("p")},
        {"type": "ref/resource", "uri": templates[0]["uriTemplate"]},
    ):
        params = {"ref": ref, "argument": {"name": "a", "value": "v"}, "context": {"arguments": {"b": "2"}}}
        assert (await client.request("completion/complete", params))["completion"] == {"values": ["v"], "total": 1}
    refs = [message["params"]["ref"] for message in backend.of("completion/complete")]
    assert refs == [{"type": "ref/prompt", "name": "p"}, {"type": "ref/resource", "uri": "test:///{x}"}]


@TO_SESSIONS
@pytest.mark.requirement("pitfall-24", "bridge-strip-execution")
async def test_members_of_the_handshake_era_are_left_out(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"), execution={"taskSupport": "optional"})
    client = stage.modern(route.path)
    (tool,) = (await client.request("tools/list"))["tools"]
    assert "execution" not in tool


@TO_BOTH
@pytest.mark.requirement("bridge-server-info")
async def test_who_answers_is_the_gateway_where_servers_are_merged(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = stage.modern(route.path)
    for result in (await client.call(route.name("echo")), await client.request("server/discover")):
        info = result["_meta"][rules.SERVER]
        assert info["name"] == ("stagedoor" if route.name_prefix else "alpha")


@FROM_ANY_REVISION
@pytest.mark.requirement("bridge-lower-structured", "bridge-lower-content")
async def test_what_an_older_client_can_not_read_is_said_otherwise(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    schema = {"type": "array", "items": {"type": "integer"}}
    backend.result("list", {"content": [], "structuredContent": [1, 2]}, outputSchema=schema)
    backend.result("rich", RICH)
    client = await stage.connect(route.path)
    listed = (await client.request("tools/list"))["tools"][0]
    assert "outputSchema" not in listed, "its root is no object"
    got = await client.call(route.name("list"))
    assert "structuredContent" not in got
    assert [block["text"].replace(" ", "") for block in got["content"]] == ["[1,2]"]
    kinds = [block["type"] for block in (await client.call(route.name("rich")))["content"]]
    if cell.revision >= "2025-06-18":
        assert kinds == [block["type"] for block in RICH["content"]]
    else:
        assert "resource_link" not in kinds
        assert ("audio" in kinds) == (cell.revision == "2025-03-26")


@FROM_ANY_REVISION
@pytest.mark.requirement("bridge-lower-questions", "bridge-sampling", "bridge-missing-capability")
async def test_questions_are_asked_in_the_words_of_an_older_client(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    titled = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}]}
    seen: dict[str, Any] = {}

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        declared = seen["declared"] = request.params["_meta"][rules.CAPABILITIES]
        if "elicitation" in declared:
            schema = {"type": "object", "properties": {"colour": titled}}
            form = {"mode": "form", "message": "which?", "requestedSchema": schema}
            seen["form"] = await request.ask("elicitation/create", form)
        block = {"type": "text", "text": "say"}
        params = {"messages": [{"role": "user", "content": [block]}], "maxTokens": 5}
        seen["sampled"] = await request.ask("sampling/createMessage", params)
        return text("done")

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    sampled = {"role": "assistant", "content": {"type": "text", "text": "said"}, "model": "m"}
    client.answerers["sampling/createMessage"] = lambda params: sampled
    client.answerers["elicitation/create"] = lambda params: {"action": "accept", "content": {"colour": "r"}}
    call = client.start_call(route.name("ask"))
    await call.result()
    assert seen["sampled"] == sampled
    assert ("elicitation" in seen["declared"]) == (cell.revision >= "2025-06-18")
    assert ("tools" in seen["declared"]["sampling"]) == (cell.revision >= "2025-11-25")
    assert ("url" in seen["declared"].get("elicitation", {})) == (cell.revision >= "2025-11-25")
    forms = [m["params"] for m in call.messages if m.get("method") == "elicitation/create"]
    if cell.revision == "2025-06-18":
        assert "mode" not in forms[0]
        assert forms[0]["requestedSchema"]["properties"]["colour"]["enumNames"] == ["Red"]


@FROM_ANY_REVISION
@pytest.mark.since("2025-06-18")
@pytest.mark.requirement("bridge-lower-questions")
async def test_what_can_not_be_said_in_a_question_is_left_out_or_the_question_cancelled(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.backend()
    several = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
    named = {"type": "string", "enum": ["a"], "enumNames": ["A"]}
    result: Message = {"type": "tool_result", "toolUseId": "u", "content": [], "structuredContent": [1]}

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        schema = {"type": "object", "properties": {"named": named}}
        first = await request.ask("elicitation/create", {"message": "m", "requestedSchema": schema})
        schema = {"type": "object", "properties": {"several": several}}
        second = await request.ask("elicitation/create", {"message": "m", "requestedSchema": schema})
        if "tools" in request.params["_meta"][rules.CAPABILITIES]["sampling"]:
            use = {"type": "tool_use", "id": "u", "name": "t", "input": {}}
            messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            await request.ask("sampling/createMessage", {"messages": messages, "maxTokens": 1, "tools": []})
        return {**text("done"), "_meta": {"answers": [first["action"], second["action"]]}}

    client = await stage.connect(route.path, capabilities=EVERYTHING)
    client.answerers["elicitation/create"] = lambda params: {"action": "accept", "content": {}}
    client.answerers["sampling/createMessage"] = lambda params: ASKS["sampling/createMessage"][1]
    call = client.start_call(route.name("ask"))
    answers = (await call.result())["_meta"]["answers"]
    asked = [m["params"] for m in call.messages if m.get("method") == "elicitation/create"]
    assert asked[0]["requestedSchema"]["properties"]["named"] == named
    if cell.revision == "2025-06-18":
        assert (answers, len(asked)) == (["accept", "cancel"], 1)
        return
    assert answers == ["accept", "accept"]
    (sampling,) = [m["params"] for m in call.messages if m.get("method") == "sampling/createMessage"]
    assert "structuredContent" not in sampling["messages"][1]["content"][0]


@TO_SESSIONS
@pytest.mark.parametrize(
    ("method", "code", "expected"),
    [
        ("tools/call", -32002, INTERNAL),
        ("tools/call", -32000, None),
        ("tools/call", -32019, None),
        ("tools/call", -32020, INTERNAL),
        ("tools/call", -32022, INTERNAL),
        ("tools/call", -32050, INTERNAL),
        ("tools/call", -32099, INTERNAL),
        ("tools/call", -32042, INTERNAL),
        ("tools/call", -32602, INVALID_PARAMS),
        ("tools/call", 7, 7),
        ("resources/read", -32002, INVALID_PARAMS),
        ("prompts/get", -32002, INTERNAL),
    ],
)
@pytest.mark.requirement("pitfall-24", "bridge-not-found", "bridge-codes")
async def test_codes_of_a_server_with_sessions_are_those_of_the_era(
    stage: Stage, route: Route, method: str, code: int, expected: int | None
) -> None:
    """A demand for pages without one is no demand."""
    backend = await stage.backend()
    backend.result("fails", text("no"))
    backend.add("prompts", {"name": "p"})
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    backend.refuses(method, code, "it failed", {"uri": "test:///r"})
    client = stage.modern(route.path)
    params: dict[str, Message] = {
        "tools/call": {"name": route.name("fails"), "arguments": {}},
        "prompts/get": {"name": route.name("p")},
        "resources/read": {"uri": route.uri("test:///r")},
    }
    error = await client.refused(method, params[method])
    assert error.code in ((expected,) if expected is not None else (code, INTERNAL))
    if expected == INTERNAL:
        assert str(code) in str(error.data), "the original is kept"
    if method == "resources/read":
        assert error.data["uri"] == route.uri("test:///r")


@FROM_SESSIONS
@pytest.mark.parametrize("code", [-32602, -32603, -32601, 7, 0])
@pytest.mark.requirement("bridge-codes", "backend-errors-pass")
async def test_codes_of_a_server_without_sessions_pass_with_their_data(stage: Stage, route: Route, code: int) -> None:
    backend = await stage.backend()

    @backend.tool("fails")
    async def fails(request: Request) -> Message:
        raise RpcError({"code": code, "message": "it failed", "data": {"k": [1]}})

    client = await stage.connect(route.path)
    error = await client.start_call(route.name("fails")).error()
    assert (error.code, error.message, error.data) == (code, "it failed", {"k": [1]})


# Methods that only one era has -----------------------------------------------------------------------------------


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("bridge-discover", "pitfall-24")
async def test_discover_is_answered_from_what_the_servers_have(stage: Stage, route: Route) -> None:
    backend = await stage.backend(instructions="Use it well.")
    backend.result("echo", text("yes"))
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    client = stage.modern(route.path)
    found = await client.request("server/discover")
    assert found["supportedVersions"] == [MODERN, *reversed(REVISIONS)]
    assert found["capabilities"]["tools"] == {"listChanged": True}
    assert "tasks" not in found["capabilities"]
    await client.request("tools/list")
    found = await client.request("server/discover")
    assert "Use it well." in found["instructions"]
    assert not backend.of("ping")


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("bridge-discover", "bridge-list-partial", "dead-backend-at-initialize")
async def test_a_server_that_is_away_does_not_keep_an_aggregate_from_being_discovered(stage: Stage) -> None:
    backend = await stage.backend()
    for method in ("initialize", "server/discover"):
        backend.refuses(method, -32603, "out of order")
    found = await stage.modern().start("server/discover").complete(within=60)
    assert found["supportedVersions"][0] == MODERN
    assert found["ttlMs"] <= 5_000


@pytest.mark.cells((*SESSIONS_TO_WITHOUT, *WITHOUT_TO_SESSIONS))
@pytest.mark.requirement("bridge-ping", "ping")
async def test_pings_are_answered_here(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()

    @backend.tool("slow")
    async def slow(request: Request) -> Message:
        if backend.sessions:
            assert await request.connection.ask("ping") == {}
        return text("done")

    client = await any_client(stage, cell, route.path)
    call = client.start_call(route.name("slow"))
    if cell.revision != MODERN:
        assert await client.request("ping") == {}
    assert (await call.result())["content"] == text("done")["content"]
    assert not backend.of("ping")


@FROM_SESSIONS
@pytest.mark.requirement("bridge-initialize", "pitfall-extensions", "capabilities-superset")
async def test_a_session_over_servers_without_any_is_a_session_like_any_other(stage: Stage, route: Route) -> None:
    backend = await stage.backend(instructions="Use it well.")
    backend.result("echo", text("yes"))
    client = stage.client(route.path, capabilities={"extensions": {"x.example/ui": {"mimeTypes": ["a/b"]}}})
    server_info = await client.connect()
    assert server_info["protocolVersion"] == NEWEST
    assert server_info["capabilities"]["tools"]["listChanged"] is True
    assert server_info["serverInfo"]["name"] == ("stagedoor" if route.name_prefix else "alpha")
    await client.call(route.name("echo"))
    if not route.name_prefix:
        assert server_info["instructions"] == "Use it well."
    assert await client.request("logging/setLevel", {"level": "error"}) == {}


@TO_BOTH
@pytest.mark.requirement("bridge-completion")
async def test_a_server_without_completion_completes_nothing(stage: Stage) -> None:
    backend = await stage.backend()
    backend.add("prompts", {"name": "p"})
    other = await stage.backend("other")
    other.add("prompts", {"name": "p"})
    other.answers("completion/complete", {"completion": {"values": ["v"]}})
    client = stage.modern()
    await client.request("prompts/list")
    params = {"ref": {"type": "ref/prompt", "name": "alpha__p"}, "argument": {"name": "a", "value": ""}}
    assert (await client.request("completion/complete", params))["completion"]["values"] == []
    params["ref"] = {"type": "ref/prompt", "name": "other__p"}
    assert (await client.request("completion/complete", params))["completion"]["values"] == ["v"]
    alone = stage.modern("/mcp/alpha")
    params["ref"] = {"type": "ref/prompt", "name": "p"}
    assert (await alone.refused("completion/complete", params)).code == METHOD_NOT_FOUND
