"""Listening sockets and TLS."""

import datetime
import ipaddress
import socket
import ssl
import sys

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.http.sockets import (
    CannotListenError,
    addresses,
    close_listeners,
    listeners_for,
    open_listeners,
    tls_context,
)
from tests.support.patience import PATIENCE

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n%b\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(cert, key) for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def tls(certificate):
    """What a server needs, and what a client does."""
    client = ssl.create_default_context(cafile=str(certificate[0]))
    client.set_alpn_protocols(["h2", "http/1.1"])
    return tls_context(*certificate), client


def secured(stream, context):
    return trio.SSLStream(stream, context, server_hostname="127.0.0.1", https_compatible=True)


async def test_tls_serves_http_1_1_and_offers_nothing_else(tls, make_app, running, read):
    server_side, client_side = tls
    async with running(make_app(), tls=server_side) as server:
        stream = secured(await server.connect(), client_side)
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == "http/1.1"
        await stream.send_all(HEALTH % b"")
        assert (await read.until(stream, b"}")).startswith(b"HTTP/1.1 200")
        await stream.send_all(HEALTH % b"Connection: close\r\n")
        assert (await read.all(stream)).endswith(b"}")
    assert server.log.events == []


async def test_a_stalled_reader_is_cut_under_tls_too(tls, door, make_app, running):
    server_side, client_side = tls
    source = door.stream(b"data: " + b"x" * 20_000_000 + b"\n\n")
    async with running(make_app(), tls=server_side, write=0.2) as server:
        stream = secured(await server.connect(), client_side)
        await stream.send_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        with trio.fail_after(PATIENCE):
            await source.closed.wait()
    assert server.log.names == ["client_stalled"]


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01garbage"])
async def test_a_handshake_that_fails_or_hangs_is_given_up(sent, tls, make_app, running, read):
    async with running(make_app(), tls=tls[0], handshake=0.1) as server:
        stream = await server.connect()
        await stream.send_all(sent)
        assert b"HTTP" not in await read.all(stream)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.connections.open == set()
    assert server.log.events == []


async def test_too_many_connections_are_cut_under_tls(tls, make_app, running, read):
    async with running(make_app(), tls=tls[0], connections=0) as server:
        assert await read.all(await server.connect()) == b""
    assert server.log.events == []


async def test_an_early_refusal_can_be_read_under_tls(tls, make_app, running, read):
    server_side, client_side = tls
    async with running(make_app(), tls=server_side, linger=0.2) as server:
        stream = secured(await server.connect(), client_side)
        await stream.send_all(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n12")
        assert (await read.until(stream, b"}}")).startswith(b"HTTP/1.1 404")


def test_tls_needs_a_certificate_and_its_key(certificate, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        tls_context(tmp_path / "none.pem", certificate[1])
    with pytest.raises(ssl.SSLError):
        tls_context(certificate[1], certificate[1])


def test_listeners_listen_where_they_are_told():
    listeners = open_listeners("127.0.0.1", 0)
    try:
        [(host, port)] = addresses(listeners)
        assert host == "127.0.0.1"
        with socket.create_connection((host, port), timeout=PATIENCE):
            pass
        assert not listeners[0].getblocking()
    finally:
        close_listeners(listeners)


def test_all_listeners_of_one_name_share_a_port():
    listeners = open_listeners("", 0)
    try:
        assert len({port for _, port in addresses(listeners)}) == 1
    finally:
        close_listeners(listeners)


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open():
    taken = open_listeners("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            open_listeners("127.0.0.1", addresses(taken)[0][1])
    finally:
        close_listeners(taken)


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")
def test_accepted_connections_inherit_the_user_timeout():
    listeners = open_listeners("127.0.0.1", 0, user_timeout=7)
    try:
        with socket.create_connection(addresses(listeners)[0]):
            listeners[0].setblocking(True)
            accepted, _ = listeners[0].accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
    finally:
        close_listeners(listeners)


def test_a_port_in_use_says_which_listener_which_address_and_what_to_do():
    [taken] = open_listeners("127.0.0.1", 0)
    port = addresses([taken])[0][1]
    try:
        with pytest.raises(CannotListenError) as error:
            listeners_for("admin", "admin", "127.0.0.1", port)
    finally:
        close_listeners([taken])
    assert error.value.strerror.startswith(f"the admin listener can't listen on 127.0.0.1:{port}: another program")
    assert "end that one, or choose another address by `--admin HOST:PORT`" in error.value.strerror


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_there_says_so_too(host):
    with pytest.raises(CannotListenError, match=f"the public listener can't listen on {host}:1: .*--listen HOST:PORT"):
        listeners_for("public", "listen", host, 1)
