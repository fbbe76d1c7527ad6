"""Backends that talk nonsense, answer twice, or never."""

import pytest
import trio

from tests.support.door_client import RpcError
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
        request.upstream.garbage(frame)
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
        lost.upstream.garbage(
            b'{"jsonrpc":"2.0","id":"%s","result":{},"error":{"code":1,"message":"both"}}' % str(lost.id).encode()
        )
        error = await first.error()
        assert error.data["executed"] == "unknown"
        kept.text("kept")
        assert (await second.result())["content"][0]["text"] == "kept"


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","method":5}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":[]}',
        b'{"jsonrpc":"1.0","method":"notifications/message"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    ],
)
async def test_a_malformed_notification_on_the_stream_of_a_call_is_counted_and_fails_nothing(autojump_clock, frame):
    alpha = Backend("alpha", kind="http", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.upstream.garbage(frame, related=request.id)
        request.text("fine")
        assert (await call.result())["content"][0]["text"] == "fine"
        assert gateway.telemetry.total("stagedoor_messages_dropped_total", "malformed") == 1


@pytest.mark.parametrize("frame", [b"not json", b'{"jsonrpc":"2.0","result":' + b"[" * 5000 + b"]" * 5000 + b"}"])
async def test_an_unreadable_frame_on_the_stream_of_a_call_fails_that_call_at_once(autojump_clock, frame):
    alpha = Backend("alpha", kind="http", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        before = trio.current_time()
        request.upstream.garbage(frame, related=request.id)
        assert (await call.error()).data == {"reason": "malformed", "executed": "unknown", "backend": "alpha"}
        assert trio.current_time() - before < 1


@KINDS
async def test_a_question_under_an_id_that_is_too_long_is_refused(autojump_clock, kind):
    alpha = Backend("alpha", kind=kind, **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.upstream.garbage(b'{"jsonrpc":"2.0","id":"%s","method":"roots/list"}' % (b"x" * 2000))
        await gateway.settle()
        (answer,) = [message for message in request.upstream.messages if "error" in message]
        assert (answer["id"], answer["error"]["code"]) == ("x" * 2000, -32600)
        request.text("fine")
        await call.result()


@pytest.mark.parametrize(
    "welcome",
    [
        {str(n): n for n in range(20_000)},
        {"instructions": "x" * 1024 * 1024},
        {"capabilities": {"experimental": {"x": "y" * 64 * 1024}}},
    ],
    ids=["members", "bytes", "capabilities"],
)
async def test_a_backend_that_says_too_much_of_itself_is_refused(autojump_clock, welcome):
    alpha = Backend("alpha", welcome=welcome)
    async with open_gateway(alpha) as gateway:
        with pytest.raises(RpcError) as refused:
            await gateway.connect("alpha")
    assert refused.value.data["reason"] == "initialize_malformed"


async def test_a_malformed_question_is_answered_with_an_error_whatever_its_id(autojump_clock):
    alpha = Backend("alpha", **WORK)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.upstream.garbage(b'{"jsonrpc":"2.0","id":"%s","method":5}' % str(request.id).encode())
        await gateway.settle()
        (answer,) = [message for message in request.upstream.messages if "error" in message]
        assert (answer["id"], answer["error"]["code"]) == (request.id, -32600)
        request.text("fine")
        await call.result()


@KINDS
async def test_an_error_that_answers_something_else_is_no_refusal_of_the_handshake(autojump_clock, kind):
    class Late(Backend):
        def came(self, request):
            if request.method == "initialize":
                request.upstream.garbage(b'{"jsonrpc":"2.0","id":"else","error":{"code":-32601,"message":"no"}}')
            super().came(request)

    alpha = Late("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        assert await client.tool("echo") == "alpha: echo"
    assert "server/discover" not in alpha.methods
    assert len(alpha.upstreams) == 1


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
        assert error.data == {"reason": "timeout", "executed": "unknown", "backend": "alpha"}
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
