"""Replicas of two versions, of which one writes records that the other can't read."""

from __future__ import annotations

from typing import Any

import trio

from actors.ports import Failed, Refused
from tests.actors.test_continued import back, begun
from tests.support.harness import Gateway, open_replica_maker
from tests.support.mcp_backend import Backend

NEWER = {"schema": [1, 2]}


def http(**more: Any) -> Backend:
    return Backend("alpha", kind="http", **more)


def reads_less(gateway: Gateway) -> None:
    """All records are too new for it."""
    too_new = Failed(Refused.TOO_NEW, head=2)
    gateway.store.read = lambda key, done: done(too_new)  # type: ignore[method-assign]
    gateway.store.claim = lambda *given: given[-1](too_new)  # type: ignore[method-assign]


async def test_who_can_t_read_a_record_hands_the_message_to_one_that_can(autojump_clock: Any) -> None:
    async with open_replica_maker(http()) as start:
        older, newer, other = await start(), await start(info=NEWER), await start(info=NEWER)
        reads_less(older)
        for home in (newer, other):  # and whoever gets it first says who owns it
            for _ in range(4):
                client = await home.connect("alpha")
                client.to(older)
                assert await client.tool("echo") == "alpha: echo"
                assert len(home.actors.sessions.table) > 0
        assert len(older.actors.sessions.table) == 0


async def test_where_nobody_can_the_client_is_to_come_again(autojump_clock: Any) -> None:
    async with open_replica_maker(http()) as start:
        older, newer, same = await start(), await start(info=NEWER), await start()
        client = await newer.connect("alpha")
        reads_less(older)
        client.to(older)
        newer.kill(at_once=True)
        call = client.begin("tools/call", {"name": "echo"})
        assert await call.head() == 503
        assert "can't read" in str(await call.error())
        client.to(same)
        assert await client.tool("echo") == "alpha: echo"


async def test_work_that_can_t_be_read_is_left_to_those_who_can(autojump_clock: Any) -> None:
    alpha = http(tools=("echo", "work"), held={"work"})
    async with open_replica_maker(alpha) as start:
        older, newer = await start(), await start(info=NEWER)
        client = await newer.connect("alpha")
        call, story = await begun(client, alpha, "work")
        reads_less(older)
        newer.kill()
        await trio.sleep(20)
        next_ = await start(info=NEWER)
        await trio.sleep(20)
        assert next_.telemetry.total("stagedoor_takeovers_total", "takeover") == 1
        story.result("done")
        client.to(next_)
        answer = await back(client, call).response()
        assert answer["result"]["content"][0]["text"] == "done"


async def test_so_is_the_end_of_a_session_at_rest(autojump_clock: Any) -> None:
    alpha = http()
    async with open_replica_maker(alpha, idle_ttl=600.0) as start:
        older, newer = await start(), await start(info=NEWER)
        client = await newer.connect("alpha")
        await client.tool("echo")
        await trio.sleep(100)
        reads_less(older)
        newer.kill()
        await trio.sleep(700)
        next_ = await start(info=NEWER)
        assert len(next_.store.records()) == 1  # type: ignore[attr-defined]
        await trio.sleep(60)
        assert next_.store.records() == {}  # type: ignore[attr-defined]
        assert alpha.upstream.transport.closed
