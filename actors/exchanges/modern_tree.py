"""The part of the tree that serves clients without sessions: brokers, actors of exchanges, and their door."""

from collections.abc import Callable

from actors.brokers.pool import PoolKey
from actors.brokers.pools import Pools
from actors.exchanges.exchanges import ExchangesActor, Kind
from actors.exchanges.modern_dialer import TreePeers
from actors.fronts.host import Tree
from actors.fronts.merged import passed_on
from actors.ledger import Ledger
from actors.links.shares import Shares
from actors.modern_door import ModernDoor
from actors.protocol import capabilities
from actors.runtime import System
from actors.services import Services


class ModernTree:
    """Spawned after the links, which it uses, and ends before them."""

    def __init__(
        self,
        system: System,
        services: Services,
        tree: Tree,
        ledger: Ledger,
        overloaded: Callable[[], bool],
    ) -> None:
        brokers = self.brokers = Shares(services.limits)
        exchanges = self.exchanges = Shares(services.limits)
        system.spawn(brokers, "brokers")
        system.spawn(exchanges, "exchanges")
        found = Pools(services, system.registry, brokers, tree)

        def make(kind: Kind) -> ExchangesActor:
            served = services.table.value.endpoints.get(kind.endpoint)
            merges = served is None or served.kind == "aggregate"
            bits = passed_on(kind.bits) if merges else capabilities.carried(kind.bits)
            patron = PoolKey(kind.principal, bits, kind.affinity)
            peers = TreePeers(patron, services, tree, found, system.registry)
            return ExchangesActor(kind, services, tree, ledger, peers)

        self.door = ModernDoor(services, system.registry, exchanges, make, overloaded)
