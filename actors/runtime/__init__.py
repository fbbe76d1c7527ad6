"""A small OTP on trio: actors, mailboxes, supervisors. Its guarantees are in `README.md`."""

from actors.runtime.actor import Actor, Context
from actors.runtime.boundary import Boundary, boundary, thread_boundary
from actors.runtime.dynamic import DynamicSupervisor
from actors.runtime.exits import (
    CANCELLED,
    NORMAL,
    PASSIVATED,
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
from actors.runtime.intensity import Intensity
from actors.runtime.mailbox import MailboxStatistics
from actors.runtime.ref import Ref
from actors.runtime.registry import Down, Registry
from actors.runtime.reply import Reply
from actors.runtime.supervisor import RESTARTS, Child, Restart, Strategy, Supervisor
from actors.runtime.system import System, SystemStatistics, open_system
from actors.runtime.tasks import Task, TaskEnded

__all__ = [
    "CANCELLED",
    "NORMAL",
    "PASSIVATED",
    "RESTARTS",
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
    "Intensity",
    "MailboxFull",
    "MailboxStatistics",
    "NotTaken",
    "Ref",
    "Registry",
    "Reply",
    "Restart",
    "Strategy",
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
    "thread_boundary",
]
