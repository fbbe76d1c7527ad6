"""The upstream connection that everybody uses to a server without sessions, called as endpoints call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from actors.machines.upstream.events import AnswerGiven
from actors.machines.upstream.modern_events import Caller
from actors.protocol.payload import dumps, loads
from actors.runtime import Actor, Ref
from actors.upstreams.eras import Eras
from actors.upstreams.messages import (
    Call,
    Cancel,
    Join,
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamReady,
    UpstreamRequest,
    UpstreamWrongEra,
)
from actors.upstreams.start import start_modern_upstream
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend, needs

QUESTION = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}


class Endpoint(Actor):
    """Keeps what it is told."""

    mailbox_size = 1024

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def receive(self, message: Any) -> None:
        self.messages.append(message)


class User:
    """One caller."""

    def __init__(self, gateway: Gateway, eras: Eras, name: str, *, drives: bool = True) -> None:
        self._gateway = gateway
        self._eras = eras
        self._endpoint = Endpoint()
        self.ref: Ref = gateway.system.spawn(self._endpoint, f"user-{name}")
        self.client = Caller(name, Raw(b'{"elicitation":{}}'), Raw(b'{"name":"u","version":"1"}'), None, drives)
        self._next = 0
        self.upstream = self.connect()
        self.upstream.reply(Join(self.ref, changes=drives))

    def connect(self, backend: str = "alpha") -> Ref:
        gateway, tree = self._gateway, self._gateway.actors.tree
        spec = gateway.backends[backend].spec
        return start_modern_upstream(
            spec, gateway.services, tree.backends, self._eras, gateway.system.registry, tree.upstreams
        )

    def begin(self, method: str, progress: bool = False, **params: Any) -> int:
        self._next += 1
        self.upstream.reply(Call(self.ref, self._next, method, dumps(params), progress, self.client))
        return self._next

    async def of(self, kind: type) -> list[Any]:
        await wait_all_tasks_blocked()
        return [message for message in self._endpoint.messages if isinstance(message, kind)]

    async def outcome(self, call: int) -> tuple[bool, Any]:
        with trio.fail_after(3600):
            while True:
                for message in await self.of(UpstreamOutcome):
                    if message.call == call:
                        return message.ok, loads(message.payload)
                await trio.sleep(0.05)

    async def call(self, method: str, **params: Any) -> tuple[bool, Any]:
        return await self.outcome(self.begin(method, **params))

    async def told(self) -> list[tuple[int | None, str, Mapping[str, Any]]]:
        return [(told.call, told.method, loads(told.params)) for told in await self.of(UpstreamNotification)]


@pytest.fixture(params=["http", "stdio"])
def kind(request) -> str:
    return str(request.param)


async def test_callers_share_one_connection_and_get_each_their_own_answer(autojump_clock, kind):
    backend = ModernBackend(kind=kind, held={"slow"}, tools=("slow", "echo"))
    async with open_gateway(backend) as gateway:
        eras = Eras()
        alice, bob = User(gateway, eras, "alice"), User(gateway, eras, "bob")
        first, second = alice.begin("tools/call", name="slow"), bob.begin("tools/call", name="slow")
        one, other = await backend.next(), await backend.next()
        other.text("b")
        one.text("a")
        assert (await alice.outcome(first))[1]["content"][0]["text"] == "a"
        assert (await bob.outcome(second))[1]["content"][0]["text"] == "b"
        assert len(backend.upstreams) == 1
        assert eras.modern(backend.spec) is True
        assert [ready.server_info.version for ready in await alice.of(UpstreamReady)] == ["2026-07-28"]


async def test_a_result_for_a_session_has_nothing_of_the_other_era(autojump_clock, kind):
    backend = ModernBackend(kind=kind)
    async with open_gateway(backend) as gateway:
        eras = Eras()
        ok, tools = await User(gateway, eras, "alice").call("tools/list")
        assert ok
        assert not {"resultType", "ttlMs", "cacheScope"} & tools.keys()


async def test_an_answer_that_a_change_has_overtaken_is_not_kept(autojump_clock, kind):
    backend = ModernBackend(kind=kind, mute={"tools/list"})
    async with open_gateway(backend) as gateway:
        alice = User(gateway, Eras(), "alice")
        call = alice.begin("tools/list")
        old = await backend.next("tools/list")
        assert backend.change("notifications/tools/list_changed") == 1
        await alice.of(UpstreamNotification)
        backend.mute.clear()
        backend.results["tools/list"] = lambda request: {"tools": [{"name": "new"}]}
        old.result({"tools": [], "ttlMs": 60_000, "cacheScope": "public"})
        await alice.outcome(call)
        assert (await alice.call("tools/list"))[1]["tools"] == [{"name": "new"}]


async def test_a_server_with_sessions_gives_the_calls_back(autojump_clock, kind):
    backend = Backend(kind=kind)
    async with open_gateway(backend) as gateway:
        eras = Eras()
        alice = User(gateway, eras, "alice")
        call = alice.begin("tools/call", name="echo")
        with trio.fail_after(60):
            while not (wrong_era := await alice.of(UpstreamWrongEra)):
                await trio.sleep(0.1)
        assert [given.call for given in wrong_era[0].calls] == [call]
        assert wrong_era[0].calls[0].caller is alice.ref
        assert eras.modern(backend.spec) is False
        assert backend.methods == ["server/discover"]


SILENCE = {"http": 5.0, "stdio": 30.0}
"""Seconds: a process that says nothing at all may still be starting."""


async def test_a_silent_server_counts_as_one_with_sessions_after_a_while(autojump_clock, kind):
    backend = ModernBackend(kind=kind, mute={"server/discover"})
    async with open_gateway(backend) as gateway:
        alice = User(gateway, Eras(), "alice")
        alice.begin("tools/call", name="echo")
        await trio.sleep(SILENCE[kind] - 0.1)
        assert not await alice.of(UpstreamWrongEra)
        await trio.sleep(0.2)
        assert await alice.of(UpstreamWrongEra)


@pytest.mark.parametrize(("took", "silence"), [(0.2, 5.0), (4.0, 12.0)])
async def test_a_process_known_to_start_faster_is_not_waited_for_so_long(autojump_clock, took, silence):
    """It has answered `initialize`, and would have answered the probe in that time too."""
    backend = ModernBackend(kind="stdio", mute={"server/discover"})
    async with open_gateway(backend) as gateway:
        eras = Eras()
        eras.found_legacy(backend.spec, took)
        alice = User(gateway, eras, "alice")
        alice.begin("tools/call", name="echo")
        await trio.sleep(silence - 0.1)
        assert not await alice.of(UpstreamWrongEra)
        await trio.sleep(0.2)
        assert await alice.of(UpstreamWrongEra)


async def test_what_was_found_out_is_looked_at_again_when_it_is_contradicted(autojump_clock, kind):
    backend = ModernBackend(kind=kind, mute={"server/discover"})
    async with open_gateway(backend) as gateway:
        eras = Eras()
        alice = User(gateway, eras, "alice")
        alice.begin("tools/call", name="echo")
        await trio.sleep(SILENCE[kind] + 1)
        backend.mute = set()
        assert eras.refused_legacy(backend.spec, surely=True)
        ok, _ = await alice.call("tools/call", name="echo")
        assert ok


async def test_a_question_goes_to_the_caller_of_the_call_and_its_answer_back(autojump_clock, kind):
    backend = ModernBackend(kind=kind, held={"ask"}, tools=("ask",))
    async with open_gateway(backend) as gateway:
        eras = Eras()
        alice, bob = User(gateway, eras, "alice"), User(gateway, eras, "bob")
        call = alice.begin("tools/call", name="ask")
        needs(await backend.next(), "s", q=QUESTION)
        [asked] = await alice.of(UpstreamRequest)
        assert not await bob.of(UpstreamRequest)
        asked.upstream.reply(AnswerGiven(asked.id, True, dumps({"action": "accept", "content": {}})))
        again = await backend.next()
        assert again.params["requestState"] == "s"
        again.text("done")
        assert (await alice.outcome(call))[0]


async def test_a_client_without_sessions_gets_the_questions_as_they_are(autojump_clock, kind):
    backend = ModernBackend(kind=kind, held={"ask"}, tools=("ask",))
    async with open_gateway(backend) as gateway:
        user = User(gateway, Eras(), "alice", drives=False)
        call = user.begin("tools/call", name="ask")
        needs(await backend.next(), "s", q=QUESTION)
        assert (await user.outcome(call))[1]["resultType"] == "input_required"


async def test_a_cancel_reaches_the_server(autojump_clock, kind):
    backend = ModernBackend(kind=kind, held={"slow"}, tools=("slow",))
    async with open_gateway(backend) as gateway:
        alice = User(gateway, Eras(), "alice")
        call = alice.begin("tools/call", name="slow")
        request = await backend.next()
        alice.upstream.reply(Cancel(alice.ref, call, "enough"))
        await wait_all_tasks_blocked()
        assert request.id in request.upstream.transport.forgotten
        assert request.cancelled.is_set() is (kind == "stdio")


async def test_what_is_private_is_kept_for_one_principal_and_what_is_public_for_all(autojump_clock, kind):
    hints = {"ttlMs": 60_000, "cacheScope": "private"}
    backend = ModernBackend(kind=kind, capabilities={"tools": {}})
    backend.results["tools/list"] = lambda request: {"tools": [], "resultType": "complete", **hints}
    async with open_gateway(backend) as gateway:
        eras = Eras()
        alice, bob = User(gateway, eras, "alice"), User(gateway, eras, "bob")
        for user in (alice, alice, bob, bob):
            assert (await user.call("tools/list"))[0]
        assert backend.methods.count("tools/list") == 2
        hints["cacheScope"] = "public"
        await trio.sleep(61)
        for user in (alice, bob):
            assert (await user.call("tools/list"))[0]
        assert backend.methods.count("tools/list") == 3


async def test_a_change_outdates_what_is_kept(autojump_clock, kind):
    backend = ModernBackend(kind=kind)
    backend.results["tools/list"] = lambda request: {"tools": [], "ttlMs": 60_000, "cacheScope": "public"}
    async with open_gateway(backend) as gateway:
        alice = User(gateway, Eras(), "alice")
        await alice.call("tools/list")
        assert backend.change("notifications/tools/list_changed") == 1
        assert (None, "notifications/tools/list_changed", {}) in await alice.told()
        await alice.call("tools/list")
        assert backend.methods.count("tools/list") == 2


async def test_an_old_answer_is_better_than_none(autojump_clock):
    backend = ModernBackend(kind="http")
    backend.results["tools/list"] = lambda request: {"tools": [], "ttlMs": 1000, "cacheScope": "public"}
    async with open_gateway(backend) as gateway:
        alice = User(gateway, Eras(), "alice")
        await alice.call("tools/list")
        await trio.sleep(2)
        backend.results.clear()
        backend.mute = {"tools/list"}
        call = alice.begin("tools/list")
        request = await backend.next("tools/list")
        request = await backend.next("tools/list")
        request.fail()
        assert (await alice.outcome(call))[0]


async def test_subscriptions_are_of_those_who_made_them(autojump_clock, kind):
    backend = ModernBackend(kind=kind)
    async with open_gateway(backend) as gateway:
        eras = Eras()
        alice, bob = User(gateway, eras, "alice"), User(gateway, eras, "bob")
        assert (await alice.call("resources/subscribe", uri="test:///a"))[0]
        assert (await bob.call("resources/subscribe", uri="test:///b"))[0]
        assert backend.change("notifications/resources/updated", "test:///a") == 1
        assert (None, "notifications/resources/updated", {"uri": "test:///a"}) in await alice.told()
        assert not [told for told in await bob.told() if told[1] == "notifications/resources/updated"]


async def test_a_process_that_dies_comes_back_for_those_who_listen(autojump_clock):
    backend = ModernBackend(kind="stdio")
    async with open_gateway(backend) as gateway:
        alice = User(gateway, Eras(), "alice")
        await alice.call("resources/subscribe", uri="test:///a")
        backend.upstream.die()
        await backend.connected(2)
        await trio.sleep(1)
        told = await alice.told()
        assert (None, "notifications/resources/updated", {"uri": "test:///a"}) in told
        assert (None, "notifications/tools/list_changed", {}) in told


async def test_the_link_ends_with_those_who_joined_it(autojump_clock, kind):
    backend = ModernBackend(kind=kind)
    async with open_gateway(backend) as gateway:
        before = gateway.left()
        alice = User(gateway, Eras(), "alice")
        await alice.call("tools/list")
        alice.ref.stop()
        await trio.sleep(10)
        assert gateway.left() == before
        assert not backend.open


async def test_a_tool_with_an_illegal_header_is_left_out_and_logged(autojump_clock):
    schema = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
    backend = ModernBackend(kind="http", tools=({"name": "bad", "inputSchema": schema}, "echo"))
    async with open_gateway(backend) as gateway:
        _, listed = await User(gateway, Eras(), "alice").call("tools/list")
        assert [tool["name"] for tool in listed["tools"]] == ["echo"]
        assert gateway.log.events("tool_left_out")[0]["tool"] == "bad"
