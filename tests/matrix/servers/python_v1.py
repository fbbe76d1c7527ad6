"""The matrix's server on a Python SDK of the handshake era, from 1.2 on: `python_v1.py` (stdio) or `--http PORT`.

It runs in the environment of that SDK, which knows nothing of this project. What the SDK's revision lacks, it lacks.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
import mcp.types as t
import story
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

REVISION = t.LATEST_PROTOCOL_VERSION
STATE: dict[str, Any] = {"executed": 0, "cancelled": 0, "level": None, "extra": False}

server: Any = Server("matrix", version="1.0.0")


def failure(code: int, message: str, data: Any = None) -> McpError:
    return McpError(t.ErrorData(code=code, message=message, data=data))


def related(method: Any, ctx: Any) -> dict[str, Any]:
    """Where the SDK has streams for messages, they go on the stream of the request."""
    return (
        {"related_request_id": ctx.request_id} if "related_request_id" in inspect.signature(method).parameters else {}
    )


async def ask(ctx: Any, request: dict[str, Any], result: Any) -> dict[str, Any]:
    """A request of the server's own, by the SDK's types."""
    asked = t.ServerRequest.model_validate(request)
    options = {}
    if "metadata" in inspect.signature(ctx.session.send_request).parameters and request["method"] != "roots/list":
        from mcp.shared.message import ServerMessageMetadata

        options["metadata"] = ServerMessageMetadata(related_request_id=ctx.request_id)
    answer = await ctx.session.send_request(asked, result, **options)
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


async def log(ctx: Any, level: Any, text: str) -> None:
    await ctx.session.send_log_message(level, text, "matrix", **related(ctx.session.send_log_message, ctx))


# --- tools that need more than a constant answer


async def step(ctx: Any, number: int) -> None:
    token = ctx.meta.progressToken if ctx.meta is not None else None
    send = ctx.session.send_progress_notification
    if token is not None:
        await send(token, float(number), 3.0, **related(send, ctx))


async def progress(ctx: Any, _: dict[str, Any]) -> list[Any]:
    for number in (1, 2, 3):
        await step(ctx, number)
        await anyio.sleep(0.02)
    return [story.text("done")]


async def logs(ctx: Any, _: dict[str, Any]) -> list[Any]:
    for level in ("debug", "warning"):
        if STATE["level"] is None or story.LEVELS.index(level) >= story.LEVELS.index(STATE["level"]):
            await log(ctx, level, f"a {level}")
    await anyio.sleep(0.05)
    return [story.text("done")]


async def slow(ctx: Any, _: dict[str, Any]) -> list[Any]:
    await step(ctx, 1)
    try:
        await anyio.sleep(30)
    except anyio.get_cancelled_exc_class():
        STATE["cancelled"] += 1
        raise
    return [story.text("too late")]


async def sample(ctx: Any, arguments: dict[str, Any]) -> list[Any]:
    STATE["executed"] += 1
    params = story.sampling(with_tools=bool(arguments.get("tools")))
    result = t.CreateMessageResult
    if arguments.get("tools") and hasattr(t, "CreateMessageResultWithTools"):
        result = t.CreateMessageResultWithTools
    answer = await ask(ctx, {"method": "sampling/createMessage", "params": params}, result)
    return [story.text(f"sampled {story.said(answer)}")]


async def elicit(ctx: Any, arguments: dict[str, Any]) -> list[Any]:
    if arguments.get("url") and REVISION < "2025-11-25":
        raise failure(-32602, "no url mode")
    STATE["executed"] += 1
    params = story.url() if arguments.get("url") else story.form()
    if not arguments.get("url") and REVISION < "2025-11-25":
        params.pop("mode")
    answer = await ask(ctx, {"method": "elicitation/create", "params": params}, t.ElicitResult)
    return [story.text(story.elicited(answer))]


async def roots(ctx: Any, _: dict[str, Any]) -> list[Any]:
    answer = await ask(ctx, {"method": "roots/list"}, t.ListRootsResult)
    return [story.text(" ".join(root["uri"] for root in answer["roots"]))]


async def needs_url(_ctx: Any, _: dict[str, Any]) -> list[Any]:
    if STATE.pop("opened", False):
        return [story.text("opened")]
    STATE["opened"] = True
    raise failure(-32042, "Open this page first", {"elicitations": [story.url()]})


async def touch(ctx: Any, _: dict[str, Any]) -> list[Any]:
    await ctx.session.send_resource_updated(AnyUrl(story.MEMO))
    return [story.text("touched")]


async def change(ctx: Any, _: dict[str, Any]) -> list[Any]:
    STATE["extra"] = not STATE["extra"]
    await ctx.session.send_tool_list_changed()
    return [story.text("changed")]


async def metadata(ctx: Any, _: dict[str, Any]) -> list[Any]:
    meta = ctx.meta.model_dump(exclude_none=True) if ctx.meta is not None else {}
    return [story.text(json.dumps(sorted(key for key in meta if key.startswith("trace"))))]


async def counted(_ctx: Any, _: dict[str, Any]) -> list[Any]:
    return [story.text(json.dumps({name: STATE[name] for name in ("executed", "cancelled")}))]


BODIES: dict[str, Any] = {
    "progress": progress,
    "logs": logs,
    "slow": slow,
    "sample": sample,
    "elicit": elicit,
    "roots": roots,
    "needs_url": needs_url,
    "touch": touch,
    "change": change,
    "metadata": metadata,
    "counted": counted,
}


async def list_tools(request: Any) -> Any:
    cursor = getattr(request.params, "cursor", None)  # the oldest SDK knows it only as an extra member
    page = story.tools_page(REVISION, cursor, extra=STATE["extra"])
    return t.ServerResult(t.ListToolsResult.model_validate(page))


async def call_tool(request: Any) -> Any:
    name, arguments = request.params.name, request.params.arguments or {}
    if name not in story.tool_names(REVISION):
        raise failure(-32602, f"Unknown tool: {name}")
    if name in BODIES:
        try:
            result: dict[str, Any] = {"content": await BODIES[name](server.request_context, arguments)}
        except McpError as error:
            if error.error.code == -32042:
                raise
            result = {"content": [story.text(f"refused {error.error.code}")], "isError": True}
    else:
        result = story.constant(name, arguments)
    return t.ServerResult(t.CallToolResult.model_validate(result))


async def list_resources(_request: Any) -> Any:
    return t.ServerResult(t.ListResourcesResult.model_validate(story.resources()))


async def list_templates(_request: Any) -> Any:
    return t.ServerResult(t.ListResourceTemplatesResult.model_validate(story.templates()))


async def read_resource(request: Any) -> Any:
    result = story.read(str(request.params.uri))
    if result is None:
        raise failure(-32002, "Resource not found", {"uri": str(request.params.uri)})
    return t.ServerResult(t.ReadResourceResult.model_validate(result))


async def list_prompts(_request: Any) -> Any:
    return t.ServerResult(t.ListPromptsResult.model_validate(story.prompts(REVISION)))


async def get_prompt(request: Any) -> Any:
    topic = (request.params.arguments or {}).get("topic", "")
    if request.params.name not in [prompt["name"] for prompt in story.prompts(REVISION)["prompts"]]:
        raise failure(-32602, f"Unknown prompt: {request.params.name}")
    if request.params.name == "asking":
        params = story.form()
        if REVISION < "2025-11-25":
            params.pop("mode")
        answer = await ask(server.request_context, {"method": "elicitation/create", "params": params}, t.ElicitResult)
        topic = story.elicited(answer)
    return t.ServerResult(t.GetPromptResult.model_validate(story.prompt(topic)))


async def complete(request: Any) -> Any:
    return t.ServerResult(t.CompleteResult.model_validate(story.completion(request.params.argument.value)))


async def set_level(request: Any) -> Any:
    STATE["level"] = request.params.level
    return t.ServerResult(t.EmptyResult())


async def nothing(_request: Any) -> Any:
    return t.ServerResult(t.EmptyResult())


server.request_handlers.update(
    {
        t.ListToolsRequest: list_tools,
        t.CallToolRequest: call_tool,
        t.ListResourcesRequest: list_resources,
        t.ListResourceTemplatesRequest: list_templates,
        t.ReadResourceRequest: read_resource,
        t.SubscribeRequest: nothing,
        t.UnsubscribeRequest: nothing,
        t.ListPromptsRequest: list_prompts,
        t.GetPromptRequest: get_prompt,
        t.CompleteRequest: complete,
        t.SetLevelRequest: set_level,
    }
)


def options() -> Any:
    made = server.create_initialization_options(NotificationOptions(tools_changed=True))
    made.capabilities.resources.subscribe = True
    return made


async def serve_stdio() -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, options())


def serve_http(port: int) -> None:
    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.routing import Mount

    server.create_initialization_options = options_of(server)
    manager = StreamableHTTPSessionManager(server)
    app = Starlette(routes=[Mount("/", app=manager.handle_request)], lifespan=lambda _: manager.run())
    # By itself it closes what was idle for 5 s, unannounced: a request may cross with that.
    uvicorn.run(app, host="127.0.0.1", port=port, timeout_keep_alive=3600, log_level="warning")


def options_of(served: Any) -> Any:
    """The session manager asks the server for its options; they are those of stdio."""
    plain = type(served).create_initialization_options

    def made(*_: Any, **__: Any) -> Any:
        initialization = plain(served, NotificationOptions(tools_changed=True))
        initialization.capabilities.resources.subscribe = True
        return initialization

    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    port = parser.parse_args().http
    if port is None:
        anyio.run(serve_stdio)
    else:
        serve_http(port)
