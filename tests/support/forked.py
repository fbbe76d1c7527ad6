"""`stagedoor` without the second that a start takes for its imports: a fork of a process that has them done.

Everything else is as if the command had been started: a process and a session of its own, arguments, environment,
working directory, standard streams and exit status. Tests about starting, the command or its imports start the command.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, Protocol

from gateway import cli
from tests.support.patience import PATIENCE

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.support.imported"])
_ONE_AT_A_TIME = Lock()
"""A status comes through a pipe, once; whoever starts a process looks for the status of every other."""


class Open(Protocol):
    """A file, or what is like one."""

    def fileno(self) -> int: ...


class Forked:
    """What a `Program` uses of `subprocess.Popen`. `streams`: its standard input, output and error."""

    def __init__(self, arguments: Sequence[str], streams: Sequence[Open], env: Mapping[str, str], cwd: Path) -> None:
        passed = [_Passed(stream.fileno()) for stream in streams]
        self._process = _SERVER.Process(target=_stagedoor, args=(arguments, passed, dict(env), cwd), daemon=True)
        with _ONE_AT_A_TIME:
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        with _ONE_AT_A_TIME:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("stagedoor", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            os.killpg(self.pid, 9)


class Piped(Forked):
    """One to talk with, by its standard input and output."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        (read, self.stdin), (self.stdout, written) = _pipe(), _pipe()
        with read, written:
            super().__init__(arguments, (read, written, sys.__stderr__ or sys.stderr), env, cwd)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """Ends its input; what is still on its output, to the end."""
        self.stdin.close()
        rest = b"" if self.stdout.closed else self.stdout.read()
        self.stdout.close()
        self.wait(timeout)
        return rest, None


def stagedoor(
    *words: str | os.PathLike[str], env: Mapping[str, str], cwd: Path, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, and returns what it wrote. `check`: raises CalledProcessError where it failed."""
    arguments = [os.fspath(word) for word in words]
    with open(os.devnull, "rb") as nothing, TemporaryFile() as output, TemporaryFile() as errors:
        process = Forked(arguments, (nothing, output, errors), env, cwd)
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    done = subprocess.CompletedProcess(["stagedoor", *arguments], status, *said)
    if check:
        done.check_returncode()
    return done


def _pipe() -> tuple[Any, Any]:
    read, written = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(written, "wb")


class _Passed:
    """A descriptor on its way into the fork."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _arrived, (reduction.DupFd(self._number),)


def _arrived(passed: Any) -> int:
    number: int = passed.detach()
    return number


def _stagedoor(arguments: Sequence[str], streams: Sequence[int], env: Mapping[str, str], cwd: Path) -> None:
    """In the fork."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    faulthandler.enable()
    sys.argv = ["stagedoor", *arguments]
    cli.main()
