"""Requests of clients without sessions: who gets them, and what becomes of their answers."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.ports import ANONYMOUS, Post, Principal
from actors.protocol.payload import loads
from tests.actors.modern.conftest import Open
from tests.support.door_client import RpcError
from tests.support.mcp_backend import tool
from tests.support.peers import Peer


async def test_a_call_reaches_its_backend_and_its_result_comes_as_json(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha"), Peer("beta")) as at:
        pending = at.client().begin("tools/call", {"name": "beta__echo", "arguments": {"a": 1}}, id="x")
        call = await at["beta"].next()
        assert (call.params["name"], call.params["arguments"]) == ("echo", {"a": 1})
        call.text("done")
        response = await pending.response()
        assert pending.status == 200
        assert not pending.streaming
        assert response["id"] == "x"
        assert response["result"]["content"] == [{"type": "text", "text": "done"}]
        assert response["result"]["resultType"] == "complete"
        assert response["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "stagedoor"


async def test_a_backend_is_told_on_whose_behalf_it_is_called_with_each_call(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        form = at.client("alpha", Principal("ann"), capabilities={"elicitation": {}})
        form.begin("tools/call", {"name": "echo"}, level="info")
        first = (await at["alpha"].next()).message.client
        at.client("alpha", Principal("bob")).begin("tools/call", {"name": "echo"})
        second = (await at["alpha"].next()).message.client
        assert (first.principal, first.level, first.drives) == ("ann", "info", False)
        assert loads(first.capabilities) == {"elicitation": {}}, "word by word"
        assert (second.principal, second.level, bytes(second.capabilities)) == ("bob", None, b"{}")


async def test_two_clients_with_the_same_id_get_each_their_own(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        first = at.client("alpha").begin("tools/call", {"name": "echo"}, id=1, progress="t")
        one = await at["alpha"].next()
        second = at.client("alpha").begin("tools/call", {"name": "echo"}, id=1, progress="t")
        two = await at["alpha"].next()
        two.tell("notifications/progress", progress=7)
        two.text("two")
        one.tell("notifications/progress", progress=3)
        one.text("one")
        assert (await first.result())["content"][0]["text"] == "one"
        assert (await second.result())["content"][0]["text"] == "two"
        assert [m["params"]["progress"] for m in first.seen("notifications/progress")] == [3]
        assert [m["params"]["progress"] for m in second.seen("notifications/progress")] == [7]


async def test_progress_comes_on_a_stream_without_event_ids_and_without_buffers(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").begin("tools/call", {"name": "echo"}, progress=0)
        call = await at["alpha"].next()
        call.tell("notifications/progress", progressToken="ours", progress=1)
        assert (await pending.next())["params"] == {"progressToken": 0, "progress": 1}
        call.text("done")
        await pending.end()
        assert [event.id for event in pending.events] == [None, None]


async def test_a_client_that_reads_too_slowly_goes_without_some_progress_and_has_its_answer(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha"), outbox_events=8) as at:
        pending = at.client().begin("tools/call", {"name": "alpha__echo"}, progress="t")
        call = await at["alpha"].next()
        for value in range(100):  # it comes to few of them before the last
            call.tell("notifications/progress", progress=value)
        call.text("done")
        assert (await pending.result())["content"][0]["text"] == "done"
        seen = [m["params"]["progress"] for m in pending.seen("notifications/progress")]
        assert seen[:8] == list(range(8))
        assert seen == sorted(set(seen))
        assert at.gateway.telemetry.total("stagedoor_events_shed_total", "unread") == 100 - len(seen) > 0
        assert at.gateway.telemetry.total("stagedoor_slow_consumers_total") == 0


async def test_a_silent_call_becomes_a_stream_after_a_while(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").begin("tools/call", {"name": "echo"})
        call = await at["alpha"].next()
        await trio.sleep(14.9)
        assert pending.status is None
        await trio.sleep(0.2)
        assert pending.streaming
        call.error(-32602)
        assert (await pending.error()).code == -32602


@pytest.mark.parametrize(("code", "status"), [(-32601, 404), (-32602, 400), (-32603, 200)])
async def test_an_error_of_a_backend_has_its_status_where_it_is_the_whole_answer(
    modern: Open, autojump_clock: MockClock, code: int, status: int
) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").begin("tools/call", {"name": "echo"})
        (await at["alpha"].next()).error(code)
        assert await pending.head() == status
        assert (await pending.error()).code == code


async def test_an_unknown_tool_and_an_unknown_resource_are_400(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        for method, params in (("tools/call", {"name": "alpha__none"}), ("resources/read", {"uri": "nobody:x"})):
            pending = at.client().begin(method, params)
            assert await pending.head() == 400
            assert (await pending.error()).code == -32602
        assert at["alpha"].asked_for("tools/call") == []


async def test_a_method_that_no_backend_offers_is_404(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", capabilities={"tools": {}})) as at:
        client = at.client()
        await client.call("tools/list")
        pending = client.begin("prompts/list")
        assert await pending.head() == 404
        assert (await pending.error()).code == -32601


async def test_a_client_that_disconnects_has_cancelled(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        waiting = at.client("alpha").begin("tools/call", {"name": "echo"})
        first = await at["alpha"].next()
        streaming = at.client("alpha").begin("tools/call", {"name": "echo"}, progress=1)
        second = await at["alpha"].next()
        second.tell("notifications/progress", progress=1)
        await streaming.next()
        waiting.drop()
        await first.cancelled.wait()
        assert not second.cancelled.is_set()
        streaming.drop()
        await second.cancelled.wait()
        assert at.gateway.actors.quotas.requests.total == 0


async def test_logs_come_only_to_the_request_that_asked_and_at_its_level(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        client = at.client("alpha")
        loud = client.begin("tools/call", {"name": "echo"}, level="warning")
        one = await at["alpha"].next()
        quiet = client.begin("tools/call", {"name": "echo"})
        two = await at["alpha"].next()
        for call in (one, two):
            call.tell("notifications/message", level="info", data="low")
            call.tell("notifications/message", level="error", data="high")
            call.text("done")
        await loud.result()
        await quiet.result()
        assert [m["params"]["data"] for m in loud.seen("notifications/message")] == ["high"]
        assert not quiet.streaming


async def test_a_deadline_cancels_and_is_an_error(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha"), request_deadline=5.0) as at:
        pending = at.client("alpha").begin("tools/call", {"name": "echo"})
        call = await at["alpha"].next()
        error = await pending.error()
        assert (error.code, error.data["reason"]) == (-32603, "timeout")
        await at.gateway.settle()
        assert call.cancelled.is_set()


async def test_a_principal_has_so_many_requests_and_no_more(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha"), requests_per_principal=2) as at:
        client = at.client("alpha", Principal("ann"))
        for _ in range(2):
            client.begin("tools/call", {"name": "echo"})
            call = await at["alpha"].next()
        refused = client.begin("tools/call", {"name": "echo"})
        assert await refused.head() == 429
        assert await at.client("alpha", Principal("bob")).begin("server/discover").head() == 200
        call.text("done")
        await at.gateway.settle()
        client.begin("tools/call", {"name": "echo"})
        await at["alpha"].next()


# Eras


async def test_a_backend_of_the_other_era_gets_the_call_that_found_that_out(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False, known=False)) as at:
        pending = at.client("alpha").begin("tools/call", {"name": "echo"})
        call = await at["alpha"].next()
        call.result({"content": []})
        assert (await pending.result())["resultType"] == "complete"
        assert len(at["alpha"].asked_for("tools/call")) == 1


async def test_affinity_principal_and_capabilities_tell_pools_apart(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", modern=False)) as at:
        ann = Principal("ann")
        clients = [
            at.client("alpha", ann),
            at.client("alpha", ann, affinity="a"),
            at.client("alpha", ann, affinity="b"),
            at.client("alpha", Principal("bob")),
            at.client("alpha", ann, capabilities={"roots": {}}),
            at.client("alpha", ann),
        ]
        upstreams = set()
        for client in clients:
            client.begin("tools/call", {"name": "echo"})
            upstreams.add((await at["alpha"].next()).upstream)
        assert len(upstreams) == 5


# Lists and discover


async def test_discover_names_all_revisions_newest_first_and_who_answers(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha"), Peer("beta", modern=False)) as at:
        for endpoint, name in (("", "stagedoor"), ("alpha", "alpha"), ("beta", "beta")):
            found = await at.client(endpoint).call("server/discover")
            assert found["supportedVersions"][:2] == ["2026-07-28", "2025-11-25"]
            assert found["capabilities"]["tools"] == {"listChanged": True}
            assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == name
            assert (found["cacheScope"], found["resultType"]) == ("private", "complete")
            assert found["ttlMs"] >= 0


async def test_a_merged_list_is_private_and_as_fresh_as_its_stalest_part(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", ttl=5000), Peer("beta", ttl=3000)) as at:
        found = await at.client().call("tools/list")
        assert [tool["name"] for tool in found["tools"]] == ["alpha__echo", "beta__echo"]
        assert (found["ttlMs"], found["cacheScope"], found["resultType"]) == (3000, "private", "complete")


async def test_a_list_with_a_part_of_a_backend_with_sessions_is_stale_at_once(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", ttl=5000), Peer("beta", modern=False)) as at:
        found = await at.client().call("tools/list")
        assert [tool["name"] for tool in found["tools"]] == ["alpha__echo", "beta__echo"]
        assert found["ttlMs"] == 0


async def test_a_list_of_one_backend_keeps_its_hints(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha", ttl=5000)) as at:
        found = await at.client("alpha").call("tools/list")
        assert (found["ttlMs"], [tool["name"] for tool in found["tools"]]) == (5000, ["echo"])


# Ends


async def test_an_actor_ends_when_nothing_was_asked_for_a_while(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        await at.client("alpha").call("server/discover")
        await trio.sleep(299)
        assert len(at.supervisor) == 1
        await trio.sleep(2)
        assert len(at.supervisor) == 0
        await at.client("alpha").call("server/discover")


async def test_a_link_that_ends_fails_its_calls_and_the_next_call_gets_another(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        client = at.client("alpha")
        pending = client.begin("tools/call", {"name": "echo"})
        (await at["alpha"].next()).upstream.end()
        assert (await pending.error()).data["reason"] == "link_ended"
        again = client.begin("tools/call", {"name": "echo"})
        (await at["alpha"].next()).text("done")
        await again.result()


async def test_a_drain_lets_requests_end_and_gives_the_rest_an_error(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        quick = at.client("alpha").begin("tools/call", {"name": "echo"})
        first = await at["alpha"].next()
        slow = at.client("alpha").begin("tools/call", {"name": "echo"})
        second = await at["alpha"].next()
        at.gateway.nursery.start_soon(at.gateway.system.drain, 5.0)
        await at.gateway.settle()
        assert await at.client("alpha").begin("server/discover").head() == 503
        first.text("done")
        assert (await quick.result())["content"]
        assert (await slow.error()).data["reason"] == "draining"
        await at.gateway.settle()
        assert second.cancelled.is_set()


async def test_a_notification_is_no_work_that_waits_and_none_is_taken_in_a_drain(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        said = {"jsonrpc": "2.0", "method": "acme/beat"}
        headers = {"mcp-protocol-version": "2026-07-28"}
        client = at.client("alpha")
        assert await client.post(said, headers).head() == 202
        [upstream] = at["alpha"].upstreams
        await at.gateway.settle()
        assert upstream.notified == ["acme/beat"]
        assert len(at.supervisor) == 1
        await trio.sleep(400)
        assert len(at.supervisor) == 0
        pending = client.begin("tools/call", {"name": "echo"})
        await at["alpha"].next()
        at.gateway.nursery.start_soon(at.gateway.system.drain, 5.0)
        await at.gateway.settle()
        assert await client.post(said, headers).head() == 503
        await pending.error()


async def test_a_notification_goes_to_no_pool_when_a_server_has_become_a_legacy_one(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha")) as at:
        said = json.dumps({"jsonrpc": "2.0", "method": "acme/beat"}).encode()
        post = Post("alpha", ANONYMOUS, {"accept": "application/json", "mcp-protocol-version": "2026-07-28"}, said)
        await at.door.post(post)
        await at.gateway.settle()
        at["alpha"].upstream.end()
        at["alpha"].modern = False
        await at.door.post(post)
        await at.gateway.settle()
        assert [upstream.notified for upstream in at["alpha"].upstreams] == [["acme/beat"], []]


async def test_what_is_measured(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        pending = at.client("alpha").begin("tools/call", {"name": "echo"})
        (await at["alpha"].next()).text("done")
        await pending.result()
        seen: list[Any] = at.gateway.telemetry.observations("mcp_server_operation_duration_seconds")
        assert [(o["mcp_method_name"], o["mcp_protocol_version"]) for o in seen] == [("tools/call", "2026-07-28")]


async def test_a_refusal_raises(modern: Open, autojump_clock: MockClock) -> None:
    async with modern(Peer("alpha")) as at:
        with pytest.raises(RpcError, match="-32601"):
            await at.client("alpha").call("tasks/list")


# Arguments in headers

REGION = tool(
    "where", inputSchema={"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}
)
BROKEN = tool("odd", inputSchema={"type": "object", "properties": {"r": {"type": "number", "x-mcp-header": "R"}}})


@pytest.mark.parametrize("endpoint", ["", "alpha"])
@pytest.mark.parametrize(
    ("arguments", "headers", "status"),
    [
        ({"r": "eu"}, {"mcp_param_region": "eu"}, 200),
        ({"r": "eu"}, {"mcp_param_region": "us"}, 400),
        ({"r": "eu"}, {}, 400),
        ({}, {"mcp_param_region": "eu"}, 400),
        ({}, {"mcp_param_other": "eu"}, 200),
    ],
)
async def test_headers_that_repeat_arguments_must_agree_with_them(
    modern: Open, autojump_clock: MockClock, endpoint: str, arguments: Any, headers: Any, status: int
) -> None:
    async with modern(Peer("alpha", tools=(REGION,))) as at:
        name = "where" if endpoint else "alpha__where"
        await at.client(endpoint).call("tools/list")
        pending = at.client(endpoint).begin("tools/call", {"name": name, "arguments": arguments}, **headers)
        await at.gateway.settle()
        for call in at["alpha"].asked_for("tools/call"):
            call.text("done")
        assert await pending.head() == status
        if status == 400:
            assert (await pending.error()).code == -32020


@pytest.mark.parametrize("endpoint", ["", "alpha"])
async def test_a_tool_that_no_client_could_call_is_not_shown(
    modern: Open, autojump_clock: MockClock, endpoint: str
) -> None:
    async with modern(Peer("alpha", modern=False, tools=(REGION, BROKEN))) as at:
        found = await at.client(endpoint).call("tools/list")
        assert [item["name"].removeprefix("alpha__") for item in found["tools"]] == ["where"]
        session = await at.gateway.connect()
        assert await session.names() == ["alpha__where", "alpha__odd"]


async def test_a_call_does_not_wait_without_end_for_the_list_that_says_what_headers_repeat(
    modern: Open, autojump_clock: MockClock
) -> None:
    peer = Peer("alpha")
    async with modern(peer) as at:
        peer.answers = False
        pending = at.client("alpha").begin("tools/call", {"name": "echo"})
        (await peer.next()).text("done")
        assert (await pending.result())["content"]
        assert trio.current_time() < 12


async def test_headers_that_repeat_arguments_count_for_a_server_with_sessions_too(
    modern: Open, autojump_clock: MockClock
) -> None:
    async with modern(Peer("alpha", modern=False, tools=(REGION,))) as at:
        client = at.client("alpha")
        call = {"name": "where", "arguments": {"r": "eu"}}
        wrong = client.begin("tools/call", call, mcp_param_region="us")
        assert await wrong.head() == 400
        assert at["alpha"].asked_for("tools/call") == []
