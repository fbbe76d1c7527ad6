"""One line for each request of a client, by whichever way it ends."""

from typing import Any

import trio

from actors.duplex import Duplex
from actors.ports import ANONYMOUS
from tests.support.duplex_client import Wire
from tests.support.harness import open_gateway, open_replica_maker
from tests.support.mcp_backend import Backend
from tests.support.modern_client import ModernClient
from tests.support.observed import PARENT, TRACE, Observed, attributes


def work(**more: Any) -> Backend:
    return Backend("alpha", tools=("echo", "work"), held={"work"}, **more)


async def test_an_answer_is_told_with_the_session_the_trace_and_the_server(autojump_clock):
    seen = Observed(traces=False)
    async with open_gateway(work(), observer=seen.observer) as gateway:
        client = await gateway.connect()
        await client.names()
        params = {"name": "alpha__work", "_meta": {"traceparent": PARENT}}
        call = client.begin("tools/call", params, id=7)
        request = await gateway.backends["alpha"].next()
        await trio.sleep(2)
        request.text("done")
        await call.result()
        [line] = seen.of("tools/call")
        [session] = gateway.actors.sessions.table
        ms = line.pop("ms")
        assert 2000 <= ms < 2100
        assert line == {
            "method": "tools/call",
            "tool": "alpha__work",
            "id": "7",
            "outcome": "answered",
            "session": session[:12],
            "trace": TRACE,
            "backend": "alpha",
            "era": "legacy",
            "version": "2025-11-25",
            "transport": "http",
        }
        assert [request.params["_meta"]["traceparent"]] == [PARENT], "without traces it passes as it came"


async def test_ends_of_every_kind_are_told_once(autojump_clock):
    seen = Observed(traces=False)
    alpha = work(timeout=5.0)
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        cancelled = client.begin("tools/call", {"name": "alpha__work"}, id="cancelled")
        await alpha.next()
        await client.cancel(cancelled)
        await cancelled.error()
        overdue = client.begin("tools/call", {"name": "alpha__work"}, id="timed_out")
        await overdue.error()
        gone = client.begin("tools/call", {"name": "alpha__work"}, id="disconnected")
        while alpha.requests[-1].method != "tools/call" or alpha.requests[-1].message is overdue:
            await trio.sleep(0.01)
            if sum(r.method == "tools/call" for r in alpha.requests) == 3:
                break
        gone.drop()
        await gateway.settle()
        alpha.requests[-1].text("nobody hears this")
        await gateway.settle()
        await client.post({"id": "refused", "method": "made/up"}).error()
        await client.call("ping")
        outcomes = {line["id"]: line["outcome"] for line in seen.lines}
        for end in ("cancelled", "timed_out", "disconnected"):
            assert outcomes[end] == end
        assert outcomes["refused"] == "refused"
        [ping] = seen.of("ping")
        assert ping["outcome"] == "answered"
        assert len(seen.lines) == len({(line["id"], line["method"]) for line in seen.lines})


async def test_what_is_no_request_or_has_no_session_is_told_as_refused(autojump_clock):
    seen = Observed()
    async with open_gateway(work(), observer=seen.observer) as gateway:
        client = await gateway.connect()
        assert await client.post(b"{not json").head() == 400
        await client.post({"id": 5, "method": "tools/list"}, mcp_session_id="no-such-session").head()
        first, second = seen.lines[-2:]
        assert (first["method"], first["outcome"], first["code"], first["status"]) == ("", "refused", -32700, 400)
        assert (second["method"], second["outcome"], second["status"]) == ("tools/list", "refused", 404)
        assert not seen.spans("")


async def test_a_modern_request_whose_client_leaves_is_told_as_disconnected(autojump_clock):
    seen = Observed()
    alpha = work()
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = ModernClient(gateway.door, gateway.nursery)
        await client.call("tools/list")
        call = client.begin("tools/call", {"name": "alpha__work"}, id="gone")
        await alpha.next()
        call.drop()
        await gateway.settle()
        [line] = seen.of("tools/call")
        assert (line["outcome"], line["id"], line["era"]) == ("disconnected", "gone", "modern")
        [called] = seen.spans(kind="client")
        assert called.attributes["stagedoor.outcome"] == "cancelled"


