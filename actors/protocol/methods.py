"""Every method and notification of both eras: who sends it, since when, behind which capability, and how an
aggregate of several backends treats it.

On an aggregate the gateway refuses what is not in this table (-32601) or ignores it (notifications): nobody could say
whose it is. To the one server behind an endpoint it passes, and from it (`carried`).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

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
    kind: Kind
    sender: Sender
    treatment: Treatment
    since: str = VERSIONS[0]
    """The first revision that has it."""
    last: str | None = None
    """The last revision that has it; None: it is still there."""
    last_from_client: str | None = None
    """The last revision in which a client may send what both ends may; None: it still may."""
    server_capability: Path | None = None
    """What the server must have declared for it to be sent, in either direction."""
    client_capability: Path | None = None
    """What the client must have declared for it to be sent, in either direction."""
    items: str | None = None
    """The member of a list's result that holds the items."""
    repeatable: bool = False
    """Sending it once more changes nothing at the backend."""
    eligible: bool = False
    """While it runs, the backend may ask the client (2026-07-28, patterns/mrtr, "Supported Requests")."""

    def is_of(self, version: str) -> bool:
        """Whether a revision has it."""
        return at_least(version, self.since) and (self.last is None or version <= self.last)


_REQUEST, _NOTIFICATION = Kind.REQUEST, Kind.NOTIFICATION
_CLIENT, _SERVER, _BOTH = Sender.CLIENT, Sender.SERVER, Sender.BOTH
_LOCAL, _MERGED, _ROUTED, _FAN_OUT = Treatment.LOCAL, Treatment.MERGED, Treatment.ROUTED, Treatment.FAN_OUT
_MAPPED, _RELAYED, _COALESCED, _REFUSED = Treatment.MAPPED, Treatment.RELAYED, Treatment.COALESCED, Treatment.REFUSED

SET_LEVEL: Final = "logging/setLevel"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
UPDATED: Final = "notifications/resources/updated"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
LIST_CHANGED: Final = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
"""Capability → what is said when what it lists has changed."""

_SESSIONS = LATEST_HANDSHAKE
_TOOLS, _PROMPTS, _RESOURCES = ("tools",), ("prompts",), ("resources",)
_SUBSCRIBE = ("resources", "subscribe")

