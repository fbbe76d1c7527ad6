from typing import Any

import pytest
import trio
import trio.testing

from actors.ports import FrameAccepted, FrameReceived, RequestFailed
from gateway.native import Context, Server

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


def busy_server(**options: Any) -> Server:
    server = Server("t", **options)
    server.running = set()  # type: ignore[attr-defined]

    @server.tool
    async def hang(key: int) -> None:
        server.running.add(key)  # type: ignore[attr-defined]
        try:
            await trio.sleep_forever()
        finally:
            server.running.discard(key)  # type: ignore[attr-defined]

    @server.tool
    async def count(to: int, ctx: Context) -> str:
        for i in range(to):
            await ctx.progress(i + 1, to, f"step {i + 1}")
            await ctx.progress(i + 1, to)
        await ctx.log("debug", "hidden")
        await ctx.log("warning", {"counted": to}, logger="counter")
        return "done"

    @server.tool
    async def remember(what: str, ctx: Context) -> str:
        ctx.state.setdefault("said", []).append(what)
        return " ".join(ctx.state["said"])

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.client.name} {ctx.client.revision} {ctx.can('roots')}"

    return server


async def test_the_handshake_echoes_a_revision_with_one_and_offers_what_there_is(attach: Any, version: str) -> None:
    client = attach(busy_server(version="3", title="Busy", instructions="Be kind."), version)
    result = await client.initialize()
    assert result["protocolVersion"] == version
    assert result["capabilities"] == {"tools": {"listChanged": True}, "logging": {}}
    assert result["instructions"] == "Be kind."
    assert result["serverInfo"] == {"name": "t", "version": "3"} | ({"title": "Busy"} if version > "2025-04" else {})


@pytest.mark.parametrize("asked", ["2026-07-28", "2019-01-01", ""])
async def test_any_other_revision_is_answered_with_the_newest(attach: Any, asked: str) -> None:
    client = attach(busy_server())
    result = await client.request("initialize", {**INITIALIZE, "protocolVersion": asked})
    assert result["protocolVersion"] == "2025-11-25"


