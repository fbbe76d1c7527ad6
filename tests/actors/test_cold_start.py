"""The first lists after a start: what was known before it, what can be had in time, and what is missing."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from actors.ports import Principal
from actors.protocol.table import HttpTarget, StdioTarget
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, tool
from tests.support.modern_backend import ModernBackend

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
CHANGED = "notifications/tools/list_changed"


class Disk:
    """A `ListStore` whose content outlives the gateways of a test."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def load(self) -> Mapping[str, bytes]:
        return dict(self.values)

    def put(self, key: str, value: bytes | None) -> None:
        self.values.pop(key, None)
        if value is not None:
            self.values[key] = value


def starts_in(backend: Backend, seconds: float, nursery: trio.Nursery) -> None:
    """Every connection to it from now on takes so long."""
    backend.mute.add("initialize")

    async def late() -> None:
        while True:
            nursery.start_soon(answer, await backend.next("initialize"))

    async def answer(request: Any) -> None:
        await trio.sleep(seconds)
        backend.answer(request)

    nursery.start_soon(late)


async def first_run(disk: Disk, *backends: Backend, **client: Any) -> dict[str, Any]:
    """A gateway that learns all lists, and what its client got."""
    async with open_gateway(*backends, lists=disk) as gateway:
        session = await gateway.connect(**client)
        await session.names()
        await trio.sleep(5)
        return {method: await session.call(method) for method in LISTS}


def again(backend: Backend, **more: Any) -> Backend:
    """The same server, as the next process of the gateway meets it."""
    return Backend(backend.name, tools=backend.lists["tools/list"], kind=backend.kind, **more)


# After a restart ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_after_a_restart_the_last_lists_are_there_at_once_however_slow_the_servers_are(
    autojump_clock: Any, kind: Any
) -> None:
    disk = Disk()
    servers = [Backend("alpha", tools=("a", "b"), kind=kind), Backend("beta", kind=kind)]
    before = await first_run(disk, *servers)
    async with trio.open_nursery() as nursery:
        fresh = [again(server) for server in servers]
        for server in fresh:
            starts_in(server, 15.0, nursery)
        async with open_gateway(*fresh, lists=disk, prestart=True) as gateway:
            began = trio.current_time()
            client = await gateway.connect()
            events = client.listen()
            assert {method: await client.call(method) for method in LISTS} == before
            assert trio.current_time() - began < 0.1
            await trio.sleep(60)
            assert events.messages == []
            assert await client.tool("alpha__b") == "alpha: b"
        nursery.cancel_scope.cancel()


async def test_what_a_server_lists_now_is_announced_when_it_is_there(autojump_clock: Any) -> None:
    disk, alpha = Disk(), Backend("alpha", tools=("old",))
    await first_run(disk, alpha)
    async with trio.open_nursery() as nursery:
        fresh = Backend("alpha", tools=("old", "new"))
        starts_in(fresh, 15.0, nursery)
        async with open_gateway(fresh, lists=disk) as gateway:
            client = await gateway.connect()
            events = client.listen()
            assert await client.names() == ["alpha__old"]
            await events.next(CHANGED)
            assert await client.names() == ["alpha__old", "alpha__new"]
        async with open_gateway(again(fresh), lists=disk) as gateway:
            assert await (await gateway.connect()).names() == ["alpha__old", "alpha__new"]
        nursery.cancel_scope.cancel()


async def test_a_server_that_does_not_come_back_keeps_its_tools_and_its_calls_say_why(autojump_clock: Any) -> None:
    disk = Disk()
    before = await first_run(disk, Backend("alpha"), Backend("beta"))
    dead = Backend("alpha")
    dead.down = True
    async with open_gateway(dead, Backend("beta"), lists=disk) as gateway:
        client = await gateway.connect()
        for _ in range(3):
            assert await client.call("tools/list") == before["tools/list"]
            await trio.sleep(30)
        error = await client.begin("tools/call", {"name": "alpha__echo"}).error()
        assert error.data["executed"] == "no"


async def test_initialize_says_after_a_restart_what_the_servers_said_before_it(autojump_clock: Any) -> None:
    disk = Disk()
    said = {"capabilities": {"tools": {}}, "welcome": {"instructions": "Use it well."}}
    await first_run(disk, Backend("alpha", **said))
    silent = Backend("alpha", mute={"initialize"})
    async with open_gateway(silent, lists=disk) as gateway:
        began = trio.current_time()
        client = await gateway.connect()
        assert trio.current_time() == began
        assert "Use it well." in client.server["instructions"]
        assert client.server["capabilities"] == {"tools": {"listChanged": True}}


