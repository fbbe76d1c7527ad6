"""A tree of actors whose backends' upstream connections are the test's own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from actors.gate import Gate, ModernActors
from actors.modern.requests import Kind, ModernRequests
from actors.named import NamedRef
from actors.ports import ANONYMOUS, Principal
from actors.protocol.table import Limits
from actors.quotas import QuotaSupervisor
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_client import ModernClient
from tests.support.peers import FakePeers, Peer


@dataclass
class Modern:
    """The tree, its clients' door, and its backends."""

    gateway: Gateway
    resolver: FakePeers
    door: Gate
    supervisor: QuotaSupervisor

    def __getitem__(self, name: str) -> Peer:
        return self.resolver[name]

    def client(self, endpoint: str = "", principal: Principal = ANONYMOUS, **more: Any) -> ModernClient:
        """A client; there is nothing to begin."""
        return ModernClient(self.door, self.gateway.nursery, endpoint, principal, **more)


Open = Callable[..., AbstractAsyncContextManager[Modern]]


@asynccontextmanager
async def open_modern(*resolver: Peer, **limits: Any) -> AsyncIterator[Modern]:
    """A gateway in front of these."""
    found = FakePeers({peer.name: peer for peer in resolver})
    backends = [Backend(peer.name, tools=peer.lists["tools/list"]) for peer in resolver]
    async with open_gateway(*backends, **limits) as gateway:
        system, services, actors = gateway.system, gateway.services, gateway.actors
        supervisor = QuotaSupervisor(Limits(sessions=100))
        system.spawn(found.supervisor, "peers")
        system.spawn(supervisor, "modern")

        def make(kind: Kind) -> ModernRequests:
            key = (kind.principal, kind.bits, kind.affinity)
            return ModernRequests(kind, services, actors.tree, actors.quotas, found.of(key))

        modern = ModernActors(services, system.registry, supervisor, make)
        door = Gate(services, actors.sessions, NamedRef(system, "router"), NamedRef(system, "mailer"), modern)
        yield Modern(gateway, found, door, supervisor)


@pytest.fixture
def modern() -> Open:
    """Opens one, with the peers that it is given."""
    return open_modern
