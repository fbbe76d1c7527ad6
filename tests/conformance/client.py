"""The client that the suites' client mode runs: `client.py [--direct] URL`, with a gateway between it and URL.

The suite's own server stands behind the gateway and judges what the gateway sends to backends. What is to be done there
is named by `MCP_CONFORMANCE_SCENARIO`; the revision is that of `MCP_CONFORMANCE_PROTOCOL_VERSION`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import mcp.types as t
from mcp import Client, MCPError

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.patience import PATIENCE
from tests.support.processes import Programs

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
MODERN = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "") >= "2026-07-28"
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")

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


# --- what is done in each scenario


def calls(*names: str, **arguments: Any) -> Callable[[Client], Awaitable[None]]:
    async def scenario(client: Client) -> None:
        await client.list_tools()
        for name in names:
            await client.call_tool(name, arguments)

    return scenario


async def every_tool(client: Client) -> None:
    """Calls all that are listed, with what their schemas require."""
    for tool in (await client.list_tools()).tools:
        properties = tool.input_schema.get("properties", {})
        wanted = tool.input_schema.get("required", [])
        with suppress(MCPError):
            await client.call_tool(tool.name, {name: SAMPLES.get(properties[name].get("type"), "x") for name in wanted})


async def given_calls(client: Client) -> None:
    """The calls that the suite names."""
    listed = {tool.name for tool in (await client.list_tools()).tools}
    for call in CONTEXT.get("toolCalls", []):
        if call["name"] in listed:
            with suppress(MCPError):
                await client.call_tool(call["name"], call.get("arguments") or {})


async def echo_schema(client: Client) -> None:
    listed = (await client.list_tools()).tools
    schema = next(tool.input_schema for tool in listed if tool.name == "json_schema_2020_12_tool")
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


async def run(url: str) -> None:
    """Raises TimeoutError after `PATIENCE`: the suite would end this program without a word."""
    asked = {"sampling_callback": sample, "list_roots_callback": roots, "elicitation_callback": elicit}
    with anyio.fail_after(PATIENCE):
        async with Client(url, mode="auto" if MODERN else "legacy", **asked) as client:
            await SCENARIOS[SCENARIO](client)


@contextmanager
def gateway(url: str) -> Iterator[str]:
    """A gateway in front of the server at URL, and the endpoint that stands for it. What it wrote comes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder))
        try:
            started = programs.gateway({"mcpServers": {"judge": {"type": "http", "url": url}}})
            try:
                yield started.endpoint("judge")
                started.program.stop()
            except TimeoutError:
                started.program.abort()
                raise
            finally:
                print(started.program.story(), file=sys.stderr)
        finally:
            programs.end()


if __name__ == "__main__":
    # Every request and answer, with its time: the last line of one that hangs says in what.
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")
    if sys.argv[1] == "--direct":
        anyio.run(run, sys.argv[-1])
    else:
        with gateway(sys.argv[-1]) as endpoint:
            anyio.run(run, endpoint)
