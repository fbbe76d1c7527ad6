"""Ping, logging, progress, cancellation, pagination (2025-11-25 basic/utilities, server/utilities)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import EVERYWHERE, NEWEST_ONLY, TRANSPORTS
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Call, HttpError, RpcError

INVALID_PARAMS = -32602
INTERNAL = -32603
CANCELLED = -32800

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

JUMPING = pytest.mark.cells(NEWEST_ONLY)
RELATING = pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http")))


# Ping --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("ping")
async def test_a_ping_is_answered_here_and_never_forwarded(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    await client.call(route.name("echo"))
    assert await client.request("ping") == {}
    assert await client.request("ping", {"_meta": {"x": 1}}) == {}
    assert not backend.of("ping")


@pytest.mark.cells(TRANSPORTS)
@pytest.mark.requirement("ping")
async def test_a_ping_of_a_backend_is_answered_here_in_the_midst_of_a_call(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("pings")
    async def pings(request: Request) -> dict:
        return text(str([await request.ask("ping"), await request.connection.ask("ping")]))

    client = await stage.connect(route.path)
    call = client.start_call(route.name("pings"))
    assert await call.result() == text("[{}, {}]")
    assert len(call.messages) == 1, "the client hears nothing of it"


# Logging -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("log-levels", "log-related")
async def test_log_messages_below_the_level_are_left_out(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("logs")
    async def logs(request: Request) -> dict:
        for level in LEVELS:
            request.log(level, {"level": level}, logger="deep")
        return text("done")

    client = await stage.connect(route.path)

    async def heard() -> list[str]:
        call = client.start_call(route.name("logs"))
        assert await call.result() == text("done")
        loggers = {m["params"]["logger"] for m in call.messages[:-1]}
        assert loggers <= {"alpha/deep" if route.name_prefix else "deep"}
        return [m["params"]["data"]["level"] for m in call.messages[:-1]]

    assert await heard() == list(LEVELS)
    for level in ("warning", "emergency", "debug", "info"):
        assert await client.request("logging/setLevel", {"level": level}) == {}
        assert await heard() == list(LEVELS[LEVELS.index(level) :])


@JUMPING
@pytest.mark.requirement("log-levels")
@pytest.mark.parametrize("params", [None, {}, {"level": "loud"}, {"level": 3}, {"level": None}, {"level": "INFO"}], ids=str)
async def test_an_unknown_level_is_invalid_params_and_changes_nothing(
    stage: Stage, route: Route, params: dict | None
) -> None:
    backend = await stage.backend()

    @backend.tool("logs")
    async def logs(request: Request) -> dict:
        request.log("error", "loud")
        request.log("info", "quiet")
        return text("done")

    client = await stage.connect(route.path)
    await client.request("logging/setLevel", {"level": "error"})
    assert (await client.refused("logging/setLevel", params)).code == INVALID_PARAMS
    call = client.start_call(route.name("logs"))
    await call.result()
    assert [m["params"]["data"] for m in call.messages[:-1]] == ["loud"]


@JUMPING
@pytest.mark.requirement("log-level-to-backends")
async def test_the_level_reaches_every_backend_also_those_that_connect_later(stage: Stage, route: Route) -> None:
    for name in ("alpha", "beta"):
        backend = await stage.backend(name)
        backend.result("echo", text(name))
    client = await stage.connect(route.path)
    await client.call(route.name("echo"))
    await client.request("logging/setLevel", {"level": "warning"})
    own = stage.backends["alpha"].connections[-1]
    assert (await own.wait_for("logging/setLevel"))["params"] == {"level": "warning"}
    if route.name_prefix:
        await client.call("beta__echo")
        later = stage.backends["beta"].connections[-1]
        methods = [m.get("method") for m in later.received]
        assert methods.index("logging/setLevel") < methods.index("tools/call")


@JUMPING
@pytest.mark.requirement("log-levels")
async def test_the_level_is_the_sessions_own(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("logs")
    async def logs(request: Request) -> dict:
        request.log("info", "quiet")
        return text("done")

    strict, open_ = await stage.connect(route.path), await stage.connect(route.path)
    await strict.request("logging/setLevel", {"level": "error"})
    for client, count in ((strict, 0), (open_, 1)):
        call = client.start_call(route.name("logs"))
        await call.result()
        assert len(call.messages) == count + 1


@JUMPING
@pytest.mark.requirement("log-levels")
async def test_the_level_survives_a_restart(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("logs")
    async def logs(request: Request) -> dict:
        request.log("info", "quiet")
        return text("done")

    client = await stage.connect("/mcp/alpha")
    await client.request("logging/setLevel", {"level": "error"})
    await stage.restart()
    call = client.start_call("logs")
    await call.result()
    assert len(call.messages) == 1
    assert backend.connections[-1].of("logging/setLevel")[0]["params"] == {"level": "error"}


# Progress ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("progress", "tokens-not-forwarded")
@pytest.mark.parametrize("token", [1, "1", "token \u00e4", 0])
async def test_progress_comes_under_the_clients_own_token(stage: Stage, route: Route, token: int | str) -> None:
    backend = await stage.backend()

    @backend.tool("work")
    async def work(request: Request) -> dict:
        request.progress(0.25, total=1.0, message="a quarter")
        request.progress(0.5)
        return text("done")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("work"), token=token)
    assert await call.result() == text("done")
    reports = [m["params"] for m in call.messages[:-1]]
    message = {} if stage.cell.revision == "2024-11-05" else {"message": "a quarter"}
    assert reports == [
        {"progressToken": token, "progress": 0.25, "total": 1.0, **message},
        {"progressToken": token, "progress": 0.5},
    ]
    sent = backend.of("tools/call")[0]["params"]["_meta"]["progressToken"]
    assert (type(sent), sent) != (type(token), token)


@pytest.mark.requirement("progress-isolated")
async def test_the_same_token_of_two_sessions_is_never_mixed_up(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    both = trio.Event()
    running: list[Request] = []

    @backend.tool("work")
    async def work(request: Request) -> dict:
        running.append(request)
        if len(running) == 2:
            both.set()
        await both.wait()
        for n in range(3):
            request.progress(n, message=request.arguments["who"])
        return text(request.arguments["who"])

    clients = {who: await stage.connect(route.path) for who in ("ann", "bob")}
    calls = {who: client.start_call(route.name("work"), token="t", id=1, who=who) for who, client in clients.items()}
    for who, call in calls.items():
        assert await call.result() == text(who)
        assert [m["params"]["progress"] for m in call.messages[:-1]] == [0, 1, 2]
        assert {m["params"].get("message", who) for m in call.messages[:-1]} == {who}


@JUMPING
@pytest.mark.requirement("progress-rises")
async def test_progress_that_does_not_rise_or_comes_late_is_dropped(stage: Stage, route: Route) -> None:
    """The client's own books assert it, and that nothing comes after the answer."""
    backend = await stage.backend()

    @backend.tool("work")
    async def work(request: Request) -> dict:
        for progress in (1, 1, 0.5, 2, -1, 2.5, 2.5):
            request.progress(progress)
        return text("done")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("work"), token=1)
    stream = await client.listen()
    await call.result()
    assert [m["params"]["progress"] for m in call.messages[:-1]] == [1, 2, 2.5]
    request = backend.of("tools/call")[0]
    token = request["params"]["_meta"]["progressToken"]
    late = {"progressToken": token, "progress": 9}
    backend.connections[-1].notify("notifications/progress", late, related=request["id"])
    await trio.sleep(1)
    assert [event for event in stream.exchange.unread if event.data] == []


