"""A whole gateway in the process of the test, in front of servers that want tokens: configured as users do it."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from actors.ports import Asker, Principal, Rights, Sealer
from actors.runtime import open_system
from actors.sessions.session import SessionActor
from actors.tree import GatewayActors
from gateway import lifecycle
from gateway.authorizing import Admission
from gateway.config import load
from gateway.config.settings import Address, Settings
from gateway.http.app import McpApp
from gateway.http.security import Security
from gateway.observability.metrics import Metrics
from gateway.sealing import AesSealer
from gateway.upstream_auth import Authorizing, open_authorizing
from tests.support.modern_wire import ModernWire
from tests.support.store_calls import Lines
from tests.support.trail import Trail
from tests.support.wire_client import AsgiHttp, WireClient

ADDRESS = Address("127.0.0.1", 8080)
SEALER = AesSealer([b"k" * 32])


class Clock:
    """The wall clock, and how far it was put forward."""

    later = 0.0

    def __call__(self) -> float:
        return time.time() + self.later


@dataclass
class Running:
    """One replica."""

    actors: GatewayActors
    authorizing: Authorizing
    http: AsgiHttp
    log: Lines
    metrics: Metrics

    clock: "Clock"
    settings: Settings
    trail: Trail
    """What is told of tokens and accounts."""
    revoked: set[str]
    """Names of those whose access was taken away."""

    def pass_time(self, seconds: float) -> None:
        """By the wall clock."""
        self.clock.later += seconds

    def held(self) -> int:
        """Of how many calls of sessions something is remembered because they had to wait."""
        actors = [alive.ref.cell.actor for alive in self.actors.sessions.table.values()]
        return sum(actor.endpoint.statistics()["held"] for actor in actors if isinstance(actor, SessionActor))

    async def accounts(self, what: str, **options: str) -> tuple[int, dict[str, Any]]:
        """What an operator asks of accounts."""
        table = self.actors.services.table.value
        return await self.authorizing.operate(self.settings, ADDRESS, table, what, options)

    def legacy(self, path: str = "/mcp", **options: Any) -> WireClient:
        return WireClient(self.http, path, **options)

    def modern(self, path: str = "/mcp", **options: Any) -> ModernWire:
        return ModernWire(self.http, path, **options)


@asynccontextmanager
async def open_authorized(
    configuration: Mapping[str, Any], folder: Path, *, store: Any = None, sealer: Sealer = SEALER
) -> AsyncIterator[Running]:
    """Runs until the block ends. `store`: one that it shares with others."""
    file = folder / "stagedoor.json"
    file.write_text(json.dumps(configuration))
    settings = load(file).settings
    log, metrics, limits, clock = Lines(), Metrics(), settings.limits, Clock()
    trail = Trail()
    async with trio.open_nursery() as nursery, lifecycle.open_store("memory:", limits, log) as own:
        store = own if store is None else store
        async with (
            open_authorizing(store.shelf, sealer, log, clock, trail, metrics) as authorizing,
            lifecycle.open_connector(
                log, metrics, limits, credentials=authorizing.credentials, key=authorizing.key
            ) as connector,
            open_system(lifecycle.crash_logger(log, metrics)) as system,
        ):
            cell: list[GatewayActors] = []
            table = lambda: cell[0].services.table.value  # noqa: E731
            changed = lambda principal, backend: cell[0].account_changed(principal, backend)  # noqa: E731
            accounts = authorizing.accounts(lambda: settings, ADDRESS, table, changed)
            services = lifecycle.services_for(
                settings.table, limits, store, connector, sealer, metrics, log, accounts=accounts
            )
            actors = GatewayActors(system, services, prestart=settings.prestart)
            cell.append(actors)

            async def who(token: str) -> Asker | None:
                found = next((name for name, known in settings.auth.tokens if known == token), None)
                if found is None:
                    return None
                return Asker(Principal(found), settings.auth.rights.get(found, Rights("static:", found)))

            revoked: set[str] = set()
            gone = lambda asker: asker.principal.name in revoked  # noqa: E731
            pages = authorizing.pages(lambda: settings, ADDRESS, table, who, gone)
            security = Security("127.0.0.1", tokens=dict(settings.auth.tokens) or None)
            note = authorizing.noting(table)
            authorize = Admission(ADDRESS, nursery, log, metrics, note=note)(settings)
            app = McpApp(
                actors.door,
                security,
                limits,
                authorize=authorize,
                known=lambda name: name in settings.table.endpoints,
                pages=pages,
            )
            yield Running(actors, authorizing, AsgiHttp(app, nursery), log, metrics, clock, settings, trail, revoked)
        nursery.cancel_scope.cancel()
