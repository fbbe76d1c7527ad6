"""The outgoing pool against servers of raw bytes, good and hostile."""

import gc
import ipaddress
import ssl
import tracemalloc
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.wire.errors import ConnectError, DeadlineError, PeerError, PoolFullError, SizeError
from gateway.wire.origins import OriginPool
from gateway.wire.pool import CHUNK, MORE, Connection, Exchange, Pool, PoolLimits, Response
from gateway.wire.streams import WireStream
from gateway.wire.url import Origin, parse_url
from gateway.wire.watch import Watch
from tests.support.exchanges import Reading, answer_to
from tests.support.garbage import uncollected
from tests.support.patience import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.fixture
async def pool():
    pool = Pool()
    with trio.fail_after(PATIENCE):
        yield pool
    pool.close()


def state(pool: Pool) -> str:
    return repr(pool).rpartition("<")[2].strip(">")


async def test_a_request_carries_its_headers_and_body_and_nothing_unwanted(pool, serve, replies):
    async with serve(replies(OK)) as server:
        with await pool.request("POST", server.url + "?a=b#c", [("X-Key", "v")], b"body") as response:
            assert (response.status, await response.read(10)) == (200, b"{}")
            assert response.header(b"content-type") == b"application/json"
        host = f"127.0.0.1:{server.port}".encode()
        assert server.requests == [
            b"POST /mcp?a=b HTTP/1.1\r\nHost: " + host + b"\r\nX-Key: v\r\nContent-Length: 4\r\n\r\nbody"
        ]


async def test_a_connection_is_used_again_after_a_whole_response(pool, serve, replies):
    async with serve(replies(OK, CHUNKED, OK)) as server:
        for expected in (b"{}", b"abcde", b"{}"):
            with await pool.request("GET", server.url) as response:
                assert await response.read(100) == expected
        assert (server.connections, state(pool)) == (1, "open 1, idle 1, waiting 0")


@pytest.mark.parametrize("answer", [OK, CHUNKED], ids=["sized", "chunked"])
async def test_bytes_may_come_one_by_one(pool, serve, replies, answer):
    async with serve(replies(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer, OK, step=1)) as server:
        with await pool.request("GET", server.url) as response:
            assert await response.read(100) in (b"{}", b"abcde")
        with await pool.request("GET", server.url) as response:
            assert await response.read(100) == b"{}"
        assert server.connections == 1


async def test_the_body_can_be_read_as_it_comes(pool, serve):
    more = trio.Event()

    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await more.wait()
        await stream.send_all(b"6\r\nsecond\r\n0\r\n\r\n")
        await server.read_request(stream)

    async with serve(handler) as server:
        with await pool.request("GET", server.url) as response:
            assert await response.receive_some() == b"first"
            assert not response.whole
            more.set()
            assert await response.read(100) == b"second"
            assert response.whole
            assert await response.receive_some() == b""


async def test_a_body_without_length_ends_with_the_connection(pool, serve):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with serve(handler) as server:
        with await pool.request("GET", server.url) as response:
            assert await response.read(100) == b"all of it"
        assert state(pool) == "open 0, idle 0, waiting 0"


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + OK,
        OK + b"garbage",
    ],
    ids=["close", "http/1.0", "answered twice", "garbage after"],
)
async def test_a_connection_that_is_not_clean_is_not_used_again(pool, serve, replies, answer):
    async with serve(replies(answer, answer)) as server:
        for _ in range(2):
            with await pool.request("GET", server.url) as response:
                assert await response.read(10) == b"{}"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("announced", "connections"),
    [(b"timeout=1000", 1), (b"max=9; timeout=1", 2), (b"Timeout=0", 2), (b"timeout=", 1), (b"x-timeout=1, max=1", 1)],
)
async def test_a_connection_is_not_used_again_when_its_server_is_about_to_close_it(
    serve, replies, nursery, announced, connections
):
    answer = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: %b\r\n\r\n" % announced)
    for ask in (answer_to, lambda pool, url, body: _body_of(pool.request("POST", url, body=body))):
        pool = Pool(nursery=nursery)
        async with serve(replies(answer, answer)) as server:
            for _ in range(2):
                assert await ask(pool, server.url, b"x") == b"{}"
            assert server.connections == connections
            pool.close()


