"""Requests that the app takes without being run for them: who is asked, in which order they are answered, and what
becomes of a client that does not read that."""

import json
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypercorn.trio.worker_context import WorkerContext

from actors.ports import Asker, Principal, Rights
from actors.protocol.table import Limits
from gateway.app import Gateway
from gateway.config import load
from gateway.http.access import Recorded
from gateway.http.app import McpApp
from gateway.http.authorization import Authorization, Resource
from gateway.http.config import EdgeConfig, ServeConfig
from gateway.http.http1 import Http1Protocol, Phase
from gateway.http.requests import Requests
from gateway.http.security import NOBODY, Security
from gateway.http.serve import Connections, serve
from gateway.http.sockets import open_unix_listener
from gateway.observability.access import Access
from gateway.observability.lag import Lag
from gateway.roles import Alone
from gateway.wire.http1_server import CONTINUE
from tests.gateway.http.conftest import RecordingLog
from tests.support.patience import PATIENCE
from tests.support.ws_client import handshake

whole = pytest.mark.parametrize("running", [True], ids=["whole"], indirect=True)


def post(body: bytes, more: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


class Taking:
    """An app that takes what says so, and crashes of what says so."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.run = 0

    def at_once(self, scope: Any, body: bytes) -> bool:
        if body == b"crash":
            raise ZeroDivisionError
        if body.startswith(b"now"):
            self.taken.append(body)
            return True
        return False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.run += 1
        await trio.lowlevel.checkpoint()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@whole
async def test_answers_keep_the_order_of_requests_whichever_way_they_go(running):
    app = Taking()
    async with running(app) as server:
        said = [b"now 1", b"now 2", b"later", b"now 3", b"later", b"now 4"]
        answers = await server.ask(b"".join(map(post, said[:-1])) + post(said[-1], b"Connection: close\r\n"))
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [
            b"202",
            b"202",
            b"200",
            b"202",
            b"200",
            b"202",
        ]
        assert answers.endswith(b"connection: close\r\n\r\n")
        assert app.taken == [b"now 1", b"now 2", b"now 3", b"now 4"]
        assert app.run == 2
        assert server.connections.working == 0


@whole
async def test_a_crash_in_the_short_way_ends_its_own_connection_with_a_500(running):
    async with running(Taking()) as server:
        answers = await server.ask(post(b"now") + post(b"crash") + post(b"now"))
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"202", b"500"]
        assert server.log.names == ["request_crashed"]
        assert (await server.ask(post(b"now"))).startswith(b"HTTP/1.1 202 ")


async def test_nothing_is_done_behind_a_handshake_that_was_refused(running):
    app = Taking()
    async with running(app) as server:
        answers = await server.ask(handshake() + post(b"now 1") + post(b"now 2") + post(b"later"))
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"400"]
        assert (app.taken, app.run) == ([], 0)


async def until(true: Callable[[], object]) -> None:
    """The clock of the loop stands still meanwhile."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        await trio.sleep(0)


MANY = 1000
"""Answers that a Unix socket does not hold."""


@pytest.mark.parametrize("reads", [True, False])
async def test_who_does_not_read_what_was_taken_has_the_time_of_one_write(tmp_path: Path, mock_clock, reads):
    path, app, stop, log = str(tmp_path / "s"), Taking(), trio.Event(), RecordingLog()
    connections, config = Connections(log), ServeConfig(keep_alive=5.0, write=30.0)
    serving = partial(serve, stop=stop, log=log, connections=connections, at_once=app.at_once)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving, app, open_unix_listener(path), config)
        async with await trio.open_unix_socket(path) as client:
            nursery.start_soon(client.send_all, post(b"now") * MANY)
            await until(lambda: connections.working)  # it waits for its client to read
            assert len(app.taken) < MANY
            mock_clock.jump(config.keep_alive + 1.0)  # which is not what it waits for
            await trio.testing.wait_all_tasks_blocked()
            if reads:
                answers = b""
                while answers.count(b"HTTP/1.1 202 ") < MANY:
                    data = await client.receive_some()
                    assert data
                    answers += data
                assert len(app.taken) == MANY
                assert connections.stalled == 0
            else:
                mock_clock.jump(config.write)
                await until(lambda: connections.stalled)
                nursery.cancel_scope.cancel()  # what the client sends meanwhile goes nowhere
        mock_clock.jump(1000)
        nursery.cancel_scope.cancel()
    os.unlink(path)


