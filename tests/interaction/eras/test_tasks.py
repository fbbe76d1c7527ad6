"""Tasks of either form pass where both ends have them, and are declared to nobody else (2025-11-25 utilities/tasks;
SEP-2663)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interaction.backend import Request, text
from tests.interaction.cells import SESSIONS_TO_WITHOUT
from tests.interaction.codes import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import Message

TASKS = "io.modelcontextprotocol/tasks"
UI = {"mimeTypes": ["text/html"]}
AT = "2026-01-01T00:00:00Z"
LEGACY: Message = {"requests": {"tools": {"call": {}}}}
BETWEEN = (Cell(MODERN, "memory", "inproc", "legacy"), SESSIONS_TO_WITHOUT[0])
WITHIN = tuple(Cell(MODERN, "memory", "inproc", "modern", by) for by in ("http", "channel"))


@pytest.mark.cells(BETWEEN)
@pytest.mark.requirement("bridge-no-tasks", "tasks-not-declared")
async def test_between_the_eras_tasks_are_declared_to_nobody(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend(capabilities={"tools": {}, "tasks": LEGACY, "extensions": {TASKS: {}}})
    backend.trusting = True
    seen: list[Any] = []

    @backend.tool("t")
    async def t(request: Request) -> Message:
        assert "task" not in request.params
        seen.append(request.params.get("_meta", {}).get(rules.CAPABILITIES))
        return text("done")

    extensions = {TASKS: {}, "io.modelcontextprotocol/ui": UI}
    client: Any = await stage.connect(revision=NEWEST, capabilities={"extensions": extensions})
    await client.request("tools/list")  # an aggregate knows what its server has
    if cell.revision == MODERN:
        client = stage.modern(route.path, capabilities={"extensions": extensions})
        await client.call(route.name("t"))
        declared = (await client.request("server/discover"))["capabilities"]
    else:
        client = await stage.connect(route.path, capabilities={"extensions": extensions, "tasks": LEGACY})
        declared = client.server_info["capabilities"]
    params: Message = {"name": route.name("t"), "arguments": {}, "task": {"ttl": 1}}
    assert (await client.request("tools/call", params))["content"] == text("done")["content"]
    assert "tasks" not in declared
    assert TASKS not in declared.get("extensions", {})
    upstream = [one for one in seen if one is not None]
    upstream += [connection.client["capabilities"] for connection in backend.connections if connection.client]
    for one in upstream:
        assert "tasks" not in one
        assert one.get("extensions", {}) in ({}, {"io.modelcontextprotocol/ui": UI})
    if cell.revision == MODERN:
        assert await refused(client, "tasks/get") == INVALID_PARAMS
        for method in ("tasks/result", "tasks/list"):
            assert await refused(client, method) == METHOD_NOT_FOUND


@pytest.mark.cells(WITHIN)
@pytest.mark.requirement("tasks-not-declared")
async def test_within_the_era_the_extension_passes_for_clients_that_declare_it(stage: Stage, route: Route) -> None:
    backend = await stage.backend(capabilities={"tools": {}, "extensions": {TASKS: {}}})
    seen: list[Any] = []
    task = {"taskId": "T", "status": "working", "createdAt": AT, "lastUpdatedAt": AT, "ttlMs": 60_000}

    @backend.tool("t")
    async def t(request: Request) -> Message:
        seen.append(request.params["_meta"][rules.CAPABILITIES])
        return {"resultType": "task", **task} if "extensions" in seen[-1] else text("done")

    knows, plain = stage.modern(route.path, capabilities={"extensions": {TASKS: {}}}), stage.modern(route.path)
    result = await knows.start_call(route.name("t")).result()
    assert (result["resultType"], result["status"]) == ("task", "working")
    assert seen[-1]["extensions"] == {TASKS: {}}
    assert (await plain.call(route.name("t")))["content"] == text("done")["content"]
    assert "extensions" not in seen[-1]
    declared = (await knows.request("server/discover"))["capabilities"]
    assert declared["extensions"] == {TASKS: {}}
    assert await refused(knows, "tasks/get") == INVALID_PARAMS
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert await refused(plain, method, result["taskId"]) == MISSING_CAPABILITY


async def refused(client: Any, method: str, id: str = "T") -> int:
    """The code of the error for a request about a task."""
    return int((await client.send(client.request_message(method, {"taskId": id}), mcp_name=id).error()).code)
