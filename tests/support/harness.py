"""The whole tree of actors in memory, on a clock that jumps: no sockets, no processes, no threads.

    async with open_gateway(Backend("alpha"), Backend("beta", kind="http")) as gateway:
        client = await gateway.connect()                 # /mcp, all backends
        assert await client.tool("alpha__echo", text="hi") == "alpha: hi"
        other = await gateway.connect("beta")            # /mcp/beta, as it is

Several replicas over one memory, any of which can be killed or stopped in the middle of anything:

    async with open_replicas(3, Backend("alpha", kind="http")) as (one, two, three):
        client = await one.connect("alpha")
        client.to(two)                                   # what it sends from now on comes to another replica
        await one.pause()                                # SIGSTOP, and `one.kill()` is SIGKILL
        ...
        await one.resume()
        two.store.replica.post_office = lambda to, letter: ()    # its mail is lost

Use the `autojump_clock` fixture with it (or `tests.support.cancel`, which brings a clock of its own). On the way out
it checks that no actor crashed; `gateway.crashes.clear()` in a test that makes one crash on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from traceback import format_exception
from typing import Any
from weakref import WeakSet

import trio
from trio.testing import wait_all_tasks_blocked

from actors import ports
from actors.endpoints.catalogue import Catalogue
from actors.ports import (
    ANONYMOUS,
    Answer,
    Cluster,
    Delete,
    Door,
    Get,
    ListStore,
    Post,
    Principal,
    Reply,
    Store,
    TransportEvent,
)
from actors.protocol.instruments import INSTRUMENTS
from actors.protocol.table import BackendSpec, Endpoint, Limits, Table
from actors.runtime import System, open_system
from actors.runtime.boundary import unwrapped
from actors.runtime.dispatcher import Runnable
from actors.services import Services, TableCell
from actors.tree import GatewayActors
from gateway.sealing import AesSealer
from gateway.store.buckets import MemoryBuckets
from gateway.store.memory import MemoryStore
from tests.support.door_client import Client
from tests.support.mcp_backend import Backend
from tests.support.scripted import ScriptedTransport

IDENTITY = b'{"name":"stagedoor","version":"test"}'


class RecordingTelemetry:
    """Keeps what was measured, and refuses what no instrument declares."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self.observed: list[tuple[str, float, dict[str, str]]] = []
        self.traces: list[tuple[str, str]] = []
        """Instruments and the traces that their observations belong to, where they belong to one."""

    def count(self, name: str, labels: tuple[str, ...] = (), amount: int = 1) -> None:
        self._check(name, "counter", labels)
        self.counts[name, labels] += amount

    def gauge(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self._check(name, "gauge", labels)
        self.gauges[name, labels] = value

    def observe(self, name: str, seconds: float, labels: tuple[str, ...] = (), trace: str = "") -> None:
        if trace:
            self.traces.append((name, trace))
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
        for label, value in zip(instrument.labels, labels, strict=True):
            assert value in instrument.values.get(label, (value,)), f"{name} is not declared to say {label}={value}"


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
        self._transports: WeakSet[ScriptedTransport] = WeakSet()
        self._cut = False

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> ScriptedTransport:
        transport = self._backends[spec.name].connect(spec, lambda event: self._cut or emit(event))
        self._transports.add(transport)
        return transport

    def cut(self) -> None:
        """The process is gone: its connections break, and nothing goes either way any more."""
        self._cut = True
        for transport in list(self._transports):
            transport.end("aborted", "the gateway was killed")


def table_of(*backends: Backend, groups: Mapping[str, tuple[str, ...]] | None = None, **members: Any) -> Table:
    """`/mcp` over all of them, `/mcp/<name>` for each, and the groups."""
    names = tuple(backend.name for backend in backends)
    endpoints = {"": Endpoint("", "aggregate", names)}
    endpoints |= {name: Endpoint(name, "transparent", (name,)) for name in names}
    endpoints |= {name: Endpoint(name, "aggregate", of) for name, of in (groups or {}).items()}
    members.setdefault("digest", " ".join(names))
    return Table({backend.name: backend.spec for backend in backends}, endpoints, **members)


@dataclass
class Life:
    """Of the process of one replica among several."""

    store: MemoryStore
    connector: Connector
    scope: trio.CancelScope
    over: trio.Event = field(default_factory=trio.Event)
    running: trio.Event = field(default_factory=trio.Event)
    held: list[Runnable] = field(default_factory=list)


@dataclass(frozen=True)
class Front:
    """The door of a process that may stand still."""

    life: Life
    door: Door

    async def post(self, post: Post) -> Reply:
        await self.life.running.wait()
        return await self.door.post(post)

    async def get(self, get: Get) -> Reply:
        await self.life.running.wait()
        return await self.door.get(get)

    async def delete(self, delete: Delete) -> Answer:
        await self.life.running.wait()
        return await self.door.delete(delete)

    def client_gone(self, affinity: str) -> None:
        self.door.client_gone(affinity)


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
    life: Life | None = None
    """Among several: of its process."""

    def client(self, endpoint: str = "", principal: Principal = ANONYMOUS, **more: Any) -> Client:
        """A client that has not said anything yet; see `Client` for the rest."""
        client = Client(self.door, self.nursery, endpoint, principal, **more)
        self.clients.append(client)
        return client

    async def connect(self, endpoint: str = "", principal: Principal = ANONYMOUS, **more: Any) -> Client:
        """A client with its handshake done."""
        client = self.client(endpoint, principal, **more)
        await client.initialize()
        return client

    @property
    def door(self) -> Door:
        """Where requests come in."""
        return self.actors.door if self.life is None else Front(self.life, self.actors.door)

    async def settle(self) -> None:
        """Until nothing is left to do without the clock."""
        await wait_all_tasks_blocked()

    # What happens to the process of one of several

    def kill(self, *, at_once: bool = False) -> None:
        """It is no more: its connections break, to clients and to servers, and nothing that it had under way is done.
        The others find out when its lease has run out; `at_once`: at once, as when a supervisor saw it end."""
        assert self.life is not None
        self.life.connector.cut()
        self.life.store.kill(at_once=at_once)
        self.life.scope.cancel()

    async def pause(self) -> None:
        """It stands still, after what can be done without the clock: who sends it a request gets no answer."""
        assert self.life is not None
        await self.settle()
        self.life.running = trio.Event()
        self.life.store.replica.pause()
        self.system.dispatcher.schedule = self.life.held.append  # type: ignore[method-assign]

    async def resume(self) -> None:
        """It goes on where it stood, and finds out afterwards what became of its lease."""
        assert self.life is not None
        del self.system.dispatcher.schedule  # type: ignore[method-assign]
        while self.life.held:
            self.system.dispatcher.schedule(self.life.held.pop(0))
        self.life.store.replica.resume()
        self.life.running.set()
        await self.settle()

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
            "upstreams": len(self.actors.tree.upstreams),
        }


