"""How a caller comes to an upstream connection."""

from collections.abc import Callable

from actors.machines.upstream.legacy_state import Profile
from actors.named import NamedRef
from actors.protocol.table import BackendSpec, connection_name
from actors.runtime import DynamicSupervisor, Ref, Registry
from actors.services import Services
from actors.upstreams.eras import Eras
from actors.upstreams.legacy import LegacyUpstream
from actors.upstreams.modern import ModernUpstream


def start_upstream(
    spec: BackendSpec, registry: Registry, upstreams: DynamicSupervisor, make: Callable[[], LegacyUpstream], whose: str
) -> Ref:
    """A new upstream connection, or the one that everybody uses, or every session of the principal `whose`, if the
    backend is shared so. Raises AtCapacity, SystemClosed."""
    if not spec.common:
        return upstreams.start_child(make())
    name = f"link-{connection_name(spec, whose)}-shared"
    running = registry.whereis(name)
    return running if running is not None else upstreams.start_child(make(), name)


def start_list_upstream(
    spec: BackendSpec,
    profile: Profile,
    services: Services,
    backends: NamedRef,
    eras: Eras,
    registry: Registry,
    upstreams: DynamicSupervisor,
    *,
    modern_first: bool,
    whose: str,
) -> Ref:
    """A connection over which lists are asked for, and nothing else. `modern_first`: a server of which nothing is known
    is asked in the modern era before the other. Raises AtCapacity, SystemClosed."""
    legacy, modern = eras.legacy(spec), eras.modern(spec)
    if legacy is False or (modern_first and legacy is None and modern is not False):
        return upstreams.start_child(ModernUpstream(spec, services, backends, eras))
    return start_upstream(
        spec, registry, upstreams, lambda: LegacyUpstream(spec, profile, services, backends, eras=eras), whose
    )


def start_modern_upstream(
    spec: BackendSpec,
    services: Services,
    backends: NamedRef,
    eras: Eras,
    registry: Registry,
    upstreams: DynamicSupervisor,
) -> Ref:
    """The upstream connection without sessions to this backend, which everybody uses, or everybody for whom `spec` is.
    Raises AtCapacity, SystemClosed."""
    name = f"link-{connection_name(spec)}-modern"
    running = registry.whereis(name)
    return (
        running if running is not None else upstreams.start_child(ModernUpstream(spec, services, backends, eras), name)
    )
