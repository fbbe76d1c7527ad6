"""Tasks are declared to neither side and in neither form, so nobody gets one (2025-11-25 utilities/tasks; SEP-2663)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interaction.backend import Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT
from tests.interaction.codes import METHOD_NOT_FOUND
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN
from tests.support.wire_client import Message

TASKS = "io.modelcontextprotocol/tasks"
UI = {"mimeTypes": ["text/html"]}
LEGACY: Message = {"requests": {"tools": {"call": {}}}}
EVERYWHERE = (*(Cell(MODERN, "memory", "inproc", era) for era in ("modern", "legacy")), SESSIONS_TO_WITHOUT[0])


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("bridge-no-tasks", "tasks-not-declared")
async def test_tasks_are_declared_to_nobody(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend(capabilities={"tools": {}, "tasks": LEGACY, "extensions": {TASKS: {}}})
    backend.trusting = True
    seen: list[Any] = []

    @backend.tool("t")
    async def t(request: Request) -> Message:
        assert "task" not in request.params
        seen.append(request.params.get("_meta", {}).get(rules.CAPABILITIES))
        return text("done")

    extensions = {TASKS: {}, "io.modelcontextprotocol/ui": UI}
    client: Any
    if cell.revision == MODERN:
        client = stage.modern(route.path, capabilities={"extensions": extensions})
        await client.call(route.name("t"))
        declared = (await client.request("server/discover"))["capabilities"]
    else:
        client = await stage.connect(route.path, capabilities={"extensions": extensions, "tasks": LEGACY})
        declared = client.hello["capabilities"]
    params: Message = {"name": route.name("t"), "arguments": {}, "task": {"ttl": 1}}
    if cell.revision == MODERN and backend.modern:
        params.pop("task")
    assert (await client.request("tools/call", params))["content"] == text("done")["content"]
    assert "tasks" not in declared
    assert TASKS not in declared.get("extensions", {})
    upstream = [one for one in seen if one is not None]
    upstream += [connection.client["capabilities"] for connection in backend.connections if connection.client]
    for one in upstream:
        assert "tasks" not in one
        assert one.get("extensions", {}) in ({}, {"io.modelcontextprotocol/ui": UI})
    if cell.revision == MODERN:
        for method in ("tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list"):
            exchange = client.post(client.request_message(method, {"taskId": "T"}), mcp_name="T")
            assert await exchange.head() == 404
            assert (await exchange.json())["error"]["code"] == METHOD_NOT_FOUND
