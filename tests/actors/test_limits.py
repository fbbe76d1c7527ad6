"""How often something may be done: told so that its caller can do something about it, and nobody else notices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.endpoints.pinning import LOOK_AGAIN
from actors.ports import Done, Failed, Invitation, Principal, Refused
from actors.protocol.limiting import Bucket, Limit, Taken, amount
from actors.protocol.policy import APART_MAX, Policy, Rule, Who, item, limited
from actors.protocol.rights import Rights, principal_id
from actors.protocol.table import UpstreamAuth
from gateway.audit.journal import Journal
from gateway.audit.sinks import FileSink
from gateway.store.buckets import MemoryBuckets
from tests.actors.modern.conftest import open_modern
from tests.actors.modern.test_questions import ANSWER, FORM, QUESTION, again, ask
from tests.actors.test_continued import back
from tests.actors.test_duplex import connected
from tests.actors.test_policy import BOTH, DEV, OPS, alpha, client_of, legacy, modern, named, refused
from tests.actors.test_unsent import LOST, Watched, next_process, stream
from tests.support.door_client import Client
from tests.support.harness import Gateway, open_gateway, open_replicas
from tests.support.mcp_backend import tool
from tests.support.modern_client import ModernClient
from tests.support.patience import PATIENCE
from tests.support.peers import Peer
from tests.support.pinned import with_pins
from tests.support.trail import Trail

BOB = Principal("bob")
ALL = Rule(
    "policy[0]", allow=tuple(map(item, ("alpha:*", "prompt:alpha:*", "resource:alpha:*", "beta:*", "resource:beta:*")))
)


def limits(place: str = "policy[1]", *, groups: Sequence[str] = (), **of: Any) -> Rule:
    """`alpha` is all its tools, `alpha_x` one of them, `mcp` the endpoint; a value is `60/min`, or that and more."""
    said = []
    for name, value in of.items():
        text, more = (value, {}) if isinstance(value, str) else value
        what = "/mcp*" if name == "mcp" else {"prompt": "prompt:alpha:*", "resource": "resource:alpha:*"}.get(name, "")
        backend, _, tool = name.partition("_")
        said.append((limited(what or f"{backend}:{tool or '*'}"), Limit(*amount(text), **more)))
    return Rule(place, Who(groups=frozenset(groups) or None), limits=tuple(said))


def enforce(gateway: Gateway, *rules: Rule, enforced: bool = True) -> None:
    gateway.change(policy=Policy([ALL, *rules], enforced=enforced))


async def called(client: Client | ModernClient, name: str = "alpha__read") -> str:
    """What a tool's result says; the words of a limit, if it is that."""
    result = await client.call("tools/call", {"name": name, "arguments": {}})
    return ("refused: " if result.get("isError") else "") + result["content"][0]["text"]


def counted(gateway: Gateway, outcome: str, of: str = "call", mode: str = "enforce") -> int:
    return gateway.telemetry.total("stagedoor_limit_decisions_total", of, outcome, mode)


# What is told ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("endpoint", ["", "group", "alpha"])
async def test_a_tool_over_its_limit_answers_in_words_that_a_model_can_read(
    era: str, endpoint: str, autojump_clock: MockClock
):
    backend = alpha()
    async with open_gateway(backend, groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, limits(alpha_read="2/min"))
        client = await client_of(era, gateway, endpoint)
        name = named(endpoint, "read")
        assert [await called(client, name) for _ in range(2)] == ["alpha: read"] * 2
        words = "refused: The limit of 2 per minute for this tool is reached; retry in 30 s."
        assert await called(client, name) == words
        assert await called(client, named(endpoint, "write")) == "alpha: write"
        await trio.sleep(29.5)
        assert await called(client, name) == words.replace("30 s", "1 s")
        await trio.sleep(0.6)
        assert await called(client, name) == "alpha: read"
        assert len(backend.asked_for("tools/call")) == 4
        assert (counted(gateway, "passed"), counted(gateway, "refused")) == (3, 2)


