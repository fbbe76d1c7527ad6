"""What a gateway that is full, overloaded or draining says (decisions of the gateway)."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import EVERYWHERE, JUMPING
from tests.interaction.exchanges import refused, works
from tests.interaction.stage import Route, Stage
from tests.support.wire_client import HttpError, Message

# Bounds ------------------------------------------------------------------------------------------------------


@JUMPING
@pytest.mark.limits(requests_per_session=3)
@pytest.mark.requirement("too-many-requests")
async def test_a_request_too_many_is_429_and_pings_are_always_answered(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        return text("done")

    client = await stage.connect(route.path)
    running = [client.start_call(route.name("wait")) for _ in range(3)]
    for call in running:
        await call.opened()
    late = client.start_call(route.name("wait"), id=77)
    await refused(late.exchange, 429, id=77)
    assert int(late.exchange.headers["retry-after"]) > 0
    await works(client)
    other = await stage.connect(route.path)
    unharmed = other.start_call(route.name("wait"))
    go.set()
    for call in [*running, unharmed]:
        assert await call.result() == text("done")
    assert await client.call(route.name("wait")) == text("done")


@JUMPING
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.limits(requests_per_principal=2)
@pytest.mark.requirement("too-many-requests")
async def test_the_requests_of_one_principal_are_bounded_over_its_sessions(stage: Stage) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        return text("done")

    ann, ann_too = [await stage.connect("/mcp/alpha", token="token-of-ann") for _ in range(2)]
    bob = await stage.connect("/mcp/alpha", token="token-of-bob")
    running = [ann.start_call("wait"), ann_too.start_call("wait")]
    for call in running:
        await call.opened()
    await refused(ann.start_call("wait", id=7).exchange, 429, id=7)
    running.append(bob.start_call("wait"))
    await running[-1].opened()
    go.set()
    for call in running:
        assert await call.result() == text("done")
    assert await ann.call("wait") == text("done")


@JUMPING
@pytest.mark.requirement("overload")
async def test_an_overloaded_gateway_takes_no_new_work_and_goes_on_with_what_it_has(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("ask")
    async def ask(request: Request) -> Message:
        return text(str(await request.ask("roots/list")))

    client = await stage.connect(route.path, capabilities={"roots": {}})
    call = client.start_call(route.name("ask"))
    question = await call.message("roots/list")
    stage.overloaded = True
    late, new = client.start_call(route.name("ask"), id=7), stage.client(route.path)
    await refused(late.exchange, 503, id=7)
    assert int(late.exchange.headers["retry-after"]) > 0
    await refused(new.start("initialize", new.introduction(), id=8).exchange, 503, id=8)
    await client.answer(question, {"roots": []})
    assert await call.result() == text("{'roots': []}")
    stage.overloaded = False
    assert await new.connect()
    assert len(backend.of("tools/call")) == 1


@JUMPING
@pytest.mark.requirement("draining")
async def test_while_the_gateway_drains_new_sessions_are_503_and_work_in_hand_is_finished(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await trio.sleep(3)
        return text("done")

    client = await stage.connect("/mcp/alpha")
    call = client.start_call("wait")
    await call.opened()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.drain)
        await trio.sleep(0.1)
        late = stage.client()
        exchange = late.start("initialize", late.introduction(), id=1).exchange
        await refused(exchange, 503, id=1)
        assert int(exchange.headers["retry-after"]) > 0
        assert await call.result() == text("done")
    await stage.begin()


@pytest.mark.cells(EVERYWHERE)
@pytest.mark.requirement("http-errors-typed")
async def test_a_refusal_on_the_http_level_leaves_a_running_call_alone(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    go = trio.Event()

    @backend.tool("wait")
    async def wait(request: Request) -> Message:
        await go.wait()
        return text("done")

    client = await stage.connect(route.path)
    call = client.start_call(route.name("wait"))
    for bad in (b"nonsense", b"[]", {"jsonrpc": "2.0", "id": 99, "result": {}}):
        with pytest.raises(HttpError):
            await client.accepted(client.post(bad))
    go.set()
    assert await call.result() == text("done")
