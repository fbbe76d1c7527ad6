"""Attacks by users of one issuer, and on the rules, against two replicas on either store: with real tokens at the real
edge. The numbers are those of docs/threat-model.md."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from actors.protocol.limiting import Limit
from actors.protocol.policy import Policy, Rule, Who, item, limited
from actors.protocol.rights import SKEW, principal_id
from actors.protocol.table import Limits
from gateway.store.redis import open_redis_store
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.issuer import FakeIssuer
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend, needs
from tests.support.modern_wire import Listening, ModernWire
from tests.support.patience import PATIENCE
from tests.support.redis_server import MISSING, RedisServer, installed
from tests.support.store_calls import Lines
from tests.support.task_backend import TaskBackend
from tests.support.verified import ISSUER, Site, verified
from tests.support.wire_client import WireClient

AT = "2026-01-01T00:00:00Z"
TASKS: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
BOUNDS = Limits(keep_alive=0.5)
QUESTION = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}

Replicas = Callable[..., AbstractAsyncContextManager[list[Site]]]


@pytest.fixture(params=["memory", "redis"])
def replicas(request: pytest.FixtureRequest) -> Replicas:
    """`async with replicas(*backends) as (one, two)`."""
    if request.param == "redis" and not installed():
        pytest.skip(MISSING)

    flushes: list[Callable[[], object]] = []

    @asynccontextmanager
    async def gateways(stack: AsyncExitStack, *backends: Backend) -> AsyncIterator[list[Gateway]]:
        if request.param == "memory":
            yield await stack.enter_async_context(open_replicas(2, *backends, keep_alive=BOUNDS.keep_alive))
            return
        server = stack.enter_context(RedisServer())
        client = stack.enter_context(server.client())
        flushes.append(client.flushall)
        opened = []
        for _ in range(2):
            store = open_redis_store(server.url, BOUNDS, log=Lines(), on_lost=pytest.fail)
            kept = await stack.enter_async_context(store)
            more: Any = {"store": kept, "keep_alive": BOUNDS.keep_alive}
            opened.append(await stack.enter_async_context(open_gateway(*backends, **more)))
        yield opened

    @asynccontextmanager
    async def opened(*backends: Backend) -> AsyncIterator[list[Site]]:
        idp = FakeIssuer()
        with trio.fail_after(PATIENCE):
            async with AsyncExitStack() as stack, gateways(stack, *backends) as both:
                sites = [await stack.enter_async_context(verified(gateway, idp)) for gateway in both]
                for site in sites:
                    site.flush = flushes[0] if flushes else None
                yield sites

    return opened


def policy(*sites: Site, deny: tuple[str, ...] = (), who: Who = Who()) -> None:  # noqa: B008 - for everybody
    everything = ("*:*", "prompt:*:*", "resource:*:*")
    rules = [Rule("policy[0]", allow=tuple(map(item, everything)))]
    rules += [Rule("policy[1]", who, deny=tuple(map(item, deny)))] if deny else []
    for site in sites:
        site.gateway.change(policy=Policy(rules))


def at(client: WireClient, site: Site, token: str) -> WireClient:
    """The same session, with this token, at this replica."""
    return client.elsewhere(site.http, token)


async def test_4_a_session_is_nobody_elses_on_any_replica(replicas: Replicas) -> None:
    alpha = Backend("alpha", kind="http")
    async with replicas(alpha) as (one, two):
        ann = WireClient(one.http, "/mcp/alpha", token=one.token("ann"))
        await ann.connect()
        stream = await ann.listen()
        alpha.upstreams[0].notify("notifications/message", {"level": "info", "data": "mine"})
        await stream.message("notifications/message")
        for site in (one, two):
            bob = at(ann, site, site.token("bob"))
            assert await bob.start("tools/call", {"name": "echo", "arguments": {}}).exchange.head() == 404
            assert await bob.begin_listening().exchange.head() == 404
            assert await bob.begin_listening(stream.last_id).exchange.head() == 404
            assert await bob.end() == 404
        assert alpha.asked_for("tools/call") == []
        assert await at(ann, two, two.token("ann")).call("echo", text="x")  # a fresh token, another replica


async def test_4_a_task_of_a_session_is_nobody_elses(replicas: Replicas) -> None:
    alpha = TaskBackend(kind="http")
    async with replicas(alpha) as (one, two):
        ann = WireClient(one.http, "/mcp/alpha", token=one.token("ann"))
        await ann.connect()
        made = await ann.request("tools/call", {"name": "may", "arguments": {}, "task": {"ttl": 60_000}})
        id = made["task"]["taskId"]
        before = len(alpha.requests)
        for site in (one, two):
            bob = WireClient(site.http, "/mcp/alpha", token=site.token("bob"))
            await bob.connect()
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                error = await bob.refused(method, {"taskId": id})
                assert (error.code, error.message) == (-32602, "Invalid params: Unknown task")
        assert [r.method for r in alpha.requests[before:] if r.method.startswith("tasks/")] == []
        assert (await at(ann, two, two.token("ann")).request("tasks/get", {"taskId": id}))["taskId"] == id


async def test_4_a_task_without_a_session_is_nobody_elses(replicas: Replicas) -> None:
    beta = ModernBackend("beta", kind="http", capabilities={"tools": {}, "extensions": TASKS})
    task = {"taskId": "T", "status": "working", "createdAt": AT, "lastUpdatedAt": AT, "ttlMs": 60_000}
    beta.results["tools/call"] = lambda request: {"resultType": "task", **task}
    beta.results["tasks/get"] = lambda request: {"resultType": "complete", **task}
    async with replicas(beta) as (one, two):

        def client(site: Site, user: str) -> ModernWire:
            wire = ModernWire(site.http, "/mcp", token=site.token(user), capabilities={"extensions": TASKS})
            wire.trusting, wire.extensions = True, {"tasks/get", "tasks/update", "tasks/cancel"}
            return wire

        id = (await client(one, "ann").start_call("beta__echo").result())["taskId"]
        assert id != "T"
        for site in (one, two):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                for stolen in (id, "T"):
                    more = {"inputResponses": {}} if method == "tasks/update" else {}
                    error = await client(site, "bob").refused(method, {"taskId": stolen, **more})
                    assert (error.code, error.message) == (-32602, "Invalid params: Unknown task")
            bob = client(site, "bob")
            message = bob.request_message("subscriptions/listen", {"notifications": {"taskIds": [id]}})
            assert await Listening(bob, bob.post(message), message).acknowledged() == {}
        assert [method for method in beta.methods if method.startswith("tasks/")] == []
        assert (await client(two, "ann").request("tasks/get", {"taskId": id}))["taskId"] == id


async def test_4_a_cursor_and_a_state_are_nobody_elses(replicas: Replicas) -> None:
    beta = ModernBackend("beta", tools=["ask", *(f"t{n}" for n in range(1100))], held={"ask"}, kind="http")
    async with replicas(beta) as (one, two):
        ann = ModernWire(one.http, "/mcp", token=one.token("ann"), capabilities={"elicitation": {}})
        cursor = (await ann.request("tools/list"))["nextCursor"]
        call = ann.start_call("beta__ask")
        needs(await beta.next("tools/call"), "theirs", name=QUESTION)
        required = await call.required()
        answers = {"name": {"action": "decline"}}
        for site in (one, two):
            bob = ModernWire(site.http, "/mcp", token=site.token("bob"), capabilities={"elicitation": {}})
            assert (await bob.refused("tools/list", {"cursor": cursor})).code == -32602
            stolen = ModernWire(site.http, "/mcp", token=site.token("bob"), capabilities={"elicitation": {}})
            assert (await stolen.retry(call, required, answers).error()).code == -32602
        assert len(beta.asked_for("tools/call")) == 1
        mine = ModernWire(two.http, "/mcp", token=two.token("ann"), capabilities={"elicitation": {}})
        retry = mine.retry(call, required, answers)
        (await beta.next("tools/call")).text("done")
        assert await retry.complete()


async def test_9_a_change_of_the_rules_counts_for_the_next_message_on_both_replicas(replicas: Replicas) -> None:
    alpha = Backend("alpha", kind="http", tools=("read", "write"))
    async with replicas(alpha) as (one, two):
        policy(one, two)
        ann = WireClient(one.http, "/mcp/alpha", token=one.token("ann", groups=["dev"]))
        await ann.connect()
        elsewhere = at(ann, two, two.token("ann", groups=["dev"]))  # what it says goes to the other one by mail
        assert await elsewhere.call("write")
        socket = await two.socket("/ws/alpha", two.token("ann", groups=["dev"]))
        await socket.initialize()
        policy(one, two, deny=("alpha:write",), who=Who(groups=frozenset({"dev"})))
        for client in (ann, elsewhere):
            assert (await client.refused("tools/call", {"name": "write", "arguments": {}})).code == -32602
            assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == ["read"]
        answer = await socket.ask(5, "tools/call", {"name": "write", "arguments": {}})
        assert answer["error"]["code"] == -32602
        for site in (one, two):
            modern = ModernWire(site.http, "/mcp/alpha", token=site.token("ann", groups=["dev"]))
            assert (await modern.refused("tools/call", {"name": "write", "arguments": {}})).code == -32602
            others = ModernWire(site.http, "/mcp/alpha", token=site.token("bob", groups=["ops"]))
            assert await others.call("write")
        assert [r.params["name"] for r in alpha.asked_for("tools/call")] == ["write"] * 3
        policy(one, two)
        assert await elsewhere.call("write")


async def test_9_a_state_from_before_a_change_is_decided_anew_on_another_replica(replicas: Replicas) -> None:
    beta = ModernBackend("beta", tools=("ask",), held={"ask"}, kind="http")
    async with replicas(beta) as (one, two):
        policy(one, two)
        ann = ModernWire(one.http, "/mcp/beta", token=one.token("ann"), capabilities={"elicitation": {}})
        call = ann.start_call("ask")
        needs(await beta.next("tools/call"), "theirs", name=QUESTION)
        required = await call.required()
        policy(one, two, deny=("beta:ask",))
        mine = ModernWire(two.http, "/mcp/beta", token=two.token("ann"), capabilities={"elicitation": {}})
        assert (await mine.retry(call, required, {"name": {"action": "decline"}}).error()).code == -32602
        assert len(beta.asked_for("tools/call")) == 1


def limit(*sites: Site, item: str, most: int, unit: str) -> None:
    rules = [
        Rule("policy[0]", allow=(limited("*:*"),)),
        Rule("policy[1]", limits=((limited(item), Limit(most, unit)),)),
    ]
    for site in sites:
        site.gateway.change(policy=Policy(rules))


async def test_15_many_sessions_tokens_transports_and_replicas_of_a_user_have_one_limit(replicas: Replicas) -> None:
    alpha = Backend("alpha", kind="http", tools=("read",))
    async with replicas(alpha) as (one, two):
        limit(one, two, item="alpha:*", most=6, unit="h")
        said: list[Any] = []
        for number, site in enumerate((one, two, one, two)):
            session = WireClient(site.http, "/mcp/alpha", token=site.token("ann", jti=str(number)))
            await session.connect()
            said.append(await session.call("read"))
            said.append(await at(session, two, two.token("ann", jti=f"other-{number}")).call("read"))
            said.append(await ModernWire(site.http, "/mcp/alpha", token=site.token("ann", scope="a b")).call("read"))
        socket = await two.socket("/ws/alpha", two.token("ann"))
        await socket.initialize()
        said.append((await socket.ask(5, "tools/call", {"name": "read", "arguments": {}}))["result"])
        assert [bool(result.get("isError")) for result in said] == [False] * 6 + [True] * 7
        assert "limit of 6 per hour" in said[-1]["content"][0]["text"]
        assert len(alpha.asked_for("tools/call")) == 6
        for site in (one, two):
            assert not (await ModernWire(site.http, "/mcp/alpha", token=site.token("bob")).call("read")).get("isError")


async def test_15_an_endpoint_has_one_limit_on_both_replicas_and_says_so_by_each_transport(replicas: Replicas) -> None:
    alpha = Backend("alpha", kind="http", tools=("read",))
    async with replicas(alpha) as (one, two):
        socket = await two.socket("/ws/alpha", two.token("ann"))
        await socket.initialize()
        limit(one, two, item="/mcp*", most=2, unit="h")
        for site in (one, two):
            assert await ModernWire(site.http, "/mcp/alpha", token=site.token("ann")).request("tools/list")
        for site in (one, two):
            call = ModernWire(site.http, "/mcp/alpha", token=site.token("ann")).start("tools/list", {})
            assert await call.exchange.head() == 429
            assert 1500 < int(dict(call.exchange.headers)["retry-after"]) <= 1800
        error = (await socket.ask(5, "tools/list"))["error"]
        assert (error["code"], error["data"]["reason"]) == (-32603, "limited")
        assert error["data"]["retryAfter"] > 1500


async def test_16_a_revoked_user_is_cut_and_refused_on_both_replicas(replicas: Replicas) -> None:
    alpha = Backend("alpha", kind="http")
    async with replicas(alpha) as (one, two):
        old = one.token("ann", 10_000)
        ann, bob = (WireClient(two.http, "/mcp/alpha", token=token) for token in (old, two.token("bob")))
        await ann.connect(), await bob.connect()
        stream, others = await ann.listen(), await bob.listen()
        socket = await two.socket("/ws/alpha", old)
        await socket.initialize()
        await one.revoked.revoke(principal_id(ISSUER, "ann"))
        await stream.exchange.wait_ended(PATIENCE)
        await socket.over.wait()
        for site in (one, two):
            refused = at(ann, site, old)
            assert await refused.start("tools/call", {"name": "echo", "arguments": {}}).exchange.head() == 401
            assert await refused.begin_listening().exchange.head() == 401
            assert (await site.socket("/ws/alpha", old)).status == 401
        fresh = at(ann, two, two.token("ann"))  # clocks may be a minute apart
        assert await fresh.begin_listening().exchange.head() == 401
        assert alpha.asked_for("tools/call") == []
        assert not others.exchange.ended
        assert await bob.call("echo", text="x")


async def test_16_a_store_that_forgets_gives_nobody_his_access_back(replicas: Replicas) -> None:
    async with replicas(Backend("alpha", kind="http")) as (one, two):
        old = one.token("ann", 10_000)
        await one.revoked.revoke(principal_id(ISSUER, "ann"))
        while (await two.socket("/ws/alpha", old)).status != 401:
            await trio.sleep(0.1)
        shelf = one.gateway.store.shelf  # type: ignore[attr-defined]
        if one.flush is not None:
            one.flush()
        else:
            await shelf.take("revoked")
        while (found := await shelf.read("revoked")) is None:
            await trio.sleep(0.1)
        assert list(json.loads(found.value)) == [principal_id(ISSUER, "ann")]
        for site in (one, two):
            assert (await site.socket("/ws/alpha", old)).status == 401


LEFT = 4.0
"""Seconds for which what is opened with the short token of a test goes on."""


async def test_16_long_streams_at_any_replica_end_with_their_token_and_go_on_with_a_fresh_one(
    replicas: Replicas,
) -> None:
    alpha = Backend("alpha", kind="http")
    async with replicas(alpha) as (one, two):
        ann = WireClient(one.http, "/mcp/alpha", token=one.token("ann"))
        await ann.connect()

        def short() -> str:
            return two.token("ann", LEFT - SKEW)

        stream = await at(ann, two, short()).listen()  # of a session that the other one has
        alpha.upstreams[0].notify("notifications/message", {"level": "info", "data": "one"})
        await stream.message("notifications/message")
        socket = await two.socket("/ws/alpha", short())
        await socket.initialize()
        accepts = ("accept", "text/event-stream")
        listening = await ModernWire(two.http, "/mcp/alpha", token=short()).listen(tools=True)
        left, kept = (two.http.begin("GET", "/sse/alpha", [accepts, bearer(short())]) for _ in range(2))
        await left.event()
        place = (await kept.event()).data  # type: ignore[union-attr]
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        fresh = [bearer(one.token("ann")), ("content-type", "application/json")]
        assert await one.http.begin("POST", place, fresh, ping).head() == 202  # by mail
        await stream.exchange.wait_ended(PATIENCE)
        await left.wait_ended(PATIENCE)
        await socket.over.wait()
        assert socket.closed == 1008
        assert (await listening.result(PATIENCE))["resultType"] == "complete"
        alpha.upstreams[0].notify("notifications/message", {"level": "info", "data": "two"})
        resumed = await at(ann, one, one.token("ann")).listen(stream.last_id)
        assert (await resumed.message("notifications/message"))["params"]["data"] == "two"
        assert not kept.ended


async def test_rights_of_a_newer_token_end_what_listens_with_an_older_one_at_another_replica(
    replicas: Replicas,
) -> None:
    async with replicas(Backend("alpha")) as (one, two):
        policy(one, two, deny=("alpha:*",), who=Who(groups=frozenset({"out"})))

        async def listen(seconds: float, **claims: Any) -> Listening:
            token = two.token("ann", seconds, **claims)
            return await ModernWire(two.http, "/mcp", token=token).listen(tools=True)

        old, newer, other = await listen(1000), await listen(3000), await listen(1000, client_id="another")
        ann = ModernWire(one.http, "/mcp", token=one.token("ann", 2000, groups=["out"]))
        assert (await ann.start("tools/list", {}).result())["tools"] == []
        assert (await old.result(PATIENCE))["resultType"] == "complete"
        assert old.seen("notifications/tools/list_changed")
        assert not newer.exchange.ended
        assert not other.exchange.ended


async def test_rights_of_before_in_a_newer_token_end_what_listens_with_those_between_at_another_replica(
    replicas: Replicas,
) -> None:
    async with replicas(Backend("alpha")) as (one, two):
        policy(one, two, deny=("alpha:*",), who=Who(groups=frozenset({"out"})))
        seen = []
        for seconds, groups in ((1000, []), (2000, ["out"]), (3000, [])):  # those of the first one come back
            client = ModernWire(one.http, "/mcp", token=one.token("ann", seconds, groups=groups))
            seen.append(bool((await client.start("tools/list", {}).result())["tools"]))
            if groups:
                token = two.token("ann", seconds + 500, groups=groups)
                between = await ModernWire(two.http, "/mcp", token=token).listen(tools=True)
        assert seen == [True, False, True]
        assert (await between.result(PATIENCE))["resultType"] == "complete"


async def test_tokens_that_end_together_do_not_end_in_turns_what_listens_with_the_others(replicas: Replicas) -> None:
    """As of two programs of one user: which one is the newer nobody can tell."""
    async with replicas(Backend("alpha")) as (one, two):
        policy(one, two, deny=("alpha:*",), who=Who(groups=frozenset({"out"})))
        until = trio.current_time() + 1000
        tokens = [one.token("ann", groups=groups, exp=until) for groups in ([], ["out"])]
        first, second = (ModernWire(one.http, "/mcp", token=token) for token in tokens)
        for each in (first, second):  # what listens when rights come for the first time may end
            await each.start("tools/list", {}).result()
        listening = [await each.listen(tools=True) for each in (first, second)]
        for each in (first, second, first):
            await each.start("tools/list", {}).result()
        await trio.sleep(0.5)
        assert [one.exchange.ended for one in listening] == [False, False]


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"
