"""How a client without sessions comes to the broker that holds its connections to a backend with sessions."""

import hashlib

from actors.brokers.broker import BrokerActor
from actors.brokers.broker_calls import Patron
from actors.brokers.parks import Parks
from actors.fronts.host import Tree
from actors.links.shares import Shares
from actors.protocol import capabilities
from actors.protocol.table import BackendSpec
from actors.runtime import Ref, Registry
from actors.services import Services


class Brokers:
    """All of this process; each is made when it is first needed, and ends by itself."""

    def __init__(self, services: Services, registry: Registry, supervisor: Shares, tree: Tree) -> None:
        self.parks = Parks(services.limits.parked_per_principal)
        self._services = services
        self._registry = registry
        self._supervisor = supervisor
        self._tree = tree
        self._connected: set[str] = set()
        """The keys of those that have a connection."""

    def connected(self, spec: BackendSpec, patron: Patron) -> bool:
        """Whether the broker of this client for this backend is there, and has a connection."""
        return bool(self._connected) and key_of(spec.name, patron) in self._connected

    def find(self, spec: BackendSpec, patron: Patron) -> Ref:
        """The broker of this client for this backend. Raises AtCapacity, SystemClosed."""
        key = key_of(spec.name, patron)
        name = f"broker-{key}"
        running = self._registry.whereis(name)
        if running is not None and running.alive:
            return running
        broker = BrokerActor(spec, key, patron, self._services, self._tree, self.parks, self._connected)
        return self._supervisor.start_for(patron.principal, broker, name)


def key_of(backend: str, patron: Patron) -> str:
    """Of its record: one for each client, as far as clients can be told from each other, and backend."""
    principal = patron.principal
    parts = (principal.name, str(principal.anonymous), patron.affinity, capabilities.bits_key(patron.bits), backend)
    digest = hashlib.sha256(b"broker")
    for part in parts:
        data = part.encode()
        digest.update(b"\0%d\0" % len(data) + data)
    return digest.hexdigest()[:32]
