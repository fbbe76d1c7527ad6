"""What a broker is told and tells besides what a link does (`actors.links.link_messages`).

A broker holds the connections to one backend with sessions for one client without: to those who call it, it is a link
whose calls may be parked.
"""

from msgspec import Raw, Struct

from actors.protocol.bridge.input_required import Parked
from actors.runtime import Ref

__all__ = ["LinkParked", "Parked", "Resume"]


class LinkParked(Struct, frozen=True):
    """Instead of a LinkOutcome: the backend asks, and its call stays pending while the client looks for answers. The
    call's number is over; whoever comes with the answers names `incarnation`, `park` and `round`, within
    `Limits.park_ttl` seconds."""

    backend: str
    call: int
    incarnation: str
    park: str
    round: int
    requests: tuple[Parked, ...]


class Resume(Struct, frozen=True):
    """Goes on with a parked call, as `call`: a LinkOutcome, or a LinkParked of the next round, follows. -32602 if there
    is none such, it was taken already, or an answer is malformed (then it stays parked as it was). `answers` by key;
    what is not answered is asked again. `level` as in `Caller`."""

    caller: Ref
    call: int
    incarnation: str
    park: str
    round: int
    answers: dict[str, Raw]
    progress: bool = False
    level: str | None = None
