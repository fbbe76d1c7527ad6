"""The matrix's client of revision 2026-07-28, on the Python SDK, which speaks the modern era alone here."""

from __future__ import annotations

import warnings
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp.types as t
from mcp import Client, MCPError
from visit import Failed, Params, first, main

warnings.filterwarnings("ignore", message=".*deprecated as of 2026-07-28")


class ModernPeer:
    """A client of the SDK's."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Params]] = []
        self.asked: list[str] = []
        self.decline = False
        self.client: Any = None
        self.tasks: Any = None
        self._level: str | None = None

    @property
    def revision(self) -> str:
        return str(self.client.protocol_version)

    async def request(self, method: str, params: Params, progress: list[float] | None = None) -> Params:
        async def progressed(value: float, *_: Any) -> None:
            if progress is not None:
                progress.append(value)

        meta = {**params.get("_meta", {})}
        if self._level is not None:
            meta["io.modelcontextprotocol/logLevel"] = self._level
        extra: dict[str, Any] = {"meta": meta or None}
        client = self.client
        try:
            match method:
                case "tools/call":
                    if progress is not None:
                        extra["progress_callback"] = progressed
                    result = await client.call_tool(params["name"], params.get("arguments"), **extra)
                case "tools/list":
                    result = await client.list_tools(cursor=params.get("cursor"), cache_mode="bypass")
                case "resources/list":
                    result = await client.list_resources(cursor=params.get("cursor"))
                case "resources/templates/list":
                    result = await client.list_resource_templates(cursor=params.get("cursor"))
                case "resources/read":
                    result = await client.read_resource(params["uri"])
                case "prompts/list":
                    result = await client.list_prompts(cursor=params.get("cursor"))
                case "prompts/get":
                    result = await client.get_prompt(params["name"], params.get("arguments"))
                case "completion/complete":
                    reference = t.PromptReference.model_validate(params["ref"])
                    result = await client.complete(reference, params["argument"])
        except MCPError as error:
            raise Failed(error.error.code, error.error.data) from None
        dumped: Params = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped

    async def log_at(self, level: str | None) -> None:
        self._level = level

    async def watch(self, uri: str | None) -> Any:
        done, ready = anyio.Event(), anyio.Event()
        wanted: dict[str, Any] = {"resource_subscriptions": [uri]} if uri else {"tools_list_changed": True}

        async def listen() -> None:
            async with self.client.listen(**wanted) as events:
                ready.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._hear, events)
                    await done.wait()
                    tasks.cancel_scope.cancel()

        self.tasks.start_soon(listen)
        await ready.wait()

        async def end() -> None:
            done.set()

        return end

    async def _hear(self, events: Any) -> None:
        async for event in events:
            kind = type(event).__name__
            if kind == "ResourceUpdated":
                self.told.append(("notifications/resources/updated", {"uri": str(event.uri)}))
            elif kind == "ToolsListChanged":
                self.told.append(("notifications/tools/list_changed", {}))

    async def abandon(self, method: str, params: Params) -> None:
        async with anyio.create_task_group() as tasks:
            steps: list[float] = []
            tasks.start_soon(self.request, method, params, steps)
            await first(steps)
            tasks.cancel_scope.cancel()

    # What the server says and asks

    async def log(self, params: Any) -> None:
        self.told.append(("notifications/message", params.model_dump(mode="json", by_alias=True)))

    async def sample(self, _ctx: Any, params: Any) -> Any:
        self.asked.append("sampling")
        return t.CreateMessageResult(role="assistant", model="m", content=t.TextContent(text="words"))

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
    peer = ModernPeer()
    client = Client(
        url,
        mode="2026-07-28",
        sampling_callback=peer.sample,
        sampling_capabilities=t.SamplingCapability(tools=t.SamplingToolsCapability()),
        list_roots_callback=peer.list_roots,
        elicitation_callback=peer.elicit,
        logging_callback=peer.log,
    )
    async with client, anyio.create_task_group() as tasks:
        peer.client, peer.tasks = client, tasks
        yield peer
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    main(connect)
