"""A whole gateway in the process of the test: edge, actors, store and transports, with scripted backends behind it.

A `Cell` says which store and which transport; without sockets and threads time is a clock that jumps. What the
backends, the actors or the log found wrong is raised at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import trio

from actors.ports import Store
from actors.protocol.table import BackendSpec, Endpoint, HttpTarget, Limits, Table, Target
from actors.runtime import System, open_system
from actors.sessions.session import SessionActor
from actors.tree import GatewayActors
from gateway import lifecycle
from gateway.http.app import McpApp
from gateway.http.security import Security
from gateway.store.memory import MemoryStore
from gateway.store.redis import open_redis_store
from tests.interaction.backend import Backend
from tests.interaction.era_backend import ModernBackend
from tests.interaction.one_channel import OneChannel, OneSession
from tests.interaction.transports import ChannelConnector, Kind, reached, shared_origin
from tests.support.modern_rules import check_no_modern_fields
from tests.support.modern_wire import ModernWire
from tests.support.schemas import NEWEST
from tests.support.wire_client import WAIT, AsgiHttp, Message, WireClient

REAL_TIME = Limits(stream_after=0.02, list_deadline=3.0, server_request_wait=0.3, drain_deadline=3.0)
"""Where time is real, what a test waits for must come soon."""


Era = Literal["legacy", "modern", "dual"]
"""Of a backend: with sessions, without, or both."""
Way = Literal["http", "channel"]
"""By which a client reaches the gateway: `channel` is what WebSocket, HTTP+SSE and stdio are."""


class Cell(NamedTuple):
    """One place of the matrix; the revision is the client's."""

    revision: str = NEWEST
    store: Literal["memory", "redis"] = "memory"
    transport: Kind = "inproc"
    era: Era = "legacy"
    by: Way = "http"

    @property
    def jumps(self) -> bool:
        """Whether no socket and no thread is involved."""
        return self.store == "memory" and self.transport in ("inproc", "channel")

    def __str__(self) -> str:
        era = (self.era,) if self.era != "legacy" else ()
        return "-".join((*self[:3], *era, *(("by", self.by) if self.by != "http" else ())))


class Route(NamedTuple):
    """An endpoint from which the backend `alpha` is reached, and what its names are there."""

    path: str
    name_prefix: str = ""
    uri_prefix: str = ""
    label: str = ""

    def name(self, name: str) -> str:
        return self.name_prefix + name

    def uri(self, uri: str) -> str:
        return self.uri_prefix + uri


AGGREGATE = Route("/mcp", "alpha__", "alpha+", "[alpha] ")
TRANSPARENT = Route("/mcp/alpha")
ROUTES = (AGGREGATE, TRANSPARENT)


class Telemetry:
    """Counts."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def count(self, name: str, labels: tuple[str, ...] = (), amount: int = 1) -> None:
        self.counts[name, labels] += amount

    def gauge(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        pass

    def observe(self, name: str, seconds: float, labels: tuple[str, ...] = (), trace: str = "") -> None:
        pass

    def total(self, name: str, *labels: str) -> int:
        """All counts of this name, with these labels if any are given."""
        return sum(n for (found, values), n in self.counts.items() if found == name and labels in ((), values))


class Lines:
    """A log that is kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []

    def debug(self, event: str, **values: Any) -> None:
        self.lines.append(("debug", event, values))

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", event, values))

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", event, values))

    def error(self, event: str, **values: Any) -> None:
        self.lines.append(("error", event, values))

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [values for _, name, values in self.lines if name == event]


@dataclass
class _Life:
    """One life of the gateway's process."""

    actors: GatewayActors
    system: System
    app: McpApp
    over: trio.Event
    ended: trio.Event


