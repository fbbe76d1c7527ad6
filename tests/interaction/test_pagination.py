"""Lists in pages, and of backends of which some are dead (2025-11-25 server/utilities/pagination)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import EVERYWHERE, JUMPING
from tests.interaction.codes import INTERNAL, INVALID_PARAMS
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import HttpError, Message, RpcError

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

RELATING = pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http")))


# Pagination --------------------------------------------------------------------------------------------------


def paged(items: list[dict[str, Any]], kind: str, cursors: list[str]) -> Any:
    """A list in pages of one, with these cursors between them."""

    async def listed(request: Request) -> Message:
        cursor = request.params.get("cursor")
        if cursor is not None and cursor not in cursors:
            raise RpcError({"code": INVALID_PARAMS, "message": "no such cursor"})
        page = 0 if cursor is None else cursors.index(cursor) + 1
        more = {"nextCursor": cursors[page]} if page < len(cursors) else {}
        return {kind: [items[page]], **more}

    return listed


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


@pytest.mark.requirement("pagination", "cursor-empty", "pitfall-28")
async def test_all_pages_of_all_backends_are_seen_once_also_behind_an_empty_cursor(stage: Stage) -> None:
    for name in ("alpha", "beta"):
        backend = await stage.backend(name)
        backend.on("tools/list")(paged(tools("a", "b", "c"), "tools", ["", "next \u00e4"]))
        backend.answers("tools/call", text(name))
    client = await stage.connect()
    seen: list[str] = []
    params: dict[str, Any] = {}
    while True:
        page = await client.request("tools/list", params)
        seen += [tool["name"] for tool in page["tools"]]
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert seen == [f"{name}__{tool}" for name in ("alpha", "beta") for tool in "abc"]
    assert await client.call("beta__c") == text("beta")


@pytest.mark.requirement("pagination", "cursor-empty", "pitfall-28")
async def test_alone_a_backends_cursors_are_its_own(stage: Stage) -> None:
    backend = await stage.backend()
    backend.on("tools/list")(paged(tools("a", "b", "c"), "tools", ["", "next \u00e4"]))
    client = await stage.connect("/mcp/alpha")
    first = await client.request("tools/list")
    assert first["nextCursor"] == ""
    second = await client.request("tools/list", {"cursor": ""})
    assert second["nextCursor"] == "next \u00e4"
    third = await client.request("tools/list", {"cursor": "next \u00e4"})
    assert [page["tools"][0]["name"] for page in (first, second, third)] == ["a", "b", "c"]
    assert "nextCursor" not in third
    assert (await client.refused("tools/list", {"cursor": "forged"})).code == INVALID_PARAMS


@JUMPING
@pytest.mark.requirement("pagination", "pitfall-28")
async def test_a_list_without_end_does_not_hold_the_others_up(stage: Stage) -> None:
    endless = await stage.backend("endless")

    @endless.on("tools/list")
    async def more(request: Request) -> Message:
        return {"tools": tools(f"t{len(endless.of('tools/list'))}"), "nextCursor": "again"}

    good = await stage.backend("good")
    good.result("echo", text("yes"))
    client = await stage.connect()
    listed = await client.request("tools/list", within=100)
    assert "good__echo" in [tool["name"] for tool in listed["tools"]]
    assert await client.call("good__echo") == text("yes")


@JUMPING
@pytest.mark.requirement("cursor-forged", "pitfall-28")
async def test_a_merged_list_has_pages_and_only_its_own_cursors_lead_on(stage: Stage) -> None:
    backend = await stage.backend()
    for n in range(1200):
        backend.add("tools", {"name": f"t{n}", "inputSchema": {"type": "object"}})
        backend.add("prompts", {"name": f"p{n}"})
    client = await stage.connect()
    first = await client.request("tools/list")
    cursor = first["nextCursor"]
    second = await client.request("tools/list", {"cursor": cursor})
    assert "nextCursor" not in second
    assert len({tool["name"] for tool in first["tools"] + second["tools"]}) == 1200
    prompts = (await client.request("prompts/list"))["nextCursor"]
    other = ("B" if cursor[0] == "A" else "A") + cursor[1:]
    forged: list[Any] = [prompts, cursor[:-1], cursor + "A", other, "", "1", "x" * 9000, "\u00e4"]
    for wrong in forged:
        assert (await client.refused("tools/list", {"cursor": wrong})).code == INVALID_PARAMS
    mistyped: list[Any] = [7, [cursor], {}]
    for wrong in mistyped:
        assert (await client.refused("tools/list", {"cursor": wrong})).code == INVALID_PARAMS


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("cursor-forged", "cursor-stale", "pitfall-28")
async def test_cursors_of_others_or_of_former_lists_are_invalid_params(stage: Stage) -> None:
    backend = await stage.backend()
    for n in range(1200):
        backend.add("tools", {"name": f"t{n}", "inputSchema": {"type": "object"}})
    backend.answers("tools/call", text("ok"))
    ann = await stage.connect(token="token-of-ann")
    bob = await stage.connect(token="token-of-bob")
    cursor = (await ann.request("tools/list"))["nextCursor"]
    await bob.request("tools/list")
    assert (await bob.refused("tools/list", {"cursor": cursor})).code == INVALID_PARAMS
    await ann.call("alpha__t1")
    backend.add("tools", {"name": "new", "inputSchema": {"type": "object"}})
    backend.connections[-1].notify("notifications/tools/list_changed")
    await trio.sleep(1)
    assert (await ann.refused("tools/list", {"cursor": cursor})).code == INVALID_PARAMS


# A dead backend in a list ------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("list-partial")
async def test_a_list_has_what_the_living_backends_have(stage: Stage) -> None:
    good, bad, mute = [await stage.backend(name) for name in ("good", "bad", "mute")]
    good.result("echo", text("yes"))
    bad.refuses("tools/list", INTERNAL, "broken")
    mute.result("never", text("no"))

    @mute.on("tools/list")
    async def never(request: Request) -> None:
        await trio.sleep_forever()

    client = await stage.connect()
    listed = await client.request("tools/list", within=60)
    assert [tool["name"] for tool in listed["tools"]] == ["good__echo"]


@JUMPING
@pytest.mark.requirement("list-partial")
async def test_if_no_backend_can_be_asked_that_is_an_error_and_no_empty_list(stage: Stage) -> None:
    for name in ("one", "two"):
        (await stage.backend(name)).refuses("initialize", INTERNAL, "broken")
    client = await stage.connect()
    assert (await client.refused("tools/list")).code == INTERNAL


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("unanswerable")
async def test_what_a_client_says_of_nothing_is_no_harm(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    for token in (1, "x"):
        await client.notify("notifications/progress", {"progressToken": token, "progress": 1})
    await client.notify("notifications/cancelled", {"requestId": 99})
    with pytest.raises(HttpError):
        await client.accepted(client.post({"jsonrpc": "2.0", "id": 99, "result": {}}))
    assert await client.call(route.name("echo")) == text("yes")
    told = [m["params"]["progressToken"] for m in backend.of("notifications/progress")]
    assert told == ([] if route.name_prefix else [1, "x"]), "to one server it may mean something"
