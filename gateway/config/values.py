"""The kinds of value that a configuration is made of: what each accepts, and how its JSON Schema says so.

Numbers and switches may be written as text, since `"${TIMEOUT:-30}"` is text until it is expanded.
"""

import base64
import binascii
import ipaddress
import re
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema

from actors.protocol.headers import TOKEN
from actors.protocol.issuers import ALGORITHMS, claim_path
from actors.protocol.limiting import amount
from gateway.config.addresses import parse_address, parse_listen
from gateway.observability.access import check_format
from gateway.wire.url import SOCKET, is_loopback, socket_path

SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")

_REFERENCE_SCHEMA = {"type": "string", "pattern": r"\$\{.+\}"}


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic takes ValueError for an answer
    return value


def _schema(kind: str, **bounds: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind, **bounds}, _REFERENCE_SCHEMA]})


def _rate(text: str) -> str:
    amount(text)
    return text


def parse_key(text: str) -> bytes:
    """32 bytes in hex or base64; ValueError for anything else."""
    try:
        key = bytes.fromhex(text) if len(text) == 64 else base64.b64decode(_standard_base64(text), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != 32:
        raise ValueError("must be 32 bytes in hex or base64; `openssl rand -hex 32` makes one")
    return key


def _standard_base64(text: str) -> str:
    return text.replace("-", "+").replace("_", "/").rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)


def _address(text: str) -> str:
    parse_address(text)
    return text


def _listen(text: str) -> str:
    parse_listen(text)
    return text


def _key(secret: SecretStr) -> SecretStr:
    parse_key(secret.get_secret_value())
    return secret


def plain(secret: SecretStr | None) -> str | None:
    """What nobody is shown."""
    return secret.get_secret_value() if secret is not None else None


def check_token(text: str) -> None:
    """ValueError for what could not stand in an Authorization header (RFC 6750, section 2.1)."""
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", text):
        raise ValueError("a bearer token is made of letters, digits and -._~+/ (RFC 6750, section 2.1)")


def _token(secret: SecretStr) -> SecretStr:
    check_token(secret.get_secret_value())
    return secret


_UNREACHABLE: Final = "has a host that no name server can be asked for, or a port that is none"

STORE_SCHEMES = tuple(f"redis{tls}{kind}" for tls in ("", "s") for kind in ("", "+sentinel", "+cluster"))
"""`+sentinel` takes HOST:PORT,…/SERVICE/DB, `+cluster` HOST:PORT,…; `s` is TLS."""


_DATABASE: Final = {
    "": re.compile(r"/?|/\d+/?"),
    "sentinel": re.compile(r"/?|/[^/]+/?|/[^/]+/\d+/?"),
    "cluster": re.compile(r"/?|/0/?"),
}


def _is_socket(url: str) -> bool:
    return url.startswith("unix:///")


def parse_store(url: str) -> str:
    """The URL of a store that this release has; ValueError for anything else, without the URL: it may hold a
    password."""
    parts = urlsplit(url)
    known = url == "memory://" or (parts.scheme in STORE_SCHEMES and parts.netloc) or _is_socket(url)
    if not known or parts.fragment:
        raise ValueError("must be memory://, redis://HOST:PORT/DB or rediss://HOST:PORT/DB, or one of the longer forms")
    places = parts.netloc.rpartition("@")[2].split(",") if parts.netloc else []
    here = "" if "+" in parts.scheme else "localhost"  # what `redis://:6379` means
    if not all(_is_reachable(urlsplit(f"//{place}"), here) for place in places):
        raise ValueError(_UNREACHABLE)
    # The library takes what is no number for 0, where another deployment may be.
    if parts.scheme in STORE_SCHEMES and not _DATABASE[parts.scheme.partition("+")[2]].fullmatch(parts.path):
        raise ValueError("names no database: a number, as in redis://HOST:PORT/0; a cluster has 0 alone")
    return url


def _store(secret: SecretStr) -> SecretStr:
    parse_store(secret.get_secret_value())
    return secret


def _backend_url(url: str) -> str:
    if url.startswith(f"{SOCKET}:"):
        socket_path(url)
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
        raise ValueError("must be an http://, https://, ws:// or wss:// URL, or unix:/PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError("holds a user name: send credentials by `headers`")
    if parts.fragment:
        raise ValueError("holds a #fragment, which is never sent")
    if not _is_reachable(parts):
        raise ValueError(_UNREACHABLE)
    return url


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character")
    return text


def _access(text: str) -> str:
    why = None if text in ("off", "json", "combined") else check_format(text)
    if why is not None:
        raise ValueError(why)
    return text


def _header_value(secret: SecretStr) -> SecretStr:
    # RFC 9110, section 5.5
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", secret.get_secret_value()):
        raise ValueError("holds a line break or another control character")
    return secret


def _env_value(secret: SecretStr) -> SecretStr:
    _no_nul(secret.get_secret_value())
    return secret


def _separator(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,8}", text):
        raise ValueError("must be 1 to 8 of A-Z a-z 0-9 _ -, the characters that tool names may have")
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@*\[\]]+)(:\d{1,5})?", text):
        raise ValueError("must be a host name, or name:port to allow one port only")
    return text


def _origin(text: str) -> str:
    if not re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@*\[\]]+)(:\d{1,5})?/?", text):
        raise ValueError("must be an origin such as https://app.example.com (each is named, there is no wildcard)")
    return text


def _syslog(url: str) -> str:
    parts = urlsplit(url)
    if not (url.startswith("unix:/") or (parts.scheme in ("udp", "tcp", "tls") and _is_reachable(parts))):
        raise ValueError("must be unix:/PATH, udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT")
    return url


