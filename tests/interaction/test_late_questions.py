"""A server that goes on with a call that was cancelled, answers pings all the same, and asks for it when another call
runs: the question is never that one's.

The scripted servers answer no call that was cancelled, as those on the TypeScript SDK do.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, Connection, Request, text
from tests.interaction.cells import WITHOUT_TO_SESSIONS
from tests.interaction.codes import INTERNAL
from tests.interaction.scripts import ASKS, EVERYTHING, FORM, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support.modern_wire import ModernCall, ModernWire
from tests.support.schemas import MODERN, NEWEST
from tests.support.wire_client import RpcError

ANN = {"action": "accept", "content": {"name": "Ann"}}
SESSIONS = (
    *(Cell(NEWEST, "memory", transport) for transport in ("channel", "stdio", "sse", "ws")),
    Cell(NEWEST, "memory", "channel", by="channel"),
)
"""Clients with a session before servers whose transport relates nothing."""
JUMPING = pytest.mark.cells((Cell(MODERN, "memory", "channel", "legacy"),))


class Slow:
    """A tool that is cancelled before it is done, and one that runs until it is told to answer."""

    def __init__(self, backend: Backend) -> None:
        self.running: list[Request] = []
        self.done = trio.Event()
        asking(backend)

        @backend.tool("slow")
        async def slow(request: Request) -> None:
            self.running.append(request)
            await trio.sleep_forever()

        @backend.tool("work")
        async def work(request: Request) -> dict[str, Any]:
            self.running.append(request)
            await self.done.wait()
            return text("worked")

    async def runs(self, count: int) -> Request:
        """The so-manieth call."""
        with trio.fail_after(10):
            while len(self.running) < count:
                await trio.sleep(0.01)
        return self.running[count - 1]


async def cancelled(client: ModernWire, route: Route, slow: Slow) -> Connection:
    """The connection of a call that its client has left."""
    before = len(slow.running)
    call = client.start_call(route.name("slow"))
    request = await slow.runs(before + 1)
    call.cut()
    with trio.fail_after(10):
        await request.cancelled.wait()
    return request.connection


async def refused(connection: Connection, method: str = "elicitation/create") -> None:
    """What it asks is refused, and at once."""
    with trio.fail_after(4), pytest.raises(RpcError) as raised:
        await connection.ask(method, ASKS[method][0])
    assert (raised.value.code, raised.value.data["reason"]) == (INTERNAL, "doubtful")


async def asks(client: ModernWire, route: Route) -> None:
    """A call whose server asks comes back with the question, and goes on with the answer."""
    call: ModernCall = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    assert (await client.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN


# Clients with a session ----------------------------------------------------------------------------------------------


@pytest.mark.cells(SESSIONS)
@pytest.mark.requirement("lease", "attribution")
async def test_it_comes_beside_the_calls_of_a_session(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    slow = Slow(backend)
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    listening = await client.listen()
    call = client.start_call(route.name("slow"))
    request = await slow.runs(1)
    await client.accepted(call.cancel())
    work = client.start_call(route.name("work"))
    assert (await slow.runs(2)).connection is request.connection, "it has answered a ping"
    _, answer = request.connection.begin_ask("elicitation/create", FORM)
    question = await listening.message("elicitation/create")
    said = client.post({"jsonrpc": "2.0", "id": question["id"], "result": ANN})
    assert await answer() == ANN
    slow.done.set()
    assert await work.result() == text("worked")
    await client.accepted(said)
    assert [message.get("method") for message in work.messages] == [None], "nothing was asked in its course"


@pytest.mark.cells((Cell(NEWEST, "memory", "channel"),))
@pytest.mark.requirement("lease", "server-request-outside-call")
async def test_where_a_session_has_no_place_for_it_another_process_takes_over(stage: Stage, route: Route) -> None:
    """As soon as nothing runs: what later calls ask comes with them again."""
    backend = await stage.backend()
    slow = Slow(backend)
    client = await stage.connect(route.path, capabilities=EVERYTHING)
    client.answerers["elicitation/create"] = lambda params: ANN
    call = client.start_call(route.name("slow"))
    request = await slow.runs(1)
    await client.accepted(call.cancel())
    work = client.start_call(route.name("work"))
    await slow.runs(2)
    _, answer = request.connection.begin_ask("elicitation/create", FORM)
    with pytest.raises(RpcError):
        await answer()
    waiting = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    await trio.sleep(1)  # it has a stream by now, and its record says that it was not sent
    assert not request.connection.ended.is_set(), "a call runs"
    slow.done.set()
    assert await work.result() == text("worked")
    assert [message.get("method") for message in work.messages] == [None]
    assert (await waiting.result())["_meta"]["answer"] == ANN
    await request.connection.wait_ended()


# Clients without a session -------------------------------------------------------------------------------------------


@pytest.mark.cells(WITHOUT_TO_SESSIONS)
@pytest.mark.limits(overflow_connections=0)
@pytest.mark.requirement("bridge-unasked", "bridge-stuck")
async def test_a_client_without_a_session_is_not_asked_and_a_later_question_reaches_it(
    stage: Stage, route: Route
) -> None:
    """The server keeps its process as long as it has not asked. From then on one that may ask for a call that was
    cancelled gives way to another process before the next call."""
    backend = await stage.backend()
    slow = Slow(backend)
    client = stage.modern(route.path, capabilities=EVERYTHING)
    first = await cancelled(client, route, slow)
    work = client.start_call(route.name("work"))
    assert (await slow.runs(2)).connection is first, "it never asked, and what it remembers stays"
    await refused(first)
    slow.done.set()
    assert (await work.complete())["content"] == text("worked")["content"]
    await first.wait_ended()
    await asks(client, route)
    second = await cancelled(client, route, slow)
    assert second is not first
    await asks(client, route)
    await second.wait_ended()
    (line,) = [line for line in stage.log.of("backend_request_refused") if line["backend"] == backend.name]
    assert line["method"] == "elicitation/create"


@pytest.mark.cells([cell for cell in WITHOUT_TO_SESSIONS if cell.transport in ("channel", "ws")])
@pytest.mark.parametrize("method", ASKS)
@pytest.mark.limits(overflow_connections=0)
@pytest.mark.requirement("bridge-unasked")
async def test_whatever_it_asks_it_is_no_other_calls(stage: Stage, route: Route, method: str) -> None:
    slow = Slow(await stage.backend())
    client = stage.modern(route.path, capabilities=EVERYTHING)
    connection = await cancelled(client, route, slow)
    work = client.start_call(route.name("work"))
    await slow.runs(2)
    await refused(connection, method)
    slow.done.set()
    assert (await work.complete())["content"] == text("worked")["content"]


@JUMPING
@pytest.mark.limits(overflow_connections=0)
@pytest.mark.requirement("bridge-unasked")
async def test_a_server_that_answers_what_was_cancelled_can_ask_again(stage: Stage, route: Route) -> None:
    """However late: it is done with that call."""
    backend = await stage.backend()
    slow = Slow(backend)
    client = stage.modern(route.path, capabilities=EVERYTHING)
    connection = await cancelled(client, route, slow)
    work = client.start_call(route.name("work"))
    await slow.runs(2)
    await refused(connection)
    connection.say({"id": slow.running[0].id, "error": {"code": 0, "message": "cancelled"}})
    slow.done.set()
    assert (await work.complete())["content"] == text("worked")["content"]
    await asks(client, route)
    assert not connection.ended.is_set()
    assert len([c for c in backend.connections if c.of("tools/call")]) == 1


@JUMPING
@pytest.mark.requirement("bridge-unasked", "bridge-subscribe")
async def test_who_is_subscribed_stays_so_and_hears_what_may_have_been_missed(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    slow = Slow(backend)
    backend.add("resources", {"uri": "memo:///1", "name": "1"})
    backend.answers("resources/subscribe", {})
    client = stage.modern(route.path, capabilities=EVERYTHING)
    await asks(client, route)
    (uri,) = [item["uri"] for item in (await client.request("resources/list"))["resources"]]
    listening = await client.listen(uri)
    connection = await cancelled(client, route, slow)
    await connection.wait_ended()
    assert (await listening.message("notifications/resources/updated"))["uri"] == uri
    again = next(c for c in backend.connections if c is not connection and c.of("resources/subscribe"))
    again.notify("notifications/resources/updated", {"uri": "memo:///1"})
    assert (await listening.message("notifications/resources/updated"))["uri"] == uri


@JUMPING
@pytest.mark.requirement("bridge-unasked", "bridge-overflow")
async def test_a_process_where_somebody_is_asked_stays_for_the_answer(stage: Stage, route: Route) -> None:
    """Further ones are replaced like the first, and no suspended call ends for it."""
    backend = await stage.backend()
    slow = Slow(backend)
    client = stage.modern(route.path, capabilities=EVERYTHING)
    call = client.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    further = await cancelled(client, route, slow)
    await asks(client, route)
    await further.wait_ended()
    first = next(connection for connection in backend.connections if connection.of("tools/call"))
    assert not first.ended.is_set()
    assert (await client.retry(call, required, {key: ANN}).complete())["_meta"]["answer"] == ANN
