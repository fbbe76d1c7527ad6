"""How a caller comes to a link."""

from collections.abc import Callable

from actors.links.eras import Eras
from actors.links.link import LinkActor
from actors.links.modern_link import ModernLinkActor
from actors.named import Named
from actors.protocol.link_state import Profile
from actors.protocol.table import BackendSpec
from actors.runtime import DynamicSupervisor, Ref, Registry
from actors.services import Services


def start_link(spec: BackendSpec, registry: Registry, links: DynamicSupervisor, make: Callable[[], LinkActor]) -> Ref:
    """A new link, or for a shared backend the one that everybody uses. Raises AtCapacity, SystemClosed."""
    if spec.sharing != "shared":
        return links.start_child(make())
    name = f"link-{spec.name}-shared"
    running = registry.whereis(name)
    return running if running is not None else links.start_child(make(), name)


def start_list_link(
    spec: BackendSpec,
    profile: Profile,
    services: Services,
    backends: Named,
    eras: Eras,
    registry: Registry,
    links: DynamicSupervisor,
    *,
    modern_first: bool,
) -> Ref:
    """A connection over which lists are asked for, and nothing else. `modern_first`: a server of which nothing is known
    is asked in the modern era before the other. Raises AtCapacity, SystemClosed."""
    legacy, modern = eras.legacy(spec), eras.modern(spec)
    if legacy is False or (modern_first and legacy is None and modern is not False):
        return links.start_child(ModernLinkActor(spec, services, backends, eras))
    return start_link(spec, registry, links, lambda: LinkActor(spec, profile, services, backends, eras=eras))


def start_modern_link(
    spec: BackendSpec, services: Services, backends: Named, eras: Eras, registry: Registry, links: DynamicSupervisor
) -> Ref:
    """The link without sessions to this backend, which everybody uses. Raises AtCapacity, SystemClosed."""
    name = f"link-{spec.name}-modern"
    running = registry.whereis(name)
    return running if running is not None else links.start_child(ModernLinkActor(spec, services, backends, eras), name)
