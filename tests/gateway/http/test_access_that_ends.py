"""What is open when a token ends, or the access of its bearer is taken away: on every transport, with the real verifier
and the real edge. Attack 16 of the threat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from actors.ports import Rights
from actors.protocol.issuers import Introspection, Issuer
from actors.protocol.policy import Policy, Rule, Who, item
from actors.protocol.rights import SKEW, principal_id
from actors.protocol.table import Limits
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.verified import BASE, ISSUER, Site, Socket, verified
from tests.support.wire_client import WireClient
from tests.support.wire_http import Exchange

KEEP_ALIVE = Limits().keep_alive
ANN = principal_id(ISSUER, "ann")
LIFE = 100.0

Open = Callable[[], AbstractAsyncContextManager[tuple[Site, Backend]]]


@pytest.fixture
def site() -> Open:
    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Site, Backend]]:
        alpha = Backend("alpha", tools=("echo", "slow"), held={"slow"})
        async with open_gateway(alpha) as gateway, verified(gateway) as found:
            yield found, alpha

    return opened


async def connected(site: Site, token: str) -> WireClient:
    client = WireClient(site.http, "/mcp/alpha", token=token)
    await client.connect()
    return client


def sse(site: Site, token: str) -> Exchange:
    return site.http.begin("GET", "/sse/alpha", [("accept", "text/event-stream"), ("authorization", f"Bearer {token}")])


async def begun(alpha: Backend) -> Any:
    """The call that the server has in hand."""
    while (request := await alpha.next("tools/call")).params["name"] != "slow":
        pass
    return request


# The token ends


async def test_16_a_websocket_ends_with_its_token(autojump_clock: Any, site: Open) -> None:
    async with site() as (at, alpha):
        socket = await at.socket("/ws/alpha", at.token("ann", LIFE))
        await socket.initialize()
        assert "result" in await socket.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "x"}})
        await trio.sleep(LIFE + SKEW - 1)
        assert not socket.over.is_set()
        socket.say(2, "tools/call", {"name": "slow", "arguments": {}})
        request = await begun(alpha)
        await trio.sleep(2)
        socket.say(3, "tools/call", {"name": "echo", "arguments": {"text": "late"}})
        request.text("done")  # what was under way may finish
        assert (await socket.next())["id"] == 2
        with trio.fail_after(60):
            await socket.over.wait()
        assert socket.closed == 1008
        assert [r.params["arguments"] for r in alpha.asked_for("tools/call")] == [{"text": "x"}, {}]


async def test_16_a_websocket_ends_with_its_token_also_while_a_call_runs(autojump_clock: Any, site: Open) -> None:
    """Nobody waits for its client then. What is under way has as long as in a drain, and is told that it had no more:
    not that the gateway ends."""
    async with site() as (at, alpha):
        socket = await at.socket("/ws/alpha", at.token("ann", LIFE))
        await socket.initialize()
        await trio.sleep(LIFE + SKEW - 1)
        socket.say(2, "tools/call", {"name": "slow", "arguments": {}})
        await begun(alpha)
        with trio.fail_after(1 + Limits().drain_deadline + 1):
            error = (await socket.next())["error"]
            await socket.over.wait()
        assert error["message"] == "Internal error: the connection ends before the answer"
        assert error["data"] == {"reason": "stream_lost", "executed": "unknown"}
        assert socket.closed == 1008


async def test_16_a_stream_of_2024_11_05_ends_with_its_token_and_a_fresh_one_keeps_it(
    autojump_clock: Any, site: Open
) -> None:
    async with site() as (at, _):
        kept, left = (sse(at, at.token("ann", LIFE)) for _ in range(2))
        place = (await kept.event()).data  # type: ignore[union-attr]
        await left.event()
        await trio.sleep(LIFE)
        fresh = [("authorization", f"Bearer {at.token('ann', 5 * LIFE)}"), ("content-type", "application/json")]
        said = at.http.begin("POST", place, fresh, b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        assert await said.head() == 202
        await trio.sleep(SKEW + 1)
        assert (left.ended, kept.ended) == (True, False)
        other = [("authorization", f"Bearer {at.token('bob')}"), ("content-type", "application/json")]
        assert await at.http.begin("POST", place, other, b'{"jsonrpc":"2.0","id":2,"method":"ping"}').head() == 404
        await trio.sleep(5 * LIFE)
        assert kept.ended


async def test_16_a_get_stream_ends_with_its_token_and_resumes_with_a_fresh_one_of_the_same_user(
    autojump_clock: Any, site: Open
) -> None:
    async with site() as (at, alpha):
        client = await connected(at, at.token("ann", LIFE))
        stream = await client.listen()
        alpha.upstreams[0].notify("notifications/message", {"level": "info", "data": "one"})
        assert (await stream.message("notifications/message"))["params"]["data"] == "one"
        await stream.exchange.wait_ended(LIFE + SKEW + 1)
        assert trio.current_time() >= LIFE + SKEW
        alpha.upstreams[0].notify("notifications/message", {"level": "info", "data": "two"})
        expired = client.begin_listening(stream.last_id)
        assert await expired.exchange.head() == 401
        assert 'error_description="expired"' in expired.exchange.headers["www-authenticate"]
        client.token = at.token("bob")
        assert await client.begin_listening(stream.last_id).exchange.head() == 404
        client.token = at.token("ann", 10 * LIFE)
        resumed = await client.listen(stream.last_id)
        assert (await resumed.message("notifications/message"))["params"]["data"] == "two"
        assert await client.call("echo", text="x")


# It is taken away

TAKERS: dict[str, Callable[[Site], Any]] = {}


def taking(function: Callable[[Site], Any]) -> Callable[[Site], Any]:
    TAKERS[function.__name__] = function
    return function


@taking
async def revoke(at: Site) -> None:
    await at.revoked.revoke("ci")


@taking
async def another_token_of_his_name(at: Site) -> None:
    at.admit(tokens={"ci": "another-token", "ops": "ops-token"})


@taking
async def no_token_of_his(at: Site) -> None:
    at.admit(tokens={"ops": "ops-token"})


@taking
async def no_tokens_at_all(at: Site) -> None:
    at.admit()


@taking
async def nobody_is_asked(at: Site) -> None:
    at.admit(issuers=())


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
async def test_16_whatever_is_open_is_cut_when_its_token_is_taken_away(
    autojump_clock: Any, site: Open, take: Callable[[Site], Any]
) -> None:
    async with site() as (at, alpha):
        at.admit(tokens={"ci": "ci-token", "ops": "ops-token"})
        client, socket = await connected(at, "ci-token"), await at.socket("/ws/alpha", "ci-token")
        await socket.initialize()
        old, stream = sse(at, "ci-token"), await client.listen()
        call = client.start_call("slow")
        request = await begun(alpha)
        await take(at)
        socket.say(1, "tools/call", {"name": "echo", "arguments": {"text": "after"}})
        await trio.sleep(2 * KEEP_ALIVE)
        assert [one.ended for one in (old, stream.exchange)] == [True, True]
        assert (socket.over.is_set(), socket.closed) == (True, 1008)
        request.text("a secret")
        await trio.sleep(2 * KEEP_ALIVE)
        assert b"a secret" not in await call.exchange.whole()
        assert [r.params["name"] for r in alpha.asked_for("tools/call")] == ["slow"]


async def test_16_what_others_have_open_goes_on(autojump_clock: Any, site: Open) -> None:
    async with site() as (at, _):
        at.admit(tokens={"ci": "ci-token", "ops": "ops-token"})
        sockets = [await at.socket("/ws/alpha", token) for token in ("ops-token", at.token("ann", 10_000))]
        for socket in sockets:
            await socket.initialize()
        streams = [sse(at, "ops-token"), sse(at, at.token("ann", 10_000))]
        for take in (revoke, another_token_of_his_name, no_token_of_his):
            await take(at)
        await trio.sleep(2 * KEEP_ALIVE)
        assert [stream.ended for stream in streams] == [False, False]
        for socket in sockets:
            assert "result" in await socket.ask(7, "tools/list")


async def test_16_streams_end_with_the_issuer_that_is_not_taken_any_more(autojump_clock: Any, site: Open) -> None:
    async with site() as (at, _):
        client, socket = await connected(at, at.token("ann")), await at.socket("/ws/alpha", at.token("ann"))
        stream = await client.listen()
        at.admit(issuers=(Issuer("https://other.test"),))
        await trio.sleep(2 * KEEP_ALIVE)
        assert (stream.exchange.ended, socket.closed) == (True, 1008)


async def test_16_nobody_in_particular_is_cut_when_everybody_has_to_say_who_he_is(
    autojump_clock: Any, site: Open
) -> None:
    async with site() as (at, _):
        at.admit(issuers=())
        client = WireClient(at.http, "/mcp/alpha")
        await client.connect()
        stream = await client.listen()
        await trio.sleep(2 * KEEP_ALIVE)
        assert not stream.exchange.ended
        at.admit()
        await trio.sleep(2 * KEEP_ALIVE)
        assert stream.exchange.ended


async def test_16_a_revoked_user_comes_again_with_a_newer_token_only(autojump_clock: Any, site: Open) -> None:
    async with site() as (at, alpha):
        old = at.token("ann", 10_000)
        socket: Socket = await at.socket("/ws/alpha", old)
        await socket.initialize()
        await at.revoked.revoke(ANN)
        socket.say(1, "tools/call", {"name": "echo", "arguments": {"text": "x"}})
        with trio.fail_after(60):
            await socket.over.wait()
        assert socket.closed == 1008
        assert alpha.asked_for("tools/call") == []
        assert (await at.socket("/ws/alpha", old)).status == 401
        await trio.sleep(SKEW + 1)
        assert (await at.socket("/ws/alpha", old)).status == 401
        assert (await at.socket("/ws/alpha", at.token("ann"))).status == 101


# It gives other rights, by another configuration

BOTH = Policy(
    tuple(
        Rule(f"policy[{place}]", Who(groups=frozenset({group})), allow=(item(allowed),))
        for place, (group, allowed) in enumerate((("dev", "alpha:*"), ("ops", "alpha:echo"), ("ops", "resource:*:*")))
    )
)
BY_TOKEN = {group: {"ci": Rights("static:", "ci", groups=frozenset({group}))} for group in ("dev", "ops")}
BY_ISSUER = {claim: (Issuer(ISSUER, groups=((claim,),)),) for claim in ("groups", "roles")}


def other_groups_of_a_token(at: Site, group: str) -> str:
    at.admit(tokens={"ci": "ci-token"}, rights=BY_TOKEN[group])
    return "ci-token"


def another_claim_of_an_issuer(at: Site, group: str) -> str:
    at.admit(issuers=BY_ISSUER["groups" if group == "dev" else "roles"])
    return at.token("ann", 100_000, groups=["dev"], roles=["ops"])


GIVERS = {f.__name__: f for f in (other_groups_of_a_token, another_claim_of_an_issuer)}


@pytest.mark.parametrize("give", GIVERS.values(), ids=GIVERS)
async def test_what_is_open_has_the_rights_of_its_token_by_the_configuration_in_force(
    autojump_clock: Any, site: Open, give: Callable[[Site, str], str]
) -> None:
    async with site() as (at, _):
        at.gateway.change(policy=BOTH)
        token = give(at, "dev")
        socket, client = await at.socket("/ws/alpha", token), await connected(at, token)
        await socket.initialize()
        stream = await client.listen()

        async def names() -> list[list[str]]:
            listed = (await socket.ask(7, "tools/list"))["result"], await client.request("tools/list")
            return [[tool["name"] for tool in one["tools"]] for one in listed]

        assert await names() == [["echo", "slow"]] * 2
        give(at, "dev")  # as it was
        await trio.sleep(2 * KEEP_ALIVE)
        assert not stream.exchange.ended
        give(at, "ops")
        assert await names() == [["echo"]] * 2
        await trio.sleep(2 * KEEP_ALIVE)
        assert (stream.exchange.ended, socket.over.is_set()) == (True, False)
        assert await (await client.listen()).exchange.head() == 200


async def test_what_is_open_goes_on_while_nobody_can_tell_what_its_token_gives(autojump_clock: Any, site: Open) -> None:
    async with site() as (at, _):
        at.gateway.change(policy=BOTH)
        ends = trio.current_time() + 10_000
        at.idp.opaque["opaque"] = at.idp.claims(aud=BASE, iat=1, exp=ends, groups=["dev"], roles=["ops"]) | {
            "active": True
        }
        asks = Introspection(f"{ISSUER}/introspect", "gateway", "secret")

        def admit(claim: str) -> None:
            at.admit(issuers=[Issuer(ISSUER, groups=((claim,),), introspection=asks)])

        admit("groups")
        socket = await at.socket("/ws/alpha", "opaque")
        await socket.initialize()

        async def tools() -> int:
            return len((await socket.ask(1, "tools/list"))["result"]["tools"])

        assert await tools() == 2
        at.idp.away = True
        admit("roles")
        before = len(at.idp.asked)
        assert [await tools() for _ in range(3)] == [2, 2, 2]
        assert len(at.idp.asked) == before + 1, "nobody waits for it with each message"
        at.idp.away = False
        await trio.sleep(10)
        assert await tools() == 1
        at.idp.opaque.clear()
        admit("groups")
        socket.say(2, "tools/list")
        await socket.over.wait()
        assert socket.closed == 1008
