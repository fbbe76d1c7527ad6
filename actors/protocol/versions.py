"""The revisions of both eras, how one is chosen by a handshake, and what exists since when.

Revisions are dates written so that text order is time order.
"""

from enum import Enum
from typing import Final, NamedTuple

VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions that have `initialize`, oldest first."""

LATEST_HANDSHAKE: Final = "2025-11-25"
"""Offered to backends, and answered to a client that asks for a revision without a handshake."""

MODERN: Final = "2026-07-28"
"""The first revision without sessions; it has no `initialize`, so it is never negotiated by one."""

MODERN_VERSIONS: Final = (MODERN,)
"""The revisions without sessions that are served, oldest first."""

SERVED: Final = tuple(reversed((*VERSIONS, *MODERN_VERSIONS)))
"""All revisions that are served, newest first, as a client is told them."""


class Era(Enum):
    """Whether a conversation begins with a handshake, or each request stands for itself."""

    LEGACY = "legacy"
    MODERN = "modern"


class Span(NamedTuple):
    """The revisions that have a feature: from `first` to `last`, or still."""

    first: str
    last: str | None = None


FEATURES: Final[dict[str, Span]] = {
    "sessions": Span(VERSIONS[0], LATEST_HANDSHAKE),
    "batches": Span("2025-03-26", "2025-03-26"),
    "streamable_http": Span("2025-03-26"),
    "audio": Span("2025-03-26"),
    "tool_annotations": Span("2025-03-26"),
    "progress_message": Span("2025-03-26"),
    "completions_capability": Span("2025-03-26"),
    "version_header": Span("2025-06-18"),
    "elicitation": Span("2025-06-18"),
    "structured_content": Span("2025-06-18"),
    "resource_link": Span("2025-06-18"),
    "title": Span("2025-06-18"),
    "object_meta": Span("2025-06-18"),
    "completion_context": Span("2025-06-18"),
    "priming": Span("2025-11-25", "2025-11-25"),
    "polling": Span("2025-11-25", "2025-11-25"),
    "elicitation_modes": Span("2025-11-25"),
    "url_elicitation": Span("2025-11-25"),
    "rich_enums": Span("2025-11-25"),
    "sampling_tools": Span("2025-11-25"),
    "sampling_context": Span("2025-11-25"),
    "sampling_arrays": Span("2025-11-25"),
    "icons": Span("2025-11-25"),
    "tasks": Span("2025-11-25", "2025-11-25"),
    "elicitation_id": Span("2025-11-25", "2025-11-25"),
    "envelope": Span(MODERN),
    "questions_in_results": Span(MODERN),
    "result_type": Span(MODERN),
    "any_structured_content": Span(MODERN),
}
"""Deltas between the revisions. What a revision lacks is neither sent to a peer that speaks it nor asked of one."""


def negotiate(requested: str) -> str:
    """The revision to answer: the requested one if it has a handshake, else the newest that has.

    Never an error: a client that does not know the answer disconnects by itself (lifecycle, "Version Negotiation").
    """
    return requested if requested in VERSIONS else LATEST_HANDSHAKE


def era_of(version: str) -> Era:
    """The era of a revision. One that nobody here knows counts as modern: it is not one that has a handshake."""
    return Era.LEGACY if version in VERSIONS else Era.MODERN


def at_least(version: str, minimum: str) -> bool:
    """Whether a revision is `minimum` or newer."""
    return version >= minimum


def can_use(version: str, feature: str) -> bool:
    """Whether a revision has a feature of FEATURES. KeyError for a feature that is not in the table."""
    span = FEATURES[feature]
    return span.first <= version and (span.last is None or version <= span.last)
