"""With what rights something is asked: those of the token that came with this very message, all the way down."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.duplex import Duplex
from actors.ports import NO_RIGHTS, Principal, Rights
from tests.support.door_client import Client
from tests.support.duplex_client import Wire
from tests.support.harness import open_gateway, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.modern_client import ModernClient

ANN = Principal("ann")
FIRST = Rights("https://idp.test", "ann", "app", frozenset({"dev"}), frozenset({"read"}), 100.0)
FRESH = Rights("https://idp.test", "ann", "app", frozenset({"dev", "ops"}), frozenset({"read", "write"}), 200.0)


def asked_with(backend: Backend) -> list[Rights]:
    """Of each tool call that the server was sent, in order."""
    return [sent.rights for one in backend.upstreams for sent in one.transport.sent if sent.method == "tools/call"]


async def test_each_message_of_a_session_has_the_rights_of_its_own_token(autojump_clock: Any) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = gateway.client("alpha", ANN)
        client.rights = FIRST
        await client.initialize()
        for rights in (FIRST, FRESH, NO_RIGHTS, FIRST):
            client.rights = rights
            await client.tool("echo", text="x")
        assert asked_with(alpha) == [FIRST, FRESH, NO_RIGHTS, FIRST]


async def test_a_session_that_comes_back_has_no_rights_but_those_of_its_next_message(autojump_clock: Any) -> None:
    alpha = Backend("alpha", kind="http")
    async with open_replicas(2, alpha) as (one, two):
        client = one.client("alpha", ANN)
        client.rights = FIRST
        await client.initialize()
        await client.tool("echo", text="x")
        one.kill()
        client.to(two)
        client.rights = FRESH
        await client.tool("echo", text="x")
        assert asked_with(alpha) == [FIRST, FRESH]


async def test_rights_go_by_mail_with_each_letter(autojump_clock: Any) -> None:
    alpha = Backend("alpha", kind="http")
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha", ANN)
        client.to(two)
        for rights in (FIRST, FRESH):
            client.rights = rights
            await client.tool("echo", text="x")
        assert asked_with(alpha) == [FIRST, FRESH]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_modern_request_has_the_rights_of_its_token_also_in_a_pool_elsewhere(
    autojump_clock: Any, replicas: int
) -> None:
    alpha = Backend("alpha")
    async with open_replicas(replicas, alpha) as gateways:
        for gateway, rights in zip([gateways[0], gateways[-1], gateways[0]], (FIRST, FRESH, NO_RIGHTS), strict=True):
            client = ModernClient(gateway.door, gateway.nursery, "alpha", ANN)
            client.rights = rights
            await client.begin("tools/call", {"name": "echo", "arguments": {"text": "x"}}).result()
        assert asked_with(alpha) == [FIRST, FRESH, NO_RIGHTS]


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
async def test_each_message_of_a_channel_has_the_rights_that_it_was_said_with(
    autojump_clock: Any, modern: bool
) -> None:
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        wire = Wire()
        gateway.nursery.start_soon(Duplex(gateway.door, gateway.services.limits), wire, "alpha", ANN)
        if not modern:
            await wire.initialize()
        for id, rights in enumerate((FIRST, FRESH), 1):
            wire.rights = rights
            await wire.call(id, "tools/call", {"name": "echo", "arguments": {"text": "x"}}, modern=modern)
        wire.hang_up()
        assert asked_with(alpha) == [FIRST, FRESH]


async def test_messages_that_come_by_post_bring_their_rights_to_the_channel_wherever_it_is(
    autojump_clock: Any,
) -> None:
    async with open_replicas(2, Backend("alpha")) as [one, other]:
        with one.actors.channels.opened(ANN, FIRST) as (token, messages):
            assert messages.rights == FIRST
            for replica, rights in ((one, FRESH), (other, NO_RIGHTS), (other, FRESH)):
                assert await replica.actors.channels.say(token, ANN, b"x", rights) == 202
                await messages.receive()
                assert messages.rights == rights


async def test_rights_say_nothing_of_whose_a_session_is(autojump_clock: Any) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect("alpha", ANN)
        other = Client(gateway.door, gateway.nursery, "alpha", Principal("bob"))
        other.session, other.rights, client.rights = client.session, FIRST, FRESH
        assert await other.begin("tools/list").head() == 404
        assert await client.begin("tools/list").result()


async def test_a_subscription_ends_in_order_with_its_token_and_begins_again_with_a_fresh_one(
    autojump_clock: Any,
) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        now = gateway.services.wall()
        client = ModernClient(gateway.door, gateway.nursery, "alpha", ANN)
        client.rights = Rights("https://idp.test", "ann", expiry=now + 100)
        listening = client.listen(tools=True)
        await listening.head()
        await trio.sleep(155)
        assert not listening.done
        await trio.sleep(10)
        assert listening.done
        assert (await listening.result())["resultType"] == "complete"
        client.rights = Rights("https://idp.test", "ann", expiry=now + 1000)
        again = client.listen(tools=True)
        assert await again.head() == 200
        await trio.sleep(1)
        assert not again.done
