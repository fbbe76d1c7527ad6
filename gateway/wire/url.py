"""URLs of HTTP origins, parsed once."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """What connections are shared by. `host` is ASCII, without brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
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
        authority = str(self.origin).partition("://")[2]
        object.__setattr__(self, "request_line_end", f" {self.target} HTTP/1.1\r\nHost: {authority}\r\n".encode())

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


@lru_cache(256)
def parse_url(text: str) -> Url:
    """ValueError, with a text for people, for anything but an absolute http or https URL without credentials."""
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError("a URL must begin with http:// or https://")
    if not host:
        raise ValueError("a URL needs a host")
    if parts.username is not None:
        raise ValueError("credentials belong into headers, not into the URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    origin = Origin(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme])
    return Url(origin, quote(target, safe="%/?:@!$&'()*+,;=-._~[]|"))
