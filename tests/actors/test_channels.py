"""Channels whose messages may be posted to any replica: they arrive once, and nobody speaks on another's."""

from __future__ import annotations

import pytest
import trio

from actors.ports import ANONYMOUS, Principal
from tests.support.harness import open_gateway, open_replicas
from tests.support.mcp_backend import Backend

ANN, BOB = Principal("ann"), Principal("bob")


async def test_any_replica_brings_a_message_to_the_one_that_has_the_channel(autojump_clock):
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, messages):
            for replica in (one, other, other):
                assert await replica.actors.channels.say(token, ANN, b"x") == 202
            assert [await messages.receive() for _ in range(3)] == [b"x"] * 3
            for replica in (one, other):
                assert await replica.actors.channels.say(token, BOB, b"x") == 404
                assert await replica.actors.channels.say(token, ANONYMOUS, b"x") == 404
        for replica in (one, other):
            assert await replica.actors.channels.say(token, ANN, b"x") == 404


async def test_what_nobody_has_sealed_names_nothing(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway:
        with gateway.actors.channels.opened(ANN) as (token, _):
            for wrong in ("", "x", token[:-2], token + "A", token.swapcase(), "ä", "x" * 100_000):
                assert await gateway.actors.channels.say(wrong, ANN, b"x") == 404


async def test_more_than_waits_on_a_channel_is_refused_for_now(autojump_clock):
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, messages):
            statuses = [await replica.actors.channels.say(token, ANN, b"x") for replica in [one, other] * 40]
            assert set(statuses) == {202, 503}
            for _ in range(statuses.count(202)):
                assert await messages.receive() == b"x"
            with pytest.raises(trio.WouldBlock):
                messages.receive_nowait()


async def test_the_channel_of_a_dead_replica_is_gone(autojump_clock):
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, _):
            one.kill()
            await trio.sleep(10)
            assert await other.actors.channels.say(token, ANN, b"x") in (404, 503)
