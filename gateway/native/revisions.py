"""What goes out, as the client's revision has it.

A server describes itself once, in the newest terms; members that came later than the client's revision are left out.
What a handler or a function of the server has put there instead of a text or a number goes to nobody.
"""

from collections.abc import Mapping
from typing import Any, Final

from actors.protocol.versions import can_use
from gateway.native.content import text_of

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


_NEEDED: Final = {"name", "uri", "uriTemplate"}
"""Of whatever kind has them: it must say them."""

_TEXTS: Final = _NEEDED | {"version", "title", "description", "websiteUrl", "mimeType", "message"}
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    "size": (int,),
    "progress": (int, float),
    "total": (int, float),
    "required": (bool,),
    "isError": (bool,),
    "structuredContent": (dict,),
}
"""Member → what it must be."""


def fit(kind: str, value: Mapping[str, Any], version: str) -> dict[str, Any]:
    """`value` without what `version` does not know, and without members that are None. TypeError for a member that is
    something else than the protocol has there."""
    features, fitting = _MEMBERS[kind], dict[str, Any]()
    for member, given in value.items():
        if given is None and member not in _NEEDED:
            continue
        expected, said = _KINDS.get(member), text_of(given) if member in _TEXTS else given
        if expected and (not isinstance(said, expected) or (isinstance(said, bool) and bool not in expected)):
            raise TypeError(f"{kind}: {member} can't be of type {type(said).__name__}")
        if member not in features or can_use(version, features[member]):
            fitting[member] = said
    return fitting
