"""The suites' client mode directly on `open_client`: `own_client.py SOCKET`; what is to be done is in the environment,
as for `gateway_client.py`. In scenarios about authorization it does nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from actors.machines.upstream import era
from gateway.client import Client, McpError
from stagedoor import open_client
from tests.conformance.forking import forks, over
from tests.support.patience import PATIENCE

NEEDED = ("gateway.app",)
"""What `open_client` would import in each scenario anew."""
PLACES = 3
"""Scenarios at a time."""

SAMPLES = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


def elicit(params: dict[str, Any]) -> dict[str, Any]:
    """Accepts with the form's own defaults, or by saying yes."""
    fields = params.get("requestedSchema", {}).get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return {"action": "accept", "content": content or dict.fromkeys(fields, True)}


def calls(*names: str, **arguments: Any) -> Callable[[Client], Awaitable[None]]:
    async def scenario(client: Client) -> None:
        await client.list_tools()
        for name in names:
            await client.call_tool(name, arguments)

    return scenario


async def every_tool(client: Client) -> None:
    """Calls all that are listed, with what their schemas require."""
    for tool in await client.list_tools():
        properties, wanted = tool.input_schema.get("properties", {}), tool.input_schema.get("required", [])
        with suppress(McpError):
            await client.call_tool(tool.name, {name: SAMPLES.get(properties[name].get("type"), "x") for name in wanted})


async def given_calls(client: Client) -> None:
    """The calls that the suite names."""
    listed = {tool.name for tool in await client.list_tools()}
    for call in json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls", []):
        if call["name"] in listed:
            with suppress(McpError):
                await client.call_tool(call["name"], call.get("arguments"))


async def echo_schema(client: Client) -> None:
    tools = {tool.name: tool for tool in await client.list_tools()}
    schema = tools["json_schema_2020_12_tool"].raw["inputSchema"]
    await client.call_tool("json_schema_echo", {"schema": schema})


SCENARIOS: dict[str, Callable[[Client], Awaitable[None]]] = {
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


async def main(url: str, scenario: str, version: str) -> None:
    # `open_client` finds the revision by itself where that is the newest; of another one the suite judges the first
    # message too.
    given = None if version >= "2026-07-28" else version
    with trio.fail_after(PATIENCE):
        async with open_client(url, given, sampling=lambda params: "", elicitation=elicit, roots=[]) as client:
            await SCENARIOS[scenario](client)


if __name__ == "__main__":
    era.SILENCE = PATIENCE  # type: ignore[misc]  # a busy machine is not a server of the older era
    for module in NEEDED:
        import_module(module)
    place = forks(sys.argv[1], PLACES)[-1]
    if os.environ["MCP_CONFORMANCE_SCENARIO"] in SCENARIOS:
        trio.run(main, place, os.environ["MCP_CONFORMANCE_SCENARIO"], os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"])
    over()
