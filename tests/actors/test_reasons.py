"""Why a server does not work: who is told what, and how often."""

import json
from contextlib import asynccontextmanager

import pytest
import trio

from actors.ports import FrameReceived, RequestFailed
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

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
            backend.upstream.die()
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
        alpha.upstream.die()
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
        alpha.upstream.die()
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
        alpha.upstream.die()
        alpha.silent = True
        call = client.begin("tools/call", {"name": "echo"})
        while len(alpha.upstreams) < 2:
            await trio.sleep(0.1)
        alpha.upstream.transport.end("exited", "alpha exited with status 1", stderr=LINES)
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
        request.upstream.transport.end("exited", "alpha exited with status 1", stderr=("her secret",))
        assert "stderr" not in (await call.error()).data
        assert gateway.actors.backends.status["alpha"].failure.diagnostics.stderr == ("her secret",)
        for upstream in alpha.upstreams:
            upstream.transport.end("exited", "alpha exited with status 1", stderr=("his secret",))
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
            transport = alpha.upstream.transport
            if not transport.closed and transport.sent:
                refusal = RequestFailed(transport.sent[0].id, "http_status", "alpha answered 401", "no", 401, "detail")
                transport.say(refusal)
            error = await call.error()
            assert (error.data["backend"], error.data["status"]) == ("alpha", 401)
        assert error.data["reason"] == "backend_down"
        assert gateway.actors.backends.status["alpha"].last_error == "detail"


@asynccontextmanager
async def lister(gateway, era, endpoint=""):
    """Lists the tools of an endpoint as a client of an era does: the error that comes of it."""
    async with trio.open_nursery() as nursery:
        if era == "legacy":
            client = await gateway.connect(endpoint)
            yield lambda: client.begin("tools/list").error()
        else:
            modern = ModernClient(gateway.actors.door, nursery, endpoint)
            yield lambda: modern.begin("tools/list").error()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_with_every_server_dead_a_list_says_why_each_of_them_is(autojump_clock, era):
    alpha, beta = Backend("alpha"), Backend("beta", kind="http")
    alpha.silent = beta.silent = True

    async def fails():
        """One exits, the other one answers 401, as often as they are asked."""
        while True:
            for backend in (alpha, beta):
                for upstream in backend.open:
                    for sent in upstream.transport.sent:
                        if backend is beta:
                            said = "beta answered 401"
                            upstream.transport.say(
                                RequestFailed(sent.id, "http_status", said, "no", 401, f"http://10.0.0.7: {said}")
                            )
                        else:
                            upstream.transport.end("exited", "alpha exited with status 1", stderr=LINES)
            await trio.sleep(0.05)

    async with open_gateway(alpha, beta) as gateway, trio.open_nursery() as nursery:
        nursery.start_soon(fails)
        async with lister(gateway, era) as ask:
            error = await ask()
            assert (error.data["reason"], error.data["executed"]) == ("backends_down", "no")
            first, second = error.data["servers"]
            assert (first["backend"], first["reason"]) == ("alpha", "exited")
            assert "exited with status 1" in first["message"]
            assert first["stderr"] == ["Error: no database at [address]", "giving up"]
            assert (second["backend"], second["reason"], second["status"]) == ("beta", "http_status", 401)
            assert "stderr" not in second
            assert "10.0.0.7" not in str(error.data)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_a_list_says_of_dead_servers_is_bounded_however_many_and_talkative_they_are(autojump_clock, era):
    backends = [Backend(f"s{n}") for n in range(30)]
    for backend in backends:
        backend.silent = True

    async def fails():
        while True:
            for backend in backends:
                for upstream in backend.open:
                    upstream.transport.end("exited", f"{backend.name} exited with status 1", stderr=("x" * 1000,) * 50)
            await trio.sleep(0.05)

    async with open_gateway(*backends) as gateway, trio.open_nursery() as nursery:
        nursery.start_soon(fails)
        async with lister(gateway, era) as ask:
            error = await ask()
            told = error.data["servers"]
            assert [server["backend"] for server in told] == [f"s{n}" for n in range(len(told))]
            assert 10 <= len(told) < 30
            assert error.data["more"] == 30 - len(told)
            assert len(str(error.data)) < 50_000
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_a_server_wrote_while_it_served_others_is_in_no_list_of_reasons(autojump_clock, era):
    alpha = Backend("alpha")
    async with open_gateway(alpha, groups={"all": ("alpha",)}) as gateway:
        await gateway.connect("alpha")
        alpha.down = True
        alpha.upstream.transport.end("exited", "alpha exited with status 1", stderr=("somebody's secret",))
        await gateway.settle()
        assert "secret" in str(gateway.actors.backends.status["alpha"].failure)
        async with lister(gateway, era, "all") as ask:
            error = await ask()
        assert error.data["servers"][0]["backend"] == "alpha"
        assert "secret" not in str(error.data)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("endpoint", ["alpha", ""])
