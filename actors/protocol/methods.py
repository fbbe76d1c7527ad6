"""Every method and notification of both eras: who sends it, since when, behind which capability, and how an
aggregate of several backends treats it.

On an aggregate the gateway refuses what is not in this table (-32601) or ignores it (notifications): nobody could say
whose it is. To the one server behind an endpoint it passes, and from it (`carried`).
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, TypeAlias

from actors.protocol.versions import LATEST_HANDSHAKE, MODERN, VERSIONS, at_least


class Sender(Enum):
    """Which end of a session may send it."""

    CLIENT = "client"
    SERVER = "server"
    BOTH = "both"


class Kind(Enum):
    REQUEST = "request"
    NOTIFICATION = "notification"


class Treatment(Enum):
    """What becomes of a message on an aggregated route."""

    LOCAL = "local"
    """Answered or consumed by the gateway."""
    MERGED = "merged"
    """One list made of every backend's list."""
    ROUTED = "routed"
    """To the one backend that owns what its params name."""
    FAN_OUT = "fan_out"
    """To every connected backend that has the capability."""
    MAPPED = "mapped"
    """To wherever the request that it speaks of went, by the id and token tables."""
    RELAYED = "relayed"
    """From a backend to the client (or back), names and URIs rewritten."""
    COALESCED = "coalesced"
    """From any backend to the client, at most one waiting of each kind."""
    REFUSED = "refused"
    """Not offered: its capability is never declared."""


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """One row. A capability is the path to its member in the declared object."""

    name: str
    sender: Sender
    treatment: Treatment
    server_capability: Path | None = None
    """What the server must have declared for it to be sent, in either direction."""
    client_capability: Path | None = None
    """What the client must have declared for it to be sent, in either direction."""
    since: str = VERSIONS[0]
    """The first revision that has it."""
    last: str | None = None
    """The last revision that has it; None: it is still there."""
    last_from_client: str | None = None
    """The last revision in which a client may send what both ends may; None: it still may."""
    items: str | None = None
    """The member of a list's result that holds the items."""
    repeatable: bool = False
    """Sending it once more changes nothing at the backend."""
    may_ask_back: bool = False
    """While it runs, the backend may ask the client (2026-07-28, patterns/mrtr, "Supported Requests")."""

    kind: Kind = field(init=False)
    """As its name says."""

    def __post_init__(self) -> None:
        kind = Kind.NOTIFICATION if self.name.startswith("notifications/") else Kind.REQUEST
        object.__setattr__(self, "kind", kind)

    def is_of(self, version: str) -> bool:
        """Whether a revision has it."""
        return at_least(version, self.since) and (self.last is None or version <= self.last)


_CLIENT, _SERVER, _BOTH = Sender.CLIENT, Sender.SERVER, Sender.BOTH
_LOCAL, _MERGED, _ROUTED, _FAN_OUT = Treatment.LOCAL, Treatment.MERGED, Treatment.ROUTED, Treatment.FAN_OUT
_MAPPED, _RELAYED, _COALESCED, _REFUSED = Treatment.MAPPED, Treatment.RELAYED, Treatment.COALESCED, Treatment.REFUSED

SET_LEVEL: Final = "logging/setLevel"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
UPDATED: Final = "notifications/resources/updated"
ELICITED: Final = "notifications/elicitation/complete"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LISTEN: Final = "subscriptions/listen"
ELICIT: Final = "elicitation/create"
ListKind: TypeAlias = Literal["tools", "resources", "prompts"]
LIST_KINDS: Final[tuple[ListKind, ...]] = ("tools", "resources", "prompts")
"""What servers list; each has the name of its capability."""
LIST_CHANGED: Final = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
"""Capability → what is said when what it lists has changed."""

_SESSIONS = LATEST_HANDSHAKE
_TOOLS, _PROMPTS, _RESOURCES, _LOGGING = ("tools",), ("prompts",), ("resources",), ("logging",)
_COMPLETIONS = ("completions",)
_SUBSCRIBE = ("resources", "subscribe")
_TASKS = "2025-11-25"

