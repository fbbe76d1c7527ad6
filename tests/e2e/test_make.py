"""`make run` as a person has it: in a terminal, ended by Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import sys
import time

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, environment, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")]

CTRL_C = b"\x03"


def read_until(terminal: int, part: bytes) -> bytes:
    """What the terminal shows, up to this part, or to the end of the program."""
    shown, end = b"", time.monotonic() + PATIENCE
    while part not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # Linux: the program has ended
                break
            if not chunk:
                break
            shown += chunk
    return shown


@pytest.mark.skipif(sys.platform == "win32", reason="needs terminals")
def test_ctrl_c_ends_make_run_drained_and_with_status_0() -> None:
    command = ["make", "run", f"LISTEN=127.0.0.1:{free_port()}", f"ADMIN=127.0.0.1:{free_port()}"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe(command[0], command, environment())
    shown = read_until(terminal, b"serving")
    assert b"serving" in shown, shown.decode()
    os.write(terminal, CTRL_C)
    shown = read_until(terminal, b"never shown")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"draining" in shown
    assert os.waitstatus_to_exitcode(status) == 0, shown.decode()
