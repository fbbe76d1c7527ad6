"""First calls to an official SDK's server that is far away, and asks on the stream that belongs to no call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from actors.protocol.table import BackendSpec, HttpTarget
from gateway.backends.http_connector import HttpConnector
from tests.support.harness import RecordingLog, open_gateway
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, Programs, accepts, free_port, need

pytestmark = pytest.mark.e2e

PYTHON = ROOT / ".venv-sdks" / "py-1.27" / "bin" / "python"
LATENCY = 0.15
"""Seconds that a new connection takes, as over TLS from another continent."""
CLIENTS = 6


@dataclass(frozen=True)
class Far:
    """The server, as the gateway reaches it."""

    port: int
    name: str = "alpha"

    @property
    def spec(self) -> BackendSpec:
        return BackendSpec(self.name, HttpTarget(f"http://127.0.0.1:{self.port}/mcp"))


async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    try:
        async for chunk in source:
            await sink.send_all(chunk)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    await sink.aclose()


async def carry(near: trio.SocketStream, port: int) -> None:
    """One connection to the server, which takes its time to come about."""
    await trio.sleep(LATENCY)
    far = await trio.open_tcp_stream("127.0.0.1", port)
    async with near, far, trio.open_nursery() as nursery:
        nursery.start_soon(pump, near, far)
        nursery.start_soon(pump, far, near)


async def test_every_first_call_is_answered(programs: Programs) -> None:
    need(PYTHON.exists(), f"{PYTHON} is")
    port = free_port()
    programs.start("rooted", [PYTHON, Path(__file__).with_name("rooted.py"), str(port)], ready=accepts(port))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            connector = HttpConnector(RecordingLog(), nursery)
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, lambda near: carry(near, port), [listener])
            far = Far(listener.socket.getsockname()[1])
            async with open_gateway(far, connector=connector) as gateway:  # type: ignore[arg-type]
                for n in range(CLIENTS):
                    client = await gateway.connect("alpha", capabilities={"roots": {}})
                    stream = client.listen()
                    call = client.begin("tools/call", {"name": "root", "arguments": {}})
                    await client.respond(await stream.next("roots/list"), {"roots": [{"uri": f"file:///{n}"}]})
                    assert (await call.result())["content"][0]["text"] == f"file:///{n}"
            connector.close()
            nursery.cancel_scope.cancel()
