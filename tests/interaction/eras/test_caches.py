"""What is kept of answers, for whom, and how long; pages and cursors (2026-07-28 server/utilities)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request
from tests.interaction.cells import SESSIONS_TO_WITHOUT
from tests.interaction.codes import INVALID_PARAMS
from tests.interaction.era_backend import ModernBackend
from tests.interaction.stage import Cell, Route, Stage
from tests.support.modern_wire import ModernWire
from tests.support.schemas import MODERN
from tests.support.wire_client import Message

ERAS = tuple(Cell(MODERN, "memory", "inproc", era, by) for by in ("http", "channel") for era in ("modern", "legacy"))
BOTH = pytest.mark.cells(ERAS)
MODERN_ONLY = pytest.mark.cells(ERAS[::2])
TOKENS = pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")


def counting(backend: ModernBackend, method: str, kind: str, **hints: Any) -> list[Request]:
    """A list that is another one each time, with these hints."""
    asked: list[Request] = []

    @backend.on(method)
    async def listed(request: Request) -> Message:
        asked.append(request)
        name = f"n{len(asked)}"
        item = (
            {"name": name, "inputSchema": {"type": "object"}} if kind == "tools" else {"name": name, "uri": "test:///r"}
        )
        return {kind: [item], **hints}

    return asked


async def tools(client: ModernWire, route: Route) -> list[str]:
    """The names of the list, without prefix."""
    return [tool["name"].removeprefix(route.name_prefix) for tool in (await client.request("tools/list"))["tools"]]


@MODERN_ONLY
@TOKENS
@pytest.mark.parametrize("hints", [{"cacheScope": "private", "ttlMs": 60_000}, {}], ids=str)
@pytest.mark.requirement("pitfall-27", "bridge-cache-private")
async def test_what_is_private_is_never_anothers(stage: Stage, route: Route, hints: Message) -> None:
    backend = await stage.modern_backend()
    backend.hints = {"ttlMs": 0, "cacheScope": "private"} if not hints else backend.hints
    counting(backend, "tools/list", "tools", **hints)
    ann, bob = (stage.modern(route.path, token=f"token-of-{name}") for name in ("ann", "bob"))
    seen = {"ann": set(await tools(ann, route)), "bob": set(await tools(bob, route))}
    for client, name in ((ann, "ann"), (bob, "bob"), (ann, "ann")):
        seen[name] |= set(await tools(client, route))
    if route.name_prefix and not hints:
        return  # the merged list is the gateway's own, and each is made of what the server gave to that client
    assert not seen["ann"] & seen["bob"]


@MODERN_ONLY
@TOKENS
@pytest.mark.requirement("pitfall-27", "bridge-cache-public")
async def test_what_is_public_is_asked_for_once_while_it_is_fresh(stage: Stage) -> None:
    backend = await stage.modern_backend()
    asked = counting(backend, "resources/list", "resources", ttlMs=60_000, cacheScope="public")
    for name in ("ann", "bob", "ann"):
        client = stage.modern("/mcp/alpha", token=f"token-of-{name}")
        found = await client.request("resources/list")
        assert found["resources"][0]["name"] == "n1"
        assert found["ttlMs"] <= 60_000
    assert len(asked) == 1
    await trio.sleep(61)
    await stage.modern("/mcp/alpha", token="token-of-ann").request("resources/list")
    assert len(asked) == 2


@MODERN_ONLY
@pytest.mark.requirement("pitfall-27", "bridge-list-changed")
async def test_a_change_ends_what_is_kept_at_once(stage: Stage) -> None:
    backend = await stage.modern_backend()
    asked = counting(backend, "resources/list", "resources", ttlMs=600_000, cacheScope="public")
    client = stage.modern("/mcp/alpha")
    listening = await client.listen(resources=True)
    await client.request("resources/list")
    backend.announce("notifications/resources/list_changed")
    await listening.changed("resources")
    await client.request("resources/list")
    assert len(asked) == 2


@BOTH
@TOKENS
@pytest.mark.requirement("pitfall-27", "pitfall-28", "bridge-pages")
async def test_all_pages_of_a_listing_have_one_scope(stage: Stage, route: Route) -> None:
    await paged(stage, "alpha", scopes=("public", "private", "public"))
    client = stage.modern(route.path, token="token-of-ann")
    scopes, cursor = set(), None
    for _ in range(20):
        page = await client.request("tools/list", {} if cursor is None else {"cursor": cursor})
        scopes.add(page["cacheScope"])
        if (cursor := page.get("nextCursor")) is None:
            break
    assert len(scopes) == 1 or not route.name_prefix, "of the gateway's own listings"
    assert cursor is None


async def paged(stage: Stage, name: str, scopes: tuple[str, ...] = (), cursors: tuple[str, ...] = ("", "2")) -> Any:
    """A backend whose list of tools has a page for each cursor, and a first one."""
    backend = await stage.backend(name)

    @backend.on("tools/list")
    async def listed(request: Request) -> Message:
        at = 0 if "cursor" not in request.params else cursors.index(request.params["cursor"]) + 1
        page: Message = {"tools": [{"name": f"{name}{at}", "inputSchema": {"type": "object"}}]}
        if at < len(cursors):
            page["nextCursor"] = cursors[at]
        if backend.modern and scopes:
            page |= {"cacheScope": scopes[at], "ttlMs": 1000}
        return page

    return backend


@pytest.mark.cells((*ERAS, SESSIONS_TO_WITHOUT[0]))
@pytest.mark.requirement("pitfall-28", "bridge-pages", "cursor-empty")
async def test_a_listing_over_many_servers_ends_with_each_item_once(stage: Stage, cell: Cell) -> None:
    """An empty cursor leads on; a server that is not there hides nobody else's items."""
    for name in ("alpha", "beta"):
        await paged(stage, name)
    dead = await stage.backend("dead", era="legacy")
    for method in ("server/discover", "initialize"):
        dead.refuses(method, -32603, "out of order")
    client: Any = stage.modern() if cell.revision == MODERN else await stage.connect()
    names, cursor = [], None
    for _ in range(50):
        page = await client.request("tools/list", {} if cursor is None else {"cursor": cursor})
        names += [tool["name"] for tool in page["tools"]]
        if (cursor := page.get("nextCursor")) is None:
            break
    assert names == [f"{name}__{name}{at}" for name in ("alpha", "beta") for at in range(3)]


