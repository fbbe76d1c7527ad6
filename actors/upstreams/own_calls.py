"""Requests that an actor makes of a backend for itself: log levels, pings, pages of lists, the end of subscriptions."""

import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Raw, Struct

from actors.protocol import errors
from actors.runtime import EMPTY_TABLE, Context, put

Then = Callable[[bool, Raw], object]
"""Gets the outcome: a result, or the JSON-RPC error object."""


class OwnDue(Struct, frozen=True):
    """A request of the actor's own takes too long."""

    call: int


class _Waiting(NamedTuple):
    then: Then
    cancel: Callable[[int, str], object]
    backend: str | None


class OwnCalls:
    """Those of one actor, by numbers below zero, which no caller's call has. Each has one outcome.

    The actor hands over what comes for them: outcomes to `outcome`, and the OwnDue of the deadline to `overdue`.
    """

    __slots__ = ("_backend", "_ctx", "_deadline", "_last", "_waiting")

    def __init__(self, ctx: Context, deadline: float, backend: str | None = None) -> None:
        """`deadline` is in seconds, of those calls that bring none; `backend` is named when one passes, where a call
        names no other."""
        self._ctx = ctx
        self._deadline = deadline
        self._backend = backend
        self._last = 0
        self._waiting: dict[int, _Waiting] = EMPTY_TABLE

    def make(
        self,
        send: Callable[[int], object],
        cancel: Callable[[int, str], object],
        then: Then,
        seconds: float | None = None,
        backend: str | None = None,
    ) -> int:
        """A call: its number, which `send` gets; the outcome may be there before this returns. `cancel` takes it back,
        for a reason. It has so many `seconds` (None: as many as any other; infinite: no deadline here)."""
        self._last -= 1
        call = self._last
        self._waiting = put(self._waiting, call, _Waiting(then, cancel, backend or self._backend))
        self.limit(call, seconds)
        send(call)
        return call

    def limit(self, call: int, seconds: float | None = None) -> None:
        """Gives a call of ours a deadline."""
        left = self._deadline if seconds is None else seconds
        if left < math.inf:
            self._ctx.set_timer(("own", call), left, OwnDue(call))

    def outcome(self, call: int, ok: bool, payload: Raw) -> bool:
        """Gives the outcome of one of these calls to whoever waits for it; False if nobody does."""
        waiting = self._taken(call)
        if waiting is not None:
            waiting.then(ok, payload)
        return waiting is not None

    def overdue(self, call: int) -> None:
        """A backend that never answers must not be waited for."""
        waiting = self._taken(call)
        if waiting is not None:
            waiting.cancel(call, "deadline exceeded")
            waiting.then(False, errors.unanswered(waiting.backend).raw)

    def drop(self, call: int, reason: str) -> None:
        """The outcome is of no use any more."""
        waiting = self._taken(call)
        if waiting is not None:
            waiting.cancel(call, reason)

    def _taken(self, call: int) -> _Waiting | None:
        waiting = self._waiting.pop(call, None)
        self._waiting = self._waiting or EMPTY_TABLE
        if waiting is not None:
            self._ctx.cancel_timer(("own", call))
        return waiting
