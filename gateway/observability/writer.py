"""Writes lines where they hurt nobody: to a bounded buffer, and from there, in a thread, to standard error or a file.

A disk that is slow or full costs lines, which are counted, and nobody waits for it; the log says why, once, and when it
is over. A file that was moved away is opened anew, so that whoever rotates it needs no signal.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from actors.ports import Log, Telemetry

WAITING: Final = 20_000
"""Lines that wait to be written; further ones are dropped."""
PERIOD: Final = 0.25
"""Seconds that they wait at most."""
DROPPED: Final = "stagedoor_access_lines_dropped_total"


class Writer:
    """Writes lines in the background. `path`: None for standard error."""

    def __init__(self, telemetry: Telemetry, log: Log, path: Path | None = None) -> None:
        self._telemetry = telemetry
        self._log = log
        self._path = path
        self._lines: list[str] = []
        self._file: int | None = None
        self._torn = False
        """The last line in the file has no end."""
        self._why = ""
        """Lines can't be written at present."""
        self._thread = trio.CapacityLimiter(1)

    def put(self, line: str) -> None:
        """A line, if there is room."""
        if len(self._lines) < WAITING:
            self._lines.append(line)
        else:
            self._telemetry.count(DROPPED)

    async def run(self) -> None:
        """Writes until it is cancelled. The file is opened at once: whether that can be done is known before the first
        line is lost."""
        await self._written([])
        while True:
            await trio.sleep(PERIOD)
            await self.flush()

    async def flush(self) -> None:
        """Writes all that waits."""
        lines, self._lines = self._lines, []
        if lines:
            await self._written(lines)

    async def _written(self, lines: list[str]) -> None:
        lost, why = await trio.to_thread.run_sync(self._write, lines, abandon_on_cancel=True, limiter=self._thread)
        if lost:
            self._telemetry.count(DROPPED, (), lost)
        if why and not self._why:
            self._log.error("access_failed", path=str(self._path or "standard error"), error=why, hint="lines are lost")
        elif self._why and not why:
            self._log.info("access_recovered", path=str(self._path or "standard error"))
        self._why = why

    def _write(self, lines: list[str]) -> tuple[int, str]:
        """In a thread; how many were lost, and why."""
        data, written = "".join([f"{line}\n" for line in lines]).encode("utf-8", "backslashreplace"), 0
        try:
            place = sys.stderr.fileno() if self._path is None else self._opened(self._path)
            if self._torn:
                os.write(place, b"\n")
                self._torn = False
            while written < len(data):
                written += os.write(place, data[written:])
        except (OSError, ValueError) as error:  # ValueError: standard error is closed
            whole = data[:written]
            self._torn = self._torn or bool(whole and not whole.endswith(b"\n"))
            return len(lines) - whole.count(b"\n"), getattr(error, "strerror", None) or str(error)
        return 0, ""

    def _opened(self, path: Path) -> int:
        if self._file is not None and _moved(self._file, path):
            with suppress(OSError):
                os.close(self._file)
            self._file, self._torn = None, False
        if self._file is None:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self._file

    def close(self) -> None:
        """Nothing more is written."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def _moved(file: int, path: Path) -> bool:
    try:
        return not os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return True
