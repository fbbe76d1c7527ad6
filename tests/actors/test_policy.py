"""Who may see and do what, on every way to a server: what is hidden is as if there were none of it, and no server is
started, connected or asked for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.duplex import Duplex
from actors.ports import NO_AUDIT, NO_RIGHTS, Principal
from actors.protocol.policy import Policy, Rule, Ruleset, Who, item
from actors.protocol.rights import Rights
from gateway.config.conditions import CelCondition
from tests.support.door_client import Client, Pending, RpcError
from tests.support.duplex_client import Wire
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_client import ModernClient
from tests.support.trail import Trail

ANN = Principal("ann")
DEV = Rights(groups=frozenset({"dev"}))
OPS = Rights(groups=frozenset({"ops"}))


def rule(place: str = "policy[0]", *, when: Any = None, **given: Any) -> Rule:
    who = Who(**{key: frozenset(value) for key, value in given.pop("who", {}).items()})
    scopes = tuple((item(name), frozenset(needed)) for name, needed in given.pop("scopes", {}).items())
    lists = {key: tuple(map(item, given.pop(key, ()))) for key in ("allow", "deny")}
    return Rule(place, who, scopes=scopes, when=when, **lists, **given)


def alpha(name: str = "alpha", **more: Any) -> Backend:
    return Backend(
        name,
        tools=("read", "write", "delete_all"),
        prompts=("hello", "secret"),
        resources=("test:///pub/a", "test:///priv/b"),
        templates=("test:///pub/{x}", "test:///priv/{x}"),
        **more,
    )


def modern(gateway: Gateway, endpoint: str = "", rights: Rights = NO_RIGHTS, **more: Any) -> ModernClient:
    client = ModernClient(gateway.door, gateway.nursery, endpoint, ANN, **more)
    client.rights = rights
    return client


async def legacy(gateway: Gateway, endpoint: str = "", rights: Rights = NO_RIGHTS, **more: Any) -> Client:
    client = gateway.client(endpoint, ANN, **more)
    client.rights = rights
    await client.initialize()
    return client


def enforce(gateway: Gateway, *rules: Rule, enforced: bool = True) -> None:
    gateway.change(policy=Policy(rules, enforced=enforced))


async def refused(asked: Pending) -> RpcError:
    return await asked.error()


BOTH = pytest.mark.parametrize("era", ["legacy", "modern"])
ENDPOINTS = pytest.mark.parametrize("endpoint", ["", "group", "alpha"])


async def client_of(era: str, gateway: Gateway, endpoint: str, rights: Rights = NO_RIGHTS) -> Client | ModernClient:
    return await legacy(gateway, endpoint, rights) if era == "legacy" else modern(gateway, endpoint, rights)


def named(endpoint: str, name: str) -> str:
    return name if endpoint == "alpha" else f"alpha__{name}"


def located(endpoint: str, uri: str) -> str:
    return uri if endpoint == "alpha" else f"alpha+{uri}"


RULES = (
    rule("policy[0]", allow=["alpha:*", "prompt:alpha:*", "resource:alpha:*"]),
    rule("policy[1]", deny=["alpha:delete_*", "prompt:alpha:secret", "resource:alpha:test:///priv/*"]),
)


@BOTH
@ENDPOINTS
async def test_lists_are_without_what_is_hidden(era: str, endpoint: str, autojump_clock: MockClock):
    async with open_gateway(alpha(), groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, *RULES)
        client = await client_of(era, gateway, endpoint)
        tools = await client.call("tools/list")
        prompts, resources = await client.call("prompts/list"), await client.call("resources/list")
        templates = await client.call("resources/templates/list")
        assert [t["name"] for t in tools["tools"]] == [named(endpoint, n) for n in ("read", "write")]
        assert [p["name"] for p in prompts["prompts"]] == [named(endpoint, "hello")]
        assert [r["uri"] for r in resources["resources"]] == [located(endpoint, "test:///pub/a")]
        assert [t["uriTemplate"] for t in templates["resourceTemplates"]] == [located(endpoint, "test:///pub/{x}")]
        if era == "modern":
            assert {page["cacheScope"] for page in (tools, prompts, resources, templates)} == {"private"}


@BOTH
@ENDPOINTS
async def test_9_what_is_hidden_is_answered_as_what_there_is_not_and_its_server_hears_nothing(
    era: str, endpoint: str, autojump_clock: MockClock
):
    backend = alpha()
    async with open_gateway(backend, groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, *RULES)
        client = await client_of(era, gateway, endpoint)
        hidden = located(endpoint, "test:///priv/b")
        asks: list[tuple[str, Mapping[str, Any]]] = [
            ("tools/call", {"name": named(endpoint, "delete_all"), "arguments": {}}),
            ("prompts/get", {"name": named(endpoint, "secret")}),
            ("resources/read", {"uri": hidden}),
            ("resources/read", {"uri": located(endpoint, "TEST:///priv/b")}),
            ("resources/read", {"uri": located(endpoint, "test:///pub/../priv/b")}),
            ("resources/read", {"uri": located(endpoint, "test:///pub/%2e%2e/priv/b")}),
            ("resources/read", {"uri": located(endpoint, "test:///%70riv/b")}),
            ("completion/complete", complete(prompt=named(endpoint, "secret"))),
            ("completion/complete", complete(uri=located(endpoint, "test:///priv/{x}"))),
            ("completion/complete", complete(uri=hidden)),
        ]
        if era == "legacy":
            asks += [("resources/subscribe", {"uri": hidden}), ("resources/unsubscribe", {"uri": hidden})]
        for method, params in asks:
            error = await refused(client.begin(method, params))
            of_resource = method.startswith("resources/")
            assert error.code == (-32002 if of_resource and era == "legacy" else -32602), (method, params)
            if of_resource:
                assert error.data == {"uri": params["uri"]}
        for method in ("tools/call", "prompts/get", "resources/read", "completion/complete", "resources/subscribe"):
            assert backend.asked_for(method) == []


def complete(prompt: str | None = None, uri: str | None = None) -> dict[str, Any]:
    ref = {"type": "ref/prompt", "name": prompt} if prompt else {"type": "ref/resource", "uri": uri}
    return {"ref": ref, "argument": {"name": "x", "value": ""}}


@BOTH
async def test_9_an_unknown_name_and_a_hidden_one_get_the_same_words(era: str, autojump_clock: MockClock):
    async with open_gateway(alpha(), alpha("beta")) as gateway:
        enforce(gateway, rule(allow=["alpha:read"]))
        client = await client_of(era, gateway, "")
        for hidden, unknown in (("alpha__write", "alpha__wrote"), ("beta__read", "gamma_read"), ("write", "wrote")):
            errors = [
                await refused(client.begin("tools/call", {"name": n, "arguments": {}})) for n in (hidden, unknown)
            ]
            assert errors[0].code == errors[1].code
            assert errors[0].message.replace(hidden, unknown) == errors[1].message
            assert errors[0].data == errors[1].data


@BOTH
async def test_9_a_server_of_which_nothing_is_allowed_is_not_there(era: str, autojump_clock: MockClock):
    beta = alpha("beta")
    async with open_gateway(alpha(), beta, groups={"others": ("beta",)}) as gateway:
        enforce(gateway, rule(who={"groups": ["dev"]}, allow=["*:*"]), rule("policy[1]", allow=["alpha:*"]))
        client = await client_of(era, gateway, "", OPS)
        listed = await client.call("tools/list")
        assert {t["name"] for t in listed["tools"]} == {"alpha__read", "alpha__write", "alpha__delete_all"}
        await refused(client.begin("tools/call", {"name": "beta__read", "arguments": {}}))
        for endpoint in ("beta", "others", "nonsense"):
            there = modern(gateway, endpoint, OPS) if era == "modern" else gateway.client(endpoint, ANN)
            there.rights = OPS
            asked = there.begin("tools/list" if era == "modern" else "initialize", {})
            assert await asked.head() == 404
        assert beta.upstreams == []
        dev = await client_of(era, gateway, "beta", DEV)
        assert [t["name"] for t in (await dev.call("tools/list"))["tools"]] == ["read", "write", "delete_all"]


async def test_9_in_a_batch_each_request_is_decided_for_itself(autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        enforce(gateway, *RULES, rule("policy[2]", scopes={"alpha:write": ["w"]}))
        client = await legacy(gateway, "alpha", version="2025-03-26")
        calls = [
            {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": name, "arguments": {}}}
            for n, name in enumerate(("read", "delete_all", "write"))
        ]
        batch = client.post(calls)
        assert await batch.head() == 200
        await batch.end()
        answers = {message["id"]: message for message in batch.messages}
        assert "result" in answers[0]
        assert answers[1]["error"]["code"] == -32602
        assert answers[2]["error"]["code"] == -32603
        assert answers[2]["error"]["data"]["required_scopes"] == ["w"]
        assert [r.params["name"] for r in backend.asked_for("tools/call")] == ["read"]


@BOTH
@ENDPOINTS
@pytest.mark.parametrize("guarded", ["rules", "filter", "trail"])
async def test_9_what_some_readers_take_for_another_name_is_sent_to_no_server(
    guarded: str, endpoint: str, era: str, autojump_clock: MockClock
):
    """Decoders of Go and .NET make no difference between `name` and `Name`, and take the last."""
    backend = alpha(**({"disabled_tools": ("delete_*",)} if guarded == "filter" else {}))
    audit = Trail() if guarded == "trail" else NO_AUDIT
    async with open_gateway(backend, groups={"group": ("alpha",)}, audit=audit) as gateway:
        if guarded == "rules":
            enforce(gateway, *RULES)
        client = await client_of(era, gateway, endpoint)
        for params in (
            {"name": named(endpoint, "read"), "Name": "delete_all", "arguments": {}},
            {"name": named(endpoint, "read"), "arguments": {}, "Arguments": {"path": "/etc"}},
        ):
            error = await refused(client.begin("tools/call", params))
            assert error.code == -32602
            assert "could be taken for" in error.message
        assert backend.asked_for("tools/call") == []
        reading = client.begin("resources/read", {"uri": located(endpoint, "test:///pub/a"), "URI": "test:///priv/b"})
        assert (await refused(reading)).code == -32602
        assert backend.asked_for("resources/read") == []


@BOTH
async def test_a_condition_sees_the_arguments_that_its_server_sees(era: str, autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        enforce(gateway, rule(allow=["alpha:*"], when=CelCondition("!has(args.path) || args.path == '/pub'")))
        client = await client_of(era, gateway, "")
        for arguments in ({"Path": "/etc"}, {"path": "/pub", "PATH": "/etc"}, {"x": [{"y": 1, "Y": 2}]}):
            error = await refused(client.begin("tools/call", {"name": "alpha__read", "arguments": arguments}))
            assert error.code == -32602
        assert backend.asked_for("tools/call") == []


@BOTH
@pytest.mark.parametrize("enforced", [True, False])
async def test_arguments_that_conditions_are_not_asked_about_are_recorded_as_what_rules_refuse(
    enforced: bool, era: str, autojump_clock: MockClock
):
    """And rules that are only observed change nothing."""
    backend, trail, arguments = alpha(), Trail(), {"path": "/pub", "PATH": "/etc"}
    async with open_gateway(backend, audit=trail) as gateway:
        enforce(gateway, rule(allow=["alpha:*"], when=CelCondition("args.path == '/pub'")), enforced=enforced)
        client = await client_of(era, gateway, "")
        asked = client.begin("tools/call", {"name": "alpha__read", "arguments": arguments})
        if enforced:
            assert (await refused(asked)).code == -32602
            assert backend.asked_for("tools/call") == []
        else:
            await asked.result()
            assert [r.params["arguments"] for r in backend.asked_for("tools/call")] == [arguments]
        [denied] = trail.of("deny")
        assert (denied["mode"], denied["item"]) == ("enforce" if enforced else "observe", "tool:read")
        assert "could be taken for" in denied["rule"]


@BOTH
async def test_the_arguments_of_what_no_condition_is_asked_about_are_its_own(era: str, autojump_clock: MockClock):
    """Two of its names may be alike, as in a document, and it may have any number of values."""
    backend = alpha()
    async with open_gateway(backend) as gateway:
        rules = (rule(allow=["*:*"]), rule("policy[1]", deny=["alpha:write"], when=CelCondition("args.path != '/pub'")))
        enforce(gateway, *rules)
        client = await client_of(era, gateway, "")
        arguments = {"path": "/pub", "Path": "/etc", "documents": [0] * 20_000}
        await client.begin("tools/call", {"name": "alpha__read", "arguments": arguments}).result()
        assert [r.params["arguments"] for r in backend.asked_for("tools/call")] == [arguments]
        asked = client.begin("tools/call", {"name": "alpha__write", "arguments": arguments})
        assert (await refused(asked)).code == -32602


@ENDPOINTS
async def test_9_of_two_names_in_one_call_the_one_that_was_judged_is_sent(endpoint: str, autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend, groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, *RULES)
        client = await legacy(gateway, endpoint)

        async def call(first: str, second: str) -> Any:
            params = f'{{"name":"{first}","name":"{second}","arguments":{{}}}}'
            asked = client.post(f'{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{params}}}'.encode())
            await asked.end()
            return asked.messages[0]

        good, bad = named(endpoint, "read"), named(endpoint, "delete_all")
        assert "result" in await call(bad, good)
        assert "error" in await call(good, bad)
        assert "result" in await call("delete_all", "read")  # by the name that its one server has for it
        assert {request.params["name"] for request in backend.asked_for("tools/call")} == {"read"}
        frames = [bytes(sent.frame) for upstream in backend.upstreams for sent in upstream.transport.sent]
        assert all(frame.count(b'"name":') == 1 for frame in frames if b"tools/call" in frame)


@BOTH
@ENDPOINTS
async def test_a_missing_scope_is_a_403_and_what_needs_it_stays_listed(
    era: str, endpoint: str, autojump_clock: MockClock
):
    backend = alpha()
    async with open_gateway(backend, groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, rule(allow=["alpha:*"], scopes={"alpha:write": ["w", "x"]}))
        client = await client_of(era, gateway, endpoint, Rights(scopes=frozenset({"x"})))
        assert named(endpoint, "write") in [t["name"] for t in (await client.call("tools/list"))["tools"]]
        asked = client.begin("tools/call", {"name": named(endpoint, "write"), "arguments": {}})
        error = await refused(asked)
        assert asked.status == 403
        assert error.code == -32603
        assert error.data["required_scopes"] == ["w", "x"]
        assert backend.asked_for("tools/call") == []
        client.rights = Rights(scopes=frozenset({"x", "w"}))
        assert await client.call("tools/call", {"name": named(endpoint, "write"), "arguments": {}})


@BOTH
@ENDPOINTS
async def test_a_condition_on_arguments_decides_calls_and_hides_nothing(
    era: str, endpoint: str, autojump_clock: MockClock
):
    backend = alpha()
    async with open_gateway(backend, groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, rule(allow=["alpha:read"], when=CelCondition("args.limit <= 10 && 'dev' in groups")))
        client = await client_of(era, gateway, endpoint, DEV)
        tool = named(endpoint, "read")
        assert [t["name"] for t in (await client.call("tools/list"))["tools"]] == [tool]
        assert await client.call("tools/call", {"name": tool, "arguments": {"limit": 10}})
        unmet = await client.call("tools/call", {"name": tool, "arguments": {"limit": 11}})
        assert unmet["isError"] is True
        assert "args.limit <= 10" in unmet["content"][0]["text"]
        failed = await refused(client.begin("tools/call", {"name": tool, "arguments": {}}))
        assert failed.code == -32603
        client.rights = OPS
        assert (await client.call("tools/call", {"name": tool, "arguments": {"limit": 1}}))["isError"] is True
        assert [r.params["arguments"] for r in backend.asked_for("tools/call")] == [{"limit": 10}]


async def test_rights_are_those_of_each_request(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, rule(who={"groups": ["dev"]}, allow=["alpha:*"]), rule("policy[1]", allow=["alpha:read"]))
        client = await legacy(gateway, "", DEV)
        stream = client.listen()
        assert len(await client.names()) == 3
        client.rights = OPS
        await refused(client.begin("tools/call", {"name": "alpha__write", "arguments": {}}))
        await stream.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__read"]
        client.rights = DEV
        assert await client.tool("alpha__write")


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_changed_policy_counts_from_the_next_message_on_and_whom_it_concerns_is_told(
    endpoint: str, autojump_clock: MockClock
):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, rule(allow=["alpha:*"]))
        client, other = await legacy(gateway, endpoint, DEV), await legacy(gateway, endpoint, OPS)
        stream, quiet = client.listen(), other.listen()
        await client.names(), await other.names()
        enforce(gateway, rule(allow=["alpha:*"]), rule("policy[1]", who={"groups": ["dev"]}, deny=["alpha:delete_*"]))
        await refused(client.begin("tools/call", {"name": named(endpoint, "delete_all"), "arguments": {}}))
        assert await other.tool(named(endpoint, "delete_all"))
        await stream.next("notifications/tools/list_changed")
        assert len(await client.names()) == 2
        await trio.sleep(30)
        assert quiet.seen("notifications/tools/list_changed") == []
        gateway.change(policy=None)
        await stream.next("notifications/tools/list_changed")
        assert len(await client.names()) == 3


async def test_a_listen_ends_in_order_when_the_policy_changes_so_that_its_client_comes_again(
    autojump_clock: MockClock,
):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, rule(allow=["alpha:*"]))
        client = modern(gateway, "", DEV)
        listening = client.listen(tools=True)
        assert await listening.head() == 200
        await trio.sleep(30)
        assert not listening.done
        enforce(gateway, rule(allow=["alpha:*"]), rule("policy[1]", who={"groups": ["dev"]}, deny=["alpha:delete_*"]))
        assert (await listening.result())["resultType"] == "complete"
        assert await client.listen(tools=True).head() == 200
        assert len((await client.call("tools/list"))["tools"]) == 2


async def test_a_listen_of_whom_a_changed_policy_does_not_concern_goes_on(autojump_clock: MockClock):
    async with open_gateway(alpha(), alpha("beta")) as gateway:
        everything = rule(allow=["*:*"])
        enforce(gateway, everything)
        listening = {
            who: modern(gateway, endpoint, rights).listen(tools=True)
            for who, endpoint, rights in (("dev", "", DEV), ("ops", "", OPS), ("beta", "beta", DEV))
        }
        for heard in listening.values():
            assert await heard.head() == 200
        denied = rule("policy[0]", who={"groups": ["dev"]}, deny=["alpha:delete_*"])
        enforce(gateway, denied, rule("policy[1]", allow=["*:*"]))  # another place of a rule is no other rule
        assert (await listening["dev"].result())["resultType"] == "complete"
        assert listening["dev"].seen("notifications/tools/list_changed")
        await trio.sleep(30)
        assert not listening["ops"].done
        assert not listening["beta"].done
        gateway.change(policy=None)
        for heard in listening.values():
            assert (await heard.result())["resultType"] == "complete"


async def test_a_listen_ends_when_its_client_comes_with_a_newer_token_of_other_rights(autojump_clock: MockClock):
    def token(group: str, expiry: float, client: str = "app") -> Rights:
        return Rights("i", "ann", client, frozenset({group}), expiry=expiry)

    async with open_gateway(alpha()) as gateway:
        enforce(gateway, rule(who={"groups": ["dev"]}, allow=["alpha:*"]), rule("policy[1]", allow=["alpha:read"]))
        end = gateway.services.wall() + 3600
        client, other = modern(gateway, "", token("dev", end)), modern(gateway, "", token("dev", end, "another"))
        listening, others = client.listen(tools=True, prompts=True), other.listen(tools=True)
        assert (await listening.head(), await others.head()) == (200, 200)
        for same in (token("dev", end + 10), token("ops", end - 10)):  # the same rights; an older token
            client.rights = same
            assert await client.call("tools/list")
        await trio.sleep(30)
        assert not listening.done
        client.rights = token("ops2", end + 20)
        assert [t["name"] for t in (await client.call("tools/list"))["tools"]] == ["alpha__read"]
        assert (await listening.result())["resultType"] == "complete"
        assert listening.seen("notifications/tools/list_changed")
        await trio.sleep(30)
        assert not others.done


async def test_a_new_session_is_told_of_no_change(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, *RULES)
        client = await legacy(gateway, "", DEV)
        stream = client.listen()
        await client.names()
        await trio.sleep(30)
        assert stream.seen("notifications/tools/list_changed") == []


async def test_observing_refuses_nothing_and_counts(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, *RULES, enforced=False)
        client = await legacy(gateway)
        assert "alpha__delete_all" in await client.names()
        assert await client.tool("alpha__delete_all")
        assert gateway.telemetry.total("stagedoor_policy_decisions_total", "deny", "observe") == 1
        assert gateway.log.events("policy_refused")[0]["rule"] == "policy[1]: deny alpha:delete_*"


async def test_the_rule_is_told_to_operators_and_not_to_the_client(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, *RULES)
        client = await legacy(gateway, "alpha")
        error = await refused(client.begin("tools/call", {"name": "delete_all", "arguments": {}}))
        assert "policy" not in json.dumps([error.message, error.data])
        (line,) = gateway.log.events("policy_refused")
        assert (line["rule"], line["principal"], line["item"]) == (
            "policy[1]: deny alpha:delete_*",
            "ann",
            "delete_all",
        )
        assert gateway.telemetry.total("stagedoor_policy_decisions_total", "deny", "enforce") == 1


async def test_the_audit_trail_has_what_was_refused_and_why(autojump_clock: MockClock):
    async with open_gateway(alpha()) as gateway:
        enforce(gateway, *RULES)
        trail = Trail()
        object.__setattr__(gateway.services, "audit", trail)
        client = await legacy(gateway, "", DEV)
        await client.tool("alpha__read", secret="s")
        await refused(client.begin("resources/read", {"uri": "alpha+test:///priv/b"}))
        (line,) = trail.lines
        assert (line["event"], line["rule"]) == ("deny", "policy[1]: deny resource:alpha:test:///priv/*")
        assert (line["principal"], line["server"], line["item"]) == ("ann", "alpha", "resource:test:///priv/b")


async def test_a_subscription_to_what_is_hidden_now_says_nothing_any_more(autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        enforce(gateway, rule(allow=["alpha:*", "resource:alpha:*"]))
        client = await legacy(gateway, "alpha")
        stream = client.listen()
        await client.call("resources/subscribe", {"uri": "test:///priv/b"})
        enforce(gateway, *RULES)
        backend.upstream.notify("notifications/resources/updated", {"uri": "test:///priv/b"})
        backend.upstream.notify("notifications/resources/updated", {"uri": "test:///pub/a"})
        updated = await stream.next("notifications/resources/updated")
        assert updated["params"] == {"uri": "test:///pub/a"}


async def test_a_listen_is_not_acknowledged_what_is_hidden(autojump_clock: MockClock):
    backend = alpha()
    async with open_gateway(backend) as gateway:
        enforce(gateway, *RULES)
        client = modern(gateway)
        wanted = ["alpha+test:///priv/b", "alpha+test:///pub/a"]
        listening = client.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": wanted}})
        acknowledged = await listening.next("notifications/subscriptions/acknowledged")
        assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": ["alpha+test:///pub/a"]}
        assert [r.params["uri"] for r in backend.asked_for("resources/subscribe")] == ["test:///pub/a"]


@BOTH
async def test_links_to_what_is_hidden_are_not_in_results(era: str, autojump_clock: MockClock):
    backend = alpha()
    links = [{"type": "resource_link", "uri": uri, "name": "x"} for uri in ("test:///priv/b", "test:///pub/a")]
    backend.results["tools/call"] = lambda request: {"content": [*links, {"type": "text", "text": "done"}]}
    async with open_gateway(backend) as gateway:
        enforce(gateway, *RULES)
        client = await client_of(era, gateway, "")
        result = await client.call("tools/call", {"name": "alpha__read", "arguments": {}})
        assert [block.get("uri") for block in result["content"]] == ["alpha+test:///pub/a", None]


OWN_RIGHTS = (
    rule(allow=["alpha:*", "resource:alpha:test:///pub/*"]),
    rule("policy[1]", who={"groups": ["dev"]}, allow=["resource:alpha:test:///priv/*"]),
)


@BOTH
@ENDPOINTS
async def test_links_in_a_result_are_those_that_its_own_request_may_see(
    era: str, endpoint: str, autojump_clock: MockClock
):
    backend = alpha(held={"read"})
    link = {"type": "resource_link", "uri": "test:///priv/b", "name": "x"}
    content = {"content": [link, {"type": "text", "text": "done"}]}
    async with open_gateway(backend, groups={"group": ("alpha",)}) as gateway:
        enforce(gateway, *OWN_RIGHTS)
        client = await client_of(era, gateway, endpoint, DEV)
        for before, after, kinds in ((DEV, OPS, ["resource_link", "text"]), (OPS, DEV, ["text"])):
            client.rights = before
            called = client.begin("tools/call", {"name": named(endpoint, "read"), "arguments": {}})
            request = await backend.next()
            client.rights = after
            await client.call("tools/list")
            request.result(content)
            assert [block["type"] for block in (await called.result())["content"]] == kinds


async def test_a_get_stream_tells_what_the_token_that_opened_it_may_see(autojump_clock: MockClock):
    backend = alpha()
    private, public = {"uri": "test:///priv/b"}, {"uri": "test:///pub/a"}
    async with open_gateway(backend) as gateway:
        enforce(gateway, *OWN_RIGHTS)
        client = await legacy(gateway, "alpha", DEV)
        await client.call("resources/subscribe", private)
        for opens, asks, told in ((OPS, DEV, public), (DEV, OPS, private)):
            client.rights = opens
            stream = client.listen()
            await trio.sleep(1)
            client.rights = asks
            await client.call("tools/list")
            backend.upstream.notify("notifications/resources/updated", private)
            backend.upstream.notify("notifications/resources/updated", public)
            assert (await stream.next("notifications/resources/updated"))["params"] == told
            stream.drop()
            await trio.sleep(1)


UPDATED = "notifications/resources/updated"


@pytest.mark.parametrize("endpoint", ["alpha", ""])
async def test_what_has_waited_for_a_get_stream_is_told_as_far_as_its_token_may_see_it(
    endpoint: str, autojump_clock: MockClock
):
    backend = alpha()
    private, public = {"uri": "test:///priv/b"}, {"uri": "test:///pub/a"}
    prefix = "" if endpoint else "alpha+"
    for reads, told in ((OPS, [public]), (DEV, [private, public])):
        async with open_gateway(backend) as gateway:
            enforce(gateway, *OWN_RIGHTS)
            client = await legacy(gateway, endpoint, DEV)
            await client.call("resources/subscribe", {"uri": prefix + private["uri"]})
            client.rights = reads  # and with these it is heard before, which decides nothing
            await client.call("tools/list")
            backend.upstream.notify(UPDATED, private)
            backend.upstream.notify(UPDATED, public)
            await trio.sleep(5)
            stream = client.listen()
            await trio.sleep(5)
            seen = [message["params"]["uri"] for message in stream.messages if message.get("method") == UPDATED]
            assert seen == [prefix + one["uri"] for one in told]


async def test_what_a_get_stream_has_told_is_not_told_again_to_a_token_that_sees_less(autojump_clock: MockClock):
    backend = alpha()
    private, public = {"uri": "test:///priv/b"}, {"uri": "test:///pub/a"}
    async with open_gateway(backend) as gateway:
        enforce(gateway, *OWN_RIGHTS)
        client = await legacy(gateway, "alpha", DEV)
        for one in (private, public):
            await client.call("resources/subscribe", one)
        stream = client.listen()
        backend.upstream.notify(UPDATED, public)
        await stream.next(UPDATED)
        after = next(event.id for event in reversed(stream.events) if event.id)
        for reads, told in ((DEV, [private]), (OPS, [public])):
            backend.upstream.notify(UPDATED, private)
            await trio.sleep(5)
            stream.drop()
            await trio.sleep(5)
            client.rights = reads
            stream = client.listen(last_event_id=after)
            await trio.sleep(30)
            seen = [message["params"] for message in stream.messages if message.get("method") == UPDATED]
            assert seen[: len(told)] == told
            assert (private in seen) == (reads is DEV)


async def test_a_channel_listens_with_the_rights_that_its_client_came_with_last(autojump_clock: MockClock):
    backend = alpha()
    private, public = {"uri": "test:///priv/b"}, {"uri": "test:///pub/a"}
    async with open_gateway(backend) as gateway:
        enforce(gateway, *OWN_RIGHTS)
        wire = Wire()
        wire.rights = DEV
        gateway.nursery.start_soon(Duplex(gateway.door, gateway.services.limits), wire, "alpha", ANN)
        await wire.initialize()
        await wire.call(1, "resources/subscribe", private)
        for id, (rights, told) in enumerate(((DEV, [private, public]), (OPS, [public]), (DEV, [private, public])), 2):
            wire.rights = rights
            await wire.call(id, "tools/list")
            await trio.sleep(5)
            wire.got.clear()
            backend.upstream.notify("notifications/resources/updated", private)
            backend.upstream.notify("notifications/resources/updated", public)
            await trio.sleep(5)
            updated = [m["params"] for m in wire.got if m.get("method") == "notifications/resources/updated"]
            assert updated == told
        wire.hang_up()


async def test_a_method_that_nobody_here_knows_counts_as_a_tool_of_its_name(autojump_clock: MockClock):
    backend = alpha()
    backend.results["vendor/purge"] = lambda request: {"done": True}
    async with open_gateway(backend) as gateway:
        client = await legacy(gateway, "alpha")
        assert await client.call("vendor/purge") == {"done": True}
        enforce(gateway, *RULES, rule("policy[2]", deny=["alpha:vendor/*"]))
        assert (await refused(client.begin("vendor/purge"))).code == -32601
        assert len(backend.asked_for("vendor/purge")) == 1


async def test_rules_are_asked_once_about_a_long_list_by_all_who_see_the_same(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    decide = Ruleset.decide

    def counted(ruleset: Ruleset, kind: Any, *about: Any) -> Any:
        nonlocal asked
        asked += kind == "template"
        return decide(ruleset, kind, *about)

    monkeypatch.setattr(Ruleset, "decide", counted)
    backend = Backend("alpha")
    listed = [{"name": f"n{n}", "uriTemplate": f"file:///{n}/{{x}}"} for n in range(600)]
    backend.results["resources/templates/list"] = lambda _: {"resourceTemplates": listed}
    async with open_gateway(backend) as gateway:
        enforce(gateway, rule(allow=["resource:alpha:*"]), rule("policy[1]", deny=["resource:alpha:file:///7/*"]))
        for _ in range(3):
            client = await gateway.connect()
            found = (await client.call("resources/templates/list"))["resourceTemplates"]
            assert len(found) == 599
        assert asked == 600


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_rules_are_asked_about_so_many_templates_of_a_list_and_no_more(
    endpoint: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.endpoints.guard.TEMPLATES_MAX", 3)
    backend = Backend("alpha")
    listed = [{"name": f"n{n}", "uriTemplate": f"file:///{n}/{{x}}"} for n in range(5)]
    backend.results["resources/templates/list"] = lambda _: {"resourceTemplates": listed}
    async with open_gateway(backend) as gateway:
        client = await gateway.connect(endpoint)
        assert len((await client.call("resources/templates/list"))["resourceTemplates"]) == 5
        enforce(gateway, rule(allow=["resource:alpha:*"]))
        found = (await client.call("resources/templates/list"))["resourceTemplates"]
        assert [template["name"] for template in found] == ["n0", "n1", "n2"]
