"""How a modern client comes to its servers: a modern server is called over the connection that everybody shares, on
behalf of each caller; a legacy one through the broker of this client. Which of the two a server takes is known, or
found out by the first connection (2026-07-28, versioning).
"""

from typing import Protocol

from actors.brokers.pool import PoolKey
from actors.brokers.pools import Pools
from actors.exchanges.exchange_running import Running
from actors.fronts.host import Host, Tree
from actors.links.links import start_modern_link
from actors.ports import Principal
from actors.protocol import capabilities
from actors.protocol.modern.link_events import Caller
from actors.protocol.session_state import Client
from actors.protocol.table import BackendSpec
from actors.protocol.versions import MODERN
from actors.runtime import Ref, Registry
from actors.services import Services


class Peers(Protocol):
    """The connections that there are for this client. `link` and `broker` raise AtCapacity and SystemClosed."""

    def modern(self, spec: BackendSpec) -> bool | None:
        """Whether a server is known to be modern, or not to be; None: not known."""

    def link(self, spec: BackendSpec) -> Ref:
        """The connection without a session, which everybody shares."""

    def broker(self, spec: BackendSpec) -> Ref:
        """The broker of this client for a legacy server."""

    def connected(self, spec: BackendSpec) -> bool:
        """Whether such a broker has a connection now."""


class TreePeers:
    """Those of the running tree."""

    def __init__(self, patron: PoolKey, services: Services, tree: Tree, brokers: Pools, registry: Registry) -> None:
        self._patron = patron
        self._services = services
        self._tree = tree
        self._brokers = brokers
        self._registry = registry

    def modern(self, spec: BackendSpec) -> bool | None:
        """As in `Peers`."""
        return self._tree.eras.modern(spec)

    def link(self, spec: BackendSpec) -> Ref:
        """As in `Peers`."""
        tree = self._tree
        return start_modern_link(spec, self._services, tree.backends, tree.eras, self._registry, tree.links)

    def broker(self, spec: BackendSpec) -> Ref:
        """As in `Peers`."""
        return self._brokers.find(spec, self._patron)

    def connected(self, spec: BackendSpec) -> bool:
        """As in `Peers`."""
        return self._brokers.connected(spec, self._patron)


class Requests(Host, Protocol):
    """The modern requests of one kind of client."""

    peers: Peers

    running: dict[int, Running]
    """The requests under way, by the numbers of their calls."""

    @property
    def client(self) -> Client:
        """What its clients can be asked, and who asks for what many of them share."""


class ModernDialer:
    """Of one endpoint of one kind of client."""

    changes = False
    told = None

    def __init__(self, host: Requests, bits: capabilities.ClientBits, *, merged: bool) -> None:
        self.brokers: set[str] = set()
        """The servers that are called through a broker."""
        self._host = host
        self._merged = merged
        # What a modern server hears of the client: also that it knows tasks.
        own = host.client.bits
        self._declared = capabilities.declare(bits | (own - capabilities.carried(own)), MODERN)

    def dial(self, spec: BackendSpec, attempt: int) -> Ref:
        """As in `Dialer`."""
        if self._host.peers.modern(spec) is False:
            self.brokers.add(spec.name)
            return self._host.peers.broker(spec)
        self.brokers.discard(spec.name)
        return self._host.peers.link(spec)

    def caller(self, backend: str, call: int) -> Caller:
        """The client whose request it is, else (what many share) the gateway."""
        host, request = self._host, self._host.running.get(call)
        principal: Principal = host.principal
        if request is None:
            return Caller(principal.name, self._declared, host.client.info, None, False)
        info, level = request.envelope.info, request.exchange.level
        if self._merged:
            return Caller(principal.name, self._declared, info, level, False)
        return Caller(principal.name, request.envelope.capabilities.raw, info, level, False, as_is=True)

    def shares(self, spec: BackendSpec) -> bool:
        """As in `Dialer`."""
        return spec.sharing == "shared"
