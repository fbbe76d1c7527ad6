"""The matrix's client on a Python SDK of the handshake era that has Streamable HTTP (1.8 and later)."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import mcp.types as t
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError
from visit import Failed, Params, first, main

RESULTS = {
    "tools/list": t.ListToolsResult,
    "tools/call": t.CallToolResult,
    "resources/list": t.ListResourcesResult,
    "resources/templates/list": t.ListResourceTemplatesResult,
    "resources/read": t.ReadResourceResult,
    "prompts/list": t.ListPromptsResult,
    "prompts/get": t.GetPromptResult,
    "completion/complete": t.CompleteResult,
}


class V1Peer:
    """A session of the SDK's."""

    def __init__(self) -> None:
        self.revision = ""
        self.told: list[tuple[str, Params]] = []
        self.asked: list[str] = []
        self.decline = False
        self.session: Any = None

    async def request(self, method: str, params: Params, progress: list[float] | None = None) -> Params:
        request = t.ClientRequest.model_validate({"method": method, "params": params})

        async def progressed(value: float, *_: Any) -> None:
            if progress is not None:
                progress.append(value)

        extra = {"progress_callback": progressed} if progress is not None else {}
        try:
            result = await self.session.send_request(request, RESULTS[method], **extra)
        except McpError as error:
            raise Failed(error.error.code, error.error.data) from None
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def log_at(self, level: str | None) -> None:
        await self.session.set_logging_level(level or "emergency")

    async def watch(self, uri: str | None) -> Any:
        async def end() -> None:
            if uri is not None:
                await self.session.unsubscribe_resource(uri)

        if uri is not None:
            from pydantic import AnyUrl

            uri = AnyUrl(uri)
            await self.session.subscribe_resource(uri)
        return end

    async def abandon(self, method: str, params: Params) -> None:
        id, steps = 0, list[float]()

        async def begin() -> None:
            nonlocal id
            id = self.session._request_id  # the next one: the SDK has no public way to cancel
            with suppress(Failed):
                await self.request(method, params, steps)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            await first(steps)
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": id}}
            await self.session.send_notification(t.ClientNotification.model_validate(cancelled))

    # What the server says and asks

    async def heard(self, message: Any) -> None:
        if isinstance(message, t.ServerNotification):
            root = message.root
            params = root.params.model_dump(mode="json", by_alias=True) if root.params is not None else {}
            self.told.append((root.method, params))

    async def sample(self, _ctx: Any, params: Any) -> Any:
        self.asked.append("sampling")
        content = t.TextContent(type="text", text="words")
        return t.CreateMessageResult(role="assistant", model="m", content=content)

    async def list_roots(self, _ctx: Any) -> Any:
        self.asked.append("roots")
        return t.ListRootsResult.model_validate({"roots": [{"uri": "file:///home", "name": "home"}]})

    async def elicit(self, _ctx: Any, params: Any) -> Any:
        self.asked.append("elicitation")
        if self.decline:
            return t.ElicitResult(action="decline")
        content = None if getattr(params, "mode", "form") == "url" else {"color": "red"}
        return t.ElicitResult(action="accept", content=content)


@asynccontextmanager
async def connect(url: str) -> Any:
    peer = V1Peer()
    known = inspect.signature(ClientSession.__init__).parameters
    options: dict[str, Any] = {
        "sampling_callback": peer.sample,
        "list_roots_callback": peer.list_roots,
        "message_handler": peer.heard,
    }
    if "elicitation_callback" in known:
        options["elicitation_callback"] = peer.elicit
    if "sampling_capabilities" in known:
        options["sampling_capabilities"] = t.SamplingCapability(tools=t.SamplingToolsCapability())
    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write, **options) as session:
        peer.session = session
        peer.revision = (await session.initialize()).protocolVersion
        await anyio.sleep(0.3)  # the SDK opens its GET stream by and by
        yield peer


if __name__ == "__main__":
    main(connect)
