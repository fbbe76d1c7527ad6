"""Headers that repeat what the body says (2026-07-28 streamable-http, Request Metadata)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.interaction.backend import Backend, Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT
from tests.interaction.codes import HEADER_MISMATCH
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.modern_wire import ModernWire
from tests.support.schemas import MODERN
from tests.support.wire_client import Message, RpcError

TO_HTTP = pytest.mark.cells(tuple(Cell(MODERN, "memory", "http", era) for era in ("modern", "legacy")))
TO_MODERN_HTTP = pytest.mark.cells((Cell(MODERN, "memory", "http", "modern"),))
JUMPING = pytest.mark.cells((Cell(MODERN, "memory", "inproc", "modern"),))

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "deep": {"type": "object", "properties": {"key": {"type": "string", "x-mcp-header": "Deep-Key"}}},
        "plain": {"type": "string"},
    },
}
ARGUMENTS = {"region": "eu", "count": 42, "dry": True, "deep": {"key": "v"}, "plain": "p"}
NAMES = ("echo", "with space", "z\u00fcrich", "=?base64?ZWNobw==?=", "a/b:c")


def sharded(backend: Backend, name: str = "echo") -> None:
    """A tool of which headers repeat the arguments."""

    @backend.tool(name, inputSchema=SCHEMA)
    async def echo(request: Request) -> Message:
        return {**text("yes"), "_meta": {"seen": request.arguments}}


async def exposed(client: ModernWire) -> list[str]:
    """Names as the list has them; the client knows their schemas from now on."""
    tools = (await client.request("tools/list"))["tools"]
    client.schemas = {tool["name"]: tool["inputSchema"] for tool in tools}
    return [tool["name"] for tool in tools]


@TO_HTTP
@pytest.mark.parametrize(
    "arguments", [ARGUMENTS, {}, {"region": " edge ", "count": None}, {"region": "\u00e4"}], ids=str
)
@pytest.mark.requirement("pitfall-18", "bridge-headers")
async def test_headers_upstream_are_made_of_the_body_that_goes_upstream(
    stage: Stage, route: Route, arguments: Message
) -> None:
    """The scripted server compares them with each body that it gets."""
    backend = await stage.backend()
    sharded(backend)
    client = stage.modern(route.path)
    assert await exposed(client) == [route.name("echo")]
    result = await client.request("tools/call", {"name": route.name("echo"), "arguments": arguments})
    assert result["_meta"]["seen"] == arguments
    if backend.modern:
        seen = next(headers for headers in backend.headers if headers.get("mcp-method") == "tools/call")
        assert seen["mcp-name"] == "echo"
        assert seen.get("mcp-param-region") == (
            rules.header_value(arguments["region"]) if "region" in arguments else None
        )


@TO_HTTP
@pytest.mark.requirement("pitfall-18", "bridge-headers")
async def test_names_of_every_kind_come_through(stage: Stage) -> None:
    backend = await stage.backend()
    for name in NAMES:
        backend.result(name, text(name))
    backend.add("resources", {"uri": "test:///\u00e4", "name": "r"})
    found = {"uri": "test:///\u00e4", "text": "r"}
    backend.answers("resources/read", {"contents": [found]})
    merged, alone = stage.modern(), stage.modern("/mcp/alpha")
    for client in (merged, alone):
        for name, known in zip(NAMES, await exposed(client), strict=True):
            assert (await client.call(known))["content"] == text(name)["content"]
    assert (await alone.request("resources/read", {"uri": "test:///\u00e4"}))["contents"] == [found]


def _encoded(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


WRONG: dict[str, dict[str, str | None]] = {
    "another method": {"mcp_method": "tools/list"},
    "the method in capitals": {"mcp_method": "TOOLS/CALL"},
    "no method": {"mcp_method": None},
    "another name": {"mcp_name": "alpha__other"},
    "no name": {"mcp_name": None},
    "bad base64": {"mcp_name": "=?base64?###?="},
    "base64 without its end": {"mcp_name": "=?base64?YWxwaGFfX2VjaG8?="},
    "an encoded method": {"mcp_method": _encoded("tools/call")},
    "another version": {"mcp_protocol_version": "2025-11-25"},
    "another argument": {"mcp_param_region": "us"},
    "an argument is missing": {"mcp_param_region": None},
    "an argument in capitals": {"mcp_param_region": "EU"},
    "another number": {"mcp_param_count": "43"},
    "a truth in capitals": {"mcp_param_dry": "True"},
    "a deep argument is missing": {"mcp_param_deep_key": None},
}


@pytest.mark.cells(tuple(Cell(MODERN, "memory", "inproc", era) for era in ("modern", "legacy")))
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.requirement("pitfall-18", "bridge-headers")
async def test_headers_that_disagree_are_refused_without_a_call(stage: Stage, wrong: str) -> None:
    backend = await stage.backend()
    sharded(backend)
    client = stage.modern()
    await exposed(client)
    message = client.request_message("tools/call", {"name": "alpha__echo", "arguments": ARGUMENTS})
    call = client.send(message, **WRONG[wrong])
    error = await call.error()
    assert (error.code, call.exchange.status) == (HEADER_MISMATCH, 400)
    assert not backend.of("tools/call")


@JUMPING
@pytest.mark.requirement("pitfall-18")
@pytest.mark.parametrize("twice", ["mcp-name", "mcp-method", "mcp-protocol-version", "mcp-param-region"])
async def test_a_header_that_comes_twice_is_refused(stage: Stage, twice: str) -> None:
    backend = await stage.backend()
    sharded(backend)
    client = stage.modern()
    await exposed(client)
    message = client.request_message("tools/call", {"name": "alpha__echo", "arguments": ARGUMENTS})
    headers = client.headers(message)
    exchange = client.post_with(message, [*headers, next(h for h in headers if h[0] == twice)])
    assert await exchange.head() == 400
    assert (await exchange.json())["error"]["code"] == HEADER_MISMATCH
    assert not backend.of("tools/call")


@JUMPING
@pytest.mark.requirement("pitfall-18")
@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_name": _encoded("alpha__echo")},
        {"mcp_param_count": "42.0"},
        {"mcp_param_region": _encoded("eu")},
        {"mcp_param_unknown": "x"},
    ],
    ids=str,
)
async def test_headers_that_say_the_same_otherwise_agree(stage: Stage, headers: dict[str, str]) -> None:
    backend = await stage.backend()
    sharded(backend)
    client = stage.modern()
    await exposed(client)
    message = client.request_message("tools/call", {"name": "alpha__echo", "arguments": ARGUMENTS})
    assert (await client.send(message, **headers).complete())["_meta"]["seen"] == ARGUMENTS


ILLEGAL: dict[str, Any] = {
    "not_text": {"type": "string", "x-mcp-header": 7},
    "empty": {"type": "string", "x-mcp-header": ""},
    "no_token": {"type": "string", "x-mcp-header": "a b"},
    "a_number": {"type": "number", "x-mcp-header": "A"},
    "an_array": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}},
    "a_choice": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]},
}


@pytest.mark.cells((Cell(MODERN, "memory", "http", "modern"), SESSIONS_TO_WITHOUT[2]))
@pytest.mark.requirement("pitfall-19", "bridge-tool-headers")
async def test_a_tool_with_illegal_headers_is_left_out_and_logged(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    sharded(backend, "good")
    for name, property in ILLEGAL.items():
        backend.result(name, text("no"), inputSchema={"type": "object", "properties": {"a": property}})
    twice = {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}}
    backend.result("twice", text("no"), inputSchema={"type": "object", "properties": twice})
    backend.result("last", text("yes"))
    client: Any = stage.modern(route.path) if cell.revision == MODERN else await stage.connect(route.path)
    names = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
    assert names == [route.name("good"), route.name("last")]
    assert {line["tool"] for line in stage.log.of("tool_left_out")} == {*ILLEGAL, "twice"}
    assert (await client.call(route.name("last")))["content"] == text("yes")["content"]


@pytest.mark.cells((Cell(MODERN, "memory", "http", "modern"), SESSIONS_TO_WITHOUT[2]))
@pytest.mark.requirement("bridge-mismatch", "pitfall-18")
async def test_a_mismatch_upstream_is_mended_by_the_schema_as_it_is_by_now(
    stage: Stage, route: Route, cell: Cell
) -> None:
    """The tool's schema has changed since it was listed, and nobody said so."""
    backend = await stage.modern_backend()
    backend.hints = {"ttlMs": 600_000, "cacheScope": "public"}
    sharded(backend)
    backend.items["tools"][0]["inputSchema"] = {"type": "object"}
    client: Any = stage.modern(route.path) if cell.revision == MODERN else await stage.connect(route.path)
    await client.request("tools/list")
    await client.call(route.name("echo"))
    backend.items["tools"][0]["inputSchema"] = SCHEMA
    result = await client.call(route.name("echo"), region="eu", count=1)
    assert result["_meta"]["seen"] == {"region": "eu", "count": 1}


