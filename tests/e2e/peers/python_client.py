"""A client on the official Python SDK: uses every feature of the servers it visits, as the clients beside it do."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import AsyncExitStack
from typing import Any

import trio
from mcp import Client, MCPError
from mcp import types as t

warnings.filterwarnings("ignore", message=".*as of 2026-07-28")

PATIENCE = 180.0  # seconds for one visit
MODERN = "2026-07-28"
CHANGED, UPDATED = "notifications/tools/list_changed", "notifications/resources/updated"


class Conversation:
    """One connection, and what its server said."""

    def __init__(self, visit: dict[str, Any], seen: dict[str, Any]) -> None:
        self.visit = visit
        self.seen = seen
        self.progress: list[float] = []
        self.told: list[str] = []
        self.client: Any = None

    # What the server asks and says

    async def elicit(self, _context: Any, _params: Any) -> t.ElicitResult:
        return t.ElicitResult(action="accept", content={"color": "red"})

    async def sample(self, _context: Any, _params: Any) -> t.CreateMessageResult:
        return t.CreateMessageResult(role="assistant", model="m", content=t.TextContent(text="words"))

    async def roots(self, _context: Any) -> t.ListRootsResult:
        return t.ListRootsResult(roots=[t.Root(uri="file:///home", name="home")])

    async def hear(self, message: Any) -> None:
        self.told.append(getattr(message, "method", ""))

    async def step(self, progress: float, *_: Any) -> None:
        self.progress.append(progress)

    async def hear_events(self, events: Any) -> None:
        async for event in events:
            self.told.append({"ToolsListChanged": CHANGED}.get(type(event).__name__, UPDATED))

    # The visit

    async def make(self) -> None:
        legacy = self.visit["revision"] != MODERN
        async with AsyncExitStack() as stack:
            self.client = await stack.enter_async_context(
                Client(
                    self.visit["url"],
                    mode="legacy" if legacy else MODERN,
                    elicitation_callback=self.elicit,
                    sampling_callback=self.sample,
                    list_roots_callback=self.roots,
                    message_handler=self.hear,
                )
            )
            self.seen["revision"] = self.client.protocol_version
            await self.use_tools()
            await self.use_resources()
            await self.use_prompts()
            if self.visit["told"]:
                await self.be_told(legacy)

    async def call(self, name: str, arguments: dict[str, Any] | None = None) -> str:
        tool = self.visit["names"] + name
        result = await self.client.call_tool(tool, arguments or {}, progress_callback=self.step)
        words = ["isError"] if result.is_error else []
        return " ".join(words + [part.text for part in result.content if isinstance(part, t.TextContent)])

    async def all(self, lister: Any, key: str, name: str, prefix: str) -> list[str]:
        found, cursor = [], None
        while True:
            page = await lister(cursor=cursor, cache_mode="bypass")
            found += [getattr(item, name) for item in getattr(page, key)]
            if (cursor := page.next_cursor) is None:
                return sorted(item.removeprefix(prefix) for item in found if item.startswith(prefix))

    async def tools(self) -> list[str]:
        return await self.all(self.client.list_tools, "tools", "name", self.visit["names"])

    async def use_tools(self) -> None:
        seen = self.seen
        seen["tools"] = await self.tools()
        seen["echo"] = await self.call("echo", {"value": "grüße"})
        try:
            seen["unknown tool"] = await self.call("no-such-tool")
        except MCPError as error:
            seen["unknown tool"] = error.error.code
        for name in ("fail", "steps", "elicit", "sample", "roots"):
            seen[name] = await self.call(name)
        seen["progress"] = self.progress

    async def use_resources(self) -> None:
        client, uris = self.client, self.visit["uris"]
        self.seen["resources"] = await self.all(client.list_resources, "resources", "uri", uris)
        templates = await self.all(client.list_resource_templates, "resource_templates", "uri_template", uris)
        self.seen["templates"] = templates
        for feature, uri in (("read", "memo:///one"), ("read by template", "memo:///by-id/7")):
            self.seen[feature] = (await client.read_resource(uris + uri)).contents[0].text

    async def use_prompts(self) -> None:
        client, greeting = self.client, self.visit["names"] + "greeting"
        self.seen["prompts"] = await self.all(client.list_prompts, "prompts", "name", self.visit["names"])
        self.seen["prompt"] = (await client.get_prompt(greeting, {"topic": "tea"})).messages[0].content.text
        completed = await client.complete(t.PromptReference(name=greeting), {"name": "topic", "value": "mu"})
        self.seen["completion"] = completed.completion.values

    async def be_told(self, legacy: bool) -> None:
        uri = self.visit["uris"] + "memo:///one"
        updates, changes = ("updated" in self.visit["told"]), ("changes" in self.visit["told"])
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            if not legacy:
                wanted = {"tools_list_changed": changes, "resource_subscriptions": [uri] if updates else []}
                nursery.start_soon(self.hear_events, await stack.enter_async_context(self.client.listen(**wanted)))
            elif updates:
                await self.client.subscribe_resource(uri)
            if updates:
                heard = self.told.count(UPDATED)
                await self.call("touch")
                await self.heard(UPDATED, heard)
                self.seen["updated"] = True
            for feature in ("tools after one came", "tools after it left") if changes else ():
                before = now = await self.tools()
                heard = self.told.count(CHANGED)
                await self.call("change")
                while now == before:  # behind an aggregate, what is told may be a change of another server
                    heard = await self.heard(CHANGED, heard)
                    now = await self.tools()
                self.seen[feature] = now
            nursery.cancel_scope.cancel()

    async def heard(self, method: str, before: int) -> int:
        """Waits until this was told of more often than before; how often it was."""
        while (now := self.told.count(method)) == before:
            await trio.sleep(0.01)
        return now


async def main() -> None:
    seen: list[dict[str, Any]] = []
    for visit in json.loads(sys.argv[1]):
        seen.append({})
        try:
            with trio.fail_after(PATIENCE):
                await Conversation(visit, seen[-1]).make()
        except* Exception as error:
            seen[-1]["broken"] = repr(error.exceptions)
    print(json.dumps(seen))


if __name__ == "__main__":
    trio.run(main)
