"""Servers that keep no rule: what they say harms the request it is about, and nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from actors.ports import Headers
from actors.protocol.meta import SUBSCRIPTION_KEY
from gateway.client import Client, ClientError, ConnectionLostError, InvalidAnswerError, McpError, VersionError, waiting
from stagedoor import open_client
from tests.gateway.client.hostile import LEGACY, MODERN, Hostile, Message, Say

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_notifications_of_any_shape_harm_nothing(version: str) -> None:
    server = Hostile()
    async with open_client(server, version, log=lambda params: 1 / 0) as client:
        for method in (ACKNOWLEDGED, UPDATED, "notifications/message", "notifications/progress", "notifications/none"):
            for meta in ("x", 7, [], [1], {SUBSCRIPTION_KEY: []}, {SUBSCRIPTION_KEY: {}}, {SUBSCRIPTION_KEY: True}):
                server.tell(method, {"_meta": meta, "uri": "a://b", "notifications": 5, "progressToken": meta})
            server.tell(method, [1])
            server.tell(method, "x")
        for id in (None, True, [], {}, 0, 99, "1"):
            server.tell("notifications/cancelled", {"requestId": id})
            server.say({"id": id, "result": {}})
            server.say({"id": id, "error": {"code": "x"}})
        assert await client.request("tools/list") == {}


async def listened(answer: Callable[[Message, Say], object]) -> Exception:
    """What becomes of a subscription that is acknowledged so."""

    def listens(asked: Message, say: Say) -> Message | None:
        if asked["method"] != "subscriptions/listen":
            return {}
        answer(asked, say)
        return None

    async with open_client(Hostile(listens), MODERN) as client:
        with pytest.raises(ClientError) as failed:
            async with client.subscribe("a://b"):
                pass
        assert await client.request("tools/list") == {}
    return failed.value


@pytest.mark.parametrize("honoured", [5, {"resourceSubscriptions": 7}, {"resourceSubscriptions": [{}]}, [], "a://b"])
async def test_an_acknowledgement_of_any_shape_ends_its_subscription_alone(honoured: Any) -> None:
    def acknowledge(asked: Message, say: Say) -> None:
        meta = {SUBSCRIPTION_KEY: asked["id"]}
        say({"method": ACKNOWLEDGED, "params": {"_meta": meta, "notifications": honoured}})

    assert "offers no subscription" in str(await listened(acknowledge))


@pytest.mark.parametrize("version", [[], {}, None, 7, "1999-01-01"])
async def test_a_version_of_any_shape_is_none_in_common(version: Any) -> None:
    class Odd(Hostile):
        async def send(self, message: bytes, headers: Headers = ()) -> None:
            await trio.lowlevel.checkpoint()
            asked = json.loads(message)
            if "id" in asked:
                self.say({"id": asked["id"], "result": {"protocolVersion": version, "supportedVersions": version}})

    for wanted in (LEGACY, MODERN):
        with pytest.raises(VersionError):
            async with open_client(Odd(), wanted):
                pass


@pytest.mark.parametrize("about", [5, [], "x", {"_meta": 5}, {"_meta": {"x": []}}])
async def test_what_a_server_says_of_itself_may_have_any_shape(about: Any) -> None:
    class Odd(Hostile):
        async def send(self, message: bytes, headers: Headers = ()) -> None:
            await trio.lowlevel.checkpoint()
            asked, said = json.loads(message), about if isinstance(about, dict) else {"_meta": about}
            self.say({"id": asked["id"], "result": {"supportedVersions": [MODERN], "capabilities": about, **said}})

    async with open_client(Odd(), MODERN) as client:
        assert (client.server_info, client.instructions) == ({}, None)


@pytest.mark.parametrize(
    "asked", [{"a": 5}, {"a": {}}, {"a": {"method": "roots/list", "params": [1]}}, {"a": {"method": []}}, [1], "x"]
)
async def test_questions_of_any_shape_end_their_request_alone(asked: Any) -> None:
    def answer(request: Message, say: Say) -> Message:
        return {"resultType": "input_required", "inputRequests": asked} if request["method"] == "tools/call" else {}

    async with open_client(Hostile(answer), MODERN, roots=["file:///a"]) as client:
        with pytest.raises(InvalidAnswerError):
            await client.call_tool("any")
        assert await client.request("tools/list") == {}


async def test_an_answer_is_taken_once_and_by_whom_it_is_for() -> None:
    def answer(request: Message, say: Say) -> Message | None:
        for id in (request["id"] + 1, request["id"] + 1, str(request["id"]), float(request["id"])):
            say({"id": id, "result": {"wrong": id}})
        say({"id": request["id"], "result": {"right": True}})
        say({"id": request["id"], "result": {"again": True}})
        say({"id": request["id"], "error": {"code": -32603, "message": "again"}})
        return None

    async with open_client(Hostile(answer), LEGACY) as client:
        for _ in range(3):
            assert await client.request("tools/list") == {"right": True}


async def test_a_server_that_withdraws_its_own_question_ends_no_call_of_the_same_number() -> None:
    """Both sides number by themselves (2025-11-25, cancellation: "in the same direction")."""
    server = Hostile(lambda asked, say: None)

    async with open_client(server, LEGACY) as client, trio.open_nursery() as calls:
        answers: list[Message] = []

        async def call() -> None:
            answers.append(await client.request("tools/list"))

        calls.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        id = server.heard[-1]["id"]
        server.tell("notifications/cancelled", {"requestId": id})
        await trio.testing.wait_all_tasks_blocked()
        server.say({"id": id, "result": {"right": True}})
    assert answers == [{"right": True}]


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_a_subscription_to_what_is_gone_fails_and_harms_nothing(version: str) -> None:
    server = Hostile()
    async with open_client(server, version) as client:
        await server.close()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ConnectionLostError):
            async with client.subscribe("a://b"):
                pass
        with pytest.raises(ConnectionLostError):
            await client.ping()


async def test_a_subscription_that_is_made_again_ends_with_the_connection(autojump_clock: trio.abc.Clock) -> None:
    """The connection is lost while it waits for its next attempt."""

    def once(asked: Message, say: Say) -> Message:
        meta = {SUBSCRIPTION_KEY: asked["id"]}
        say({"method": ACKNOWLEDGED, "params": {"_meta": meta, "notifications": {"resourceSubscriptions": ["a://b"]}}})
        return {}

    server = Hostile(once)
    async with open_client(server, MODERN) as client:
        async with client.subscribe("a://b") as updates:
            await server.close()
            with pytest.raises(ConnectionLostError):
                await anext(updates)
        with pytest.raises(ConnectionLostError):
            await client.ping()


@pytest.mark.parametrize("leaves", ["cancelled", "raises"])
async def test_who_leaves_a_subscription_in_whatever_way_has_unsubscribed(leaves: str) -> None:
    server = Hostile()

    async def listen(client: Client, scope: trio.CancelScope) -> None:
        async with client.subscribe("a://b") as updates:
            if leaves == "cancelled":
                scope.cancel()
            else:
                raise KeyError(leaves)
            await anext(updates)

    async with open_client(server, LEGACY) as client:
        with trio.CancelScope() as scope, contextlib.suppress(KeyError):
            await listen(client, scope)
        await trio.testing.wait_all_tasks_blocked()
        assert server.methods()[-1] == "resources/unsubscribe"
        async with client.subscribe("a://b"):
            assert server.methods()[-1] == "resources/subscribe"


async def test_a_subscription_that_ends_with_its_client_is_not_ended_again_and_again() -> None:
    begun = 0

    class Begun(trio.abc.Instrument):
        def task_spawned(self, task: object) -> None:
            nonlocal begun
            begun += 1

    with trio.CancelScope() as scope:
        async with open_client(Hostile(), LEGACY) as client:
            updates = client.subscribe("a://b")
            await updates.__aenter__()
            scope.cancel()
            try:
                await updates.aclose()
            finally:
                with trio.CancelScope(shield=True):  # its user has something to put away first
                    trio.lowlevel.add_instrument(counting := Begun())
                    for _ in range(50):
                        await trio.lowlevel.checkpoint()
                    trio.lowlevel.remove_instrument(counting)
    assert begun < 5


async def test_a_subscription_that_is_cancelled_before_it_stands_is_none() -> None:
    """The server may have made it nevertheless."""
    server = Hostile(lambda asked, say: None if asked["method"] == "resources/subscribe" else {})
    async with open_client(server, LEGACY) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.subscribe("a://b").__aenter__)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert server.methods()[-2:] == ["notifications/cancelled", "resources/unsubscribe"]


async def test_a_change_that_comes_with_the_answer_to_a_subscription_is_told() -> None:
    def answer(asked: Message, say: Say) -> Message | None:
        say({"id": asked["id"], "result": {}})
        say({"method": UPDATED, "params": {"uri": "a://b"}})
        return None

    async with open_client(Hostile(answer), LEGACY) as client, client.subscribe("a://b") as updates:
        assert (await anext(updates)).uri == "a://b"


async def test_a_page_is_fetched_when_a_list_gets_there() -> None:
    def answer(asked: Message, say: Say) -> Message:
        page = int(asked["params"].get("cursor", "0"))
        return {"tools": [{"name": f"{page}{letter}"} for letter in "ab"], "nextCursor": str(page + 1)}

    server = Hostile(answer)
    async with open_client(server, LEGACY) as client:
        seen = []
        async for tool in client.list_tools():
            seen.append((tool.name, server.methods().count("tools/list")))
            if len(seen) == 3:
                break
    assert seen == [("0a", 1), ("0b", 1), ("1a", 2)]


async def test_a_server_that_goes_round_in_circles_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.client.pages.PAGES", 5)
    server = Hostile(lambda asked, say: {"tools": [], "nextCursor": "again"})
    async with open_client(server, LEGACY) as client:
        with pytest.raises(InvalidAnswerError):
            await client.list_tools()
    assert server.methods().count("tools/list") == 5


@pytest.mark.parametrize("version", [None, LEGACY, MODERN])
async def test_a_server_that_never_answers_is_left_in_time(version: str | None, autojump_clock: trio.abc.Clock) -> None:
    class Silent(Hostile):
        closed = False

        async def send(self, message: bytes, headers: Headers = ()) -> None:
            await trio.lowlevel.checkpoint()

        async def close(self) -> None:
            self.closed = True
            await super().close()

    server = Silent()
    with pytest.raises(trio.TooSlowError):
        async with open_client(server, version, within=60):
            pass
    assert (server.closed, trio.current_time() < 61) == (True, True)


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_two_subscriptions_to_one_resource_both_hear_of_it_and_end_apart(version: str) -> None:
    def answer(asked: Message, say: Say) -> Message | None:
        if asked["method"] != "subscriptions/listen":
            return {}
        listens.append(asked["id"])
        honoured = {"resourceSubscriptions": ["a://b"]}
        say({"method": ACKNOWLEDGED, "params": {"_meta": {SUBSCRIPTION_KEY: asked["id"]}, "notifications": honoured}})
        return None

    def change() -> None:
        for id in listens or [None]:
            server.tell(UPDATED, {"uri": "a://b", **({"_meta": {SUBSCRIPTION_KEY: id}} if id else {})})

    listens: list[int] = []
    server = Hostile(answer)
    async with open_client(server, version) as client, client.subscribe("a://b") as stays:
        async with client.subscribe("a://b") as leaves:
            change()
            assert [(await anext(updates)).uri for updates in (stays, leaves)] == ["a://b", "a://b"]
        assert "resources/unsubscribe" not in server.methods()
        change()
        assert (await anext(stays)).uri == "a://b"


async def test_a_subscription_that_a_new_session_refuses_ends_and_harms_no_call() -> None:
    seen: list[str] = []

    def answer(asked: Message, say: Say) -> Message | None:
        method, known = asked["method"], asked["method"] in seen
        seen.append(method)
        if method == "tools/call" and not known:
            server.lose(asked["id"])
        elif method == "resources/subscribe" and seen.count(method) == 2:
            say({"id": asked["id"], "error": {"code": -32002, "message": "not found"}})
        else:
            return {}
        return None

    server = Hostile(answer)
    async with open_client(server, LEGACY) as client, client.subscribe("a://b") as updates:
        assert await client.request("tools/call", {"name": "any"}) == {}
        with pytest.raises(McpError, match="not found"):
            await anext(updates)
        async with client.subscribe("a://b"):  # it is back
            assert seen.count("resources/subscribe") == 3
    assert seen.count("resources/unsubscribe") == 1


async def test_a_server_that_asks_without_end_is_refused_beyond_a_bound() -> None:
    server = Hostile(room=2000)
    asked: list[Any] = []

    async def never(params: Message) -> Message:
        asked.append(params)
        return await trio.sleep_forever()

    async with open_client(server, LEGACY, sampling=never) as client:
        for n in range(1000):
            server.say({"id": n, "method": "sampling/createMessage", "params": {}})
        await trio.testing.wait_all_tasks_blocked()
        assert await client.request("tools/list") == {}
        refused = [message for message in server.heard if "error" in message]
        assert (len(asked), len(refused)) == (256, 744)
        assert {message["error"]["code"] for message in refused} == {-32000}


async def test_what_waits_for_slow_functions_of_a_user_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ROOM", 10_000)
    large, go_on = "x" * 3_000, trio.Event()
    asked, logged, steps = list[Any](), list[Any](), list[Any]()

    async def answer_late(params: Message) -> Message:
        asked.append(params)
        await go_on.wait()
        return {}

    async def log_late(params: Message) -> None:
        await go_on.wait()
        logged.append(params["data"][0])

    async def step_late(*step: Any) -> None:
        await go_on.wait()
        steps.append(step[0])

    server = Hostile(lambda asked, say: None if asked["method"] == "tools/call" else {})
    async with (
        open_client(server, LEGACY, sampling=answer_late, log=log_late) as client,
        client.subscribe("a://") as updates,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(client.call_tool, "any", progress=step_late))
        await trio.testing.wait_all_tasks_blocked()
        call = server.heard[-1]["id"]
        for n in range(8):
            server.say({"id": n, "method": "sampling/createMessage", "params": {"of": large}})
            server.tell("notifications/message", {"level": "info", "data": [n, large]})
            server.tell("notifications/progress", {"progressToken": call, "progress": n, "message": large})
            server.tell(UPDATED, {"uri": f"a://{n}{large}"})
        await trio.testing.wait_all_tasks_blocked()
        refused = [message["id"] for message in server.heard if "error" in message]
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        server.say({"id": call, "result": {}})
        changed = [(await anext(updates)).uri[4] for _ in range(3)]
    assert (len(asked), refused) == (3, [3, 4, 5, 6, 7])
    assert (logged, steps, changed) == ([0, 1, 2], [0, 5, 6, 7], ["5", "6", "7"])


async def test_none_of_several_resources_that_change_all_the_time_is_left_out() -> None:
    server = Hostile(lambda asked, say: {})
    async with open_client(server, LEGACY) as client, client.subscribe("a://") as updates:
        taken = []
        for _ in range(4):
            for uri in ("a://1", "a://2", "a://3"):
                server.tell(UPDATED, {"uri": uri})
            await trio.testing.wait_all_tasks_blocked()
            taken.append((await anext(updates)).uri)
    assert taken == ["a://1", "a://2", "a://3", "a://1"]


async def test_a_change_that_grows_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ROOM", 10_000)
    server = Hostile(lambda asked, say: {})
    async with open_client(server, LEGACY) as client, client.subscribe("a://") as updates:
        for size in (10, 3_000, 9_000):
            for uri in ("a://1", "a://2", "a://3"):
                server.tell(UPDATED, {"uri": uri, "more": "x" * size})
        await trio.testing.wait_all_tasks_blocked()
        assert (await anext(updates)).uri == "a://3"
        server.tell(UPDATED, {"uri": "a://4"})
        await trio.testing.wait_all_tasks_blocked()
        assert (await anext(updates)).uri == "a://4"


async def test_a_server_that_takes_no_answers_is_read_no_further(autojump_clock: trio.abc.Clock) -> None:
    class Deaf(Hostile):
        deaf = False

        async def send(self, message: bytes, headers: Headers = ()) -> None:
            if self.deaf:
                await trio.sleep_forever()
            await super().send(message, headers)

    server = Deaf(room=2000)
    async with open_client(server, LEGACY):
        server.deaf = True
        for n in range(1000):
            server.say({"id": n, "method": "ping"})
        await trio.testing.wait_all_tasks_blocked()
        assert server.unread == 1000 - 256
        await trio.sleep(10)  # who answers has given up by then
        assert server.unread == 0
