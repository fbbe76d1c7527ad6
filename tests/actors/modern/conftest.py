"""A tree of actors whose backends' links are the test's own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from actors.exchanges.exchanges import ExchangesActor, Kind
from actors.modern_door import ModernDoor
from actors.ports import ANONYMOUS, Answer, Post, Principal, Reply
from actors.protocol import classify
from actors.protocol.modern import ladder, tasks
from actors.protocol.table import Limits
from actors.quotas import Shares
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_client import ModernClient
from tests.support.peers import FakePeers, Peer


class Door:
    """What the edge sees, for this era alone."""

    def __init__(self, door: ModernDoor) -> None:
        self._door = door

    async def post(self, post: Post) -> Reply:
        version = post.headers.get("mcp-protocol-version")
        route = classify.classify_body(
            post.body,
            None,
            version,
            modern=lambda frame, _: ladder.modern(frame, post.headers, extra_methods=tasks.METHODS),
        )
        if isinstance(route, classify.ModernRequest):
            return await self._door.request(post, route)
        if isinstance(route, classify.ModernNotification):
            return await self._door.notification(post, route)
        assert isinstance(route, classify.Rejection), route
        return Answer(route.status, route.body)


@dataclass
class Modern:
    """The tree, its clients' door, and its backends."""

    gateway: Gateway
    peers: FakePeers
    door: Door
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

        door = ModernDoor(services, system.registry, supervisor, make, lambda: False)
        yield Modern(gateway, found, Door(door), supervisor)


@pytest.fixture
def modern() -> Open:
    """Opens one, with the peers that it is given."""
    return open_modern
