"""Places of the matrix that tests choose from."""

import pytest

from tests.interaction.stage import Cell
from tests.interaction.transports import Kind
from tests.support.schemas import MODERN, NEWEST, REVISIONS

REVISION_BY_REVISION = tuple(Cell(revision) for revision in REVISIONS)
"""Every revision, in one process and by a clock that jumps."""

NEWEST_ONLY = (Cell(),)
"""One place, by a clock that jumps."""

JUMPING = pytest.mark.cells(NEWEST_ONLY)

TRANSPORTS = (
    Cell(NEWEST),
    *(Cell(NEWEST, "memory", transport) for transport in ("stdio", "http", "unix", "sse", "found", "ws")),
)
"""Every way to a backend."""

STORES = (Cell(), Cell(NEWEST, "redis"))
"""Both stores."""

RELATING = (Cell(NEWEST, "memory", "http"), Cell(NEWEST, "redis", "http"))
"""Backends whose transport ties messages to requests."""

EVERYWHERE = (
    *REVISION_BY_REVISION,
    Cell(NEWEST, "memory", "stdio"),
    Cell(NEWEST, "memory", "http"),
    Cell("2025-06-18", "redis", "inproc"),
    Cell("2025-03-26", "redis", "stdio"),
    Cell(NEWEST, "redis", "http"),
    Cell(NEWEST, "memory", "sse"),
    Cell(NEWEST, "memory", "ws"),
)
"""Each revision, each store and each transport, and each store with each transport at least once."""

ON_A_CHANNEL = Cell(by="channel")
"""A client with a session on a channel of its own: beside EVERYWHERE, but for tests about HTTP itself
(`by_http`: statuses, streams, a cancel that a POST has to answer)."""

# Both eras -----------------------------------------------------------------------------------------------------------

CHANNELS: tuple[Kind, ...] = ("channel", "stdio", "http", "ws")
WITHOUT_TO_ANY = (
    *(Cell(MODERN, "memory", transport, era) for era in ("modern", "legacy", "dual") for transport in CHANNELS),
    *(Cell(MODERN, "memory", transport, "legacy") for transport in ("sse", "found")),
    *(Cell(MODERN, "memory", "channel", era, "channel") for era in ("modern", "legacy", "dual")),
)
"""A client without sessions before servers of every kind, by HTTP and on a channel of its own."""

WITHOUT_TO_SESSIONS = tuple(cell for cell in WITHOUT_TO_ANY if cell.era == "legacy")
WITHOUT_TO_WITHOUT = tuple(cell for cell in WITHOUT_TO_ANY if cell.era == "modern")

SESSIONS_TO_WITHOUT = tuple(Cell(NEWEST, "memory", transport, "modern") for transport in CHANNELS)
"""A client with a session before servers without."""
