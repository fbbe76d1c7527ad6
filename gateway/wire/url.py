"""URLs of HTTP origins, parsed once. A Unix domain socket is one too: `unix:/path`."""

import ipaddress
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlsplit

WEB_PORTS = {"http": 80, "https": 443}
DEFAULT_PORTS = WEB_PORTS | {"ws": 80, "wss": 443}
SECURE = frozenset({"https", "wss"})
"""Those over TLS."""
SOCKET = "unix"
"""The scheme of a Unix domain socket."""
SOCKET_BYTES = 103
"""Of the path of one, at most (macOS; Linux has four more)."""


class Origin(NamedTuple):
    """What connections are shared by. `host` is ASCII, without brackets; of a Unix domain socket it is the path."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """As the Host header has it. Behind a Unix domain socket there is no other host than this one."""
        if self.scheme == SOCKET:
            return "localhost"
        return str(self).partition("://")[2]

    def __str__(self) -> str:
        if self.scheme == SOCKET:
            return f"{SOCKET}:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if DEFAULT_PORTS[self.scheme] == self.port else f":{self.port}")


@dataclass(frozen=True, slots=True)
class Url:
    """An origin and a request target (path and query)."""

    origin: Origin
    target: str
    request_line_end: bytes = field(init=False, repr=False)
    """From after the method to the end of the Host header."""

    def __post_init__(self) -> None:
        line = f" {self.target} HTTP/1.1\r\nHost: {self.origin.authority}\r\n"
        object.__setattr__(self, "request_line_end", line.encode())

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


@lru_cache(256)
def parse_url(text: str, on_socket: str = "/mcp") -> Url:
    """ValueError, with a text for people, for anything but an absolute http or https URL without credentials, or the
    address of a Unix domain socket, on which the request target is `on_socket`."""
    if text.startswith(f"{SOCKET}:"):
        return Url(Origin(SOCKET, socket_path(text), 0), on_socket)
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    scheme = parts.scheme
    if scheme not in DEFAULT_PORTS:
        raise ValueError("a URL must begin with http:// or https://, or be unix:/PATH")
    if not host:
        raise ValueError("a URL needs a host")
    if parts.username is not None:
        raise ValueError("credentials belong into headers, not into the URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    origin = Origin(scheme, host, port or DEFAULT_PORTS[scheme])
    return Url(origin, quote(target, safe="%/?:@!$&'()*+,;=-._~[]|"))


def socket_path(text: str) -> str:
    """The path in `unix:/path`, or `unix:///path`. ValueError, with a text for people, for what is none."""
    path = text.removeprefix(f"{SOCKET}:")
    path = path[2:] if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//"):
        raise ValueError("the path of a Unix domain socket must be absolute: unix:/PATH")
    if "\0" in path or len(os.fsencode(path)) > SOCKET_BYTES:
        raise ValueError(f"the path of a Unix domain socket has at most {SOCKET_BYTES} bytes, and no NUL")
    return path


def is_loopback(host: str) -> bool:
    """Whether this host is the machine that asks."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