class Stage:
    """The gateway, its backends, its clients."""

    def __init__(
        self, cell: Cell, limits: Limits, tokens: Mapping[str, str] | None, nursery: trio.Nursery, redis_url: str
    ) -> None:
        self.cell = cell
        self.limits = limits
        self.tokens = tokens
        self.nursery = nursery
        self.telemetry = Telemetry()
        self.log = Lines()
        self.backends: dict[str, Backend] = {}
        self.clients: list[WireClient | ModernWire] = []
        self.channels: list[OneChannel | OneSession] = []
        self.faults: list[BaseException] = []
        self.crashes: list[tuple[str, BaseException]] = []
        self.http: AsgiHttp
        self.overloaded = False
        self.sealer = lifecycle.ephemeral_sealer()
        self.later = 0.0
        """Seconds by which the wall clock goes ahead."""
        self._redis_url = redis_url
        self._memory: MemoryStore | None = None
        self._specs: dict[str, BackendSpec] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._reached = AsyncExitStack()
        self._life: _Life

    # Setting

    async def backend(
        self,
        name: str = "alpha",
        *,
        transport: Kind | None = None,
        era: Era | None = None,
        revision: str = NEWEST,
        capabilities: Mapping[str, Any] | None = None,
        instructions: str | None = None,
        **spec: Any,
    ) -> Backend:
        """One more backend, on `/mcp` and on `/mcp/<name>`; `spec` are members of its BackendSpec."""
        era = era or self.cell.era
        make = Backend if era == "legacy" else partial(ModernBackend, sessions=era == "dual")
        backend = make(name, self.nursery, revision=revision, capabilities=capabilities, instructions=instructions)
        target = await self._reached.enter_async_context(
            reached(backend, transport or self.cell.transport, self.nursery)
        )
        self.backends[name] = backend
        self._specs[name] = BackendSpec(name, target, **spec)
        self._replace_table()
        return backend

    async def share_origin(self, *names: str) -> None:
        """These backends over HTTP move to one host and port, each to a path of its own."""
        backends = {f"/{name}": self.backends[name] for name in names}
        origin = await self._reached.enter_async_context(shared_origin(backends, self.nursery))
        for name in names:
            self._specs[name] = replace(self._specs[name], target=HttpTarget(f"{origin}/{name}"))
        self._replace_table()

    async def break_connections(self, backend: Backend) -> None:
        """Over HTTP: each answer under way breaks off."""
        for connection in list(backend.connections):
            connection.hang_up()

    def target(self, name: str, target: Target, **spec: Any) -> None:
        """A backend that is somewhere else, or nowhere."""
        self._specs[name] = BackendSpec(name, target, **spec)
        self._replace_table()

    def group(self, name: str, *backends: str) -> None:
        """An aggregate of some backends at `/mcp/<name>`."""
        self._groups[name] = backends
        self._replace_table()

    def remove(self, name: str) -> None:
        """A backend leaves the configuration."""
        del self._specs[name]
        self._replace_table()

    def _replace_table(self) -> None:
        self.actors.services.table.value = self._table()

    def _table(self) -> Table:
        endpoints = {name: Endpoint(name, "transparent", (name,)) for name in self._specs}
        endpoints |= {name: Endpoint(name, "aggregate", members) for name, members in self._groups.items()}
        endpoints[""] = Endpoint("", "aggregate", tuple(self._specs))
        return Table(dict(self._specs), endpoints, digest=",".join(self._specs))

    @property
    def actors(self) -> GatewayActors:
        """Of the present life."""
        return self._life.actors

    # Clients

    def client(self, path: str = "/mcp", **options: Any) -> WireClient:
        """A client of the cell's revision that has not said anything yet."""
        http: Any = self.http
        if self.cell.by == "channel":
            http = OneSession(self, self.tokens or {})
            self.channels.append(http)
        client = _Client(self, http, path, **{"revision": self.cell.revision, **options})
        self.clients.append(client)
        return client

    def modern(self, path: str = "/mcp", *, by: Way | None = None, **options: Any) -> ModernWire:
        """A client without sessions; `by` what the cell says, unless a test does."""
        http: Any = self.http
        if (by or self.cell.by) == "channel":
            http = OneChannel(self, self.tokens or {})
            self.channels.append(http)
        client = ModernWire(http, path, **options)
        self.clients.append(client)
        return client

    async def modern_backend(self, name: str = "alpha", **options: Any) -> ModernBackend:
        """A backend that speaks the era without sessions."""
        era = "modern" if self.cell.era == "legacy" else self.cell.era
        backend = await self.backend(name, **{"era": era, **options})
        assert isinstance(backend, ModernBackend)
        return backend

    async def connect(self, path: str = "/mcp", **options: Any) -> WireClient:
        """A client that is past the handshake."""
        client = self.client(path, **options)
        await client.connect()
        return client

    # Lives

    async def begin(self) -> None:
        """Starts a life of the gateway."""
        self._life = await self.nursery.start(self._live)
        app = self._life.app
        if hasattr(self, "http"):
            self.http.app = app
        else:
            self.http = AsgiHttp(app, self.nursery)

    async def _live(self, task_status: trio.TaskStatus[_Life]) -> None:
        over, ended = trio.Event(), trio.Event()
        async with (
            lifecycle.open_connector(self.log, self.telemetry, self.limits) as connector,
            self._opened_store() as store,
            open_system(self._crashed) as system,
        ):
            connector = ChannelConnector(connector, self.log)
            services = lifecycle.services_for(
                self._table(), self.limits, store, connector, self.sealer, self.telemetry, self.log
            )
            services = replace(services, wall=lambda: time.time() + self.later)
            actors = GatewayActors(system, services, lambda: self.overloaded)
            security = Security("127.0.0.1", tokens=self.tokens)
            table = services.table
            app = McpApp(actors.door, security, self.limits, known=lambda name: name in table.value.endpoints)
            task_status.started(_Life(actors, system, app, over, ended))
            await over.wait()
        ended.set()

    @asynccontextmanager
    async def _opened_store(self) -> AsyncIterator[Store]:
        if self.cell.store == "memory":
            if self._memory is None:
                self._memory = MemoryStore(self.limits, trio.current_time)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep, self._memory)
                yield self._memory
                nursery.cancel_scope.cancel()
        else:
            async with open_redis_store(self._redis_url, self.limits, log=self.log, on_lost=self._lost) as store:
                yield store

    async def _sweep(self, store: MemoryStore) -> None:
        while True:
            await trio.sleep(lifecycle.SWEEP)
            store.sweep(trio.current_time())

    def _crashed(self, name: str, error: BaseException) -> None:
        self.crashes.append((name, error))

    def _lost(self, reason: str) -> None:
        self.faults.append(RuntimeError(f"the store was lost: {reason}"))

    async def drain(self) -> None:
        """SIGTERM, to the end of the process."""
        self.actors.sessions.draining = True
        await self._life.system.drain(self.limits.drain_deadline)
        await self._leave()

    async def _leave(self) -> None:
        """All actors end at once; nothing is said to anybody."""
        self._life.over.set()
        await self._life.ended.wait()

    async def recorded(self) -> None:
        """Until every session's record is written."""
        with trio.fail_after(WAIT):
            for alive in self.actors.sessions.table.values():
                session = alive.ref.cell.actor
                assert isinstance(session, SessionActor)
                while not session.record.settled:
                    await trio.sleep(0)

    async def restart(self) -> None:
        """A drain, and a start on the same store."""
        await self.drain()
        self._cut_all()
        await self.begin()

    async def crash(self) -> None:
        """The process is gone from one moment to the next, and started again on the same store."""
        await self._leave()
        self._cut_all()
        await self.begin()

    def _cut_all(self) -> None:
        self.http.cut_all()
        for channel in self.channels:
            channel.cut_all()

    async def finish(self) -> None:
        """The end of the test."""
        await self._leave()
        await self._reached.aclose()

    def verify(self) -> None:
        """Raises what was found wrong."""
        faults = [*self.faults, *(fault for backend in self.backends.values() for fault in backend.faults)]
        faults += [error for _, error in self.crashes]
        self._look_for_tokens()
        if faults:
            raise ExceptionGroup("found while the test ran", [_plain(fault) for fault in faults])

    def _look_for_tokens(self) -> None:
        """No token of a client may be seen by a backend (authorization, "Token Handling")."""
        for backend in self.backends.values():
            seen = repr([connection.received for connection in backend.connections]) + repr(backend.headers)
            for token in (self.tokens or {}).values():
                assert token not in seen, f"{backend.name} has seen a client's token"
            for client in self.clients:
                assert client.session is None or client.session not in seen, f"{backend.name} has seen a session id"


class _Client(WireClient):
    """A client with a session: where there are servers of the other era, it must not notice."""

    def __init__(self, stage: Stage, http: AsgiHttp, path: str, **options: Any) -> None:
        super().__init__(http, path, **options)
        self._stage = stage

    def check(self, message: Message, *, own: bool = False, replayed: bool = False) -> None:
        super().check(message, own=own, replayed=replayed)
        if not self.trusting and any(backend.modern for backend in self._stage.backends.values()):
            check_no_modern_fields(message)


def _plain(fault: BaseException) -> Exception:
    return fault if isinstance(fault, Exception) else RuntimeError(repr(fault))


@asynccontextmanager
async def open_stage(
    cell: Cell, *, limits: Mapping[str, Any], tokens: Mapping[str, str] | None, redis_url: str
) -> AsyncIterator[Stage]:
    """A stage for one test."""
    bounds = replace(Limits() if cell.jumps else REAL_TIME, **limits)
    async with trio.open_nursery() as nursery:
        stage = Stage(cell, bounds, tokens, nursery, redis_url)
        await stage.begin()
        yield stage
        await stage.finish()
        nursery.cancel_scope.cancel()
    stage.verify()
