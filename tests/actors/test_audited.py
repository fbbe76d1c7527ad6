"""The audit trail of requests: who asked for what, and how it ended."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import trio

from actors.ports import Failed, Principal, Refused
from actors.protocol.payload import MEMBERS_MAX
from actors.protocol.policy import Policy, Rule, item
from actors.protocol.rights import Rights
from actors.sessions.expiry import AT_ONCE
from tests.support import pooled
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend, needs
from tests.support.trail import Trail, watched

ANN = Principal("ann")
FORM = {"message": "go on?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture
def trail() -> Trail:
    return Trail()


def server(**more: Any) -> Backend:
    return Backend("alpha", tools=("echo", "work"), held={"work"}, **more)


async def test_a_call_is_one_line_with_who_what_and_how_it_ended(autojump_clock, trail):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        client.peer = "192.0.2.7"
        client.rights = Rights("https://issuer", "ann", "app-7", frozenset({"dev"}), frozenset())
        await client.call("tools/call", {"name": "alpha__echo", "arguments": {"text": "hush", "n": 1}})
        [line] = trail.of("call")
        [session] = gateway.actors.sessions.table
        assert line.pop("ms") >= 0
        assert line == {
            "event": "call",
            "method": "tools/call",
            "principal": "ann",
            "iss": "https://issuer",
            "client_id": "app-7",
            "ip": "192.0.2.7",
            "item": "alpha__echo",
            "args": ["n", "text"],
            "outcome": "answered",
            "server": "alpha",
            "session": session[:12],
            "era": "legacy",
            "transport": "http",
        }
        assert "hush" not in json.dumps(trail.lines)
        [opened] = trail.of("session")
        assert (opened["principal"], opened["session"]) == ("ann", session[:12])


async def test_a_line_says_in_which_trace_and_for_which_span_it_is(autojump_clock, trail):
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    meta = {"traceparent": f"00-{trace}-{span}-01"}
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        await client.call("tools/call", {"name": "alpha__echo", "arguments": {}, "_meta": meta})
        [line] = trail.of("call")
        assert (line["trace_id"], line["span_id"]) == (trace, span)


async def test_the_end_of_a_session_is_told_with_its_reason_also_of_one_at_rest(autojump_clock, trail):
    async with open_gateway(server(), idle_ttl=60.0, **watched(trail)) as gateway:
        first, second = [await gateway.connect(principal=ANN) for _ in range(2)]
        keys = [line["session"] for line in trail.of("session")]
        await first.delete()
        assert trail.of("session.end") == [
            {"event": "session.end", "reason": "delete", "principal": "ann", "session": keys[0], "era": "legacy"}
        ]
        await trio.sleep(3600)
        assert [(line["reason"], line["session"]) for line in trail.of("session.end")] == [
            ("delete", keys[0]),
            ("idle", keys[1]),
        ]
        assert second.session


async def test_the_end_of_a_session_is_told_by_the_replica_that_ended_it_alone(autojump_clock, trail):
    async with open_replicas(2, server(kind="http"), idle_ttl=60.0, **watched(trail)) as (one, _):
        await one.connect(principal=ANN)
        await one.pause()
        await trio.sleep(3600)
        await one.resume()
        await trio.sleep(300)
        assert [line["reason"] for line in trail.of("session.end")] == ["idle"]


async def test_the_end_of_a_session_that_never_began_is_told(autojump_clock, trail):
    async with open_gateway(server(version="1999-01-01"), **watched(trail)) as gateway:
        with suppress(RpcError):
            await gateway.connect("alpha", principal=ANN)
        await trio.sleep(300)
        assert [line["reason"] for line in trail.of("session.end")] == ["initialize_failed"]


async def test_the_end_of_a_session_that_was_not_recorded_is_told_once_it_is(autojump_clock, trail, monkeypatch):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        with monkeypatch.context() as store:
            store.setattr(gateway.store, "end", lambda *what: what[-1](Failed(Refused.AWAY)))
            assert await client.delete() == 503
        assert trail.of("session.end") == []
        assert await client.delete() == 200
        assert [line["reason"] for line in trail.of("session.end")] == ["delete"]


@pytest.mark.parametrize("meanwhile", ["nothing", "ended again"])
async def test_the_end_of_a_session_is_told_once_though_the_answer_of_the_store_was_lost(
    autojump_clock, trail, monkeypatch, meanwhile
):
    async with open_replicas(2, server(), **watched(trail)) as (one, two):
        client = await one.connect(principal=ANN)
        end = one.store.end

        def lost(*what):
            end(*what[:-1], lambda outcome: what[-1](Failed(Refused.AWAY)))

        with monkeypatch.context() as store:
            store.setattr(one.store, "end", lost)
            assert await client.delete() == 503
            if meanwhile == "ended again":
                assert await client.delete() == 404
            await trio.sleep(60)
            assert trail.of("session.end") == []
        await trio.sleep(60)
        assert [line["reason"] for line in trail.of("session.end")] == ["delete"]
        await trio.sleep(3600)
        assert len(trail.of("session.end")) == 1
        assert two.actors.sessions.table == {}


async def test_an_end_that_was_not_recorded_does_not_end_the_session_where_it_goes_on(
    autojump_clock, trail, monkeypatch
):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        with monkeypatch.context() as store:
            store.setattr(gateway.store, "end", lambda *what: what[-1](Failed(Refused.AWAY)))
            assert await client.delete() == 503
            await client.tool("alpha__echo", text="x")
        await trio.sleep(60)
        await client.tool("alpha__echo", text="x")
        assert trail.of("session.end") == []


async def test_an_end_that_was_not_recorded_is_in_the_end(autojump_clock, trail, monkeypatch):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        with monkeypatch.context() as store:
            store.setattr(gateway.store, "end", lambda *what: what[-1](Failed(Refused.AWAY)))
            assert await client.delete() == 503
        await trio.sleep(60)
        assert [line["reason"] for line in trail.of("session.end")] == ["delete"]
        assert await client.begin("tools/list").head() == 404


async def test_many_ends_that_were_not_recorded_are_asked_for_some_at_a_time(autojump_clock, trail, monkeypatch):
    many = 2 * AT_ONCE + 1
    async with open_gateway(server(), **watched(trail)) as gateway:
        clients = [await gateway.connect(principal=ANN) for _ in range(many)]
        end, asked = gateway.store.end, Counter[float]()
        with monkeypatch.context() as store:
            store.setattr(gateway.store, "end", lambda *what: what[-1](Failed(Refused.AWAY)))
            assert [await client.delete() for client in clients] == [503] * many

        def again(*what):
            asked[trio.current_time()] += 1
            end(*what)

        monkeypatch.setattr(gateway.store, "end", again)
        await trio.sleep(60)
        assert sum(asked.values()) == len(trail.of("session.end")) == many
        assert max(asked.values()) <= AT_ONCE


async def test_the_end_of_a_session_at_rest_that_was_not_recorded_is_asked_for_again(
    autojump_clock, trail, monkeypatch
):
    async with open_gateway(server(kind="http"), idle_ttl=600.0, passivate_after=60.0, **watched(trail)) as gateway:
        await gateway.connect(principal=ANN)
        asked = []

        def away(*what):
            asked.append(what[2])
            what[-1](Failed(Refused.AWAY))

        await trio.sleep(300)
        assert gateway.actors.sessions.table == {}, "it is at rest"
        with monkeypatch.context() as store:
            store.setattr(gateway.store, "end", away)
            await trio.sleep(600)
        assert set(asked) == {"idle"}
        assert len(asked) > 1
        assert trail.of("session.end") == []
        await trio.sleep(60)
        assert [line["reason"] for line in trail.of("session.end")] == ["idle"]


async def test_the_end_of_a_session_at_rest_counts_once_though_the_answer_of_the_store_was_lost(
    autojump_clock, trail, monkeypatch
):
    async with open_gateway(server(kind="http"), idle_ttl=600.0, passivate_after=60.0, **watched(trail)) as gateway:
        await gateway.connect(principal=ANN)
        end = gateway.store.end

        def lost(*what):
            end(*what[:-1], lambda outcome: what[-1](Failed(Refused.AWAY)))

        await trio.sleep(300)
        assert gateway.actors.sessions.table == {}, "it is at rest"
        with monkeypatch.context() as store:
            store.setattr(gateway.store, "end", lost)
            await trio.sleep(400)
            assert trail.of("session.end") == []
        await trio.sleep(3600)
        assert [line["reason"] for line in trail.of("session.end")] == ["idle"]
        assert gateway.telemetry.total("stagedoor_sessions_ended_total", "idle") == 1


async def test_lists_and_pings_are_not_told_and_what_is_read_is(autojump_clock, trail):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        for method in ("ping", "tools/list", "resources/list", "prompts/list"):
            await client.call(method)
        await client.call("resources/read", {"uri": "alpha+test:///a"})
        await client.call("prompts/get", {"name": "alpha__hello"})
        assert [(line["method"], line["item"]) for line in trail.of("call")] == [
            ("resources/read", "alpha+test:///a"),
            ("prompts/get", "alpha__hello"),
        ]


async def test_nobody_hides_what_he_asks_for_behind_what_can_not_be_read(autojump_clock, trail):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        arguments = {"text": "x" * 2000}  # more than is kept until the line is written
        await client.call(
            "tools/call", {"name": "alpha__echo", "arguments": arguments, "uri": 5, "taskId": [], "ref": 1}
        )
        with suppress(RpcError):
            await client.call("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {}})
        said = [(line["method"], line.get("item"), line.get("args")) for line in trail.of("call")]
        assert said == [("tools/call", "alpha__echo", ["text"]), ("completion/complete", "p", None)]


async def test_clients_without_sessions_are_told_too(autojump_clock, trail):
    async with open_gateway(server(), **watched(trail)) as gateway:
        await pooled.echo(pooled.client(gateway, ANN))
        [line] = trail.of("call")
        assert (line["principal"], line["era"], line["item"], line["outcome"]) == ("ann", "modern", "echo", "answered")


async def test_every_end_is_told_with_its_code(autojump_clock, trail):
    async with open_gateway(server(timeout=5.0), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        cancelled = client.begin("tools/call", {"name": "alpha__work"}, id="c")
        await gateway.backends["alpha"].next()
        await client.cancel(cancelled)
        late = client.begin("tools/call", {"name": "alpha__work"}, id="d")
        await gateway.backends["alpha"].next()
        await late.error()
        unknown = client.begin("tools/call", {"name": "nothing"}, id="e")
        await unknown.error()
        await gateway.settle()
        ends = [(line["outcome"], line.get("code")) for line in trail.of("call")]
        assert ends[0][0] == "cancelled"
        assert ends[1][0] == "timed_out"
        assert ends[2] == ("answered", -32602)


async def test_a_request_by_mail_is_told_by_its_owner_alone(autojump_clock, trail):
    async with open_replicas(2, alpha := server(kind="http"), **watched(trail)) as (one, two):
        client = await one.connect(principal=ANN)
        client.to(two)
        await client.call("tools/call", {"name": "alpha__echo", "arguments": {"text": "x"}})
        [line] = trail.of("call")
        assert (line["principal"], line["item"], line["outcome"]) == ("ann", "alpha__echo", "answered")
        assert len(alpha.asked_for("tools/call")) == 1


async def test_nothing_begins_that_could_not_be_written_down(autojump_clock, trail):
    async with open_gateway(alpha := server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        trail.full = True
        refused = client.begin("tools/call", {"name": "alpha__echo"})
        assert await refused.head() == 503
        assert (await refused.error()).data == {"executed": "no"}
        retry = {"name": "alpha__echo", "inputResponses": {}, "requestState": "s"}
        unknown = pooled.client(gateway, ANN, endpoint="").begin("tools/call", retry)
        assert await unknown.head() == 503
        assert (await unknown.error()).data == {"executed": "unknown"}
        assert alpha.asked_for("tools/call") == []
        assert gateway.telemetry.total("stagedoor_messages_rejected_total", "audit_full") == 2

        async def soon() -> None:
            await trio.sleep(1)
            trail.full = False

        gateway.nursery.start_soon(soon)
        assert await client.tool("alpha__echo") == "alpha: echo"


async def test_what_a_rule_refuses_says_by_which_way_it_came(autojump_clock, trail):
    async with open_gateway(server(), **watched(trail)) as gateway:
        gateway.change(policy=Policy((Rule("policy[0]", allow=(item("alpha:*"),), deny=(item("alpha:echo"),)),)))
        client = await gateway.connect(principal=ANN)
        client.peer = "192.0.2.7"
        await client.begin("tools/call", {"name": "alpha__echo", "arguments": {"text": "x"}}).error()
        modern = pooled.client(gateway, ANN, endpoint="")
        modern.peer = "2001:db8::7"
        await modern.begin("tools/call", {"name": "alpha__echo", "arguments": {"text": "x"}}).error()
        told = [(line["era"], line["ip"], line["item"], line["args"]) for line in trail.of("deny")]
        assert told == [
            ("legacy", "192.0.2.7", "tool:echo", ["text"]),
            ("modern", "2001:db8::7", "tool:echo", ["text"]),
        ]
        assert trail.of("deny")[0]["session"] == trail.of("session")[0]["session"]


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_what_a_filter_of_a_server_refuses_is_told_with_its_filter(autojump_clock, trail, endpoint):
    named = "{}" if endpoint else "alpha__{}"
    async with open_gateway(server(enabled_tools=("e*",), disabled_tools=("echo",)), **watched(trail)) as gateway:
        for client in (await gateway.connect(endpoint, principal=ANN), pooled.client(gateway, ANN, endpoint=endpoint)):
            for tool in ("echo", "work"):
                await client.begin("tools/call", {"name": named.format(tool), "arguments": {}}).error()
        told = [(line["era"], line["principal"], line["item"], line["rule"]) for line in trail.of("deny")]
        assert told == [
            (era, "ann", f"tool:{tool}", f"mcpServers.alpha.{rule}")
            for era in ("legacy", "modern")
            for tool, rule in (("echo", "disabledTools"), ("work", "enabledTools"))
        ]


async def test_the_address_comes_along_to_the_replica_that_writes_the_line(autojump_clock, trail):
    async with open_replicas(2, server(kind="http"), **watched(trail)) as (one, two):
        client = await one.connect(principal=ANN)
        client.to(two)
        client.peer = "192.0.2.7"
        await client.tool("alpha__echo", text="x")
        [line] = trail.of("call")
        assert (line["ip"], line["transport"]) == ("192.0.2.7", "mail")


# What users are asked


def outcomes(trail: Trail) -> list[tuple[str, str]]:
    return [(line["method"], line["outcome"]) for line in trail.of("elicit")]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [({"action": "accept", "content": {"secret": "hush"}}, "accept"), ({"action": "decline"}, "decline")],
)
async def test_what_a_user_of_a_session_is_asked_and_answers_is_told(autojump_clock, trail, answer, outcome):
    async with open_gateway(alpha := server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN, capabilities={"elicitation": {"form": {}}})
        client.peer = "192.0.2.7"
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        asked = request.ask("elicitation/create", FORM)
        question = await call.next("elicitation/create")
        [line] = trail.of("elicit")
        assert line == {
            "event": "elicit",
            "method": "elicitation/create",
            "mode": "form",
            "outcome": "asked",
            "server": "alpha",
            "principal": "ann",
            "ip": "192.0.2.7",
            "session": line["session"],
            "era": "legacy",
            "transport": "http",
        }
        await client.respond(question, answer)
        await asked.outcome()
        assert outcomes(trail) == [("elicitation/create", "asked"), ("elicitation/create", outcome)]
        assert "hush" not in json.dumps(trail.lines)
        request.text("done")
        await call.result()


async def test_what_nobody_answers_is_told_too(autojump_clock, trail):
    async with open_gateway(alpha := server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN, capabilities={"elicitation": {"form": {}}})
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        request.ask("elicitation/create", FORM)
        await call.next("elicitation/create")
        request.text("done")
        await call.result()
        assert outcomes(trail) == [("elicitation/create", "asked"), ("elicitation/create", "withdrawn")]


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_what_a_user_without_a_session_is_asked_and_answers_is_told(autojump_clock, trail, kind):
    if kind == "legacy":
        backend: Any = pooled.asker()
    else:
        backend = ModernBackend("alpha", tools=("ask",), held={"ask"})
    async with open_gateway(backend, **watched(trail)) as gateway:
        client = pooled.client(gateway, ANN, capabilities={"elicitation": {"form": {}}})
        client.peer = "192.0.2.7"
        if kind == "legacy":
            result, _ = await pooled.suspend(client, backend)
        else:
            call = client.begin("tools/call", {"name": "ask"})
            needs(await backend.next(), "s", q={"method": "elicitation/create", "params": FORM})
            result = await call.result()
        [line] = trail.of("elicit")
        expected = {"mode": "form", "outcome": "asked", "server": "alpha", "principal": "ann", "era": "modern"}
        assert {name: line[name] for name in expected} == expected
        assert line["ip"] == "192.0.2.7"
        again = client.begin("tools/call", {"name": "ask", **pooled.retry(result)})
        await gateway.settle()
        assert outcomes(trail) == [("elicitation/create", "asked"), ("elicitation/create", "accept")]
        again.drop()


@pytest.mark.parametrize("answers", [5, [1], {"q": 5}, {"q": "accept"}])
async def test_answers_in_a_wrong_form_end_no_more_than_the_request_that_brings_them(autojump_clock, trail, answers):
    backend = ModernBackend("alpha", tools=("ask", "echo"), held={"ask"})
    async with open_gateway(backend, **watched(trail)) as gateway:
        client = pooled.client(gateway, ANN, capabilities={"elicitation": {"form": {}}})
        other = client.begin("tools/call", {"name": "ask"})
        request = await backend.next()
        # It mentions a state, and brings none.
        wrong = {"name": "echo", "arguments": {"x": '"requestState"'}, "inputResponses": answers}
        await client.begin("tools/call", wrong).response()
        needs(request, "s", q={"method": "elicitation/create", "params": FORM})
        result = await other.result()
        again = client.begin("tools/call", {"name": "ask", **pooled.retry(result), "inputResponses": answers})
        await gateway.settle()
        await client.call("tools/call", {"name": "echo"})
        again.drop()


async def test_a_server_that_asks_in_a_wrong_form_ends_no_more_than_its_own_call(autojump_clock, trail):
    backend = ModernBackend("alpha", tools=("ask", "work"), held={"ask", "work"})
    async with open_gateway(backend, **watched(trail)) as gateway:
        client = pooled.client(gateway, ANN, capabilities={"elicitation": {"form": {}}})
        other = client.begin("tools/call", {"name": "work"})
        untouched = await backend.next()
        call = client.begin("tools/call", {"name": "ask"})
        needs(await backend.next(), "s", q={"method": "elicitation/create", "params": 5})
        await call.response()
        untouched.text("done")
        await other.result()


async def test_an_answer_with_more_members_than_anybody_reads_ends_no_session(autojump_clock, trail):
    async with open_gateway(alpha := server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN, capabilities={"elicitation": {"form": {}}})
        call = client.begin("tools/call", {"name": "alpha__work"})
        request = await alpha.next()
        asked = request.ask("elicitation/create", FORM)
        question = await call.next("elicitation/create")
        await client.respond(question, {"action": "accept", **{f"m{n}": 1 for n in range(MEMBERS_MAX + 1)}})
        await asked.outcome()
        assert outcomes(trail)[1:] == [("elicitation/create", "answered")]
        request.text("done")
        await call.result()
