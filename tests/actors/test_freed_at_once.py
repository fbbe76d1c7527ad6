"""What has ended is free at once, by reference counting alone: nobody waits for the garbage collector, which hardly
ever comes (`gateway.lifecycle.tune_gc`)."""

import ctypes
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports import Delete, Post, Principal
from tests.support.door_client import Client, Pending
from tests.support.garbage import alive, uncollected
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

MAY = {"sampling": {}, "elicitation": {}, "roots": {}}
FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
IDLE = 600.0
"""Seconds for which a session may be idle here: what the clock passes through meanwhile is work, too."""
LONG = 1600.0
"""Seconds after which whatever ends by itself has ended: sessions, connections, pools, exchanges, kept streams."""

Scenario = Callable[[Gateway, Backend], Awaitable[None]]


async def working(backend: Backend) -> Request:
    """The next call of the tool that waits for the test."""
    while (request := await backend.next()).params["name"] != "work":
        pass
    return request


async def busy(gateway: Gateway, backend: Backend, endpoint: str = "") -> tuple[Client, Pending]:
    """A session that has done a bit of everything, with nothing in flight, and its open stream."""
    prefix, uris = ("", "test:///a") if endpoint else ("alpha__", "alpha+test:///a")
    client = await gateway.connect(endpoint, Principal("ann"), capabilities=MAY)
    stream = client.listen()
    await client.names()
    await client.tool(f"{prefix}echo")
    await client.call("logging/setLevel", {"level": "info"})
    await client.call("resources/subscribe", {"uri": uris})
    call = client.begin("tools/call", {"name": f"{prefix}work"}, progress=1)
    request = await working(backend)
    request.progress(1)
    request.ask("sampling/createMessage", {"messages": [], "maxTokens": 1})
    question = await call.next("sampling/createMessage")
    await client.respond(question, {"role": "assistant", "model": "m", "content": {"type": "text", "text": "y"}})
    request.text("done")
    await call.result()
    backend.upstream.notify("notifications/tools/list_changed")
    await trio.sleep(1)
    return client, stream


async def deleted(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend)
    await client.delete()


async def deleted_at_a_server(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend, "alpha")
    await client.delete()


async def deleted_in_the_middle_of_a_call(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend)
    call = client.begin("tools/call", {"name": "alpha__work"}, progress=1)
    (await working(backend)).progress(1)
    await call.next("notifications/progress")
    await client.delete()
    await call.error()


async def deleted_while_lists_are_fetched(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend)
    backend.mute = {"tools/list"}
    backend.upstream.notify("notifications/tools/list_changed")
    client.begin("tools/list")
    await backend.next("tools/list")
    await client.delete()
    backend.mute = set()


async def left_alone(gateway: Gateway, backend: Backend) -> None:
    _, stream = await busy(gateway, backend)
    stream.drop()


async def crashed(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend)
    begun = client.begin("tools/call", {"name": "alpha__work"}, progress=1)
    await working(backend)
    [session] = gateway.actors.sessions.table.values()
    session.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    session.ref.cast(None)
    await begun.error()
    gateway.crashes.clear()


async def whose_server_died(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend)
    backend.upstream.die()
    await trio.sleep(5)
    await client.tool("alpha__echo")
    await client.delete()


async def whose_link_crashed(gateway: Gateway, backend: Backend) -> None:
    client, _ = await busy(gateway, backend)
    for upstream in gateway.actors.tree.upstreams.children():
        upstream.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        upstream.cast(None)
    await trio.sleep(5)
    gateway.crashes.clear()
    await client.delete()


SESSIONS: list[Scenario] = [
    deleted, deleted_at_a_server, deleted_in_the_middle_of_a_call, deleted_while_lists_are_fetched, left_alone, crashed,
    whose_server_died, whose_link_crashed,
]  # fmt: skip


async def measured(scenario: Scenario, *backends: Backend, **limits: Any) -> None:
    async with open_gateway(*backends, **{"idle_ttl": IDLE, **limits}) as gateway:

        async def once() -> None:
            await scenario(gateway, backends[0])
            await trio.sleep(LONG)
            gateway.clients.clear()
            gateway.log.lines.clear()
            gateway.telemetry.observed.clear()
            for backend in backends:
                for upstream in backend.upstreams:
                    vars(upstream).clear()
                backend.upstreams.clear()
                backend.requests.clear()
                backend.taken.clear()
            await gateway.settle()
            gateway.store.sweep(trio.current_time())  # type: ignore[attr-defined]

        await once()
        with uncollected() as found:
            before = alive()
            for _ in range(3):
                await once()
            grown = alive() - before
        assert not found
        assert {name: n for name, n in grown.items() if n >= 3} == {}


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("scenario", SESSIONS, ids=lambda s: s.__name__)
async def test_a_session_is_freed_with_all_that_belongs_to_it(autojump_clock, scenario, kind):
    """Over HTTP it leaves memory when it is left alone, over stdio it stays until it ends."""
    backend = Backend("alpha", tools=("echo", "work"), held={"work"}, kind=kind)
    await measured(scenario, backend)