@pytest.mark.parametrize("announced", [b"timeout=0", b"timeout=1"])
async def test_nor_by_a_request_that_waits_for_it(serve, replies, nursery, announced):
    """Of which nobody would know whether it was executed, as it would cross with the end."""
    answer = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: %b\r\n\r\n" % announced)
    pool = Pool(PoolLimits(connections=1), nursery=nursery)
    async with serve(replies(*3 * [answer])) as server:
        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(answer_to, pool, server.url, b"x")
        assert server.connections == 3
    assert pool.open == 0


@pytest.mark.parametrize(
    ("announced", "seconds", "connections"),
    [(b"", 3.9, 1), (b"", 4.1, 2), (b"Keep-Alive: max=9\r\n", 4.1, 2), (b"Keep-Alive: timeout=20\r\n", 18.9, 1)],
)
async def test_nor_when_its_server_may_close_it_without_a_word(
    serve, replies, nursery, mock_clock, announced, seconds, connections
):
    answer = OK.replace(b"\r\n\r\n", b"\r\n%b\r\n" % announced)
    pool = Pool(nursery=nursery)
    async with serve(replies(answer, answer)) as server:
        assert await answer_to(pool, server.url, b"x") == b"{}"
        mock_clock.jump(seconds)
        assert await answer_to(pool, server.url, b"x") == b"{}"
        assert server.connections == connections
        pool.close()


async def _body_of(request: Awaitable[Response]) -> bytes:
    with await request as response:
        return await response.read(10)


async def test_bytes_that_come_unasked_spoil_an_idle_connection(pool, serve):
    sent = trio.Event()

    async def handler(server, stream):
        while await server.read_request(stream):
            await stream.send_all(OK)
            await trio.testing.wait_all_tasks_blocked(0.01)
            if server.connections == 1:
                await stream.send_all(OK.replace(b"{}", b"!!"))
                sent.set()

    async with serve(handler) as server:
        with await pool.request("GET", server.url) as response:
            await response.read(10)
        await sent.wait()
        with await pool.request("GET", server.url) as response:
            assert await response.read(10) == b"{}"
        assert server.connections == 2


async def test_a_half_read_response_is_not_used_again(pool, serve, replies):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200000
    async with serve(replies(answer)) as server:
        with await pool.request("GET", server.url) as response:
            await response.receive_some()
        assert state(pool) == "open 0, idle 0, waiting 0"
        await server.wait_closed()


async def test_a_connection_closed_while_idle_is_replaced_without_sending_twice(pool, serve):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(OK)

    async with serve(handler) as server:
        for count in (1, 2, 3):
            with await pool.request("POST", server.url, body=b"x") as response:
                await response.read(10)
            await server.wait_closed(count)
        assert len(server.requests) == 3


async def test_a_request_that_may_have_been_executed_is_never_sent_again(pool, serve):
    async def handler(server, stream):
        await server.read_request(stream)
        if len(server.requests) == 1:
            await stream.send_all(OK)
            await server.read_request(stream)

    async with serve(handler) as server:
        with await pool.request("POST", server.url, body=b"1") as response:
            await response.read(10)
        with pytest.raises(PeerError) as caught:
            await pool.request("POST", server.url, body=b"2")
        assert caught.value.sent
        await server.wait_closed()
        assert len(server.requests) == 2


