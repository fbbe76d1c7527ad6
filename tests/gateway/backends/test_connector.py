"""Connections to HTTP servers belong to one server each, and to nobody for ever."""

import json
import subprocess
import sys

import pytest
import trio
import trio.testing

from actors.ports import FrameReceived, Listening, RequestFailed
from actors.protocol.table import BackendSpec, HttpTarget
from gateway.backends import http_listener
from gateway.backends.http_connector import HttpConnector
from gateway.wire.pool import PoolLimits
from tests.support.patience import PATIENCE

FRAME = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}).encode()


@pytest.fixture
async def ask(backend, events, log, nursery):
    """Asks over a transport of its own."""
    connector = HttpConnector(log, nursery, pool_limits=PoolLimits(idle_time=0.01))
    backend.handlers = [lambda request: request.result({})]

    async def asked(name: str, *headers: tuple[str, str]) -> HttpConnector:
        transport = connector.connect(BackendSpec(name, HttpTarget(backend.url, headers)), events)
        nursery.start_soon(transport.run)
        transport.send(FRAME, id=1)
        await events.next(FrameReceived)
        return connector

    with trio.fail_after(PATIENCE):
        yield asked
    connector.close()


def test_what_few_servers_need_is_not_imported_until_one_does():
    program = (
        "import sys, gateway.lifecycle;"
        "print({'trio_websocket', 'gateway.backends.websocket', 'gateway.backends.sse_2024'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def test_sessions_with_one_server_share_its_connections_and_other_servers_have_their_own(ask, backend):
    await ask("one")
    await ask("one")
    assert backend.connections == 1
    await ask("two")
    assert backend.connections == 2


async def test_a_server_that_is_configured_otherwise_begins_with_connections_of_its_own(ask, backend):
    await ask("one")
    await ask("one", ("Authorization", "Bearer other"))
    await backend.wait_closed(1)
    assert backend.connections == 2


async def test_idle_connections_to_a_server_that_nobody_uses_are_closed(ask, backend):
    connector = await ask("one")
    await trio.sleep(0.02)
    connector.sweep()
    await backend.wait_closed(1)


async def test_where_all_places_are_taken_idle_connections_give_way_and_then_nobody(backend, events, log, nursery):
    connector = HttpConnector(log, nursery, connections=1)
    going = trio.Event()

    async def answer(request) -> None:
        if len(backend.requests) == 2:
            await going.wait()
        await request.result({})

    backend.handlers = [answer]
    transports = {}
    for name in ("one", "two", "three"):
        transports[name] = connector.connect(BackendSpec(name, HttpTarget(backend.url, ())), events)
        nursery.start_soon(transports[name].run)
    with trio.fail_after(PATIENCE):
        transports["one"].send(FRAME, id=1)
        await events.next(FrameReceived)
        transports["two"].send(FRAME, id=1)
        await backend.wait_requests(2)
        await backend.wait_closed(1)
        transports["three"].send(FRAME, id=1)
        failed = await events.next(RequestFailed)
        assert (failed.reason, failed.executed) == ("backend_full", "no")
        going.set()
        await events.next(FrameReceived)
        transports["three"].send(FRAME, id=1)
        await events.next(FrameReceived)
    connector.close()


@pytest.mark.parametrize("rest", [False, True])
async def test_streams_of_many_sessions_leave_connections_for_calls(backend, events, log, nursery, monkeypatch, rest):
    """Those on which nothing is said too."""
    monkeypatch.setattr(http_listener, "QUIET", 0.01 if rest else PATIENCE)
    connector = HttpConnector(log, nursery, connections=4)

    async def answer(request) -> None:
        if request.method == "GET":
            await request.events()
            await trio.sleep_forever()
        await request.result({})

    backend.handlers = [answer]
    with trio.fail_after(PATIENCE):
        for _ in range(6):
            transport = connector.connect(BackendSpec("one", HttpTarget(backend.url, ())), events)
            nursery.start_soon(transport.run)
            transport.send(FRAME, id=1)
            await events.next(FrameReceived)
            transport.listen()
            await events.next(Listening)  # the stream is there, or is not to be had now
            await trio.testing.wait_all_tasks_blocked(0.05)
        transport.send(FRAME, id=1)
        await events.next(FrameReceived)
    assert not events.of(RequestFailed)
    assert sum(request.method == "GET" for request in backend.requests) == 2
    connector.close()


async def test_where_all_places_are_taken_calls_wait_for_a_connection_of_their_server(backend, events, log, nursery):
    connector = HttpConnector(log, nursery, connections=2)
    going = trio.Event()

    async def answer(request) -> None:
        await going.wait()
        await request.result({})

    backend.handlers = [answer]
    transport = connector.connect(BackendSpec("one", HttpTarget(backend.url, ())), events)
    nursery.start_soon(transport.run)
    with trio.fail_after(PATIENCE):
        for id in range(1, 6):
            transport.send(FRAME.replace(b'"id": 1', b'"id": %d' % id), id=id)
        await backend.wait_requests(2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not events.of(RequestFailed)
        going.set()
        for _ in range(5):
            await events.next(FrameReceived)
    assert not events.of(RequestFailed)
    assert backend.connections == 2
    connector.close()
