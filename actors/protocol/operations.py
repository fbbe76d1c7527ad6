"""One request on its way, as whoever observes the gateway sees it: a client's at the gateway, or the gateway's at a
server. ("Operation" is OpenTelemetry's word in its conventions for MCP.)

An operation has one end. Whoever knows it first says it; what is said after that is not heard.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from actors.protocol import errors
from actors.protocol.errors import BROKEN
from actors.protocol.messages import RequestId
from actors.protocol.trace_context import NOTHING_CARRIED, Carried, TraceContext

Outcome: TypeAlias = Literal[
    "answered", "refused", "cancelled", "timed_out", "disconnected", "drained", "handed_over", "lost", "relayed"
]
"""How an operation ends. `drained`: with an error, for the process ends; `handed_over`: the session's next owner goes
on with it. `relayed`: the replica that owns the session has answered it, and says how it ended."""

Side: TypeAlias = Literal["server", "client", "resumption"]
"""Of whom a request is observed. A resumption is a client's GET with `Last-Event-ID`: no request, but work that goes on
with some."""

ID_SHOWN: Final = 64
"""Characters of a request's id that are told."""


class Audited(NamedTuple):
    """What the audit trail says of a request beside its end: who asks, and for what. `args` is what it may say of its
    arguments; None: nothing."""

    principal: str
    iss: str = ""
    client_id: str = ""
    ip: str = ""
    item: str = ""
    args: Any = None


class Operation(msgspec.Struct, eq=False):
    """What is known of it. `began` and `span` are the observer's own."""

    observer: "Observer"
    side: Side
    method: str
    """Empty: it could not be read."""
    carried: Carried = NOTHING_CARRIED
    """What it brings of the work that it is part of."""
    request_id: RequestId | None = None
    tool: str = ""
    endpoint: str = ""
    session: str = ""
    """The handle, by which nobody can use it."""
    era: str = ""
    version: str = ""
    transport: str = ""
    backend: str = ""
    peer: str = ""
    """The address at the other end of its client's connection."""
    links: tuple[TraceContext, ...] = ()
    """Earlier work that this one goes on with."""
    context: TraceContext | None = None
    """Where it is itself; None: nobody traces it."""
    audited: Callable[[], Audited] | None = None
    """Reads what the audit trail is to say of it beside its end; None: nothing."""
    began: float = 0.0
    span: Any = None
    received: bool = False
    """A session of this process has it."""
    taken: bool = False
    """An actor has it, and will say how it ends."""
    without_client: bool = False
    """Its connection is gone, and its work goes on."""
    outcome: Outcome | None = None
    error: str = ""
    """OpenTelemetry's `error.type`; empty: it went well."""
    code: int | None = None
    """Of its JSON-RPC error."""
    status: int = 0
    """Of the HTTP answer, where that is known."""

    def __post_init__(self) -> None:
        self.observer.began(self)

    @property
    def id(self) -> str:
        """Of its request, as it is told."""
        return "" if self.request_id is None else str(self.request_id)[:ID_SHOWN]

    @property
    def trace_id(self) -> str:
        """The id of the trace that it is part of; empty: of none."""
        found = self.context or self.carried.context
        return found.trace_id if found is not None else ""

    @property
    def span_id(self) -> str:
        """The id of the span that it is, or that it is for; empty: of none."""
        found = self.context or self.carried.context
        return found.span_id if found is not None else ""

    @property
    def recorded_trace(self) -> str:
        """The same, if somebody records it: of another there is nothing to look at."""
        found = self.context or self.carried.context
        return found.trace_id if found is not None and found.sampled else ""

    @property
    def mark(self) -> str:
        """What a record keeps of it, so that later work can point at it: a `traceparent` if there is one."""
        found = self.context or self.carried.context
        return found.parent if found is not None else "-"

    def ended(self, outcome: Outcome, error: str = "", code: int | None = None, status: int = 0) -> None:
        """It has its end."""
        if self.outcome is not None:
            return
        if self.without_client and outcome == "answered":
            outcome = "disconnected"
        self.outcome, self.error, self.code, self.status = outcome, error, code, status
        self.observer.ended(self)

    def given_up(self, error: errors.ProtocolError | None) -> None:
        """Nobody waits for its outcome any more; its client gets this error, or is gone."""
        if error is None:
            gone: Outcome = "disconnected" if self.side == "server" else "cancelled"
            self.ended(gone, gone)
        else:
            self.ended(outcome_of(error), str(error.code), error.code)


class Observer(Protocol):
    """Hears of each operation twice. Neither may wait or raise."""

    @property
    def traces(self) -> bool:
        """Whether it wants to hear of the gateway's calls at servers too."""

    @property
    def names(self) -> bool:
        """Whether it wants to know from the beginning which tool a call is of."""

    def began(self, operation: Operation) -> None:
        """It begins: `context` is set here, if somebody traces it."""

    def ended(self, operation: Operation) -> None:
        """It has its end: `outcome` and what is beside it."""


class _Data(msgspec.Struct):
    reason: str = ""


class _Error(msgspec.Struct):
    code: int = 0
    data: _Data | None = None


class _Answer(msgspec.Struct):
    error: _Error | None = None


REASONS: Final[dict[str, Outcome]] = {
    "timeout": "timed_out",
    "draining": "drained",
    "shutdown": "drained",
    "moved": "drained",
    "owner_lost": "lost",
    "crashed": "lost",
    "actor_ended": "lost",
}
"""Of an error that the gateway gives a request: how that ended."""

_decode_error: Callable[[Any], _Error] = msgspec.json.Decoder(_Error).decode
_decode_answer: Callable[[Any], _Answer] = msgspec.json.Decoder(_Answer).decode


def _outcome(code: int, data: _Data | None, otherwise: Outcome) -> Outcome:
    if code == errors.REQUEST_CANCELLED:
        return "cancelled"
    return REASONS.get(data.reason, otherwise) if data is not None else otherwise


def outcome_of(error: errors.ProtocolError) -> Outcome:
    """How a request in hand ends that gets this error of ours."""
    read = _decode_error(error.raw)
    return _outcome(read.code, read.data, "cancelled")


def answered(operation: Operation, status: int, body: bytes) -> None:
    """The whole answer to its POST is there, and nobody has said more of it."""
    try:
        error = _decode_answer(body).error if body else None
    except BROKEN:
        error = None
    if error is None:
        operation.ended("answered" if status < 400 else "refused", "" if status < 400 else str(status), None, status)
    else:
        operation.ended(_outcome(error.code, error.data, "refused"), str(error.code), error.code, status)
