"""The answer to one call, given once.

A call is queued, then taken or revoked; taken, it is settled (answered, failed, its actor down) or abandoned by its
caller. Each change is one synchronous step, so a call has exactly one outcome.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import trio

from actors.runtime.boundary import Boundary
from actors.runtime.exits import ActorDown, Exit, MailboxFull, NotTaken
from actors.runtime.mailbox import Place
from actors.runtime.tables import put

if TYPE_CHECKING:
    from actors.runtime.cell import Cell
    from actors.runtime.timers import Timer


class _State(Enum):
    QUEUED = "queued"
    TAKEN = "taken"
    SETTLED = "settled"
    ABANDONED = "abandoned"


class Reply(Place):
    """One-shot. The actor that took it answers or fails it, in whatever later message; both say whether it counted."""

    __slots__ = ("_cell", "_done", "_error", "_state", "_task", "_timer", "_value", "on_abandon")
    reserved = False

    on_abandon: Callable[[], object] | None
    """Set by the actor once it took the message: called, synchronously, if the caller is cancelled while it waits, or
    abandons it. It may run inside anybody's turn, so it should only `reply` to the actor; a raise in it is a crash of
    the actor."""

    def __init__(self, cell: "Cell", done: Callable[[Any], object] | None = None) -> None:
        self.on_abandon = None
        self._cell = cell
        self._done = done
        self._state = _State.QUEUED
        self._task: trio.lowlevel.Task | None = None
        self._timer: Timer | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<Reply of {self._cell.name}: {self._state.value}>"

    def answer(self, value: Any) -> bool:
        """The call returns `value`. False if nobody waits any more, or it was settled before."""
        return self._settle(value, None)

    def fail(self, error: Exception) -> bool:
        """The call raises `error`. False if nobody waits any more, or it was settled before."""
        return self._settle(None, error)

    @property
    def abandoned(self) -> bool:
        """Whether the caller was cancelled while it waited, or has abandoned it."""
        return self._state is _State.ABANDONED

    # As a place in the mailbox

    def taken(self) -> None:
        """The actor has it: the admission deadline is over, the wait is not."""
        self._disarm()
        if self._state is _State.QUEUED:
            self._state = _State.TAKEN
            self._cell.pending = put(self._cell.pending, self, None)

    def closed(self, name: str, reason: Exit) -> None:
        """The actor ended, with the call queued or taken."""
        self._settle(None, ActorDown(name, reason, taken=self._state is _State.TAKEN))

    # As the caller's side

    def abandon(self) -> None:
        """The outcome is of no use any more, and does not come: a queued message is revoked, of a taken one the actor
        is told. After the outcome it does nothing."""
        if self._state in (_State.QUEUED, _State.TAKEN):
            self._abandon()

    def ask(self, message: Any, admission: float) -> None:
        """Queues the message; see `Ref.ask`."""
        cell = self._cell
        if cell.reason is not None:
            self._settle(None, ActorDown(cell.name, cell.reason))
        elif not cell.offer(message, self):
            self._settle(None, MailboxFull(cell.name))
        elif self._state is _State.QUEUED:
            self._timer = cell.system.timers.start(admission, self._expire)

    async def outcome(self, message: Any, admission: float) -> Any:
        """Queues the message and waits; see `Ref.call`."""
        cell = self._cell
        if cell.reason is not None:
            raise ActorDown(cell.ref.name, cell.reason)
        if not cell.offer(message, self):
            raise MailboxFull(cell.ref.name)
        if self._state is _State.QUEUED:
            self._timer = cell.system.timers.start(admission, self._expire)
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame, which holds it
        return self._value

    def _expire(self) -> None:
        """The admission deadline passed while the message was queued."""
        self._cell.mailbox.revoke(self)
        self._settle(None, NotTaken(self._cell.ref.name))

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        """The caller is cancelled."""
        self._abandon()
        return trio.lowlevel.Abort.SUCCEEDED

    def _abandon(self) -> None:
        self._disarm()
        on_abandon, self.on_abandon = self.on_abandon, None
        if self._state is _State.QUEUED:
            self._cell.mailbox.revoke(self)
        self._cell.pending.pop(self, None)
        self._state = _State.ABANDONED
        self._task = self._done = None
        if on_abandon is not None:
            with Boundary(self._cell.callback_over):
                on_abandon()

    def _settle(self, value: Any, error: Exception | None) -> bool:
        if self._state not in (_State.QUEUED, _State.TAKEN):
            return False
        self._disarm()
        if self._state is _State.TAKEN:
            self._cell.pending.pop(self, None)
        self._state = _State.SETTLED
        self._value, self._error, self.on_abandon = value, error, None
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        elif self._done is not None:
            done, self._done, self._value, self._error = self._done, None, None, None
            done(value if error is None else error)
        return True

    def _disarm(self) -> None:
        if self._timer is not None:
            self._cell.system.timers.cancel(self._timer)
            self._timer = None
