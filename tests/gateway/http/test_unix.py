"""Listening on a Unix socket: who may use it, what was there before, and what is left."""

import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from gateway.http.config import ServeConfig
from gateway.http.security import Security, SecurityChecks
from gateway.http.serve import serve
from gateway.http.sockets import (
    CannotListenError,
    close_listeners,
    names,
    open_unix_listener,
    remove_names,
    unix_listeners_for,
)
from tests.gateway.http.conftest import RecordingLog, read_all
from tests.support.patience import PATIENCE

HEALTH = b"GET /healthz HTTP/1.1\r\n%b\r\n"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "gateway.sock")


async def ask(path: str, data: bytes) -> bytes:
    async with await trio.open_unix_socket(path) as stream:
        await stream.send_all(data)
        await stream.send_eof()
        return await read_all(stream)


async def test_it_is_served_like_any_other_and_every_host_is_fine(path, make_app):
    app = make_app(security=Security("localhost", any_host=True))
    stop = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: serve(app, open_unix_listener(path), ServeConfig(), stop=stop, log=RecordingLog())
            )
            while not os.path.exists(path):
                await trio.sleep(0.01)
            for host in (b"evil.example", b"localhost", path.encode(), b""):
                answer = await ask(path, HEALTH % b"Host: %b\r\n" % host)
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), host
            answer = await ask(path, HEALTH % b"Host: a\r\nOrigin: https://evil.example\r\n")
            assert answer.startswith(b"HTTP/1.1 403 ")
            stop.set()


def test_elsewhere_a_host_still_has_to_be_known():
    assert not SecurityChecks(Security("localhost")).host_allowed("evil.example")
    assert SecurityChecks(Security("localhost", any_host=True)).host_allowed(None)


def test_nobody_else_may_use_it(path):
    [listener] = open_unix_listener(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    listener.close()


def test_what_a_killed_gateway_has_left_is_replaced(path):
    close_listeners(open_unix_listener(path))
    assert os.path.exists(path)
    [listener] = open_unix_listener(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    listener.close()


def test_one_that_is_in_use_is_left_alone(path):
    [listener] = open_unix_listener(path)
    with pytest.raises(CannotListenError, match="another program listens there already"):
        unix_listeners_for("public", "listen", path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    listener.close()


def test_a_file_is_never_removed(path):
    Path(path).write_text("precious")
    with pytest.raises(CannotListenError, match="no socket"):
        unix_listeners_for("public", "listen", path)
    assert Path(path).read_text() == "precious"


@pytest.mark.parametrize("where", ["/no/such/folder/gateway.sock", "/tmp/" + "x" * 200])
def test_why_it_can_not_be_made_is_said(where):
    with pytest.raises(CannotListenError, match=r"can't listen on unix:/.*--listen unix:PATH"):
        unix_listeners_for("public", "listen", where)


def test_its_name_goes_with_the_gateway_that_made_it(path):
    listeners = open_unix_listener(path)
    made = names(listeners)
    remove_names(made)
    assert not os.path.exists(path)
    others = open_unix_listener(path)  # the next one has come already
    remove_names(made)
    assert os.path.exists(path)
    close_listeners([*listeners, *others])
