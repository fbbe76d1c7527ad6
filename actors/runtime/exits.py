"""Why an actor or a task ended, and the errors that follow from it."""

# ruff: noqa: N818 - they name conditions, in the words of OTP and trio

from dataclasses import dataclass
from enum import Enum


class ExitKind(Enum):
    """The ways to end."""

    NORMAL = "normal"
    """It had nothing more to do."""
    SHUTDOWN = "shutdown"
    """It was told to end."""
    CANCELLED = "cancelled"
    """Its cancel scope was cancelled, or the process was interrupted (tasks, connections)."""
    CRASHED = "crashed"
    """An exception escaped from it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Why something ended. `error` is the exception of a crash, without any cancellation that came with it."""

    kind: ExitKind
    error: BaseException | None = None
    detail: str = ""

    @property
    def abnormal(self) -> bool:
        """Whether it was a crash."""
        return self.kind is ExitKind.CRASHED

    def __str__(self) -> str:
        what = self.detail if self.error is None else repr(self.error)
        return f"{self.kind.value}: {what}" if what else self.kind.value


NORMAL = Exit(ExitKind.NORMAL)
SHUTDOWN = Exit(ExitKind.SHUTDOWN)
CANCELLED = Exit(ExitKind.CANCELLED)


def crashed(error: BaseException, detail: str = "") -> Exit:
    """The exit reason of a crash."""
    return Exit(ExitKind.CRASHED, error, detail)


class ActorDown(Exception):
    """The actor has ended, or ended before it answered. A call that was not `taken` was surely not executed; one that
    was may have been."""

    def __init__(self, name: str, reason: Exit, taken: bool = False) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason
        self.taken = taken

    def __str__(self) -> str:
        return f"{self.name} is down ({self.reason})"


class MailboxFull(Exception):
    """All ordinary places are taken: surely not executed."""


class NotTaken(Exception):
    """Still queued when the admission deadline passed, so it was revoked: surely not executed."""


class AlreadyStarted(Exception):
    """The name belongs to a living actor; `ref` is its address."""

    def __init__(self, name: str, ref: object) -> None:
        super().__init__(f"the name {name!r} is taken")
        self.name = name
        self.ref = ref


class AtCapacity(Exception):
    """The supervisor has as many children as it may have."""


class SystemClosed(Exception):
    """The system, or this supervisor, is ending and starts nothing more."""


class SystemFailed(Exception):
    """A supervisor at the top gave up, and the system has ended with it."""

    def __init__(self, name: str, reason: Exit) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} gave up ({self.reason})"
