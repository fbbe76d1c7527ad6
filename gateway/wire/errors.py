"""What can go wrong with a child process, and with an outgoing request, and whether the peer may have acted on that.

`sent` is the one thing that a caller decides by: False means that surely no byte of the request was given to the
peer, so that it was not executed; True that it may have been, and must not be sent again.
"""

from actors.protocol.diagnostics import without_addresses


class SpawnError(Exception):
    """A child process could not be started; the text says why, for operators, and `told` for clients: without an
    address."""

    @property
    def told(self) -> str:
        return without_addresses(str(self))


class WireError(Exception):
    """Root of the errors here; the text is for people and holds no address, no header and no body."""

    def __init__(self, message: str, *, sent: bool, origin: str = "") -> None:
        super().__init__(message)
        self.sent = sent
        self.origin = origin

    @property
    def detail(self) -> str:
        """With the address, for operators."""
        return f"{self.origin}: {self}" if self.origin else str(self)


class ConnectError(WireError):
    """No connection: refused, unreachable, unknown host, TLS, or too slow."""

    def __init__(self, message: str, origin: str = "") -> None:
        super().__init__(message, sent=False, origin=origin)


class PoolFullError(WireError):
    """All connections to the origin are in use, and none came free in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class NoRoomError(PoolFullError):
    """No connection may be opened now, whatever the origin: one that is there may come free."""


class HeaderError(WireError, ValueError):
    """A header that would break the framing. The text does not show its value."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)


class PeerError(WireError):
    """The peer closed early, or what it says is not HTTP."""


class DeadlineError(WireError):
    """The peer took too long to read or to answer."""


class SizeError(WireError):
    """The answer is larger than the caller allows."""