async def test_a_level_that_is_none_is_called_so(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def shout(ctx: Context) -> None:
        await ctx.log("loud", "x")  # type: ignore[arg-type]

    client = await connect(server)
    assert (await client.error("shout")).startswith("ValueError: 'loud' is no level: one of debug, info,")


async def test_before_the_handshake_there_is_only_ping(attach: Any, failed: Any) -> None:
    client = attach(busy_server())
    assert await client.request("ping") == {}
    with pytest.raises(failed) as caught:
        await client.request("tools/list")
    assert caught.value.code == -32600
    await client.initialize()
    with pytest.raises(failed) as caught:
        await client.initialize()
    assert caught.value.code == -32600
    assert (await client.request("tools/list"))["tools"]


async def test_a_handshake_that_failed_may_be_tried_again(attach: Any, failed: Any) -> None:
    broken = [True]

    def make() -> dict[str, Any]:
        if broken:
            raise ValueError(broken.pop())
        return {}

    client = attach(busy_server(state=make))
    with pytest.raises(failed) as caught:
        await client.request("initialize", {})
    assert caught.value.code == -32602
    with pytest.raises(failed) as caught:
        await client.initialize()
    assert caught.value.code == -32603
    await client.open()
    assert await client.text("remember", what="a") == "a"


async def test_methods_of_what_is_not_offered_do_not_exist(connect: Any, failed: Any) -> None:
    client = await connect(busy_server())
    for method in ("prompts/list", "resources/list", "completion/complete", "tasks/list", "nonsense", "Ping"):
        with pytest.raises(failed) as caught:
            await client.request(method, {})
        assert caught.value.code == -32601


async def test_progress_goes_to_those_who_asked_and_always_grows(connect: Any, version: str) -> None:
    client = await connect(busy_server(), version)
    await client.text("count", to=2)
    assert [n for n, _, _ in client.notes] == ["notifications/message"]
    client.notes.clear()
    params = {"name": "count", "arguments": {"to": 2}, "_meta": {"progressToken": "tok"}}
    id = client.post("tools/call", params)
    await client.answer_to(id)
    progress = [p for n, p, related in client.notes if n == "notifications/progress" and related == id]
    assert [p["progress"] for p in progress] == [1, 2]
    assert progress[0]["progressToken"] == "tok"
    assert ("message" in progress[0]) == (version >= "2025-03-26")


async def test_log_messages_obey_the_level_of_the_session(connect: Any, failed: Any) -> None:
    client, other = await connect(busy_server()), await connect(busy_server())
    for level, heard in (("debug", 2), ("warning", 1), ("error", 0)):
        client.notes.clear()
        await client.request("logging/setLevel", {"level": level})
        await client.text("count", to=0)
        assert len(client.notes) == heard
    await other.text("count", to=0)
    assert other.notes[0][1] == {"level": "warning", "data": {"counted": 0}, "logger": "counter"}
    with pytest.raises(failed) as caught:
        await client.request("logging/setLevel", {"level": "loud"})
    assert caught.value.code == -32602


async def test_cancelling_stops_that_call_and_no_other_and_it_gets_no_answer(connect: Any) -> None:
    server = busy_server()
    client = await connect(server)
    first = client.post("tools/call", {"name": "hang", "arguments": {"key": 1}}, id="1")
    client.post("tools/call", {"name": "hang", "arguments": {"key": 2}}, id=1001)
    await trio.testing.wait_all_tasks_blocked()
    for params in ({"requestId": first}, {"requestId": "unknown"}, {}, {"requestId": None}, {"requestId": True}):
        client.notify("notifications/cancelled", params)
    client.notify("notifications/cancelled")
    await trio.testing.wait_all_tasks_blocked()
    assert server.running == {2}  # type: ignore[attr-defined]
    client.transport.forget(1001)
    await trio.testing.wait_all_tasks_blocked()
    assert server.running == set()  # type: ignore[attr-defined]
    assert first not in client.answers
    assert 1001 not in client.answers


async def test_a_handler_that_crashes_while_it_is_cancelled_harms_nothing(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in cleanup")

    client = await connect(server)
    id = client.post("tools/call", {"name": "stubborn"})
    await trio.testing.wait_all_tasks_blocked()
    client.notify("notifications/cancelled", {"requestId": id})
    assert await client.request("ping") == {}
    await trio.testing.wait_all_tasks_blocked()
    assert id not in client.answers
    assert len(client.log.lines) == 1


async def test_one_id_twice_at_a_time_is_refused_and_ids_differ_by_type(connect: Any, failed: Any) -> None:
    client = await connect(busy_server())
    client.post("tools/call", {"name": "hang", "arguments": {"key": 1}}, id="a")
    client.post("tools/call", {"name": "hang", "arguments": {"key": 1}}, id=77)
    assert await client.answer_to(client.post("ping", id="77")) == {}
    with pytest.raises(failed) as caught:
        await client.answer_to(client.post("tools/list", id="a"))
    assert caught.value.code == -32600


async def test_requests_too_many_are_refused_at_once(connect: Any, failed: Any) -> None:
    client = await connect(busy_server(requests_per_session=2))
    for key in range(2):
        client.post("tools/call", {"name": "hang", "arguments": {"key": key}})
    with pytest.raises(failed) as caught:
        await client.request("tools/list")
    assert "Too many requests" in caught.value.message
    assert await client.request("ping") == {}


async def test_state_belongs_to_one_session(connect: Any) -> None:
    server = busy_server()
    one, two = await connect(server), await connect(server)
    await one.text("remember", what="a")
    assert await two.text("remember", what="b") == "b"
    assert await one.text("remember", what="c") == "a c"


async def test_a_handler_sees_who_its_client_is(connect: Any) -> None:
    client = await connect(busy_server(), "2025-06-18")
    assert await client.text("who") == "test 2025-06-18 True"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"nonsense", -32700),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
        (b"[" * 100_000, -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    ],
)
async def test_what_is_no_message_gets_an_error_without_an_id(connect: Any, frame: bytes, code: int) -> None:
    client = await connect(busy_server())
    client.transport.send(frame)
    await client.until(lambda: bool(client.stray))
    assert client.stray[0]["error"]["code"] == code
    assert await client.request("ping") == {}


async def test_malformed_params_are_refused_where_they_can_be_told(connect: Any, failed: Any) -> None:
    client = await connect(busy_server())
    for method, params in (
        ("tools/list", {"cursor": 5}),
        ("tools/list", {"cursor": "bm9uc2Vuc2U="}),
        ("tools/list", {"cursor": "cmVzb3VyY2VzOjU="}),
        ("tools/list", {"cursor": "dG9vbHM6LTU="}),
        ("tools/list", {"cursor": "é"}),
        ("logging/setLevel", {}),
        ("tools/call", {"name": "count", "arguments": {"to": 1}, "_meta": 5}),
    ):
        with pytest.raises(failed) as caught:
            await client.request(method, params)
        assert caught.value.code == -32602
    assert await client.request("tools/call", {"name": "count", "arguments": {"to": 1}, "cursor": 1})


async def test_a_batch_is_read_where_the_revision_has_it(connect: Any) -> None:
    client = await connect(busy_server(), "2025-03-26")
    client.methods |= {"x": "ping", "y": "tools/list"}
    client.send(
        [
            {"jsonrpc": "2.0", "id": "x", "method": "ping"},
            {"jsonrpc": "2.0", "id": "y", "method": "tools/list"},
            {"jsonrpc": "2.0", "method": "notifications/whatever"},
            5,
        ]
    )
    await client.answer_to("x")
    await client.answer_to("y")
    assert client.stray[0]["error"]["code"] == -32600


async def test_lists_come_in_pages_whose_cursors_cover_each_entry_once(connect: Any) -> None:
    server = Server("t", page_size=3)
    for i in range(7):
        server.tool(name=f"tool{i}")(_nothing)
    client = await connect(server)
    seen, cursor, pages = [], None, 0
    while True:
        page = await client.request("tools/list", {"cursor": cursor} if cursor else {"cursor": None})
        seen += [tool["name"] for tool in page["tools"]]
        pages += 1
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert (seen, pages) == ([f"tool{i}" for i in range(7)], 3)


