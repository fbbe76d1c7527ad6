"""What the catalogue is asked, and what it says."""

from dataclasses import dataclass

from actors.links.paging import Items
from actors.protocol.link_state import Profile
from actors.runtime import Ref

LIST_CHANGED = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
"""What is said when a list has changed."""


@dataclass(frozen=True, slots=True)
class Key:
    """Whose view of which backend."""

    principal: str
    bits: str
    backend: str


@dataclass(frozen=True, slots=True)
class Consult:
    """What does this backend list? Listed follows within the list deadline, and from then on, as long as the caller
    lives, CatalogueChanged whenever what this backend lists may have changed. Unless it must be `fresh`, the last list
    known is the answer, at once, though nobody has heard of the backend for a while."""

    caller: Ref
    key: Key
    profile: Profile
    method: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """The answer: `items` is None if nothing is known and nothing could be learned."""

    backend: str
    method: str
    items: Items | None


@dataclass(frozen=True, slots=True)
class CatalogueChanged:
    """What was listed for this backend may have changed."""

    backend: str
    notification: str


# Clocks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overdue:
    """Whoever waits for this list has waited long enough."""

    key: Key
    method: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request for this list has run long enough."""

    key: Key
    method: str


@dataclass(frozen=True, slots=True)
class Again:
    """Time to ask once more for a list that somebody had to do without."""

    key: Key
    method: str


@dataclass(frozen=True, slots=True)
class IdleLink:
    """Nobody has asked for a while."""

    key: Key
