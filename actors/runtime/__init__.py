"""A small OTP on trio: actors, mailboxes, supervisors. Its guarantees are in `README.md`."""

from actors.runtime.actor import Actor, Context
from actors.runtime.boundary import Boundary, boundary, thread_boundary
from actors.runtime.cell import Down
from actors.runtime.exits import (
    CANCELLED,
    NORMAL,
    SHUTDOWN,
    ActorDown,
    AlreadyStarted,
    AtCapacity,
    Exit,
    ExitKind,
    MailboxFull,
    NotTaken,
    SystemClosed,
    SystemFailed,
    crashed,
)
from actors.runtime.mailbox import MailboxStatistics
from actors.runtime.ref import Ref, Registry
from actors.runtime.reply import Reply
from actors.runtime.supervisor import Child, DynamicSupervisor, Supervisor
from actors.runtime.system import System, SystemStatistics, open_system
from actors.runtime.tables import EMPTY_SET, EMPTY_TABLE, put, without
from actors.runtime.tasks import Task, TaskEnded

__all__ = [
    "CANCELLED",
    "EMPTY_SET",
    "EMPTY_TABLE",
    "NORMAL",
    "SHUTDOWN",
    "Actor",
    "ActorDown",
    "AlreadyStarted",
    "AtCapacity",
    "Boundary",
    "Child",
    "Context",
    "Down",
    "DynamicSupervisor",
    "Exit",
    "ExitKind",
    "MailboxFull",
    "MailboxStatistics",
    "NotTaken",
    "Ref",
    "Registry",
    "Reply",
    "Supervisor",
    "System",
    "SystemClosed",
    "SystemFailed",
    "SystemStatistics",
    "Task",
    "TaskEnded",
    "boundary",
    "crashed",
    "open_system",
    "put",
    "thread_boundary",
    "without",
]