@BOTH
async def test_calls_that_wait_until_definitions_were_looked_at_count_as_others_do(era: str, autojump_clock: MockClock):
    [backend] = with_pins(alpha())
    async with open_gateway(backend) as gateway:
        enforce(gateway, limits(alpha_read="2/h"))
        client = await client_of(era, gateway, "")
        said: list[str] = []

        async def call() -> None:
            said.append(await called(client))

        async with trio.open_nursery() as nursery:  # all of them wait for the first look
            for _ in range(3):
                nursery.start_soon(call)
        assert sorted(text.startswith("refused") for text in said) == [False, False, True]
        await trio.sleep(LOOK_AGAIN + 1)  # and this one for another look
        assert (await called(client)).startswith("refused: The limit of 2 per hour")
        assert len(backend.asked_for("tools/call")) == 2
        assert (counted(gateway, "passed"), counted(gateway, "refused")) == (2, 2)


@BOTH
async def test_other_methods_over_their_limit_get_an_error_with_the_time_to_wait(era: str, autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        enforce(gateway, limits(prompt="1/min", resource="1/h"))
        client = await client_of(era, gateway, "")
        assert await client.call("prompts/get", {"name": "alpha__hello"})
        assert await client.call("resources/read", {"uri": "alpha+test:///pub/a"})
        asks: list[tuple[str, Any, int]] = [
            ("prompts/get", {"name": "alpha__hello"}, 60),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "alpha__hello"}, "argument": {"name": "a", "value": "b"}},
                60,
            ),
            ("resources/read", {"uri": "alpha+test:///pub/a"}, 3600),
        ]
        if era == "legacy":
            asks.append(("resources/subscribe", {"uri": "alpha+test:///pub/a"}, 3600))
        for method, params, left in asks:
            error = await refused(client.begin(method, params))
            assert (error.code, error.data) == (-32603, {"reason": "limited", "executed": "no", "retryAfter": left}), (
                method
            )
        if era == "legacy":
            assert await client.call("resources/unsubscribe", {"uri": "alpha+test:///pub/a"}) == {}


