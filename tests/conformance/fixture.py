"""A server that has everything the official conformance suites look for, on the official Python SDK.

The names of its tools, resources and prompts, and most of its texts, are fixed by the suites' scenarios. It speaks
Streamable HTTP (`fixture.py --http PORT`: 127.0.0.1, DNS-rebinding protection on, SSE events kept for resumption) or
stdio (no argument). It is a program, not a module: nothing imports it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import mcp.types as t
import uvicorn
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore

# The SDK deprecates logging and sampling for the revision after the ones under test.
warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")

Context = ServerRequestContext[Any]
Arguments = dict[str, Any]
Content = t.TextContent | t.ImageContent | t.AudioContent | t.ResourceLink | t.EmbeddedResource
ToolBody = Callable[[Context, Arguments], Awaitable[list[Content]]]

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STEP = 0.05  # seconds between two notifications of one call
RETRY_MS = 100


def text(value: str) -> t.TextContent:
    return t.TextContent(text=value)


def image() -> t.ImageContent:
    return t.ImageContent(data=IMAGE, mime_type="image/png")


def embedded(uri: str, mime_type: str, value: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(resource=t.TextResourceContents(uri=uri, mime_type=mime_type, text=value))


# --- tools -----------------------------------------------------------------------------------------------------------


def constant(*content: Content) -> ToolBody:
    async def body(_ctx: Context, _arguments: Arguments) -> list[Content]:
        return list(content)

    return body


async def log(ctx: Context, message: str) -> None:
    await ctx.session.send_log_message("info", message, related_request_id=ctx.request_id)


async def with_logging(ctx: Context, _arguments: Arguments) -> list[Content]:
    await log(ctx, "Tool execution started")
    await anyio.sleep(STEP)
    await log(ctx, "Tool processing data")
    await anyio.sleep(STEP)
    await log(ctx, "Tool execution completed")
    return [text("Tool with logging executed successfully")]


async def with_progress(ctx: Context, _arguments: Arguments) -> list[Content]:
    for step in (0, 50, 100):
        await ctx.session.report_progress(step, 100, f"Completed step {step} of 100")
        await anyio.sleep(STEP)
    return [text(str((ctx.meta or {}).get("progress_token", 0)))]


async def failing(_ctx: Context, _arguments: Arguments) -> list[Content]:
    raise RuntimeError("This tool intentionally returns an error for testing")


async def sampling(ctx: Context, arguments: Arguments) -> list[Content]:
    # Without the related id the request would go to the GET stream, which need not be open yet.
    result = await ctx.session.create_message(
        messages=[t.SamplingMessage(role="user", content=text(arguments["prompt"]))],
        max_tokens=100,
        related_request_id=ctx.request_id,
    )
    answer = result.content.text if isinstance(result.content, t.TextContent) else "No response"
    return [text(f"LLM response: {answer}")]


def elicitation(label: str, schema: dict[str, Any], message: str | None = None) -> ToolBody:
    """A tool that asks the user for `schema`, with `message` or else the message among its arguments."""

    async def body(ctx: Context, arguments: Arguments) -> list[Content]:
        result = await ctx.session.elicit_form(message or arguments["message"], schema, ctx.request_id)
        return [text(f"{label}: action={result.action}, content={json.dumps(result.content or {})}")]

    return body


async def reconnection(ctx: Context, _arguments: Arguments) -> list[Content]:
    await log(ctx, "Before disconnect")
    if ctx.close_sse_stream is not None:  # None on stdio, which has no stream to close
        await ctx.close_sse_stream()
    await anyio.sleep(2 * RETRY_MS / 1000)
    await log(ctx, "After reconnect")
    return [text("Reconnection test completed")]


# Inputs of tools and forms for the user. SEP-1034: a default for every primitive type; SEP-1330: every shape of an
# enumeration; SEP-1613 and SEP-2106: keywords of JSON Schema 2020-12 that must come through untouched.
SCHEMAS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("schemas.json").read_text())


@dataclass(frozen=True)
class FixtureTool:
    """A tool of the suites: what it says of itself, and what it does."""

    name: str
    description: str
    body: ToolBody
    schema: dict[str, Any]

    def listed(self) -> t.Tool:
        return t.Tool(name=self.name, description=self.description, input_schema=self.schema)


NO_ARGUMENTS = SCHEMAS["no_arguments"]

TOOLS = {
    name: FixtureTool(name, description, body, schema)
    for name, description, body, schema in (
        (
            "test_simple_text",
            "Answers with text",
            constant(text("This is a simple text response for testing.")),
            NO_ARGUMENTS,
        ),
        ("test_image_content", "Answers with an image", constant(image()), NO_ARGUMENTS),
        (
            "test_audio_content",
            "Answers with audio",
            constant(t.AudioContent(data=AUDIO, mime_type="audio/wav")),
            NO_ARGUMENTS,
        ),
        (
            "test_embedded_resource",
            "Answers with an embedded resource",
            constant(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
            NO_ARGUMENTS,
        ),
        (
            "test_multiple_content_types",
            "Answers with text, image and resource",
            constant(
                text("Multiple content types test:"),
                image(),
                embedded("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}'),
            ),
            NO_ARGUMENTS,
        ),
        ("test_tool_with_logging", "Logs while it runs", with_logging, NO_ARGUMENTS),
        ("test_tool_with_progress", "Tells its progress", with_progress, NO_ARGUMENTS),
        ("test_error_handling", "Always fails", failing, NO_ARGUMENTS),
        (
            "test_sampling",
            "Asks the client's model",
            sampling,
            SCHEMAS["prompt"],
        ),
        (
            "test_elicitation",
            "Asks the user",
            elicitation("User response", SCHEMAS["answer"]),
            SCHEMAS["message"],
        ),
        (
            "test_elicitation_sep1034_defaults",
            "Asks the user, with defaults",
            elicitation("Elicitation completed", SCHEMAS["defaults"], "Please provide user information"),
            NO_ARGUMENTS,
        ),
        (
            "test_elicitation_sep1330_enums",
            "Asks the user to choose",
            elicitation("Elicitation completed", SCHEMAS["enums"], "Please select values"),
            NO_ARGUMENTS,
        ),
        ("test_reconnection", "Closes its stream while it runs", reconnection, NO_ARGUMENTS),
        ("json_schema_2020_12_tool", "Has a rich input schema", constant(text("ok")), SCHEMAS["json_schema_2020_12"]),
    )
}


async def list_tools(_ctx: Context, _params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[tool.listed() for tool in TOOLS.values()])


async def call_tool(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
    tool = TOOLS.get(params.name)
    if tool is None:
        raise MCPError(code=t.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
    try:
        return t.CallToolResult(content=await tool.body(ctx, params.arguments or {}))
    except (RuntimeError, MCPError) as error:
        return t.CallToolResult(content=[text(str(error))], is_error=True)


# --- resources -------------------------------------------------------------------------------------------------------

TEMPLATE = "test://template/{id}/data"

RESOURCES: dict[str, t.TextResourceContents | t.BlobResourceContents] = {
    contents.uri: contents
    for contents in (
        t.TextResourceContents(
            uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
        ),
        t.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=IMAGE),
        t.TextResourceContents(uri="test://watched-resource", mime_type="text/plain", text="Watched resource content"),
    )
}


async def list_resources(_ctx: Context, _params: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
    return t.ListResourcesResult(
        resources=[
            t.Resource(uri=uri, name=uri.removeprefix("test://"), mime_type=contents.mime_type)
            for uri, contents in RESOURCES.items()
        ]
    )


async def list_templates(_ctx: Context, _params: t.PaginatedRequestParams | None) -> t.ListResourceTemplatesResult:
    template = t.ResourceTemplate(uri_template=TEMPLATE, name="template", mime_type="application/json")
    return t.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(_ctx: Context, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
    uri = str(params.uri)
    prefix, suffix = TEMPLATE.split("{id}")
    if uri in RESOURCES:
        return t.ReadResourceResult(contents=[RESOURCES[uri]])
    if uri.startswith(prefix) and uri.endswith(suffix):
        number = uri[len(prefix) : -len(suffix)]
        value = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
        contents = t.TextResourceContents(uri=uri, mime_type="application/json", text=value)
        return t.ReadResourceResult(contents=[contents])
    raise MCPError(code=-32002, message="Resource not found", data={"uri": uri})


async def acknowledge(_ctx: Context, _params: Any) -> t.EmptyResult:
    return t.EmptyResult()


# --- prompts and completion ------------------------------------------------------------------------------------------


def user(content: Content) -> t.PromptMessage:
    return t.PromptMessage(role="user", content=content)


def simple_prompt(_arguments: dict[str, str]) -> list[t.PromptMessage]:
    return [user(text("This is a simple prompt for testing."))]


def prompt_with_arguments(arguments: dict[str, str]) -> list[t.PromptMessage]:
    return [user(text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"))]


def prompt_with_resource(arguments: dict[str, str]) -> list[t.PromptMessage]:
    resource = embedded(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
    return [user(resource), user(text("Please process the embedded resource above."))]


def prompt_with_image(_arguments: dict[str, str]) -> list[t.PromptMessage]:
    return [user(image()), user(text("Please analyze the image above."))]


PROMPTS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, str]], list[t.PromptMessage]]]] = {
    "test_simple_prompt": ((), simple_prompt),
    "test_prompt_with_arguments": (("arg1", "arg2"), prompt_with_arguments),
    "test_prompt_with_embedded_resource": (("resourceUri",), prompt_with_resource),
    "test_prompt_with_image": ((), prompt_with_image),
}


async def list_prompts(_ctx: Context, _params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
    return t.ListPromptsResult(
        prompts=[
            t.Prompt(
                name=name,
                description="A prompt of the conformance suite",
                arguments=[t.PromptArgument(name=argument, required=True) for argument in arguments],
            )
            for name, (arguments, _) in PROMPTS.items()
        ]
    )


async def get_prompt(_ctx: Context, params: t.GetPromptRequestParams) -> t.GetPromptResult:
    required, make = PROMPTS.get(params.name, ((), None))
    given = params.arguments or {}
    if make is None or any(name not in given for name in required):
        raise MCPError(code=t.INVALID_PARAMS, message=f"Unknown prompt or missing argument: {params.name}")
    return t.GetPromptResult(messages=make(given))


async def complete(_ctx: Context, params: t.CompleteRequestParams) -> t.CompleteResult:
    values = [value for value in ("paris", "park", "party") if value.startswith(params.argument.value)]
    return t.CompleteResult(completion=t.Completion(values=values, total=len(values), has_more=False))


# --- the server ------------------------------------------------------------------------------------------------------


class KeptEvents(EventStore):
    """SSE events of every stream in memory, in one sequence; enough for a test run."""

    def __init__(self) -> None:
        self._events: list[tuple[str, t.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: t.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id) if last_event_id.isdecimal() else 0
        if not 1 <= last <= len(self._events):
            return None
        stream = self._events[last - 1][0]
        for number, (stream_id, message) in enumerate(self._events[last:], last + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def make_server() -> Server[Any]:
    return Server(
        "stagedoor-conformance-fixture",
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=acknowledge,
        on_unsubscribe_resource=acknowledge,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=acknowledge,
    )


async def serve_stdio() -> None:
    server = make_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT", help="serve /mcp on 127.0.0.1:PORT instead of stdio")
    port = parser.parse_args().http
    if port is None:
        anyio.run(serve_stdio)
        return
    app = make_server().streamable_http_app(event_store=KeptEvents(), retry_interval=RETRY_MS)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
