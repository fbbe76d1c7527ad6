"""A server that has everything the official conformance suites look for, on this project's own API.

The names of its tools, resources and prompts, and most of its texts, are fixed by the suites' scenarios. It is served
by `stagedoor run`; nothing imports it.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from stagedoor import (
    Audio,
    Content,
    Context,
    Embedded,
    Image,
    Message,
    Request,
    Response,
    Server,
    user,
)

FIXTURE = Path(__file__).with_name("fixture")
SCHEMAS: dict[str, dict[str, Any]] = json.loads((FIXTURE / "schemas.json").read_text())
STEP = 0.05
"""Seconds between two notifications of one call."""
PAUSE = 0.2
"""Seconds for which a stream that was closed stays away."""
IMAGE = Image(
    b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
)
AUDIO = Audio(b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="))

server = Server("stagedoor-conformance-native", version="1.0.0")


# --- tools that answer -----------------------------------------------------------------------------------------------


@server.tool
def test_simple_text() -> str:
    """Answers with text"""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> Image:
    """Answers with an image"""
    return IMAGE


@server.tool
def test_audio_content() -> Audio:
    """Answers with audio"""
    return AUDIO


@server.tool
def test_embedded_resource() -> Embedded:
    """Answers with an embedded resource"""
    return Embedded("test://embedded-resource", "This is an embedded resource content.", "text/plain")


@server.tool
def test_multiple_content_types() -> list[Content | str]:
    """Answers with text, image and resource"""
    mixed = Embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json")
    return ["Multiple content types test:", IMAGE, mixed]


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs while it runs"""
    await ctx.log("info", "Tool execution started")
    await trio.sleep(STEP)
    await ctx.log("info", "Tool processing data")
    await trio.sleep(STEP)
    await ctx.log("info", "Tool execution completed")
    return "Tool with logging executed successfully"


server.tool(name="test_logging_tool")(test_tool_with_logging)


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Tells its progress"""
    for step in (0, 50, 100):
        await ctx.progress(step, 100, f"Completed step {step} of 100")
        await trio.sleep(STEP)
    return "done"


@server.tool
def test_error_handling() -> str:
    """Always fails"""
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool(name="test_x_mcp_header", input_schema=SCHEMAS["mirrored"])
def mirrored(region: str = "") -> str:
    """Has a parameter that is mirrored into a header"""
    return f"region={region}"


@server.tool(input_schema=SCHEMAS["json_schema_2020_12"])
async def json_schema_2020_12_tool(req: Request, res: Response) -> Response:
    """Has a rich input schema"""
    return res.text("ok")


@server.tool
def test_trigger_tool_change() -> str:
    """Says that the list of tools has changed"""
    trio.from_thread.run_sync(server.list_changed, "tools")
    return "tool list changed"


@server.tool
def test_trigger_prompt_change() -> str:
    """Says that the list of prompts has changed"""
    trio.from_thread.run_sync(server.list_changed, "prompts")
    return "prompt list changed"


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Closes its stream while it runs"""
    await ctx.log("info", "Before disconnect")
    await trio.sleep(PAUSE)
    await ctx.log("info", "After reconnect")
    return "Reconnection test completed"


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Needs a client that can sample"""
    ctx.require("sampling")
    return "The client can sample."


# --- tools that ask --------------------------------------------------------------------------------------------------


@server.tool
async def test_sampling(ctx: Context, prompt: str) -> str:
    """Asks the client's model"""
    return f"LLM response: {(await ctx.sample(prompt, max_tokens=100)).text}"


async def fill_in(ctx: Context, message: str, schema: str, key: str | None = None) -> Mapping[str, Any]:
    return (await ctx.elicit(message, SCHEMAS[schema], key=key)).content or {}


async def about_user(ctx: Context, label: str, message: str, schema: str) -> str:
    answer = await ctx.elicit(message, SCHEMAS[schema])
    return f"{label}: action={answer.action}, content={json.dumps(answer.content or {})}"


@server.tool
async def test_elicitation(ctx: Context, message: str) -> str:
    """Asks the user"""
    return await about_user(ctx, "User response", message, "answer")


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks the user, with defaults"""
    return await about_user(ctx, "Elicitation completed", "Please provide user information", "defaults")


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks the user to choose"""
    return await about_user(ctx, "Elicitation completed", "Please select values", "enums")


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Asks the user"""
    return f"Hello, {(await fill_in(ctx, 'What is your name?', 'name', 'user_name')).get('name', '?')}!"


server.tool(name="test_input_required_result_elicitation")(test_streaming_elicitation)


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Asks the client's model"""
    return f"Model said: {(await ctx.sample('What is the capital of France?', max_tokens=100)).text}"


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Asks for the client's folders"""
    return f"Client exposed {len(await ctx.roots())} root(s)."


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Asks the user to confirm"""
    await fill_in(ctx, "Please confirm", "confirmation")
    return "state-ok: confirmation received"


server.tool(name="test_input_required_result_tampered_state")(test_input_required_result_request_state)


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks three things at once"""
    async with trio.open_nursery() as asking:
        asking.start_soon(fill_in, ctx, "What is your name?", "name")
        asking.start_soon(ctx.sample, "Generate a greeting")
        asking.start_soon(ctx.roots)
    return "All inputs received."


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Asks one thing after the other"""
    name = (await fill_in(ctx, "Step 1: What is your name?", "name")).get("name", "?")
    color = (await fill_in(ctx, "Step 2: What is your color?", "color")).get("color", "?")
    return f"{name} likes {color}."


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks only what the client can do"""
    asked = []
    async with trio.open_nursery() as asking:
        if ctx.can("sampling"):
            asked.append("sample")
            asking.start_soon(ctx.sample, "Say hello")
        if ctx.can("elicitation"):
            asked.append("ask")
            asking.start_soon(fill_in, ctx, "What is your name?", "name")
    return f"Asked for: {sorted(asked)}"


# --- resources -------------------------------------------------------------------------------------------------------


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    return IMAGE.data


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    return "Watched resource content"


@server.template("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> dict[str, Any]:
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# --- prompts and completion ------------------------------------------------------------------------------------------


@server.prompt
def test_simple_prompt() -> str:
    """A prompt"""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments"""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt(arguments=[{"name": "resourceUri", "required": True}])
async def test_prompt_with_embedded_resource(req: Request, res: Response) -> Response:
    """A prompt with a resource in it"""
    res.user().resource(req.params["resourceUri"], "Embedded resource content for testing.", "text/plain")
    return res.text("Please process the embedded resource above.")


@server.prompt
def test_prompt_with_image() -> list[Message]:
    """A prompt with an image in it"""
    return [user(IMAGE), user("Please analyze the image above.")]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks the user first"""
    answer = await fill_in(ctx, "What context should the prompt use?", "context")
    return f"Context: {answer.get('context', '?')}"


@server.complete("test_prompt_with_arguments", "arg1")
async def complete_arg1(typed: str) -> list[str]:
    return [value for value in ("paris", "park", "party") if value.startswith(typed)]
