"""The end of a process that can't end itself any more."""

from __future__ import annotations

import subprocess
import sys

from gateway import lifecycle
from tests.support.patience import PATIENCE

HANGS = """
from gateway.lifecycle import start_watchdog

class Log:
    def error(self, event, **values):
        print(event, values, flush=True)

start_watchdog(0.1, Log())
while True:
    pass
"""


def test_a_process_that_hangs_is_ended() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    assert ended.stdout == b"drain_hangs {'seconds': 0.1}\n"


def test_it_has_some_seconds_more_than_the_drain() -> None:
    assert lifecycle.WATCHDOG == 6
