"""HTTP over Unix domain sockets."""

import socket
from functools import partial

import pytest
import trio

from gateway.wire.errors import ConnectError
from gateway.wire.pool import Pool, PoolLimits
from tests.gateway.wire.conftest import RawServer, answering
from tests.support.patience import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        yield sock


@pytest.fixture
async def pool():
    pool = Pool(PoolLimits(connect=0.2))
    with trio.fail_after(PATIENCE):
        yield pool
    pool.close()


async def test_requests_go_over_a_connection_that_is_kept(nursery, pool, listener):
    listener.listen()
    server = RawServer(0)
    accepted = trio.SocketListener(trio.socket.from_stdlib_socket(listener.dup()))
    nursery.start_soon(trio.serve_listeners, partial(answering(OK, OK), server), [accepted])
    for _ in range(2):
        with await pool.request("GET", f"unix:{listener.getsockname()}") as response:
            assert await response.read(10) == b"{}"
    assert server.requests == [b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"] * 2
    assert repr(pool).endswith("open 1, idle 1, waiting 0>>")
    nursery.cancel_scope.cancel()


async def test_a_socket_that_is_not_there_or_where_nobody_listens_is_told_without_its_path(pool, listener, tmp_path):
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path / "s", "Connection refused")):
        with pytest.raises(ConnectError) as caught:
            await pool.request("GET", f"unix:{path}")
        assert (str(caught.value), caught.value.sent) == (why, False)
        assert str(path) in caught.value.detail


async def test_one_whose_server_accepts_nobody_is_waited_for_as_long_as_for_any_other(pool, listener):
    listener.listen(0)
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(listener.getsockname())
        with pytest.raises(ConnectError, match=r"no connection within 0\.2 s"):
            await pool.request("GET", f"unix:{listener.getsockname()}")
        listener.accept()[0].close()
        with trio.move_on_after(0.1), pytest.raises(ConnectError):
            await pool.request("GET", f"unix:{listener.getsockname()}")  # connected, and not answered


async def test_tls_is_not_asked_of_a_socket(pool, listener):
    """Whatever trust is configured: nobody is between."""
    listener.listen(0)
    url = f"unix:{listener.getsockname()}"
    with trio.move_on_after(0.1):
        await pool.request("GET", url)
    peer, _ = listener.accept()
    with peer:
        assert peer.recv(100).startswith(b"GET /mcp HTTP/1.1\r\n")
