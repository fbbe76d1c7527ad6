"""Writes lines where they hurt nobody: to a bounded buffer, and from there, in a thread, to standard error or a file.

A disk that is slow or full costs lines, which are counted, and nobody waits for it. A file that was moved away is
opened anew, so that whoever rotates it needs no signal.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from actors.ports import Telemetry

WAITING: Final = 20_000
"""Lines that wait to be written; further ones are dropped."""
PERIOD: Final = 0.25
"""Seconds that they wait at most."""
DROPPED: Final = "stagedoor_access_lines_dropped_total"


class Writer:
    """Writes lines in the background. `path`: None for standard error."""

    def __init__(self, telemetry: Telemetry, path: Path | None = None) -> None:
        self._telemetry = telemetry
        self._path = path
        self._lines: list[str] = []
        self._file: int | None = None
        self._thread = trio.CapacityLimiter(1)

    def put(self, line: str) -> None:
        """A line, if there is room."""
        if len(self._lines) < WAITING:
            self._lines.append(line)
        else:
            self._telemetry.count(DROPPED)

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while True:
            await trio.sleep(PERIOD)
            await self.flush()

    async def flush(self) -> None:
        """Writes all that waits."""
        lines, self._lines = self._lines, []
        if lines and not await trio.to_thread.run_sync(
            self._write, lines, abandon_on_cancel=True, limiter=self._thread
        ):
            self._telemetry.count(DROPPED, (), len(lines))

    def _write(self, lines: list[str]) -> bool:
        """In a thread; whether it could be done."""
        data = "".join([f"{line}\n" for line in lines]).encode("utf-8", "backslashreplace")
        try:
            place = sys.stderr.fileno() if self._path is None else self._opened(self._path)
            while data:
                data = data[os.write(place, data) :]
        except (OSError, ValueError):  # ValueError: standard error is closed
            return False
        return True

    def _opened(self, path: Path) -> int:
        if self._file is not None and _moved(self._file, path):
            with suppress(OSError):
                os.close(self._file)
            self._file = None
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
