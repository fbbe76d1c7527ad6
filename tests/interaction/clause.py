"""What a table of requirements is made of."""

from __future__ import annotations

from typing import NamedTuple


class Clause(NamedTuple):
    """What must hold, and where that is written."""

    text: str
    source: str
