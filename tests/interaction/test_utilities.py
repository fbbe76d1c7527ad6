"""Ping, logging and progress (2025-11-25 basic/utilities, server/utilities)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.cells import JUMPING, TRANSPORTS
from tests.interaction.codes import INVALID_PARAMS
from tests.interaction.stage import Cell, Route, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Message, RpcError

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

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
    async def pings(request: Request) -> Message:
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
    async def logs(request: Request) -> Message:
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


UNKNOWN = pytest.mark.parametrize(
    "params", [None, {}, {"level": "loud"}, {"level": 3}, {"level": None}, {"level": "INFO"}], ids=str
)
"""Params that name no level of the protocol."""


@JUMPING
@pytest.mark.requirement("log-levels")
@UNKNOWN
async def test_an_unknown_level_is_invalid_params_and_changes_nothing(
    stage: Stage, route: Route, params: Message | None
) -> None:
    backend = await stage.backend()
    backend.extensions |= {"logging/setLevel"}  # before one server it is its own to refuse

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        request.log("error", "loud")
        request.log("info", "quiet")
        return text("done")

    @backend.on("logging/setLevel")
    async def strict(request: Request) -> Message:
        if request.params.get("level") not in LEVELS:
            raise RpcError({"code": INVALID_PARAMS, "message": "no such level", "data": {"levels": 8}})
        return {}

    client = await stage.connect(route.path)
    await client.request("logging/setLevel", {"level": "error"})
    error = await client.refused("logging/setLevel", params)
    assert error.code == INVALID_PARAMS
    if not route.name_prefix:
        assert (error.message, error.data) == ("no such level", {"levels": 8})
        assert backend.of("logging/setLevel")[-1]["params"] == (params or {})
    call = client.start_call(route.name("logs"))
    await call.result()
    assert [m["params"]["data"] for m in call.messages[:-1]] == ["loud"]


@JUMPING
@pytest.mark.requirement("log-levels", "transparent-requests")
@UNKNOWN
async def test_with_a_level_that_only_the_server_knows_nothing_is_left_out(
    stage: Stage, params: Message | None
) -> None:
    backend = await stage.backend()
    backend.extensions |= {"logging/setLevel"}

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        for level in LEVELS:
            request.log(level, level)
        return text("done")

    client = await stage.connect("/mcp/alpha")

    async def heard() -> list[str]:
        call = client.start_call("logs")
        await call.result()
        return [m["params"]["data"] for m in call.messages[:-1]]

    await client.request("logging/setLevel", {"level": "error"})
    assert await heard() == list(LEVELS[LEVELS.index("error") :])
    assert await client.request("logging/setLevel", params) == {}
    assert await heard() == list(LEVELS)
    said = backend.connections[-1].of("logging/setLevel")[-1]["params"]
    assert said == (params or {})
    backend.connections[-1].hang_up()
    assert await heard() == list(LEVELS)
    await stage.recorded()
    await stage.restart()
    assert await heard() == list(LEVELS), "also for the next process"
    again = [m["params"] for m in backend.connections[-1].of("logging/setLevel")]
    assert again == ([said] if isinstance(said.get("level"), str) else [])
    await client.request("logging/setLevel", {"level": "emergency"})
    assert await heard() == ["emergency"]


@pytest.mark.cells((Cell(NEWEST, "memory", "channel", "modern"),))
@pytest.mark.requirement("log-levels")
async def test_an_unknown_level_does_not_cross_the_eras(stage: Stage) -> None:
    backend = await stage.modern_backend()

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        request.log("error", "loud")
        request.log("info", "quiet")
        return text("done")

    client = await stage.connect("/mcp/alpha")
    await client.request("logging/setLevel", {"level": "error"})
    assert (await client.refused("logging/setLevel", {"level": "loud"})).code == INVALID_PARAMS
    call = client.start_call("logs")
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
    async def logs(request: Request) -> Message:
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
@pytest.mark.parametrize("sharing", ["session", "shared"])
async def test_a_level_that_the_backend_refuses_is_never_in_force(stage: Stage, sharing: str) -> None:
    backend = await stage.backend(sharing=sharing)
    refuses = False

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        request.log("info", "quiet")
        request.log("error", "loud")
        return text("done")

    @backend.on("logging/setLevel")
    async def choosy(request: Request) -> Message:
        if refuses:
            raise RpcError({"code": -32601, "message": "Method not found"})
        return {}

    client = await stage.connect("/mcp/alpha")

    async def heard() -> list[str]:
        call = client.start_call("logs")
        await call.result()
        return [m["params"]["data"] for m in call.messages[:-1]]

    everything = ["quiet", "loud"] if sharing == "session" else []  # nobody knows whose a shared one's logs are
    refuses = True
    assert (await client.refused("logging/setLevel", {"level": "error"})).code == -32601
    assert await heard() == everything
    refuses = False
    await client.request("logging/setLevel", {"level": "debug"})
    refuses = True
    await client.refused("logging/setLevel", {"level": "emergency"})
    assert await heard() == everything, "the one of before holds"
    await stage.recorded()
    await stage.restart()
    assert await heard() == everything, "also for the next process"
    if sharing == "session":
        again = backend.connections[-1].of("logging/setLevel")
        assert [m["params"] for m in again] == [{"level": "debug"}]


@JUMPING
@pytest.mark.requirement("log-levels")
async def test_an_aggregate_leaves_out_what_is_below_whatever_its_backends_say_to_the_level(stage: Stage) -> None:
    backend = await stage.backend()
    backend.refuses("logging/setLevel", -32601, "Method not found")

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
        request.log("info", "quiet")
        request.log("error", "loud")
        return text("done")

    client = await stage.connect("/mcp")
    assert await client.request("logging/setLevel", {"level": "error"}) == {}
    call = client.start_call("alpha__logs")
    await call.result()
    assert [m["params"]["data"] for m in call.messages[:-1]] == ["loud"]


@JUMPING
@pytest.mark.requirement("log-levels")
async def test_the_level_survives_a_restart(stage: Stage) -> None:
    backend = await stage.backend()

    @backend.tool("logs")
    async def logs(request: Request) -> Message:
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


@pytest.mark.requirement("progress", "tokens-not-forwarded", "pitfall-6")
@pytest.mark.parametrize("token", [1, "1", "token \u00e4", 0])
async def test_progress_comes_under_the_clients_own_token(stage: Stage, route: Route, token: int | str) -> None:
    backend = await stage.backend()

    @backend.tool("work")
    async def work(request: Request) -> Message:
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


@pytest.mark.requirement("progress-isolated", "pitfall-6")
async def test_the_same_token_of_two_sessions_is_never_mixed_up(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    both = trio.Event()
    running: list[Request] = []

    @backend.tool("work")
    async def work(request: Request) -> Message:
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
@pytest.mark.requirement("progress-rises", "pitfall-progress")
async def test_progress_that_does_not_rise_is_dropped_by_an_aggregate_and_what_comes_late_everywhere(
    stage: Stage, route: Route
) -> None:
    """The client's own books assert that nothing comes after the answer."""
    backend = await stage.backend()

    @backend.tool("work")
    async def work(request: Request) -> Message:
        for progress in said:
            request.progress(progress)
        return text("done")

    said = (1, 1, 0.5, 2, -1, 2.5, 2.5)
    client = await stage.connect(route.path)
    client.trusting = not route.name_prefix
    call = client.start_call(route.name("work"), token=1)
    stream = await client.listen()
    await call.result()
    told = [1, 2, 2.5] if route.name_prefix else list(said)
    assert [m["params"]["progress"] for m in call.messages[:-1]] == told
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
    async def work(request: Request) -> Message:
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


@JUMPING
@pytest.mark.requirement("tokens-not-forwarded", "pitfall-6")
@pytest.mark.parametrize("token", [None, 1.5, True, {}, [], {"progressToken": 1}], ids=str)
async def test_a_token_that_is_none_is_not_passed_on(stage: Stage, route: Route, token: Any) -> None:
    backend = await stage.backend()
    backend.result("work", text("done"))
    client = await stage.connect(route.path)
    params = {"name": route.name("work"), "_meta": {"progressToken": token, "com.example/x": 1}}
    message = client.request_message("tools/call", {}, id=1)
    exchange = client.post({**message, "params": params})
    assert (await exchange.json())["result"] == text("done")
    assert backend.of("tools/call")[0]["params"]["_meta"] == {"com.example/x": 1}
