"""Listening sockets and TLS. Sockets are opened by whoever composes the process, so that workers can inherit them."""

import errno
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

BACKLOG = 1024
"""Connections that the kernel holds until they are accepted; more are refused by it."""

_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def open_listeners(host: str, port: int, *, user_timeout: float = 30.0, backlog: int = BACKLOG) -> list[socket.socket]:
    """Listens on every address of `host` ("" or "*": all); with port 0 all share the port of the first.

    On Linux the kernel drops a connection whose peer acknowledges nothing for `user_timeout` seconds; elsewhere only
    the write deadline does. Raises OSError; an address family that this machine lacks is passed over if another works.
    """
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(None if host in {"", "*"} else host, port, type=socket.SOCK_STREAM, flags=flags)
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in found:
            bound = (address[0], listeners[0].getsockname()[1] if listeners and port == 0 else address[1], *address[2:])
            try:
                listeners.append(_listen(socket.socket(family, kind, protocol), bound, user_timeout, backlog))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                missing = error
    except OSError:
        close_listeners(listeners)
        raise
    if not listeners:
        raise missing or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    return listeners


def close_listeners(listeners: Sequence[socket.socket]) -> None:
    """Closes listeners that nobody serves."""
    for listener in listeners:
        listener.close()


def _listen(listener: socket.socket, address: tuple[object, ...], user_timeout: float, backlog: int) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if sys.platform == "linux":  # accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout * 1000))
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def addresses(listeners: Sequence[socket.socket]) -> list[tuple[str, int]]:
    """Host and port of each listener."""
    return [listener.getsockname()[:2] for listener in listeners]


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, offering HTTP/1.1 only. Raises OSError or ssl.SSLError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(cert, key)
    return context
