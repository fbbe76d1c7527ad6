"""A server of this process that is loaded anew when its files change.

Its sessions stay: they go over to the new server, which its clients are told by `list_changed`. Calls that run end as
they began. Where the files can't be loaded the server goes on as it was, and the log says why. That they have changed
is found out by looking every now and then: it works on every system and every kind of mount, and nobody has to be told
to stop.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio

from actors.ports import Log
from actors.runtime.boundary import boundary
from gateway.config.problems import ConfigError
from gateway.config.references import Loaded
from gateway.config.single import load_server

EVERY: Final = 0.5
"""Seconds between two looks."""

Seen: TypeAlias = Mapping[Path, tuple[int, ...]]
"""Files as they were; one that is not there is not in it."""


class Reloader:
    """Stands for the server in the table. `run` watches; it needs to run for the server to change."""

    def __init__(self, loaded: Loaded, log: Log, load: Callable[[str, Loaded], Loaded] = load_server) -> None:
        self._loaded = loaded
        self._log = log
        self._load = load
        self._seen = look(loaded.files())

    def connect(self, *given: Any) -> Any:
        """A session with the server as it is now."""
        return self._loaded.found.connect(*given)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._seen = await until_changed(self._files, self._seen)
            exit = await boundary(self._reload)
            if exit.error is not None:
                told = isinstance(exit.error, ValueError | ConfigError)
                self._log.error(
                    "not_reloaded",
                    target=self._loaded.reference,
                    error=str(exit.error),
                    hint="the server goes on as it was",
                    exc_info=None if told else exit.error,
                )

    def _files(self) -> set[Path]:
        return self._loaded.files()

    async def _reload(self) -> None:
        # In a thread, since the clients are served meanwhile.
        fresh = await trio.to_thread.run_sync(self._load, self._loaded.reference, self._loaded)
        old, self._loaded = self._loaded, fresh
        self._seen = {**look(fresh.files()), **self._seen}
        old.found.hand_over(fresh.found)
        self._log.info("reloaded", target=fresh.reference)


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