# Whose lists they are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        StdioTarget("alpha", ("--other",)),
        StdioTarget("other"),
        StdioTarget("alpha", (), (("TOKEN", "another"),)),
        StdioTarget("alpha", cwd="/elsewhere"),
        HttpTarget("http://alpha.test/mcp"),
        HttpTarget("http://alpha.test/mcp", (("Authorization", "Bearer b"),)),
    ],
    ids=repr,
)
async def test_a_server_that_is_configured_otherwise_is_another_server(autojump_clock: Any, target: Any) -> None:
    disk = Disk()
    await first_run(disk, Backend("alpha", tools=("secret",)))
    other = Backend("alpha", mute={"initialize"})
    other.spec = dataclasses.replace(other.spec, target=target)
    async with open_gateway(other, lists=disk) as gateway:
        assert await (await gateway.connect()).names() == []


async def test_what_was_listed_to_one_is_never_given_to_another(autojump_clock: Any) -> None:
    disk = Disk()
    ann: dict[str, Any] = {"principal": Principal("ann"), "capabilities": {"sampling": {}}}
    await first_run(disk, Backend("alpha", tools=("of-ann",)), **ann)
    silent = Backend("alpha", mute={"initialize"})
    async with open_gateway(silent, lists=disk) as gateway:
        others = [{"principal": Principal("bob"), "capabilities": {"sampling": {}}}, {"principal": Principal("ann")}]
        for other in others:
            assert await (await gateway.connect(**other)).names() == []
        assert await (await gateway.connect(**ann)).names() == ["alpha__of-ann"]


async def test_neither_credentials_nor_names_of_people_are_kept(autojump_clock: Any) -> None:
    disk, alpha, beta = Disk(), Backend("alpha"), Backend("beta", kind="http")
    alpha.spec = dataclasses.replace(alpha.spec, target=StdioTarget("run", ("--key", "hush1"), (("KEY", "hush2"),)))
    url = "http://user:hush3@beta.test/mcp?token=hush4"
    beta.spec = dataclasses.replace(beta.spec, target=HttpTarget(url, (("Authorization", "Bearer hush5"),)))
    await first_run(disk, alpha, beta, principal=Principal("hush6"), info={"name": "hush7", "version": "1"})
    assert len(disk.values) == 2
    assert "hush" not in repr(disk.values)
    assert "run" not in repr(disk.values)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"v":99}', b'{"v":1,"lists":{"x":[]}}', b"\xff"])
async def test_what_can_not_be_read_any_more_is_learned_anew(autojump_clock: Any, damage: bytes) -> None:
    disk, alpha = Disk(), Backend("alpha")
    before = await first_run(disk, alpha)
    disk.values = dict.fromkeys(disk.values, damage)
    assert await first_run(disk, again(alpha)) == before
    assert damage not in disk.values.values()