async def test_a_refused_connection_sends_nothing(pool):
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectError, match="refused") as caught:
            await pool.request("GET", f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert not caught.value.sent
    assert state(pool) == "open 0, idle 0, waiting 0"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5",
        b"",
    ],
    ids=["not http", "two lengths", "length and chunked", "upgrade", "gzip", "half a head", "nothing"],
)
async def test_nonsense_is_an_error_that_says_the_request_was_sent(pool, serve, answer):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(answer)

    async with serve(handler) as server:
        with pytest.raises(PeerError) as caught:
            await pool.request("POST", server.url, body=b"x")
        assert caught.value.sent
        assert state(pool) == "open 0, idle 0, waiting 0"


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 10\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        CHUNKED[17:40] + b"zz\r\n",
    ],
)
async def test_a_body_that_breaks_off_is_an_error(pool, serve, body):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n" + body)

    async with serve(handler) as server:
        with pytest.raises(PeerError), await pool.request("GET", server.url) as response:
            await response.read(100)
        assert state(pool) == "open 0, idle 0, waiting 0"


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", CHUNKED[:-2] + b"X: ", CHUNKED[:-2] + b"a: b\r\n"])
async def test_an_endless_head_or_trailer_is_cut(pool, serve, start):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(start)
        while True:
            await stream.send_all(b"y" * 65536)

    async with serve(handler) as server:
        with pytest.raises(SizeError), await pool.request("GET", server.url) as response:
            await response.read(100)
        await server.wait_closed()


async def test_a_body_over_the_callers_limit_is_cut(pool, serve, replies):
    async with serve(replies(CHUNKED)) as server:
        with await pool.request("GET", server.url) as response, pytest.raises(SizeError):
            await response.read(4)


async def test_a_redirect_is_only_reported(pool, serve, replies):
    answer = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with serve(replies(answer)) as server:
        with await pool.request("POST", server.url, body=b"x") as response:
            assert response.status == 307
        assert len(server.requests) == 1


async def test_a_server_that_never_answers_costs_only_its_own_request(pool, serve, replies):
    async with serve(replies()) as silent, serve(replies(OK)) as server:
        with pytest.raises(DeadlineError, match="no answer") as caught:
            await pool.request("GET", silent.url, answer_within=0.05)
        assert caught.value.sent
        with trio.move_on_after(0.05):
            await pool.request("GET", silent.url)
        await silent.wait_closed(2)
        with await pool.request("GET", server.url) as response:
            assert await response.read(10) == b"{}"


async def test_a_server_that_never_reads_meets_the_write_deadline(serve):
    async def handler(server, stream):
        await trio.sleep_forever()

    pool = Pool(PoolLimits(write=0.1))
    async with serve(handler) as server:
        with trio.fail_after(PATIENCE), pytest.raises(DeadlineError, match="did not read") as caught:
            await pool.request("POST", server.url, body=b"x" * 20_000_000)
        assert caught.value.sent
        assert state(pool) == "open 0, idle 0, waiting 0"


async def test_a_server_that_reads_slowly_is_given_all_of_it(serve):
    """However long that takes."""
    size = 20_000_000

    async def handler(server, stream):
        came, began = 0, trio.current_time()
        while came < size:
            came += len(await stream.receive_some(65536))
            await trio.sleep(0.01 if trio.current_time() - began < 2.5 else 0)
        await stream.send_all(OK)

    pool = Pool(PoolLimits(write=1.0))
    async with serve(handler) as server:
        with trio.fail_after(PATIENCE), await pool.request("POST", server.url, body=b"x" * size) as response:
            assert await response.read(10) == b"{}"
        pool.close()


async def test_cancelling_a_body_midway_closes_only_its_connection(pool, serve, replies):
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    async with serve(replies(start)) as server:
        with trio.move_on_after(0.05):
            with await pool.request("GET", server.url) as response:
                assert await response.receive_some() == b"abc"
                await response.receive_some()
        await server.wait_closed()
        assert state(pool) == "open 0, idle 0, waiting 0"


async def test_a_cancelled_read_loses_nothing(pool, serve):
    more = trio.Event()

    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(OK[:-1])
        await more.wait()
        await stream.send_all(OK[-1:])
        await server.read_request(stream)

    async with serve(handler) as server:
        with await pool.request("GET", server.url) as response:
            assert await response.receive_some() == b"{"
            with trio.move_on_after(0.01) as scope:
                await response.receive_some()
            assert scope.cancelled_caught
            more.set()
            assert await response.read(10) == b"}"


async def test_requests_beyond_the_cap_wait_and_are_served_in_turn(serve, replies):
    pool = Pool(PoolLimits(connections=2, waiting=3, wait=5))
    async with serve(replies(*[OK] * 10)) as server:
        async with trio.open_nursery() as nursery:

            async def call():
                with await pool.request("GET", server.url) as response:
                    assert await response.read(10) == b"{}"

            for _ in range(5):
                nursery.start_soon(call)
        assert (server.connections, len(server.requests)) == (2, 5)
    pool.close()
    assert state(pool) == "open 0, idle 0, waiting 0"


