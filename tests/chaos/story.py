"""What is written down of a run: by the clients, by the backends, and by whoever made the trouble. All times are of the
monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]
End = Literal["open", "whole", "cut", "left"]
"""How an exchange ended: not yet; in order; by the other side or the network; by the client itself."""


@dataclass(frozen=True)
class Seen:
    """One event of a stream, or a JSON answer (which has no id)."""

    at: float
    id: str | None
    message: Message | None


@dataclass(eq=False)
class Exchange:
    """One HTTP request. `holder`: the replica that held its connection, as the balancer says, if there was an answer
    at all. `after`: its Last-Event-ID."""

    method: str
    began: float
    after: str | None = None
    holder: str = ""
    status: int = 0
    seen: list[Seen] = field(default_factory=list)
    body: str = ""
    """Of a refusal."""
    ours: bool = True
    """Whether a replica answered, not the balancer for want of one."""
    taken: bool = True
    """Whether there was a replica to take the connection."""
    end: End = "open"
    ended: float = 0.0


@dataclass(eq=False)
class Call:
    """A request of a client, and all exchanges that were made for its answer. `key`: for a tool call the argument that
    no other call has, and that everything carries which comes of it."""

    who: str
    key: str
    id: int | str
    method: str
    began: float
    tool: str = ""
    backend: str = ""
    steps: int = 0
    """How often the tool says how far it is, before it answers."""
    takes: float = 0.0
    """How long the tool and its user take, if nothing goes wrong."""
    session: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    ended: float = 0.0
    """When there was an outcome, or the client gave up."""
    given_up: bool = False
    cancelled: bool = False
    """Its client says on the way that it has no more use for it."""

    @property
    def has_id(self) -> bool:
        """Whether the client was given an event id for it."""
        return any(seen.id is not None for exchange in self.exchanges for seen in exchange.seen)

    @property
    def answers(self) -> list[Seen]:
        """Every response to it that was seen, a repeated event included."""
        every = (seen for exchange in self.exchanges for seen in exchange.seen)
        return [seen for seen in every if seen.message is not None and is_answer(seen.message, self.id)]

    @property
    def result(self) -> Message | None:
        return next(
            (seen.message["result"] for seen in self.answers if seen.message and "result" in seen.message), None
        )

    @property
    def error(self) -> Message | None:
        return next((seen.message["error"] for seen in self.answers if seen.message and "error" in seen.message), None)

    @property
    def refusal(self) -> Exchange | None:
        """The exchange in which a replica refused it before anything was done."""
        first = self.exchanges[0] if self.exchanges else None
        return first if first is not None and first.ours and first.status >= 400 else None


def is_answer(message: Message, id: int | str) -> bool:
    return "method" not in message and message.get("id") == id


@dataclass(eq=False)
class Listening:
    """The GET stream of a session, over all its exchanges."""

    who: str
    session: str
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass(frozen=True)
class SdkCall:
    """What a client on an official SDK says of a call: it shows no exchanges."""

    who: str
    key: str
    began: float
    ended: float
    outcome: Literal["result", "error", "timeout"]
    progress: Sequence[tuple[str, int]] = ()
    text: str = ""
    steps: int = 0
    tool: str = ""
    executed: str = ""
    """What an error said of it."""
    takes: float = 0.0
    session: int = 0
    """The number of the first call of its session."""
    lost: bool = False
    """The session was not found."""
    """Seconds that the tool and its user take."""


Kind = Literal["kill", "pause", "drain"]
SLOWEST = 3.0
"""A machine that is slower than this gets its trouble as fast as one that is just so."""
NEVER = float("inf")


@dataclass(eq=False)
class Loss:
    """A replica was lost from `began` on; `left`: its process was gone; `until`: it was back."""

    replica: str
    kind: Kind
    began: float
    left: float = NEVER
    until: float = NEVER


@dataclass(frozen=True)
class Note:
    """A line of a backend's log."""

    at: float
    backend: str
    what: str
    key: str
    detail: str = ""


@dataclass
class Story:
    """A whole run. `stalls`: when the clients' own process stood still. `slowness`: how many times slower the machine
    is than the usual one. `deleted`: sessions that their clients ended, and when. `sdks`: who calls on an SDK.
    `unserved`: who was not served again after all trouble."""

    calls: list[Call] = field(default_factory=list)
    sdk_calls: list[SdkCall] = field(default_factory=list)
    sdks: list[str] = field(default_factory=list)
    listenings: list[Listening] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    slowness: float = 1.0
    deleted: dict[str, float] = field(default_factory=dict)
    unserved: list[str] = field(default_factory=list)

    @property
    def pace(self) -> float:
        """How much longer than on a usual machine troubles, and users between two calls, let wait."""
        return min(self.slowness, SLOWEST)

    def ended(self, session: str, by: float) -> bool:
        """Whether its client had ended the session by then."""
        return self.deleted.get(session, NEVER) <= by
