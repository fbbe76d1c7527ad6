"""The loop's own connections to Redis: nothing that Redis does keeps the loop from running."""

from typing import Any

import pytest
import redis
import trio

from gateway.store.redis.errors import LinkDown
from gateway.store.redis.loop_links import LoopLink, open_loop_link
from gateway.store.redis.targets import parse
from tests.support.certificates import Authority
from tests.support.redis_server import RedisServer, free_port

pytestmark = pytest.mark.redis

LARGE = b"x" * 3_000_000
"""More than the buffers of a socket hold."""


@pytest.fixture(scope="module", params=["plain", "tls"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "plain":
        with RedisServer() as running:
            yield running.url
        return
    authority, port = Authority(tmp_path_factory.mktemp("tls")), free_port()
    files = authority.issue("redis")
    options = ("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key))
    trusted = ("--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "no")
    with RedisServer("--tls-port", str(port), *options, *trusted):
        yield f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.file}"


@pytest.fixture
def link(url: str) -> Any:
    opened = open_loop_link(parse(url))
    yield opened
    opened.close()


async def test_replies_come_in_order_an_error_among_them(link: LoopLink) -> None:
    replies = await link.exchange([("SET", "sd:a", 1), ("LPUSH", "sd:a", 1), ("GET", "sd:a")])
    assert replies[::2] == [b"OK", b"1"]
    assert isinstance(replies[1], redis.ResponseError)


async def test_what_is_larger_than_buffers_goes_both_ways(link: LoopLink) -> None:
    sets = [("SET", f"sd:{number}", LARGE) for number in range(4)]
    gets = [("GET", f"sd:{number}") for number in range(4)]
    assert await link.exchange([*sets, *gets]) == [b"OK"] * 4 + [LARGE] * 4


async def test_a_call_that_was_cancelled_leaves_no_reply_to_the_next(link: LoopLink) -> None:
    await link.exchange([("SET", "sd:a", 1)])
    with trio.move_on_after(0.05) as scope:
        await link.exchange([("BLPOP", "sd:none", 1)])
    assert scope.cancelled_caught
    assert await link.exchange([("GET", "sd:a")]) == [b"1"]


async def test_a_redis_that_is_silent_counts_as_away_and_the_loop_goes_on_meanwhile() -> None:
    with RedisServer() as server:
        link = open_loop_link(parse(f"{server.url}?socket_timeout=0.5"))
        await link.exchange([("SET", "sd:a", 1)])
        server.pause()
        ticks = 0
        try:
            async with trio.open_nursery() as nursery:

                async def tick() -> None:
                    nonlocal ticks
                    while True:
                        await trio.sleep(0.01)
                        ticks += 1

                nursery.start_soon(tick)
                with pytest.raises(LinkDown):
                    await link.exchange([("GET", "sd:a")])
                nursery.cancel_scope.cancel()
        finally:
            server.go_on()
        assert ticks > 5
        assert await link.exchange([("GET", "sd:a")]) == [b"1"]
        link.close()