@pytest.mark.parametrize("sessions", [True, False])
async def test_a_call_that_is_not_answered_in_time_names_its_server(autojump_clock, era, endpoint, sessions):
    kind = Backend if sessions else ModernBackend
    alpha = kind("alpha", tools=("slow",), held={"slow"}, timeout=5.0)
    tool = "slow" if endpoint else "alpha__slow"
    async with open_gateway(alpha) as gateway, trio.open_nursery() as nursery:
        if era == "legacy":
            client = await gateway.connect(endpoint)
            error = await client.begin("tools/call", {"name": tool}).error()
        else:
            modern = ModernClient(gateway.actors.door, nursery, endpoint)
            error = await modern.begin("tools/call", {"name": tool}).error()
        assert (error.data["backend"], error.data["reason"], error.data["executed"]) == ("alpha", "timeout", "unknown")
        nursery.cancel_scope.cancel()


async def test_an_error_that_comes_with_a_status_has_both_in_the_reason(autojump_clock):
    alpha = Backend("alpha", kind="http", mute={"initialize", "server/discover"})
    async with open_gateway(alpha) as gateway:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
        call = gateway.client("alpha").begin("initialize", params)
        for method in ("initialize", "server/discover", "initialize"):
            request = await alpha.next(method)
            refusal = {"jsonrpc": "2.0", "id": request.id, "error": {"code": -32001, "message": "no seat left"}}
            request.upstream.transport.say(FrameReceived(json.dumps(refusal).encode(), request.id, status=418))
        error = await call.error()
        assert "no seat left (error -32001)" in error.message
        assert (error.data["backend"], error.data["status"]) == ("alpha", 418)


REFUSALS = [(-32022, -32000), (-32020, -32602), (-32022, -32022)]


class Refuses(Backend):
    """A server that refuses both eras, with errors of its own."""

    def __init__(self, initialize, discover, **more):
        super().__init__("alpha", **more)
        self.codes = {"initialize": initialize, "server/discover": discover}

    def answer(self, request):
        code = self.codes[request.method]
        data = {"supported": ["2099-01-01"]} if code == -32022 else None
        request.error(code, f"no license for {request.method} at http://10.0.0.7:80/x " + "y" * 5000, data)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("initialize", "discover"), [*REFUSALS, (-32001, -32000), (-32000, -32020)])
@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_that_refuses_both_eras_is_heard_in_its_own_words(
    autojump_clock, era, initialize, discover, kind
):
    alpha = Refuses(initialize, discover, kind=kind)
    async with open_gateway(alpha) as gateway, trio.open_nursery() as nursery:
        if era == "legacy":
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
            error = await gateway.client("alpha").begin("initialize", params).error()
        else:
            modern = ModernClient(gateway.actors.door, nursery, "alpha")
            error = await modern.begin("tools/call", {"name": "echo"}).error()
        assert (error.data["backend"], error.data["executed"]) == ("alpha", "no")
        refused = [
            m for m, code in (("initialize", initialize), ("server/discover", discover)) if str(code) in error.message
        ]
        assert refused, error.message
        assert all(f"no license for {method} at [address]" in error.message for method in refused)
        if error.data["reason"] == "no_common_version":
            assert len(refused) == 2, "both are said"
        assert len(error.message) < 1500
        await gateway.settle()  # those who are told of the failure hear of it in no order
        failure = gateway.actors.backends.status["alpha"].failure
        assert failure.reason == error.data["reason"]
        assert "http://10.0.0.7:80/x" in gateway.actors.backends.status["alpha"].last_error
        async with lister(gateway, era) as ask:
            assert "no license" in (await ask()).data["servers"][0]["message"]
        nursery.cancel_scope.cancel()


async def test_an_error_of_megabytes_is_not_kept_with_the_lists_that_it_was_given_for(autojump_clock):
    alpha = Backend("alpha", mute={"tools/list"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__echo", "arguments": {}})
        await gateway.settle()
        for request in alpha.asked_for("tools/list"):
            request.error(-32000, "x" * 1_000_000, {"reason": "auth_refused"})
        error = await call.error()
        assert error.data["reason"] == "backend_down"
