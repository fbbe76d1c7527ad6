"""Store URLs: which Redis is meant, and how a connection to it is made.

    redis://[user:password@]host[:6379][/db]      rediss://… for TLS      unix:///path/to/socket[?db=0]
    redis+sentinel://[user:password@]host[:26379][,host…]/service[/db]
    redis+cluster://[user:password@]host[:6379][,host…]

`rediss+sentinel` and `rediss+cluster` use TLS too, the former also to the sentinels. As a query may follow:

    db  socket_timeout  socket_connect_timeout                                    (seconds, 0.2 at least)
    ssl_ca_certs  ssl_ca_path  ssl_certfile  ssl_keyfile  ssl_password  ssl_check_hostname     (with TLS)
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection as PlainConnection
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from gateway.store.redis.errors import StoreUrlError

CONNECT_TIMEOUT = 1.0
REPLY_TIMEOUT = 2.0
"""Seconds until a silent connection counts as broken."""

SILENT = 10.0
"""Seconds for which sentinels are not asked, none of which has answered: each may take as long as a timeout."""

LEAST_TIMEOUT = 0.2
"""Of those that a URL can ask for: a reader of mail that waits for some is silent for half as long."""

# redis-py's annotations stop short of it.
_sentinel: Callable[..., Any] = Sentinel

_KINDS: dict[str, Literal["direct", "sentinel", "cluster"]] = {
    "redis": "direct",
    "rediss": "direct",
    "unix": "direct",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _seconds(text: str) -> float:
    seconds = float(text)
    if not LEAST_TIMEOUT <= seconds < inf:
        raise ValueError(f"a timeout of {text} s: it must be {LEAST_TIMEOUT} s at least")
    return seconds


_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")

_QUERY: dict[str, Callable[[str], Any]] = {
    "db": int,
    "socket_timeout": _seconds,
    "socket_connect_timeout": _seconds,
    **dict.fromkeys((*_FILES, "ssl_password"), str),
    "ssl_check_hostname": _yes_or_no,
}

_FORMS = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"


Address: TypeAlias = tuple[str, int]
"""Host and port."""


class Connection(Protocol):
    """What is used of a connection of redis-py. For its socket that has no public name."""

    socket_timeout: float
    _sock: Any

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...

    def read_response(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. `shown` is the URL without its password."""

    kind: Literal["direct", "sentinel", "cluster"]
    text: str = field(repr=False)
    url: SplitResult = field(repr=False)
    shown: str

    def connections(self) -> Callable[[], Connection]:
        """Makes connections, not yet open, to the one primary (not for a cluster)."""
        return connections_of(self.pool())

    def pool(self) -> ConnectionPool:
        """Makes connections to the one primary (not for a cluster)."""
        return self._sentinel_pool() if self.kind == "sentinel" else self._direct_pool()

    def addresses(self) -> list[Address]:
        """The nodes of a cluster that the URL names."""
        return [(host, port or 6379) for host, port in _hosts(self.url)]

    def connection(self, address: Address) -> Connection:
        """A connection, not yet open, to a node of a cluster."""
        options: dict[str, Any] = {**_options(), **self.options(), **self._credentials()}
        host, port = address
        return cast(Connection, (SSLConnection if self.tls else PlainConnection)(host=host, port=port, **options))

    @property
    def tls(self) -> bool:
        """Whether it is spoken to by TLS."""
        return self.url.scheme.startswith("rediss")

    def options(self) -> dict[str, Any]:
        """The options of the query."""
        given: dict[str, Any] = {}
        for name, value in parse_qsl(self.url.query, keep_blank_values=True):
            if name not in _QUERY:
                raise StoreUrlError(f"{self.shown}: {name!r} is not an option; there are {', '.join(_QUERY)}")
            if name.startswith("ssl_") and not self.tls:
                raise StoreUrlError(f"{self.shown}: {name} is for TLS, which URLs that begin with rediss use")
            given[name] = _QUERY[name](value)
            if name in _FILES and not Path(value).exists():
                raise StoreUrlError(f"{self.shown}: {name}: there is no {value}")
        return given

    def _credentials(self) -> dict[str, str]:
        given = {"username": self.url.username, "password": self.url.password}
        return {name: unquote(value) for name, value in given.items() if value}

    def _direct_pool(self) -> ConnectionPool:
        self.options()
        options = _options()
        if self.url.scheme == "unix":
            del options["socket_keepalive"]
        return ConnectionPool.from_url(self.text, **options)

    def _sentinel_pool(self) -> ConnectionPool:
        service, _, db = self.url.path.strip("/").partition("/")
        if not service:
            raise StoreUrlError(
                f"{self.shown}: the name of the service is missing (redis+sentinel://host:26379/service)"
            )
        hosts = [(host, port or 26379) for host, port in _hosts(self.url)]
        options = {**_options(), **self.options(), "ssl": self.tls}
        number = int(db or options.get("db", 0))
        options.pop("db", None)
        sentinel = _sentinel(hosts, sentinel_kwargs=options, **options)
        client = sentinel.master_for(service, db=number, **self._credentials())
        return cast(ConnectionPool, client.connection_pool)


