"""A tree of actors whose backends' links are the test's own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from actors.exchanges.exchanges import ExchangesActor, Kind
from actors.gate import Gate, ModernActors
from actors.named import Named
from actors.ports import ANONYMOUS, Principal
from actors.protocol.table import Limits
from actors.quotas import Shares
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_client import ModernClient
from tests.support.peers import FakePeers, Peer


@dataclass
class Modern:
    """The tree, its clients' door, and its backends."""

    gateway: Gateway
    peers: FakePeers
    door: Gate
    supervisor: Shares

    def __getitem__(self, name: str) -> Peer:
        return self.peers[name]

    def client(self, endpoint: str = "", principal: Principal = ANONYMOUS, **more: Any) -> ModernClient:
        """A client; there is nothing to begin."""
        return ModernClient(self.door, self.gateway.nursery, endpoint, principal, **more)


Open = Callable[..., AbstractAsyncContextManager[Modern]]


@asynccontextmanager
async def open_modern(*peers: Peer, **limits: Any) -> AsyncIterator[Modern]:
    """A gateway in front of these."""
    found = FakePeers({peer.name: peer for peer in peers})
    backends = [Backend(peer.name, tools=peer.lists["tools/list"]) for peer in peers]
    async with open_gateway(*backends, **limits) as gateway:
        system, services, actors = gateway.system, gateway.services, gateway.actors
        supervisor = Shares(Limits(sessions=100))
        system.spawn(found.supervisor, "peers")
        system.spawn(supervisor, "modern")

        def make(kind: Kind) -> ExchangesActor:
            key = (kind.principal, kind.bits, kind.affinity)
            return ExchangesActor(kind, services, actors.tree, actors.quotas, found.of(key))

        modern = ModernActors(services, system.registry, supervisor, make)
        door = Gate(services, actors.sessions, Named(system, "router"), modern)
        yield Modern(gateway, found, door, supervisor)


@pytest.fixture
def modern() -> Open:
    """Opens one, with the peers that it is given."""
    return open_modern
