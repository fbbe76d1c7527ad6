"""Whatever a client sends and whenever it goes away, the session answers what it can and leaves nothing behind."""

import json
from contextlib import suppress
from typing import Any

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors.ports import FrameReceived, TransportClosed, TransportEvent
from actors.protocol.table import BackendSpec, NativeTarget
from gateway.backends.native import NativeTransport
from gateway.native import Context, Server
from gateway.native.demo import server as demo
from tests.gateway.native.conftest import FailedError
from tests.support.cancel import cancel_everywhere
from tests.support.garbage import uncollected

METHODS = (
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "nonsense",
)
TEXTS = st.sampled_from(
    [
        "echo",
        "add",
        "demo://clock",
        "demo://greetings/x",
        "hello",
        "ref/prompt",
        "language",
        "debug",
        "2025-11-25",
        "",
        "\ud800",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=3), max_leaves=6)
MEMBERS = st.sampled_from(
    [
        "name",
        "arguments",
        "uri",
        "cursor",
        "ref",
        "argument",
        "level",
        "requestId",
        "protocolVersion",
        "capabilities",
        "_meta",
    ]
)
IDS = st.integers(0, 5) | st.sampled_from(["a", "b"])
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": IDS | VALUES,
        "method": st.sampled_from(METHODS) | VALUES,
        "params": st.dictionaries(MEMBERS, VALUES, max_size=4) | VALUES,
        "result": VALUES,
        "error": VALUES,
    },
)
FRAMES = st.binary(max_size=20) | (MESSAGES | st.lists(MESSAGES, max_size=3)).map(lambda m: json.dumps(m).encode())


class SilentLog:
    """A `Log` that nobody reads."""

    def error(self, event: str, **values: Any) -> None: ...

    debug = info = warning = error


@given(st.lists(FRAMES, max_size=12), st.sampled_from(["2025-03-26", "2025-11-25"]), st.booleans())
def test_no_frame_ends_a_session_and_no_request_is_answered_twice(
    frames: list[bytes], version: str, opened: bool
) -> None:
    events: list[TransportEvent] = []

    async def main() -> None:
        transport = NativeTransport(BackendSpec("x", NativeTarget(demo)), events.append, log=SilentLog())
        server_info = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        first = [_request("open", "initialize", server_info), b'{"jsonrpc":"2.0","method":"notifications/initialized"}']
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            for frame in [*(first if opened else []), *frames, _request("last", "ping", {})]:
                transport.send(frame)
                await trio.testing.wait_all_tasks_blocked()
            transport.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    answers = [json.loads(e.frame) for e in events if isinstance(e, FrameReceived)]
    assert [a["result"] for a in answers if a.get("id") == "last" and "result" in a] == [{}]
    sent = [id for frame in frames for id in _ids(frame)]
    for id in {json.dumps(a["id"]) for a in answers if "id" in a and "method" not in a} - {'"open"', '"last"'}:
        assert sum(json.dumps(a.get("id")) == id for a in answers) <= sent.count(id)
    assert [e.reason for e in events if isinstance(e, TransportClosed)] == ["closed"]


def _request(id: str, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def _ids(frame: bytes) -> list[str]:
    try:
        value = json.loads(frame)
    except ValueError:
        return []
    entries = value if isinstance(value, list) else [value]
    return [json.dumps(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry]


def test_a_session_cut_anywhere_leaves_nothing_behind() -> None:
    cancel_everywhere(_scenario, sample=60)


async def _scenario(scope: trio.CancelScope) -> None:
    server, events, busy = Server("t"), [], []

    @server.tool
    async def work(ctx: Context) -> str:
        busy.append(1)
        try:
            await ctx.progress(1)
            await ctx.log("info", "working")
            return str(await ctx.roots())
        finally:
            busy.pop()

    def emit(event: TransportEvent) -> None:
        events.append(event)
        message = json.loads(event.frame) if isinstance(event, FrameReceived) else {}
        if message.get("method") == "roots/list":
            transport.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": []}}).encode())

    @server.resource("clock://now", every=1)
    async def now() -> str:
        return ""

    transport = NativeTransport(BackendSpec("x", NativeTarget(server)), emit, log=SilentLog())
    server_info = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "c", "version": "1"},
    }
    transport.send(_request("open", "initialize", server_info))
    with scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            await trio.sleep(1)
            transport.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            transport.send(_request("sub", "resources/subscribe", {"uri": "clock://now"}))
            transport.send(_request("call", "tools/call", {"name": "work"}))
            await trio.sleep(3)
            transport.close()
    assert busy == []
    assert server.connected == 0
    assert len([e for e in events if isinstance(e, TransportClosed)]) <= 1


async def test_a_session_is_freed_at_once_when_it_has_ended(attach):
    async def visit() -> None:
        client = attach(demo)
        await client.open()
        await client.text("echo", text="hi")
        await client.error("add", wrong=1)
        with suppress(FailedError):
            await client.call("fail", crash=True)
        client.transport.restart()
        await client.open()
        client.post("tools/call", {"name": "slow_count", "arguments": {}})
        await trio.testing.wait_all_tasks_blocked()
        client.transport.close()
        await client.until(lambda: bool(client.closed))
        await trio.testing.wait_all_tasks_blocked()
        client.log.lines.clear()
        client.transport = None

    await visit()
    with uncollected() as found:
        await visit()
    assert not found