@asynccontextmanager
async def open_gateway(
    *backends: Backend,
    groups: Mapping[str, tuple[str, ...]] | None = None,
    store: Store | None = None,
    cluster: Cluster | None = None,
    connector: ports.Connector | None = None,
    jitter: float | Callable[[], float] = 0.0,
    lists: ListStore | None = None,
    prestart: bool = False,
    overloaded: bool = False,
    observer: ports.Observer | None = None,
    audit: ports.Audit = ports.NO_AUDIT,
    buckets: ports.Buckets | None = None,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway in front of these backends, reached by this connector if one is given; `overloaded`: its loop is late.
    `cluster` is the store, unless that has another one. Further keywords are `Limits`."""
    bounds = Limits(**limits)
    if store is None:
        store = MemoryStore(bounds, trio.current_time)
    by_name = {backend.name: backend for backend in backends}
    telemetry, log = RecordingTelemetry(), RecordingLog()
    services = Services(
        store=store,
        cluster=cluster if cluster is not None else store,  # type: ignore[arg-type]
        connector=connector if connector is not None else Connector(by_name),
        sealer=AesSealer([b"test"]),
        telemetry=telemetry,
        log=log,
        limits=bounds,
        table=TableCell(table_of(*backends, groups=groups)),
        jitter=jitter if callable(jitter) else lambda: jitter,
        identity=IDENTITY,
        lists=lists,
        wall=trio.current_time,
        observer=observer,
        audit=audit,
        buckets=buckets or getattr(store, "buckets", None) or MemoryBuckets(trio.current_time),
    )
    crashes: list[tuple[str, BaseException]] = []

    def crashed(name: str, error: BaseException) -> None:
        error.add_note("".join(format_exception(error)))  # the actor's frames are let go of
        crashes.append((name, error))

    async with open_system(on_crash=crashed) as system:
        actors = GatewayActors(system, services, lambda: overloaded, prestart=prestart)
        async with trio.open_nursery() as nursery:
            gateway = Gateway(by_name, system, services, actors, services.store, telemetry, log, crashes, nursery)
            await gateway.settle()  # what is always there is there now
            yield gateway
            nursery.cancel_scope.cancel()
    _check(crashes)


def _check(crashes: list[tuple[str, BaseException]]) -> None:
    if crashes:
        raise ExceptionGroup("actors crashed", [e if isinstance(e, Exception) else RuntimeError(e) for _, e in crashes])


@asynccontextmanager
async def open_replicas(count: int, *backends: Backend, **options: Any) -> AsyncIterator[list[Gateway]]:
    """So many gateways on one memory, in front of the same backends; options as of `open_gateway`."""
    async with open_replica_maker(*backends, **options) as start:
        yield [await start() for _ in range(count)]


@asynccontextmanager
async def open_replica_maker(*backends: Backend, **options: Any) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Starts gateways on one memory, one with each call, of which those that were not killed end with the block. What
    a call is given are options for this one; `info` is what it says of itself."""
    bounds = Limits(**{name: value for name, value in options.items() if name in Limits.__dataclass_fields__})
    first = MemoryStore(bounds, trio.current_time)
    started: list[Gateway] = []

    async def start(*other: Backend, info: Mapping[str, Any] | None = None, **more: Any) -> Gateway:
        store = first.beside(info) if started or info else first
        gateway: Gateway = await nursery.start(_live, store, other or backends, {**options, **more})
        started.append(gateway)
        return gateway

    try:
        async with trio.open_nursery() as nursery:
            yield start
            for gateway in started:
                assert gateway.life is not None
                gateway.life.over.set()
    except BaseExceptionGroup as group:
        raise unwrapped(group) from None


async def _live(
    store: MemoryStore, backends: Sequence[Backend], options: Mapping[str, Any], task_status: trio.TaskStatus[Gateway]
) -> None:
    """The life of one replica's process."""
    connector = Connector({backend.name: backend for backend in backends})
    with trio.CancelScope() as scope:
        async with open_gateway(*backends, **options, store=store, connector=connector) as gateway:
            gateway.life = Life(store, connector, scope)
            gateway.life.running.set()
            gateway.nursery.start_soon(store.replica.run)
            task_status.started(gateway)
            await gateway.life.over.wait()
    _check(gateway.crashes)
