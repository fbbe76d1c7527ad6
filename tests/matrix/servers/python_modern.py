"""The matrix's server of revision 2026-07-28, on the Python SDK: `python_modern.py` (stdio) or `--http PORT`.

It speaks the modern era alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "matrix"), str(TESTS / "peers")]
warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")

import anyio  # noqa: E402
import mcp.types as t  # noqa: E402
import story  # noqa: E402
import uvicorn  # noqa: E402
from asking import Asking, Context  # noqa: E402
from eras import MODERN, of_era, stdio_of_era  # noqa: E402
from mcp import MCPError  # noqa: E402
from mcp.server.lowlevel import Server  # noqa: E402
from mcp.server.subscriptions import (  # noqa: E402
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ToolsListChanged,
)

STATE: dict[str, Any] = {"executed": 0, "cancelled": 0, "extra": False}
bus = InMemorySubscriptionBus()


def question(method: str, params: dict[str, Any] | None = None) -> Any:
    kinds = {"sampling/createMessage": t.CreateMessageRequest, "elicitation/create": t.ElicitRequest}
    kind = kinds.get(method, t.ListRootsRequest)
    return kind.model_validate({"method": method} | ({"params": params} if params is not None else {}))


def modern_url() -> dict[str, Any]:
    return {name: value for name, value in story.url().items() if name != "elicitationId"}


def asking(make: Any) -> Asking:
    return Asking((lambda _ctx, arguments, _given: {"answer": make(arguments)},), keeps=True)


SAMPLE = asking(lambda a: question("sampling/createMessage", story.sampling(with_tools=bool(a.get("tools")))))
ELICIT = asking(lambda a: question("elicitation/create", modern_url() if a.get("url") else story.form()))
ROOTS = asking(lambda _: question("roots/list"))

ASKING = {
    "sample": (SAMPLE, ("sampling",), lambda answer: f"sampled {story.said(answer)}"),
    "elicit": (ELICIT, ("elicitation",), story.elicited),
    "roots": (ROOTS, ("roots",), lambda answer: " ".join(root["uri"] for root in answer["roots"])),
}


def require(ctx: Context, kind: str, arguments: dict[str, Any]) -> None:
    """What the client did not declare in this request can't be asked of it."""
    declared = ctx.session.client_capabilities
    held = getattr(declared, kind, None) if declared is not None else None
    wanted: dict[str, Any] = {}
    if kind == "elicitation" and arguments.get("url"):
        wanted, held = {"url": {}}, held.url if held is not None else None
    elif kind == "sampling" and arguments.get("tools"):
        wanted, held = {"tools": {}}, held.tools if held is not None else None
    if held is None:
        data = {"requiredCapabilities": {kind: wanted}}
        raise MCPError(code=t.MISSING_REQUIRED_CLIENT_CAPABILITY, message=f"{kind} is needed", data=data)


async def ask(ctx: Context, params: t.CallToolRequestParams) -> Any:
    arguments = params.arguments or {}
    steps, kind, say = ASKING[params.name]
    require(ctx, kind[0], arguments)
    if params.request_state is None:
        STATE["executed"] += 1
    answers = await steps.answers(ctx, params)
    if isinstance(answers, t.InputRequiredResult):
        return answers
    return {"content": [story.text(say(answers["answer"]))]}


async def progress(ctx: Context, _: dict[str, Any]) -> list[Any]:
    for step in (1, 2, 3):
        await ctx.session.report_progress(step, 3)
        await anyio.sleep(0.02)
    return [story.text("done")]


async def logs(ctx: Context, _: dict[str, Any]) -> list[Any]:
    for level in ("debug", "warning"):
        await ctx.session.send_log_message(level, f"a {level}", "matrix", related_request_id=ctx.request_id)
    await anyio.sleep(0.05)
    return [story.text("done")]


