"""Letters there and back between two processes by the store, and nothing else: the least that mail costs a call.

`python -m loadtest.letters URL` answers each letter with itself; it prints its name first, and ends with its input. The
load names that process, and counts letters and the CPU of both: see `exchanged`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from subprocess import PIPE
from typing import Any

import trio

from actors.ports import ClusterListener, ignore
from actors.protocol.table import Limits
from gateway.store.redis import RedisStore, open_redis_store
from loadtest import proc
from loadtest.proc import on_cpu
from loadtest.targets import ROOT, SERVER_CPU

BODY = b"x" * 400
"""About as large as the letters of a small call."""
NAME = 16
"""Bytes of a process' name, with which each letter begins."""
WARM = 0.2  # seconds


class Quiet:
    """A log for nobody."""

    def debug(self, event: str, **values: Any) -> None:
        """Nothing."""

    info = warning = error = debug


class Desk(ClusterListener):
    """Hands each letter over."""

    def __init__(self, taken: Callable[[bytes], object]) -> None:
        self._taken = taken

    def on_mail(self, letters: Sequence[bytes]) -> None:
        for letter in letters:
            self._taken(letter)


async def answer(url: str) -> None:
    """Each letter goes back to whom it names."""
    async with open_redis_store(url, Limits(), log=Quiet(), on_lost=sys.exit) as store:
        store.subscribe(Desk(lambda letter: store.post(letter[:NAME].decode(), letter, ignore)))
        print(store.incarnation, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


async def ask(url: str, to: str, pid: int, callers: int, seconds: float) -> None:
    """So many letters are under way at a time; prints how many came back, and the CPU of both processes for each."""
    async with open_redis_store(url, Limits(), log=Quiet(), on_lost=sys.exit) as store:
        back = 0

        def came(letter: bytes) -> None:
            nonlocal back
            back += 1
            store.post(to, letter, ignore)

        store.subscribe(Desk(came))
        await _begin(store, to, callers)
        before, spent = back, time.process_time() + proc.cpu_seconds(pid)
        await trio.sleep(seconds)
        used = time.process_time() + proc.cpu_seconds(pid) - spent
        print(json.dumps({"letters": back - before, "cpu_us": used / max(1, back - before) * 1e6}), flush=True)


async def _begin(store: RedisStore, to: str, callers: int) -> None:
    for _ in range(callers):
        store.post(to, store.incarnation.encode() + BODY, ignore)
    await trio.sleep(WARM)


def exchanged(url: str, callers: int, seconds: float) -> dict[str, Any]:
    """What a letter there and back costs both processes together, with so many under way. Waits for it."""
    command = [sys.executable, "-m", "loadtest.letters", url]
    with on_cpu(SERVER_CPU), subprocess.Popen(command, cwd=ROOT, text=True, stdin=PIPE, stdout=PIPE) as there:
        assert there.stdin is not None
        assert there.stdout is not None
        name = there.stdout.readline().strip()
        options = ["--to", name, "--pid", str(there.pid), "--callers", str(callers), "--seconds", str(seconds)]
        said = subprocess.run([*command, *options], cwd=ROOT, text=True, stdout=PIPE, check=True).stdout
        there.stdin.close()
    found: dict[str, Any] = json.loads(said)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--to", default="")
    parser.add_argument("--pid", type=int, default=0)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.to:
        trio.run(ask, options.url, options.to, options.pid, options.callers, options.seconds)
    else:
        trio.run(answer, options.url)


if __name__ == "__main__":
    main()
