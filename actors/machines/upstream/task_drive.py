"""A tool that runs only as a task (2025-11-25, tasks), called for a client that has no tasks: the gateway makes the
task, looks after it, and gives the client the tool's result as if nothing had been.

`step(drive, event)` gives the next state and the effects, without a clock or IO. `tasks/result` blocks until the
end and is the channel for the server's server requests, so it is sent as soon as the task is over or needs input;
until then the task is polled, which no broken connection can spoil. The call itself is sent once, whatever happens.
"""

from enum import Enum
from typing import Final, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.protocol import errors
from actors.protocol.capabilities import Capabilities
from actors.protocol.errors import Malformed
from actors.protocol.messages import EMPTY
from actors.protocol.outcomes import INPUT_REQUIRED, code_of
from actors.protocol.payload import dumps, is_object, loads, members, mentions, replace_members, text_or_none
from actors.protocol.tasks import unrelated

POLL_DEFAULT: Final = 1.0
"""Seconds between polls of a server that suggests none."""
POLL_MIN: Final = 0.25
POLL_MAX: Final = 60.0
FAILURES_MAX: Final = 3
"""Requests about the task that may fail in a row; what is asked about is running at the server all the while."""

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


class Phase(Enum):
    """Where a drive is."""

    CREATING = "creating"
    """The call is sent; the task is not known yet."""
    WAITING = "waiting"
    """Until the next poll."""
    POLLING = "polling"
    """`tasks/get` is sent."""
    FETCHING = "fetching"
    """`tasks/result` is sent."""
    ABANDONED = "abandoned"
    """Nobody wants the result, and the task is not known yet: once it is, it is cancelled."""
    OVER = "over"


TRANSITIONS: Final[dict[tuple[Phase, str], Phase]] = {
    (Phase.CREATING, "working"): Phase.WAITING,
    (Phase.CREATING, "to fetch"): Phase.FETCHING,
    (Phase.CREATING, "outcome"): Phase.OVER,
    (Phase.CREATING, "cancelled"): Phase.ABANDONED,
    (Phase.WAITING, "due"): Phase.POLLING,
    (Phase.WAITING, "to fetch"): Phase.FETCHING,
    (Phase.WAITING, "cancelled"): Phase.OVER,
    (Phase.POLLING, "working"): Phase.WAITING,
    (Phase.POLLING, "to fetch"): Phase.FETCHING,
    (Phase.POLLING, "failed"): Phase.WAITING,
    (Phase.POLLING, "outcome"): Phase.OVER,
    (Phase.POLLING, "cancelled"): Phase.OVER,
    (Phase.FETCHING, "outcome"): Phase.OVER,
    (Phase.FETCHING, "failed"): Phase.WAITING,
    (Phase.FETCHING, "cancelled"): Phase.OVER,
    (Phase.ABANDONED, "outcome"): Phase.OVER,
}


class Drive(Struct, frozen=True):
    """`request` is the number of the newest request, `wait` the seconds until the next poll, `failures` those in a row;
    `can_cancel`: the server said that tasks can be; `server` is its name."""

    phase: Phase = Phase.CREATING
    request: int = 0
    task: str = ""
    wait: float = POLL_DEFAULT
    failures: int = 0
    can_cancel: bool = False
    server: str | None = None


# Events ------------------------------------------------------------------------------------------------------


class Answered(Struct, frozen=True):
    """The outcome of the request with this number; `lost`: the connection made it, not the server."""

    request: int
    ok: bool
    payload: Raw
    lost: bool = False


class PollDue(Struct, frozen=True):
    """The time that StartPoll asked for is over."""


class StatusNotified(Struct, frozen=True):
    """`notifications/tasks/status`, of any task of the connection."""

    params: Raw


class Cancelled(Struct, frozen=True):
    """Nobody wants the result any more."""

    reason: str


Event: TypeAlias = Answered | PollDue | StatusNotified | Cancelled

# Effects -----------------------------------------------------------------------------------------------------


class Send(Struct, frozen=True):
    """A request for the server; its outcome comes as Answered with this number."""

    request: int
    method: str
    params: Raw


class Drop(Struct, frozen=True):
    """The outcome of this request is of no use any more: cancel it."""

    request: int
    reason: str


class StartPoll(Struct, frozen=True):
    """PollDue after so many seconds."""

    seconds: float


class StopPoll(Struct, frozen=True):
    """PollDue is not wanted any more."""


class Finish(Struct, frozen=True):
    """The outcome of the call: a result, or the JSON-RPC error object."""

    ok: bool
    payload: Raw


Effect: TypeAlias = Send | Drop | StartPoll | StopPoll | Finish
Step: TypeAlias = tuple[Drive, list[Effect]]


# Which calls -------------------------------------------------------------------------------------------------


def needs_task(tool: Raw, server: Capabilities) -> bool:
    """Whether a tool of a list can be called as a task only. Raises Malformed for what is no object."""
    if not mentions(tool, b"taskSupport") or not server.has(("tasks", "requests", "tools", "call")):
        return False
    execution = members(tool).get("execution", EMPTY)
    return is_object(execution) and text_or_none(members(execution).get("taskSupport")) == "required"


# The machine -------------------------------------------------------------------------------------------------


def start(params: Raw, server: Capabilities, ttl: float | None = None, name: str | None = None) -> Step:
    """Begins with the call to the server of this name; `ttl`: the seconds after which nobody will want the result.
    Raises Malformed."""
    task = dumps({} if ttl is None else {"ttl": int(1000 * ttl)})
    drive = Drive(can_cancel=server.has(("tasks", "cancel")), server=name)
    return drive, [Send(0, "tools/call", replace_members(params, {"task": task}))]