@pytest.mark.cells((Cell(MODERN, "memory", "http", "modern"), SESSIONS_TO_WITHOUT[2]))
@pytest.mark.requirement("bridge-mismatch")
async def test_a_server_that_is_never_content_with_headers_is_tried_twice(
    stage: Stage, route: Route, cell: Cell
) -> None:
    backend = await stage.modern_backend()

    @backend.tool("picky")
    async def picky(request: Request) -> Message:
        raise RpcError({"code": HEADER_MISMATCH, "message": "I do not like these headers"})

    client: Any = stage.modern(route.path) if cell.revision == MODERN else await stage.connect(route.path)
    error = await client.start_call(route.name("picky")).error()
    assert error.code == -32603
    assert len(backend.of("tools/call")) == 2


@pytest.mark.cells((Cell(MODERN, "memory", "http", "modern"), Cell(MODERN, "memory", "inproc", "modern")))
@pytest.mark.parametrize("pages", [1, 3])
@pytest.mark.requirement("bridge-headers")
async def test_a_client_that_lists_and_then_calls_costs_the_server_one_listing(
    stage: Stage, route: Route, pages: int
) -> None:
    backend = await stage.backend()
    for name in ("one", "two", "three"):
        sharded(backend, name)
    if pages > 1:
        tools = backend.items["tools"]

        @backend.on("tools/list")
        async def page(request: Request) -> Message:
            n = int(request.params.get("cursor", "0"))
            more = {"nextCursor": str(n + 1)} if n + 1 < len(tools) else {}
            return {"tools": [tools[n]], **more}

    client = stage.modern(route.path)
    names = await listed(client)
    assert names == [route.name(name) for name in ("one", "two", "three")]
    before = len(backend.of("tools/list"))
    assert before == pages
    for name in names:
        assert (await client.call(name, **ARGUMENTS))["_meta"]["seen"] == ARGUMENTS
        message = client.request_message("tools/call", {"name": name, "arguments": ARGUMENTS})
        wrong = await client.send(message, mcp_param_region="us").error()
        assert wrong.code == HEADER_MISMATCH
    assert len(backend.of("tools/list")) == before
    assert len(backend.of("tools/call")) == 3


