"""Why a server does not work: who is told what, and how often."""

import trio

from actors.ports import RequestFailed
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

LINES = ("Error: no database at 127.0.0.1:5432", "giving up")
INFO = {"name": "test", "version": "1"}


async def failure(client, tool="echo"):
    try:
        await client.tool(tool)
    except RpcError as error:
        return error
    raise AssertionError("it worked")


async def test_servers_that_are_dead_are_one_line_each_and_later_lines_say_how_often_they_failed(autojump_clock):
    backends = [Backend(name) for name in ("a", "b", "c", "d", "e")]
    async with open_gateway(*backends) as gateway:
        clients = [await gateway.connect(backend.name) for backend in backends]
        for backend in backends:
            backend.down = True
            backend.link.die()
        began = trio.current_time()
        while trio.current_time() < began + 10:
            for client in clients:
                await failure(client)
            await trio.sleep(0.25)
        warned = [values for level, _, values in gateway.log.lines if level == "warning"]
        # The loss of the connection is one thing, that another one can't be had is another.
        assert sorted((v["backend"], v["reason"]) for v in warned) == sorted(
            (backend.name, reason) for backend in backends for reason in {v["reason"] for v in warned}
        )
        assert len(warned) <= 2 * len(backends)
        while trio.current_time() < began + 70:
            for client in clients:
                await failure(client)
            await trio.sleep(1)
        later = [v for level, _, v in gateway.log.lines if level == "warning"][len(warned) :]
        assert sorted({v["backend"] for v in later}) == ["a", "b", "c", "d", "e"]
        assert len(later) <= 2 * len(backends)
        assert all(v["failures"] > 1 for v in later)
        failed = sum(v["failures"] for v in (*warned, *later)) + sum(
            gateway.actors.backends.status[backend.name].unlogged for backend in backends
        )
        assert failed == gateway.telemetry.total("stagedoor_backend_failures_total")


async def test_a_server_that_works_again_is_told_with_how_often_it_had_failed(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        alpha.link.die()
        await gateway.settle()
        assert await client.tool("echo") == "alpha: echo"
        assert gateway.log.events("backend_recovered") == [{"backend": "alpha", "failures": 1}]


async def test_states_are_plain_words(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect("alpha")
        status = gateway.actors.backends.status
        assert status["alpha"].state == "healthy"
        alpha.down = True
        alpha.link.die()
        await gateway.settle()
        assert status["alpha"].state == "failing"
        for _ in range(5):
            await failure(client)
        assert status["alpha"].state == "down"
        alpha.down = False
        await trio.sleep(31)
        assert await client.tool("echo") == "alpha: echo"
        assert status["alpha"].state == "healthy"


async def test_what_a_process_wrote_before_it_was_ready_is_in_the_error_without_addresses(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        alpha.link.die()
        alpha.silent = True
        call = client.begin("tools/call", {"name": "echo"})
        while len(alpha.links) < 2:
            await trio.sleep(0.1)
        alpha.link.transport.end("exited", "alpha exited with status 1", stderr=LINES)
        error = await call.error()
        assert error.data["stderr"] == ["Error: no database at [address]", "giving up"]
        assert error.data["executed"] == "no"
        assert gateway.actors.backends.status["alpha"].failure.diagnostics.stderr == LINES
        assert gateway.log.events("backend_failed")[-1]["stderr"] == list(LINES)


async def test_what_a_process_wrote_while_it_served_somebody_is_for_operators_alone(autojump_clock):
    alpha = Backend("alpha", tools=("echo", "slow"), held={"slow"})
    async with open_gateway(alpha) as gateway:
        hers, his = await gateway.connect("alpha"), await gateway.connect("alpha")
        call = hers.begin("tools/call", {"name": "slow"})
        request = await alpha.next("tools/call")
        alpha.down = True
        request.link.transport.end("exited", "alpha exited with status 1", stderr=("her secret",))
        assert "stderr" not in (await call.error()).data
        assert gateway.actors.backends.status["alpha"].failure.diagnostics.stderr == ("her secret",)
        for link in alpha.links:
            link.transport.end("exited", "alpha exited with status 1", stderr=("his secret",))
        await gateway.settle()
        for _ in range(5):
            for client in (hers, his):
                assert "secret" not in str((await failure(client)).data)


async def test_the_status_that_a_server_answers_with_is_in_the_error_and_in_that_of_whoever_may_not_even_try(
    autojump_clock,
):
    alpha = Backend("alpha", kind="http")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.delete()
        alpha.silent = True
        for _ in range(6):
            other = gateway.client("alpha")
            call = other.begin("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO})
            await gateway.settle()
            transport = alpha.link.transport
            if not transport.closed and transport.sent:
                refusal = RequestFailed(transport.sent[0].id, "http_status", "alpha answered 401", "no", 401, "detail")
                transport._say(refusal)
            error = await call.error()
            assert (error.data["backend"], error.data["status"]) == ("alpha", 401)
        assert error.data["reason"] == "backend_down"
        assert gateway.actors.backends.status["alpha"].last_error == "detail"
