"""Thins out what a log would otherwise say a thousand times."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from actors.ports import Log

MAX_KEYS = 1000
"""Things told apart at one time; the one that was quiet for longest is forgotten first."""


class Repeats:
    """Lets a message through when it is the first of its key within `interval` seconds.

    The next one that comes through says how many were `suppressed` since. Equal messages have the same event and key,
    for instance the name of a backend.
    """

    def __init__(self, log: Log, interval: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._interval = interval
        self._clock = clock
        self._told: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def warning(self, event: str, key: str = "", **values: Any) -> None:
        self._tell(self._log.warning, event, key, values)

    def error(self, event: str, key: str = "", **values: Any) -> None:
        self._tell(self._log.error, event, key, values)

    def info(self, event: str, key: str = "", **values: Any) -> None:
        self._tell(self._log.info, event, key, values)

    def _tell(self, write: Callable[..., Any], event: str, key: str, values: dict[str, Any]) -> None:
        now = self._clock()
        since, suppressed = self._told.pop((event, key), (float("-inf"), 0))
        if now - since < self._interval:
            self._told[event, key] = (since, suppressed + 1)
            return
        self._told[event, key] = (now, 0)
        if len(self._told) > MAX_KEYS:
            self._told.popitem(last=False)
        if suppressed:
            values["suppressed"] = suppressed
        write(event, **values)
