"""Which files have changed, found out by looking at them every now and then: it works on every system and for every
kind of mount, and nobody has to be told to stop."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import trio

EVERY: Final = 0.5
"""Seconds between two looks."""

Seen: TypeAlias = Mapping[Path, tuple[int, ...]]
"""Files as they were; one that is not there is not in it."""


def look(files: Iterable[Path]) -> Seen:
    """These files as they are."""
    seen = {}
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        seen[file] = (found.st_mtime_ns, found.st_size, found.st_ino)
    return seen


async def until_changed(files: Callable[[], Iterable[Path]], seen: Seen, every: float = EVERY) -> Seen:
    """Waits until they are not as they were seen; how they are then."""
    while True:
        await trio.sleep(every)
        now = await trio.to_thread.run_sync(look, [*files()])
        if now != seen:
            return now