async def test_what_is_kept_is_bounded(autojump_clock: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("actors.endpoints.last_known.MAX_ENTRIES", 3)
    monkeypatch.setattr("actors.endpoints.last_known.ENTRY_BYTES", 10_000)
    disk, big = Disk(), Backend("big", tools=[tool("big", description="x" * 20_000)])
    async with open_gateway(Backend("alpha"), big, lists=disk) as gateway:
        for name in "abcdef":
            client = await gateway.connect(principal=Principal(name))
            assert await client.names() == ["alpha__echo", "big__big"]
        assert len(disk.values) <= 3
        assert all(len(value) <= 10_000 for value in disk.values.values())


# A first start -------------------------------------------------------------------------------------------------


async def test_a_list_is_there_within_three_seconds_and_says_what_it_lacks(autojump_clock: Any) -> None:
    quick, slow, dead = Backend("quick"), Backend("slow"), Backend("dead")
    dead.down = True
    async with trio.open_nursery() as nursery:
        starts_in(slow, 15.0, nursery)
        async with open_gateway(quick, slow, dead) as gateway:
            began = trio.current_time()
            client = await gateway.connect()
            events = client.listen()
            assert trio.current_time() == began
            for method in LISTS:
                listed = await client.call(method)
                assert listed["_meta"] == {"stagedoor/missing": {"slow": "pending", "dead": "failed"}}
            assert trio.current_time() - began <= 3  # for all four
            assert await client.names() == ["quick__echo"]
            await events.next(CHANGED)
            assert trio.current_time() - began < 16
            assert await client.names() == ["quick__echo", "slow__echo"]
            assert (await client.call("tools/list"))["_meta"] == {"stagedoor/missing": {"dead": "failed"}}
            lines = [v["missing"] for v in gateway.log.events("list_incomplete") if v["list"] == "tools/list"]
            assert lines == [{"slow": "pending", "dead": "failed"}, {"dead": "failed"}]
            assert gateway.telemetry.total("stagedoor_lists_incomplete_total", "slow") >= 4
        nursery.cancel_scope.cancel()


async def test_lists_asked_for_one_after_another_share_the_deadline(autojump_clock: Any) -> None:
    slow = Backend("slow", mute={"initialize"})
    async with open_gateway(slow, Backend("quick")) as gateway:
        clients = [await gateway.connect() for _ in range(5)]
        began = trio.current_time()
        for client in clients:
            for method in LISTS:
                await client.call(method)
        assert trio.current_time() - began <= 3


async def test_with_nothing_known_yet_a_list_is_empty_and_no_error(autojump_clock: Any) -> None:
    async with open_gateway(Backend("slow", mute={"initialize"})) as gateway:
        client = await gateway.connect()
        listed = await client.call("tools/list")
        assert listed == {"tools": [], "_meta": {"stagedoor/missing": {"slow": "pending"}}}


# Started ahead -------------------------------------------------------------------------------------------------


async def test_servers_are_started_before_anybody_asks(autojump_clock: Any) -> None:
    servers = [Backend(name) for name in ("alpha", "beta")]
    async with trio.open_nursery() as nursery:
        for server in servers:
            starts_in(server, 15.0, nursery)
        async with open_gateway(*servers, lists=Disk(), prestart=True) as gateway:
            await trio.sleep(16)
            for capabilities in ({}, {"roots": {}}, {"sampling": {}, "elicitation": {}}):
                began = trio.current_time()
                client = await gateway.connect(capabilities=capabilities)
                assert await client.names() == ["alpha__echo", "beta__echo"]
                assert trio.current_time() - began < 0.1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("capabilities", "connections"), [({}, 1), ({"roots": {}}, 2)])
async def test_a_client_that_comes_while_a_server_starts_waits_for_that_start_and_begins_no_other(
    autojump_clock: Any, capabilities: Any, connections: int
) -> None:
    slow = Backend("slow")
    async with trio.open_nursery() as nursery:
        starts_in(slow, 15.0, nursery)
        async with open_gateway(slow, Backend("quick"), lists=Disk(), prestart=True) as gateway:
            client = await gateway.connect(capabilities=capabilities)
            events = client.listen()
            assert await client.names() == ["quick__echo"]
            await trio.sleep(10)
            assert len(slow.upstreams) == 1
            await events.next(CHANGED)
            assert trio.current_time() < 16
            assert await client.names() == ["slow__echo", "quick__echo"]
            await trio.sleep(60)
            assert len(slow.upstreams) == connections
            assert len(events.messages) == 1
        nursery.cancel_scope.cancel()


async def test_a_client_sees_what_its_own_capabilities_bring_though_the_server_was_started_ahead(
    autojump_clock: Any,
) -> None:
    alpha = Backend("alpha")
    alpha.results["tools/list"] = lambda r: {
        "tools": [tool("echo"), *([tool("asks")] if r.upstream.declared["capabilities"] else [])]
    }
    async with open_gateway(alpha, lists=Disk(), prestart=True) as gateway:
        await trio.sleep(1)
        client = await gateway.connect(capabilities={"sampling": {}})
        events = client.listen()
        assert await client.names() == ["alpha__echo"]
        await events.next(CHANGED)
        assert await client.names() == ["alpha__echo", "alpha__asks"]


async def test_what_is_known_is_not_started_ahead_and_the_bound_on_processes_holds(autojump_clock: Any) -> None:
    disk = Disk()
    servers = [Backend(f"s{n}") for n in range(10)]
    await first_run(disk, again(servers[0]))
    async with open_gateway(*servers, lists=disk, prestart=True, child_processes=16) as gateway:
        await trio.sleep(30)
        assert [len(server.upstreams) for server in servers] == [0, 1, 1, 1, 1, 1, 1, 1, 1, 0]
        client = await gateway.connect()
        assert await client.tool("s9__echo") == "s9: echo"


