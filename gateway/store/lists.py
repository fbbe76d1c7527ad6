"""`ListStore` in a file of this machine, for gateways whose sessions do not outlive the process.

The file is JSON (`actors.protocol.definitions`), readable for its owner alone, and replaced as a whole. Several
gateways may share it: whoever writes takes a lock, reads what the others have written, and adds its own. A file that
can't be read is as good as none.
"""

import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from msgspec import Raw

from actors.ports import Log
from actors.protocol import definitions

SETTLE = 1.0
"""Seconds in which changes are collected before the file is written."""
CLOSE_WITHIN = 2.0
"""Seconds at the end for what has not been written yet."""
LOCK_WITHIN = 2.0
"""Seconds that a writer waits for another gateway's."""
MAX_BYTES = 64 * 1024 * 1024
"""Of the values in the file: what was written longest ago goes first. A file of more than twice that is not read."""


class FileLists:
    """See `ListStore`. Made by `open_file_lists`."""

    def __init__(self, path: Path, values: Mapping[str, bytes], log: Log) -> None:
        self._path = path
        self._loaded = values
        self._log = log
        self._changes: dict[str, bytes | None] = {}
        self._wake = trio.Event()
        self._told = False

    def load(self) -> Mapping[str, bytes]:
        return self._loaded

    def put(self, key: str, value: bytes | None) -> None:
        self._changes.pop(key, None)
        self._changes[key] = value
        self._wake.set()

    async def write_behind(self) -> None:
        """Writes what was put, a while after it was."""
        while True:
            await self._wake.wait()
            await trio.sleep(SETTLE)
            await self.flush()

    async def flush(self) -> None:
        """Writes what was put. What can't be written is gone, and the log says so once."""
        changes, self._changes, self._wake = self._changes, {}, trio.Event()
        if not changes:
            return
        try:
            await trio.to_thread.run_sync(write, self._path, changes)
            self._told = False
        except OSError as error:
            if not self._told:
                self._log.warning("lists_not_kept", path=str(self._path), error=str(error))
            self._told = True


@asynccontextmanager
async def open_file_lists(path: Path, log: Log) -> AsyncIterator[FileLists]:
    """The lists in this file, which is made when there is something to keep."""
    lists = FileLists(path, await trio.to_thread.run_sync(read, path, log), log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lists.write_behind)
        try:
            yield lists
        finally:
            nursery.cancel_scope.cancel()
            with trio.move_on_after(CLOSE_WITHIN, shield=True):
                await lists.flush()


def read(path: Path, log: Log | None = None) -> dict[str, bytes]:
    """The values in the file; none, if it can't be read."""
    try:
        if path.stat().st_size <= 2 * MAX_BYTES:
            return {key: bytes(value) for key, value in definitions.read_file(path.read_bytes()).items()}
        problem = "it is too large"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problem = str(error)
    if log is not None:
        log.warning("lists_unreadable", path=str(path), error=problem)
    return {}


def write(path: Path, changes: Mapping[str, bytes | None]) -> None:
    """Changes the values in the file; what was written last stands last. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(lock)
        values = read(path)
        for key, value in changes.items():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        _replace(path, _trimmed(values))
    finally:
        os.close(lock)


def _take(lock: int) -> None:
    till = time.monotonic() + LOCK_WITHIN
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= till:
                raise
            time.sleep(0.01)
        else:
            return


def _trimmed(values: dict[str, bytes]) -> dict[str, bytes]:
    size = sum(map(len, values.values()))
    while size > MAX_BYTES:
        oldest = next(iter(values))
        size -= len(values.pop(oldest))
    return values


def _replace(path: Path, values: Mapping[str, bytes]) -> None:
    data = definitions.written({key: Raw(value) for key, value in values.items()})
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
