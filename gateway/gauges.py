"""What is looked up when somebody asks, instead of being counted all the time: gauges set at each scrape."""

from collections import Counter
from typing import TYPE_CHECKING

from actors.machines.upstream.breaker import BreakerState
from actors.protocol.instruments import INSTRUMENTS
from actors.runtime import System

if TYPE_CHECKING:
    from gateway.app import Gateway

SHARED = INSTRUMENTS["stagedoor_mailbox_depth"].values["actor"]
"""Actors that every session waits for."""


def sample(gateway: "Gateway", system: System) -> None:
    """Sets the gauges that are a look at what there is."""
    metrics, actors = gateway.metrics, gateway.actors
    metrics.gauge("stagedoor_connections_open", float(len(gateway.public.open)), ("public",))
    metrics.gauge("stagedoor_connections_open", float(len(gateway.admin.open)), ("admin",))
    metrics.gauge("stagedoor_store_up", 0.0 if gateway.store_degraded else 1.0)
    lease_age = getattr(gateway.store, "lease_age", None)
    metrics.gauge("stagedoor_lease_age_seconds", lease_age() if lease_age is not None else 0.0)
    inbox_depth = getattr(gateway.store, "inbox_depth", None)
    metrics.gauge("stagedoor_inbox_depth", float(inbox_depth()) if inbox_depth is not None else 0.0)
    for name in SHARED:
        ref = system.registry.whereis(name)
        if ref is not None:
            waiting = ref.statistics()
            metrics.gauge("stagedoor_mailbox_depth", float(waiting.ordinary + waiting.reserved), (name,))
    metrics.gauge("stagedoor_sessions_max", float(gateway.settings.limits.sessions))
    if actors is None:
        return
    servers = actors.services.table.value.backends.keys()
    metrics.know(servers)
    metrics.gauge("stagedoor_sessions", float(len(actors.pools)), ("live", "modern"))
    metrics.gauge("stagedoor_requests_in_flight", float(actors.quotas.requests.total))
    metrics.gauge("stagedoor_exchanges", float(actors.quotas.modern_requests))
    streams = Counter(dict.fromkeys(("post", "get", "listen"), 0))
    streams.update(actors.quotas.streams)
    for kind, number in streams.items():
        metrics.gauge("stagedoor_streams_open", float(number), (kind,))
    for name, status in actors.backends.status.items():
        if name not in servers:
            continue
        up = {BreakerState.CLOSED: 1.0, BreakerState.HALF_OPEN: 0.5, BreakerState.OPEN: 0.0}[status.breaker.state]
        metrics.gauge("stagedoor_backend_up", up, (name,))
