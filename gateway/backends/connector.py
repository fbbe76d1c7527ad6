"""Which transport belongs to which kind of target.

Composition builds the mapping, so that this folder does not know the adapters of other folders (native servers):

    TargetConnector({StdioTarget: StdioConnector(log), HttpTarget: HttpConnector(pools, log), NativeTarget: native})
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from actors.ports import Connector, Log, Transport, TransportEvent
from actors.protocol.table import BackendSpec, StdioTarget, Target
from gateway.backends.guardian import Guardian
from gateway.backends.stdio import StdioLimits, StdioTransport


@dataclass(frozen=True, slots=True)
class TargetConnector:
    """Hands each spec to the connector of its target's type. KeyError for a type that was not given."""

    by_target: Mapping[type[Target], Connector]

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None]) -> Transport:
        return self.by_target[type(spec.target)].connect(spec, emit)


class StdioConnector:
    """Starts child processes, at most `processes` at a time over all backends.

    Needs `aclose` once all its transports have ended.
    """

    def __init__(self, log: Log, *, processes: int = 200, limits: StdioLimits | None = None) -> None:
        self._log = log
        self._limits = limits or StdioLimits()
        self._slots = trio.CapacityLimiter(processes)
        self._guardian = Guardian()

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None]) -> StdioTransport:
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
