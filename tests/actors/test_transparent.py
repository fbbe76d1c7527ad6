"""`/mcp/<backend>`: a client can't tell the gateway from the backend itself."""

import json

import pytest
import trio

from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, tool

ODD = {
    "capabilities": {"tools": {}, "tasks": {"list": {}}, "experimental": {"x": {"y": 1}}, "extensions": {"a/b": {}}},
    "serverInfo": {"name": "odd", "version": "9", "title": "Odd", "icons": [], "future": 1},
    "instructions": "Read me.",
    "_meta": {"k": "v"},
    "future": [1, 2.50],
}


async def test_the_answer_to_initialize_is_the_backends_own_less_tasks(autojump_clock):
    alpha = Backend("alpha", welcome=ODD)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities={"roots": {}}, info={"name": "me", "version": "3"})
        expected = {**ODD, "protocolVersion": "2025-11-25"}
        expected["capabilities"] = {k: v for k, v in ODD["capabilities"].items() if k != "tasks"}
        assert client.server == expected
        assert alpha.upstream.declared["clientInfo"] == {"name": "me", "version": "3"}
        assert alpha.upstream.declared["capabilities"] == {"roots": {}}


async def test_each_side_has_its_own_revision(autojump_clock):
    alpha = Backend("alpha", version="2025-03-26")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", version="2025-06-18")
        assert client.server["protocolVersion"] == "2025-06-18"
        assert alpha.upstream.transport.versions == ["2025-03-26"]
        assert await client.tool("echo") == "alpha: echo"


@pytest.mark.parametrize("fault", ["down", "silent", "refuses", "nonsense", "version"])
async def test_a_backend_that_cannot_be_had_is_an_error_and_leaves_no_session(autojump_clock, fault):
    alpha = Backend("alpha")
    match fault:
        case "down":
            alpha.down = True
        case "silent":
            alpha.silent = True
        case "refuses":
            alpha.mute.add("initialize")
        case "nonsense":
            alpha.results["initialize"] = lambda r: {"protocolVersion": 5}
        case "version":
            alpha.version = "1999-01-01"
    async with open_gateway(alpha) as gateway:
        client = gateway.client("alpha")
        before = gateway.left()
        started = trio.current_time()
        pending = client.begin(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
        )
        if fault == "refuses":
            (await alpha.next("initialize")).error(-32000, "not today")
        error = await pending.error()
        assert error.code == -32603
        assert trio.current_time() - started < 31
        await trio.sleep(10)
        assert gateway.left() == before
        assert alpha.open == []


async def test_lists_come_page_by_page_with_the_backends_own_cursors_and_members(autojump_clock):
    page = {"tools": [tool("b", future=1), tool("a")], "nextCursor": "", "_meta": {"x": 1}, "more": True}
    alpha = Backend("alpha")
    alpha.results["tools/list"] = lambda r: page
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        assert await client.call("tools/list") == page
        await client.call("tools/list", {"cursor": "", "future": 2})
        assert alpha.asked_for("tools/list")[-1].params == {"cursor": "", "future": 2}


async def test_bytes_of_a_result_are_not_touched(autojump_clock):
    alpha = Backend("alpha", tools=("raw",), held={"raw"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "raw"})
        request = await alpha.next()
        result = b'{"content": [],  "n":1.0e2 , "s":"\\u00e9"}'
        request.upstream.transport.deliver(
            b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(request.id).encode(), result)
        )
        await call.result()
        assert call.answer is not None
        assert result in call.answer.body


async def test_errors_pass_as_they_are(autojump_clock):
    alpha = Backend("alpha", tools=("bad",), held={"bad"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "bad"})
        (await alpha.next()).error(-31999, "so so", {"uri": "test:///x", "deep": [1]})
        response = await call.response()
        assert response["error"] == {"code": -31999, "message": "so so", "data": {"uri": "test:///x", "deep": [1]}}


async def test_unlisted_tools_unknown_methods_and_meta_pass(autojump_clock):
    alpha = Backend("alpha", tools=("echo", "hidden"), held={"hidden"})
    alpha.results["custom/thing"] = lambda r: {"got": r.params}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "hidden", "_meta": {"traceparent": "00-1", "other": 1}, "odd": 2})
        request = await alpha.next()
        assert request.params == {"name": "hidden", "_meta": {"traceparent": "00-1", "other": 1}, "odd": 2}
        request.text("here", _meta={"y": 1}, future=3)
        assert (await call.result())["future"] == 3
        assert await client.call("custom/thing", {"a": [1]}) == {"got": {"a": [1]}}
        with pytest.raises(RpcError) as caught:
            await client.call("unknown/thing")
        assert caught.value.code == -32601
        assert await client.call("ping") == {}
        assert "ping" not in alpha.methods


async def test_uris_and_names_are_the_backends_own(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        events = client.listen()
        assert await client.names("resources/list", "uri") == ["test:///a"]
        read = await client.call("resources/read", {"uri": "test:///a"})
        assert read["contents"][0]["uri"] == "test:///a"
        await client.call("resources/subscribe", {"uri": "test:///a"})
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///a", "future": 1})
        assert (await events.next())["params"] == {"uri": "test:///a", "future": 1}
        alpha.upstream.notify("notifications/custom", {"z": 1})
        assert (await events.next("notifications/custom"))["params"] == {"z": 1}


async def test_a_question_is_not_labelled(autojump_clock):
    alpha = Backend("alpha", tools=("ask",), held={"ask"})
    form = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", capabilities={"elicitation": {}})
        call = client.begin("tools/call", {"name": "ask"})
        request = await alpha.next()
        request.ask("elicitation/create", form)
        assert (await call.next("elicitation/create"))["params"] == form


async def test_a_filter_holds_here_too(autojump_clock):
    alpha = Backend("alpha", tools=("a", "b"), disabled_tools=("b",))
    alpha.results["tools/list"] = lambda r: {"tools": alpha.lists["tools/list"], "nextCursor": "n", "odd": 1}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        listed = await client.call("tools/list")
        assert [t["name"] for t in listed["tools"]] == ["a"]
        assert (listed["nextCursor"], listed["odd"]) == ("n", 1)
        with pytest.raises(RpcError, match="Unknown tool: b"):
            await client.tool("b")
        assert await client.tool("a") == "alpha: a"
        assert len(alpha.asked_for("tools/call")) == 1


@pytest.mark.parametrize("result", [{"tools": 5}, {"tools": {"name": "b"}}])
async def test_a_filtered_list_of_an_unexpected_shape_is_not_shown(autojump_clock, result):
    alpha = Backend("alpha", disabled_tools=("b",))
    alpha.results["tools/list"] = lambda r: result
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        with pytest.raises(RpcError) as caught:
            await client.call("tools/list")
        assert caught.value.code == -32603


async def test_after_a_loss_the_same_session_goes_on_over_a_new_connection(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("logging/setLevel", {"level": "error"})
        alpha.upstream.die()
        await gateway.settle()
        assert await client.tool("echo") == "alpha: echo"
        assert len(alpha.upstreams) == 2
        assert alpha.upstream.params_of("logging/setLevel") == [{"level": "error"}]


async def test_a_backend_that_is_taken_out_of_the_configuration_is_an_error(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect("alpha")
        table = gateway.services.table.value
        gateway.change(backends={"beta": table.backends["beta"]})
        with pytest.raises(RpcError) as caught:
            await client.tool("echo")
        assert caught.value.data["reason"] == "unconfigured"
