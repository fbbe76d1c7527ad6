"""What the catalogue is asked, and what it says."""

from dataclasses import dataclass

from actors.links.paging import Items
from actors.protocol import methods
from actors.protocol.link_state import Profile
from actors.runtime import Ref

LIST_CHANGED = methods.CHANGED
"""What is said when a list has changed."""
NEWS = frozenset(LIST_CHANGED.values())
NAMED_BY = {
    "tools/list": "name",
    "prompts/list": "name",
    "resources/list": "uri",
    "resources/templates/list": "uriTemplate",
}
"""The member that tells two items of a list apart."""
SLOW_FOR = 60.0
"""Seconds for which nobody waits for a list after one that was too slow."""
DEBOUNCE = 0.1
"""Seconds in which changes of one kind become one."""


def list_kind(notification: str) -> str:
    """`tools`, `prompts` or `resources`."""
    return notification.split("/")[1]


@dataclass(frozen=True, slots=True)
class Key:
    """Whose view of which backend."""

    principal: str
    bits: str
    backend: str


@dataclass(frozen=True, slots=True)
class Consult:
    """What does this backend list? Listed follows within the list deadline (if it must be
    `fresh`, when that is known or can't be had), and from then on, as long as the caller
    lives, CatalogueChanged whenever this backend lists something else. Unless it must be `fresh`, the last list
    known is the answer, at once, though nobody has heard of the backend for a while."""

    caller: Ref
    key: Key
    profile: Profile
    method: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """The answer: `items` is None if nothing is known and nothing could be learned; `pending`: it is still on its
    way."""

    backend: str
    method: str
    items: Items | None
    pending: bool


@dataclass(frozen=True, slots=True)
class CatalogueChanged:
    """What was listed for this backend is no longer so: the catalogue has another list."""

    backend: str
    notification: str


@dataclass(frozen=True, slots=True)
class Prestart:
    """Connect to the servers of aggregates of which nothing is known, on behalf of nobody in particular."""


# Clocks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overdue:
    """Whoever waits for a list of this backend has waited long enough."""

    key: Key


@dataclass(frozen=True, slots=True)
class CheckDue:
    """Time to look at a list that the backend says is another one now."""

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