def connections_of(pool: ConnectionPool) -> Callable[[], Connection]:
    """Makes connections as the pool does, which it then knows nothing of: by its own method it would count them, and
    make no more after so many (100, since redis-py 8), whatever has become of them."""
    return lambda: cast(Connection, pool.connection_class(**pool.connection_kwargs))


class Sentinels:
    """Those of a pool, if it has any: they are asked where the primary is."""

    def __init__(self, pool: Any) -> None:
        manager = getattr(pool, "sentinel_manager", None)
        self._all: list[Any] = manager.sentinels if manager is not None else []
        self._service = getattr(pool, "service_name", "")
        self._silent_until = -inf

    def agree(self, connection: Any) -> bool:
        """Whether they name nobody but where this leads to. (One that hung while another took its place answers when it
        wakes, and takes itself for the primary for many seconds.) While none of them answers nothing is known."""
        if time.monotonic() < self._silent_until:
            return True
        for place, sentinel in enumerate(self._all):
            with suppress(RedisError, OSError):
                # As soon as another is promoted; that the former is none any more they say later.
                found = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self._service)
                self._all[0], self._all[place] = sentinel, self._all[0]
                return found is None or (found[0].decode(), found[1]) == (connection.host, connection.port)
        self._silent_until = time.monotonic() + SILENT
        return True

    def close(self) -> None:
        """Closes the connections to them, until they are asked again."""
        for sentinel in self._all:
            sentinel.close()


def parse(url: str) -> Target:
    """The target of a store URL; raises StoreUrlError."""
    try:
        parts = urlsplit(url)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        kind = _KINDS.get(parts.scheme)
        if kind is None:
            raise StoreUrlError(f"{shown!r}: a store URL begins with {_FORMS}")
        target = Target(kind, url, parts, shown)
        if kind != "direct":
            _hosts(parts)
        elif parts.hostname:  # without one it is this machine
            _looked_up(parts.hostname)
        if kind == "cluster":
            target.options()
        else:
            target.connections()()
    except (ValueError, TypeError, RedisError) as error:
        raise StoreUrlError(f"the store URL is not usable: {error}") from error
    return target


def _looked_up(host: str) -> None:
    """Raises ValueError for what no name server can be asked for, as whoever looks it up would."""
    host.encode("idna")


def _hosts(url: SplitResult) -> list[tuple[str, int | None]]:
    hosts = []
    for place in url.netloc.rpartition("@")[2].split(","):
        host = urlsplit(f"//{place}")
        if not host.hostname:
            raise StoreUrlError(f"{place!r} is not a host")
        _looked_up(host.hostname)
        hosts.append((host.hostname, host.port))
    return hosts


def _options() -> dict[str, Any]:
    # redis-py's own retries would block for seconds and send again what is not idempotent in itself.
    return {
        "protocol": 3,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": REPLY_TIMEOUT,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "client_name": "stagedoor",
    }
