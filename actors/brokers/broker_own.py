"""What a broker asks of its backend for itself: log levels, pings, the end of subscriptions."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from actors.links.link_messages import Call, Cancel, LinkOutcome
from actors.runtime import Context, Ref


@dataclass(frozen=True, slots=True)
class OwnDue:
    """Such a call takes too long."""

    call: int
    link: Ref


class OwnCalls:
    """Those under way; their numbers are negative."""

    def __init__(self, ctx: Context, deadline: float) -> None:
        self._ctx = ctx
        self._deadline = deadline
        self._next = 0
        self._waiters: dict[int, Callable[[bool], None]] = {}

    def make(self, link: Ref, method: str, params: Raw, then: Callable[[bool], None]) -> None:
        """A call; `then` gets whether it succeeded, unless that takes too long."""
        self._next -= 1
        self._waiters[self._next] = then
        self._ctx.set_timer(("own", self._next), self._deadline, OwnDue(self._next, link))
        link.reply(Call(self._ctx.ref, self._next, method, params))

    def outcome(self, message: LinkOutcome) -> None:
        """Of one of them."""
        self._ctx.cancel_timer(("own", message.call))
        waiter = self._waiters.pop(message.call, None)
        if waiter is not None:
            waiter(message.ok)

    def due(self, message: OwnDue) -> None:
        """A backend that never answers must not be waited for."""
        if self._waiters.pop(message.call, None) is not None:
            message.link.reply(Cancel(self._ctx.ref, message.call, "deadline exceeded"))
