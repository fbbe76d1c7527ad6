"""One exchange while it is under way, and what belongs to it outside its machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from actors.connection import Connection
from actors.protocol.modern.exchange import Exchange
from actors.protocol.modern.meta import Envelope
from actors.protocol.modern.retry import Retry
from actors.runtime import Reply


@dataclass(slots=True)
class Running:
    """One exchange, and the connection of its client. `pinned`: the backend whose state it brings."""

    exchange: Exchange
    envelope: Envelope
    headers: Mapping[str, str]
    reply: Reply
    connection: Connection | None = None
    pinned: str | None = None
    retry: Retry | None = None
