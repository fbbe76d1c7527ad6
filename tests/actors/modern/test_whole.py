"""Clients without sessions in front of the whole tree: real upstream connections, real pools, servers of either era."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.ports import Principal
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend, needs
from tests.support.modern_client import ModernClient

FORM: Any = {"elicitation": {}}
QUESTION: Any = {"message": "how many?", "requestedSchema": {"type": "object", "properties": {}}}
ANSWER = {"action": "accept", "content": {}}
KINDS = ("stdio", "http")


def server(era: str, kind: Any, name: str = "alpha", **more: Any) -> Backend:
    """A server of this era."""
    make = ModernBackend if era == "modern" else Backend
    return make(name, kind=kind, tools=("echo", "slow"), held={"slow"}, **more)


def client(at: Gateway, endpoint: str = "alpha", **more: Any) -> ModernClient:
    """A client without sessions."""
    return ModernClient(at.actors.door, at.nursery, endpoint, **more)


@pytest.fixture(params=[(era, kind) for era in ("modern", "legacy") for kind in KINDS], ids=lambda p: "-".join(p))
def alpha(request: pytest.FixtureRequest) -> Backend:
    """A server of either era on either kind of transport."""
    return server(*request.param)


async def test_the_usual_requests(alpha: Backend, autojump_clock: MockClock) -> None:
    async with open_gateway(alpha) as at:
        for endpoint, prefix, scheme in (("alpha", "", ""), ("", "alpha__", "alpha+")):
            one = client(at, endpoint)
            found = await one.call("server/discover")
            assert found["supportedVersions"][0] == "2026-07-28"
            tools = await one.call("tools/list")
            assert [tool["name"] for tool in tools["tools"]] == [f"{prefix}echo", f"{prefix}slow"]
            called = await one.call("tools/call", {"name": f"{prefix}echo", "arguments": {"text": "hi"}})
            assert called["content"][0]["text"] == "alpha: hi"
            prompt = await one.call("prompts/get", {"name": f"{prefix}hello"})
            assert prompt["messages"][0]["content"]["text"] == "alpha: hello"
            read = await one.call("resources/read", {"uri": f"{scheme}test:///a"})
            assert read["contents"][0]["uri"] == f"{scheme}test:///a"
            assert (read["ttlMs"], read["cacheScope"]) == (0, "private")
            ref = {"type": "ref/prompt", "name": f"{prefix}hello"}
            completed = await one.call("completion/complete", {"ref": ref, "argument": {"name": "a", "value": ""}})
            assert completed["completion"]["values"] == ["alpha"]
            for result in (found, tools, called, prompt, read, completed):
                assert result["resultType"] == "complete"
        legacy = [m for m in alpha.methods if m == "initialize"]
        assert bool(legacy) == (not isinstance(alpha, ModernBackend))


async def test_a_question_goes_to_the_client_and_its_answer_back_to_the_call_that_waits(
    alpha: Backend, autojump_clock: MockClock
) -> None:
    async with open_gateway(alpha) as at:
        one = client(at, capabilities=FORM)
        pending = one.begin("tools/call", {"name": "slow", "arguments": {"x": 1}})
        request = await alpha.next()
        legacy = not isinstance(alpha, ModernBackend)
        if legacy:
            asked = request.ask("elicitation/create", QUESTION)
        else:
            needs(request, "theirs", q={"method": "elicitation/create", "params": QUESTION})
        result = await pending.result()
        (key,) = result["inputRequests"]
        assert result["inputRequests"][key]["params"]["message"] == "how many?"
        retry = {"name": "slow", "arguments": {"x": 1}, "requestState": result["requestState"]}
        pending = one.begin("tools/call", {**retry, "inputResponses": {key: ANSWER}})
        if legacy:
            assert (await asked.outcome())["result"] == ANSWER
        else:
            request = await alpha.next()
            assert request.params["requestState"] == "theirs"
            assert request.params["inputResponses"] == {key: ANSWER}
        request.text("done", **({} if legacy else {"resultType": "complete"}))
        assert (await pending.result())["content"][0]["text"] == "done"
        assert len(alpha.asked_for("tools/call")) == (1 if legacy else 2)
        if legacy:
            again = one.begin("tools/call", {**retry, "inputResponses": {key: ANSWER}})
            assert await again.head() == 400
            assert len(alpha.asked_for("tools/call")) == 1


async def test_progress_and_logs_come_on_the_stream_of_their_request(alpha: Backend, autojump_clock: MockClock) -> None:
    async with open_gateway(alpha) as at:
        pending = client(at).begin("tools/call", {"name": "slow"}, progress="mine", level="info")
        request = await alpha.next()
        request.progress(1)
        request.log("low", level="debug")
        request.log("high", level="error")
        await pending.next("notifications/progress")
        await pending.next("notifications/message")
        request.text("done")
        await pending.result()
        assert [m["params"]["progressToken"] for m in pending.seen("notifications/progress")] == ["mine"]
        assert [m["params"]["data"] for m in pending.seen("notifications/message")] == ["high"]


async def test_a_client_that_disconnects_has_cancelled_at_its_backend(
    alpha: Backend, autojump_clock: MockClock
) -> None:
    async with open_gateway(alpha) as at:
        pending = client(at).begin("tools/call", {"name": "slow"})
        request = await alpha.next()
        pending.drop()
        await at.settle()
        assert request.cancelled.is_set() or request.id in request.upstream.transport.forgotten
        assert at.actors.quotas.requests.total == 0


async def test_two_clients_with_the_same_id_and_token_get_each_their_own(
    alpha: Backend, autojump_clock: MockClock
) -> None:
    async with open_gateway(alpha) as at:
        pendings = []
        for _ in range(2):
            pendings.append(client(at).begin("tools/call", {"name": "slow"}, id=1, progress="t"))
            request = await alpha.next()
            request.progress(len(pendings))
        for number, request in enumerate(alpha.asked_for("tools/call"), 1):
            request.text(f"answer {number}")
        for number, pending in enumerate(pendings, 1):
            assert (await pending.result())["content"][0]["text"] == f"answer {number}"
            assert [m["params"]["progress"] for m in pending.seen("notifications/progress")] == [number]


async def test_subscriptions(alpha: Backend, autojump_clock: MockClock) -> None:
    async with open_gateway(alpha) as at:
        own = client(at).listen("test:///a", tools=True, id="own")
        merged = client(at, "").listen("alpha+test:///a", tools=True, id=2)
        for pending, uri in ((own, "test:///a"), (merged, "alpha+test:///a")):
            honoured = (await pending.next())["params"]["notifications"]
            assert honoured == {"toolsListChanged": True, "resourceSubscriptions": [uri]}
        if isinstance(alpha, ModernBackend):
            alpha.change("notifications/tools/list_changed")
            alpha.change("notifications/resources/updated", "test:///a")
        else:
            for upstream in alpha.open:
                upstream.notify("notifications/tools/list_changed")
                upstream.notify("notifications/resources/updated", {"uri": "test:///a"})
        for pending, uri in ((own, "test:///a"), (merged, "alpha+test:///a")):
            await pending.next("notifications/tools/list_changed")
            assert (await pending.next("notifications/resources/updated"))["params"]["uri"] == uri
            assert len(pending.messages) == 3


async def test_after_the_backend_was_lost_subscribers_are_told_that_anything_may_have_changed(
    alpha: Backend, autojump_clock: MockClock
) -> None:
    async with open_gateway(alpha) as at:
        pending = client(at).listen("test:///a", tools=True)
        await pending.next()
        for upstream in alpha.open:
            upstream.die()
        await pending.next("notifications/tools/list_changed")
        await pending.next("notifications/resources/updated")


async def test_nothing_is_left_when_everybody_has_gone(alpha: Backend, autojump_clock: MockClock) -> None:
    async with open_gateway(alpha) as at:
        before = at.left()
        one = client(at, capabilities=FORM)
        await one.call("tools/list")
        listening = one.listen("test:///a", tools=True)
        await listening.next()
        waiting = one.begin("tools/call", {"name": "slow"}, progress=1)
        await alpha.next()
        listening.drop()
        waiting.drop()
        await trio.sleep(4000)
        assert at.left() == before
        assert alpha.open == []


async def test_one_endpoint_serves_both_eras_at_once(alpha: Backend, autojump_clock: MockClock) -> None:
    if isinstance(alpha, ModernBackend):
        alpha.sessions = True
    async with open_gateway(alpha) as at:
        session = await at.connect()
        one = client(at, "")
        assert await session.tool("alpha__echo", text="a") == "alpha: a"
        called = await one.call("tools/call", {"name": "alpha__echo", "arguments": {"text": "b"}})
        assert called["content"][0]["text"] == "alpha: b"
        assert await session.tool("alpha__echo", text="c") == "alpha: c"
        assert "resultType" not in await session.call("tools/list")


async def test_servers_of_both_eras_under_one_roof(autojump_clock: MockClock) -> None:
    old, new = server("legacy", "stdio", "old"), server("modern", "http", "new")
    async with open_gateway(old, new) as at:
        one = client(at, "")
        tools = await one.call("tools/list")
        assert [tool["name"] for tool in tools["tools"]] == ["old__echo", "old__slow", "new__echo", "new__slow"]
        for name in ("old", "new"):
            called = await one.call("tools/call", {"name": f"{name}__echo", "arguments": {"text": "x"}})
            assert called["content"][0]["text"] == f"{name}: x"


async def test_principals_never_share_a_connection_with_a_session(autojump_clock: MockClock) -> None:
    alpha = server("legacy", "stdio")
    async with open_gateway(alpha) as at:
        for principal in ("ann", "bob", "ann"):
            await client(at, principal=Principal(principal)).call("tools/call", {"name": "echo"})
        upstreams = [request.upstream for request in alpha.asked_for("tools/call")]
        assert upstreams[0] is upstreams[2]
        assert upstreams[0] is not upstreams[1]


async def test_a_posted_notification_is_accepted_and_does_nothing(autojump_clock: MockClock) -> None:
    alpha = server("modern", "http")
    async with open_gateway(alpha) as at:
        one = client(at)
        pending = one.begin("tools/call", {"name": "slow"}, id=1)
        request = await alpha.next()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        posted = one.post(cancel, {"mcp-protocol-version": "2026-07-28"})
        assert await posted.head() == 202
        assert not posted.messages
        assert not request.cancelled.is_set()
        request.text("done")
        await pending.result()


@pytest.mark.parametrize(
    ("method", "headers", "status", "code"),
    [
        ("tools/list", {"mcp_method": "tools/call"}, 400, -32020),
        ("tools/list", {"mcp_protocol_version": "2099-01-01"}, 400, -32020),
        ("ping", {}, 404, -32601),
        ("logging/setLevel", {}, 404, -32601),
    ],
)
async def test_what_the_ladder_refuses_reaches_no_backend(
    autojump_clock: MockClock, method: str, headers: Any, status: int, code: int
) -> None:
    alpha = server("modern", "http")
    async with open_gateway(alpha) as at:
        pending = client(at).begin(method, **headers)
        assert await pending.head() == status
        assert (await pending.error()).code == code
        assert alpha.upstreams == []


async def test_an_era_that_nobody_knows_is_told_what_there_is(autojump_clock: MockClock) -> None:
    async with open_gateway(server("modern", "http")) as at:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2099-01-01",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
        headers = {"mcp-protocol-version": "2099-01-01", "mcp-method": "tools/list"}
        pending = client(at).post(json.dumps(body).encode(), headers)
        assert await pending.head() == 400
        error = pending.messages[0]["error"]
        assert error["code"] == -32022
        assert error["data"]["requested"] == "2099-01-01"
        assert error["data"]["supported"][:2] == ["2026-07-28", "2025-11-25"]
