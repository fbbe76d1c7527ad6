"""Addresses that strangers name lead nowhere inwards, and nothing there can hold us up or grow (attack 7)."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from gateway.oauth.errors import AwayError, OAuthError
from gateway.oauth.http import ANSWER_BYTES, AT_ONCE, GuardedHttp, is_public
from gateway.oauth.trust import LOOPBACK

Serve = Callable[[trio.SocketStream], Awaitable[None]]


@dataclass
class Canary:
    """Listens on this machine, and knows whether anybody came."""

    port: int
    came: list[bytes] = field(default_factory=list)
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    drip: bool = False

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, stream: trio.SocketStream) -> None:
        self.came.append(b"")
        try:
            self.came[-1] = await stream.receive_some(65536)
            await stream.send_all(self.answer)
            while self.drip:
                await trio.sleep(1)
                await stream.send_all(b"x")
        except trio.BrokenResourceError:
            pass
        await stream.aclose()


@pytest.fixture
async def canary(nursery: trio.Nursery) -> AsyncIterator[Canary]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    found = Canary(listeners[0].socket.getsockname()[1])
    nursery.start_soon(trio.serve_listeners, found.serve, listeners)
    yield found
    nursery.cancel_scope.cancel()


INWARDS = [
    "127.0.0.1", "localhost", "0x7f000001", "2130706433", "127.1", "[::1]", "[::ffff:127.0.0.1]", "[::]", "0.0.0.0",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("host", INWARDS)
async def test_7_no_spelling_of_this_machine_is_connected_to(canary: Canary, host: str, scheme: str) -> None:
    for trusted in (frozenset[str](), frozenset({"https://other.example:443"})):
        with pytest.raises(OAuthError):
            await GuardedHttp()("GET", f"{scheme}://{host}:{canary.port}/", trusted=trusted)
    assert canary.came == []


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "fd00::1",
        "fe80::1%eth0",
        "::1",
        "0.0.0.0",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:0:1::",
        "224.0.0.1",
        "ff02::1",
        "192.0.2.1",
        "240.0.0.1",
        "192.88.99.1",
        "::7f00:1",
        "::ffff:0:7f00:1",
        "64:ff9b:1::a00:1",
        "fec0::1",
        "3fff::1",
        "5f00::1",
        "8000::1",
    ],
)
def test_what_is_not_of_the_internet_is_known(address: str) -> None:
    assert not is_public(address)
    assert is_public("1.1.1.1")
    assert is_public("2606:4700:4700::1111")


async def test_7_a_name_is_looked_up_once_and_connected_to_where_it_was_looked_up(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [["93.184.216.34", "127.0.0.1"], ["127.0.0.1"]]
    asked: list[str] = []

    async def flips(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in answers[len(asked) - 1]]

    monkeypatch.setattr(trio.socket, "getaddrinfo", flips)
    for _ in range(2):
        with pytest.raises(OAuthError) as refused:
            await GuardedHttp()("GET", f"https://flips.example:{canary.port}/")
        assert refused.value.reason == "not_public"
    assert len(asked) == 2
    assert canary.came == []


async def test_where_the_operator_has_sent_us_any_address_is_good(canary: Canary) -> None:
    answer = await GuardedHttp()("POST", f"{canary.origin}/x", body=b"a=b", trusted=frozenset({canary.origin}))
    assert (answer.status, answer.body) == (200, b"{}")
    assert b"POST /x" in canary.came[0]
    await GuardedHttp()("GET", f"{canary.origin}/y", trusted=frozenset({LOOPBACK}))


async def test_the_authorities_of_this_machine_are_read_for_https_alone(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ssl.SSLContext] = []

    def authorities() -> ssl.SSLContext:
        read.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return read[-1]

    monkeypatch.setattr(ssl, "create_default_context", authorities)
    http = GuardedHttp()
    assert (await http("GET", canary.origin, trusted=frozenset({LOOPBACK}))).status == 200
    assert read == []
    for _ in range(2):
        with pytest.raises(AwayError):  # the canary speaks no TLS
            await http("GET", canary.origin.replace("http:", "https:"), trusted=frozenset({LOOPBACK}))
    assert len(read) == 1


async def test_trust_in_one_place_is_no_trust_in_another(canary: Canary) -> None:
    with pytest.raises(OAuthError):
        await GuardedHttp()("GET", canary.origin, trusted=frozenset({f"http://127.0.0.1:{canary.port + 1}"}))
    assert canary.came == []


async def test_redirects_are_not_followed(canary: Canary) -> None:
    canary.answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    answer = await GuardedHttp()("GET", canary.origin, trusted=frozenset({canary.origin}))
    assert answer.status == 302


@pytest.mark.parametrize("head", [b"Content-Length: 10000000", b"Connection: close"])
async def test_an_answer_that_is_too_large_is_given_up(canary: Canary, head: bytes) -> None:
    canary.answer = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + b"x" * (ANSWER_BYTES + 1)
    with pytest.raises(OAuthError) as refused:
        await GuardedHttp()("GET", canary.origin, trusted=frozenset({canary.origin}))
    assert refused.value.reason == "too_large"


async def test_a_compressed_answer_is_not_unpacked(canary: Canary) -> None:
    canary.answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    with pytest.raises(OAuthError):
        await GuardedHttp()("GET", canary.origin, trusted=frozenset({canary.origin}))


async def test_7_an_answer_that_never_ends_is_waited_for_no_longer_than_others(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.oauth.http.WITHIN", 1.5)
    canary.answer, canary.drip = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", True
    with pytest.raises(AwayError) as away:
        await GuardedHttp()("GET", canary.origin, trusted=frozenset({canary.origin}))
    assert away.value.reason in ("too_slow", "away")


async def test_7_one_that_names_slow_places_holds_up_nobody_else(
    canary: Canary, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, held = await trio.open_tcp_listeners(0, host="127.0.0.1"), trio.Event()
    waiting = [0]

    async def never(stream: trio.SocketStream) -> None:
        waiting[0] += 1
        if waiting[0] == AT_ONCE:
            held.set()
        await trio.sleep_forever()

    nursery.start_soon(trio.serve_listeners, never, slow)
    port = slow[0].socket.getsockname()[1]
    http, hostile = GuardedHttp(), frozenset({f"http://127.0.0.1:{port}", "https://hostile.example:443"})

    async def ask() -> None:
        await http("GET", f"http://127.0.0.1:{port}/", trusted=hostile)

    async with trio.open_nursery() as asking:
        for _ in range(2 * AT_ONCE):
            asking.start_soon(ask)
        await held.wait()
        monkeypatch.setattr("gateway.oauth.http.WITHIN", 5)
        assert (await http("GET", canary.origin, trusted=frozenset({canary.origin}))).status == 200
        asking.cancel_scope.cancel()


async def test_a_server_that_is_not_there_is_away(canary: Canary) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(AwayError):
            await GuardedHttp()("GET", nobody, trusted=frozenset({nobody}))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/",
        "//x",
        "https://",
        "https://u:p@example.com/",
        "https://a:b:c/",
        "",
        "https://[::1",
        "https://a..b/",
        "https://.test/",
        f"https://{'a' * 64}.test/",
        "https://example.com/\ud800",
    ],
)
async def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(OAuthError):
        await GuardedHttp()("GET", url)
