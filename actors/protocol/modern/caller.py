"""On whose behalf a link calls a backend that has no sessions."""

from msgspec import Raw, Struct


class Caller(Struct, frozen=True):
    """What the gateway says of a client with each request to such a backend."""

    principal: str
    """Who asks: part of every key under which something is kept for them."""
    capabilities: Raw
    """The capabilities to declare for this request: what can really be obtained from this client."""
    info: Raw
    """The client's Implementation; EMPTY: not known."""
    level: str | None
    """The least level of the log messages that are wanted; None: none are."""
    drives: bool
    """Whether the link asks the client itself for input that the backend needs, and goes on with the answers. If not,
    an InputRequiredResult is the outcome."""
    as_is: bool = False
    """Whether what the backend says of this call passes as it is: the client is of this era, and has this one backend
    before it."""
