"""HTTP to addresses that another one has named (MCP 2026-07-28 security best practices, "Server-Side Request Forgery").

What may be reached is decided at connect: the name is resolved here, every address must be public, and the connection
goes to the very address that was looked at, so that a name which means something else a moment later gains nothing.
TLS still checks the name. Where the operator has sent us (`trusted`), the address may be any.
"""

import ipaddress
import logging
import socket
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore2
import httpx2
import trio

from gateway.oauth.discovery import Answer
from gateway.oauth.errors import AwayError, OAuthError, shown
from gateway.oauth.places import Places
from gateway.oauth.trust import LOOPBACK, checked

logging.getLogger("httpx2").setLevel(logging.WARNING)  # each request would be a line, with an address that is not ours

WITHIN: Final = 10.0
"""Seconds for one request, from the name to the last byte of the answer."""
ANSWER_BYTES: Final = 256 * 1024
"""Of an answer, its head included."""
AT_ONCE: Final = 32
"""Requests under way on behalf of one server or issuer; further ones wait, within their time."""

_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
"""What is given out of IPv6. All else is for one network alone, or stands for an IPv4 address (`::7f00:1`,
`::ffff:0:7f00:1`, `64:ff9b::7f00:1`), or is nobody's yet, of which the standard library says that it is global."""
_NOT_PUBLIC: Final = tuple(
    map(ipaddress.ip_network, ("2001::/32", "2002::/16", "3fff::/20", "192.88.99.0/24"))
)  # Teredo and 6to4, where an IPv4 address is hidden in it; documentation; the way to 6to4


def is_public(address: str) -> bool:
    """Whether this is an address of the internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    given_out = ip.version == 4 or ip in _GLOBAL
    return given_out and ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


class GuardedHttp:
    """See `discovery.Http`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        # What is trusted says on whose behalf it is asked: who names places that are slow holds up nobody else.
        self._places = Places[frozenset[str]](AT_ONCE)

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        trusted: frozenset[str] = frozenset(),
    ) -> Answer:
        where = checked(url, trusted)
        with trio.move_on_after(WITHIN):
            async with self._places.of(trusted):
                return await self._ask(method, url, where, dict(headers or {}), body, trusted)
        raise AwayError("too_slow", f"{shown(where)} did not answer within {WITHIN:g} s")

    async def _ask(
        self, method: str, url: str, where: str, headers: dict[str, str], body: bytes, trusted: frozenset[str]
    ) -> Answer:
        tls = await self._tls_of(where)
        headers |= {"Accept-Encoding": "identity", "User-Agent": "stagedoor"}
        # A connection is for one request: what one may reach, another one with less trust must not.
        guard = _Guard(trusted)
        transport = _Transport(guard, tls)
        try:
            async with (
                httpx2.AsyncClient(transport=transport, trust_env=False, timeout=WITHIN) as client,
                client.stream(method, url, headers=headers, content=body) as response,
            ):
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise OAuthError("bad_answer", f"{shown(where)} answered compressed")
                return Answer(response.status_code, await response.aread(), dict(response.headers))
        except (httpx2.InvalidURL, UnicodeError) as error:  # also a name that the resolver can't ask for
            raise OAuthError("bad_url", f"{shown(where)} is no address") from error
        except (httpx2.TransportError, ssl.SSLError, OSError) as error:
            if guard.refused is not None:
                raise guard.refused from None
            raise AwayError("away", f"{shown(where)} can't be reached") from error

    async def _tls_of(self, where: str) -> ssl.SSLContext:
        """Whom to trust there. The authorities of this machine take long to read, and over plain HTTP are not asked."""
        if where.startswith("http:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # that trusts nobody
        if self._tls is None:
            self._tls = await trio.to_thread.run_sync(ssl.create_default_context)
        return self._tls


class _Transport(httpx2.AsyncHTTPTransport):
    """The one of httpx2, over connections that our guard makes."""

    def __init__(self, guard: "_Guard", tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=tls, max_keepalive_connections=0, network_backend=guard)


class _Guard(httpcore2.AsyncNetworkBackend):
    """Connects to what may be connected to."""

    def __init__(self, trusted: frozenset[str]) -> None:
        self._trusted = {_host_and_port(where) for where in trusted if where != LOOPBACK}
        self._loopback = LOOPBACK in trusted
        self._backend = httpcore2.TrioBackend()
        self.refused: OAuthError | None = None
        """Why it did not connect."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._addresses(host, port)
        failure: Exception | None = None
        for address in addresses:
            try:
                stream = await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
                return _Bounded(stream, self, host)
            except httpcore2.ConnectError as error:
                failure = error
        raise failure or httpcore2.ConnectError("no address")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if (host.lower(), port) not in self._trusted and not all(self._may(address) for address in addresses):
            self.refused = OAuthError("not_public", f"{shown(host)} is not an address of the internet")
            raise httpcore2.ConnectError("refused")
        return addresses[:4]

    def _may(self, address: str) -> bool:
        loopback = self._loopback and ipaddress.ip_address(address.partition("%")[0]).is_loopback
        return loopback or is_public(address)


class _Bounded(httpcore2.AsyncNetworkStream):
    """A connection that ends where an answer is too large. (A limit on what is read of the answer would leave
    generators of the library unfinished.)"""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, guard: _Guard, host: str) -> None:
        self._stream = stream
        self._guard = guard
        self._host = host
        self._left = ANSWER_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        self._left -= len(data)
        if self._left < 0:
            self._guard.refused = OAuthError(
                "too_large", f"{shown(self._host)} answered more than {ANSWER_BYTES} bytes"
            )
            raise httpcore2.ReadError("too large")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Bounded(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._guard, self._host)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _host_and_port(where: str) -> tuple[str, int]:
    parts = urlsplit(where)
    return (parts.hostname or "").lower(), parts.port or 443
