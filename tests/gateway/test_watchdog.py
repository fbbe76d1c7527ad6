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


def test_what_a_gateway_needs_for_sure_is_loaded_before_its_loop_turns() -> None:
    code = (
        "import sys, trio\n"
        "from gateway import app\n"
        "from gateway.config import demo_settings\n"
        "from dataclasses import replace\n"
        "trio.run = lambda *given, **more: print('redis' in sys.modules, 'structlog' in sys.modules) or 0\n"
        "app.run(replace(demo_settings(), store='redis://127.0.0.1:1/0'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr
