"""What an owner has to say while the inbox of a holder is full, or the store is away: it comes later, and in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from actors.cluster import letters as lt
from actors.cluster import owner
from actors.cluster.owner import RETRY
from actors.ports import Failed, Refused
from tests.cluster.test_mail import elsewhere, http, numbers, pair
from tests.support.calls import reached, streaming
from tests.support.harness import Gateway
from tests.support.mcp_backend import Backend

WHY = pytest.mark.parametrize("reason", [Refused.INBOX_FULL, Refused.AWAY])


class Office:
    """Where a replica posts its letters: it may be shut for this reason; some come in all the same."""

    def __init__(self, gateway: Gateway, reason: Refused) -> None:
        self.shut = False
        self.comes_in: Callable[[lt.Letter], bool] = lambda _: False
        """Of a letter that is refused, whether it is there after all."""
        self.taken: list[lt.Letter] = []
        self.refused: list[lt.Letter] = []
        post = gateway.store.post  # type: ignore[attr-defined]

        def posted(to: str, data: bytes, done: Any) -> None:
            letter = lt.decode(data)
            if not self.shut:
                self.taken.append(letter)
                post(to, data, done)
                return
            self.refused.append(letter)
            if self.comes_in(letter):
                post(to, data, lambda _: None)
            done(Failed(reason))

        gateway.store.post = posted  # type: ignore[attr-defined]

    def indices(self) -> list[int]:
        """Of the events that were taken."""
        return [letter.body.index for letter in self.taken if isinstance(letter.body, lt.Events)]


def slow() -> Backend:
    return http(tools=("echo", "slow"), held={"slow"})


def executions(alpha: Backend) -> int:
    return len(alpha.asked_for("tools/call"))


@WHY
async def test_an_answer_comes_as_soon_as_there_is_room(autojump_clock, reason):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        office = Office(one, reason)
        office.shut = True
        call = client.begin("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
        await trio.sleep(3)
        assert not call.messages
        assert len(office.refused) == 3 / RETRY, "it is tried again, now and then"
        office.shut = False
        assert (await call.result())["content"][0]["text"] == "alpha: hi"
        assert executions(alpha) == 1


@WHY
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_events_come_in_their_order_whatever_was_refused_when(autojump_clock, reason, version):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, version=version)
        call, request = await streaming(client, alpha, 0)
        office = Office(one, reason)
        office.shut = True
        for step in range(1, 10):
            request.progress(step)
            await trio.sleep(RETRY / 4)
        office.shut = False
        request.text("done")
        await call.result()
        assert office.indices() == sorted(office.indices())
        assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [*range(10)]
        assert numbers(call) == [*range(1, len(numbers(call)) + 1)]


async def test_what_was_refused_late_goes_before_what_was_held_back_meanwhile(autojump_clock):
    """Outcomes of posts come one after the other, and letters are written between them."""
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await streaming(client, alpha, 0)
        office = Office(one, Refused.INBOX_FULL)
        post, late = one.store.post, []  # type: ignore[attr-defined]

        def outcomes_come_late(to: str, data: bytes, done: Any) -> None:
            post(to, data, late.append if office.shut else done)
            if office.shut:
                late.append(done)

        one.store.post = outcomes_come_late  # type: ignore[attr-defined]
        office.shut = True
        for step in (1, 2):
            request.progress(step)
            await one.settle()
        failed, first, _, second = late
        first(failed)
        await one.settle()
        request.progress(3)
        await one.settle()
        second(failed)
        await one.settle()
        office.shut = False
        request.text("done")
        await call.result()
        assert office.indices() == sorted(office.indices())
        assert len(office.indices()) == 4


async def test_what_had_come_in_all_the_same_is_heard_once(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        office = Office(one, Refused.AWAY)
        office.comes_in = lambda _: True
        call, request = await reached(client, alpha, progress="t")
        for step in range(10):
            office.shut = step % 2 == 0
            request.progress(step)
            await trio.sleep(RETRY / 3)
        request.text("done")
        await call.result()
        await call.end()
        assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [*range(10)]
        assert numbers(call) == [*range(1, len(numbers(call)) + 1)]
        assert len([m for m in call.messages if "method" not in m]) == 1


async def test_more_than_has_room_is_dropped_and_found_in_the_log(autojump_clock, monkeypatch):
    monkeypatch.setattr(owner, "HELD_BACK", 3)
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await streaming(client, alpha, 0)
        office = Office(one, Refused.INBOX_FULL)
        office.shut = True
        for step in range(1, 10):
            request.progress(step)
            await one.settle()
        request.text("done")
        await trio.sleep(RETRY / 2)
        office.shut = False
        with trio.fail_after(15):
            await call.result()
        assert len(office.indices()) == 3
        assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [*range(10)]


@WHY
async def test_what_is_for_a_dead_holder_is_kept_no_longer(autojump_clock, reason):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        before = one.left()
        office = Office(one, reason)
        office.shut = True
        calls = [client.begin("tools/call", {"name": "echo"}) for _ in range(5)]
        await trio.sleep(2.2 * RETRY)
        two.kill(at_once=True)
        await trio.sleep(1)
        tries = len(office.refused)
        await trio.sleep(5)
        assert len(office.refused) == tries
        assert one.left() == before
        assert not any(call.messages for call in calls)


async def test_a_holder_that_is_found_dead_by_a_letter_is_sent_no_more(autojump_clock):
    alpha = slow()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        _, request = await streaming(client, alpha, 0)
        office = Office(one, Refused.DEAD)
        office.shut = True
        request.progress(1)
        await one.settle()
        assert len(office.refused) == 1
        request.progress(2)
        request.text("done")
        await trio.sleep(5)
        assert len(office.refused) == 1, "nobody reads there"
        assert executions(alpha) == 1
