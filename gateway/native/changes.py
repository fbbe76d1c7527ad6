"""What changes in a folder and below it, as the system tells it (inotify, FSEvents, kqueue); links are not followed."""

import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler

STOPPING: Final = 5.0
"""Seconds that the library has to end its threads; it takes a few milliseconds."""

_READER: Final = "InotifyFD"
"""The library's thread that reads inotify for the whole process."""

_KINDS: Final = ("Created", "Deleted", "Moved")
_COMING_AND_GOING: Final = {kind.lower() for kind in _KINDS}


class Changes:
    """What has happened and was not asked for yet; `alive` says whether more would be heard of."""

    def __init__(self, alive: Callable[[], bool]) -> None:
        self.alive = alive
        self._happened = trio.Event()
        self._listed = False

    async def wait(self) -> None:
        """Until something has happened."""
        await self._happened.wait()

    def taken(self) -> bool:
        """Whether any file or folder has come or gone since this was last asked."""
        listed, self._listed, self._happened = self._listed, False, trio.Event()
        return listed

    def happened(self, listed: bool) -> None:
        """Something has, and whether that was coming or going."""
        self._listed |= listed
        self._happened.set()


@asynccontextmanager
async def watched(root: Path) -> AsyncIterator[Changes]:
    """What happens in this folder while the block runs. OSError if it can't be watched, as when the system allows no
    more watches; FileNotFoundError if it is not there."""
    # Here, so that it is not loaded where nothing is watched.
    from watchdog.events import FileSystemEventHandler

    watching = _Watching()
    changes, token = Changes(watching.alive), trio.lowlevel.current_trio_token()
    came_or_went, changed = partial(changes.happened, True), partial(changes.happened, False)

    class Telling(FileSystemEventHandler):
        def dispatch(self, event: "FileSystemEvent") -> None:
            # One of each kind at a time: however much happens, the loop hears of it once a turn.
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(came_or_went if event.event_type in _COMING_AND_GOING else changed, idempotent=True)

    try:
        await trio.to_thread.run_sync(watching.start, root, Telling(), abandon_on_cancel=True)
        yield changes
    finally:
        with trio.move_on_after(STOPPING, shield=True):
            await trio.to_thread.run_sync(watching.stop, abandon_on_cancel=True)


class _Watching:
    """The library's threads. Of a large folder `start` takes a while; one that is not waited for any more ends what it
    began."""

    def __init__(self) -> None:
        from watchdog.observers import Observer

        _forget_the_dead()
        self._observer = Observer()
        self._threads: list[threading.Thread] = []
        self._started, self._stopped = threading.Event(), threading.Event()

    def start(self, root: Path, telling: "FileSystemEventHandler") -> None:
        """Blocks. OSError."""
        from watchdog import events

        # Not those of reading, of which there would be one for each look.
        kinds = [getattr(events, f"{what}{how}Event") for what in ("File", "Dir") for how in _KINDS]
        self._observer.schedule(telling, str(root), recursive=True, event_filter=[*kinds, events.FileModifiedEvent])
        self._observer.start()
        readers = [thread for thread in threading.enumerate() if type(thread).__name__ == _READER]
        self._threads = [self._observer, *self._observer.emitters, *readers]
        self._started.set()
        if self._stopped.is_set():
            self._observer.stop()

    def alive(self) -> bool:
        """Whether none of the library's threads has died, as of a bug in it: nobody else would notice."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Blocks for a moment. Idempotent."""
        self._stopped.set()
        if self._started.is_set():
            self._observer.stop()


def _forget_the_dead() -> None:
    """The library would go on with a reader that has died."""
    if sys.platform != "linux":
        return
    from watchdog.observers import inotify_c

    readers = getattr(inotify_c, _READER, None)
    reader = getattr(readers, "_instance", None)
    if readers is not None and reader is not None and not reader.is_alive():
        readers._instance = None
