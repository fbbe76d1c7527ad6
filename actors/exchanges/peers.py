"""How the fronts of one client without sessions come to their links: shared ones, and brokers of this client."""

from actors.brokers.broker_calls import Patron
from actors.brokers.brokers import Brokers
from actors.fronts.host import Tree
from actors.links.eras import Eras
from actors.links.links import start_modern_link
from actors.protocol.table import BackendSpec
from actors.runtime import Ref, Registry
from actors.services import Services


class TreePeers:
    """Those of the running tree."""

    def __init__(
        self, patron: Patron, services: Services, tree: Tree, eras: Eras, brokers: Brokers, registry: Registry
    ) -> None:
        self._patron = patron
        self._services = services
        self._tree = tree
        self._eras = eras
        self._brokers = brokers
        self._registry = registry

    def modern(self, spec: BackendSpec) -> bool | None:
        """As in `Peers`."""
        return self._eras.modern(spec)

    def link(self, spec: BackendSpec) -> Ref:
        """As in `Peers`."""
        tree = self._tree
        return start_modern_link(spec, self._services, tree.backends, self._eras, self._registry, tree.links)

    def broker(self, spec: BackendSpec) -> Ref:
        """As in `Peers`."""
        return self._brokers.find(spec, self._patron)

    def connected(self, spec: BackendSpec) -> bool:
        """As in `Peers`."""
        return self._brokers.connected(spec, self._patron)
