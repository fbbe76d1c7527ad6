"""Which transport belongs to which kind of target.

Composition builds the mapping, so that this folder does not know the adapters of other folders (native servers):

    TargetConnector({StdioTarget: StdioConnector(log), HttpTarget: HttpConnector(log), NativeTarget: native})
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, Literal

import trio

from actors.ports import Connector, Headers, Log, RequestFailed, Transport, TransportClosed, TransportEvent
from actors.protocol.messages import RequestId
from actors.protocol.table import BackendSpec, HttpTarget, StdioTarget, Target
from gateway.backends.bound import BoundTransport
from gateway.backends.guardian import Guardian
from gateway.backends.http_call import HttpLimits
from gateway.backends.modern_http import ModernHttpTransport
from gateway.backends.stdio import StdioLimits, StdioTransport
from gateway.backends.streamable_http import StreamableHttpTransport
from gateway.wire.pool import Pool, PoolLimits

STREAMS: Final = 8192
"""GET streams to one origin: one per session and backend."""


@dataclass(frozen=True, slots=True)
class TargetConnector:
    """Hands each spec to the connector of its target's type. KeyError for a type that was not given."""

    by_target: Mapping[type[Target], Connector]

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        return self.by_target[type(spec.target)].connect(spec, emit, modern)


class StdioConnector:
    """Starts child processes, at most `processes` at a time over all backends.

    Needs `aclose` once all its transports have ended.
    """

    def __init__(self, log: Log, *, processes: int = 200, limits: StdioLimits | None = None) -> None:
        self._log = log
        self._limits = limits or StdioLimits()
        self._slots = trio.CapacityLimiter(processes)
        self._guardian = Guardian()

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> StdioTransport:
        assert isinstance(spec.target, StdioTarget)
        return StdioTransport(
            spec.name,
            spec.target,
            emit,
            guardian=self._guardian,
            slots=self._slots,
            log=self._log,
            limits=self._limits,
        )

    async def aclose(self) -> None:
        """Ends the guardian process."""
        await self._guardian.aclose()


class HttpConnector:
    """Reaches HTTP endpoints over two pools: one for calls, one for the GET streams, which stay open for long.

    Needs `close` once all its transports have ended.
    """

    def __init__(
        self,
        log: Log,
        *,
        limits: HttpLimits | None = None,
        pool_limits: PoolLimits | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._log = log
        self._limits = limits or HttpLimits()
        self._calls = Pool(pool_limits, tls=tls)
        self._streams = Pool(pool_limits or PoolLimits(connections=STREAMS), tls=tls)

    def __repr__(self) -> str:
        return f"<HttpConnector calls: {self._calls!r} streams: {self._streams!r}>"

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        assert isinstance(spec.target, HttpTarget)
        transport = ModernHttpTransport if modern else StreamableHttpTransport
        try:
            return transport(
                spec.name,
                spec.target,
                emit,
                calls=self._calls,
                streams=self._streams,
                log=self._log,
                limits=self._limits,
            )
        except ValueError as error:
            return StillbornTransport(f"{spec.name}: {error}", emit)

    def close(self) -> None:
        """Closes the idle connections."""
        self._calls.close()
        self._streams.close()


class StillbornTransport(BoundTransport):
    """Stands for a transport that could not be made; says so and ends."""

    kind: Literal["stdio", "http", "inproc"] = "http"

    def __init__(self, message: str, emit: Callable[[TransportEvent], None]) -> None:
        self._message = message
        self._emit = emit

    async def run(self) -> None:
        await trio.lowlevel.checkpoint()
        self._emit(TransportClosed("config", self._message))

    def send(self, frame: bytes, *, id: RequestId | None = None, tag: int | None = None, headers: Headers = ()) -> None:
        if id is not None:
            self._emit(RequestFailed(id, "config", self._message, "no"))

    def negotiated(self, version: str) -> None: ...

    def listen(self) -> None: ...

    def forget(self, id: RequestId) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...
