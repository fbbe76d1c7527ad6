"""A server of this process that is loaded anew when its files change.

Its sessions stay: they go over to the new server, which its clients are told by `list_changed`. Calls that run end as
they began. Where the files can't be loaded the server goes on as it was, and the log says why.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from actors.ports import Log
from actors.runtime.boundary import boundary
from gateway.config.problems import ConfigError
from gateway.config.references import Loaded
from gateway.config.single import load_server
from gateway.native.watching import look, until_changed


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
