"""A gateway of a client of the suite: a process of its own that has everything imported, since it is a fork."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gateway import cli
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import LOOK_EVERY, answers


def wait_ready(pid: int, admin: str) -> None:
    """Raises AssertionError when the gateway ends, or is not ready in time."""
    ready, end = answers(f"http://{admin}/readyz"), time.monotonic() + PATIENCE
    while not ready():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "stagedoor ended while starting: what it wrote is above"
        assert time.monotonic() < end, "stagedoor was never ready"
        time.sleep(LOOK_EVERY)


def command_line() -> int:
    """Runs the command; its exit status. What the parent has opened is the parent's to close."""
    status: str | int | None = 0
    try:
        cli.main()
    except SystemExit as over:
        status = over.code
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


@contextmanager
def serving(config: dict[str, Any], folder: Path) -> Iterator[str]:
    """A gateway in a process of its own, and its endpoint. What it wrote comes to stderr."""
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    file, log = folder / "config.json", folder / "log"
    file.write_text(json.dumps(config))
    os.environ["XDG_STATE_HOME"] = str(folder)
    pid = os.fork()
    if pid == 0:
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.argv = ["stagedoor", "serve", "--listen", listen, "--admin", admin, "--config", str(file)]
        os._exit(command_line())
    try:
        wait_ready(pid, admin)
        yield f"http://{listen}/mcp"
        os.kill(pid, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"stagedoor ended with {status}"
    finally:
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended
            os.kill(pid, signal.SIGABRT)  # it tells where it is, and keeps nobody waiting
            os.waitpid(pid, 0)
        print(log.read_text(errors="replace") if log.exists() else "", file=sys.stderr)