async def test_what_comes_while_an_answer_waits_to_be_read_is_answered_too(tmp_path: Path):
    path, app, stop, log = str(tmp_path / "s"), Taking(), trio.Event(), RecordingLog()
    connections = Connections(log)
    serving = partial(serve, stop=stop, log=log, connections=connections, at_once=app.at_once)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving, app, open_unix_listener(path), ServeConfig())
        async with await trio.open_unix_socket(path) as client:
            # By the task that answers the first one, all others are taken: while it waits, the reader reads on.
            await client.send_all(post(b"later") + post(b"now") * MANY)
            await until(lambda: app.taken and connections.working)
            await trio.testing.wait_all_tasks_blocked()
            assert len(app.taken) < MANY
            await client.send_all(post(b"later") + post(b"now last"))
            await trio.testing.wait_all_tasks_blocked()
            answers = b""
            while answers.count(b"HTTP/1.1 2") < MANY + 3:
                with trio.fail_after(PATIENCE):
                    data = await client.receive_some()
                assert data
                answers += data
            assert app.taken[-1] == b"now last"
            assert app.run == 2
        nursery.cancel_scope.cancel()
    os.unlink(path)


class Full:
    """A wire whose peer does not read until it is `read`."""

    def __init__(self) -> None:
        self.said, self.read = b"", trio.Event()

    def write_now(self, data: bytes) -> memoryview | None:
        return memoryview(data)

    async def write(self, data: bytes) -> None:
        self.said += data
        if data == CONTINUE:
            await self.read.wait()

    def enter(self, phase: Phase) -> None:
        return

    async def finish(self) -> None:
        return


async def test_what_comes_while_a_continue_waits_to_be_read_comes_behind_what_was_there():
    bodies, answering, wire = list[bytes](), trio.Event(), Full()

    async def app(scope: Any, receive: Any, send: Any, *_: Any) -> None:
        more, body = True, b""
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        bodies.append(body)
        await answering.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with trio.open_nursery() as nursery:
        requests, edge = Requests(nursery, lambda exit: None), EdgeConfig(ServeConfig())
        protocol = Http1Protocol(app, edge, WorkerContext(None), requests, wire, ssl=False, client=None, server=None)
        await protocol.feed(post(b"first") + post(b"second", b"Expect: 100-continue\r\n").removesuffix(b"second"))
        await trio.testing.wait_all_tasks_blocked()
        await protocol.feed(b"second")  # without having waited for the word
        answering.set()
        await trio.testing.wait_all_tasks_blocked()
        await protocol.feed(post(b"third"))
        wire.read.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert bodies == [b"first", b"second", b"third"]
    assert wire.said.count(b"HTTP/1.1 200 ") == 3


