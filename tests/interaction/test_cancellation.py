"""Deadlines and cancellation (2025-11-25 basic/utilities/cancellation)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import CANCELLED, INTERNAL
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Call, Message

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

RELATING = pytest.mark.cells((Cell(), Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http")))


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
    async def slow(request: Request) -> Message:
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


@pytest.mark.by_http
@pytest.mark.requirement("cancel", "cancel-only-that", "cancelled-post-ends", "pitfall-cancelled-post")
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
    [
        None,
        {},
        {"requestId": "1"},
        {"requestId": 2},
        {"requestId": None},
        {"requestId": 1.0},
        {"requestId": [1]},
        {"reason": "x"},
    ],
    ids=str,
)
async def test_a_cancel_of_nothing_is_accepted_and_ignored(stage: Stage, route: Route, params: Message | None) -> None:
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
@pytest.mark.requirement("cancelled-post-ends", "pitfall-cancelled-post")
async def test_a_cancelled_call_that_was_cut_is_not_resumed_for_ever(stage: Stage, route: Route) -> None:
    calls, _ = await running_calls(stage, route, 1)
    await calls[0].primer()
    calls[0].cut()
    await calls[0].client.accepted(calls[0].cancel())
    resumed = await calls[0].client.resume(calls[0])
    assert (await resumed.error()).code == CANCELLED
    assert await resumed.next() is None


@pytest.mark.cells((Cell(NEWEST, "memory", "stdio"),))
@pytest.mark.requirement("cancel")
async def test_a_call_that_waits_for_its_turn_is_cancelled_before_it_was_sent(stage: Stage, route: Route) -> None:
    """On a transport that relates nothing, calls of a client that can be asked go one at a time."""
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
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