def step(drive: Drive, event: Event) -> Step:
    """One event. Never raises for anything that a server can send; what comes too late changes nothing."""
    match event:
        case Answered():
            return _answered(drive, event) if event.request == drive.request else (drive, [])
        case PollDue():
            return _send(_moved(drive, "due"), "tasks/get") if drive.phase is Phase.WAITING else (drive, [])
        case StatusNotified(params):
            return _told(drive, params)
        case Cancelled(reason):
            return _cancelled(drive, reason)


def _answered(drive: Drive, event: Answered) -> Step:
    match drive.phase:
        case Phase.CREATING:
            return _created(drive, event)
        case Phase.POLLING:
            return _polled(drive, event)
        case Phase.FETCHING:
            if event.lost:
                return _failed(drive, event.payload)
            return _finish(drive, event.ok, unrelated(event.payload) if event.ok else event.payload)
        case Phase.ABANDONED:
            task = _task_of(event.payload) if event.ok else None
            over = _moved(drive, "outcome")
            return (over, []) if task is None else _cancel_task(replace(over, task=task[0]))
        case _:
            return drive, []


def _created(drive: Drive, event: Answered) -> Step:
    """A server that gives the result at once had no use for a task."""
    task = _task_of(event.payload) if event.ok else None
    if task is None:
        return _finish(drive, event.ok, event.payload)
    return _looked(replace(drive, task=task[0]), task[1])


def _polled(drive: Drive, event: Answered) -> Step:
    task = _read(event.payload) if event.ok else None
    if task is not None and task[0] == drive.task:
        return _looked(drive, task[1])
    if not event.ok and not event.lost and code_of(event.payload) == errors.INVALID_PARAMS:
        gone = errors.internal("the task is gone", reason="task_gone", executed="unknown", backend=drive.server)
        return _finish(drive, False, gone.raw)
    return _failed(drive, event.payload if not event.ok else EMPTY)


def _told(drive: Drive, params: Raw) -> Step:
    """What a poll would have found out; a status of before the newest poll may be older than its outcome."""
    task = _read(params)
    if drive.phase is not Phase.WAITING or task is None or task[0] != drive.task or not _to_fetch(task[1]):
        return drive, []
    drive, effects = _looked(drive, task[1])
    return drive, [StopPoll(), *effects]


def _looked(drive: Drive, task: dict[str, Raw]) -> Step:
    drive = replace(drive, wait=_interval(task, drive.wait), failures=0)
    if _to_fetch(task):
        return _send(_moved(drive, "to fetch"), "tasks/result")
    return _moved(drive, "working"), [StartPoll(drive.wait)]


def _failed(drive: Drive, payload: Raw) -> Step:
    drive = replace(drive, failures=drive.failures + 1)
    if drive.failures >= FAILURES_MAX:
        text, server = "the server's task is malformed", drive.server
        error = errors.internal(text, reason="malformed", executed="unknown", backend=server)
        return _finish(drive, False, payload or error.raw)
    return _moved(drive, "failed"), [StartPoll(drive.wait)]


def _cancelled(drive: Drive, reason: str) -> Step:
    """A call that became a task is cancelled as one, and by nothing else (tasks, "Task Cancellation")."""
    if (drive.phase, "cancelled") not in TRANSITIONS:
        return drive, []
    request, phase, drive = drive.request, drive.phase, _moved(drive, "cancelled")
    if drive.phase is Phase.ABANDONED:
        return drive, []
    stop: Effect = StopPoll() if phase is Phase.WAITING else Drop(request, reason)
    drive, effects = _cancel_task(drive)
    return drive, [stop, *effects]


def _cancel_task(drive: Drive) -> Step:
    return _send(drive, "tasks/cancel") if drive.can_cancel else (drive, [])


def _finish(drive: Drive, ok: bool, payload: Raw) -> Step:
    return _moved(drive, "outcome"), [Finish(ok, payload)]


def _send(drive: Drive, method: str) -> Step:
    drive = replace(drive, request=drive.request + 1)
    return drive, [Send(drive.request, method, dumps({"taskId": drive.task}))]


def _moved(drive: Drive, cause: str) -> Drive:
    return replace(drive, phase=TRANSITIONS[drive.phase, cause])


# Payloads ----------------------------------------------------------------------------------------------------

_Task: TypeAlias = tuple[str, dict[str, Raw]]


def _task_of(result: Raw) -> _Task | None:
    """The task of a CreateTaskResult; None if it is no such result."""
    try:
        return _read(members(result).get("task", EMPTY))
    except Malformed:
        return None


def _read(raw: Raw) -> _Task | None:
    """The id and the members of a task; None for what is none."""
    try:
        task = members(raw) if is_object(raw) else {}
    except Malformed:
        return None
    id, status = text_or_none(task.get("taskId")), text_or_none(task.get("status"))
    return None if id is None or status is None else (id, task)


def _to_fetch(task: dict[str, Raw]) -> bool:
    return text_or_none(task["status"]) in TERMINAL | {INPUT_REQUIRED}


def _interval(task: dict[str, Raw], before: float) -> float:
    """Seconds until the next poll: what the server suggests, within reason."""
    try:
        value = loads(task["pollInterval"]) if "pollInterval" in task else None
    except Malformed:
        return before
    if not isinstance(value, int | float) or isinstance(value, bool):
        return before
    return min(max(value, 1000 * POLL_MIN), 1000 * POLL_MAX) / 1000