_ROWS: Final = (
    # Lifecycle and utilities.
    Method("initialize", _CLIENT, _LOCAL, last=_SESSIONS),
    Method("ping", _BOTH, _LOCAL, last=_SESSIONS, repeatable=True),
    Method("server/discover", _CLIENT, _LOCAL, since=MODERN, repeatable=True),
    Method("notifications/initialized", _CLIENT, _LOCAL, last=_SESSIONS),
    Method(CANCELLED, _BOTH, _MAPPED),
    Method(PROGRESS, _BOTH, _MAPPED, last_from_client=_SESSIONS),
    Method(SET_LEVEL, _CLIENT, _FAN_OUT, _LOGGING, last=_SESSIONS, repeatable=True),
    Method("notifications/message", _SERVER, _RELAYED, _LOGGING),
    # The capability is younger than the method: see `capabilities.allows`.
    Method("completion/complete", _CLIENT, _ROUTED, _COMPLETIONS, repeatable=True),
    # Tools.
    Method("tools/list", _CLIENT, _MERGED, _TOOLS, items="tools", repeatable=True),
    Method("tools/call", _CLIENT, _ROUTED, _TOOLS, may_ask_back=True),
    # Prompts.
    Method("prompts/list", _CLIENT, _MERGED, _PROMPTS, items="prompts", repeatable=True),
    Method("prompts/get", _CLIENT, _ROUTED, _PROMPTS, repeatable=True, may_ask_back=True),
    # Resources.
    Method("resources/list", _CLIENT, _MERGED, _RESOURCES, items="resources", repeatable=True),
    Method("resources/templates/list", _CLIENT, _MERGED, _RESOURCES, items="resourceTemplates", repeatable=True),
    Method("resources/read", _CLIENT, _ROUTED, _RESOURCES, repeatable=True, may_ask_back=True),
    Method(SUBSCRIBE, _CLIENT, _ROUTED, _SUBSCRIBE, last=_SESSIONS, repeatable=True),
    Method(UNSUBSCRIBE, _CLIENT, _ROUTED, _SUBSCRIBE, last=_SESSIONS, repeatable=True),
    Method(UPDATED, _SERVER, _RELAYED, _SUBSCRIBE),
    # What is said when a list has changed.
    *(Method(name, _SERVER, _COALESCED, (kind, "listChanged")) for kind, name in LIST_CHANGED.items()),
    # One stream for what changes (2026-07-28, patterns/subscriptions).
    Method(LISTEN, _CLIENT, _FAN_OUT, since=MODERN, repeatable=True),
    Method(ACKNOWLEDGED, _SERVER, _LOCAL, since=MODERN),
    # What the server asks of the client. (Later revisions have the same in results, not as requests.)
    Method("sampling/createMessage", _SERVER, _RELAYED, None, ("sampling",), last=_SESSIONS),
    Method("roots/list", _SERVER, _RELAYED, None, ("roots",), last=_SESSIONS, repeatable=True),
    Method("notifications/roots/list_changed", _CLIENT, _FAN_OUT, None, ("roots", "listChanged"), last=_SESSIONS),
    Method(ELICIT, _SERVER, _RELAYED, None, ("elicitation",), since="2025-06-18", last=_SESSIONS),
    Method(ELICITED, _SERVER, _RELAYED, None, ("elicitation", "url"), since="2025-11-25", last=_SESSIONS),
    # Tasks of 2025-11-25, which either end may run for the other: the capability is that of the end that runs them.
    Method("tasks/get", _BOTH, _ROUTED, ("tasks",), since=_TASKS, last=_SESSIONS, repeatable=True),
    Method("tasks/result", _BOTH, _ROUTED, ("tasks",), since=_TASKS, last=_SESSIONS),
    Method("tasks/cancel", _BOTH, _ROUTED, ("tasks", "cancel"), since=_TASKS, last=_SESSIONS),
    Method("tasks/list", _BOTH, _REFUSED, ("tasks", "list"), since=_TASKS, last=_SESSIONS),
    Method("notifications/tasks/status", _BOTH, _RELAYED, ("tasks",), since=_TASKS, last=_SESSIONS),
)

METHODS: Final[dict[str, Method]] = {row.name: row for row in _ROWS}

ELIGIBLE: Final = frozenset(row.name for row in _ROWS if row.may_ask_back)

CHANGED: Final = {
    row.name: LIST_CHANGED[row.server_capability[0]] for row in _ROWS if row.items and row.server_capability
}
"""The request for a list → the notification that this list has changed."""


def known(name: str, sender: Sender, version: str) -> Method | None:
    """The row of a message that this end may send in this revision; None: refuse it, or ignore the notification."""
    row = METHODS.get(name)
    if row is None or row.treatment is Treatment.REFUSED or not row.is_of(version):
        return None
    if sender is Sender.CLIENT and row.last_from_client is not None and version > row.last_from_client:
        return None
    return row if row.sender in (sender, Sender.BOTH) else None


def carried(name: str, sender: Sender) -> bool:
    """Whether a message may pass between two ends that speak the same revision: what no table knows is theirs to know.
    What is known keeps its direction, and what the gateway never offers is not there."""
    row = METHODS.get(name)
    return row is None or (row.treatment is not Treatment.REFUSED and row.sender in (sender, Sender.BOTH))