async def test_a_full_queue_refuses_at_once_and_a_long_wait_gives_up(serve, replies):
    pool = Pool(PoolLimits(connections=1, waiting=1, wait=0.1))
    async with serve(replies()) as server, trio.open_nursery() as nursery:
        nursery.start_soon(pool.request, "GET", server.url)
        await trio.testing.wait_all_tasks_blocked(0.01)
        errors = []

        async def call():
            with pytest.raises(PoolFullError) as caught:
                await pool.request("GET", server.url)
            errors.append((str(caught.value), caught.value.sent))

        async with trio.open_nursery() as callers:
            callers.start_soon(call)
            callers.start_soon(call)
        nursery.cancel_scope.cancel()
    assert sorted(errors) == [
        ("1 requests wait for 1 connections already", False),
        ("no connection of 1 came free within 0.1 s", False),
    ]
    assert state(pool) == "open 0, idle 0, waiting 0"


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://x/", []),
        ("http:///x", []),
        ("http://user:secret@x/", []),
        ("http://x:port/", []),
        ("http://x/", [("Bad\r\nName", "v")]),
        ("http://x/", [("Key", "secret\r\nInjected: 1")]),
        ("http://x/", [("Key", "secret\0")]),
    ],
)
async def test_what_would_break_the_framing_is_refused_without_showing_it(pool, url, headers):
    with pytest.raises(ValueError) as caught:
        await pool.request("GET", url, headers)
    assert "secret" not in str(caught.value)


def certificate(host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ipaddress.ip_address(host))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, private


