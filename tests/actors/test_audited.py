"""The audit trail of requests: who asked for what, and how it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from actors.ports import Principal
from actors.protocol.rights import Rights
from gateway.observability.operations import Observing
from tests.support import pooled
from tests.support.harness import open_gateway, open_replicas
from tests.support.mcp_backend import Backend

ANN = Principal("ann")


class Trail:
    """An audit trail in memory."""

    on = True

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.full = False

    def record(self, event: str, **values: Any) -> None:
        self.lines.append(json.loads(json.dumps({"event": event, **values})))

    def arguments(self, raw: bytes) -> Any:
        return sorted(json.loads(raw or b"{}"))

    async def room(self, within: float) -> bool:
        with trio.move_on_after(within):
            while self.full:
                await trio.sleep(0.1)
        return not self.full

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


@pytest.fixture
def trail() -> Trail:
    return Trail()


def watched(trail: Trail) -> dict[str, Any]:
    return {"observer": Observing(clock=trio.current_time, audit=trail), "audit": trail}


def server(**more: Any) -> Backend:
    return Backend("alpha", tools=("echo", "work"), held={"work"}, **more)


async def test_a_call_is_one_line_with_who_what_and_how_it_ended(autojump_clock, trail):
    async with open_gateway(server(), **watched(trail)) as gateway:
        client = await gateway.connect(principal=ANN)
        client.rights = Rights("https://issuer", "ann", "app-7", frozenset({"dev"}), frozenset())
        await client.call("tools/call", {"name": "alpha__echo", "arguments": {"text": "hush", "n": 1}})
        [line] = trail.of("call")
        [session] = gateway.actors.sessions.table
        assert line.pop("ms") >= 0
        assert line == {
            "event": "call",
            "method": "tools/call",
            "principal": "ann",
            "issuer": "https://issuer",
            "client": "app-7",
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
        assert await client.begin("tools/call", {"name": "alpha__echo"}).head() == 503
        assert alpha.asked_for("tools/call") == []

        async def soon() -> None:
            await trio.sleep(1)
            trail.full = False

        gateway.nursery.start_soon(soon)
        assert await client.tool("alpha__echo") == "alpha: echo"
