"""The same over a real Redis, and over a real Redis Cluster: two replicas in this process, each with a connection and a
lease of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from actors.protocol.table import Limits
from gateway.operating import Operator
from gateway.store.redis import open_redis_store
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.pooled import client as modern_client
from tests.support.pooled import echo
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import MISSING, RedisServer, installed
from tests.support.store_calls import Lines

PATIENCE = 60.0
"""Seconds in which a wait ends that ends at all."""


@pytest.fixture(scope="module", params=[RedisServer, RedisCluster], ids=["one node", "three nodes"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | RedisCluster]:
    if not installed():
        pytest.skip(MISSING)
    with request.param() as running:
        yield running


@asynccontextmanager
async def replicas(server: RedisServer | RedisCluster, alpha: Backend) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(open_redis_store(server.url, Limits(), log=Lines(), on_lost=pytest.fail))
            for _ in range(2)
        ]
        yield [await stack.enter_async_context(open_gateway(alpha, store=store)) for store in stores]


def slow(**more: Any) -> Backend:
    return Backend("alpha", kind="http", tools=("echo", "slow"), held={"slow"}, **more)


async def test_an_answer_a_stream_and_a_question_come_by_mail(server: RedisServer | RedisCluster) -> None:
    alpha = slow()
    async with replicas(server, alpha) as (one, two):
        with trio.fail_after(PATIENCE):
            client = await one.connect("alpha", capabilities={"elicitation": {}})
            client.to(two)
            call = client.begin("tools/call", {"name": "slow"}, progress="t")
            request = await alpha.next()
            for step in range(3):
                request.progress(step)
            asked = request.ask("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}})
            await client.respond(await call.next("elicitation/create"), {"action": "decline"})
            assert (await asked.outcome())["result"] == {"action": "decline"}
            large = "x" * 200_000
            request.text(large)
            assert (await call.result())["content"][0]["text"] == large
            await call.end()
            assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [0, 1, 2]
            assert await client.tool("echo", text=large) == f"alpha: {large}"
            assert await client.delete() == 200
            assert await client.begin("tools/list").head() == 404
            assert len(one.actors.sessions.table) == len(two.actors.sessions.table) == 0


async def test_a_get_stream_is_resumed_at_the_other_replica(server: RedisServer | RedisCluster) -> None:
    alpha = slow()
    async with replicas(server, alpha) as (one, two):
        with trio.fail_after(PATIENCE):
            client = await one.connect("alpha")
            await client.tool("echo")
            stream = client.listen()
            await stream.head()
            alpha.upstream.notify("notifications/tools/list_changed")
            await stream.next("notifications/tools/list_changed")
            stream.drop()
            await stream.end()
            client.to(two)
            rest = client.listen(stream.events[-1].id)
            await rest.head()
            alpha.upstream.notify("notifications/prompts/list_changed")
            await rest.next("notifications/prompts/list_changed")
            assert not rest.seen("notifications/tools/list_changed")
            await client.delete()


async def test_operators_see_sessions_and_modern_clients_of_both_replicas_at_either(
    server: RedisServer | RedisCluster,
) -> None:
    alpha = slow()
    async with replicas(server, alpha) as (one, two):
        with trio.fail_after(PATIENCE):
            await (await one.connect("alpha")).tool("echo")
            await (await two.connect("alpha")).tool("echo")
            await echo(modern_client(two))
            for gateway in (one, two):
                entries, modern, cursor = list[Any](), 0, ""
                while True:
                    status, page = await Operator(gateway.actors).ask("list", "", {"cursor": cursor})
                    assert status == 200, page
                    entries, modern = entries + page["sessions"], modern + page.get("modern", 0)
                    cursor = page.get("next", "")
                    if not cursor:
                        break
                owners = {one.services.cluster.incarnation, two.services.cluster.incarnation}
                assert {entry["owner"] for entry in entries if entry["state"] == "live"} == owners
                assert modern == 1
