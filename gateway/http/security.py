"""Who may speak to a listener: Host and Origin against DNS rebinding, bearer tokens for identity. Pure.

A browser page can make its own name resolve to our address and then send us requests "from the same origin". Such
requests carry a foreign Host, or a foreign Origin, and are refused on every method (MCP 2025-11-25, transports,
"Security Warning").
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from actors.ports import ANONYMOUS, Asker, Principal, Rights
from actors.protocol.rights import STATIC
from gateway.wire.url import WEB_PORTS

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "*", "0.0.0.0", "::"})  # noqa: S104
_AUTHORITY = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/?#@\[\]]+))(?::([0-9]{0,5}))?")
_REMEMBERED = 64
"""Allowed Host values kept, so that they are parsed once."""


NOBODY = Asker(ANONYMOUS)

_KEY = secrets.token_bytes(32)
"""For digests of tokens, which are good as long as the process: a token is the same one after a reload."""


@dataclass(frozen=True, slots=True)
class Security:
    """What one listener lets in.

    `hosts` are names, or name:port to allow one port only; `origins` are origins (`https://app.example.com`) or names.
    `tokens` maps a principal's name to its bearer token, `rights` to what that gives, if it gives anything; None means
    that nobody has to say who he is.
    `any_ip` allows every IP literal as Host, as a wildcard listen address does by itself; `any_host` every Host: no
    page can make its name lead to a Unix socket.
    """

    listen_host: str
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    tokens: Mapping[str, str] | None = field(default=None, repr=False)
    any_ip: bool = False
    any_host: bool = False
    rights: Mapping[str, Rights] = field(default_factory=dict)


def split_authority(value: str) -> tuple[str, str] | None:
    """(host in lower case without brackets and final dot, port or ""); None if it is neither a name nor an address."""
    match = _AUTHORITY.fullmatch(value)
    if match is None:
        return None
    host = (match[1] or match[2]).lower()
    return host.removesuffix("."), match[3] or ""


def is_ip(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class SecurityChecks:
    """The checks of one listener, made ready from its Security."""

    def __init__(self, security: Security) -> None:
        wildcard = security.listen_host in _WILDCARDS
        self._any_ip = security.any_ip or wildcard
        self._any_host = security.any_host
        own = set() if wildcard else {security.listen_host.strip("[]").lower()}
        self._names = _LOOPBACK | own | {host.lower() for host in security.hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in security.origins)
        self._hosts_seen: set[str] = set()
        self._askers: dict[bytes, Asker] | None = None
        if security.tokens is not None:
            self._askers = {
                (digest := _digest(token)): Asker(
                    Principal(name), security.rights.get(name, Rights(STATIC, name)), digest=digest
                )
                for name, token in security.tokens.items()
            }

    @property
    def remembered(self) -> int:
        """Host headers that need no second look."""
        return len(self._hosts_seen)

    def host_allowed(self, host: str | None) -> bool:
        """Whether a request with this Host header may be served."""
        if host is None:
            return self._any_host
        if host in self._hosts_seen:
            return True
        allowed = self._authority_allowed(host)
        if allowed and len(self._hosts_seen) < _REMEMBERED:
            self._hosts_seen.add(host)
        return allowed

    def _authority_allowed(self, value: str) -> bool:
        parts = split_authority(value)
        if parts is None:
            return self._any_host  # clients of such a socket say what they like
        host, port = parts
        return (
            self._any_host or host in self._names or f"{host}:{port}" in self._names or (self._any_ip and is_ip(host))
        )

    def origin_allowed(self, origin: str) -> bool:
        """Whether a page of this origin may speak to us. `null`, the origin of files and sandboxes, never may."""
        origin = origin.lower()
        scheme, separator, authority = origin.partition("://")
        parts = split_authority(authority) if separator else None
        if parts is None:
            return False
        host, port = parts
        full = {origin, f"{scheme}://{host}", host} if port in {"", str(WEB_PORTS.get(scheme))} else {origin, host}
        if full & self._origins:
            return True
        return scheme in WEB_PORTS and (host in self._names or f"{host}:{port}" in self._names)

    @property
    def open(self) -> bool:
        """Whether there are no configured tokens."""
        return self._askers is None

    def asker(self, token: str) -> Asker | None:
        """Who brings this configured token; None if it is none."""
        # Looked up by a keyed digest: how long that takes says nothing of the tokens.
        return self._askers.get(_digest(token)) if self._askers is not None else None

    def configured(self, asker: Asker) -> bool:
        """Whether the token that he once came with is, and is his."""
        known = self._askers.get(asker.digest) if self._askers is not None else None
        return known is not None and known.principal == asker.principal


def _digest(token: str) -> bytes:
    return hmac.digest(_KEY, token.encode("utf-8", "surrogatepass"), hashlib.sha256)
