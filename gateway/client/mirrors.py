"""Which arguments of a tool HTTP repeats in its headers, as the lists of tools say (2026-07-28, streamable-http)."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from actors.protocol.headers import IllegalAnnotation, Mirrored, of_schema
from actors.protocol.payload import dumps

TOOLS: Final = 10_000
"""Of which is known what they mirror; those that do are few."""

_LOG: Final = logging.getLogger("stagedoor.client")


class Lists:
    """Remembers which arguments of tools headers repeat, by the lists that came so far."""

    def __init__(self) -> None:
        self._mirrored: dict[str, tuple[Mirrored, ...]] = {}

    def mirrored(self, params: Mapping[str, Any] | None) -> tuple[Mirrored, ...]:
        """Which arguments headers repeat of the tool that is called with these params."""
        return self._mirrored.get(str((params or {}).get("name")), ())

    def heard(self, result: dict[str, Any]) -> dict[str, Any]:
        """A page of a list, without the tools whose annotations break the rules: over HTTP nobody can call them."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return result
        kept = [tool for tool in tools if self._take(tool)]
        return result if len(kept) == len(tools) else {**result, "tools": kept}

    def _take(self, tool: Any) -> bool:
        if not isinstance(tool, dict):
            return True
        name = str(tool.get("name"))
        try:
            mirrored = of_schema(dumps(tool.get("inputSchema")))
        except IllegalAnnotation as error:
            _LOG.warning("the tool %r is left out: %s", name, error)
            return False
        self._mirrored.pop(name, None)
        if mirrored and len(self._mirrored) < TOOLS:
            self._mirrored[name] = mirrored
        return True
