"""Which names of tools may stand in metrics: those that a list of a server has shown. Any other is an invention, and
enough of these would leave no room for the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol.naming import build_names
from actors.protocol.payload import BROKEN
from actors.protocol.table import Table

if TYPE_CHECKING:
    from actors.services import TableCell

OTHER: Final = "other"
"""The label of a name that no list has shown."""
SHOWN_MAX: Final = 200
"""Names of one server that become labels, the first ones that it has shown."""
REMEMBERED: Final = 256 * 1024
"""Bytes of the last list of a server that is kept, so that the same one is not read again; a larger one is read."""


class _Tool(Struct):
    name: str = ""


class _Page(Struct):
    tools: list[_Tool] = []


_decode = msgspec.json.Decoder(_Page).decode


class ShownTools:
    """The names that tools have at their servers, and on the endpoints that merge servers."""

    def __init__(self, table: TableCell) -> None:
        self._table = table
        self._of: dict[str, dict[str, None]] = {}
        self._last: dict[str, bytes] = {}
        self._exposed: frozenset[str] = frozenset()
        self._exposed_by: Table | None = None

    def learn(self, server: str, page: Raw) -> None:
        """A page of a server's list of tools."""
        if page == self._last.get(server):
            return
        known = self._of.setdefault(server, {})
        try:
            tools: Sequence[_Tool] = _decode(page).tools
        except BROKEN:
            return
        self._last[server] = bytes(page) if len(page) <= REMEMBERED else b""
        for tool in tools:
            if tool.name not in known and len(known) < SHOWN_MAX:
                known[tool.name] = None
                self._exposed_by = None

    def of(self, server: str, name: str) -> str:
        """The label of a tool that is called at this server."""
        return name if not name or name in self._of.get(server, ()) else OTHER

    def exposed(self, name: str) -> str:
        """The label of a tool that is called at the gateway, by whichever of its names."""
        if not name:
            return name
        table = self._table.value
        if self._exposed_by is not table:
            self._make(table)
        return name if name in self._exposed else OTHER

    def _make(self, table: Table) -> None:
        shown = {server: names for server, names in self._of.items() if server in table.backends}
        own = {name for names in shown.values() for name in names}
        merged = build_names(shown.items(), table.separator, table.backends).owners
        self._exposed, self._exposed_by = frozenset(own.union(merged)), table
