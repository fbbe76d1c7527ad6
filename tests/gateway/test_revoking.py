"""An operator takes the access from somebody: all replicas go by it, and a store that forgets gives nothing back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors.ports import Asker, Failed, Principal, Refused, Rights
from actors.protocol.issuers import Issuer
from actors.protocol.rights import SKEW, STATIC, principal_id
from gateway.config import Auth
from gateway.revoking import EVERY, KEY, NotRevokedError, Revoked, operate_principal
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend

NAME = principal_id("https://idp.test", "ann")
NOW = 1_800_000_000.0


def ann(issued: float | None, name: str = NAME) -> Asker:
    return Asker(Principal(name), Rights("https://idp.test", "ann"), issued)


@asynccontextmanager
async def revoking(*gateways: Gateway) -> AsyncIterator[list[Revoked]]:
    found: list[Revoked] = []
    async with trio.open_nursery() as nursery:
        for gateway in gateways:
            revoked = Revoked(gateways[0].store.shelf, gateway.actors, gateway.log, lambda: NOW)  # type: ignore[attr-defined]
            nursery.start_soon(revoked.run)
            found.append(revoked)
        yield found
        nursery.cancel_scope.cancel()


async def test_every_replica_refuses_old_tokens_and_takes_new_ones(autojump_clock: Any) -> None:
    async with open_replicas(2, Backend("alpha")) as gateways, revoking(*gateways) as (one, two):
        assert not one.revoked(ann(NOW))
        await one.revoke(NAME)
        await trio.sleep(EVERY + 0.1)
        for replica in (one, two):
            assert replica.revoked(ann(NOW - 1))
            assert replica.revoked(ann(NOW + SKEW))  # its issuer's clock may be ahead
            assert replica.revoked(ann(None))
            assert replica.revoked(ann(NOW - 1, f"{NAME}:3:app"))  # of one client
            assert not replica.revoked(ann(NOW + SKEW + 1))
            assert not replica.revoked(Asker(Principal("ann"), Rights(STATIC, "ann")))
        await two.restore(NAME)
        await trio.sleep(EVERY + 0.1)
        assert not one.revoked(ann(NOW - 1))


async def test_it_is_told_whether_there_is_such_a_principal(autojump_clock: Any) -> None:
    auth = Auth(tokens=(("ci", "token"),), issuers=(Issuer("https://idp.test"),))
    async with open_replicas(1, Backend("alpha")) as gateways, revoking(*gateways) as (one,):
        for name, known in (
            ("ci", True),
            ("cj", False),
            (NAME, True),
            (principal_id("https://idp.tset", "ann"), False),
        ):
            status, told = await operate_principal(one, "revoke", name, auth)
            assert (status, told) == (200, {"principal": name, "revoked": True, "known": known})


async def test_a_configured_token_is_refused_until_it_is_restored(autojump_clock: Any) -> None:
    ci = Asker(Principal("ci"), Rights(STATIC, "ci"))
    async with open_replicas(1, Backend("alpha")) as gateways, revoking(*gateways) as (one,):
        await one.revoke("ci")
        assert one.revoked(ci)
        await one.restore("ci")
        assert not one.revoked(ci)


async def test_all_sessions_end_on_every_replica(autojump_clock: Any) -> None:
    async with open_replicas(2, Backend("alpha")) as gateways, revoking(*gateways) as (one, _):
        clients = [await gateway.connect("alpha", Principal(NAME)) for gateway in gateways for _ in range(3)]
        other = await gateways[1].connect("alpha", Principal("bob"))
        await one.revoke(NAME)
        await trio.sleep(2 * EVERY)
        for client in clients:
            assert await client.begin("tools/list").head() == 404
        await other.tool("echo", text="x")


async def test_a_store_that_has_lost_them_is_told_again(autojump_clock: Any) -> None:
    async with open_replicas(2, Backend("alpha")) as gateways, revoking(*gateways) as (one, two):
        shelf = gateways[0].store.shelf  # type: ignore[attr-defined]
        await one.revoke(NAME)
        await trio.sleep(EVERY + 0.1)
        await shelf.take(KEY)
        await trio.sleep(EVERY + 0.1)
        assert two.revoked(ann(NOW - 1))
        assert await shelf.read(KEY) is not None
        assert [gateway.log.events("revocations_lost") for gateway in gateways] != [[], []]
        await shelf.take(KEY)
        await two.revoke("bob")  # at once, before anybody has looked
        await trio.sleep(EVERY + 0.1)
        assert one.revoked(ann(NOW - 1))


async def test_16_a_store_that_goes_on_from_an_older_state_is_told_what_it_lacks(autojump_clock: Any) -> None:
    async with open_replicas(2, Backend("alpha")) as gateways, revoking(*gateways) as (one, two):
        shelf = gateways[0].store.shelf  # type: ignore[attr-defined]
        await one.revoke("bob")
        older = await shelf.read(KEY)
        await one.revoke(NAME)
        await two.restore("bob")
        await trio.sleep(EVERY + 0.1)
        await shelf.put(KEY, older.value, 1000.0)
        await trio.sleep(EVERY + 0.1)
        bob = Asker(Principal("bob"), Rights(STATIC, "bob"))
        for replica in (one, two):
            assert replica.revoked(ann(NOW - 1))
            assert not replica.revoked(bob)  # nor is anybody's access taken who got it back
        latest = json.loads((await shelf.read(KEY)).value)
        assert (latest[NAME] > 0, latest["bob"] < 0) == (True, True)
        await shelf.put(KEY, older.value, 1000.0)
        await two.revoke("carl")  # at once, before anybody has looked
        await trio.sleep(EVERY + 0.1)
        assert one.revoked(ann(NOW - 1))
        assert not one.revoked(bob)


async def test_what_the_store_does_not_take_is_said(autojump_clock: Any) -> None:
    class Away:
        async def read(self, key: str) -> Failed:
            await trio.lowlevel.checkpoint()
            return Failed(Refused.AWAY)

    async with open_replicas(1, Backend("alpha")) as (gateway,):
        revoked = Revoked(Away(), gateway.actors, gateway.log, lambda: NOW)  # type: ignore[arg-type]
        with pytest.raises(NotRevokedError):
            await revoked.revoke(NAME)


async def test_who_is_revoked_while_the_store_is_told_again_has_no_access_in_between(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_replicas(1, Backend("alpha")) as gateways, revoking(*gateways) as (one,):
        shelf = gateways[0].store.shelf  # type: ignore[attr-defined]
        put = shelf.put
        await one.revoke(NAME)

        async def meanwhile(*given: Any, **more: Any) -> Any:
            monkeypatch.setattr(shelf, "put", put)
            await one.revoke("ci")
            return await put(*given, **more)

        await shelf.take(KEY)
        monkeypatch.setattr(shelf, "put", meanwhile)
        await trio.sleep(1.5 * EVERY)
        assert shelf.put is put
        assert one.revoked(Asker(Principal("ci"), Rights(STATIC, "ci")))
