"""A server may ask something on the stream that belongs to no call. Until that stream is there its question is lost,
and its call waits for the answer: so no call is sent before (2025-11-25 transports, "Listening for Messages from the
Server").
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.upstreams.legacy import LISTEN_WITHIN
from tests.support.door_client import Client
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request, Upstream
from tests.support.modern_client import ModernClient

LATENCY = 0.15
FORM: dict[str, Any] = {"message": "go on?", "requestedSchema": {"type": "object", "properties": {}}}
ACCEPTED = {"action": "accept", "content": {}}
MAY = {"elicitation": {"form": {}}}


class Interviewer(Backend):
    """Its stream comes late; what it says on it before that is lost. So many calls find their session `forgotten`."""

    def __init__(self, nursery: trio.Nursery, latency: float = LATENCY, *, forgotten: int = 0, **more: Any) -> None:
        super().__init__("alpha", tools=("ask",), held={"ask"}, kind="http", **more)
        self.nursery = nursery
        self.latency = latency
        self.forgotten = forgotten
        self.attached: set[Upstream] = set()
        self.lost = 0

    def connect(self, *args: Any, **more: Any) -> Any:
        transport = super().connect(*args, **more)
        transport.holds_stream = True
        self.nursery.start_soon(self._serve, self.upstreams[-1])
        return transport

    async def _serve(self, upstream: Upstream) -> None:
        """The stream of each session in turn."""
        served = 0
        while not upstream.transport.closed:
            if upstream.transport.listens > served:
                served = upstream.transport.listens
                await trio.sleep(self.latency)
                self.attached.add(upstream)
                upstream.transport.attach()
            await trio.sleep(0.01)

    def came(self, request: Request) -> None:
        super().came(request)
        if request.method != "tools/call":
            return
        if self.forgotten:
            self.forgotten -= 1
            self.attached.discard(request.upstream)
            request.upstream.lose_session(request)
        else:
            self.nursery.start_soon(self._ask, request)

    async def _ask(self, request: Request) -> None:
        if request.upstream not in self.attached:
            self.lost += 1
            return
        with trio.move_on_after(100):
            await request.upstream.ask("elicitation/create", FORM).outcome()
            request.text("asked")


async def called(gateway: Gateway, endpoint: str = "alpha") -> str:
    client = await gateway.connect(endpoint, capabilities=MAY)
    gateway.nursery.start_soon(answers, client)
    name = "ask" if endpoint else "alpha__ask"
    with trio.fail_after(50):
        return await client.tool(name)


async def answers(client: Client) -> None:
    """Listens, and answers what it is asked."""
    stream = client.listen()
    while True:
        question = await stream.next("elicitation/create")
        await client.respond(question, ACCEPTED)


@pytest.mark.parametrize("endpoint", ["alpha", ""], ids=["transparent", "aggregate"])
async def test_a_first_call_is_sent_when_the_server_can_ask(autojump_clock: MockClock, endpoint: str) -> None:
    async with trio.open_nursery() as nursery:
        alpha = Interviewer(nursery)
        async with open_gateway(alpha) as gateway:
            for _ in range(3):
                assert await called(gateway, endpoint) == "asked"
        assert alpha.lost == 0
        nursery.cancel_scope.cancel()


async def test_a_call_that_is_sent_again_to_a_server_without_our_session_waits_too(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        alpha = Interviewer(nursery, forgotten=1)
        async with open_gateway(alpha) as gateway:
            assert await called(gateway) == "asked"
        assert (alpha.lost, alpha.upstream.transport.listens) == (0, 2)
        nursery.cancel_scope.cancel()


async def test_the_connections_of_clients_without_sessions_wait_too(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        alpha = Interviewer(nursery)
        async with open_gateway(alpha) as gateway:
            client = ModernClient(gateway.actors.door, gateway.nursery, "alpha", capabilities=MAY)
            with trio.fail_after(50):
                first = await client.call("tools/call", {"name": "ask"})
                [(key, question)] = first["inputRequests"].items()
                assert question["method"] == "elicitation/create"
                retry = {"name": "ask", "inputResponses": {key: ACCEPTED}, "requestState": first["requestState"]}
                assert (await client.call("tools/call", retry))["content"][0]["text"] == "asked"
        assert alpha.lost == 0
        nursery.cancel_scope.cancel()


async def test_a_server_that_never_answers_the_stream_costs_a_second(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        alpha = Interviewer(nursery, latency=1e6)
        alpha.held = set()
        async with open_gateway(alpha) as gateway:
            began = trio.current_time()
            client = await gateway.connect("alpha")
            assert await client.tool("ask") == "alpha: ask"
            assert trio.current_time() - began == pytest.approx(LISTEN_WITHIN)
            assert await client.tool("ask") == "alpha: ask"
            assert trio.current_time() - began == pytest.approx(LISTEN_WITHIN)
        nursery.cancel_scope.cancel()


async def test_a_change_that_a_server_could_not_tell_before_its_late_stream_is_told_once(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        alpha = Interviewer(nursery, latency=3 * LISTEN_WITHIN)
        alpha.held = set()
        async with open_gateway(alpha) as gateway:
            client = await gateway.connect("alpha")
            stream = client.listen()
            assert await client.tool("ask") == "alpha: ask"
            assert alpha.upstream not in alpha.attached
            with trio.fail_after(50):
                told = [(await stream.next())["method"] for _ in range(3)]
            assert sorted(told) == [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]
            with trio.move_on_after(50):
                pytest.fail(f"said besides: {await stream.next()}")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["stdio", "inproc"])
async def test_where_there_is_no_such_stream_nothing_is_waited_for(autojump_clock: MockClock, kind: Any) -> None:
    async with open_gateway(Backend("alpha", tools=("echo",), kind=kind)) as gateway:
        client = await gateway.connect("alpha")
        began = trio.current_time()
        assert await client.tool("echo") == "alpha: echo"
        assert trio.current_time() == began


async def test_a_server_that_says_late_that_it_has_no_stream_keeps_its_session(autojump_clock: MockClock) -> None:
    alpha = Backend("alpha", tools=("echo", "work"), held={"work"}, kind="http")
    alpha.holds_stream = True
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "work"})
        running = await alpha.next()
        running.upstream.lose_session()  # a 404 to the GET
        await gateway.settle()
        running.text("done")
        assert (await call.result())["content"][0]["text"] == "done"
        assert alpha.methods.count("initialize") == 1
        running.upstream.lose_session()  # and one to something else
        await gateway.settle()
        assert alpha.methods.count("initialize") == 2
