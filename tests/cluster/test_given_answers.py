"""What a client has answered to a server request, and was accepted, is not lost with the process that accepted it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import Backend, Request, ServerRequested

ASKING = {"capabilities": {"roots": {}}}
GIVEN: Any = {"roots": [{"uri": "file:///a"}]}


def lasting() -> Backend:
    return Backend("alpha", kind="http", tools=("echo", "work"), held={"work"})


async def asking(client: Client, alpha: Backend) -> tuple[Pending, Request, ServerRequested, Any]:
    """A call that can go on in another life, whose server has asked something."""
    call = client.begin("tools/call", {"name": "work"}, progress="mine")
    request = await alpha.next()
    alpha.upstream.transport.prime("c0", request.id)
    asked = alpha.upstream.ask("roots/list", {}, related=request.id, cursor="c1")
    return call, request, asked, await call.next("roots/list")


def answers(alpha: Backend, number: int, asked: ServerRequested) -> list[Any]:
    """What came over one of its connections."""
    sent = alpha.upstreams[number].messages
    return [m.get("result", m.get("error")) for m in sent if m.get("id") == asked.id and "method" not in m]


def asked_in(gateway: Gateway) -> dict[str, bytes]:
    [record] = gateway.store.records().values()
    return dict(record.asked)


@pytest.mark.parametrize("refused", [False, True])
async def test_the_next_life_gives_it_to_the_server_again(autojump_clock, refused):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", **ASKING)
        call, request, asked, question = await asking(client, alpha)
        if refused:
            await client.respond(question, code=-1, message="no")
        else:
            await client.respond(question, GIVEN)
        one.kill(at_once=True)
        client.to(two)
        rest = client.listen([e.id for e in call.events if e.id][-1])
        rest.id = call.id
        await two.settle()
        assert answers(alpha, 1, asked) == [{"code": -1, "message": "no"} if refused else GIVEN]
        assert not rest.seen("notifications/cancelled")
        result = {"content": [{"type": "text", "text": "done"}]}
        alpha.upstream.transport.deliver({"id": request.id, "result": result}, request.id, "last")
        assert await rest.result() == result
        assert asked_in(two) == {}


async def test_it_is_kept_as_long_as_the_call_runs(autojump_clock):
    alpha = lasting()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", **ASKING)
        call, request, asked, question = await asking(client, alpha)
        await client.respond(question, GIVEN)
        assert len(asked_in(gateway)) == 1
        params = {"progressToken": request.token, "progress": 1}
        alpha.upstream.notify("notifications/progress", params, related=request.id, cursor="c2")
        await call.next("notifications/progress")
        assert len(asked_in(gateway)) == 1
        await client.respond(question, GIVEN)
        assert answers(alpha, 0, asked) == [GIVEN], "said twice, it counts once"
        request.text("done")
        await call.result()
        assert asked_in(gateway) == {}


async def test_of_many_only_the_last_are_kept(autojump_clock):
    alpha = lasting()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha", **ASKING)
        call, request, _, question = await asking(client, alpha)
        await client.respond(question, GIVEN)
        for n in range(20):
            alpha.upstream.ask("roots/list", {}, related=request.id, cursor=f"d{n}")
            await client.respond(await call.next("roots/list"), GIVEN)
        assert len(asked_in(gateway)) <= 9
        request.text("done")
        await call.result()
        assert asked_in(gateway) == {}


class Away(MemoryStore):
    """Takes no events for a while."""

    away = False

    def append(self, *args: Any, **more: Any) -> None:
        if self.away:
            args[-1](Failed(Refused.AWAY))
        else:
            super().append(*args, **more)


@pytest.mark.parametrize("seconds", [2, 30])
async def test_it_is_accepted_when_it_is_in_the_record(autojump_clock, seconds):
    alpha, store = lasting(), Away(Limits(), trio.current_time)
    async with open_gateway(alpha, store=store) as gateway:
        client = await gateway.connect("alpha", **ASKING)
        _, request, asked, question = await asking(client, alpha)
        store.away = True
        posted = client.post({"id": question["id"], "result": GIVEN})
        await trio.sleep(seconds - 0.5)
        assert posted.status == (None if seconds < 5 else 503)
        assert answers(alpha, 0, asked) == [GIVEN]
        store.away = False
        await trio.sleep(2)
        again = client.post({"id": question["id"], "result": GIVEN})
        assert await again.head() == 202
        assert await posted.head() == (202 if seconds < 5 else 503)
        assert answers(alpha, 0, asked) == [GIVEN]
        request.text("done")


async def test_one_whose_call_can_t_go_on_is_accepted_at_once_and_the_call_hears_its_error(autojump_clock):
    alpha = lasting()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", **ASKING)
        call = client.begin("tools/call", {"name": "work"})
        request = await alpha.next()
        request.ask("roots/list", {})
        await client.respond(await call.next("roots/list"), GIVEN)
        one.kill(at_once=True)
        client.to(two)
        began = trio.current_time()
        rest = client.listen([e.id for e in call.events if e.id][-1])
        rest.id = call.id
        assert (await rest.error()).data["executed"] == "unknown"
        assert trio.current_time() - began < 15
