"""Backends that talk nonsense, answer twice, or never."""

import pytest
import trio

from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

KINDS = pytest.mark.parametrize("kind", ["stdio", "http", "inproc"])
WORK = {"tools": ("echo", "work"), "held": {"work"}}


@KINDS
@pytest.mark.parametrize(
    "frame",
    [
        b"not json",
        b"\xff\xfe",
        b"[" * 5000,
        b"[]",
        b"{}",
        b"null",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"1.0","method":"x"}',
        b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
        b'{"jsonrpc":"2.0","id":"nobody","result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"who"}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":5}',
        b'{"jsonrpc":"2.0","method":"notifications/unheard/list_changed"}',
        b'[{"jsonrpc":"2.0","method":"notifications/message"},7,{"jsonrpc":"2.0","id":9,"method":"ping"}]',
    ],
)
async def test_nonsense_between_two_messages_harms_no_call(autojump_clock, kind, frame):
    alpha = Backend("alpha", kind=kind, **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.link.garbage(frame)
        request.text("fine")
        assert (await call.result())["content"][0]["text"] == "fine"
        assert len(alpha.open) == 2


async def test_a_malformed_answer_fails_its_own_call_only(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        first = client.begin("tools/call", {"name": "alpha__work"})
        lost = await alpha.next()
        second = client.begin("tools/call", {"name": "alpha__work"})
        kept = await alpha.next()
        lost.link.garbage(
            b'{"jsonrpc":"2.0","id":"%s","result":{},"error":{"code":1,"message":"both"}}' % str(lost.id).encode()
        )
        error = await first.error()
        assert error.data["executed"] == "unknown"
        kept.text("kept")
        assert (await second.result())["content"][0]["text"] == "kept"


async def test_a_malformed_question_is_answered_with_an_error_whatever_its_id(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.link.garbage(b'{"jsonrpc":"2.0","id":"%s","method":5}' % str(request.id).encode())
        await gateway.settle()
        answer = request.link.messages[-1]
        assert (answer["id"], answer["error"]["code"]) == (request.id, -32600)
        request.text("fine")
        await call.result()


async def test_a_second_answer_is_dropped_and_counted(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.text("one")
        request.text("two")
        assert (await call.result())["content"][0]["text"] == "one"
        await gateway.settle()
        assert gateway.telemetry.total("stagedoor_messages_dropped_total", "late_response") == 1


async def test_a_backend_that_never_answers_is_told_to_cancel_at_the_deadline(autojump_clock):
    alpha = Backend("alpha", timeout=20.0, **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        before = trio.current_time()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        error = await call.error()
        assert 20 <= trio.current_time() - before < 21
        assert error.data == {"reason": "timeout", "executed": "unknown"}
        await request.cancelled.wait()
        request.text("too late")
        assert await client.tool("alpha__echo") == "alpha: echo"


async def test_the_backends_deadline_counts_from_the_acceptance_also_if_its_name_had_to_be_looked_for(autojump_clock):
    alpha = Backend("alpha", timeout=20.0, mute={"tools/list"}, **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        before = trio.current_time()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next("tools/list")
        await trio.sleep(8)
        request.result({"tools": alpha.lists["tools/list"]})
        assert (await call.error()).data["reason"] == "timeout"
        assert 20 <= trio.current_time() - before < 21
