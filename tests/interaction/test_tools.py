"""Tools: what passes, and what an error is (2025-11-25 server/tools)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import INVALID_PARAMS
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Message

RICH = pytest.mark.since("2025-06-18")

TOOL: dict[str, Any] = {
    "name": "rich",
    "title": "Rich",
    "description": "Everything that a tool may say",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"type": "string", "default": "\u00e4\u2028"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "outputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
    "annotations": {"readOnlyHint": True, "title": "T", "x-hint": 1},
    "icons": [{"src": "data:image/png;base64,AAAA", "mimeType": "image/png", "sizes": ["48x48"]}],
    "execution": {"taskSupport": "forbidden"},
    "_meta": {"com.example/x": {"deep": [1, {"y": None}]}},
    "x-unknown": {"kept": [True, 1.5, "\U0001f600"]},
}

CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "plain \u00fc \u2028 \U0001f600", "annotations": {"audience": ["user"], "priority": 0.5}},
    {"type": "image", "data": "aW1hZ2U=", "mimeType": "image/png", "_meta": {"com.example/i": 1}},
    {"type": "audio", "data": "c291bmQ=", "mimeType": "audio/wav"},
]
LINK = {
    "type": "resource_link",
    "uri": "file:///a%20b/\u00e4?x=1#y",
    "name": "a b",
    "description": "d",
    "mimeType": "text/plain",
}
EMBEDDED: dict[str, Any] = {
    "type": "resource",
    "resource": {"uri": "file:///e", "mimeType": "text/plain", "text": "inside", "_meta": {"k": 1}},
}


async def test_a_tool_is_listed_and_called(stage: Stage, route: Route) -> None:
    backend = await stage.backend("alpha")

    @backend.tool("echo", description="says it again")
    async def echo(request: Request) -> Message:
        return text(request.arguments["say"])

    client = await stage.connect(route.path)
    listed = await client.request("tools/list")
    assert [tool["name"] for tool in listed["tools"]] == [route.name("echo")]
    assert await client.call(route.name("echo"), say="hi") == text("hi")
    assert backend.of("tools/call")[0]["params"] == {"name": "echo", "arguments": {"say": "hi"}}


@RICH
@pytest.mark.requirement("tools-list")
async def test_a_tool_is_listed_with_all_its_members(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.add("tools", TOOL)
    client = await stage.connect(route.path)
    assert await client.request("tools/list") == {"tools": [{**TOOL, "name": route.name("rich")}]}


@RICH
@pytest.mark.requirement("tools-call", "meta-untouched")
async def test_content_of_every_kind_passes_with_unknown_members_and_meta(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    result = {
        "content": [*CONTENT, LINK, EMBEDDED],
        "structuredContent": {"n": 1.0, "deep": {"\u00e4": [None, -0.5, 1e300]}},
        "isError": False,
        "_meta": {"com.example/trace": "t", "progressToken": "mine"},
        "x-unknown": [1],
    }
    backend.result("rich", result)
    client = await stage.connect(route.path)
    got = await client.call(route.name("rich"))
    upstream = {**LINK, "uri": route.uri(str(LINK["uri"]))}
    embedded = {**EMBEDDED, "resource": {**EMBEDDED["resource"], "uri": route.uri("file:///e")}}
    assert got == {**result, "content": [*CONTENT, upstream, embedded]}


@JUMPING
@pytest.mark.requirement("meta-untouched")
async def test_meta_and_unknown_members_of_a_call_reach_the_backend(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    meta = {
        "com.example/x": {"y": [1]},
        "traceparent": "00-1-2-01",
        "io.modelcontextprotocol/related-task": {"taskId": "t"},
    }
    params = {"name": route.name("echo"), "arguments": {"n": 1, "\u00e4": None}, "_meta": meta, "x-unknown": {"z": 1}}
    await client.request("tools/call", params)
    assert backend.of("tools/call")[0]["params"] == {**params, "name": "echo"}


@JUMPING
@pytest.mark.requirement("meta-untouched")
async def test_numbers_pass_as_they_are_written(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    numbers = b'{"n":[1.0,1e2,-0,12345678901234567890123,0.1000]}'

    @backend.tool("numbers")
    async def tell(request: Request) -> None:
        body = b'{"jsonrpc":"2.0","id":"%s","result":{"content":[],"structuredContent":%s}}'
        request.connection.write(body % (str(request.id).encode(), numbers), request.id)

    client = await stage.connect(route.path)
    call = client.start_call(route.name("numbers"))
    await call.result()
    assert numbers in call.exchange.body


@pytest.mark.requirement("tool-errors", "pitfall-tool-errors")
async def test_an_error_of_the_tool_stays_a_result(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    failed = {**text("the input was bad"), "isError": True}
    backend.result("fails", failed)
    client = await stage.connect(route.path)
    assert await client.call(route.name("fails")) == failed


@JUMPING
@pytest.mark.requirement("tool-errors", "backend-errors-pass", "pitfall-tool-errors")
@pytest.mark.parametrize("code", [-32602, -32603, -32000, -1, 1, -32601, -32002, 12345])
async def test_an_error_of_the_backend_passes_with_code_and_data(stage: Stage, route: Route, code: int) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    backend.refuses("tools/call", code, "because \u00e4", {"why": [1]})
    client = await stage.connect(route.path)
    error = await client.start_call(route.name("echo")).error()
    assert (error.code, error.message, error.data) == (code, "because \u00e4", {"why": [1]})


@pytest.mark.requirement("tool-errors", "pitfall-tool-errors")
async def test_an_unknown_tool_is_invalid_params(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    for name in ("echo2", "", "beta__echo", "\u00e4" * 300):
        assert (await client.start_call(name).error()).code == INVALID_PARAMS


@JUMPING
@pytest.mark.requirement("tool-errors", "pitfall-tool-errors")
@pytest.mark.parametrize(
    "params", [None, {}, {"name": 7}, {"name": None}, {"name": ["echo"]}, {"arguments": {}}], ids=str
)
async def test_a_call_without_a_proper_name_is_invalid_params(stage: Stage, params: Message | None) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect()
    assert (await client.refused("tools/call", params)).code == INVALID_PARAMS
    assert await client.call("alpha__echo") == text("yes")


@JUMPING
@pytest.mark.requirement("aggregate-names")
async def test_on_an_aggregate_only_exposed_names_are_listed_and_a_bare_one_is_known_if_it_is_unambiguous(
    stage: Stage,
) -> None:
    alpha, beta = await stage.backend(), await stage.backend("beta")
    for backend in (alpha, beta):
        backend.result("echo", text("yes"))
    alpha.result("only", text("alpha's"))
    client = await stage.connect()
    assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == [
        "alpha__echo",
        "alpha__only",
        "beta__echo",
    ]
    error = await client.start_call("echo").error()
    assert error.code == INVALID_PARAMS
    assert "alpha__echo, beta__echo" in error.message
    assert not alpha.of("tools/call")
    assert not beta.of("tools/call")
    assert await client.call("only") == text("alpha's")


@JUMPING
@pytest.mark.requirement("aggregate-names")
async def test_names_are_allowed_unique_and_lead_back(stage: Stage) -> None:
    awkward = ["a.b/c", "a b", "\u00e4\u00f6", "x" * 200, "a__b", "A__b", "__", "echo", "Echo"]
    for server in ("alpha", "alpha__a", "beta"):
        backend = await stage.backend(server)
        for name in awkward:
            backend.result(name, text(f"{server}/{name}"))
    client = await stage.connect()
    tools = (await client.request("tools/list"))["tools"]
    names = [tool["name"] for tool in tools]
    assert len(set(names)) == len(names) == 3 * len(awkward)
    assert all(
        name.isascii() and len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum()
        for name in names
        if name.strip("_")
    )
    answers = [(await client.call(name))["content"][0]["text"] for name in names]
    assert answers == [f"{server}/{name}" for server in ("alpha", "alpha__a", "beta") for name in awkward]


@JUMPING
@pytest.mark.requirement("unlisted-callable")
async def test_alone_a_tool_that_is_not_listed_can_be_called(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("secret", text("found"))
    backend.items["tools"].clear()
    client = await stage.connect("/mcp/alpha")
    assert await client.call("secret") == text("found")


@JUMPING
@pytest.mark.requirement("filters")
async def test_filtered_tools_are_neither_listed_nor_called(stage: Stage, route: Route) -> None:
    backend = await stage.backend(enabled_tools=("read_*", "write_a"), disabled_tools=("read_secret",))
    for name in ("read_a", "read_secret", "write_a", "write_b"):
        backend.result(name, text(name))
    client = await stage.connect(route.path)
    listed = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
    assert listed == [route.name("read_a"), route.name("write_a")]
    assert await client.call(route.name("read_a")) == text("read_a")
    for hidden in ("read_secret", "write_b"):
        assert (await client.start_call(route.name(hidden)).error()).code == INVALID_PARAMS
    assert [m["params"]["name"] for m in backend.of("tools/call")] == ["read_a"]


@JUMPING
@pytest.mark.requirement("lists-merged")
async def test_lists_keep_the_order_of_the_backends_and_of_each_backend(stage: Stage) -> None:
    for server in ("zeta", "alpha"):
        backend = await stage.backend(server)
        for name in ("z", "a", "m"):
            backend.result(name, text(name))
    client = await stage.connect()
    listed = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
    assert listed == [f"{server}__{name}" for server in ("zeta", "alpha") for name in ("z", "a", "m")]


@pytest.mark.requirement("isolation")
async def test_parallel_calls_of_many_sessions_each_get_their_own_answer(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("who")
    async def who(request: Request) -> Message:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        return text(f"{request.arguments['session']}/{request.arguments['n']}")

    clients = [await stage.connect(route.path) for _ in range(4)]
    calls = [
        (client.start_call(route.name("who"), id=n, session=s, n=n), f"{s}/{n}")
        for n in range(6)
        for s, client in enumerate(clients)
    ]
    for call, wanted in calls:
        assert await call.result() == text(wanted)
    assert len({id(c) for c in backend.connections}) >= len(clients), "a connection belongs to one session"


@pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "http")))
@pytest.mark.requirement("shared-backend")
async def test_a_shared_backend_is_told_no_capabilities_and_its_answers_still_find_home(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend(sharing="shared")

    @backend.tool("who")
    async def who(request: Request) -> Message:
        request.log("error", "for nobody" if request.connection.backend.revision else "")
        return text(str(request.arguments["n"]))

    capabilities: Message = {"sampling": {}, "roots": {}, "elicitation": {}}
    clients = [await stage.connect(route.path, capabilities=capabilities) for _ in range(3)]
    for n, client in enumerate(clients):
        assert await client.start_call(route.name("who"), id=1, n=n).result() == text(str(n))
    assert all(connection.client["capabilities"] == {} for connection in backend.connections)


@JUMPING
@pytest.mark.requirement("config-change")
async def test_a_backend_that_leaves_the_configuration_is_no_longer_served(stage: Stage) -> None:
    for server in ("alpha", "beta"):
        backend = await stage.backend(server)
        backend.result("echo", text(server))
    client, alone = await stage.connect(), await stage.connect("/mcp/beta")
    assert await client.call("beta__echo") == text("beta")
    stage.remove("beta")
    assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == ["alpha__echo"]
    assert (await client.start_call("beta__echo").error()).code == INVALID_PARAMS
    assert await client.call("alpha__echo") == text("alpha")
    assert await alone.post(alone.request_message("ping")).head() == 404
