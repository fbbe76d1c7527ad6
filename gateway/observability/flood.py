"""Keeps warnings that a peer can cause at will from filling the log."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import structlog
from structlog.typing import EventDict

RATE = 20.0
"""Warnings a second of one event and one backend, in the long run."""
BURST = 200.0
"""And at once."""
MAX_KEYS = 1000
"""Things told apart at one time; the one that was quiet for longest is forgotten first."""

OF_NO_PEER: Final = frozenset({"configuration_warning"})
"""Warnings that nobody else can cause: all that there are of them are said, once, at the start."""


class Flood:
    """A step of the log's pipeline: drops what is too much, and says with the next one how much was `suppressed`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float, int]] = OrderedDict()

    def __len__(self) -> int:
        """How many things it tells apart at this time."""
        return len(self._buckets)

    def __call__(self, _logger: Any, method: str, event: EventDict) -> EventDict:
        if method != "warning" or event.get("event") in OF_NO_PEER:
            return event
        key = str(event.get("event"))[:100], str(event.get("backend", ""))[:100]
        now = self._clock()
        seen, tokens, suppressed = self._buckets.pop(key, (now, BURST, 0))
        tokens = min(BURST, tokens + (now - seen) * RATE)
        if tokens < 1:
            self._buckets[key] = now, tokens, suppressed + 1
            raise structlog.DropEvent
        self._buckets[key] = now, tokens - 1, 0
        if len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        return {**event, "suppressed": suppressed} if suppressed else event
