"""Which arguments of which tools the headers of a request repeat, as the lists of a backend say it."""

from collections.abc import Iterable

from msgspec import Raw

from actors.protocol.aggregate import item_name
from actors.protocol.errors import Malformed
from actors.protocol.modern.tool_headers import IllegalAnnotation, Mirrored, of_tool

Mirrors = dict[str, tuple[Mirrored, ...]]
"""By tool; those that repeat nothing are not in it."""


def mirrors_of(tools: Iterable[Raw]) -> Mirrors:
    """Of a list's items; of those that break the rules: nothing."""
    found: Mirrors = {}
    for tool in tools:
        mirrored = _mirrored(tool)
        name = item_name(tool) if mirrored else None
        if mirrored and name is not None:
            found[name] = mirrored
    return found


def legal(tool: Raw) -> bool:
    """Whether a client on HTTP may be shown this tool (2026-07-28, streamable-http, "Schema Extension")."""
    return _mirrored(tool) is not None


def _mirrored(tool: Raw) -> tuple[Mirrored, ...] | None:
    try:
        return of_tool(tool)
    except (IllegalAnnotation, Malformed):
        return None