# Without sessions ---------------------------------------------------------------------------------------------


affinities = count()


def modern(gateway: Gateway, endpoint: str = "") -> ModernClient:
    """Another kind of client each time."""
    affinity = str(next(affinities))
    return ModernClient(
        gateway.actors.door, gateway.nursery, endpoint, Principal("ann"), capabilities=MAY, affinity=affinity
    )


async def answered(gateway: Gateway, backend: Backend) -> None:
    for endpoint, prefix in (("", "alpha__"), ("alpha", "")):
        client = modern(gateway, endpoint)
        await client.call("tools/list")
        await client.call("tools/call", {"name": f"{prefix}echo"})
        call = client.begin("tools/call", {"name": f"{prefix}work"}, progress=1)
        request = await working(backend)
        request.progress(1)
        await call.next("notifications/progress")
        request.text("done")
        await call.result()


async def disconnected(gateway: Gateway, backend: Backend) -> None:
    client = modern(gateway)
    call = client.begin("tools/call", {"name": "alpha__work"}, progress=1)
    (await working(backend)).progress(1)
    await call.next("notifications/progress")
    call.drop()
    await call.end()


async def listening(gateway: Gateway, backend: Backend) -> None:
    client = modern(gateway)
    stream = client.listen("alpha+test:///a", tools=True)
    await stream.next("notifications/subscriptions/acknowledged")
    backend.upstream.notify("notifications/tools/list_changed")
    await trio.sleep(1)
    stream.drop()
    await stream.end()


async def suspended(gateway: Gateway, backend: Backend) -> None:
    if isinstance(backend, ModernBackend):
        return
    client = modern(gateway, "alpha")
    call = client.begin("tools/call", {"name": "work"})
    (await working(backend)).ask("elicitation/create", FORM)
    assert (await call.result())["resultType"] == "input_required"


async def crashed_without_a_session(gateway: Gateway, backend: Backend) -> None:
    client = modern(gateway)
    call = client.begin("tools/call", {"name": "alpha__work"}, progress=1)
    (await working(backend)).progress(1)
    await call.next("notifications/progress")
    for actors in (gateway.actors.modern_requests, gateway.actors.pools):
        for ref in actors.children():
            ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
            ref.cast(None)
    await call.error()
    gateway.crashes.clear()


@pytest.mark.parametrize("backend", [Backend, ModernBackend], ids=["server with sessions", "server without"])
@pytest.mark.parametrize(
    "scenario", [answered, disconnected, listening, suspended, crashed_without_a_session], ids=lambda s: s.__name__
)
async def test_what_served_a_client_without_a_session_is_freed_when_it_is_over(autojump_clock, scenario, backend):
    """The actor of modern requests, its subscriptions, its pool, the connections of both."""
    await measured(scenario, backend("alpha", tools=("echo", "work"), held={"work"}, kind="http"))


# Many ----------------------------------------------------------------------------------------------------------


def in_memory() -> int:
    """MiB that the process has in memory, without what is free already and only kept for later by the allocator."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much memory a process has is read from /proc")
async def test_thousands_of_sessions_that_came_and_went_leave_no_memory_behind(autojump_clock):
    """In six rounds; what their clients declared alone would be 150 MB after the first."""
    ann, revision = Principal("ann"), "2025-11-25"
    may = {**MAY, "experimental": {"pad": {"x": "x" * 60_000}}}
    server_info = {"protocolVersion": revision, "capabilities": may, "clientInfo": {"name": "t", "version": "1"}}
    initialize = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": server_info}).encode()
    initialized = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    async with open_gateway(Backend("alpha", kind="http"), idle_ttl=IDLE) as gateway:
        door = gateway.actors.door

        async def opened() -> dict[str, str]:
            answer = await door.post(Post("", ann, {}, initialize))
            said = {"mcp-session-id": dict(answer.headers)["mcp-session-id"], "mcp-protocol-version": revision}
            await door.post(Post("", ann, said, initialized))
            return said

        async def round() -> None:
            for said in [await opened() for _ in range(500)]:
                assert (await door.delete(Delete("", ann, said))).status == 200
            gateway.log.lines.clear()
            gateway.telemetry.observed.clear()
            await trio.sleep(LONG)
            gateway.store.sweep(trio.current_time())  # type: ignore[attr-defined]

        with uncollected() as found:
            await round()
            before, things = in_memory(), sum(alive().values())
            for _ in range(5):
                await round()
            assert in_memory() - before < 32
            assert sum(alive().values()) - things < 100
        assert not found
