"""Channels whose messages may be posted to any replica: they arrive once, and nobody speaks on another's."""

from __future__ import annotations

import trio
import trio.testing

from actors.cluster.channels import WAITING, Messages
from actors.machines.cluster import lease
from actors.ports import ANONYMOUS, NO_RIGHTS, Principal
from tests.support.harness import open_gateway, open_replicas
from tests.support.mcp_backend import Backend

ANN, BOB = Principal("ann"), Principal("bob")


async def received(messages: Messages, many: int) -> list[bytes | None]:
    """The next ones, which must be there or on their way."""
    with trio.fail_after(10):
        return [await messages.receive() for _ in range(many)]


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
            assert not messages.waiting


async def test_the_channel_of_a_dead_replica_is_gone(autojump_clock):
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, _):
            one.kill()
            await trio.sleep(10)
            assert await other.actors.channels.say(token, ANN, b"x") in (404, 503)


async def test_a_replica_whose_lease_has_lapsed_keeps_its_channels(autojump_clock):
    async with open_replicas(3, Backend("alpha")) as [one, other, _]:
        with one.actors.channels.opened(ANN) as (token, messages):
            for _ in range(2):
                await one.pause()
                await trio.sleep(60)
                await one.resume()
                await trio.sleep(10)
                for body in (b"x", b"y"):
                    assert await other.actors.channels.say(token, ANN, body) == 202
                    assert await messages.receive() == body
            assert await other.actors.channels.say(token, BOB, b"x") == 404
        assert await other.actors.channels.say(token, ANN, b"x") == 404


async def test_a_channel_is_not_gone_for_one_reading_that_finds_no_lease(autojump_clock):
    """Redis may have lost it: whoever has the channel comes back with another name in a moment."""
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, messages):
            one.store.replica.cut_off()
            await trio.sleep(lease.TTL + 0.1)
            assert await other.actors.channels.say(token, ANN, b"x") == 503
            one.store.replica.resume()
            await trio.sleep(1)
            assert await other.actors.channels.say(token, ANN, b"y") == 202
            assert await messages.receive() == b"y"
            assert not messages.waiting


async def test_what_a_replica_that_stands_still_has_not_read_is_refused_and_does_not_come_later(autojump_clock):
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, messages):
            await one.pause()
            assert await other.actors.channels.say(token, ANN, b"x") == 503
            await one.resume()
            await trio.sleep(10)
            assert not messages.waiting


async def test_where_the_answer_is_lost_nobody_knows(autojump_clock):
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN) as (token, messages):
            one.store.replica.post_office = lambda to, letter: ()
            assert await other.actors.channels.say(token, ANN, b"x") == 504
            assert await messages.receive() == b"x"


async def test_large_messages_that_wait_have_a_bound_over_all_channels(autojump_clock):
    async with open_gateway(Backend("alpha"), bodies_bytes=250_000) as gateway:
        channels, body = gateway.actors.channels, b"x" * 100_000
        with channels.opened(ANN) as (token, messages):
            with channels.opened(BOB) as (bobs, _):
                assert await channels.say(bobs, BOB, body) == 202
                assert [await channels.say(token, ANN, body) for _ in range(2)] == [202, 503]
                assert await channels.say(token, ANN, b"small") == 202
            assert await channels.say(token, ANN, body) == 202
            for _ in range(3):
                await messages.receive()
        assert channels.held == 0


async def test_a_message_that_finds_a_channel_full_waits_for_a_place_and_nobody_comes_before_it(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway:
        channels, statuses = gateway.actors.channels, dict[bytes, int]()
        with channels.opened(ANN) as (token, messages):

            async def say(body: bytes) -> None:
                statuses[body] = await channels.say(token, ANN, body)

            for _ in range(WAITING):
                assert channels.say_here(token, ANN, b"x", NO_RIGHTS, "")
            async with trio.open_nursery() as nursery:
                for body in (b"1", b"2", b"3"):
                    nursery.start_soon(say, body)
                    await trio.testing.wait_all_tasks_blocked()
                assert statuses == {}
                assert await received(messages, 2) == [b"x"] * 2
                assert not channels.say_here(token, ANN, b"early", NO_RIGHTS, "")
                await trio.testing.wait_all_tasks_blocked()
                assert statuses == {b"1": 202, b"2": 202}
                assert await received(messages, WAITING - 2) == [b"x"] * (WAITING - 2)
            assert statuses[b"3"] == 202
            assert channels.say_here(token, ANN, b"4", NO_RIGHTS, "")
            assert await received(messages, 4) == [b"1", b"2", b"3", b"4"]


async def test_who_waits_for_a_place_is_told_what_became_of_the_channel(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway:
        channels, statuses = gateway.actors.channels, list[int]()

        async def say(token: str, body: bytes) -> None:
            statuses.append(await channels.say(token, ANN, body))

        async with trio.open_nursery() as nursery:
            with channels.opened(ANN) as (token, messages):
                for _ in range(WAITING):
                    await say(token, b"x")
                await say(token, b"late")
                assert statuses[WAITING:] == [503]
                with trio.move_on_after(1):
                    await say(token, b"gone")
                nursery.start_soon(say, token, b"y")
                await trio.testing.wait_all_tasks_blocked()
                # and not what was refused, or whose client has left
                assert await received(messages, WAITING + 1) == [b"x"] * WAITING + [b"y"]
                assert not messages.waiting
                for _ in range(WAITING):
                    await say(token, b"x")
                nursery.start_soon(say, token, b"z")
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert statuses[-1] == 404
