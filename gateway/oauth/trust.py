"""Which addresses of strangers we go to, and send browsers to: those of the internet by https, and where the operator
has sent us."""

from typing import Final
from urllib.parse import urlsplit

from gateway.oauth.errors import OAuthError, shown
from gateway.oauth.metadata import origin
from gateway.wire.url import is_loopback

LOOPBACK: Final = "loopback"
"""Trusted by those who stand there themselves: any address of this machine."""


def trusted_by(url: str, *named: str) -> frozenset[str]:
    """Where we go though it may be inside: where the operator has sent us, by the URL of a server and what else he has
    `named` of it. A server on this machine may name other places of this machine."""
    found = {origin(one) for one in (url, *named)}
    return frozenset(found | ({LOOPBACK} if is_loopback(urlsplit(url).hostname or "") else set()))


def checked(url: str, trusted: frozenset[str]) -> str:
    """The origin of an address that may be asked: https, but for where the operator has sent us, and on this machine
    for servers that are there. Raises OAuthError."""
    try:
        parts, where = urlsplit(url), origin(url)
    except ValueError:
        raise OAuthError("bad_url", "an address is malformed") from None
    if not parts.hostname or parts.username is not None or parts.scheme not in ("http", "https"):
        raise OAuthError("bad_url", f"{shown(where)} is no web address")
    if parts.scheme == "http" and where not in trusted and not (LOOPBACK in trusted and is_loopback(parts.hostname)):
        raise OAuthError("not_https", f"{shown(where)} is not https")
    return where
