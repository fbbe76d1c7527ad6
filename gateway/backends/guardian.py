"""No child outlives the gateway, not even one that was killed with -9.

One small process per gateway holds the other end of a pipe and knows the process groups of all children; when the
pipe ends it ends them (`guardian_main`). Linux's PR_SET_PDEATHSIG is not used: it fires when the *thread* that forked
ends (our forks run in worker threads that come and go), it needs code between fork and exec, it does not reach
grandchildren, which is where the server is behind `npx` or `uvx`, and macOS has nothing like it.

What escapes: a descendant that leaves its process group by `setsid`, and a child whose fork was under way when the
gateway was killed (its standard input ends, which well-behaved servers obey).
"""

import os
import subprocess
import sys
from contextlib import suppress

import trio

from gateway.backends import guardian_main


class Guardian:
    """Starts with the first child, and again if it was killed itself."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = trio.Lock()
        self._groups: set[int] = set()

    def __repr__(self) -> str:
        state = "idle" if self._process is None else f"pid {self._process.pid}"
        return f"<Guardian {state}, {len(self._groups)} groups>"

    async def ready(self) -> None:
        """Makes sure that the guardian runs. Raises OSError if it can't be started."""
        async with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            self._forget_process()
            self._process = await trio.to_thread.run_sync(_start)
            for group in self._groups:
                self._tell(f"+{group}\n")

    def watch(self, group: int) -> None:
        """From now on this process group ends with the gateway."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """The group has ended; its number may be used again by others."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    async def aclose(self) -> None:
        """Ends the guardian, and any group that is still watched. Takes at most a few seconds."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        with trio.move_on_after(3, shield=True):
            await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)

    def _tell(self, line: str) -> None:
        # A line is far below PIPE_BUF, so it is written whole or not at all. A guardian that died is replaced at the
        # next start of a child, and then told everything.
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                os.write(self._process.stdin.fileno(), line.encode())

    def _forget_process(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guardian_main.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
