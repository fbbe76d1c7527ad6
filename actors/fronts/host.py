"""What an endpoint has around it: the actor of its client, and the actors that all clients work with."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from actors.fronts.catalogue_messages import Key
from actors.fronts.last_known import LastKnown, neutral
from actors.fronts.memo import Memo
from actors.links.backends import Status
from actors.links.eras import Eras
from actors.named import Named
from actors.ports import Principal
from actors.protocol import events as ev
from actors.protocol.link_events import Hello
from actors.protocol.session_state import Client
from actors.runtime import Context, DynamicSupervisor


@dataclass(frozen=True, slots=True)
class Tree:
    """The actors that clients work with."""

    links: DynamicSupervisor
    backends: Named
    catalogue: Named
    expiry: Named
    hellos: dict[Key, Hello]
    """What each backend last said of itself to the catalogue."""
    memo: Memo
    """Merged lists and tables, shared by all sessions."""
    known: LastKnown
    """What outlives the process of what the catalogue knows."""
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a connection of anybody's has said that a list has changed: by backend and notification."""
    eras: Eras = field(default_factory=Eras)
    """Which era each backend speaks."""
    missing: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """By endpoint and list: what was missing when it was given last."""
    status: dict[str, Status] = field(default_factory=dict)
    """How each backend is, as the backends actor knows it."""

    def hello(self, key: Key) -> Hello | None:
        """What a backend last said of itself in this view, or to the gateway itself; perhaps before the last start."""
        found = self.hellos.get(key) or self.hellos.get(neutral(key.backend))
        return found or self.known.hello(key)

    def surely(self, key: Key) -> bool:
        """Whether it said so in this very view."""
        return key in self.hellos or self.known.hello(key, exactly=True) is not None


Said: TypeAlias = ev.CallEnded | ev.CallProgressed
"""What the clients of every kind are told."""


class Host(Protocol):
    """What an endpoint needs of the actor of its client."""

    ctx: Context
    principal: Principal

    def event(self, event: Said) -> None:
        """Steps the client's machine."""

    def routed(self, call: int) -> None:
        """A call that had to wait has found its backend."""

    @property
    def client(self) -> Client | None:
        """What the client said of itself."""

    @property
    def version(self) -> str:
        """The revision that the client speaks."""


class SessionHost(Host, Protocol):
    """What it needs besides of the actor of a session."""

    def event(self, event: ev.SessionEvent) -> None:
        """Steps the session's machine."""

    @property
    def epoch(self) -> int:
        """Of the session's present life."""

    @property
    def level(self) -> str | None:
        """The log level that the client chose, as in `Session`."""

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Changes the session's record."""

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as no record says of this call that it was not sent."""