@JUMPING
@pytest.mark.requirement("progress")
async def test_progress_that_nobody_asked_for_goes_nowhere(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("work")
    async def work(request: Request) -> dict:
        assert request.token is None
        for token in (request.id, 1, "t"):
            request.notify("notifications/progress", {"progressToken": token, "progress": 1})
        return text("done")

    client = await stage.connect(route.path)
    stream = await client.listen()
    call = client.start_call(route.name("work"))
    await call.result()
    assert len(call.messages) == 1
    assert [event for event in stream.exchange.unread if event.data] == []


# Deadlines ---------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.limits(request_deadline=30, request_deadline_cap=200)
@pytest.mark.requirement("deadline")
async def test_a_backend_that_never_answers_is_cancelled_at_the_deadline(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("never")
    async def never(request: Request) -> None:
        await trio.sleep_forever()

    client = await stage.connect(route.path)
    began = trio.current_time()
    error = await client.start_call(route.name("never")).error(within=60)
    assert error.code == INTERNAL
    assert error.data["executed"] == "unknown"
    assert trio.current_time() - began == pytest.approx(30, abs=2)
    cancel = await backend.connections[-1].wait_for("notifications/cancelled")
    assert cancel["params"]["requestId"] == backend.of("tools/call")[0]["id"]
    assert await client.request("ping") == {}


@JUMPING
@pytest.mark.limits(request_deadline=30, request_deadline_cap=100)
@pytest.mark.requirement("deadline")
async def test_progress_restarts_the_deadline_but_not_for_ever(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("slow")
    async def slow(request: Request) -> dict:
        for n in range(int(request.arguments["steps"])):
            await trio.sleep(20)
            request.progress(n)
        return text("done")

    client = await stage.connect(route.path)
    assert await client.start_call(route.name("slow"), token=1, steps=4).result(within=1000) == text("done")
    began = trio.current_time()
    assert (await client.start_call(route.name("slow"), token=2, steps=50).error(within=1000)).code == INTERNAL
    assert trio.current_time() - began == pytest.approx(100, abs=2)


# Cancellation ------------------------------------------------------------------------------------------------


async def running_calls(stage: Stage, route: Route, count: int = 2) -> tuple[list[Call], list[Request]]:
    """Calls of sessions that use the same ids, all with the backend."""
    backend = await stage.backend()
    running: list[Request] = []
    changed = trio.lowlevel.ParkingLot()

    @backend.tool("wait")
    async def wait(request: Request) -> None:
        running.append(request)
        changed.unpark_all()
        await trio.sleep_forever()

    calls = [
        (await stage.connect(route.path)).start_call(route.name("wait"), id=1, who=number) for number in range(count)
    ]
    with trio.fail_after(10):
        while len(running) < count:
            await changed.park()
    return calls, sorted(running, key=lambda request: request.arguments["who"])


@pytest.mark.requirement("cancel", "cancel-only-that", "cancelled-post-ends")
async def test_a_cancel_reaches_the_call_of_its_session_and_only_that(stage: Stage, route: Route) -> None:
    calls, running = await running_calls(stage, route)
    await calls[0].client.accepted(calls[0].cancel("enough"))
    error = await calls[0].error()
    assert error.code == CANCELLED
    assert await calls[0].next() is None
    connection = running[0].connection
    told = await connection.wait_for("notifications/cancelled")
    assert told["params"] == {"requestId": running[0].id, "reason": "enough"}
    assert running[0].cancelled.is_set()
    assert not running[1].cancelled.is_set()
    assert not running[1].connection.of("notifications/cancelled")
    running[1].answer(text("kept"))
    assert await calls[1].result() == text("kept")


@JUMPING
@pytest.mark.requirement("cancel")
async def test_an_answer_that_crosses_its_cancel_is_dropped(stage: Stage, route: Route) -> None:
    calls, running = await running_calls(stage, route, 1)
    await calls[0].client.accepted(calls[0].cancel())
    running[0].answer(text("late"))
    assert (await calls[0].error()).code == CANCELLED
    stream = await calls[0].client.listen()
    running[0].log("error", "late")
    await trio.sleep(1)
    assert not any("result" in event.message for event in stream.exchange.unread if event.data)


@JUMPING
@pytest.mark.requirement("cancel-malformed")
@pytest.mark.parametrize(
    "params",
    [None, {}, {"requestId": "1"}, {"requestId": 2}, {"requestId": None}, {"requestId": 1.0}, {"requestId": [1]}, {"reason": "x"}],
    ids=str,
)
async def test_a_cancel_of_nothing_is_accepted_and_ignored(stage: Stage, route: Route, params: dict | None) -> None:
    calls, running = await running_calls(stage, route, 1)
    await calls[0].client.notify("notifications/cancelled", params)
    await trio.sleep(1)
    assert not running[0].cancelled.is_set()
    running[0].answer(text("unharmed"))
    assert await calls[0].result() == text("unharmed")


@JUMPING
@pytest.mark.requirement("cancel-only-that")
async def test_a_client_can_not_cancel_by_the_id_that_the_backend_sees(stage: Stage, route: Route) -> None:
    calls, running = await running_calls(stage, route)
    for request in running:
        await calls[0].client.notify("notifications/cancelled", {"requestId": request.id})
    await trio.sleep(1)
    assert not any(request.cancelled.is_set() for request in running)


@JUMPING
@pytest.mark.requirement("cancelled-post-ends")
async def test_a_cancelled_call_that_was_cut_is_not_resumed_for_ever(stage: Stage, route: Route) -> None:
    calls, _ = await running_calls(stage, route, 1)
    await calls[0].primer()
    calls[0].cut()
    await calls[0].client.accepted(calls[0].cancel())
    resumed = await calls[0].client.resume(calls[0])
    assert (await resumed.error()).code == CANCELLED
    assert await resumed.next() is None


@JUMPING
@pytest.mark.requirement("cancel")
async def test_a_call_that_waits_for_its_turn_is_cancelled_before_it_was_sent(stage: Stage, route: Route) -> None:
    """On a transport that relates nothing, calls of a client that can be asked go one at a time."""
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> dict:
        await go.wait()
        return text("first")

    client = await stage.connect(route.path, capabilities={"sampling": {}})
    first = client.start_call(route.name("wait"))
    await first.exchange.head()
    second = client.start_call(route.name("wait"))
    await second.exchange.head()
    await client.accepted(second.cancel())
    assert (await second.error()).code == CANCELLED
    go.set()
    assert await first.result() == text("first")
    assert len(backend.of("tools/call")) == 1
    assert not backend.of("notifications/cancelled")


# Pagination --------------------------------------------------------------------------------------------------


def paged(items: list[dict[str, Any]], kind: str, cursors: list[str]) -> Any:
    """A list in pages of one, with these cursors between them."""

    async def listed(request: Request) -> dict:
        cursor = request.params.get("cursor")
        if cursor is not None and cursor not in cursors:
            raise RpcError({"code": INVALID_PARAMS, "message": "no such cursor"})
        page = 0 if cursor is None else cursors.index(cursor) + 1
        more = {"nextCursor": cursors[page]} if page < len(cursors) else {}
        return {kind: [items[page]], **more}

    return listed


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


@pytest.mark.requirement("pagination", "cursor-empty")
async def test_all_pages_of_all_backends_are_seen_once_also_behind_an_empty_cursor(stage: Stage) -> None:
    for name in ("alpha", "beta"):
        backend = await stage.backend(name)
        backend.on("tools/list")(paged(tools("a", "b", "c"), "tools", ["", "next \u00e4"]))
        backend.answers("tools/call", text(name))
    client = await stage.connect()
    seen: list[str] = []
    params: dict[str, Any] = {}
    while True:
        page = await client.request("tools/list", params)
        seen += [tool["name"] for tool in page["tools"]]
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert seen == [f"{name}__{tool}" for name in ("alpha", "beta") for tool in "abc"]
    assert await client.call("beta__c") == text("beta")


@pytest.mark.requirement("pagination", "cursor-empty")
async def test_alone_a_backends_cursors_are_its_own(stage: Stage) -> None:
    backend = await stage.backend()
    backend.on("tools/list")(paged(tools("a", "b", "c"), "tools", ["", "next \u00e4"]))
    client = await stage.connect("/mcp/alpha")
    first = await client.request("tools/list")
    assert first["nextCursor"] == ""
    second = await client.request("tools/list", {"cursor": ""})
    assert second["nextCursor"] == "next \u00e4"
    third = await client.request("tools/list", {"cursor": "next \u00e4"})
    assert [page["tools"][0]["name"] for page in (first, second, third)] == ["a", "b", "c"]
    assert "nextCursor" not in third
    assert (await client.refused("tools/list", {"cursor": "forged"})).code == INVALID_PARAMS


@JUMPING
@pytest.mark.requirement("pagination")
async def test_a_list_without_end_does_not_hold_the_others_up(stage: Stage) -> None:
    endless = await stage.backend("endless")

    @endless.on("tools/list")
    async def more(request: Request) -> dict:
        return {"tools": tools(f"t{len(endless.of('tools/list'))}"), "nextCursor": "again"}

    good = await stage.backend("good")
    good.result("echo", text("yes"))
    client = await stage.connect()
    listed = await client.request("tools/list", within=100)
    assert "good__echo" in [tool["name"] for tool in listed["tools"]]
    assert await client.call("good__echo") == text("yes")


@JUMPING
@pytest.mark.requirement("cursor-forged")
async def test_a_merged_list_has_pages_and_only_its_own_cursors_lead_on(stage: Stage) -> None:
    backend = await stage.backend()
    for n in range(1200):
        backend.add("tools", {"name": f"t{n}", "inputSchema": {"type": "object"}})
        backend.add("prompts", {"name": f"p{n}"})
    client = await stage.connect()
    first = await client.request("tools/list")
    cursor = first["nextCursor"]
    second = await client.request("tools/list", {"cursor": cursor})
    assert "nextCursor" not in second
    assert len({tool["name"] for tool in first["tools"] + second["tools"]}) == 1200
    prompts = (await client.request("prompts/list"))["nextCursor"]
    forged = [prompts, cursor[:-1], cursor + "A", "A" + cursor[1:], "", "1", "x" * 9000, "\u00e4"]
    for wrong in forged:
        assert (await client.refused("tools/list", {"cursor": wrong})).code == INVALID_PARAMS
    for mistyped in (7, [cursor], {}):
        assert (await client.refused("tools/list", {"cursor": mistyped})).code == INVALID_PARAMS


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("cursor-forged", "cursor-stale")
async def test_cursors_of_others_or_of_former_lists_are_invalid_params(stage: Stage) -> None:
    backend = await stage.backend()
    for n in range(1200):
        backend.add("tools", {"name": f"t{n}", "inputSchema": {"type": "object"}})
    backend.answers("tools/call", text("ok"))
    ann = await stage.connect(token="token-of-ann")
    bob = await stage.connect(token="token-of-bob")
    cursor = (await ann.request("tools/list"))["nextCursor"]
    await bob.request("tools/list")
    assert (await bob.refused("tools/list", {"cursor": cursor})).code == INVALID_PARAMS
    await ann.call("alpha__t1")
    backend.add("tools", {"name": "new", "inputSchema": {"type": "object"}})
    backend.connections[-1].notify("notifications/tools/list_changed")
    await trio.sleep(1)
    assert (await ann.refused("tools/list", {"cursor": cursor})).code == INVALID_PARAMS


# A dead backend in a list ------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.requirement("list-partial")
async def test_a_list_has_what_the_living_backends_have(stage: Stage) -> None:
    good, bad, mute = [await stage.backend(name) for name in ("good", "bad", "mute")]
    good.result("echo", text("yes"))
    bad.refuses("tools/list", INTERNAL, "broken")
    mute.result("never", text("no"))

    @mute.on("tools/list")
    async def never(request: Request) -> None:
        await trio.sleep_forever()

    client = await stage.connect()
    listed = await client.request("tools/list", within=60)
    assert [tool["name"] for tool in listed["tools"]] == ["good__echo"]


@JUMPING
@pytest.mark.requirement("list-partial")
async def test_if_no_backend_can_be_asked_that_is_an_error_and_no_empty_list(stage: Stage) -> None:
    for name in ("one", "two"):
        (await stage.backend(name)).refuses("initialize", INTERNAL, "broken")
    client = await stage.connect()
    assert (await client.refused("tools/list")).code == INTERNAL


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("unanswerable")
async def test_what_a_client_says_of_nothing_is_no_harm(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect(route.path)
    for token in (1, "x"):
        await client.notify("notifications/progress", {"progressToken": token, "progress": 1})
    await client.notify("notifications/cancelled", {"requestId": 99})
    with pytest.raises(HttpError):
        await client.accepted(client.post({"jsonrpc": "2.0", "id": 99, "result": {}}))
    assert await client.call(route.name("echo")) == text("yes")
    assert not backend.of("notifications/progress")