async def _nothing() -> None:
    pass


# The transport ------------------------------------------------------------------------------------------------


async def test_frames_sent_before_it_runs_are_kept_in_order(nursery: trio.Nursery, attach: Any) -> None:
    client = attach(busy_server())
    client.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, tag=9)
    assert FrameAccepted(9) in client.events
    client.post("initialize", INITIALIZE, id="i")
    client.post("tools/list", {}, id="l")
    client.methods |= {"i": "initialize", "l": "tools/list"}
    client.transport.negotiated("2025-11-25")
    client.transport.listen()
    await client.answer_to("i")


async def test_closing_ends_the_session_and_its_work_and_says_so_once(connect: Any) -> None:
    server = busy_server()
    client = await connect(server)
    client.post("tools/call", {"name": "hang", "arguments": {"key": 1}})
    await trio.testing.wait_all_tasks_blocked()
    client.transport.close()
    client.transport.close()
    await client.until(lambda: bool(client.closed))
    assert server.running == set()  # type: ignore[attr-defined]
    assert [event.reason for event in client.closed] == ["closed"]
    assert client.events[-1] is client.closed[0]
    client.post("ping", id="late")
    assert isinstance(client.events[-1], RequestFailed)
    client.notify("notifications/initialized")
    server.list_changed("tools")


async def test_a_cancelled_run_still_says_that_it_is_closed(unstarted: Any) -> None:
    client = unstarted(busy_server())
    with trio.CancelScope() as scope:
        scope.cancel()
        await client.transport.run()
    assert scope.cancelled_caught
    assert [event.reason for event in client.closed] == ["cancelled"]


async def test_a_restart_begins_a_session_of_its_own(connect: Any) -> None:
    server = busy_server()
    client = await connect(server)
    await client.text("remember", what="a")
    client.post("tools/call", {"name": "hang", "arguments": {"key": 1}}, id="old")
    await trio.testing.wait_all_tasks_blocked()
    client.transport.restart()
    await client.open()
    assert await client.text("remember", what="b") == "b"
    assert "old" not in client.answers
    assert server.running == set()  # type: ignore[attr-defined]
    assert client.closed == []


async def test_what_there_is_no_room_for_is_refused_or_ends_the_session(unstarted: Any) -> None:
    client = unstarted(busy_server())
    for _ in range(1024):
        client.notify("notifications/x")
    client.post("ping", id="full")
    [failure] = client.events
    assert isinstance(failure, RequestFailed)
    assert (failure.id, failure.executed) == ("full", "no")
    client.notify("notifications/x")
    await client.transport.run()
    assert [event.reason for event in client.closed] == ["overflow"]


async def test_a_session_of_all_clients_outlives_what_one_of_them_notifies(unstarted: Any) -> None:
    client = unstarted(busy_server(), shared=True)
    for _ in range(1030):
        client.notify("notifications/x")
    assert client.closed == []
    client.post("ping", id="full")
    assert [event.id for event in client.events] == ["full"]


async def test_every_frame_says_which_request_it_belongs_to(connect: Any) -> None:
    client = await connect(busy_server())
    id = client.post("tools/call", {"name": "count", "arguments": {"to": 0}}, id="q")
    await client.answer_to(id)
    related = [event.related for event in client.events if isinstance(event, FrameReceived)]
    assert related[-2:] == ["q", "q"]


async def test_what_is_said_after_the_answer_belongs_to_no_request(connect: Any, nursery: trio.Nursery) -> None:
    server, kept = Server("t"), []

    @server.tool
    async def leak(ctx: Context) -> None:
        kept.append(ctx)

    client = await connect(server)
    params = {"name": "leak", "_meta": {"progressToken": "p"}}
    await client.request("tools/call", params)
    await kept[0].progress(1)
    await kept[0].log("info", "later")
    assert [(n, related) for n, _, related in client.notes] == [("notifications/message", None)]


async def test_the_handshake_can_not_be_cancelled(attach: Any) -> None:
    client = attach(busy_server())
    id = client.post("initialize", INITIALIZE)
    client.notify("notifications/cancelled", {"requestId": id})
    assert (await client.answer_to(id))["protocolVersion"]


async def test_what_runs_no_handler_takes_effect_in_the_order_it_came(connect: Any) -> None:
    client = await connect(busy_server())
    for level in ("error", "debug"):
        client.post("logging/setLevel", {"level": level})
    await client.text("count", to=0)
    assert [p["level"] for _, p, _ in client.notes] == ["debug", "warning"]


async def test_many_frames_at_a_time_are_read_in_one_turn(connect: Any) -> None:
    client = await connect(busy_server())
    for _ in range(3):
        ids = [client.post("ping") for _ in range(1000)]
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert ids[-1] in client.answers


async def test_a_handler_that_exits_the_process_ends_its_request_alone(attach: Any, failed: Any) -> None:
    def leave() -> None:
        raise SystemExit(1)

    client = attach(busy_server(state=leave))
    with pytest.raises(failed, match=r"sys\.exit"):
        await client.initialize()
    assert await client.request("ping") == {}