async def slow(ctx: Context, _: dict[str, Any]) -> list[Any]:
    await ctx.session.report_progress(1, 3)
    try:
        await anyio.sleep(30)
    except anyio.get_cancelled_exc_class():
        STATE["cancelled"] += 1
        raise
    return [story.text("too late")]


async def touch(_ctx: Context, _: dict[str, Any]) -> list[Any]:
    await bus.publish(ResourceUpdated(story.MEMO))
    return [story.text("touched")]


async def change(_ctx: Context, _: dict[str, Any]) -> list[Any]:
    STATE["extra"] = not STATE["extra"]
    await bus.publish(ToolsListChanged())
    return [story.text("changed")]


async def metadata(ctx: Context, _: dict[str, Any]) -> list[Any]:
    return [story.text(json.dumps(sorted(key for key in ctx.meta or {} if key.startswith("trace"))))]


async def counted(_ctx: Context, _: dict[str, Any]) -> list[Any]:
    return [story.text(json.dumps({name: STATE[name] for name in ("executed", "cancelled")}))]


BODIES: dict[str, Any] = {
    "progress": progress,
    "logs": logs,
    "slow": slow,
    "touch": touch,
    "change": change,
    "metadata": metadata,
    "counted": counted,
}


async def list_tools(_ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    cursor = params.cursor if params is not None else None
    return t.ListToolsResult.model_validate(story.tools_page(MODERN, cursor, extra=STATE["extra"]))


async def call_tool(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
    if params.name not in story.tool_names(MODERN):
        raise MCPError(code=t.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
    if params.name in ASKING:
        result = await ask(ctx, params)
        if isinstance(result, t.InputRequiredResult):
            return result
    elif params.name in BODIES:
        result = {"content": await BODIES[params.name](ctx, params.arguments or {})}
    else:
        result = story.constant(params.name, params.arguments or {})
    return t.CallToolResult.model_validate(result)


async def list_resources(_ctx: Context, _params: Any) -> t.ListResourcesResult:
    return t.ListResourcesResult.model_validate(story.resources())


async def list_templates(_ctx: Context, _params: Any) -> t.ListResourceTemplatesResult:
    return t.ListResourceTemplatesResult.model_validate(story.templates())


async def read_resource(_ctx: Context, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
    result = story.read(str(params.uri))
    if result is None:
        raise MCPError(code=t.INVALID_PARAMS, message="Resource not found", data={"uri": str(params.uri)})
    return t.ReadResourceResult.model_validate(result)


async def list_prompts(_ctx: Context, _params: Any) -> t.ListPromptsResult:
    return t.ListPromptsResult.model_validate(story.prompts(MODERN))


async def get_prompt(ctx: Context, params: t.GetPromptRequestParams) -> t.GetPromptResult | t.InputRequiredResult:
    topic = (params.arguments or {}).get("topic", "")
    if params.name == "asking":
        require(ctx, "elicitation", {})
        answers = await ELICIT.answers(ctx, params)
        if isinstance(answers, t.InputRequiredResult):
            return answers
        topic = story.elicited(answers["answer"])
    return t.GetPromptResult.model_validate(story.prompt(topic))


async def complete(_ctx: Context, params: t.CompleteRequestParams) -> t.CompleteResult:
    return t.CompleteResult.model_validate(story.completion(params.argument.value))


async def nothing(_ctx: Context, _params: Any) -> t.EmptyResult:
    return t.EmptyResult()


def make_server() -> Server[Any]:
    return Server(
        "matrix",
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscriptions_listen=ListenHandler(bus),
        on_subscribe_resource=nothing,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=nothing,
    )


async def serve_stdio() -> None:
    server = make_server()
    async with stdio_of_era("modern") as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    port = parser.parse_args().http
    if port is None:
        anyio.run(serve_stdio)
    else:
        # By itself it closes what was idle for 5 s, unannounced: a request may cross with that.
        bounds = {"timeout_keep_alive": 3600, "log_level": "warning"}
        uvicorn.run(of_era(make_server().streamable_http_app(), "modern"), host="127.0.0.1", port=port, **bounds)
