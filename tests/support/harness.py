"""The whole tree of actors in memory, on a clock that jumps: no sockets, no processes, no threads.

    async with open_gateway(Backend("alpha"), Backend("beta", kind="http")) as gateway:
        client = await gateway.connect()                 # /mcp, all backends
        assert await client.tool("alpha__echo", text="hi") == "alpha: hi"
        other = await gateway.connect("beta")            # /mcp/beta, as it is

Use the `autojump_clock` fixture with it (or `tests.support.cancel`, which brings a clock of its own). On the way out
it checks that no actor crashed; `gateway.crashes.clear()` in a test that makes one crash on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from traceback import format_exception
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from actors import ports
from actors.endpoints.catalogue import Catalogue
from actors.ports import ANONYMOUS, ListStore, Principal, Store, TransportEvent
from actors.protocol.instruments import INSTRUMENTS
from actors.protocol.table import BackendSpec, Endpoint, Limits, Table
from actors.runtime import System, open_system
from actors.services import Services, TableCell
from actors.tree import GatewayActors
from gateway.backends.scripted import ScriptedTransport
from gateway.sealing import AesSealer
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client
from tests.support.mcp_backend import Backend

IDENTITY = b'{"name":"stagedoor","version":"test"}'


class RecordingTelemetry:
    """Keeps what was measured, and refuses what no instrument declares."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self.observed: list[tuple[str, float, dict[str, str]]] = []

    def count(self, name: str, labels: tuple[str, ...] = (), amount: int = 1) -> None:
        self._check(name, "counter", labels)
        self.counts[name, labels] += amount

    def gauge(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self._check(name, "gauge", labels)
        self.gauges[name, labels] = value

    def observe(self, name: str, seconds: float, labels: tuple[str, ...] = ()) -> None:
        self._check(name, "histogram", labels)
        self.observed.append((name, seconds, dict(zip(INSTRUMENTS[name].labels, labels, strict=True))))

    def total(self, name: str, *labels: str) -> int:
        """A counter over all its label values, or those that begin so."""
        return sum(
            n for (counter, values), n in self.counts.items() if counter == name and values[: len(labels)] == labels
        )

    def observations(self, name: str, **labels: str) -> list[dict[str, str]]:
        """The labels of all observations with these."""
        return [seen for n, _, seen in self.observed if n == name and labels.items() <= seen.items()]

    def _check(self, name: str, kind: str, labels: tuple[str, ...]) -> None:
        instrument = INSTRUMENTS[name]
        assert instrument.kind == kind, f"{name} is a {instrument.kind}"
        assert len(labels) == len(instrument.labels), f"{name} has the labels {instrument.labels}"
        assert all(isinstance(value, str) for value in labels), (name, labels)


class RecordingLog:
    """Keeps what was logged: (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def events(self, event: str) -> list[dict[str, Any]]:
        """The values of all lines with this event."""
        return [values for _, name, values in self.lines if name == event]

    def debug(self, event: str, **values: Any) -> None:
        self.lines.append(("debug", event, values))

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", event, values))

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", event, values))

    def error(self, event: str, **values: Any) -> None:
        self.lines.append(("error", event, values))


class Connector:
    """Passes each connection to the backend that its configuration names."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> ScriptedTransport:
        return self._backends[spec.name].connect(spec, emit)


def table_of(*backends: Backend, groups: Mapping[str, tuple[str, ...]] | None = None, **members: Any) -> Table:
    """`/mcp` over all of them, `/mcp/<name>` for each, and the groups."""
    names = tuple(backend.name for backend in backends)
    endpoints = {"": Endpoint("", "aggregate", names)}
    endpoints |= {name: Endpoint(name, "transparent", (name,)) for name in names}
    endpoints |= {name: Endpoint(name, "aggregate", of) for name, of in (groups or {}).items()}
    return Table({backend.name: backend.spec for backend in backends}, endpoints, **members)


@dataclass
class Gateway:
    """The running tree, and everything it stands on."""

    backends: dict[str, Backend]
    system: System
    services: Services
    actors: GatewayActors
    store: Store
    telemetry: RecordingTelemetry
    log: RecordingLog
    crashes: list[tuple[str, BaseException]]
    nursery: trio.Nursery
    clients: list[Client] = field(default_factory=list)

    def client(self, endpoint: str = "", principal: Principal = ANONYMOUS, **more: Any) -> Client:
        """A client that has not said anything yet; see `Client` for the rest."""
        client = Client(self.actors.door, self.nursery, endpoint, principal, **more)
        self.clients.append(client)
        return client

    async def connect(self, endpoint: str = "", principal: Principal = ANONYMOUS, **more: Any) -> Client:
        """A client with its handshake done."""
        client = self.client(endpoint, principal, **more)
        await client.initialize()
        return client

    async def settle(self) -> None:
        """Until nothing is left to do without the clock."""
        await wait_all_tasks_blocked()

    def change(self, **table: Any) -> None:
        """Replaces parts of the table of backends."""
        before = self.services.table.value
        self.actors.replace_table(replace(before, digest=before.digest + "'", **table))

    @property
    def catalogue(self) -> Catalogue:
        """The actor that keeps the lists."""
        ref = self.actors.tree.catalogue.ref
        assert ref is not None
        assert isinstance(ref.cell.actor, Catalogue)
        return ref.cell.actor

    def left(self) -> dict[str, int]:
        """How much there is of what must go when sessions go: compare it before and after."""
        statistics = self.system.statistics()
        return {
            "actors": statistics.actors,
            "timers": statistics.timers,
            "sessions": len(self.actors.sessions.table),
            "requests": self.actors.quotas.requests.total,
            "streams": sum(self.actors.quotas.streams.values()),
            "links": len(self.actors.tree.upstreams),
        }


@asynccontextmanager
async def open_gateway(
    *backends: Backend,
    groups: Mapping[str, tuple[str, ...]] | None = None,
    store: Store | None = None,
    connector: ports.Connector | None = None,
    jitter: float = 0.0,
    lists: ListStore | None = None,
    prestart: bool = False,
    overloaded: bool = False,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway in front of these backends, reached by this connector if one is given; `overloaded`: its loop is late.
    Further keywords are `Limits`."""
    bounds = Limits(**limits)
    by_name = {backend.name: backend for backend in backends}
    telemetry, log = RecordingTelemetry(), RecordingLog()
    services = Services(
        store=store if store is not None else MemoryStore(bounds, trio.current_time),
        connector=connector if connector is not None else Connector(by_name),
        sealer=AesSealer([b"test"]),
        telemetry=telemetry,
        log=log,
        limits=bounds,
        table=TableCell(table_of(*backends, groups=groups)),
        jitter=lambda: jitter,
        identity=IDENTITY,
        lists=lists,
        wall=trio.current_time,
    )
    crashes: list[tuple[str, BaseException]] = []

    def crashed(name: str, error: BaseException) -> None:
        error.add_note("".join(format_exception(error)))  # the actor's frames are let go of
        crashes.append((name, error))

    async with open_system(on_crash=crashed) as system:
        actors = GatewayActors(system, services, lambda: overloaded, prestart=prestart)
        async with trio.open_nursery() as nursery:
            gateway = Gateway(by_name, system, services, actors, services.store, telemetry, log, crashes, nursery)
            yield gateway
            nursery.cancel_scope.cancel()
    if crashes:
        raise ExceptionGroup("actors crashed", [e if isinstance(e, Exception) else RuntimeError(e) for _, e in crashes])