@pytest.fixture
def tls(tmp_path):
    def contexts(host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        pem, private = certificate(host)
        (tmp_path / "cert.pem").write_bytes(pem)
        (tmp_path / "key.pem").write_bytes(private)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        return server, ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    return contexts


async def test_tls_connections_are_kept_alive_too(serve, replies, tls):
    server_context, client_context = tls("127.0.0.1")
    pool = Pool(tls=client_context)
    async with serve(replies(OK, OK), tls=server_context) as server:
        url = server.url.replace("http:", "https:")
        for _ in range(2):
            with trio.fail_after(PATIENCE), await pool.request("POST", url, body=b"x" * 300_000) as response:
                assert await response.read(10) == b"{}"
        assert server.connections == 1
        pool.close()
        await server.wait_closed()


@pytest.mark.parametrize("size", [10, 50_000, 300_000])
async def test_requests_that_nobody_waits_for_go_over_one_tls_connection(serve, replies, tls, nursery, size):
    server_context, client_context = tls("127.0.0.1")
    pool = Pool(tls=client_context, nursery=nursery)
    async with serve(replies(OK, OK, OK), tls=server_context) as server:
        url = server.url.replace("http:", "https:")
        with trio.fail_after(PATIENCE):
            for _ in range(3):
                assert await answer_to(pool, url, b"x" * size) == b"{}"
        assert server.connections == 1
        assert all(request.endswith(b"\r\n\r\n" + b"x" * size) for request in server.requests)
        pool.close()
        await server.wait_closed()


async def test_the_end_of_an_idle_connection_is_noticed_without_a_request(serve, nursery):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(OK)

    pool = Pool(nursery=nursery)
    async with serve(handler) as server:
        with trio.fail_after(PATIENCE):
            assert await answer_to(pool, server.url, b"x") == b"{}"
            while pool.open:
                await trio.sleep(0.001)


async def test_a_body_without_length_ends_with_a_tls_connection_without_a_close_alert(serve, tls):
    server_context, client_context = tls("127.0.0.1")
    pool = Pool(tls=client_context)

    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        await stream.transport_stream.aclose()

    async with serve(handler, tls=server_context) as server:
        url = server.url.replace("http:", "https:")
        with trio.fail_after(PATIENCE), await pool.request("GET", url) as response:
            assert await response.read(100) == b"all of it"


class Corked(trio.abc.HalfCloseableStream):
    """What is sent goes out at once only when it is not held back."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.held: bytearray | None = None

    async def send_all(self, data) -> None:
        if self.held is None:
            await self.stream.send_all(data)
        else:
            self.held += data

    async def uncork(self) -> None:
        held, self.held = self.held, None
        await self.stream.send_all(held)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes=None) -> bytes:
        return await self.stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()


@pytest.mark.parametrize("junk", [OK, b"x"])
async def test_what_comes_behind_an_answer_in_a_record_of_its_own_spoils_a_tls_connection_too(serve, tls, junk):
    """It has been received from the socket, and not yet been decrypted."""
    server_context, client_context = tls("127.0.0.1")
    pool = Pool(tls=client_context)

    async def handler(server, stream):
        corked = Corked(stream)
        secure = trio.SSLStream(corked, server_context, server_side=True, https_compatible=True)
        await server.read_request(secure)
        corked.held = bytearray()
        await secure.send_all(OK)
        await secure.send_all(junk)
        await corked.uncork()
        assert await server.read_request(secure) == b""

    async with serve(handler) as server:
        url = server.url.replace("http:", "https:")
        for _ in range(2):
            with trio.fail_after(PATIENCE), await pool.request("POST", url, body=b"") as response:
                assert await response.read(10) == b"{}"
        assert server.connections == 2
        pool.close()


@pytest.mark.parametrize("fault", ["other host", "unknown authority", "not tls"])
async def test_tls_that_proves_nothing_gets_no_request(serve, replies, tls, fault):
    server_context, client_context = tls("127.0.0.2" if fault == "other host" else "127.0.0.1")
    pool = Pool(tls=client_context if fault == "other host" else None)

    async def plain(server, stream):
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    served = serve(plain) if fault == "not tls" else serve(replies(OK), tls=server_context)
    async with served as server:
        with trio.fail_after(PATIENCE), pytest.raises(ConnectError, match="TLS") as caught:
            await pool.request("GET", server.url.replace("http:", "https:"))
        assert not caught.value.sent
        assert server.requests == []
        assert state(pool) == "open 0, idle 0, waiting 0"


async def test_no_socket_is_left_to_the_garbage_collector(serve, replies):
    pool = Pool()
    async with serve(replies(OK)) as server:
        with trio.move_on_after(0.01):
            await pool.request("GET", server.url)
            await pool.request("GET", server.url)
    pool.close()
    del pool
    gc.collect()


async def test_a_connection_that_is_closed_is_freed_at_once(serve, replies):
    async with serve(replies(OK, OK)) as server:
        with uncollected() as found:
            pool = Pool()
            for _ in range(2):
                with await pool.request("GET", server.url) as response:
                    assert await response.read(10) == b"{}"
            pool.close()
            del pool, response
        assert not found


async def test_a_part_of_an_unasked_record_is_no_beginning_of_an_answer(serve, tls, nursery):
    """TLS gives out whole records only: what was taken from the socket of one would be seen by nobody."""
    server_context, client_context = tls("127.0.0.1")
    partly = trio.Event()

    async def handler(server, stream):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = server_context.wrap_bio(incoming, outgoing, server_side=True)

        async def step(action):
            while True:
                try:
                    done = action()
                except ssl.SSLWantReadError:
                    done = None
                await stream.send_all(outgoing.read())
                if done is not None:
                    return
                incoming.write(await stream.receive_some(65536) or b"end")

        await step(lambda: secure.do_handshake() or True)
        await step(lambda: secure.read(65536))
        await step(lambda: secure.write(OK))
        if not partly.is_set():
            secure.write(OK.replace(b"{}", b"no"))
            record = outgoing.read()
            await stream.send_all(record[:20])
            partly.set()
            await stream.receive_some(65536)
            await stream.send_all(record[20:])
        await trio.sleep_forever()

    pool = Pool(tls=client_context, nursery=nursery)
    async with serve(handler) as server:
        url = server.url.replace("http:", "https:")
        with trio.fail_after(PATIENCE):
            assert await answer_to(pool, url, b"one") == b"{}"
            await partly.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert await answer_to(pool, url, b"two") == b"{}"
        assert server.connections == 2


@pytest.mark.parametrize("secure", [False, True])
async def test_a_response_that_rests_is_gone_on_with_when_more_comes(serve, tls, nursery, secure):
    server_context, client_context = tls("127.0.0.1") if secure else (None, None)
    going = [trio.Event(), trio.Event()]

    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n-\r\n")
        for event in going:
            await event.wait()
            await stream.send_all(b"3\r\nabc\r\n")
        await stream.receive_some()  # until the connection is closed

    async with serve(handler, tls=server_context) as server, trio.open_nursery() as watching:
        pool = Pool(tls=client_context, watch=Watch(watching))
        url = server.url.replace("http:", "https:") if secure else server.url
        with trio.fail_after(PATIENCE):
            response = await pool.request("GET", url)
            data = b""
            for count, event in enumerate(going, 1):
                woken = trio.Event()
                while not response.rest(woken.set):
                    data += await response.receive_some()
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not woken.is_set()
                event.set()
                await woken.wait()
                while data != b"-" + b"abc" * count:
                    data += await response.receive_some()
            while not response.rest(woken.set):
                await response.receive_some()
            response.close()
            await server.wait_closed()
        # `watching` ends by itself: nobody waits any more.


async def test_a_response_that_rests_hears_of_the_end_and_a_whole_one_never_rests(serve, nursery):
    async def handler(server, stream):
        await server.read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.05)

    pool = Pool(watch=Watch(nursery))
    async with serve(handler) as server:
        with trio.fail_after(PATIENCE):
            response = await pool.request("GET", server.url)
            woken = trio.Event()
            assert response.rest(woken.set)
            await woken.wait()
            assert not response.rest(woken.set)
            with pytest.raises(PeerError):
                await response.receive_some()
            assert not response.rest(woken.set)


async def test_for_a_request_that_was_cancelled_before_it_began_nobody_connects(nursery):
    dialled = []

    async def dial(origin, tls, within):
        dialled.append(origin)
        raise ConnectError("no", "")

    class Never(Exchange):
        async def answered(self, response):
            raise AssertionError

        def broke(self, error):
            raise AssertionError

        def crashed(self, error):
            raise AssertionError

    pool = Pool(nursery=nursery, connect=dial)
    exchange = Never()
    pool.start("POST", parse_url("http://x/"), b"", b"x", exchange)
    exchange.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert dialled == []
    assert state(pool) == "open 0, idle 0, waiting 0"


class Clumsy(Exchange):
    """Fails at its answer, and when it is told so."""

    async def answered(self, response):
        raise RuntimeError("one bug")

    def broke(self, error):
        raise AssertionError

    def crashed(self, error):
        raise RuntimeError("another")


async def test_a_fault_of_one_exchange_ends_no_connection_of_another(serve, nursery):
    crashes = []
    going = trio.Event()

    async def handler(server, stream):
        while request := await server.read_request(stream):
            if request.endswith(b"slow"):
                await going.wait()
            await stream.send_all(OK)

    async def slow():
        answers.append(await answer_to(pool, server.url, b"slow"))

    answers = []
    pool = Pool(nursery=nursery, on_crash=crashes.append)
    async with serve(handler) as server:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as callers:
                callers.start_soon(slow)
                await trio.testing.wait_all_tasks_blocked(0.01)
                pool.start("POST", parse_url(server.url), b"", b"x", Clumsy())
                while not crashes:
                    await trio.sleep(0.001)
                going.set()
            assert answers == [b"{}"]
            assert await answer_to(pool, server.url, b"x") == b"{}"
        assert [str(crash) for crash in crashes] == ["another"]
        pool.close()


class InMemory:
    """A stream that answers each request at once, unless it is broken."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.closed = False
        self.answers = 0
        self.waits = 0

    def send_nowait(self, data: bytes) -> int:
        if self.broken:
            raise trio.BrokenResourceError
        self.answers += 1
        return len(data)

    async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
        if not ready:
            await self.wait_readable()
        self.answers -= 1
        return OK

    async def wait_readable(self) -> None:
        self.waits += 1
        await trio.lowlevel.checkpoint()
        while not self.answers:
            await trio.sleep(1)

    def is_quiet(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


async def ask(pool: Pool) -> bytes:
    with await pool.request("POST", "http://x/", body=b"x") as response:
        return await response.read(10)


async def start(pool: Pool) -> bytes | None:
    exchange = Reading()
    pool.start("POST", parse_url("http://x/"), b"", b"x", exchange)
    await exchange.over.wait()
    if exchange.error is not None:
        raise exchange.error
    return exchange.body


@pytest.mark.parametrize("way", [ask, start])
@pytest.mark.parametrize("broken", [0, 1, 2, 3, 4])
async def test_a_connection_that_breaks_before_a_byte_went_out_is_replaced_a_few_times(
    nursery, autojump_clock, way, broken
):
    streams = []

    async def dial(origin, tls, within):
        await trio.lowlevel.checkpoint()
        streams.append(InMemory(len(streams) < broken))
        return streams[-1]

    pool = Pool(nursery=nursery, connect=dial)
    if broken < 3:
        assert await way(pool) == b"{}"
    else:
        with pytest.raises(PeerError) as caught:
            await way(pool)
        assert not caught.value.sent
    await trio.testing.wait_all_tasks_blocked()
    assert len(streams) == min(broken + 1, 3)
    assert [stream.closed for stream in streams[:broken]] == [True] * min(broken, 3)
    assert state(pool) == f"open {int(broken < 3)}, idle {int(broken < 3)}, waiting 0"
    pool.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_is_connected_to_without_being_looked_up(monkeypatch, pool, nursery, host):
    def looked_up(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", looked_up)
    try:
        [listener] = await trio.open_tcp_listeners(0, host=host)
    except OSError:
        pytest.skip("this machine has no IPv6")
    origin = Origin("http", host, listener.socket.getsockname()[1])

    async def served(stream):
        await stream.receive_some()
        await stream.send_all(OK)

    nursery.start_soon(trio.serve_listeners, served, [listener])
    with trio.fail_after(PATIENCE), await pool.request("GET", f"{origin}/") as response:
        assert await response.read(10) == b"{}"


async def test_to_a_name_all_its_addresses_are_tried(pool, serve, replies):
    async with serve(replies(OK)) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        with trio.fail_after(PATIENCE), await pool.request("GET", url) as response:
            assert await response.read(10) == b"{}"


async def test_the_worker_of_a_connection_waits_once_for_each_answer(nursery, autojump_clock):
    stream = InMemory(broken=False)

    async def dial(origin, tls, within):
        await trio.lowlevel.checkpoint()
        return stream

    pool = Pool(nursery=nursery, connect=dial)
    for _ in range(3):
        assert await start(pool) == b"{}"
        await trio.testing.wait_all_tasks_blocked()
    assert stream.waits == 3 + 1  # and for the next one
    pool.close()


async def test_the_body_of_a_request_is_not_kept_while_its_connection_is(serve, replies, nursery):
    size = 8_000_000
    pool = Pool(nursery=nursery)
    async with serve(replies(OK, OK)) as server:
        server.requests = Forgetful()
        with trio.fail_after(PATIENCE):
            tracemalloc.start()
            try:
                assert await answer_to(pool, server.url, b"x" * size) == b"{}"
                gc.collect()
                kept, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert (server.connections, state(pool)) == (1, "open 1, idle 1, waiting 0")
        assert kept < size / 2 < size < most
        pool.close()


class Forgetful(list):
    """Holds the last thing alone, and of that the first bytes."""

    def append(self, data: bytes) -> None:
        self[:] = [data[:100]]


async def test_the_head_of_a_response_is_read_in_small_pieces_after_a_large_body() -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {CHUNK + MORE}\r\n\r\n".encode()
    asked: list[int] = []

    class Large:
        """Gives a head, then as much as is asked for."""

        async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
            asked.append(at_most)
            return b"x" * at_most if connection.parser.status else head

    connection: Connection = Connection(cast("WireStream", Large()), cast("OriginPool[Connection]", None))
    for _ in range(2):
        connection.parser.expect()
        while not connection.parser.complete:
            await connection.receive()
    assert asked == [CHUNK, CHUNK, MORE] * 2
