"""Traces: a span for each request and each call of a server, linked through `_meta` and the headers beside it."""

import sys
from types import FrameType
from typing import Any

import pytest
import trio

from actors.ports import ANONYMOUS, Get, Reply
from actors.watched import WatchedDoor
from tests.support.door_client import Client
from tests.support.harness import RecordingTelemetry, open_gateway, open_replica_maker, open_replicas
from tests.support.mcp_backend import Backend, Request
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient
from tests.support.observed import (
    PARENT,
    TRACE,
    UNSAMPLED,
    Observed,
    as_sent,
    attributes,
    id_of,
    links,
    resumptions,
    trace_of,
    within,
)
from tests.support.processes import ROOT


def sent(request: Request) -> dict[str, Any]:
    """What a server was told in `_meta` of where the call comes from."""
    return {k: v for k, v in request.params.get("_meta", {}).items() if k in ("traceparent", "tracestate", "baggage")}


def tool(client: Client, name: str, meta: dict[str, Any] | None = None, id: int = 77, **headers: str) -> Any:
    params = {"name": name, "arguments": {"text": "a secret"}, **({"_meta": meta} if meta is not None else {})}
    return client.post({"id": id, "method": "tools/call", "params": params}, **headers)


PAIRS = [(ours, theirs) for ours in ("legacy", "modern") for theirs in ("legacy", "modern")]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
async def test_a_call_has_a_server_span_and_within_it_the_client_span_that_its_server_is_told_of(
    autojump_clock, ours, theirs
):
    seen = Observed()
    alpha = (ModernBackend if theirs == "modern" else Backend)("alpha", kind="http")
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        meta = {"traceparent": PARENT, "tracestate": "rojo=1,congo=t61", "baggage": "user=alice"}
        if ours == "legacy":
            client = await gateway.connect()
            await client.names()
            await tool(client, "alpha__echo", meta).result()
        else:
            modern = ModernClient(gateway.door, gateway.nursery)
            await modern.call("tools/list")
            await modern.begin("tools/call", {"name": "alpha__echo"}, meta=meta).result()
        [served], [called] = seen.spans(kind="server"), seen.spans(kind="client")
        assert (trace_of(served), within(served)) == (TRACE, "b7ad6b7169203331")
        assert (trace_of(called), within(called)) == (TRACE, id_of(served))
        [request] = [r for r in alpha.requests if r.method == "tools/call"]
        told = {"traceparent": f"00-{TRACE}-{id_of(called)}-01", "tracestate": "rojo=1,congo=t61"}
        assert sent(request) == {**told, "baggage": "user=alice"}
        [headers] = [dict(s.headers) for s in request.upstream.transport.sent if b'"tools/call"' in s.frame]
        assert {name: headers[name] for name in told} == told
        assert headers["baggage"] == "user=alice"
        assert served.name == called.name.replace("echo", "alpha__echo") == "tools/call alpha__echo"


async def test_meta_goes_before_the_headers_which_become_a_link(autojump_clock):
    seen = Observed()
    async with open_gateway(Backend("alpha"), observer=seen.observer) as gateway:
        client = await gateway.connect()
        other = "00-" + "9" * 32 + "-" + "8" * 16 + "-01"
        await tool(client, "alpha__echo", {"traceparent": PARENT}, traceparent=other, tracestate="other=1").result()
        [served] = seen.spans(kind="server")
        assert (trace_of(served), links(served)) == (TRACE, [("9" * 32, "8" * 16)])
        assert served.context.trace_state == {}


async def test_without_meta_the_headers_say_what_a_request_is_part_of(autojump_clock):
    seen, alpha = Observed(), Backend("alpha")
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        await tool(client, "alpha__echo", traceparent=PARENT, tracestate="rojo=1", baggage="a=b").result()
        [served], [called] = seen.spans(kind="server"), seen.spans(kind="client")
        assert (trace_of(served), within(served)) == (TRACE, "b7ad6b7169203331")
        [request] = [r for r in alpha.requests if r.method == "tools/call"]
        told = {"traceparent": f"00-{TRACE}-{id_of(called)}-01", "tracestate": "rojo=1", "baggage": "a=b"}
        assert sent(request) == told


