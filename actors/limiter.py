"""Whether limits let something through: asks the store, and says what to do where that can't tell.

A rate lets through what it can't count; a quota does not, since what it guards is spent for the rest of its day.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import trio
from msgspec import Struct

from actors.ports import Buckets, Failed, Log, Telemetry
from actors.protocol.limiting import ALL_GAVE, Bucket, Due, Taken

EMPTY_FOR: Final = 1.0
"""Seconds, at most, for which a bucket that was found empty is not asked again."""
EMPTY_MOST: Final = 4096
"""Empty buckets that are remembered."""
TELLS: Final = 60.0
"""Seconds between two lines of the log that say that limits can't be counted."""

Of = Literal["call", "endpoint"]


class Verdict(Struct, frozen=True):
    """`refused`: what stands against it. `seconds`: after which it may work; None: nobody can tell."""

    refused: Due | None = None
    seconds: float | None = 0.0


PASSES: Final = Verdict()
_PASSED: Final = {
    (of, enforced): (of, "passed", "enforce" if enforced else "observe")
    for of in ("call", "endpoint")
    for enforced in (True, False)
}


class Limiter:
    """Asks the store whether limits let something through, for the whole process."""

    def __init__(self, buckets: Buckets, telemetry: Telemetry, log: Log) -> None:
        self._buckets = buckets
        self._telemetry = telemetry
        self._log = log
        self._empty: OrderedDict[Bucket, tuple[float, float]] = OrderedDict()
        """Until when they surely are, since what was taken comes back no earlier, and until when that is believed: who
        asks too often does not come to the store with it."""
        self._told = -TELLS

    def ask(
        self,
        due: tuple[Due, ...],
        then: Callable[[Verdict], object],
        *,
        of: Of,
        enforced: bool,
        cost: int = 1,
        once: str = "",
        seconds: float = 0.0,
    ) -> Verdict | None:
        """Takes from all these buckets, or from none; None: `then` hears of it later. `once`: what was paid for before,
        and for how many seconds it can be brought."""
        taken = None if once or cost > 1 or not self._empty else self._known(due)
        if taken is None:
            buckets = (due[0].bucket,) if len(due) == 1 else [one.bucket for one in due]
            taken = self._buckets.take(
                buckets,
                cost,
                once,
                seconds,
                lambda outcome: then(self._told_by(due, outcome, of, cost, enforced=enforced)),
            )
        if taken is ALL_GAVE:
            self._telemetry.count("stagedoor_limit_decisions_total", _PASSED[of, enforced])
            return PASSES
        return None if taken is None else self._told_by(due, taken, of, cost, enforced=enforced)

    async def asked(self, due: tuple[Due, ...], *, enforced: bool, cost: int) -> Verdict:
        """Whether the limits of an endpoint let a request through, for whoever can wait."""
        answered, verdicts = trio.Event(), list[Verdict]()

        def came(verdict: Verdict) -> None:
            verdicts.append(verdict)
            answered.set()

        verdict = self.ask(due, came, of="endpoint", enforced=enforced, cost=cost)
        if verdict is not None:
            return verdict
        await answered.wait()
        return verdicts[0]

    def _known(self, due: tuple[Due, ...]) -> Taken | None:
        now = trio.current_time()
        for place, one in enumerate(due):
            until, believed = self._empty.get(one.bucket, (0.0, 0.0))
            if now < min(until, believed):
                return Taken(place, until - now)
        return None

    def _told_by(self, due: tuple[Due, ...], outcome: Taken | Failed, of: Of, cost: int, *, enforced: bool) -> Verdict:
        if isinstance(outcome, Failed):
            return self._unknown(due, outcome, of, enforced=enforced)
        if outcome.refused is None:
            self._count(of, "free" if outcome.free else "passed", enforced=enforced)
            return PASSES
        found = due[outcome.refused]
        now = trio.current_time()
        if cost == 1 and self._empty.get(found.bucket, (0.0, 0.0))[1] <= now:
            self._empty[found.bucket] = now + outcome.seconds, now + EMPTY_FOR
            self._empty.move_to_end(found.bucket)
            if len(self._empty) > EMPTY_MOST:
                self._empty.popitem(last=False)
        self._count(of, "refused", enforced=enforced)
        return Verdict(found, outcome.seconds)

    def _unknown(self, due: tuple[Due, ...], failed: Failed, of: Of, *, enforced: bool) -> Verdict:
        now = trio.current_time()
        if now - self._told >= TELLS:
            self._told = now
            self._log.warning("limits_not_counted", reason=failed.reason.value, detail=failed.detail)
        quota = next((one for one in due if one.limit.quota), None)
        self._count(of, "open" if quota is None else "closed", enforced=enforced)
        return PASSES if quota is None else Verdict(quota, None)

    def _count(self, of: Of, outcome: str, *, enforced: bool) -> None:
        mode = "enforce" if enforced else "observe"
        self._telemetry.count("stagedoor_limit_decisions_total", (of, outcome, mode))