async def test_a_dead_server_that_is_started_ahead_holds_nobody_up(autojump_clock: Any) -> None:
    dead = Backend("dead")
    dead.down = True
    async with open_gateway(dead, Backend("quick"), lists=Disk(), prestart=True) as gateway:
        await trio.sleep(1)
        client = await gateway.connect(capabilities={"roots": {}})
        began = trio.current_time()
        assert await client.names() == ["quick__echo"]
        assert trio.current_time() - began < 1
        events = client.listen()
        dead.down = False
        await events.next(CHANGED)
        assert await client.names() == ["dead__echo", "quick__echo"]


@pytest.mark.parametrize(
    ("server", "first"),
    [
        (ModernBackend("alpha", kind="http"), "server/discover"),
        (ModernBackend("alpha", kind="http", sessions=True), "server/discover"),
        (Backend("alpha", kind="http"), "server/discover"),
        (Backend("alpha", kind="stdio"), "initialize"),
    ],
    ids=["modern", "dual", "legacy", "pipe"],
)
async def test_before_any_client_is_there_a_server_over_http_is_asked_in_the_modern_era_first(
    autojump_clock: Any, server: Backend, first: str
) -> None:
    async with open_gateway(server, prestart=True) as gateway:
        await trio.sleep(1)
        methods = [request.method for request in server.requests]
        assert methods[0] == first
        assert methods.count("server/discover") == (first == "server/discover")
        if type(server) is ModernBackend:
            assert "initialize" not in methods
        assert await (await gateway.connect()).names() == ["alpha__echo"]


async def test_what_a_server_said_to_nobody_in_particular_does_not_bound_what_a_session_may_do(
    autojump_clock: Any,
) -> None:
    alpha = Backend("alpha", capabilities={"tools": {}}, welcome={"instructions": "Use it well."})
    async with open_gateway(alpha, lists=Disk(), prestart=True) as gateway:
        await trio.sleep(1)
        client = await gateway.connect()
        assert {"tools", "prompts", "resources", "logging"} <= client.server["capabilities"].keys()
        assert "Use it well." in client.server["instructions"]


async def test_a_list_that_was_held_for_the_first_connection_is_looked_after_like_any_other(
    autojump_clock: Any,
) -> None:
    alpha = Backend("alpha", mute={"initialize", "tools/list"})
    async with open_gateway(alpha, lists=Disk(), prestart=True) as gateway:
        first = await alpha.next("initialize")
        client, other = [await gateway.connect(capabilities={"roots": {}}) for _ in range(2)]
        events = client.listen()
        early = client.begin("tools/list")
        await trio.sleep(1)
        alpha.answer(first)
        ahead = await alpha.next("tools/list")
        alpha.mute.clear()
        assert await other.names() == ["alpha__echo"]  # over a connection of these clients, which overtakes
        alpha.list(ahead)
        await early.result()
        await trio.sleep(10)
        events.messages.clear()
        alpha.lists["tools/list"].append(tool("new"))
        alpha.results["tools/list"] = lambda request: {"tools": "out of order"}
        for upstream in alpha.open:
            upstream.notify(CHANGED)
        await trio.sleep(5)
        alpha.results.clear()
        await events.next(CHANGED)
        assert await client.names() == ["alpha__echo", "alpha__new"]


async def test_a_list_that_was_held_for_a_connection_that_was_let_go_is_fetched_all_the_same(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("actors.endpoints.catalogue.MAX_ENTRIES", 4)
    alpha, beta, gamma = Backend("alpha", mute={"initialize"}), Backend("beta"), Backend("gamma")
    groups = {"one": ("alpha",), "more": ("beta", "gamma")}
    async with open_gateway(alpha, beta, gamma, lists=Disk(), prestart=True, groups=groups) as gateway:
        await alpha.next("initialize")
        client = await gateway.connect("one", capabilities={"roots": {}})
        events = client.listen()
        assert await client.names() == []
        alpha.mute.clear()
        await (await gateway.connect("more", capabilities={"sampling": {}})).names()
        await events.next(CHANGED)
        assert await client.names() == ["alpha__echo"]