async def test_of_those_that_went_well_a_share_is_written_and_of_the_others_each(autojump_clock):
    seen = Observed(traces=False, share=0.4)  # the dice say 0.5
    async with open_gateway(work(), observer=seen.observer) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.begin("tools/call", {"name": "nobody"}).error()
        assert [line["error"] for line in seen.lines] == ["-32602"]
    seen = Observed(traces=False, share=0.6)
    async with open_gateway(work(), observer=seen.observer) as gateway:
        await (await gateway.connect()).tool("alpha__echo")
        assert len(seen.of("tools/call")) == 1


async def test_what_is_in_hand_when_the_process_ends_is_told(autojump_clock):
    seen = Observed(traces=False)
    alpha = work()
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        client.begin("tools/call", {"name": "alpha__work"}, id="drained")
        await alpha.next()
        await gateway.system.drain(3.0)
        [line] = seen.of("tools/call")
        assert line["outcome"] == "drained"


async def test_a_crash_of_the_sessions_actor_is_told_as_lost(autojump_clock):
    seen = Observed()
    alpha = work()
    async with open_gateway(alpha, observer=seen.observer) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__work"}, id="lost")
        await alpha.next()
        [alive] = gateway.actors.sessions.table.values()
        alive.ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
        alive.ref.reply("anything")
        await call.error()
        await gateway.settle()
        gateway.crashes.clear()
        assert [line["outcome"] for line in seen.of("tools/call")] == ["lost"]
        assert len(seen.spans(kind="server")) == 1


async def test_a_request_on_a_channel_for_everything_is_told_as_such(autojump_clock):
    seen = Observed()
    async with open_gateway(work(), observer=seen.observer) as gateway:
        wire = Wire()
        gateway.nursery.start_soon(Duplex(gateway.door, gateway.services.limits), wire, "", ANONYMOUS)
        await wire.call(1, "tools/list", modern=True)
        [line] = seen.of("tools/list")
        assert (line["transport"], line["era"]) == ("channel", "modern")
        [span] = seen.spans("tools/list", kind="server")
        assert "network.transport" not in attributes(span)
        wire.hang_up()
        await gateway.settle()


async def test_what_the_next_owner_goes_on_with_is_told_as_handed_over_and_by_that_one_as_it_ends(autojump_clock):
    first, second = Observed(traces=False), Observed(traces=False)
    alpha = work(kind="http")
    async with open_replica_maker(alpha) as start:
        one, two = await start(observer=first.observer), await start(observer=second.observer)
        client = await one.connect("alpha")
        call = client.begin("tools/call", {"name": "work", "_meta": {"progressToken": "mine"}}, id="moved")
        request = await alpha.next()
        alpha.upstream.transport.prime("c0", request.id)
        progress = {"progressToken": request.token, "progress": 1}
        alpha.upstream.notify("notifications/progress", progress, related=request.id, cursor="c1")
        await call.next("notifications/progress")
        await one.system.drain(trio.current_time() + 8)
        assert [(line["id"], line["outcome"]) for line in first.of("tools/call")] == [("moved", "handed_over")]
        assert "error" not in first.of("tools/call")[0]
        client.to(two)
        rest = client.listen([e.id for e in call.events if e.id is not None][-1])
        rest.id = "moved"
        await alpha.connected(2)
        await two.settle()
        result = {"content": [{"type": "text", "text": "done"}]}
        alpha.upstream.transport.deliver({"id": request.id, "result": result}, request.id, "c2")
        await rest.result()
        assert [(line["id"], line["outcome"]) for line in second.of("tools/call")] == [("moved", "answered")]


async def test_what_a_killed_process_had_in_hand_is_told_once_by_who_rebuilds_the_session(autojump_clock):
    seen = Observed(traces=False)
    alpha = work(kind="http")
    async with open_replica_maker(alpha) as start:
        one, two, three = await start(), await start(observer=seen.observer), await start(observer=seen.observer)
        client = await one.connect("alpha")
        call = client.begin("tools/call", {"name": "work", "_meta": {"progressToken": "mine"}}, id="lost")
        (await alpha.next()).progress(1)
        await call.next("notifications/progress")
        one.kill()
        client.to(two)
        rest = client.listen([e.id for e in call.events if e.id is not None][-1])
        rest.id = "lost"
        assert (await rest.error()).data["reason"] == "owner_lost"
        client.to(three)
        await client.tool("echo")
        assert [(line["id"], line["outcome"]) for line in seen.lines if line["outcome"] != "answered"] == [
            ("lost", "lost")
        ]
