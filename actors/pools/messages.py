"""What an affinity pool is told and tells besides what a connection does (`actors.upstreams.messages`).

A pool has the connections of one modern client to one legacy server: to those who call it, it is a connection whose
calls may be suspended.
"""

from typing import Any, TypeAlias

from msgspec import Raw, Struct

from actors.machines.modern import suspended_calls as ev
from actors.machines.modern.input_required import InputRequest
from actors.ports import Incarnation
from actors.protocol.errors import Executed
from actors.runtime import Ref
from actors.upstreams import messages as um

# To and from its callers --------------------------------------------------------------------------------------


class UpstreamSuspended(Struct, frozen=True):
    """Instead of a LinkOutcome: the server asks, and its call stays pending while the client looks for answers. The
    call's number is over; whoever comes with the answers names `incarnation`, `suspend` and `round`, within
    `Limits.park_ttl` seconds."""

    backend: str
    call: int
    incarnation: str
    suspend: str
    round: int
    requests: tuple[InputRequest, ...]


class Resume(Struct, frozen=True):
    """Goes on with a suspended call, as `call`: a LinkOutcome, or a LinkParked of the next round, follows. -32602 if
    there is none such, it was taken already, or an answer is malformed (then it stays suspended as it was). `answers`
    by key; what is not answered is asked again. `level` as in `Caller`."""

    caller: Ref
    call: int
    incarnation: str
    suspend: str
    round: int
    answers: dict[str, Raw]
    progress: bool = False
    level: str | None = None


CallOrResume: TypeAlias = um.Call | Resume
"""What has an outcome."""


def unbegun(asked: CallOrResume) -> Executed:
    """Whether it may have been executed though it was not begun here: a retry goes on with a call that was."""
    return "unknown" if isinstance(asked, Resume) else "no"


class Admit(Struct, frozen=True):
    """`Join` for a client in another process: `Admitted` follows if the connections are held here, else `NotHere`."""

    caller: Ref


class Admitted(Struct, frozen=True):
    """The connections of the pool are held in this process."""


class NotHere(Struct, frozen=True):
    """The connections of the pool are not held here, or not any more. `owner`: who may have them. `unbegun`: calls of
    the receiver's that were not begun."""

    owner: Incarnation | None = None
    unbegun: tuple[int, ...] = ()


# Mail between the process that uses a pool and the one that owns it -------------------------------------------


class MailCame(Struct, frozen=True):
    """Letter `number` of a link with this other process, which has read ours up to number `seen`."""

    sender: Incarnation
    link: int
    number: int
    seen: int
    said: bytes


class Posted(Struct, frozen=True):
    """What became of the letter that was posted last on a link: the name of its entry, or Failed."""

    link: int
    outcome: Any


class Withdrawn(Struct, frozen=True):
    """Whether letter `number` of a link that is lost was taken back: True, or anything else."""

    link: int
    number: int
    outcome: Any


class ProcessDown(Struct, frozen=True):
    """A process is gone for good."""

    incarnation: Incarnation


LinkMessage: TypeAlias = MailCame | Posted | Withdrawn | ProcessDown
"""What comes of links."""


# Clocks -------------------------------------------------------------------------------------------------------


class PostDue(Struct, frozen=True):
    """Time to post once more what could not be posted."""


class CheckDue(Struct, frozen=True):
    """Time to ask for a word."""


class EnterDue(Struct, frozen=True):
    """Time to look for the owner once more."""


class LateDue(Struct, frozen=True):
    """It was looked for long enough."""


class ReadersKnown(Struct, frozen=True):
    """Who is there, and may read a record of this version, which is too new here."""

    version: int
    outcome: Any


class CallDue(Struct, frozen=True):
    """A clock of the machine."""

    event: ev.GatherOver | ev.WaitOver | ev.GraceOver | ev.Expired


class IdleDue(Struct, frozen=True):
    """Nobody has needed the connections for a while."""


class StaleDue(Struct, frozen=True):
    """The server is configured otherwise, and calls of before may be over."""


class RepliesDue(Struct, frozen=True):
    """Time to offer again what found no room in a mailbox."""


class KeepDue(Struct, frozen=True):
    """Time to keep the record from expiring."""


class DoubtDue(Struct, frozen=True):
    """Time to look whether it can be told who owns the connections."""