class Streams:
    """Where messages go; one of them is full."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, bytes, Rights, str]] = []

    def say_here(self, token: str, principal: Principal, body: bytes, rights: Rights, endpoint: str) -> bool:
        if token == "full":
            return False
        self.said.append((token, principal.name, body, rights, endpoint))
        return True


def asked(path: str = "/messages", query: bytes = b"sessionId=x", method: str = "POST", **headers: str) -> Any:
    lines = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in lines.items()]
    return {"method": method, "path": path, "raw_path": path.encode(), "query_string": query, "headers": raw}


REST = {
    "another path": (asked("/mcp"), b"{}"),
    "an unknown path": (asked("/messages/a/b"), b"{}"),
    "another method": (asked(method="PUT"), b"{}"),
    "a page": (asked(origin="http://127.0.0.1"), b"{}"),
    "another host": (asked(host="evil.example"), b"{}"),
    "another type": (asked(content_type="text/plain"), b"{}"),
    "a coding": (asked(content_encoding="gzip"), b"{}"),
    "more than a message may have": (asked(), b"x" * 101),
    "a stream that takes nothing": (asked(query=b"sessionId=full"), b"{}"),
}


@pytest.fixture
def app(make_app) -> tuple[McpApp, Streams, list[tuple[str, int]]]:
    streams, answered = Streams(), list[tuple[str, int]]()
    counted = lambda method, status: answered.append((method, status))  # noqa: E731
    return make_app(post=streams, limits=Limits(message_bytes=100), answered=counted), streams, answered


async def test_a_message_for_a_stream_is_taken_and_counted(app):
    taking, streams, answered = app
    assert taking.at_once(asked(), b"{}")
    assert taking.at_once(asked("/messages/files"), b"[]")
    who = NOBODY.principal.name
    assert [(*said[:3], said[4]) for said in streams.said] == [("x", who, b"{}", ""), ("x", who, b"[]", "files")]
    assert answered == [("POST", 202)] * 2


@pytest.mark.parametrize(("scope", "body"), REST.values(), ids=REST)
async def test_all_else_is_left_to_the_app(app, scope, body):
    taking, streams, answered = app
    assert not taking.at_once(scope, body)
    assert (streams.said, answered) == ([], [])


ISSUER = "https://issuer.example"
ANN = Asker(Principal("ann"), Rights(ISSUER, "ann"))


class Knowing:
    """A verifier that remembers one token."""

    def known(self, token: str, resources: Any) -> Asker | None:
        return ANN if token == "remembered" else None


class Revoking:
    def __init__(self) -> None:
        self.all = False

    def revoked(self, asker: Asker) -> bool:
        return self.all


@pytest.mark.parametrize("noted", [False, True])
async def test_a_token_counts_in_the_short_way_if_nobody_has_to_be_asked(make_app, noted):
    revoking, streams = Revoking(), Streams()
    note = (lambda asker, token: None) if noted else None
    authorize = partial(
        Authorization,
        resource=Resource("https://mcp.example", (ISSUER,)),
        verifier=Knowing(),
        revocations=revoking,
        note=note,
    )
    app = make_app(post=streams, security=Security("127.0.0.1", tokens={"ci": "ci-token"}), authorize=authorize)

    def taken(**headers: str) -> bool:
        return app.at_once(asked(**headers), b"{}")

    assert not taken()
    assert not taken(authorization="Bearer unknown")
    assert not taken(authorization="Bearer x y")
    assert not app.at_once(asked(query=b"sessionId=x&access_token=ci-token"), b"{}")
    assert taken(authorization="Bearer ci-token")
    assert taken(authorization="Bearer remembered") is not noted  # of which somebody is to be told first
    assert [said[1] for said in streams.said] == (["ci"] if noted else ["ci", "ann"])
    assert streams.said[-1][3].issuer == ("static:" if noted else ISSUER)
    revoking.all = True
    assert not taken(authorization="Bearer ci-token")
    assert not taken(authorization="Bearer remembered")


async def test_the_access_log_has_what_was_taken_and_nothing_else():
    written: list[Access] = []
    recorded = Recorded(Taking(), written.append, lambda session: session)
    scope = asked(user_agent="a client")
    assert recorded.at_once(scope, b"now")
    assert not recorded.at_once(scope, b"later")
    assert [(one.method, one.path, one.status, one.agent) for one in written] == [
        ("POST", "/messages", 202, "a client")
    ]


class Spawned(trio.abc.Instrument):
    """Counts the tasks that begin."""

    def __init__(self) -> None:
        self.tasks = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1


@pytest.mark.parametrize("access", ["off", "json"])
async def test_the_gateway_has_no_task_for_a_post_that_came_whole(tmp_path: Path, access: str):
    file, announced, tasks = tmp_path / "c.json", trio.Event(), dict[str, int]()
    log = {"access": access, "accessFile": str(tmp_path / "access.log")}
    file.write_text(json.dumps({"gateway": {"listen": "127.0.0.1:0", "log": log}}))
    settings = load(file).settings
    gateway = Gateway(settings, RecordingLog(), Lag(), Alone(settings, lambda settings: announced.set()))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.run)
            await announced.wait()
            host, _, port = gateway.listen.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(b"GET /sse HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
                place, said = None, b""
                while place is None:
                    said += await stream.receive_some()
                    place = re.search(rb"data: (\S+)\r?\n", said)
                body = b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}'
                lines = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
                head = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (place[1], lines, len(body))
                for name, parts in {"whole": [head + body], "in two": [head, body]}.items():
                    async with await trio.open_tcp_stream(host, int(port)) as client:
                        await trio.testing.wait_all_tasks_blocked(0.02)
                        spawned = Spawned()
                        trio.lowlevel.add_instrument(spawned)
                        for part in parts:
                            await client.send_all(part)
                            await trio.testing.wait_all_tasks_blocked(0.02)
                        trio.lowlevel.remove_instrument(spawned)
                        assert (await client.receive_some()).startswith(b"HTTP/1.1 202 ")
                        tasks[name] = spawned.tasks
            nursery.cancel_scope.cancel()
    assert tasks["in two"] == tasks["whole"] + 1