_ROWS: Final = (
    # Lifecycle and utilities.
    Method("initialize", _REQUEST, _CLIENT, _LOCAL, last=_SESSIONS),
    Method("ping", _REQUEST, _BOTH, _LOCAL, last=_SESSIONS, repeatable=True),
    Method("server/discover", _REQUEST, _CLIENT, _LOCAL, since=MODERN, repeatable=True),
    Method("notifications/initialized", _NOTIFICATION, _CLIENT, _LOCAL, last=_SESSIONS),
    Method("notifications/cancelled", _NOTIFICATION, _BOTH, _MAPPED),
    Method("notifications/progress", _NOTIFICATION, _BOTH, _MAPPED, last_from_client=_SESSIONS),
    Method(
        SET_LEVEL,
        _REQUEST,
        _CLIENT,
        _FAN_OUT,
        last=_SESSIONS,
        server_capability=("logging",),
        repeatable=True,
    ),
    Method("notifications/message", _NOTIFICATION, _SERVER, _RELAYED, server_capability=("logging",)),
    # The capability is younger than the method: see `capabilities.allows`.
    Method(
        "completion/complete",
        _REQUEST,
        _CLIENT,
        _ROUTED,
        server_capability=("completions",),
        repeatable=True,
    ),
    # Tools.
    Method("tools/list", _REQUEST, _CLIENT, _MERGED, server_capability=_TOOLS, items="tools", repeatable=True),
    Method("tools/call", _REQUEST, _CLIENT, _ROUTED, server_capability=_TOOLS, eligible=True),
    Method(
        LIST_CHANGED["tools"],
        _NOTIFICATION,
        _SERVER,
        _COALESCED,
        server_capability=("tools", "listChanged"),
    ),
    # Prompts.
    Method("prompts/list", _REQUEST, _CLIENT, _MERGED, server_capability=_PROMPTS, items="prompts", repeatable=True),
    Method(
        "prompts/get",
        _REQUEST,
        _CLIENT,
        _ROUTED,
        server_capability=_PROMPTS,
        repeatable=True,
        eligible=True,
    ),
    Method(
        LIST_CHANGED["prompts"],
        _NOTIFICATION,
        _SERVER,
        _COALESCED,
        server_capability=("prompts", "listChanged"),
    ),
    # Resources.
    Method(
        "resources/list", _REQUEST, _CLIENT, _MERGED, server_capability=_RESOURCES, items="resources", repeatable=True
    ),
    Method(
        "resources/templates/list",
        _REQUEST,
        _CLIENT,
        _MERGED,
        server_capability=_RESOURCES,
        items="resourceTemplates",
        repeatable=True,
    ),
    Method(
        "resources/read",
        _REQUEST,
        _CLIENT,
        _ROUTED,
        server_capability=_RESOURCES,
        repeatable=True,
        eligible=True,
    ),
    Method(
        SUBSCRIBE,
        _REQUEST,
        _CLIENT,
        _ROUTED,
        last=_SESSIONS,
        server_capability=_SUBSCRIBE,
        repeatable=True,
    ),
    Method(
        UNSUBSCRIBE,
        _REQUEST,
        _CLIENT,
        _ROUTED,
        last=_SESSIONS,
        server_capability=_SUBSCRIBE,
        repeatable=True,
    ),
    Method(UPDATED, _NOTIFICATION, _SERVER, _RELAYED, server_capability=_SUBSCRIBE),
    Method(
        LIST_CHANGED["resources"],
        _NOTIFICATION,
        _SERVER,
        _COALESCED,
        server_capability=("resources", "listChanged"),
    ),
    # One stream for what changes (2026-07-28, patterns/subscriptions).
    Method("subscriptions/listen", _REQUEST, _CLIENT, _FAN_OUT, since=MODERN, repeatable=True),
    Method(ACKNOWLEDGED, _NOTIFICATION, _SERVER, _LOCAL, since=MODERN),
    # What the server asks of the client. (Later revisions have the same in results, not as requests.)
    Method("sampling/createMessage", _REQUEST, _SERVER, _RELAYED, last=_SESSIONS, client_capability=("sampling",)),
    Method("roots/list", _REQUEST, _SERVER, _RELAYED, last=_SESSIONS, client_capability=("roots",), repeatable=True),
    Method(
        "notifications/roots/list_changed",
        _NOTIFICATION,
        _CLIENT,
        _FAN_OUT,
        last=_SESSIONS,
        client_capability=("roots", "listChanged"),
    ),
    Method(
        "elicitation/create",
        _REQUEST,
        _SERVER,
        _RELAYED,
        since="2025-06-18",
        last=_SESSIONS,
        client_capability=("elicitation",),
    ),
    Method(
        "notifications/elicitation/complete",
        _NOTIFICATION,
        _SERVER,
        _RELAYED,
        since="2025-11-25",
        last=_SESSIONS,
        client_capability=("elicitation", "url"),
    ),
    # Tasks of 2025-11-25, which either end may run for the other: the capability is that of the end that runs them.
    *(
        Method(
            name,
            _REQUEST,
            _BOTH,
            treatment,
            since="2025-11-25",
            last=_SESSIONS,
            server_capability=capability,
            repeatable=name == "tasks/get",
        )
        for name, treatment, capability in (
            ("tasks/get", _ROUTED, ("tasks",)),
            ("tasks/result", _ROUTED, ("tasks",)),
            ("tasks/cancel", _ROUTED, ("tasks", "cancel")),
            ("tasks/list", _REFUSED, ("tasks", "list")),
        )
    ),
    Method(
        "notifications/tasks/status",
        _NOTIFICATION,
        _BOTH,
        _RELAYED,
        since="2025-11-25",
        last=_SESSIONS,
        server_capability=("tasks",),
    ),
)

METHODS: Final[dict[str, Method]] = {row.name: row for row in _ROWS}

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
