"""Starting a child in a process group of its own, and ending that group for certain."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, cast

import trio
from msgspec import Struct
from trio.lowlevel import FdStream

from actors.protocol.table import Confinement, StdioTarget
from gateway.wire.confine import command_line, identity
from gateway.wire.errors import SpawnError

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")
"""Of the gateway's own environment, which holds secrets of the gateway and of other backends: what the official SDKs
pass on (HOME, LOGNAME, PATH, SHELL, TERM, USER), with locale, time zone and the directory for temporary files. Proxy
settings may hold a password; a backend that needs them names them in its `env`."""


CHUNK: Final = 65536
"""Bytes of one read from a pipe, and about of one write."""


class Patience(Struct, frozen=True):
    """Seconds that each step of ending a group may take before the next, harsher one."""

    stdin_closed: float = 1.5
    term: float = 1.5
    kill: float = 1.0

    @property
    def total(self) -> float:
        """The longest that ending takes: the descendants that outlive the leader get a last `term`."""
        return self.stdin_closed + 2 * self.term + self.kill


class Child(Struct, frozen=True):
    """A running child with its pipes. Its pid is the number of its process group too."""

    process: trio.Process
    stdin: FdStream
    stdout: FdStream
    stderr: FdStream

    @property
    def pid(self) -> int:
        return self.process.pid

    def close_pipes(self) -> None:
        """Closes our ends of all three pipes."""
        self.stdin.close()
        self.stdout.close()
        self.stderr.close()


def _environment(configured: Iterable[tuple[str, str]], own: Mapping[str, str]) -> dict[str, str]:
    """The inherited variables of `own`, overlaid by the configured ones."""
    inherited = {name: own[name] for name in INHERITED if name in own and not own[name].startswith("()")}
    return inherited | dict(configured)


class _Start(Struct, frozen=True):
    """What a child is started with."""

    words: list[str]
    env: dict[str, str]
    cwd: str | None


def _prepare(target: StdioTarget, confinement: Confinement) -> _Start:
    """Asks the system for users and programs, which may take a while. Raises SpawnError."""
    who = identity(confinement)
    own = os.environ if who is None else {**os.environ, **dict(who.env)}
    env = _environment(target.env, own)
    if who is not None and "TMPDIR" not in dict(target.env):
        env.pop("TMPDIR", None)  # it is the gateway's own
    cwd = target.cwd if target.cwd is not None or who is None else who.home
    return _Start(command_line(target, env, who), env, None if confinement.sandbox is not None else cwd)


async def spawn(target: StdioTarget, descriptors: tuple[int, int] | None = None) -> Child:
    """The running child, where the system allows with this limit of open files. Raises SpawnError."""
    confinement = target.confinement
    try:
        if confinement is None:
            start = _Start([target.command, *target.args], _environment(target.env, os.environ), target.cwd)
        else:
            start = await trio.to_thread.run_sync(_prepare, target, confinement, abandon_on_cancel=True)
        process = await trio.lowlevel.open_process(
            start.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=start.env,
            cwd=start.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SpawnError(_explain(target, error)) from error
    limited = confinement is not None and confinement.files is not None
    if descriptors is not None and not limited and sys.platform == "linux":
        with suppress(OSError):  # it has ended already, or runs as somebody else
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, descriptors)
    pipes = (process.stdin, process.stdout, process.stderr)
    return Child(process, *(cast(FdStream, pipe) for pipe in pipes))


def _explain(target: StdioTarget, error: OSError | ValueError) -> str:
    if target.cwd is not None and not os.path.isdir(target.cwd):
        return f"working directory {target.cwd!r} does not exist"
    # Of a command with its arguments in it only the first word is named: the others may be credentials.
    first, *more = target.command.split() or [""]
    if isinstance(error, FileNotFoundError):
        hint = "; its arguments belong into `args`" if more else ""
        return f"command {first!r} not found{hint}" if not more else f"command {first + ' …'!r} not found{hint}"
    if isinstance(error, PermissionError):
        return f"command {first!r} is not executable"
    why = error.strerror if isinstance(error, OSError) and error.strerror else "an argument can't be passed on"
    return f"command {first!r} could not be started: {why}"


def describe_exit(status: int) -> str:
    """`exited with status 3`, `was killed by SIGKILL`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def signal_group(group: int, signum: int) -> None:
    """Signals the group, if it is still there (macOS says EPERM for one of zombies only)."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


async def end_group(
    child: Child, patience: Patience, output_ended: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Ends the child and its group: its stdin has been closed by the caller, then TERM, then KILL.

    `output_ended` waits until nobody holds the child's output any more, which shows that its descendants are gone
    too; without it, descendants that outlive the child are killed at once. Takes at most `patience.total`.
    """
    for signum, seconds in ((None, patience.stdin_closed), (signal.SIGTERM, patience.term)):
        if signum is not None:
            signal_group(child.pid, signum)
        with trio.move_on_after(seconds):
            await child.process.wait()
            break
    else:
        signal_group(child.pid, signal.SIGKILL)
        with trio.move_on_after(patience.kill):
            await child.process.wait()
    if output_ended is not None and child.process.returncode is not None:
        signal_group(child.pid, signal.SIGTERM)
        with trio.move_on_after(patience.term):
            await output_ended()
    signal_group(child.pid, signal.SIGKILL)


async def read_pipe(stream: FdStream) -> bytes:
    """What has come through a pipe of a child; b"" when no more will."""
    try:
        return bytes(await stream.receive_some(CHUNK))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return b""
