"""A rolling upgrade to a configuration with one server less: sessions that used it go on with the rest."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.actors.test_table_replaced import each_once, told
from tests.cluster.test_giving_back import answer, draining
from tests.support.door_client import Client, Pending, RpcError
from tests.support.harness import Gateway, open_replica_maker
from tests.support.mcp_backend import Backend
from tests.support.pooled import client as modern
from tests.support.pooled import echo, error_of, executed, retry, suspend


def http(name: str) -> Backend:
    return Backend(name, kind="http", tools=("echo", "work"), held={"work"})


async def calling(client: Client, backend: Backend) -> tuple[Pending, Any]:
    """A call whose answer can be had again."""
    call = client.begin("tools/call", {"name": f"{backend.name}__work"}, progress=backend.name)
    request = await backend.next()
    backend.upstream.transport.prime("c0", request.id)
    params = {"progressToken": request.token, "progress": 1}
    backend.upstream.notify("notifications/progress", params, related=request.id, cursor="c1")
    await call.next("notifications/progress")
    return call, request


def back(client: Client, call: Pending) -> Pending:
    rest = client.listen([e.id for e in call.events if e.id][-1])
    rest.id = call.id
    return rest


async def leaves(gateway: Gateway, how: str) -> None:
    if how == "drained":
        async with draining(gateway):
            await trio.sleep(8)
    else:
        gateway.kill()
        await trio.sleep(6)


@pytest.mark.parametrize("how", ["drained", "killed"])
async def test_what_ran_at_the_server_that_is_gone_gets_its_error_and_the_rest_goes_on(
    autojump_clock: Any, how: str
) -> None:
    alpha, beta = http("alpha"), http("beta")
    async with open_replica_maker() as start:
        older, newer = await start(alpha, beta), await start(alpha)
        client = await older.connect()
        assert await client.names() == ["alpha__echo", "alpha__work", "beta__echo", "beta__work"]
        events = client.listen()
        (kept, request), (lost, _) = await calling(client, alpha), await calling(client, beta)
        await leaves(older, how)
        client.to(newer)
        rest = back(client, kept)
        await newer.settle()
        answer(alpha, request)
        assert (await rest.result())["content"][0]["text"] == "done"
        ended = (await back(client, lost).response())["error"]
        assert ended["code"] == -32603
        assert ended["data"]["executed"] == "unknown"
        assert [len(server.asked_for("tools/call")) for server in (alpha, beta)] == [1, 1]
        again = client.listen(events.events[-1].id if events.events else None)
        await trio.sleep(5)
        assert sorted(told(again)) == sorted(each_once())
        assert await client.names() == ["alpha__echo", "alpha__work"]
        assert await client.tool("alpha__echo") == "alpha: echo"
        for _ in range(2):
            with pytest.raises(RpcError, match="Unknown tool: beta__echo"):
                await client.tool("beta__echo")
        [line] = newer.log.events("session_reconfigured")
        assert line["gone"] == ["beta"]
        assert beta.open == []


async def test_at_the_endpoint_of_the_server_that_is_gone_there_are_no_sessions(autojump_clock: Any) -> None:
    alpha, beta = http("alpha"), http("beta")
    async with open_replica_maker() as start:
        older, newer = await start(alpha, beta), await start(alpha)
        client = await older.connect("beta")
        client.to(newer)  # while its owner still lives too
        call = client.begin("tools/call", {"name": "echo"})
        assert await call.head() == 404
        client.to(older)
        assert await client.tool("echo") == "beta: echo"


async def test_while_both_run_a_session_is_what_its_owner_says(autojump_clock: Any) -> None:
    """Mail goes to the owner, and its configuration counts, whichever replica the client comes to."""
    alpha, beta = http("alpha"), http("beta")
    async with open_replica_maker() as start:
        older, newer = await start(alpha, beta), await start(alpha)
        client, late = await older.connect(), await newer.connect()
        client.to(newer)
        late.to(older)
        assert await client.tool("beta__echo") == "beta: echo"
        assert await late.names() == ["alpha__echo", "alpha__work"]


@pytest.mark.parametrize("parked", [True, False])
async def test_a_modern_client_of_the_server_that_is_gone_hears_so(autojump_clock: Any, parked: bool) -> None:
    alpha, beta = (Backend(name, kind="http", tools=("echo", "ask"), held={"ask"}) for name in ("alpha", "beta"))
    async with open_replica_maker() as start:
        older, newer = await start(alpha, beta), await start(alpha)
        for name in ("alpha", "beta"):
            asked = await modern(older, endpoint="").call(
                "tools/call", {"name": f"{name}__echo", "arguments": {"text": "hi"}}
            )
            assert asked["content"][0]["text"] == f"{name}: hi"
        if parked:
            asked, _ = await suspend(modern(older, endpoint="beta"), beta)
        older.kill()
        await trio.sleep(6)
        params = {**retry(asked)} if parked else {"name": "beta__echo"}
        call = modern(newer, endpoint="").begin("tools/call", {**params, "name": "beta__ask"})
        assert (await error_of(call)).code == -32602
        assert executed(beta) == 1 + parked
        assert await echo(modern(newer)) == "alpha: hi"
