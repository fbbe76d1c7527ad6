"""How a modern client comes to the pool of its connections to a legacy server."""

import hashlib

from actors.endpoints.host import Tree
from actors.pools.pool import PoolActor, PoolKey
from actors.protocol import capabilities
from actors.protocol.table import BackendSpec
from actors.quotas import Shares, SuspendedCalls
from actors.runtime import Ref, Registry
from actors.services import Services


class Pools:
    """All of this process; each is made when it is first needed, and ends by itself."""

    def __init__(self, services: Services, registry: Registry, supervisor: Shares, tree: Tree) -> None:
        self.suspended = SuspendedCalls(services.limits.parked_per_principal, services.telemetry)
        self._services = services
        self._registry = registry
        self._supervisor = supervisor
        self._tree = tree
        self._connected: set[str] = set()
        """The record keys of those that have a connection."""

    def connected(self, spec: BackendSpec, key: PoolKey) -> bool:
        """Whether the pool of this client for this server is there, and has a connection."""
        return bool(self._connected) and record_key(spec.name, key) in self._connected

    def find(self, spec: BackendSpec, key: PoolKey) -> Ref:
        """The pool of this client for this server. Raises AtCapacity, SystemClosed."""
        record = record_key(spec.name, key)
        name = f"broker-{record}"
        running = self._registry.whereis(name)
        if running is not None and running.alive:
            return running
        pool = PoolActor(spec, record, key, self._services, self._tree, self.suspended, self._connected)
        return self._supervisor.start_for(key.principal, pool, name)


def record_key(backend: str, key: PoolKey) -> str:
    """Of the record of a pool: one for each client, as far as clients can be told from each other, and server."""
    principal = key.principal
    parts = (principal.name, str(principal.anonymous), key.affinity, capabilities.bits_key(key.bits), backend)
    digest = hashlib.sha256(b"broker")
    for part in parts:
        data = part.encode()
        digest.update(b"\0%d\0" % len(data) + data)
    return digest.hexdigest()[:32]