@BOTH
@TOKENS
@pytest.mark.requirement("pitfall-28", "bridge-cursor", "cursor-forged")
async def test_a_cursor_is_for_its_method_and_its_user(stage: Stage) -> None:
    backend = await stage.backend()
    for n in range(1200):
        backend.add("tools", {"name": f"t{n}", "inputSchema": {"type": "object"}})
    backend.add("resources", {"uri": "test:///r", "name": "r"})
    ann, bob = (stage.modern(token=f"token-of-{name}") for name in ("ann", "bob"))
    page = await ann.request("tools/list")
    cursor = page.get("nextCursor")
    made_up = {"cursor": "bWFkZSB1cA"}
    assert (await ann.refused("tools/list", made_up)).code == INVALID_PARAMS
    assert cursor is not None, "there are more than fit on a page"
    assert (await bob.refused("tools/list", {"cursor": cursor})).code == INVALID_PARAMS
    assert (await ann.refused("resources/list", {"cursor": cursor})).code == INVALID_PARAMS
    rest = await ann.request("tools/list", {"cursor": cursor})
    names = {tool["name"] for tool in (*page["tools"], *rest["tools"])}
    assert (len(names), "nextCursor" in rest, rest["cacheScope"]) == (1200, False, page["cacheScope"])


@BOTH
@TOKENS
@pytest.mark.requirement("bridge-cursor", "pitfall-28")
async def test_a_cursor_of_a_server_alone_is_its_own(stage: Stage) -> None:
    await paged(stage, "alpha", cursors=("next page",))
    client = stage.modern("/mcp/alpha", token="token-of-ann")
    first = await client.request("tools/list")
    second = await client.request("tools/list", {"cursor": first["nextCursor"]})
    assert [tool["name"] for tool in second["tools"]] == ["alpha1"]
    assert "nextCursor" not in second


@BOTH
@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list"])
@pytest.mark.requirement("pitfall-24", "bridge-hints", "bridge-lists")
async def test_what_can_be_kept_says_so(stage: Stage, route: Route, method: str) -> None:
    """The client checks both hints on every such result; a server with sessions has none to give."""
    kind = "resourceTemplates" if "templates" in method else method.removesuffix("/list")
    backend = await stage.backend(capabilities={"tools": {}, "prompts": {}, "resources": {}})
    backend.answers(method, {kind: []})
    found = await stage.modern(route.path).request(method)
    if backend.sessions:
        assert (found["ttlMs"], found["cacheScope"]) == (0, "private") or route.name_prefix
