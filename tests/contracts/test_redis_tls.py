"""Redis behind TLS: each form of store URL, certificates of our own, and what is said when they don't do."""

from pathlib import Path

import pytest
import redis

from gateway.observability.redaction import Redaction
from gateway.store.redis import StoreUnreachable, StoreUntrusted, StoreUrlError, targets
from gateway.store.redis.targets import parse
from tests.support.certificates import Authority
from tests.support.redis_server import RedisServer, free_port

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def ours(authority):
    return authority.issue("gateway")


@pytest.fixture(scope="module")
def options(authority):
    """What makes a server speak TLS, beside the port."""
    files = authority.issue("redis")
    return (
        *("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)),
        *("--tls-ca-cert-file", str(authority.file)),
    )


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def tls(options, port):
    """A server that speaks TLS at `port`, to those that have a certificate and to those that have none."""
    with RedisServer("--tls-port", str(port), "--tls-auth-clients", "no", *options) as running:
        yield running


def test_the_redis_of_these_tests_has_tls(tls: RedisServer, port: int, authority: Authority) -> None:
    with redis.Redis(port=port, ssl=True, ssl_ca_certs=str(authority.file)) as client:
        assert client.ping()


async def test_a_session_lives_behind_tls(tls, port, authority, opened, ask, new_key, lives_through, mails_itself):
    for host in ("127.0.0.1", "localhost"):
        async with opened(f"rediss://{host}:{port}/0?ssl_ca_certs={authority.file}") as store:
            await lives_through(store, ask, new_key())
            await mails_itself(store, ask)


async def test_a_certificate_of_an_authority_that_is_not_ours_is_not_trusted(tls, port, opened, tmp_path):
    other = Authority(tmp_path, "other")
    for query in ("", f"?ssl_ca_certs={other.file}"):
        with pytest.raises(StoreUntrusted, match=r"not trusted: .*name the CA's file") as error:
            async with opened(f"rediss://:secret@127.0.0.1:{port}/0{query}"):
                pass
        assert "secret" not in str(error.value)
        assert "\n" not in str(error.value)
        assert Redaction().text(str(error.value)) == str(error.value), "the log hides the advice"


async def test_a_certificate_for_another_name_is_not_trusted_unless_names_are_not_checked(
    tls, port, authority, opened, ask, new_key, lives_through
):
    url = f"rediss://127.1:{port}/0?ssl_ca_certs={authority.file}"
    with pytest.raises(StoreUntrusted, match=r"127\.1"):
        async with opened(url):
            pass
    async with opened(url + "&ssl_check_hostname=false") as store:
        await lives_through(store, ask, new_key())


async def test_plain_text_where_there_is_tls_and_tls_where_there_is_none(tls, port, opened, monkeypatch):
    for wait in ("CONNECT_TIMEOUT", "REPLY_TIMEOUT"):
        monkeypatch.setattr(targets, wait, 0.2)
    with pytest.raises(StoreUnreachable, match="no Redis answers"):
        async with opened(f"redis://127.0.0.1:{port}/0"):
            pass
    with pytest.raises(StoreUnreachable, match="no Redis answers at rediss"):
        async with opened(f"rediss://127.0.0.1:{tls.port}/0"):
            pass


async def test_a_server_that_asks_for_a_certificate_gets_ours(
    start_server, options, authority, ours, opened, ask, new_key, lives_through
):
    port = free_port()
    start_server("--tls-port", str(port), *options)
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority.file}"
    with pytest.raises(StoreUnreachable, match="if it wants a certificate of ours, give ssl_certfile and ssl_keyfile"):
        async with opened(url):
            pass
    async with opened(f"{url}&ssl_certfile={ours.certificate}&ssl_keyfile={ours.key}") as store:
        await lives_through(store, ask, new_key())


async def test_a_cluster_behind_tls(start_server, options, authority, opened, ask, new_key, lives_through, until):
    port = free_port()
    node = start_server(
        *("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--tls-cluster", "yes"),
        *("--tls-port", str(port), "--tls-auth-clients", "no", *options),
    )
    with node.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
    async with opened(f"rediss+cluster://127.0.0.1:{port}?ssl_ca_certs={authority.file}") as store:
        await lives_through(store, ask, new_key())
    with pytest.raises(StoreUntrusted):
        async with opened(f"rediss+cluster://127.0.0.1:{port}"):
            pass


async def test_a_sentinel_and_its_primary_behind_tls(
    tls, port, options, authority, start_sentinel, opened, ask, new_key, lives_through
):
    place = free_port()
    await start_sentinel(
        port,
        f"tls-port {place}",
        "tls-replication yes",
        "tls-auth-clients no",
        *(" ".join(pair).removeprefix("--") for pair in zip(options[::2], options[1::2], strict=True)),
    )
    async with opened(f"rediss+sentinel://127.0.0.1:{place}/main?ssl_ca_certs={authority.file}") as store:
        await lives_through(store, ask, new_key())
    with pytest.raises((StoreUntrusted, StoreUnreachable)):
        async with opened(f"rediss+sentinel://127.0.0.1:{place}/main"):
            pass


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster"])
def test_options_are_checked_before_anything_is_connected_to(scheme: str, tmp_path: Path) -> None:
    place = f"{scheme}://h/main" if "sentinel" in scheme else f"{scheme}://h"
    for url, why in (
        (f"{place}?ssl_ca_certs=x", "is for TLS"),
        (f"{place}?protocol=2", "'protocol' is not an option"),
        (f"{place.replace('redis', 'rediss', 1)}?ssl_ca_certs={tmp_path}/none", "there is no"),
        (f"{place.replace('redis', 'rediss', 1)}?ssl_check_hostname=maybe", "neither true nor false"),
        (f"{place}?socket_timeout=soon", "could not convert"),
        (f"{place}?socket_timeout=0.1", "0.2 s at least"),
        (f"{place}?socket_timeout=nan", "0.2 s at least"),
        (f"{place}?socket_connect_timeout=-1", "0.2 s at least"),
    ):
        with pytest.raises(StoreUrlError, match=why):
            parse(url)
