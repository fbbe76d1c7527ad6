"""Everything between a client's socket and a server's tool, in one process, on a clock that jumps.

The gateway is whole: the edge's own serve loop on a unix socket, door, actors, a store that is scripted to fail,
upstream connections, and scripted servers. It has *lives*: one may be drained or killed, and the next begins on the
same store, as a process with Redis does. What a plan breaks is the `victim`'s; the `bystander` must not notice.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import trio

from actors.duplex import Duplex
from actors.ports import ANONYMOUS
from actors.protocol.table import Limits
from actors.runtime import Exit, ExitKind, Ref
from actors.sessions.router import Router, session_key
from gateway.http.app import McpApp
from gateway.http.config import ServeConfig
from gateway.http.security import Security
from gateway.http.serve import Connections, serve
from tests.faults.channel_client import ChannelClient
from tests.faults.client import Client, Exchange, Point, Trouble
from tests.faults.native import NativeBackend
from tests.faults.server import Server
from tests.faults.store import FaultyStore
from tests.support import repeatable
from tests.support.duplex_client import Wire
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Kind

PEOPLE = ("victim", "twin", "bystander", "later")
LONG = 40_000.0
"""Seconds on a clock that jumps: a run that takes longer hangs."""
TURNS = 1000
"""Of the loop, at most, until the router has heard of a crash."""


@dataclass(eq=False)
class Life:
    """One life of the gateway's process."""

    gateway: Gateway
    path: str
    connections: Connections
    stopping: trio.Event
    duplex: Duplex
    scope: trio.CancelScope
    over: trio.Event = field(default_factory=trio.Event)
    baseline: Mapping[str, int] = field(default_factory=dict)
    tasks: int = 0


