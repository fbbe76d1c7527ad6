"""The scripted transport keeps to the port."""

import trio
import trio.testing

from actors.ports import FrameAccepted, FrameReceived, TransportClosed
from actors.protocol.table import BackendSpec, NativeTarget, StdioTarget
from gateway.backends.connector import StdioConnector, TargetConnector
from tests.support.scripted import ScriptedConnector, answering

SPEC = BackendSpec("demo", NativeTarget(None))


async def test_a_script_answers_by_method(events, nursery):
    transport = ScriptedConnector(answering({"tools/list": {"tools": []}, "slow": None})).connect(SPEC, events)
    transport.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}', id=1)
    assert events.all == []
    nursery.start_soon(transport.run)
    assert b'"serverInfo"' in (await events.next(FrameReceived)).frame
    transport.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', tag=9)
    assert await events.next() == FrameAccepted(9)
    transport.send(b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}', id=2)
    assert (await events.next()).frame == b'{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}'
    transport.send(b'{"jsonrpc":"2.0","id":3,"method":"nope"}', id=3)
    assert b"-32601" in (await events.next()).frame
    transport.send(b'{"jsonrpc":"2.0","id":4,"method":"slow"}', id=4)
    transport.close()
    transport.deliver({"id": 4, "result": {}})
    assert await events.next() == TransportClosed("closed", "closed")
    transport.send(b"{}", id=5)
    assert isinstance(events.all[-1], TransportClosed)


async def test_a_test_can_play_the_backend_by_hand(events, nursery):
    connector = ScriptedConnector(kind="http")
    transport = connector.connect(SPEC, events)
    nursery.start_soon(transport.run)
    await trio.testing.wait_all_tasks_blocked()
    transport.send(b'{"jsonrpc":"2.0","id":1,"method":"x"}', id=1)
    transport.answer(await transport.next_sent(), {"ok": True})
    assert (await events.next()).related == 1
    assert connector.transports == [transport]


async def test_a_cancelled_run_ends_with_closed(events):
    transport = ScriptedConnector().connect(SPEC, events)
    with trio.move_on_after(0):
        await transport.run()
    assert events.all == [TransportClosed("aborted", "cancelled")]


def test_each_target_goes_to_its_own_connector(events, log):
    native = ScriptedConnector()
    connector = TargetConnector({NativeTarget: native, StdioTarget: StdioConnector(log)})
    assert connector.connect(SPEC, events).kind == "stdio"
    assert connector.connect(BackendSpec("child", StdioTarget("x")), events).kind == "stdio"
    assert len(native.transports) == 1
