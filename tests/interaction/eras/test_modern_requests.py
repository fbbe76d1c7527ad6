"""Requests without a session, side by side: each is its own, and ends with its connection (2026-07-28 basic)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, WITHOUT_TO_ANY, WITHOUT_TO_SESSIONS
from tests.interaction.eras.held import Held
from tests.interaction.scripts import FORM, asking
from tests.interaction.stage import Cell, Route, Stage
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN
from tests.support.wire_client import Message, RpcError


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("pitfall-3", "bridge-disconnect", "bridge-resumption")
async def test_a_connection_that_breaks_cancels_its_request_and_no_other(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    held = Held(backend)
    client = stage.modern(route.path)
    calls = []
    for number in range(2):
        calls.append(client.start_call(route.name("held"), token=number, who=number))
        await held.running(number + 1)
    calls[0].cut()
    with trio.fail_after(10):
        await held.requests[0].cancelled.wait()
    assert not held.requests[1].cancelled.is_set()
    held.requests[1].progress(1)
    await calls[1].message("notifications/progress")
    calls[1].cut()
    with trio.fail_after(10):
        await held.requests[1].cancelled.wait()
    # Nothing is left of them: an idempotent third one is served.
    third = client.start_call(route.name("held"), who=3)
    await held.running(3)
    held.release(2)
    assert (await third.complete())["content"] == text("3")["content"]


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("pitfall-5", "pitfall-6")
async def test_equal_ids_and_tokens_of_two_clients_are_never_mixed_up(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    held = Held(backend)
    who: list[tuple[Any, Any]] = [("ann", 1), ("bob", 1), ("typed", "1")]
    calls = []
    for number, (name, id) in enumerate(who):
        client = stage.modern(route.path, affinity=name if name != "typed" else "bob")
        calls.append(client.start_call(route.name("held"), id=id, token=id, who=name))
        await held.running(number + 1)
    seen = [request.id for request in held.requests]
    assert not {1, "1"} & set(seen), "the ids of clients are not used upstream"
    assert not {1, "1"} & {request.token for request in held.requests}
    for number, request in enumerate(held.requests):
        request.progress(10 + number)
    for number, call in enumerate(calls):
        assert (await call.message("notifications/progress"))["progress"] == 10 + number
    calls[0].cut()
    with trio.fail_after(10):
        await held.requests[0].cancelled.wait()
    assert not [request for request in held.requests[1:] if request.cancelled.is_set()]
    held.release(2, 1)
    for call, name in zip(calls[1:], ("bob", "typed"), strict=True):
        assert (await call.complete())["content"] == text(name)["content"]


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("pitfall-progress", "progress-rises", "bridge-progress")
async def test_progress_rises_but_from_the_only_server_and_ends_with_the_answer(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("steps")
    async def steps(request: Request) -> Message:
        for value in (1, 1, 3, 2, 4):
            request.progress(value, total=5)
        return text("done")

    client = stage.modern(route.path)
    client.trusting = as_is = backend.modern and not route.name_prefix
    call = client.start_call(route.name("steps"), token="t")
    await call.complete()
    told = [seen["progress"] for seen in call.seen("notifications/progress")]
    assert told == ([1, 1, 3, 2, 4] if as_is else [1, 3, 4])
    silent = client.start_call(route.name("steps"))
    backend.trusting = True
    await silent.complete()
    assert not silent.seen("notifications/progress"), "nobody asked for progress"
    assert stage.cell.by == "channel" or not silent.exchange.is_stream, "nor is there a stream for it"


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("pitfall-20", "bridge-log-level", "bridge-log-message")
async def test_log_messages_come_to_the_request_that_wants_them(stage: Stage, route: Route) -> None:
    backend = await stage.backend()

    @backend.tool("chat")
    async def chat(request: Request) -> Message:
        if rules.VERSION in request.params.get("_meta", {}) and request.params["_meta"].get(rules.LEVEL) is None:
            return text("silent")
        for level in ("debug", "info", "error"):
            request.log(level, f"{level} of {request.arguments['who']}")
        return text("done")

    client = stage.modern(route.path)
    loud = client.start_call(route.name("chat"), level="info", who="loud")
    await loud.complete()
    assert [seen["data"] for seen in loud.seen("notifications/message")] == ["info of loud", "error of loud"]
    silent = client.start_call(route.name("chat"), who="silent")
    await silent.complete()
    assert silent.seen("notifications/message") == []


@pytest.mark.cells(WITHOUT_TO_SESSIONS[:1])
@pytest.mark.requirement("bridge-log-level")
async def test_a_server_that_refuses_a_level_goes_on_with_the_one_of_before(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    said: list[str] = []

    @backend.on("logging/setLevel")
    async def choosy(request: Request) -> Message:
        said.append(request.params["level"])
        if said[-1] == "debug":
            raise RpcError({"code": -32602, "message": "no such level here"})
        return {}

    client = stage.modern("/mcp/alpha")
    for level in ("error", "debug", "error"):
        await client.start_call("echo", level=level).complete()
    assert said == ["error", "debug"], "it was at that level all the time"


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("pitfall-20", "bridge-shared-logs")
async def test_two_principals_never_see_each_others_log_lines(stage: Stage, route: Route, cell: Cell) -> None:
    backend = await stage.backend()
    held = Held(backend)
    calls = {}
    for number, name in enumerate(("ann", "bob")):
        client = stage.modern(route.path, token=f"token-of-{name}")
        calls[name] = client.start_call(route.name("held"), level="debug", token=1, who=name)
        await held.running(number + 1)
    for request in held.requests:
        request.log("error", f"of {request.arguments['who']}")
        request.progress(1)
    for name, call in calls.items():
        await _until_progress(call)
        assert {seen["data"] for seen in call.seen("notifications/message")} <= {f"of {name}"}
        if cell.transport == "http" or cell.era == "legacy":
            assert call.seen("notifications/message"), "here messages belong to their request, or to its client"
    held.release(0, 1)
    for call in calls.values():
        await call.complete()


async def _until_progress(call: Any) -> None:
    while (message := await call.next()) is not None:
        if message["method"] == "notifications/progress":
            return


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("pitfall-20", "pitfall-23", "bridge-no-capability")
async def test_what_one_request_declares_does_not_count_for_the_next(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    asking(backend)
    able = stage.modern(route.path, capabilities={"elicitation": {}})
    call = able.start_call(route.name("ask"), method="elicitation/create", params=FORM)
    required, key, _ = await call.question()
    await able.retry(call, required, {key: {"action": "decline"}}).complete()
    unable = able.start(
        "tools/call",
        {"name": route.name("ask"), "arguments": {"method": "elicitation/create", "params": FORM}},
        capabilities={},
    )
    if backend.modern and not route.name_prefix:
        able.trusting = True
        assert (await unable.question())[2]["params"] == FORM, "between the two of them: it is the client's to refuse"
    elif backend.modern:
        # A server that asks all the same has broken the rules; the client must not see it.
        with pytest.raises(RpcError):
            await unable.complete()
    else:
        assert (await unable.complete())["_meta"]["code"] in (-32601, -32602)
        asked = [connection for connection in backend.connections if connection.of("tools/call")]
        assert [set(connection.client["capabilities"]) for connection in asked] == [{"elicitation"}, set()]


@pytest.mark.cells(WITHOUT_TO_ANY)
@pytest.mark.requirement("modern-trace", "ids-not-forwarded")
async def test_keys_of_others_in_meta_reach_the_backend_and_those_of_the_era_are_its_own(
    stage: Stage, route: Route
) -> None:
    backend = await stage.backend()
    backend.result("echo", {**text("yes"), "_meta": {"x.example/key": [1]}})
    client = stage.modern(route.path)
    meta = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x.example/key": {"a": 1}}
    result = await client.request("tools/call", {"name": route.name("echo"), "arguments": {}}, meta=meta)
    assert result["_meta"]["x.example/key"] == [1]
    seen = backend.of("tools/call")[0]["params"]["_meta"]
    assert meta.items() <= seen.items()
    ours = {key for key in seen if key.startswith(rules.PREFIX)}
    if backend.modern:
        assert seen[rules.VERSION] == MODERN
        assert ours >= {rules.VERSION, rules.CAPABILITIES, rules.CLIENT}
    else:
        assert not ours, "a server with sessions knows none of these"


@JUMPING
@pytest.mark.limits(requests_per_principal=2)
@pytest.mark.tokens(ann="token-of-ann", bob="token-of-bob")
@pytest.mark.requirement("modern-bounds")
async def test_requests_too_many_are_refused_and_harm_nobody(stage: Stage) -> None:
    backend = await stage.backend(era="modern")
    held = Held(backend)
    ann, bob = (stage.modern(token=f"token-of-{name}") for name in ("ann", "bob"))
    calls = []
    for number in range(2):
        calls.append(ann.start_call("alpha__held", who=number))
        await held.running(number + 1)
    refused = ann.start_call("alpha__held", who=2)
    assert (await refused.error()).code == -32603, "codes of the other era are not used"
    assert refused.exchange.status == 429
    assert "retry-after" in refused.exchange.headers
    other = bob.start_call("alpha__held", who="bob")
    await held.running(3)
    held.release(0, 1, 2)
    for call in (*calls, other):
        await call.complete()


@JUMPING
@pytest.mark.limits(request_deadline=30)
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.requirement("modern-deadline", "bridge-timeout")
async def test_a_call_that_is_never_answered_ends_at_its_deadline(stage: Stage, era: Any) -> None:
    backend = await stage.backend(era=era)
    held = Held(backend)
    call = stage.modern().start_call("alpha__held")
    error = await call.error(within=60)
    assert error.code == -32603
    assert error.data["executed"] == "unknown"
    assert held.requests[0].cancelled.is_set()
