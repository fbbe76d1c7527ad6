"""Cutting what goes out down to what the client's revision knows.

A server describes itself once, in the newest terms; members that came later than the client's revision are left out.
"""

from collections.abc import Mapping
from typing import Any, Final

from actors.protocol.versions import can_use

_COMMON = {"title": "title", "icons": "icons", "_meta": "object_meta"}

_MEMBERS: Final[Mapping[str, Mapping[str, str]]] = {
    # `websiteUrl` and `description` came together with icons (2025-11-25, changelog).
    "implementation": {"title": "title", "icons": "icons", "websiteUrl": "icons", "description": "icons"},
    "tool": {**_COMMON, "annotations": "tool_annotations", "outputSchema": "structured_content"},
    "tool_result": {"structuredContent": "structured_content"},
    "resource": _COMMON,
    "template": _COMMON,
    "prompt": _COMMON,
    "argument": {"title": "title"},
    "progress": {"message": "progress_message"},
    "capabilities": {"completions": "completions_capability"},
    "elicitation": {"mode": "elicitation_modes"},
}
"""Object → member → the feature that it came with, by the names in `actors.protocol.versions`."""


def fit(kind: str, value: Mapping[str, Any], version: str) -> dict[str, Any]:
    """`value` without what `version` does not know, and without members that are None."""
    features = _MEMBERS[kind]
    return {k: v for k, v in value.items() if v is not None and (k not in features or can_use(version, features[k]))}
