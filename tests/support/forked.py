"""`stagedoor` without the second that a start takes for its imports: a fork of a process that has them done.

Everything else is as if the command had been started: a process and a session of its own, arguments, environment,
working directory, files and exit status. Tests about starting, the command or its imports start the command.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock

from gateway import cli

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.support.imported"])


class Forked:
    """What a `Program` uses of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
        self._process = _SERVER.Process(target=_stagedoor, args=(arguments, log, dict(env), cwd), daemon=True)
        self._process.start()
        self._looking = Lock()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        with self._looking:  # its status comes through a pipe, once
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


def _stagedoor(arguments: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
    """In the fork."""
    os.setsid()
    with log.open("wb") as output, open(os.devnull, "rb") as nothing:
        for number, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    faulthandler.enable()
    sys.argv = ["stagedoor", *arguments]
    cli.main()