async def listed(client: ModernWire) -> list[str]:
    """As `exposed`, over all pages."""
    names: list[str] = []
    schemas: dict[str, Any] = {}
    params: Message = {}
    while True:
        page = await client.request("tools/list", params)
        schemas |= {tool["name"]: tool["inputSchema"] for tool in page["tools"]}
        names += [tool["name"] for tool in page["tools"]]
        if "nextCursor" not in page:
            client.schemas = schemas
            return names
        params = {"cursor": page["nextCursor"]}


@TO_MODERN_HTTP
@pytest.mark.requirement("bridge-headers")
async def test_a_call_of_a_tool_that_was_not_listed_costs_no_listing(stage: Stage) -> None:
    backend = await stage.modern_backend()
    backend.result("plain", text("yes"))
    assert (await stage.modern("/mcp/alpha").call("plain"))["content"] == text("yes")["content"]
    assert not backend.of("tools/list")


@TO_MODERN_HTTP
@pytest.mark.requirement("bridge-headers", "bridge-mismatch")
async def test_headers_of_a_tool_that_was_not_listed_are_judged_when_the_server_asks_for_them(stage: Stage) -> None:
    backend = await stage.modern_backend()
    executed: list[Message] = []

    @backend.tool("echo", inputSchema=SCHEMA)
    async def echo(request: Request) -> Message:
        executed.append(request.arguments)
        return text("yes")

    client = stage.modern("/mcp/alpha")
    client.schemas = {"echo": SCHEMA}
    wrongs: list[dict[str, str | None]] = [{"mcp_param_region": None}, {"mcp_param_region": "us"}]
    for wrong in wrongs:
        call = client.send(client.request_message("tools/call", {"name": "echo", "arguments": ARGUMENTS}), **wrong)
        error = await call.error()
        assert (error.code, call.exchange.status) == (HEADER_MISMATCH, 400)
    assert not executed
    assert (await client.call("echo", **ARGUMENTS))["content"] == text("yes")["content"]
    assert executed == [ARGUMENTS]
    assert len(backend.of("tools/list")) == 1


@TO_MODERN_HTTP
@pytest.mark.requirement("bridge-mismatch")
async def test_several_calls_whose_headers_were_refused_wait_for_one_listing(stage: Stage) -> None:
    backend = await stage.modern_backend()
    sharded(backend)
    client = stage.modern("/mcp/alpha")
    client.schemas = {"echo": SCHEMA}
    calls = [client.start_call("echo", **ARGUMENTS) for _ in range(5)]
    for call in calls:
        assert (await call.complete())["_meta"]["seen"] == ARGUMENTS
    assert len(backend.of("tools/list")) == 1
