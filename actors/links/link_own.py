"""What a link asks of its backend for itself, by numbers that no caller has."""

from collections.abc import Callable, Hashable

from msgspec import Raw

from actors.links.link_messages import Cancel
from actors.protocol import errors
from actors.protocol import link_events as ev
from actors.runtime import Context

Then = Callable[[bool, Raw], None]
"""Gets the outcome: a result, or the JSON-RPC error object."""


class LinkOwn:
    """Of one link; `step` steps its machine, `deadline` is in seconds."""

    def __init__(self, backend: str, ctx: Context, step: Callable[[ev.LinkEvent], None], deadline: float) -> None:
        self.backend = backend
        self._ctx = ctx
        self._step = step
        self._deadline = deadline
        self._next = 0
        self._waiting: dict[int, Then] = {}

    def __contains__(self, key: Hashable) -> bool:
        return isinstance(key, tuple) and key[0] is self._ctx.ref

    @property
    def following(self) -> int:
        """The number that the next call gets."""
        return self._next + 1

    def make(
        self,
        method: str,
        params: Raw,
        then: Then,
        *,
        deadline: bool = True,
        seconds: float | None = None,
        progress: bool = False,
        eligible: bool = False,
    ) -> int:
        """A call: its number. `deadline`: it has one, of so many seconds (None: as any other)."""
        self._next += 1
        call = self._next
        self._waiting[call] = then
        if deadline:
            self.limit(call, seconds)
        self._step(ev.Called((self._ctx.ref, call), method, params, progress, eligible, final=True))
        return call

    def limit(self, call: int, seconds: float | None = None) -> None:
        """Gives a call a deadline."""
        overdue = Cancel(self._ctx.ref, call, "deadline exceeded")
        self._ctx.set_timer(("own", call), self._deadline if seconds is None else seconds, overdue)

    def outcome(self, call: int, ok: bool, payload: Raw) -> None:
        """Of one of them."""
        self._ctx.cancel_timer(("own", call))
        then = self._waiting.pop(call, None)
        if then is not None:
            then(ok, payload)

    def overdue(self, call: int) -> None:
        """A backend that never answers must not be waited for."""
        self._step(ev.Abandoned((self._ctx.ref, call), "deadline exceeded"))
        self.outcome(call, False, errors.unanswered(self.backend).raw)

    def drop(self, call: int, reason: str) -> None:
        """The outcome is of no use any more."""
        if self._waiting.pop(call, None) is not None:
            self._ctx.cancel_timer(("own", call))
            self._step(ev.Abandoned((self._ctx.ref, call), reason))
