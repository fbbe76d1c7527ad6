"""A replica that stands still, or is cut off from Redis while others are not: another one takes its sessions over, and
when it is back it neither writes nor answers for them, while what it holds of their clients goes on."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import socketserver
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from gateway.store.redis.inbox import BLOCK
from tests.redis_trouble.conftest import Backend, Door, eventually
from tests.redis_trouble.test_replicas import at, called
from tests.support.patience import PATIENCE
from tests.support.redis_server import MISSING, RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]


class Cable(socketserver.ThreadingTCPServer):
    """The way to a Redis, which can be cut."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port = port
        self.broken = False
        self.ends: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0"

    def cut(self) -> None:
        self.broken = True
        for end in list(self.ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.broken = False


class _Connection(socketserver.BaseRequestHandler):
    server: Cable

    def handle(self) -> None:
        if self.server.broken:
            return
        with socket.create_connection(("127.0.0.1", self.server.port)) as onward:
            self.server.ends |= {self.request, onward}
            back = threading.Thread(target=_copy, args=(onward, self.request))
            back.start()
            _copy(self.request, onward)
            back.join()
            self.server.ends -= {self.request, onward}


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if not installed():
        pytest.skip(MISSING)
    with RedisServer() as running:
        yield running


@pytest.fixture
def cable(server: RedisServer) -> Iterator[Cable]:
    with Cable(server.port) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield running
        running.cut()
        running.shutdown()
        thread.join()


@contextmanager
def stopped(door: Door, _cable: Cable) -> Iterator[None]:
    door.gateway.program.send(signal.SIGSTOP)
    time.sleep(3 * BLOCK / 1000)  # what comes while a read of its inbox waits in Redis counts as read
    yield
    door.gateway.program.send(signal.SIGCONT)


@contextmanager
def cut_off(_door: Door, cable: Cable) -> Iterator[None]:
    cable.cut()
    yield
    cable.mend()


def owners(server: RedisServer) -> set[tuple[bytes, bytes]]:
    """Of all sessions, with their epochs."""
    with server.client() as client:
        return {tuple(client.hmget(key, "owner", "epoch")) for key in client.keys("sd:*:s")}


def delivered(door: Door) -> int:
    """Requests that came to it by mail."""
    with urllib.request.urlopen(f"{door.gateway.admin}/metrics", timeout=PATIENCE) as answer:
        found = re.search(r'^stagedoor_letters_received_total\{kind="deliver"\} (\S+)$', answer.read().decode(), re.M)
    return int(float(found[1])) if found else 0


@pytest.mark.parametrize("lost", [stopped, cut_off], ids=lambda lost: lost.__name__)
def test_a_replica_that_lost_its_lease_neither_writes_nor_answers_for_what_moved_on(
    lost: Callable[[Door, Cable], AbstractContextManager[None]],
    server: RedisServer,
    cable: Cable,
    backend: Backend,
    open_door: Any,
) -> None:
    one, two = open_door(cable.url), open_door(server.url)
    calm, busy = one.session(), one.session()
    stream, call = one.steps(busy)
    call.say("1")
    stream.wait("1")
    one.quick(calm)
    before = owners(server)

    with lost(one, cable):
        assert called(at(calm, two), "moved").good, "a request that its owner never read goes to the next"
        eventually(lambda: called(at(busy, two), "busy").good)
        moved = owners(server)
        assert not {owner for owner, _ in moved} & {owner for owner, _ in before}
        call.say("2")
        call.finish()
        if lost is cut_off:
            assert called(at(calm, one), "unaware").good, "it can't tell, and goes on for a while"

    stream.wait_over()
    rest = one.resume(busy, stream.ids[-1])
    rest.wait_over()
    *said, error = stream.said + rest.said
    assert said == ["1"], "it shows what is not in the log"
    assert error["data"]["executed"] == "unknown"
    again = two.resume(busy, stream.ids[0])
    again.wait_over()
    assert again.ids == [*stream.ids, *rest.ids][1:]

    came = delivered(two)
    for number, session in enumerate((calm, busy)):
        eventually(lambda session=session, number=number: called(at(session, one), f"back{number}").good)
    assert delivered(two) >= came + 2, "it answers for what is not its own"
    assert owners(server) == moved
    assert len(set(backend.executions)) == len(backend.executions)
