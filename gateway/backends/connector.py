"""Which transport belongs to which kind of target.

Composition builds the mapping, so that this folder does not know the adapters of other folders (native servers):

    TargetConnector({StdioTarget: StdioConnector(log), HttpTarget: HttpConnector(log), NativeTarget: native})
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from actors.ports import Connector, Log, Transport, TransportEvent
from actors.protocol.table import BackendSpec, StdioTarget, Target
from gateway.backends.credentials import Credentials, ProcessKey
from gateway.backends.guardian import Guardian
from gateway.backends.stdio import Offers, StdioLimits, StdioTransport
from gateway.backends.stillborn import StillbornTransport
from gateway.backends.warm import Pools, Warm

CONNECTIONS: Final = 16_384
"""To all servers together, calls and streams."""
STREAMS: Final = 8192
"""GET streams to one server: one per session."""


CredentialsOf: TypeAlias = Callable[[BackendSpec], Credentials | None]


KeyOf: TypeAlias = Callable[[BackendSpec], ProcessKey | None]


def no_credentials(spec: BackendSpec) -> Credentials | None:
    """The headers are all there is."""
    return None


def no_key(spec: BackendSpec) -> ProcessKey | None:
    """The environment that is configured is all there is."""
    return None


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

    def __init__(
        self,
        log: Log,
        *,
        processes: int = 200,
        limits: StdioLimits | None = None,
        redact: Callable[[str], str] = str,
        key: KeyOf = no_key,
    ) -> None:
        """`key`: what of a child's environment is its user's alone."""
        self._redact = redact
        self._key = key
        self._log = log
        self._limits = limits or StdioLimits()
        self._slots = trio.CapacityLimiter(processes)
        self._guardian = Guardian()
        self._offers = Offers()

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        assert isinstance(spec.target, StdioTarget)
        key = self._key(spec)
        if spec.auth is not None and key is None:
            return StillbornTransport(f"{spec.name} needs a key of its user's, and there are no users", emit)
        return StdioTransport(
            spec.name,
            spec.target,
            emit,
            guardian=self._guardian,
            slots=self._slots,
            log=self._log,
            limits=self._limits,
            redact=self._redact,
            offers=self._offers,
            key=key,
        )

    async def keep_warm(self, pools: Pools, jitter: Callable[[], float]) -> None:
        """Starts processes of pools ahead, until it is cancelled."""
        warm = Warm(
            pools,
            self._offers,
            guardian=self._guardian,
            slots=self._slots,
            log=self._log,
            limits=self._limits,
            jitter=jitter,
        )
        await warm.run()

    async def aclose(self) -> None:
        """Ends the guardian process."""
        await self._guardian.aclose()