async def test_what_can_t_be_read_begins_a_new_trace_and_never_goes_on(autojump_clock):
    seen, alpha = Observed(), Backend("alpha")
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        bad: list[dict[str, Any]] = [
            {"traceparent": 7, "tracestate": "rojo=1"},
            {"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"},
            {"traceparent": PARENT + "-more", "baggage": "a=b\r\nX-Evil: 1"},
            {"traceparent": ["x"] * 100, "baggage": {"a": 1}},
        ]
        for id, meta in enumerate(bad, 100):
            await tool(client, "alpha__echo", meta, id).result()
        for request in [r for r in alpha.requests if r.method == "tools/call"]:
            assert sent(request).keys() == {"traceparent"}
            assert TRACE not in sent(request)["traceparent"]
        assert all(span.parent is None for span in seen.spans(kind="server"))


async def test_a_trace_that_is_not_recorded_stays_so_and_goes_on(autojump_clock):
    seen, alpha = Observed(), Backend("alpha")
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        await tool(client, "alpha__echo", {"traceparent": UNSAMPLED, "tracestate": "rojo=1"}).result()
        assert seen.spans() == []
        [request] = [r for r in alpha.requests if r.method == "tools/call"]
        version, trace, parent, flags = sent(request)["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "00")
        assert parent != "b7ad6b7169203331"
        assert sent(request)["tracestate"] == "rojo=1"


async def test_of_traces_that_begin_here_a_share_is_recorded_and_others_decide_for_theirs(autojump_clock):
    seen = Observed(sample=0.0)
    async with open_gateway(Backend("alpha"), observer=seen.observer) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        assert seen.exporter.get_finished_spans() == ()
        await tool(client, "alpha__echo", {"traceparent": PARENT}).result()
        assert len(seen.spans()) == 2


async def test_spans_say_what_the_conventions_want_and_nothing_of_what_was_said(autojump_clock):
    seen = Observed()
    alpha = Backend("alpha", tools=("echo", "work"), held={"work"}, version="2025-06-18")
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        await client.names()
        failing = tool(client, "alpha__work", id=5)
        (await alpha.next()).error(-32001, "a secret went wrong")
        await failing.error()
        failing = tool(client, "alpha__work", id=6)
        (await alpha.next()).result({"content": [{"type": "text", "text": "a secret"}], "isError": True})
        await failing.result()
        await tool(client, "alice@example.com", id=7).error()
        await client.begin("alice@example.com", {}).error()
        first, second, third = seen.spans(kind="server")
        [session] = gateway.actors.sessions.table
        common = {
            "mcp.method.name": "tools/call",
            "mcp.session.id": session[:12],
            "mcp.protocol.version": "2025-11-25",
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "gen_ai.operation.name": "execute_tool",
            "stagedoor.outcome": "answered",
        }
        code = {"error.type": "-32001", "rpc.response.status_code": "-32001"}
        work = {"gen_ai.tool.name": "alpha__work", "stagedoor.server": "alpha"}
        assert attributes(first) == {**common, **work, **code, "jsonrpc.request.id": "5"}
        assert attributes(second) == {**common, **work, "error.type": "tool_error", "jsonrpc.request.id": "6"}
        unknown = {"error.type": "-32602", "rpc.response.status_code": "-32602", "jsonrpc.request.id": "7"}
        assert attributes(third) == {**common, **unknown}
        assert [span.status.status_code.name for span in (first, second, third)] == ["ERROR"] * 3
        called = attributes(seen.spans(kind="client")[0])
        assert called["network.transport"] == "pipe"
        assert (called["stagedoor.server"], called["gen_ai.tool.name"]) == ("alpha", "work")
        assert called["mcp.protocol.version"] == "2025-06-18"
        told = " ".join(span.to_json() for span in seen.exporter.get_finished_spans())
        for hidden in ("secret", "example.com", str(client.session)):
            assert hidden not in told


async def test_ids_and_names_of_any_length_leave_short_attributes(autojump_clock):
    seen = Observed()
    async with open_gateway(Backend("alpha"), observer=seen.observer) as gateway:
        client = await gateway.connect()
        await client.post({"id": "x" * 1000, "method": "tools/call", "params": {"name": "y" * 5000}}).error()
        [served] = seen.spans(kind="server")
        assert all(len(str(value)) <= 64 for value in attributes(served).values())
        assert len(served.name) <= 64


@pytest.mark.parametrize("sampled", [True, False])
async def test_a_request_that_is_mailed_is_within_that_of_the_replica_which_it_came_to(autojump_clock, sampled):
    seen, alpha = Observed(), Backend("alpha", kind="http")
    async with open_replicas(2, alpha, observer=seen.observer) as (one, two):
        client = await one.connect("alpha")
        client.to(two)
        await tool(client, "echo", {"traceparent": PARENT if sampled else UNSAMPLED}).result()
        [request] = [r for r in alpha.requests if r.method == "tools/call"]
        assert sent(request)["traceparent"].split("-")[1] == TRACE
        if not sampled:
            assert seen.spans() == []
            return
        [owner, holder], [called] = seen.spans(kind="server"), seen.spans(kind="client")
        assert [trace_of(span) for span in (holder, owner, called)] == [TRACE] * 3
        assert within(holder) == "b7ad6b7169203331"
        assert within(owner) == id_of(holder)
        assert within(called) == id_of(owner)
        assert attributes(holder)["stagedoor.outcome"] == "relayed"
        assert [line["outcome"] for line in seen.of("tools/call")] == ["answered"]


async def test_a_call_of_a_killed_replica_that_is_gone_on_with_points_at_the_first_trace(autojump_clock):
    seen = Observed()
    alpha = Backend("alpha", kind="http", tools=("echo", "work"), held={"work"})
    async with open_replica_maker(alpha) as start:
        one, two = await start(observer=Observed().observer), await start(observer=seen.observer)
        client = await one.connect("alpha")
        call = tool(client, "work", {"traceparent": PARENT, "progressToken": "mine"}, id=9)
        request = await alpha.next()
        alpha.upstream.transport.prime("c0", request.id)
        progress = {"progressToken": request.token, "progress": 1}
        alpha.upstream.notify("notifications/progress", progress, related=request.id, cursor="c1")
        await call.next("notifications/progress")
        one.kill()
        client.to(two)
        rest = client.listen([e.id for e in call.events if e.id is not None][-1])
        rest.id = 9
        await alpha.connected(2)
        await two.settle()
        result = {"content": [{"type": "text", "text": "done"}]}
        alpha.upstream.transport.deliver({"id": request.id, "result": result}, request.id, "c2")
        await rest.result()
        [later] = seen.spans(kind="server")
        assert trace_of(later) != TRACE
        assert [trace for trace, _ in links(later)] == [TRACE]
        assert attributes(later)["stagedoor.server"] == "alpha"
        [line] = seen.of("tools/call")
        assert (line["outcome"], line["backend"], line["id"]) == ("answered", "alpha", "9")


async def test_a_call_of_a_killed_replica_that_nobody_can_go_on_with_is_told_once_as_lost(autojump_clock):
    seen = Observed()
    alpha = Backend("alpha", kind="http", tools=("echo", "work"), held={"work"})
    async with open_replica_maker(alpha, observer=seen.observer) as start:
        one, two, three = await start(observer=Observed().observer), await start(), await start()
        client = await one.connect("alpha")
        call = tool(client, "work", {"traceparent": PARENT, "progressToken": "mine"}, id=9)
        request = await alpha.next()
        request.progress(1)
        await call.next("notifications/progress")
        one.kill()
        client.to(two)
        rest = client.listen([e.id for e in call.events if e.id is not None][-1])
        rest.id = 9
        assert (await rest.error()).data["reason"] == "owner_lost"
        client.to(three)
        await client.tool("echo")
        await three.settle()
        [lost] = [span for span in seen.spans(kind="server") if attributes(span)["stagedoor.outcome"] == "lost"]
        assert [trace for trace, _ in links(lost)] == [TRACE]
        [line] = [line for line in seen.lines if line["outcome"] == "lost"]
        assert (line["method"], line["id"]) == ("tools/call", "9")


@pytest.mark.parametrize("mailed", [False, True])
async def test_a_resumption_is_a_span_that_points_at_the_request_whose_stream_goes_on(autojump_clock, mailed):
    seen, alpha = Observed(), Backend("alpha", kind="http", tools=("echo", "work"), held={"work"})
    async with open_replicas(2, alpha, observer=seen.observer) as (one, two):
        client = await one.connect("alpha")
        call = tool(client, "work", {"traceparent": PARENT, "progressToken": "mine"}, id=9)
        request = await alpha.next()
        request.progress(1)
        await call.next("notifications/progress")
        call.drop()
        client.to(two if mailed else one)
        last = [e.id for e in call.events if e.id is not None][-1]
        rest = client.listen(last)
        rest.id = 9
        await one.settle()
        request.result({"content": []})
        await rest.result()
        again = client.listen(last)  # what is over is in the log, and points at the same
        again.id = 9
        await again.result()
        [served] = seen.spans(kind="server")
        [first, second] = resumptions(seen)
        for span in (first, second):
            assert (span.name, span.kind.name, span.parent) == ("GET", "SERVER", None)
            assert links(span) == [(TRACE, id_of(served))]
            assert attributes(span) == {
                "http.request.method": "GET",
                "mcp.session.id": attributes(served)["mcp.session.id"],
                "mcp.protocol.version": "2025-11-25",
                "network.transport": "tcp",
                "network.protocol.name": "http",
                "stagedoor.endpoint": "alpha",
                "stagedoor.outcome": "answered",
            }
        assert [line["outcome"] for line in seen.of("tools/call")] == ["answered"]
        assert "" not in {line["method"] for line in seen.lines}  # it is no request


async def test_a_resumption_that_is_refused_is_told_and_names_no_session_that_the_client_may_have_made_up(
    autojump_clock,
):
    seen = Observed()
    async with open_gateway(Backend("alpha"), observer=seen.observer) as gateway:
        client = await gateway.connect()
        client.session = "made-up"
        assert await client.listen("p1:1-1").head() == 404
        [span] = resumptions(seen)
        assert attributes(span)["error.type"] == attributes(span)["rpc.response.status_code"]
        assert attributes(span)["stagedoor.outcome"] == "refused"
        assert "mcp.session.id" not in attributes(span)


async def test_links_of_resumptions_and_takeovers_are_in_what_a_collector_is_sent(autojump_clock):
    seen = Observed()
    alpha = Backend("alpha", kind="http", tools=("echo", "work"), held={"work"})
    async with open_replica_maker(alpha) as start:
        one, two = await start(observer=Observed().observer), await start(observer=seen.observer)
        client = await one.connect("alpha")
        call = tool(client, "work", {"traceparent": PARENT, "progressToken": "mine"}, id=9)
        (await alpha.next()).progress(1)
        await call.next("notifications/progress")
        one.kill()
        client.to(two)
        rest = client.listen([e.id for e in call.events if e.id is not None][-1])
        rest.id = 9
        await rest.error()
        told = as_sent(seen)
        lost, resumed = told["tools/call"], told["GET"]
        assert {len(lost.links), len(resumed.links)} == {1}
        assert lost.links[0].trace_id.hex() == resumed.links[0].trace_id.hex() == TRACE
        assert lost.links[0].span_id == resumed.links[0].span_id
        assert TRACE not in (lost.trace_id.hex(), resumed.trace_id.hex())


async def test_a_call_without_traces_enters_nothing_that_is_there_for_them(autojump_clock):
    own = [str(ROOT / file) for file in ("actors/watched.py", "actors/protocol/operations.py")]
    own.append(str(ROOT / "actors/protocol/trace_context.py"))
    entered: set[str] = set()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename in own:
            entered.add(frame.f_code.co_qualname)

    async def play(observer: Any) -> set[str]:
        async with open_gateway(Backend("alpha", kind="http"), observer=observer) as gateway:
            client, modern = await gateway.connect(), ModernClient(gateway.door, gateway.nursery)
            await modern.call("tools/list")
            await client.tool("alpha__echo")
            entered.clear()
            sys.setprofile(seen)
            await client.tool("alpha__echo")
            await modern.call("tools/call", {"name": "alpha__echo"})
            sys.setprofile(None)
            return set(entered)

    assert await play(Observed().observer) > {"WatchedDoor.post", "Operation.ended", "carrying"}
    assert await play(None) == set()


async def test_a_resumption_whose_client_leaves_before_it_goes_on_ends_as_disconnected(autojump_clock):
    class Waiting:
        async def get(self, get: Get) -> Reply:
            await trio.sleep_forever()
            raise AssertionError

    seen: Any = Observed()
    door = WatchedDoor(Waiting(), seen.observer, None, RecordingTelemetry())  # type: ignore[arg-type]
    with trio.move_on_after(5):
        await door.get(Get("", ANONYMOUS, {"mcp-session-id": "x", "last-event-id": "p1:1-1", "traceparent": PARENT}))
    [span] = resumptions(seen)
    assert (trace_of(span), within(span)) == (TRACE, "b7ad6b7169203331")
    assert attributes(span)["stagedoor.outcome"] == "disconnected"
    assert "mcp.session.id" not in attributes(span)
