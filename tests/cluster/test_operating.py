"""What operators see of sessions by way of one replica, and how they end them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from actors.ports import Principal
from gateway.operating import Operator
from gateway.store.memory import MemoryStore
from tests.support.calls import reached
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import Backend
from tests.support.pooled import client as modern_client
from tests.support.pooled import echo

HELD = {"tools": ("echo", "slow"), "held": {"slow"}}


def http() -> Backend:
    return Backend("alpha", kind="http", **HELD)


async def ask(gateway: Gateway, what: str, name: str = "", **options: str) -> tuple[int, dict[str, Any]]:
    return await Operator(gateway.actors).ask(what, name, options)


async def listed(gateway: Gateway, **options: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The replicas, and all sessions, page by page."""
    replicas: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    cursor = ""
    while True:
        status, page = await ask(gateway, "list", cursor=cursor, **options)
        assert status == 200, page
        replicas += page.get("replicas", [])
        entries += page["sessions"]
        cursor = page.get("next", "")
        if not cursor:
            return replicas, entries


async def test_a_session_is_listed_with_what_it_does(autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        idle = await gateway.connect("alpha")
        await trio.sleep(7)
        busy = await gateway.connect("alpha", principal=Principal("ada"))
        call, request = await reached(busy, alpha)
        await trio.sleep(1)
        replicas, entries = await listed(gateway)
        [replica] = replicas
        assert (replica["alive"], replica["asked"]) == (True, True)
        by_principal = {entry["principal"]: entry for entry in entries}
        ada, anonymous = by_principal["ada"], by_principal["anonymous"]
        assert ada["handle"] == ada["key"][:12]
        assert (ada["endpoint"], ada["era"], ada["revision"], ada["state"]) == ("alpha", "legacy", busy.version, "live")
        assert (ada["in_flight"], ada["streams"], ada["idle"]) == (1, 1, 0)
        assert ada["owner"] == replica["incarnation"]
        assert (anonymous["in_flight"], anonymous["streams"], anonymous["idle"]) == (0, 0, 8)
        assert str(idle.session) not in str(entries)
        request.text("done")
        await call.result()


async def test_pages_have_all_and_each_once(autojump_clock):
    async with open_gateway(http()) as gateway:
        for _ in range(23):
            await gateway.connect("alpha")
        _, entries = await listed(gateway, limit="5")
        keys = [entry["key"] for entry in entries]
        assert keys == sorted(gateway.actors.sessions.table)
        status, page = await ask(gateway, "list", limit="5")
        assert len(page["sessions"]) == 5
        status, page = await ask(gateway, "list", limit="many")
        assert status == 400


async def test_to_be_looked_at_keeps_no_session_in_memory(autojump_clock):
    async with open_gateway(http(), passivate_after=10.0) as gateway:
        client = await gateway.connect("alpha")
        for _ in range(14):
            await trio.sleep(1.1)
            _, [entry] = await listed(gateway)
        assert not gateway.actors.sessions.table
        assert (entry["state"], entry["owner"], entry["endpoint"]) == ("at rest", None, "alpha")
        assert 14 <= entry["idle"] <= 16
        assert await client.tool("echo") == "alpha: echo"
        _, [entry] = await listed(gateway)
        assert entry["state"] == "live"


async def test_those_of_other_replicas_are_listed_by_their_records(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        await one.connect("alpha")
        client = await two.connect("alpha")
        client.begin("tools/call", {"name": "slow"})
        request = await alpha.next()
        await trio.sleep(1)
        replicas, entries = await listed(one)
        assert {replica["incarnation"]: replica["asked"] for replica in replicas} == {
            one.services.cluster.incarnation: True,
            two.services.cluster.incarnation: False,
        }
        by_owner = {entry["owner"]: entry for entry in entries}
        other = by_owner[two.services.cluster.incarnation]
        assert len(entries) == 2
        assert (other["state"], other["in_flight"], other["idle"]) == ("live", 1, None)
        assert other["key"] in two.actors.sessions.table
        two.kill()
        await trio.sleep(0.1)
        request.text("nobody hears it")


@pytest.mark.parametrize("digits", [6, 12, 32])
async def test_a_session_is_ended_by_its_handle_and_what_is_in_flight_gets_an_error(digits, autojump_clock):
    alpha = http()
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        [key] = gateway.actors.sessions.table
        assert await ask(gateway, "end", key[:digits]) == (200, {"key": key, "handle": key[:12], "ended": True})
        assert (await call.error()).code == -32603
        await gateway.settle()
        assert not gateway.actors.sessions.table
        assert await client.listen().head() == 404
        assert await ask(gateway, "end", key) == (404, {"error": "there is no such session"})


async def test_what_is_the_beginning_of_several_names_none_wherever_they_are(autojump_clock, monkeypatch):
    async with open_replicas(2, http()) as (one, _):
        client = await one.connect("alpha")
        [key] = one.actors.sessions.table
        other = key[:6] + "0" * 26
        monkeypatch.setattr(one.services.cluster, "owned", lambda who, cursor, done: done(([other], 0)))
        assert (await ask(one, "end", key[:6]))[0] == 409
        assert await client.tool("echo") == "alpha: echo"
        assert (await ask(one, "end", key[:12]))[0] == 200


async def test_a_session_at_rest_is_ended_too(autojump_clock):
    async with open_gateway(http(), passivate_after=1.0) as gateway:
        client = await gateway.connect("alpha", principal=Principal("ada"))
        await trio.sleep(5)
        assert not gateway.actors.sessions.table
        _, [entry] = await listed(gateway)
        status, body = await ask(gateway, "end", entry["handle"])
        assert status == 200, body
        assert await client.listen().head() == 404
        assert (await listed(gateway))[1] == []


# Moved -------------------------------------------------------------------------------------------------------


async def test_a_session_is_moved_to_another_replica_and_goes_on_there(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        [key] = one.actors.sessions.table
        assert await ask(one, "where", key) == (200, {"key": key, "owner": one.services.cluster.incarnation})
        status, body = await ask(one, "move", key[:12])
        assert (status, body.get("moved")) == (200, True), body
        await one.settle()
        assert not one.actors.sessions.table
        assert await ask(two, "where", key) == (200, {"key": key, "owner": None})
        status, body = await ask(two, "take", key)
        assert (status, body.get("to")) == (200, two.services.cluster.incarnation), body
        assert list(two.actors.sessions.table) == [key]
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert len(alpha.asked_for("initialize")) == 1


async def test_what_can_t_be_moved_is_said(autojump_clock):
    async with open_gateway(http()) as alone:
        await alone.connect("alpha")
        [key] = alone.actors.sessions.table
        assert await ask(alone, "move", key) == (409, {"error": "there is no other replica"})
        assert (await ask(alone, "move", key, to=alone.services.cluster.incarnation))[0] == 409
        assert (await ask(alone, "move", "0" * 32))[0] == 404
    async with open_replicas(2, http()) as (one, two):
        await one.connect("alpha")
        [key] = one.actors.sessions.table
        assert await ask(one, "move", key, to="nobody") == (409, {"error": "there is no such replica"})
        assert (await ask(one, "move", key, to=one.services.cluster.incarnation))[0] == 409
        assert (await ask(two, "take", key)) == (409, {"error": "another replica has it"})
        assert list(one.actors.sessions.table) == [key]


async def test_a_session_of_another_replica_is_taken_over_with_what_is_in_flight(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        await trio.sleep(1)
        [key] = one.actors.sessions.table
        status, body = await ask(two, "move", key[:12])
        assert (status, body.get("from")) == (200, one.services.cluster.incarnation), body
        assert (not one.actors.sessions.table, list(two.actors.sessions.table)) == (True, [key])
        assert (await call.error()).data["reason"] == "moved"
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert await ask(one, "where", key) == (200, {"key": key, "owner": two.services.cluster.incarnation})


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_a_session_is_moved_to_the_replica_that_is_named_whoever_is_asked(autojump_clock, asked):
    alpha = http()
    async with open_replicas(3, alpha) as replicas:
        one, two, _ = replicas
        client = await one.connect("alpha")
        [key] = one.actors.sessions.table
        names = [replica.services.cluster.incarnation for replica in replicas]
        status, body = await ask(replicas[asked], "move", key, to=names[1])
        assert (status, body) == (
            200,
            {"key": key, "handle": key[:12], "moved": True, "from": names[0], "to": names[1]},
        )
        await one.settle()
        assert [list(replica.actors.sessions.table) for replica in replicas] == [[], [key], []]
        assert await client.tool("echo") == "alpha: echo"
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"
        assert len(alpha.asked_for("initialize")) == 1


async def test_one_that_another_replica_takes_first_is_said_to_be_there(autojump_clock):
    async with open_replicas(3, http()) as (one, two, three):
        client = await one.connect("alpha")
        client.to(three)
        client.listen()
        await three.settle()
        [key] = one.actors.sessions.table
        named = two.services.cluster.incarnation
        one.store.replica.post_office = lambda to, letter: (2.0 if to == named else 0.0,)
        status, body = await ask(one, "move", key, to=named)
        assert (status, list(three.actors.sessions.table)) == (409, [key])
        assert three.services.cluster.incarnation in body["error"]


async def test_one_that_can_t_be_given_back_yet_stays_where_it_is(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        client = one.client("alpha")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await client.begin("initialize", params).result()
        [key] = one.actors.sessions.table
        assert (await ask(two, "move", key))[0] == 409
        assert list(one.actors.sessions.table) == [key]


async def test_a_session_of_another_replica_is_ended(autojump_clock):
    alpha = http()
    async with open_replicas(2, alpha) as (one, two):
        client = await one.connect("alpha")
        call = client.begin("tools/call", {"name": "slow"})
        await alpha.next()
        [key] = one.actors.sessions.table
        assert await ask(two, "end", key[:8]) == (200, {"key": key, "handle": key[:12], "ended": True})
        assert (await call.error()).code == -32603
        assert not one.actors.sessions.table
        assert not two.actors.sessions.table
        assert await client.listen().head() == 404


async def test_names_that_mean_nothing_or_too_much_are_refused(autojump_clock, monkeypatch):
    async with open_gateway(http()) as gateway:
        for name in ("", "abc", "x" * 12, "../..", "0" * 33):
            assert (await ask(gateway, "end", name))[0] == 400
        assert (await ask(gateway, "end", "0" * 12))[0] == 404
        assert (await ask(gateway, "dance", "0" * 12))[0] == 404
        await gateway.connect("alpha")
        [key] = gateway.actors.sessions.table
        twin = key[:31] + ("0" if key[31] != "0" else "1")
        gateway.actors.sessions.table[twin] = gateway.actors.sessions.table[key]
        assert (await ask(gateway, "end", key[:12]))[0] == 409
        del gateway.actors.sessions.table[twin]


async def test_a_store_that_is_away_is_an_answer(autojump_clock, monkeypatch):
    async with open_gateway(http()) as gateway:
        assert isinstance(gateway.store, MemoryStore)
        monkeypatch.setattr(gateway.store, "replicas", lambda done: None)
        status, body = await ask(gateway, "list")
        assert (status, "took too long" in body["error"]) == (503, True)


async def modern(gateway: Gateway) -> int:
    """The modern clients of all pages."""
    found, cursor = 0, ""
    while True:
        _, page = await ask(gateway, "list", cursor=cursor)
        found, cursor = found + page.get("modern", 0), page.get("next", "")
        if not cursor:
            return found


async def test_clients_without_sessions_are_counted_once_whichever_replica_they_come_to(autojump_clock):
    async with open_replicas(2, http()) as (one, two):
        await one.connect("alpha")
        for gateway in (one, two):
            await echo(modern_client(gateway))
        await echo(modern_client(two, Principal("ada")))
        for gateway in (one, two):
            _, entries = await listed(gateway)
            assert [entry["era"] for entry in entries] == ["legacy"]
            assert await modern(gateway) == 2
        two.kill()
        await trio.sleep(5)
        assert await modern(one) == 1