@BOTH
async def test_an_endpoint_over_its_limit_answers_429_and_when_to_come_again(era: str, autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        client = await client_of(era, gateway, "")
        await called(client)
        enforce(gateway, limits(mcp="2/min"))
        await client.call("tools/list")
        await called(client)
        asked = client.begin("tools/list")
        assert await asked.head() == 429
        assert dict(asked.headers)["retry-after"] == "30"
        error = await asked.error()
        assert (error.code, error.data["retryAfter"], error.data["executed"]) == (-32603, 30, "no")
        assert len(backend.asked_for("tools/call")) == 2
        assert counted(gateway, "refused", "endpoint") == 1
        bob = gateway.client("", BOB)
        await bob.initialize()
        await bob.call("tools/list")
        if era == "legacy":
            assert isinstance(client, Client)
            await client.call("ping")
            await client.notify("notifications/progress", {"progressToken": 1, "progress": 1})
            assert (
                await gateway.client("", client.principal).post({"id": 1, "method": "initialize", "params": {}}).head()
                == 429
            )
            assert await client.delete() == 200


async def test_each_endpoint_may_have_a_limit_of_its_own(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        one = Rule("policy[1]", limits=((limited("/mcp/*"), Limit(1, "min")),))
        enforce(gateway, one)
        single, merged = modern(gateway, "alpha"), modern(gateway)
        assert await called(single, "read")
        assert await single.begin("tools/list").head() == 429
        assert [await called(merged) for _ in range(3)] == ["alpha: read"] * 3


@pytest.mark.parametrize("is_modern", [False, True], ids=["legacy", "modern"])
async def test_on_a_channel_a_limit_is_an_error_of_the_request(is_modern: bool, autojump_clock: MockClock):
    """stdio, WebSocket and HTTP+SSE have no status to say it with."""
    async with open_gateway(alpha()) as gateway, connected(gateway) as wire:
        if not is_modern:
            await wire.initialize()
        enforce(gateway, limits(mcp="2/min", alpha="1/min"))
        call = {"name": "alpha__read", "arguments": {}}
        assert "isError" not in (await wire.call(1, "tools/call", call, modern=is_modern))["result"]
        assert (await wire.call(2, "tools/call", call, modern=is_modern))["result"]["isError"] is True
        answer = await wire.call(3, "tools/list", modern=is_modern)
        assert answer["error"]["code"] == -32603
        assert answer["error"]["data"]["retryAfter"] == 30


@pytest.mark.parametrize("waits", [False, True])
async def test_on_a_channel_what_follows_a_request_does_not_overtake_it_while_its_limit_is_asked(
    waits: bool, autojump_clock: MockClock
):
    store, backend = Later(), alpha(held={"read"})
    async with open_gateway(backend, buckets=store) as gateway, connected(gateway) as wire:
        await wire.initialize()
        enforce(gateway, limits(mcp="9/min"))
        store.waits = waits
        wire.ask(1, "tools/call", {"name": "alpha__read", "arguments": {}})
        wire.tell("notifications/cancelled", {"requestId": 1})
        await gateway.settle()
        for answer in store.asked:
            answer()
        await trio.sleep(1)
        assert gateway.actors.quotas.requests.total == 0
        assert len(backend.asked_for("tools/call")) == backend.upstream.methods.count("notifications/cancelled")


async def test_in_a_batch_each_call_has_its_limit_and_the_endpoint_counts_all_or_none(autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        client = await legacy(gateway, "alpha", version="2025-03-26")
        enforce(gateway, limits(alpha="1/min", mcp="3/min"))
        calls: list[Any] = [
            {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "read", "arguments": {}}}
            for n in range(2)
        ]
        batch = client.post(calls)
        assert await batch.head() == 200
        await batch.end()
        answers = {message["id"]: message["result"] for message in batch.messages}
        assert sorted(bool(result.get("isError")) for result in answers.values()) == [False, True]
        batch = client.post(calls)
        assert await batch.head() == 429
        await batch.end()
        assert {m["id"]: m["error"]["data"]["retryAfter"] for m in batch.messages} == {0: 20, 1: 20}
        assert await client.begin("tools/list").head() == 200  # there was one left
        many = client.post([{**calls[0], "id": n} for n in range(4)])
        assert await many.head() == 429
        assert "retry-after" not in dict(many.headers)
        assert len(backend.asked_for("tools/call")) == 1


# Whose it is -------------------------------------------------------------------------------------------------------


async def test_15_sessions_tokens_and_replicas_of_one_principal_have_one_bucket(autojump_clock: MockClock):
    async with open_replicas(2, alpha()) as gateways:
        for gateway in gateways:
            enforce(gateway, limits(alpha="6/min"))
        clients: list[Client | ModernClient] = []
        for gateway in gateways:
            clients += [await legacy(gateway), await legacy(gateway, "", DEV), modern(gateway, "", OPS)]
        said = [await called(client) for client in (*clients, *clients)]
        assert said.count("alpha: read") == 6
        bob = gateways[0].client("", BOB)
        await bob.initialize()
        assert await called(bob) == "alpha: read"


def test_15_clients_of_one_user_have_one_bucket_though_each_is_a_principal() -> None:
    """As `bindClient` has it: else whoever can register clients has as many limits."""

    def bucket(user: str, client: str) -> str:
        principal = f"{principal_id('https://idp.test', user)}:{len(client)}:{client}"
        rights = Rights("https://idp.test", user, client)
        (due,) = Policy([ALL, limits(alpha="5/min")]).ruleset(principal, rights).due("tool", "alpha", "read")
        return due.bucket.key

    assert bucket("ann", "one") == bucket("ann", "another") != bucket("bob", "one")


async def test_a_session_that_is_asked_by_way_of_another_replica_counts_once(autojump_clock: MockClock):
    async with open_replicas(2, alpha()) as (one, other):
        client = await legacy(one)
        await called(client)
        for gateway in (one, other):
            enforce(gateway, limits(alpha="4/min", mcp="100/min"))
        client.to(other)
        assert [await called(client) for _ in range(4)] == ["alpha: read"] * 4
        assert (await called(client)).startswith("refused")
        assert sum(counted(gateway, "passed", "endpoint") for gateway in (one, other)) == 5


async def test_a_group_or_all_may_share_a_limit(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        of_group = limits(groups=("dev", "ops"), alpha_read=("2/min", {"per": "group"}))
        enforce(gateway, of_group, limits("policy[2]", alpha_write=("3/min", {"per": "all"})))
        ann, bob, eve = await legacy(gateway, "", DEV), gateway.client("", BOB), modern(gateway, "", OPS)
        bob.rights = DEV
        await bob.initialize()
        assert [await called(ann), await called(bob)] == ["alpha: read"] * 2
        assert "which your group shares, is reached" in await called(bob)
        assert await called(eve) == "alpha: read"
        said = [await called(client, "alpha__write") for client in (ann, bob, eve, ann)]
        assert said[:3] == ["alpha: write"] * 3
        assert "which all share, is reached; retry in 20 s" in said[3]
        both = modern(gateway, "", Rights(groups=frozenset({"dev", "ops"})))
        assert (await called(both)).startswith("refused")  # it takes from both, and one of them is empty


async def test_who_has_no_part_in_a_rule_has_no_limit(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, limits(groups=("dev",), alpha="1/min"))
        client = await legacy(gateway, "", OPS)
        assert [await called(client) for _ in range(5)] == ["alpha: read"] * 5
        assert counted(gateway, "passed") == 0


async def test_each_tool_and_each_server_may_have_a_bucket(autojump_clock: MockClock):
    async with open_gateway(alpha(), alpha("beta")) as gateway:
        everything = Rule(
            "policy[1]",
            limits=(
                (item("*:*"), Limit(1, "min", each="tool")),
                (item("*:*"), Limit(2, "h", each="server")),
                (item("*:*"), Limit(4, "day")),
            ),
        )
        enforce(gateway, everything)
        client = modern(gateway)
        assert await called(client, "alpha__read") == "alpha: read"
        assert "1 per minute for this tool" in await called(client, "alpha__read")
        assert await called(client, "alpha__write") == "alpha: write"
        assert "2 per hour for this server" in await called(client, "alpha__delete_all")
        assert await called(client, "beta__read") == "beta: read"
        assert await called(client, "beta__write") == "beta: write"
        await trio.sleep(7200)
        assert "4 per day for this tool and others" in await called(client, "beta__read")


def test_15_names_that_nobody_has_make_a_bounded_number_of_buckets():
    """A server is asked by whatever name a client makes up."""
    each = Rule("policy[0]", limits=((item("alpha:*"), Limit(1, "week", each="tool")),))
    ann = Policy([each]).ruleset("ann", DEV)
    for _ in range(2):
        keys = [ann.due("tool", "alpha", f"made-up-{n}")[0].bucket.key for n in range(3 * APART_MAX)]
    assert len({*keys}) == APART_MAX + 1
    assert len({*keys[:APART_MAX]}) == APART_MAX, "so many have one each, for good"
    long = "x" * 100_000
    assert ann.due("tool", "alpha", long)[0].bucket.key == keys[-1]
    assert not ann.decide("tool", "alpha", long).allowed
    assert ann.remembered == 0, "nor is a long one remembered"
    bob = Policy([each]).ruleset("bob", DEV)
    assert bob.due("tool", "alpha", "read")[0].bucket.key not in keys


async def test_what_rules_refuse_takes_nothing(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, Rule("policy[1]", deny=(item("alpha:delete_*"),)), limits("policy[2]", alpha="1/min"))
        client = await legacy(gateway)
        for _ in range(3):
            assert (await refused(client.begin("tools/call", {"name": "alpha__delete_all"}))).code == -32602
        assert await called(client) == "alpha: read"


# The store ---------------------------------------------------------------------------------------------------------


class Later:
    """Buckets of which the test says when they answer; `away`: they can't tell."""

    def __init__(self) -> None:
        self.buckets = MemoryBuckets(trio.current_time)
        self.asked: list[Callable[[], None]] = []
        self.away = False
        self.waits = False

    def take(self, buckets: Sequence[Bucket], cost: int, once: str, seconds: float, done: Done) -> Taken | None:
        def answer() -> None:
            if self.away:
                done(Failed(Refused.AWAY, "no Redis answers"))
            else:
                done(self.buckets.take(buckets, cost, once, seconds, done))

        if self.waits:
            self.asked.append(answer)
        else:
            answer()
        return None


@BOTH
async def test_while_the_store_is_away_rates_let_through_and_quotas_do_not(era: str, autojump_clock: MockClock):
    store = Later()
    async with open_gateway(alpha(), buckets=store) as gateway:
        enforce(gateway, limits(alpha_read="1/min", alpha_write=("9/day", {}), resource="9/week", mcp="1/s"))
        client = await client_of(era, gateway, "")
        await trio.sleep(1)
        store.away = True
        assert [await called(client) for _ in range(3)] == ["alpha: read"] * 3
        unknown = "The quota for this can't be checked at the moment; retry in 5 s."
        assert await called(client, "alpha__write") == f"refused: {unknown}"
        error = await refused(client.begin("resources/read", {"uri": "alpha+test:///pub/a"}))
        assert (error.code, error.data) == (-32603, {"reason": "quota_unknown", "executed": "no", "retryAfter": 5})
        assert (counted(gateway, "open"), counted(gateway, "closed")) == (3, 2)
        assert counted(gateway, "open", "endpoint") == 5
        assert len(gateway.log.events("limits_not_counted")) == 1
        enforce(gateway, limits(mcp="1000/day"))
        asked = client.begin("tools/list")
        assert await asked.head() == 503
        assert dict(asked.headers)["retry-after"] == "5"
        store.away = False
        assert await called(client) == "alpha: read"


@BOTH
@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_call_that_nobody_waits_for_is_not_sent_when_the_store_answers(
    era: str, endpoint: str, autojump_clock: MockClock
):
    store, backend = Later(), alpha()
    async with open_gateway(backend, buckets=store) as gateway:
        enforce(gateway, limits(alpha="9/min"))
        client = await client_of(era, gateway, endpoint)
        name = named(endpoint, "read")
        await called(client, name)
        store.waits = True
        call: Any = {"name": name, "arguments": {}}
        pending, kept = client.begin("tools/call", call), client.begin("tools/call", call)
        await gateway.settle()
        assert len(store.asked) == 2
        if isinstance(client, Client):
            await client.cancel(pending)
        else:
            pending.drop()
        await gateway.settle()
        for answer in store.asked:
            answer()
        assert (await kept.result())["content"]
        assert len(backend.asked_for("tools/call")) == 2


@BOTH
async def test_a_call_that_waits_for_the_store_longer_than_for_anything_is_given_up_and_never_sent(
    era: str, autojump_clock: MockClock
):
    store, backend = Later(), alpha()
    async with open_gateway(backend, buckets=store, request_deadline=20.0) as gateway:
        enforce(gateway, limits(alpha="9/min"))
        client = await client_of(era, gateway, "")
        store.waits = True
        error = await refused(client.begin("tools/call", {"name": "alpha__read", "arguments": {}}))
        assert (error.code, error.data["reason"]) == (-32603, "timeout")
        store.asked[0]()
        await gateway.settle()
        assert backend.asked_for("tools/call") == []


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_after_a_kill_a_call_that_waited_for_the_store_was_surely_not_executed(
    endpoint: str, autojump_clock: MockClock
):
    store, buckets, backend = Watched(), Later(), alpha()
    async with open_gateway(backend, store=store, buckets=buckets) as gateway:
        enforce(gateway, limits(alpha="9/min"))
        client = await gateway.connect(endpoint)
        await called(client, named(endpoint, "read"))
        buckets.waits = True
        call = client.begin("tools/call", {"name": named(endpoint, "read"), "arguments": {}})
        await stream(gateway, call)
        assert store.unsent() == [True]
        for answer in buckets.asked:  # it goes on as soon as the record does not say so any more
            answer()
        assert (await call.response())["result"]["content"]
        call = client.begin("tools/call", {"name": named(endpoint, "read"), "arguments": {}})
        await stream(gateway, call)
    async with next_process(backend, store, client) as client:
        answer = await back(client, call).response()
        assert answer["error"]["data"] == {**LOST, "executed": "no"}
    assert len(backend.asked_for("tools/call")) == 2


async def test_who_asks_far_too_often_does_not_come_to_the_store_with_it(autojump_clock: MockClock):
    store = Later()
    async with open_gateway(alpha(), buckets=store) as gateway:
        enforce(gateway, limits(alpha="1/h"))
        client = modern(gateway)
        await called(client)
        store.waits = True
        first = client.begin("tools/call", {"name": "alpha__read", "arguments": {}})
        await gateway.settle()
        store.asked.pop()()
        await first.result()
        for _ in range(100):
            assert "retry in 3600 s" in await called(client)
        assert store.asked == []
        await trio.sleep(1.1)
        client.begin("tools/call", {"name": "alpha__read", "arguments": {}})
        await gateway.settle()
        assert len(store.asked) == 1


# Once ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("endpoint", "prefix"), [("alpha", ""), ("", "alpha__")])
async def test_a_retry_with_the_state_of_a_call_is_free_once(
    autojump_clock: MockClock, era: str, endpoint: str, prefix: str
):
    async with open_modern(Peer("alpha", modern=era == "modern")) as at:
        enforce(at.gateway, limits(alpha="1/h"))
        client = at.client(endpoint, Principal("ann"), capabilities=FORM)
        pending = client.begin("tools/call", {"name": f"{prefix}echo", "arguments": {"b": 1, "a": [2]}})
        call = await at["alpha"].next()
        if era == "legacy":
            call.suspend(QUESTION)
        else:
            ask(call, requestState="theirs")
        state = (await pending.result())["requestState"]
        params = {**again(state, **{"q-1" if era == "legacy" else "k": ANSWER}), "name": f"{prefix}echo"}

        def came() -> int:
            return len(at["alpha"].resumes) if era == "legacy" else len(at["alpha"].asked_for("tools/call"))

        before, retry = came(), client.begin("tools/call", params)
        await at.gateway.settle()
        assert came() == before + 1
        for _ in range(3):  # who has it once more pays for it
            assert (await client.begin("tools/call", params).result())["isError"] is True
        assert came() == before + 1
        assert (counted(at.gateway, "passed"), counted(at.gateway, "free")) == (1, 1)
        retry.drop()


class Page:
    """Where users connect their accounts."""

    connected = False

    def lacks(self, principal: str, backend: str) -> bool:
        return not self.connected

    def invite(self, principal: str, backend: str, client: str, era: str, done: Done) -> None:
        done(Invitation("https://gateway.test/connect/1", "i-1", "https://gateway.test/connect"))

    def wait(self, principal: str, backend: str, seconds: float, done: Done) -> None:
        done(self.connected)


async def test_who_was_sent_to_connect_an_account_before_limits_were_asked_pays_when_it_comes_again(
    autojump_clock: MockClock,
):
    """A name that no list has yet may be there with an account: such a call was not let through by limits."""
    backend = alpha()
    backend.spec = replace(backend.spec, auth=UpstreamAuth("user"))
    async with open_gateway(backend) as gateway:
        page = gateway.services.accounts = Page()
        enforce(gateway, limits(alpha="1/h"))
        client = ModernClient(gateway.door, gateway.nursery, "", BOB, capabilities={"elicitation": {"url": {}}})
        call: Any = {"name": "alpha__late", "arguments": {}}
        states = [(await client.call("tools/call", call))["requestState"] for _ in range(3)]
        page.connected = True
        backend.lists["tools/list"].append(tool("late"))
        await trio.sleep(400)  # its lists are fetched anew
        await client.call("tools/list")
        went = {"inputResponses": {"url-1": {"action": "accept"}}}
        said = [await client.call("tools/call", {**call, **went, "requestState": state}) for state in states]
        assert [result.get("isError", False) for result in said] == [False, True, True]
        assert (counted(gateway, "passed"), counted(gateway, "free")) == (1, 0)


async def test_what_is_asked_again_before_it_is_answered_is_not_free_more_often(autojump_clock: MockClock):
    """A retry without the answer gets another state, which was paid for by the same call."""
    async with open_modern(Peer("alpha", modern=False)) as at:
        enforce(at.gateway, limits(alpha="1/h"))
        client = at.client("alpha", Principal("ann"), capabilities={"elicitation": {"url": {}}})
        echo = {"name": "echo", "arguments": {"b": 1, "a": [2]}}
        pending = client.begin("tools/call", echo)
        visit = {"mode": "url", "elicitationId": "e", "url": "https://example.test/", "message": "go"}
        (await at["alpha"].next()).error(-32042, "go there", {"elicitations": [visit]})
        first = (await pending.result())["requestState"]
        states = [(await client.call("tools/call", {**echo, "requestState": first}))["requestState"] for _ in range(3)]
        accepted = {"url-1": {"action": "accept"}}
        ran = client.begin("tools/call", {**echo, "requestState": states[0], "inputResponses": accepted})
        await at.gateway.settle()
        for state in (*states, first):
            params = {**echo, "requestState": state, "inputResponses": accepted}
            assert (await client.begin("tools/call", params).result())["isError"] is True
        assert len(at["alpha"].asked_for("tools/call")) == 2
        ran.drop()


# Operators -----------------------------------------------------------------------------------------------------------


async def test_observing_limits_counts_records_and_lets_all_through(autojump_clock: MockClock):
    store = Later()
    async with open_gateway(alpha(), buckets=store) as gateway:
        enforce(gateway, limits(alpha="1/min", mcp="2/min"), enforced=False)
        client = modern(gateway)
        assert [await called(client) for _ in range(3)] == ["alpha: read"] * 3
        assert (counted(gateway, "passed", mode="observe"), counted(gateway, "refused", mode="observe")) == (1, 2)
        assert counted(gateway, "refused", "endpoint", "observe") == 1
        lines = gateway.log.events("limit_reached")
        assert [(line["mode"], line["kind"]) for line in lines] == [
            ("observe", "tool"),
            ("observe", "endpoint"),
            ("observe", "tool"),
        ]


async def test_operators_are_told_which_rule_it_was_and_clients_are_not(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, limits(alpha="1/min", mcp="3/min"))
        trail = Trail()
        object.__setattr__(gateway.services, "audit", trail)
        client = modern(gateway)
        await called(client)
        words = await called(client)
        assert "policy" not in words
        await client.call("tools/list")
        error = await refused(client.begin("tools/list"))
        assert "policy" not in json.dumps([error.message, error.data])
        one, other = trail.lines
        assert one["event"] == other["event"] == "deny"
        about = {"outcome": "limited", "mode": "enforce", "principal": "ann"}
        assert about.items() <= one.items()
        assert about.items() <= other.items()
        assert (one["item"], one["rule"]) == ("tool:read", "policy[1]: alpha:*: 1/min for each principal")
        assert (other["item"], other["rule"]) == ("endpoint:/mcp", "policy[1]: /mcp*: 3/min for each principal")


async def test_refusals_of_one_kind_are_one_line_of_the_trail_and_a_count(autojump_clock: MockClock, tmp_path: Path):
    """Who does not mind being refused could fill the disk. Each call has a line of its own besides."""
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, limits(alpha="1/min", mcp="5/min"))
        path = tmp_path / "audit.jsonl"
        journal = Journal(FileSink(path), key=b"k" * 32)
        object.__setattr__(gateway.services, "audit", journal)
        client = modern(gateway)
        for number in range(5):
            await client.call("tools/call", {"name": "alpha__read", "arguments": {"number": number}})
        for _ in range(4):
            assert (await refused(client.begin("tools/list"))).data["reason"] == "limited"
        autojump_clock.autojump_threshold = math.inf  # it would not wait for a thread
        await journal.aclose(PATIENCE)
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        denied = [(line["item"], line.get("count")) for line in lines if line["event"] == "deny"]
        assert denied == [("tool:read", None), ("endpoint:/mcp", None), ("tool:read", 3), ("endpoint:/mcp", 3)]


async def test_other_limits_count_from_the_next_call_on_and_go_on_where_the_former_ones_were(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, limits(alpha="2/day"))
        client = await legacy(gateway)
        stream = client.listen()
        await client.names()
        assert [await called(client) for _ in range(2)] == ["alpha: read"] * 2
        assert (await called(client)).startswith("refused")
        enforce(gateway, limits(alpha="3/day"))
        assert await called(client) == "alpha: read"
        assert (await called(client)).startswith("refused")
        enforce(gateway)
        assert await called(client) == "alpha: read"
        await trio.sleep(30)
        assert stream.seen("notifications/tools/list_changed") == []  # nobody sees other things


async def test_a_limit_that_is_another_one_ends_no_subscription(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, limits(alpha="2/day"))
        client = modern(gateway)
        listening = client.listen(toolsListChanged=True)
        await listening.next("notifications/subscriptions/acknowledged")
        enforce(gateway, limits(alpha="3/day", mcp="9/min"))
        await trio.sleep(30)
        assert listening.messages[1:] == []
        listening.drop()


async def test_without_limits_nobody_asks_the_store(autojump_clock: MockClock):
    store = Later()
    store.waits = True
    async with open_gateway(alpha(), buckets=store) as gateway:
        for rules in ([ALL], [ALL, limits(groups=("dev",), alpha="1/s")]):
            gateway.change(policy=Policy(rules))
            assert await called(modern(gateway)) == "alpha: read"
        assert store.asked == []


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob"]), st.sampled_from(["read", "write"]), st.sampled_from([0.0, 3.0, 21.0])
        ),
        max_size=25,
    )
)
def test_any_order_of_calls_gets_what_plain_counting_gives(calls: list[tuple[str, str, float]]) -> None:
    """Two principals, a limit for each and one for all: all or nothing."""

    async def run() -> None:
        async with open_gateway(alpha()) as gateway:
            enforce(
                gateway,
                limits(alpha="3/min"),
                limits("policy[2]", alpha_read=("4/min", {"per": "all"})),
            )
            clients = {
                name: ModernClient(gateway.door, gateway.nursery, "", Principal(name)) for name in ("ann", "bob")
            }
            tokens = {"ann": 3.0, "bob": 3.0, "all": 4.0}
            last = trio.current_time()
            for who, tool, later in calls:
                await trio.sleep(later)
                now = trio.current_time()
                for name, most in (("ann", 3.0), ("bob", 3.0), ("all", 4.0)):
                    tokens[name] = min(most, tokens[name] + (now - last) * most / 60)
                last = now
                wanted = [who] + ["all"] * (tool == "read")
                passes = all(tokens[name] > 1 - 1e-3 for name in wanted)
                said = await called(clients[who], f"alpha__{tool}")
                assert said.startswith("refused") != passes
                if passes:
                    for name in wanted:
                        tokens[name] -= 1

    trio.run(run, clock=MockClock(autojump_threshold=0))
