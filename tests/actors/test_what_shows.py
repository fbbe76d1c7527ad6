"""What a principal may not see never shows in anything that it gets: by random rules, on every way, in both eras.

Each tool, prompt, resource and template has a word of its own, which its server says wherever it speaks of it. First
all is allowed, so that there are tasks and subscriptions of before; then everything is asked for under the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.protocol.policy import Rule
from actors.protocol.rights import Rights
from tests.actors.test_policy import ANN, complete, enforce, legacy, modern, rule
from tests.support.door_client import Client, Message, Pending, RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import EVERYTHING, Backend, Request, resource, tool
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

NAMES = ("a", "ab", "b")
TEMPLATES = ("test:///a{x}", "test:///{x}/c")
EXPANDED = ("test:///az", "test:///b/c")
TASKS: Any = {"io.modelcontextprotocol/tasks": {}}
AT = "2026-01-01T00:00:00Z"

Thing = tuple[str, str, str]
"""Server, kind, name or URI."""

patterns = st.builds("{}:{}".format, st.sampled_from(["one", "two", "*"]), st.sampled_from(["a", "a*", "*b", "*"]))
rules = st.builds(
    dict,
    who=st.fixed_dictionaries({}, optional={"groups": st.sets(st.sampled_from(["g", "h"]), min_size=1)}),
    kinds=st.sets(st.sampled_from(["tool", "prompt", "resource"]), min_size=1),
    allow=st.lists(patterns, max_size=2),
    deny=st.lists(patterns, max_size=1),
)


def items(patterns: Iterable[str], kinds: set[str]) -> list[str]:
    written = {
        "tool": "{}:{}".format,
        "prompt": "prompt:{}:{}".format,
        "resource": "resource:{}:test:///{}".format,
    }
    return [written[kind](*pattern.split(":")) for kind in sorted(kinds) for pattern in patterns]


def word(server: str, kind: str, name: str) -> str:
    return f"~{server} {kind} {name}~"


# Two servers that talk of everything they have ----------------------------------------------------------------------


def talkative(kind: type[Any], name: str, declared: Mapping[str, Any]) -> Any:
    backend = kind(
        name,
        tools=[tool(n, description=word(name, "tool", n), execution={"taskSupport": "optional"}) for n in NAMES],
        resources=[resource(f"test:///{n}", description=word(name, "resource", f"test:///{n}")) for n in NAMES],
        capabilities={**EVERYTHING, **declared},
    )
    backend.lists["prompts/list"] = [{"name": n, "description": word(name, "prompt", n)} for n in NAMES]
    backend.lists["resources/templates/list"] = [
        {"uriTemplate": t, "name": "t", "description": word(name, "template", t)} for t in TEMPLATES
    ]
    links = [{"type": "resource_link", "name": "x", **item} for item in backend.lists["resources/list"]]
    whole = {"resultType": "complete"} if kind is ModernBackend else {}

    def content(of: str, called: str) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": word(name, of, called)}, *links], **whole}

    def call(request: Request) -> dict[str, Any]:
        called = request.params["name"]
        task = {"taskId": called, "status": "working", "createdAt": AT, "lastUpdatedAt": AT}
        if "task" in request.params:
            return {"task": {**task, "ttl": None}}
        if request.params["arguments"].get("task"):
            return {"resultType": "task", **task, "ttlMs": None}
        return content("tool", called)

    def get(request: Request) -> dict[str, Any]:
        id = request.params["taskId"]
        task = {"taskId": id, "status": "completed", "createdAt": AT, "lastUpdatedAt": AT}
        return {**task, **whole, "result": content("tool", id)} if whole else {**task, "ttl": None}

    def completion(request: Request) -> dict[str, Any]:
        ref = request.params["ref"]
        of = "prompt" if "name" in ref else "template" if "{" in ref["uri"] else "resource"
        said = word(name, of, ref.get("name") or ref["uri"])
        return {"completion": {"values": [said]}, **whole}

    cached = {"ttlMs": 0, "cacheScope": "public"} if whole else {}
    backend.results |= {
        "tools/call": call,
        "tasks/get": get,
        "tasks/result": lambda request: content("tool", request.params["taskId"]),
        "completion/complete": completion,
        "prompts/get": lambda request: {
            "messages": [
                {"role": "user", "content": block} for block in content("prompt", request.params["name"])["content"]
            ],
            **whole,
        },
        "resources/read": lambda request: {
            "contents": [{"uri": request.params["uri"], "text": word(name, "resource", request.params["uri"])}],
            **whole,
            **cached,
        },
    }
    return backend


# A client that asks for everything ----------------------------------------------------------------------------------


class Asker:
    """`ways`: what was answered, by the way it was asked for."""

    def __init__(self, gateway: Gateway, era: str, endpoint: str, rights: Rights) -> None:
        self.gateway, self.era, self.endpoint, self.rights = gateway, era, endpoint, rights
        self.client: Client | ModernClient
        self.heard: list[Pending] = []
        self.ways: dict[str, set[Thing]] = {}
        self.tasks: dict[Thing, str] = {}
        self.streams: list[Pending] = []

    @property
    def servers(self) -> tuple[str, ...]:
        return ("one", "two") if self.endpoint in ("", "both") else (self.endpoint,)

    def named(self, server: str, name: str) -> str:
        return name if len(self.servers) == 1 else f"{server}__{name}"

    def located(self, server: str, uri: str) -> str:
        return uri if len(self.servers) == 1 else f"{server}+{uri}"

    async def come(self) -> None:
        if self.era == "legacy":
            self.client = await legacy(self.gateway, self.endpoint, self.rights)
        else:
            self.client = modern(self.gateway, self.endpoint, self.rights, capabilities={"extensions": TASKS})

    def begin(self, method: str, params: Mapping[str, Any]) -> Pending:
        pending = self.client.begin(method, params)
        self.heard.append(pending)
        return pending

    async def ask(self, method: str, **params: Any) -> Message | None:
        """The result; None if it is refused."""
        pending = self.begin(method, params)
        if await pending.head() == 404:
            return None
        try:
            result = await pending.result()
        except RpcError:
            return None
        return None if result.get("isError") else result

    async def asks(self, way: str, thing: Thing, method: str, **params: Any) -> Message | None:
        result = await self.ask(method, **params)
        found = self.ways.setdefault(way, set())
        if result is not None:
            found.add(thing)
        return result

    async def prepare(self) -> None:
        """What is there already when the rules come."""
        for server in self.servers:
            await self.make_tasks(server)
        uris = [self.located(server, f"test:///{n}") for server in self.servers for n in NAMES]
        if isinstance(self.client, ModernClient):
            self.streams = [self.client.listen(*uris, tools=True)]
        else:
            self.streams = [self.client.listen()]
            for uri in uris:
                await self.ask("resources/subscribe", uri=uri)
        assert await self.streams[0].head() == 200

    async def make_tasks(self, server: str) -> None:
        if (server == "one") != (self.era == "legacy"):
            return  # tasks are not carried to the other era
        for n in NAMES:
            called = {"name": self.named(server, n), "arguments": {"task": True}}
            made = await self.ask("tools/call", **called, **({"task": {}} if server == "one" else {}))
            assert made is not None
            self.tasks[server, "tool", n] = made["task"]["taskId"] if server == "one" else made["taskId"]

    async def try_everything(self) -> None:
        self.heard, self.ways = [], {}
        await self.list_all()
        for server in self.servers:
            for n in NAMES:
                await self.use(server, n)
            for t in TEMPLATES:
                of = (server, "template", t)
                await self.asks("completion", of, "completion/complete", **complete(uri=self.located(server, t)))
            for uri in EXPANDED:
                await self.asks("expanded", (server, "expanded", uri), "resources/read", uri=self.located(server, uri))
        for thing, id in self.tasks.items():
            for method in ("tasks/get", *(("tasks/result",) if self.era == "legacy" else ())):
                await self.asks(method, thing, method, taskId=id)
        if self.era == "legacy":
            await self.batch()

    async def list_all(self) -> None:
        seen: set[Thing] = set()
        for method, kind, member, exposed in (
            ("tools/list", "tool", "name", self.named),
            ("prompts/list", "prompt", "name", self.named),
            ("resources/list", "resource", "uri", self.located),
            ("resources/templates/list", "template", "uriTemplate", self.located),
        ):
            page = await self.ask(method) or {}
            listed = {item[member] for items in page.values() if isinstance(items, list) for item in items}
            names = {"resource": [f"test:///{n}" for n in NAMES], "template": TEMPLATES}.get(kind, NAMES)
            seen |= {(s, kind, name) for s in self.servers for name in names if exposed(s, name) in listed}
        self.ways["lists"] = seen

    async def use(self, server: str, n: str) -> None:
        name, uri = self.named(server, n), self.located(server, f"test:///{n}")
        prompt, read = (server, "prompt", n), (server, "resource", f"test:///{n}")
        await self.asks("tools/call", (server, "tool", n), "tools/call", name=name, arguments={})
        await self.asks("prompts/get", prompt, "prompts/get", name=name)
        await self.asks("completion", prompt, "completion/complete", **complete(prompt=name))
        await self.asks("resources/read", read, "resources/read", uri=uri)
        await self.asks("completion", read, "completion/complete", **complete(uri=uri))
        if self.era == "legacy":
            await self.asks("subscribe", read, "resources/subscribe", uri=uri)
            return
        listening = self.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
        if await listening.head() == 200:
            told = await listening.next("notifications/subscriptions/acknowledged")
            self.ways.setdefault("subscribe", set()).update({read} if told["params"]["notifications"] else ())
        listening.drop()

    async def batch(self) -> None:
        client = self.gateway.client(self.endpoint, ANN, version="2025-03-26")
        client.rights = self.rights
        if not self.gateway.actors.gate.serves(self.endpoint, ANN, self.rights):
            return
        await client.initialize()
        things = [(server, "tool", n) for server in self.servers for n in NAMES]
        calls = [
            {"id": at, "method": "tools/call", "params": {"name": self.named(server, n), "arguments": {}}}
            for at, (server, _, n) in enumerate(things)
        ]
        pending = client.post(calls)
        self.heard.append(pending)
        await pending.end()
        self.ways["batch"] = {things[m["id"]] for m in pending.messages if "result" in m}

    def check(self) -> set[Thing]:
        """What it sees, which is what it can use, and of nothing else there is a word."""
        where, seen = (self.era, self.endpoint), self.ways["lists"]
        kinds = {"tools/call": "tool", "batch": "tool", "prompts/get": "prompt", "resources/read": "resource"}
        kinds |= {"subscribe": "resource", "tasks/get": "tool", "tasks/result": "tool"}
        expanded = {(server, uri) for server, _, uri in self.ways.pop("expanded", set())}
        for way, found in self.ways.items():
            of = (
                {kinds[way]}
                if way in kinds
                else {"prompt", "resource", "template", "tool"} - ({"tool"} if way == "completion" else set())
            )
            wanted = {thing for thing in seen if thing[1] in of}
            wanted = {thing for thing in wanted if thing in self.tasks} if way.startswith("tasks/") else wanted
            assert found == wanted, (where, way)
        for (server, uri), template in (
            (e, t) for e in expanded for t, u in zip(TEMPLATES, EXPANDED, strict=True) if u == e[1]
        ):
            assert (server, "template", template) in seen, (where, uri)
        everything = json.dumps([pending.messages for pending in (*self.heard, *self.streams)])
        for server in ("one", "two"):
            for kind, names in (("tool", NAMES), ("prompt", NAMES), ("template", TEMPLATES)):
                for name in names:
                    assert (server, kind, name) in seen or word(server, kind, name) not in everything, (where, name)
            for n in NAMES:
                thing = (server, "resource", f"test:///{n}")
                assert thing in seen or word(*thing) not in everything, (where, thing)
        return seen | {(server, "expanded", uri) for server, uri in expanded}


@settings(max_examples=max(5, settings.default.max_examples // 4))
@given(st.lists(rules, min_size=1, max_size=3), st.sets(st.sampled_from(["g", "h"])), st.sampled_from(["", "both"]))
def test_what_is_hidden_shows_in_nothing_and_what_is_listed_can_be_used(
    drawn: list[dict[str, Any]], groups: set[str], all_of_them: str
):
    policy = [
        rule(f"policy[{n}]", who=r["who"], allow=items(r["allow"], r["kinds"]), deny=items(r["deny"], r["kinds"]))
        for n, r in enumerate(drawn)
    ]
    trio.run(
        _nothing_shows, policy, Rights(groups=frozenset(groups)), all_of_them, clock=MockClock(autojump_threshold=0)
    )


async def _nothing_shows(policy: list[Rule], rights: Rights, all_of_them: str) -> None:
    one = talkative(Backend, "one", {"tasks": {"requests": {"tools": {"call": {}}}}})
    two = talkative(ModernBackend, "two", {"extensions": TASKS})
    async with open_gateway(one, two, groups={"both": ("one", "two")}) as gateway:
        enforce(gateway, rule(allow=["*:*", "prompt:*:*", "resource:*:*"]))
        askers = [Asker(gateway, era, e, rights) for e in (all_of_them, "one", "two") for era in ("legacy", "modern")]
        for asker in askers:
            await asker.come()
            await asker.prepare()
        enforce(gateway, *policy)
        before = [len(asker.streams[0].messages) for asker in askers]
        for n in NAMES:
            two.change("notifications/resources/updated", f"test:///{n}")
            for upstream in one.open:
                upstream.notify("notifications/resources/updated", {"uri": f"test:///{n}"})
        await trio.sleep(5)
        found: dict[str, set[Thing]] = {}
        for asker, length in zip(askers, before, strict=True):
            await asker.try_everything()
            seen = asker.check()
            assert found.setdefault(asker.endpoint, seen) == seen, (asker.era, asker.endpoint)
            updated = [
                m["params"]["uri"]
                for m in asker.streams[0].messages[length:]
                if m.get("method", "").endswith("updated")
            ]
            visible = {asker.located(server, uri) for server, kind, uri in seen if kind == "resource"}
            assert visible.issuperset(updated), (asker.era, asker.endpoint)
        assert found[all_of_them] == found["one"] | found["two"]
