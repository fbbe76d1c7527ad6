"""What authorizes the requests of a transport, where that is more than headers that stand in the configuration.

A server's challenge (RFC 9110, section 11.6.1) is meant for the gateway: it goes to the credentials and nowhere else.
"""

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from actors.ports import NO_RIGHTS, Rights

CHALLENGING: Final = frozenset({401, 403})
"""Statuses by which a server may say that it wants other credentials. Of both it is sure that nothing was executed."""
TRIES: Final = 3
"""Requests in all for one that is refused so: with other tokens, and once with more rights."""


class Refusal(Struct, frozen=True):
    """There are no credentials that the server would take. `reason` is one of `actors.protocol.transport.UNAUTHORIZED`;
    the message is for clients."""

    reason: str
    message: str


def unbound() -> None:
    """Nothing was bound."""


class ProcessKey(Protocol):
    """What of the environment of a process is its user's alone."""

    async def take(self) -> tuple[str, str] | Refusal:
        """The variable, and its value. Takes a bounded time."""

    def bound(self, lost: Callable[[], object]) -> Callable[[], object]:
        """As in `Credentials`."""


class Credentials(Protocol):
    """Gives one transport its tokens. `rights` are those with which a client asks for what is sent; without any the
    gateway asks."""

    def usable(self, rights: Rights = NO_RIGHTS) -> bool:
        """Whether a request may be sent with `lines` as they are now."""

    def when_usable(self, again: Callable[[], object], rights: Rights = NO_RIGHTS) -> bool:
        """The same; if not, they are brought up to date, and `again` is called when that is done. It never waits."""

    def lines(self, rights: Rights = NO_RIGHTS) -> bytes:
        """Header lines for a request; none, if there is nothing to send."""

    def bound(self, lost: Callable[[], object]) -> Callable[[], object]:
        """A connection goes on with what was sent when it was made; `lost` is called when it must not, since its user
        has another account or none. What is returned ends that."""

    async def prepare(self, rights: Rights = NO_RIGHTS) -> None:
        """Brings them up to date. Takes a bounded time, and never fails."""

    def concern(self, status: int, challenge: str) -> bool:
        """Whether it is the credentials that a server refuses by this status and `WWW-Authenticate`."""

    async def refused(self, status: int, challenge: str, sent: bytes, rights: Rights = NO_RIGHTS) -> Refusal | None:
        """A server has refused what was `sent`. None: `lines` are others now, and the request may be made once more.
        Takes a bounded time."""