class World:
    """`fired` says what the plan has done."""

    def __init__(
        self, limits: Limits, kind: Kind, nursery: trio.Nursery, folder: str, first: trio.CancelScope | None
    ) -> None:
        self.limits = limits
        self.nursery = nursery
        self.tools = nursery
        self.store = FaultyStore(limits, nursery)
        self.alpha: Any = NativeBackend("alpha") if kind == "inproc" else Server("alpha", nursery, kind, PEOPLE)
        self.beta = Server("beta", nursery, kind, PEOPLE)
        self.fired: list[str] = []
        self.wrong: list[str] = []
        """What was seen on the way that may not be."""
        self.crashes: list[tuple[str, BaseException]] = []
        self.clients: list[Client] = []
        self.patches = ExitStack()
        self.over = False
        self.channel = ""
        """The era of those who come on a channel, if anybody does."""
        self.acting: trio.Event | None = None
        self.between: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.trouble: Trouble | None = None
        """With the connections of everybody but the bystander."""
        self.life: Life
        self.victim: Client
        self.bystander: Client
        self._folder = folder
        self._lives = 0
        self._first = first

    # Lives

    async def begin(self) -> None:
        """Starts a life."""
        self.life = await self.nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[Life]) -> None:
        self._lives += 1
        path = f"{self._folder}/{self._lives}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(100)
        listener.setblocking(False)
        stopping = trio.Event()
        scope, self._first = self._first or trio.CancelScope(), None
        life: Life | None = None
        with closing(listener), scope:  # also of a life that is ended before it has begun
            async with open_gateway(
                self.alpha, self.beta, store=self.store, cluster=self.store.inner, **vars_of(self.limits)
            ) as gateway:
                connections = Connections(gateway.log)
                life = Life(gateway, path, connections, stopping, Duplex(gateway.door, self.limits), scope)
                table = gateway.services.table
                app = McpApp(
                    gateway.actors.door,
                    Security("127.0.0.1"),
                    self.limits,
                    known=lambda name: name in table.value.endpoints,
                )
                config = ServeConfig.within(self.limits)
                try:
                    async with trio.open_nursery() as nursery:
                        await nursery.start(
                            lambda task_status: serve(
                                app,
                                [listener],
                                config,
                                stop=stopping,
                                log=gateway.log,
                                connections=connections,
                                task_status=task_status,
                            )
                        )
                        await gateway.settle()
                        life.baseline = gateway.left()
                        life.tasks = trio.lowlevel.current_statistics().tasks_living
                        task_status.started(life)
                finally:
                    self.crashes += gateway.crashes
                    gateway.crashes.clear()
        if life is not None:
            life.over.set()

    async def drain(self) -> None:
        """SIGTERM to the end, and a start on the same store."""
        life = self.life
        life.gateway.actors.sessions.draining = True
        life.stopping.set()
        life.duplex.stop()
        await life.gateway.system.drain(self.limits.drain_deadline)
        with trio.move_on_after(3):
            await life.over.wait()
        await self.kill()

    async def kill(self) -> None:
        """The process is gone from one moment to the next, and started again on the same store."""
        self.life.scope.cancel()
        await self.life.over.wait()
        await self.begin()

    async def act_after(self, seconds: float, what: str) -> None:
        """`drain` or `kill`, if the scenario is not over by then."""
        await trio.sleep(seconds)
        if not self.over:
            self.fire(what)
            self.acting = trio.Event()
            await (self.drain() if what == "drain" else self.kill())
            self.acting.set()

    async def finished(self) -> None:
        """The scenario is over, and what was begun with the process, too."""
        self.over = True
        if self.acting is not None:
            await self.acting.wait()

    async def lose_actor(self) -> None:
        """The victim's session goes on in another life. (It is not counted as a crash, of which two end a session: that
        is for plans to bring about.)"""
        key = session_key(self.victim.session or "")
        alive = self.gateway.actors.sessions.table.get(key)
        if alive is not None:
            self._forget_crash(key)
            alive.ref.stop(Exit(ExitKind.CRASHED, detail="scripted"))
            await alive.ref.ended()
            for _ in range(TURNS):  # before it is back, and a plan's own crash is the second one
                if self._forget_crash(key):
                    break
                await trio.lowlevel.checkpoint()
            await self.gateway.settle()

    def _forget_crash(self, key: str) -> bool:
        """Whether there was one."""
        router = self.gateway.system.registry.whereis("router")
        actor = router.cell.actor if router is not None else None
        return isinstance(actor, Router) and actor.crashed.pop(key, None) is not None

    async def revive(self) -> None:
        """Whenever a life ends, the next one begins."""
        while True:
            await self.life.over.wait()
            await self.begin()

    # People

    def client(self, who: str, **more: Any) -> Client:
        """One that has not said anything yet."""
        client = Client(lambda: trio.open_unix_socket(self.life.path), who, **more)
        if self.channel and who != "bystander":
            return self._on_channel(client)
        client.trouble = self._meddle if who != "bystander" else None
        self.clients.append(client)
        return client

    def _on_channel(self, maker: Client) -> Any:
        others = [f"{who}." for who in PEOPLE if who != maker.who]

        def heard(text: str) -> None:
            if any(other in text for other in others):
                self.wrong.append(f"{maker.who} has heard what is another's: {text}")

        def open(wire: Wire) -> None:
            self.nursery.start_soon(self._serve_channel, client, wire)

        client = ChannelClient(maker, self.channel == "modern", open, heard)
        self.clients.append(client)  # type: ignore[arg-type]
        return client

    async def _serve_channel(self, client: ChannelClient, wire: Wire) -> None:
        """As an edge does, which ends with its life."""
        life = self.life
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after, life, nursery.cancel_scope)
            await life.duplex(wire, client.target.removeprefix("/mcp").removeprefix("/"), ANONYMOUS)
            nursery.cancel_scope.cancel()
        wire.ended.set()
        if client.wire in (wire, None):
            client.lost()

    async def _cancel_after(self, life: Life, scope: trio.CancelScope) -> None:
        await life.over.wait()
        scope.cancel()

    async def _meddle(self, point: Point, exchange: Exchange) -> None:
        if point == "event" and exchange.after is None and (id := exchange.events[-1].id) is not None:
            self._look_in_log(exchange, id)
        if self.trouble is not None:
            await self.trouble(point, exchange)

    def _look_in_log(self, exchange: Exchange, id: str) -> None:
        """What is on the wire was acknowledged before. (A replay reads what is in the log, acknowledged or not.)"""
        stream, _, position = id.partition(":")
        place = (session_key(exchange.session), stream, int(position.partition("-")[2]))
        if exchange.session and place not in self.store.said:
            self.wrong.append(f"{id} was on the wire before it was in the log: {exchange!r}")

    def is_victims(self, key: str) -> bool:
        """Whether this session is the victim's, or one of somebody who is not the bystander."""
        return self.bystander.session is None or key != session_key(self.bystander.session)

    @property
    def bystanders_actor(self) -> Ref | None:
        """Of the present life."""
        alive = self.gateway.actors.sessions.table.get(session_key(self.bystander.session or ""))
        return alive.ref if alive is not None else None

    @property
    def gateway(self) -> Gateway:
        """Of the present life."""
        return self.life.gateway

    @property
    def exchanges(self) -> list[Exchange]:
        """The whole transcript."""
        return [exchange for client in self.clients for exchange in client.exchanges]

    def executions(self, key: str) -> int:
        """How often the call with this key reached a tool."""
        return sum(server.executions[key] for server in (self.alpha, self.beta))

    # Trouble

    def fire(self, what: str) -> None:
        """The plan has done something."""
        self.fired.append(what)

    def patch(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces a method of a class, until the world ends."""
        self.patches.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))


def vars_of(limits: Limits) -> dict[str, Any]:
    """As keywords."""
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}


@asynccontextmanager
async def open_world(
    kind: Kind = "http", limits: Mapping[str, Any] | None = None, first: trio.CancelScope | None = None
) -> AsyncIterator[World]:
    """A world with its first life, which ends when `first` is cancelled."""
    with tempfile.TemporaryDirectory(prefix="stagedoor-faults-") as folder:
        async with trio.open_nursery() as nursery:
            world = World(replace(Limits(), **(limits or {})), kind, nursery, folder, first)
            with world.patches:
                await world.begin()
                try:
                    yield world
                finally:
                    for exchange in world.exchanges:
                        exchange.stream.socket.close()
                world.life.scope.cancel()
                await world.life.over.wait()
                nursery.cancel_scope.cancel()


def run(fn: Callable[[], Awaitable[None]]) -> None:
    """On a loop and a clock of its own, within `LONG`, in the same order every time."""

    async def main() -> None:
        with trio.fail_after(LONG):
            await fn()

    repeatable.run(main)
