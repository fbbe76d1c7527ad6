"""One exchange while it is under way, and what belongs to it outside its machine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from actors.protocol.modern.exchange import Exchange
from actors.protocol.modern.meta import Envelope
from actors.protocol.modern.retry import Retry
from actors.runtime import Reply
from actors.streams.connection import Connection


@dataclass(slots=True)
class Running:
    """One exchange, and the connection of its client. `pinned`: the backend whose state it brings.

    `head_due`, `due`: when its head is, and its answer; `looks_at`: when a timer tells of either (infinite: never).
    """

    exchange: Exchange
    envelope: Envelope
    headers: Mapping[str, str]
    reply: Reply
    connection: Connection | None = None
    pinned: str | None = None
    retry: Retry | None = None
    head_due: float = math.inf
    due: float = math.inf
    looks_at: float = math.inf
