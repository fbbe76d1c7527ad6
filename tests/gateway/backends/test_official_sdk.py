"""Both transports against a server on the official SDK: a whole session, frame by frame."""

import json
import sys
from pathlib import Path

import pytest
import trio

from actors.ports import FrameAccepted, FrameReceived, TransportClosed
from actors.protocol.table import BackendSpec, HttpTarget, StdioTarget
from gateway.backends.connector import StdioConnector, TargetConnector
from gateway.backends.http_connector import HttpConnector
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.e2e

SERVER = str(Path(__file__).parents[2] / "conformance" / "fixture")
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def frame(method: str, id: int | None = None, **params: object) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if id is None else message | {"id": id}).encode()


async def listening(port: int) -> None:
    """Waits until a server there takes connections."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                return
            except OSError:
                await trio.sleep(0.05)


@pytest.fixture(params=["stdio", "http"])
async def target(request, nursery):
    if request.param == "stdio":
        yield StdioTarget(sys.executable, (SERVER,))
        return
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    server = await trio.lowlevel.open_process([sys.executable, SERVER, "--http", str(port)])
    try:
        await listening(port)
        yield HttpTarget(f"http://127.0.0.1:{port}/mcp")
    finally:
        server.kill()
        with trio.fail_after(PATIENCE, shield=True):
            await server.wait()


async def answer(events, id: int) -> dict[str, object]:
    """The response to this request, and how many notifications came before it."""
    notifications = 0
    while True:
        received = await events.next(FrameReceived)
        message = json.loads(received.frame)
        if message.get("id") == id and "method" not in message:
            return message["result"] | {"notifications": notifications}
        notifications += 1


async def test_a_session_with_a_server_on_the_official_sdk(target, events, log):
    stdio = StdioConnector(log)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            http = HttpConnector(log, nursery)
            connector = TargetConnector({StdioTarget: stdio, HttpTarget: http})
            transport = connector.connect(BackendSpec("fixture", target), events)
            nursery.start_soon(transport.run)
            transport.send(frame("initialize", 1, **HELLO), id=1)
            assert (await answer(events, 1))["protocolVersion"] == "2025-11-25"
            transport.negotiated("2025-11-25")
            transport.send(frame("notifications/initialized"), tag=1)
            assert await events.next() == FrameAccepted(1)
            transport.listen()
            transport.send(frame("tools/list", 2), id=2)
            names = {tool["name"] for tool in (await answer(events, 2))["tools"]}
            assert "test_simple_text" in names
            meta = {"progressToken": 7}
            transport.send(frame("tools/call", 3, name="test_tool_with_progress", arguments={}, _meta=meta), id=3)
            assert (await answer(events, 3))["notifications"] == 3
            if transport.kind == "http":
                # The server closes the stream in the middle of this call, after an event id.
                transport.send(frame("tools/call", 4, name="test_reconnection", arguments={}), id=4)
                assert (await answer(events, 4))["content"]
            transport.close()
            assert await events.next(TransportClosed) == TransportClosed("closed", "fixture was closed")
            http.close()
    await stdio.aclose()
