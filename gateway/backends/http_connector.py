"""The connections to servers over a network: whose they are, and how many there may be."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ssl import SSLContext
from typing import TypedDict

import trio

from actors.ports import Log, Transport, TransportEvent
from actors.protocol.table import BackendSpec, RemoteTarget, SseTarget, Target, WebSocketTarget
from gateway.backends.connector import CONNECTIONS, STREAMS, CredentialsOf, no_credentials
from gateway.backends.credentials import Credentials
from gateway.backends.http_call import HttpLimits
from gateway.backends.modern_http import ModernHttpTransport
from gateway.backends.stillborn import StillbornTransport
from gateway.backends.streamable_http import StreamableHttpTransport
from gateway.wire.errors import NoRoomError, PoolFullError
from gateway.wire.pool import Pool, PoolLimits
from gateway.wire.streams import WireStream, dial
from gateway.wire.url import Origin
from gateway.wire.watch import Watch


@dataclass(frozen=True, slots=True)
class _Pools:
    """The connections to one server: for calls, and for the GET streams, which stay open for long."""

    target: Target
    calls: Pool
    streams: Pool

    def __repr__(self) -> str:
        return f"calls: {self.calls!r} streams: {self.streams!r}"

    @property
    def open(self) -> int:
        return self.calls.open + self.streams.open

    def drop_idle(self) -> None:
        self.calls.drop_idle()
        self.streams.drop_idle()

    def expire(self) -> None:
        self.calls.expire()
        self.streams.expire()

    def close(self) -> None:
        self.calls.close()
        self.streams.close()


class _Means(TypedDict):
    """What every transport over HTTP is given."""

    calls: Pool
    streams: Pool
    log: Log
    limits: HttpLimits
    credentials: Credentials | None
    redact: Callable[[str], str]


class HttpConnector:
    """Reaches HTTP endpoints over pools that each server has for itself: what comes over a connection is said by that
    server, also where others share its host and port. All have at most `connections` open together, of which at most
    half are for streams, so that calls have the others: streams come and stay as sessions do.

    `nursery` is where the tasks of the connections live. Needs `close` once all its transports have ended.
    """

    def __init__(
        self,
        log: Log,
        nursery: trio.Nursery,
        *,
        limits: HttpLimits | None = None,
        pool_limits: PoolLimits | None = None,
        tls: SSLContext | None = None,
        connections: int = CONNECTIONS,
        credentials: CredentialsOf = no_credentials,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`credentials`: what authorizes the requests to a server, if that is more than its headers. `redact` takes
        credentials out of what servers say to people."""
        self._log = log
        self._credentials = credentials
        self._redact = redact
        self._nursery = nursery
        self._connections = connections
        self._sockets = trio.CapacityLimiter(max(1, connections // 2))
        self._limits = limits or HttpLimits()
        self._pool_limits = pool_limits
        self._tls = tls
        self._pools: dict[str, _Pools] = {}
        self._watch = Watch(nursery)

    def __repr__(self) -> str:
        return f"<HttpConnector {self._pools!r}>"

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        assert isinstance(spec.target, RemoteTarget)
        credentials = self._credentials(spec)
        if isinstance(spec.target, WebSocketTarget):
            return self._websocket(spec.name, spec.target, emit, credentials)
        pools = self._pools_of(spec)
        more = _Means(
            calls=pools.calls,
            streams=pools.streams,
            log=self._log,
            limits=self._limits,
            credentials=credentials,
            redact=self._redact,
        )
        try:
            if isinstance(spec.target, SseTarget):
                from gateway.backends.sse_2024 import SseTransport  # which few need

                return SseTransport(spec.name, spec.target, emit, **more)
            transport = ModernHttpTransport if modern else StreamableHttpTransport
            return transport(spec.name, spec.target, emit, **more)
        except ValueError as error:
            return StillbornTransport(f"{spec.name}: {error}", emit)

    def _websocket(
        self,
        name: str,
        target: WebSocketTarget,
        emit: Callable[[TransportEvent], None],
        credentials: Credentials | None,
    ) -> Transport:
        from gateway.backends.websocket import WebSocketTransport  # which few need, and which needs a library

        try:
            return WebSocketTransport(
                name,
                target,
                emit,
                slots=self._sockets,
                log=self._log,
                limits=self._limits,
                tls=self._tls,
                credentials=credentials,
            )
        except ValueError as error:
            return StillbornTransport(f"{name}: {error}", emit)

    def _pools_of(self, spec: BackendSpec) -> _Pools:
        """Those of this server as it is configured now; one that was configured otherwise loses its own."""
        pools = self._pools.get(spec.name)
        if pools is None or pools.target != spec.target:
            if pools is not None:
                pools.close()
            calls, streams = self._pool_limits, self._pool_limits or PoolLimits(connections=STREAMS)
            crashed = partial(self._crashed, spec.name)
            pools = _Pools(
                spec.target,
                Pool(
                    calls,
                    nursery=self._nursery,
                    on_crash=crashed,
                    watch=self._watch,
                    tls=self._tls,
                    connect=self._dial,
                ),
                Pool(
                    streams,
                    nursery=self._nursery,
                    on_crash=crashed,
                    watch=self._watch,
                    tls=self._tls,
                    connect=self._dial_stream,
                    has_room=self._has_room_for_stream,
                ),
            )
            self._pools[spec.name] = pools
        return pools

    def _crashed(self, backend: str, error: BaseException) -> None:
        self._log.error("backend_exchange_crashed", backend=backend, exc_info=error)

    async def _dial(self, origin: Origin, tls: SSLContext | None, within: float) -> WireStream:
        """Where all that may be open are, those that are idle give way, and then nobody: one waits for a connection of
        the same server."""
        if not self._has_room():
            raise NoRoomError(f"{self._connections} connections to servers are open already")
        return await dial(origin, tls, within)

    async def _dial_stream(self, origin: Origin, tls: SSLContext | None, within: float) -> WireStream:
        """The same within the share of streams. None comes free soon, so it is not waited for."""
        if self._streams > self._connections // 2:
            for pools in self._pools.values():
                pools.streams.drop_idle()
        if self._streams > self._connections // 2 or not self._has_room():
            raise PoolFullError(
                f"{self._connections} connections to servers, or half as many streams, are open already"
            )
        return await dial(origin, tls, within)

    def _has_room(self) -> bool:
        if self._open > self._connections:
            for pools in self._pools.values():
                pools.drop_idle()
        return self._open <= self._connections

    def _has_room_for_stream(self) -> bool:
        return self._streams < self._connections // 2

    @property
    def _streams(self) -> int:
        """As `_open`, of those for streams."""
        return sum(pools.streams.open for pools in self._pools.values())

    @property
    def _open(self) -> int:
        """That which is about to be opened included."""
        return sum(pools.open for pools in self._pools.values())

    def sweep(self) -> None:
        """Closes what has been idle for too long, also to servers that nobody uses any more."""
        for pools in self._pools.values():
            pools.expire()

    def close(self) -> None:
        """Closes the idle connections."""
        for pools in self._pools.values():
            pools.close()
