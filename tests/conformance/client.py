"""What `gateway_client.py` does in scenarios that are not about authorization."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import mcp.types as t
from mcp import Client, MCPError

Context = dict[str, Any]
"""What the suite says of a scenario beside its name."""

SAMPLES = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


async def elicit(_ctx: Any, params: Any) -> t.ElicitResult:
    """Accepts with the form's own defaults, or by saying yes."""
    fields = params.requested_schema["properties"] if isinstance(params, t.ElicitRequestFormParams) else {}
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return t.ElicitResult(action="accept", content=content or dict.fromkeys(fields, True))


async def sample(_ctx: Any, _params: Any) -> t.CreateMessageResult:
    return t.CreateMessageResult(role="assistant", model="m", content=t.TextContent(text=""))


async def roots(_ctx: Any) -> t.ListRootsResult:
    return t.ListRootsResult(roots=[])


ASKED: dict[str, Any] = {
    "sampling_callback": sample,
    "list_roots_callback": roots,
    "elicitation_callback": elicit,
}
"""How the client answers what servers ask."""


# --- what is done in each scenario


def calls(*names: str, **arguments: Any) -> Callable[[Client, Context], Awaitable[None]]:
    async def scenario(client: Client, _context: Context) -> None:
        await client.list_tools()
        for name in names:
            await client.call_tool(name, arguments)

    return scenario


async def every_tool(client: Client, _context: Context) -> None:
    """Calls all that are listed, with what their schemas require."""
    for tool in (await client.list_tools()).tools:
        properties = tool.input_schema.get("properties", {})
        wanted = tool.input_schema.get("required", [])
        with suppress(MCPError):
            await client.call_tool(tool.name, {name: SAMPLES.get(properties[name].get("type"), "x") for name in wanted})


async def given_calls(client: Client, context: Context) -> None:
    """The calls that the suite names."""
    listed = {tool.name for tool in (await client.list_tools()).tools}
    for call in context.get("toolCalls", []):
        if call["name"] in listed:
            with suppress(MCPError):
                await client.call_tool(call["name"], call.get("arguments") or {})


async def echo_schema(client: Client, _context: Context) -> None:
    listed = (await client.list_tools()).tools
    schema = next(tool.input_schema for tool in listed if tool.name == "json_schema_2020_12_tool")
    await client.call_tool("json_schema_echo", {"schema": schema})


SCENARIOS: dict[str, Callable[[Client, Context], Awaitable[None]]] = {
    "initialize": calls(),
    "json-schema-ref-no-deref": calls(),
    "tools_call": calls("add_numbers", a=5, b=3),
    "request-metadata": calls("add_numbers", a=5, b=3),
    "http-standard-headers": calls("add_numbers", a=5, b=3),
    "sse-retry": calls("test_reconnection"),
    "elicitation-sep1034-client-defaults": calls("test_client_elicitation_defaults"),
    "sep-2322-client-request-state": calls(
        "test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"
    ),
    "http-invalid-tool-headers": every_tool,
    "http-custom-headers": given_calls,
    "json-schema-2020-12-preservation": echo_schema,
}
