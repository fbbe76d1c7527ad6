"""What every MCP actor is given: the ports, the bounds, and the cell that holds the present table of backends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import time

from actors.durations import ShownTools
from actors.limiter import Limiter
from actors.ports import (
    NO_AUDIT,
    Accounts,
    Audit,
    Buckets,
    Cluster,
    Connector,
    ListStore,
    Log,
    Observer,
    Sealer,
    Store,
    Telemetry,
)
from actors.protocol.table import Limits, Table

DRAIN_MARGIN = 1.0
"""Seconds before the drain's deadline at which what is still in flight gets its error, so that it can be written."""


@dataclass(slots=True)
class TableCell:
    """Holds the table; composition replaces its value while the gateway runs. Read it anew for every message."""

    value: Table


@dataclass(slots=True)
class Services:
    """One value for the whole tree. Composition puts others in the place of `limits` and of the value of `table` while
    the gateway runs; nothing else of it changes. Read both anew for every message."""

    store: Store
    cluster: Cluster
    """The other replicas on this store."""
    connector: Connector
    sealer: Sealer
    telemetry: Telemetry
    log: Log
    limits: Limits
    table: TableCell
    jitter: Callable[[], float]
    """A number in [0, 1): spreads what would else happen at once."""
    buckets: Buckets
    """How often what rules limit was done."""
    identity: bytes
    """The gateway's own `Implementation` as JSON, told to backends and shown on aggregated endpoints."""
    lists: ListStore | None = None
    """Where the last lists known are kept; None: nowhere."""
    observer: Observer | None = None
    """Hears of each request and each call; None: nobody does, and it costs nothing."""
    wall: Callable[[], float] = time
    """Seconds of the wall clock, for what is sealed and has an end; everything else goes by that of the store."""
    audit: Audit = NO_AUDIT
    """Who writes down who did what."""
    accounts: Accounts | None = None
    """Of users at servers; None: no server has any."""
    shown: ShownTools = field(init=False)
    """The names of tools that metrics may name."""
    limiter: Limiter = field(init=False)
    """Asks whether limits let something through."""

    def __post_init__(self) -> None:
        self.shown = ShownTools(self.table)
        self.limiter = Limiter(self.buckets, self.telemetry, self.log)
