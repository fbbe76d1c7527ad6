"""How a caller comes to a link."""

from collections.abc import Callable

from actors.link import LinkActor
from actors.protocol.table import BackendSpec
from actors.runtime import DynamicSupervisor, Ref, Registry


def start_link(spec: BackendSpec, registry: Registry, links: DynamicSupervisor, make: Callable[[], LinkActor]) -> Ref:
    """A new link, or for a shared backend the one that everybody uses. Raises AtCapacity, SystemClosed."""
    if spec.sharing != "shared":
        return links.start_child(make())
    name = f"link-{spec.name}-shared"
    running = registry.whereis(name)
    return running if running is not None else links.start_child(make(), name)