def _is_reachable(parts: SplitResult, without: str = "") -> bool:
    """Whether it has a host that can be looked up, and a port or none. `without`: what it means without a host."""
    host = parts.hostname or without
    try:
        host.encode("idna")
        return bool(host) and not re.search(r"[\x00-\x20\x7f]", host) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _otlp(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not _is_reachable(parts):
        raise ValueError("must be the http(s) URL of a collector, such as http://127.0.0.1:4318/v1/logs")
    return url


def _without_credentials(url: str) -> str:
    if urlsplit(url).username is not None:
        raise ValueError("credentials of a collector belong into `otlpHeaders`")
    return url


def _web_address(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host or parts.username is not None or parts.fragment:
        raise ValueError("must be an address like https://idp.example.com")
    if not _is_reachable(parts):
        raise ValueError(_UNREACHABLE)
    if re.search(r"[\x00-\x20\x7f]", text):
        raise ValueError("must be an address without blanks")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError("must be https: only an address of this machine may be http")
    return text


def _without_query(text: str) -> str:
    # RFC 8414, section 2; and what paths are added to must end with one.
    if urlsplit(text).query or "?" in text:
        raise ValueError("must be an address without a query")
    return text


def _issuer(text: str) -> str:
    if "{" in text:
        raise ValueError("must be one issuer: of those with tenants name each (https://login.example.com/TENANT)")
    return _without_query(text)


def _scope(text: str) -> str:
    if not SCOPE.fullmatch(text):
        raise ValueError("must be one scope: it has no spaces, quotes or backslashes (RFC 6749, section 3.3)")
    return text


def _first_scope(text: str) -> str:
    if text == "offline_access":
        raise ValueError("is between a client and its issuer: no resource asks for it (SEP-2207)")
    return _scope(text)


def _audience(text: str) -> str:
    if not text.strip("/ "):
        raise ValueError("names nothing")
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.0/8") from None
    return text


def _catalog(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise ValueError("must be a token or a key: visible characters, and no spaces")
    return secret


def _header_name(text: str) -> str:
    if not TOKEN.fullmatch(text):
        raise ValueError("is not a header name (RFC 9110, section 5.1)")
    return text


def _algorithm(text: str) -> str:
    if text not in ALGORITHMS:
        raise ValueError(f"must be one of {', '.join(ALGORITHMS)}")
    return text


def _claim(text: str) -> str:
    claim_path(text)
    return text


LONGEST: Final = 365 * 24 * 3600
"""Seconds of the longest time that can be configured: what waits for longer never ends, and no clock of the system or
of Redis takes any number."""

Positive = Annotated[
    float,
    BeforeValidator(_number),
    Field(gt=0, le=LONGEST, allow_inf_nan=False),
    _schema("number", exclusiveMinimum=0, maximum=LONGEST),
]
"""Seconds, more than none."""

Duration = Annotated[
    float,
    BeforeValidator(_number),
    Field(ge=0, le=LONGEST, allow_inf_nan=False),
    _schema("number", minimum=0, maximum=LONGEST),
]
"""Seconds, possibly none."""

Count = Annotated[int, BeforeValidator(_number), Field(ge=1), _schema("integer", minimum=1)]
"""How many, at least one."""

Processes = Annotated[int, BeforeValidator(_number), Field(ge=1, le=1024), _schema("integer", minimum=1, maximum=1024)]
"""How many workers: what is more is no machine's, but a port or a number of bytes in the wrong place."""

Bound = Annotated[int, BeforeValidator(_number), Field(ge=0), _schema("integer", minimum=0)]
"""How many at most; 0 is no bound."""

FileText = Annotated[str, Field(min_length=1)]
"""The path of a file; without a name it would be the folder."""

RateText = Annotated[str, AfterValidator(_rate)]
"""How often: `60/min`."""

Share = Annotated[
    float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False), _schema("number", minimum=0, maximum=1)
]
"""From none of them to all."""

Switch = Annotated[bool, WithJsonSchema({"anyOf": [{"type": "boolean"}, _REFERENCE_SCHEMA]})]
"""On or off."""

AddressText = Annotated[str, AfterValidator(_address)]
ListenText = Annotated[str, AfterValidator(_listen)]
StoreUrl = Annotated[SecretStr, AfterValidator(_store)]
BackendUrl = Annotated[str, AfterValidator(_backend_url)]
KeyText = Annotated[SecretStr, AfterValidator(_key)]
TokenText = Annotated[SecretStr, AfterValidator(_token)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
PublicAddress = Annotated[WebAddress, AfterValidator(_without_query)]
IssuerAddress = Annotated[WebAddress, AfterValidator(_issuer)]
CatalogText = Annotated[SecretStr, AfterValidator(_catalog)]
ScopeText = Annotated[str, AfterValidator(_scope)]
FirstScope = Annotated[str, AfterValidator(_first_scope)]
AudienceText = Annotated[str, AfterValidator(_audience)]
NetworkText = Annotated[str, AfterValidator(_network)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Algorithm = Annotated[str, AfterValidator(_algorithm)]
ClaimText = Annotated[str, AfterValidator(_claim)]
Argument = Annotated[str, AfterValidator(_no_nul)]
HeaderValue = Annotated[SecretStr, AfterValidator(_header_value)]
EnvValue = Annotated[SecretStr, AfterValidator(_env_value)]
AccessText = Annotated[str, AfterValidator(_access)]
HostText = Annotated[str, AfterValidator(_host)]
OriginText = Annotated[str, AfterValidator(_origin)]
SyslogUrl = Annotated[str, AfterValidator(_syslog)]
OtlpUrl = Annotated[str, AfterValidator(_otlp)]
OtlpLogsUrl = Annotated[OtlpUrl, AfterValidator(_without_credentials)]
Separator = Annotated[str, AfterValidator(_separator)]
