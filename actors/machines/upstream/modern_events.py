"""What happens to an upstream connection to a modern backend, and what it wants done, as far as it differs from the
other era (`actors.machines.upstream.events`, whose names mean the same here)."""

from collections.abc import Hashable
from typing import Literal, TypeAlias

from msgspec import Raw, Struct

from actors.machines.upstream import events as ev
from actors.machines.upstream.events import CallKey
from actors.protocol.diagnostics import NO_DIAGNOSTICS, Diagnostics
from actors.protocol.messages import Message, RequestId
from actors.protocol.rights import NO_RIGHTS, Rights

TimerKey: TypeAlias = tuple[Hashable, ...]
"""Names a timer of the machine; opaque elsewhere."""


class Caller(Struct, frozen=True):
    """On whose behalf the upstream connection calls the backend: what the gateway says of a client with each
    request."""

    principal: str
    """Who asks: part of every key under which something is kept for them."""
    capabilities: Raw
    """The capabilities to declare for this request: what can really be obtained from this client."""
    info: Raw
    """The client's Implementation; EMPTY: not known."""
    level: str | None
    """The least level of the log messages that are wanted; None: none are."""
    drives: bool
    """Whether the upstream connection asks the client itself for input that the backend needs, and goes on with the
    answers. If not, an InputRequiredResult is the outcome."""
    as_is: bool = False
    """Whether what the backend says of this call passes as it is: the client is of this era, and has this one backend
    before it."""


# Events ------------------------------------------------------------------------------------------------------


class Called(Struct, frozen=True):
    """A request for the backend, by `caller`, on behalf of `client`; `mends`: once more, if its headers are refused."""

    call: CallKey
    caller: Hashable
    method: str
    params: Raw
    client: Caller
    progress: bool = False
    mends: bool = True
    rights: Rights = NO_RIGHTS
    """With which it is asked."""


class Notified(Struct, frozen=True):
    """A notification for the backend, of a client of this era."""

    method: str
    params: Raw
    principal: str = ""


class Joined(Struct, frozen=True):
    """Somebody of the other era uses the upstream connection: they hear of changes without asking for it."""

    caller: Hashable


class Left(Struct, frozen=True):
    """They do no more. Their calls were abandoned one by one."""

    caller: Hashable


class Incoming(Struct, frozen=True):
    """A message of the backend, decoded: on the stream of request `related`, with this HTTP status if it is a
    refusal."""

    message: Message
    related: RequestId | None = None
    status: int | None = None


class Failed(Struct, frozen=True):
    """The request with this upstream id gets no response."""

    id: RequestId
    reason: str
    message: str
    executed: Literal["no", "unknown"]
    status: int | None = None
    diagnostics: Diagnostics = NO_DIAGNOSTICS


class Spoke(Struct, frozen=True):
    """The process behind the transport has said something for the first time."""


class TimerDue(Struct, frozen=True):
    """A timer that the machine started."""

    key: TimerKey


class Reconsidered(Struct, frozen=True):
    """What is known of the backend's era has changed: it may be asked again."""


Event: TypeAlias = (
    Called
    | Notified
    | Joined
    | Left
    | Incoming
    | Failed
    | Spoke
    | TimerDue
    | Reconsidered
    | ev.AnswerGiven
    | ev.Wanted
    | ev.Abandoned
    | ev.Started
    | ev.ConnectRefused
    | ev.Closed
    | ev.ConnectExpired
    | ev.RetryDue
    | ev.Shut
)

# Effects -----------------------------------------------------------------------------------------------------


class Withdraw(Struct, frozen=True):
    """The caller need not answer this `ServerRequest` any more."""

    caller: Hashable
    id: str


class NotifyCaller(Struct, frozen=True):
    """A notification for one caller, in the course of no call."""

    caller: Hashable
    method: str
    params: Raw


class Keep(Struct, frozen=True):
    """A result of a call that may be kept for later requests like this one."""

    call: CallKey
    method: str
    params: Raw
    client: Caller
    payload: Raw


class Judged(Struct, frozen=True):
    """Whether the backend speaks this era. None: what was known of it is in doubt. `sure`: by what it said, and not by
    its silence. `said` is that, in a sentence that may hold addresses."""

    modern: bool | None
    sure: bool = True
    said: str = ""


class WrongEra(Struct, frozen=True):
    """The backend speaks the other era; these calls were not sent. `news`: nobody was told that before."""

    calls: tuple[Called, ...]
    news: bool = True


class StartTimer(Struct, frozen=True):
    """`TimerDue` in so many seconds."""

    key: TimerKey
    seconds: float


class StartRetry(Struct, frozen=True):
    """`TimerDue` after the delay, with jitter, for this attempt."""

    key: TimerKey
    attempt: int


class StopTimer(Struct, frozen=True):
    """It is of no interest any more."""

    key: TimerKey


class LeftOut(Struct, frozen=True):
    """A tool was left out of a list, since no client on HTTP could call it."""

    tool: str
    why: str


Effect: TypeAlias = (
    Withdraw
    | NotifyCaller
    | Keep
    | Judged
    | WrongEra
    | StartTimer
    | StartRetry
    | StopTimer
    | LeftOut
    | ev.Connect
    | ev.Send
    | ev.Forget
    | ev.Hang
    | ev.HandOver
    | ev.Finish
    | ev.ServerRequest
    | ev.Notify
    | ev.Ready
    | ev.Down
    | ev.BackOff
    | ev.StartClock
    | ev.StopClock
    | ev.Count
)

Effects: TypeAlias = list[Effect]
