"""How far the event loop is behind.

Trio runs every task that is ready, then looks for IO, and so on in rounds. A task that becomes ready waits for at most
one round, so the length of a round is the lag. Two clock readings a round is all that this costs.
"""

import time
from collections.abc import Callable

import trio
from trio.abc import Instrument

from actors.ports import Telemetry

SLOW = 0.25
"""Seconds of lag above which the loop counts as slow."""

SUSTAINED = 2.0
"""Seconds for which it must have been slow on end to count as overloaded."""

PAUSE = 0.5
"""Seconds without a slow round that end a stretch; between two slow rounds there may be a few short ones."""

ROUNDS = 3
"""Slow rounds that make a stretch; a single stop of the whole process (a suspended machine) is no load."""


class Lag(Instrument):
    """Pass it to `trio.run(…, instruments=[lag])`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._slow_since = 0.0
        self._slow_until = float("-inf")
        self._rounds = 0
        self._worst = 0.0

    def after_io_wait(self, timeout: float) -> None:
        self._began = self._clock()

    def before_io_wait(self, timeout: float) -> None:
        now = self._clock()
        lag = now - self._began
        if lag > self._worst:  # noqa: PLR1730 — at each turn of the loop
            self._worst = lag
        if lag > SLOW:
            self._slow(self._began, now)

    def _slow(self, began: float, ended: float) -> None:
        if began - self._slow_until > PAUSE:
            self._slow_since, self._rounds = began, 0
        self._slow_until = ended
        self._rounds += 1

    def overloaded(self) -> bool:
        """Whether the lag has been above 250 ms for 2 s on end, up to this moment."""
        return (
            self._rounds >= ROUNDS
            and self._slow_until - self._slow_since >= SUSTAINED
            and self._clock() - self._slow_until <= PAUSE
        )

    def take_worst(self) -> float:
        """The longest lag since the last time of asking, in seconds: what a report says of its interval."""
        worst, self._worst = self._worst, 0.0
        return worst


async def report_lag(lag: Lag, telemetry: Telemetry, interval: float = 1.0) -> None:
    """Puts the worst lag of each interval, in seconds, into the metrics; runs until it is cancelled."""
    while True:
        await trio.sleep(interval)
        telemetry.observe("stagedoor_scheduler_lag_seconds", lag.take_worst())
