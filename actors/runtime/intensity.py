"""How often something may be restarted before that is given up."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intensity:
    """At most `restarts` within any `seconds`."""

    restarts: int = 3
    seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.restarts < 0 or self.seconds <= 0:
            raise ValueError(f"{self} allows less than nothing")


class Restarts:
    """Counts restarts against an intensity."""

    __slots__ = ("_intensity", "_times")

    def __init__(self, intensity: Intensity) -> None:
        self._intensity = intensity
        self._times: deque[float] = deque()

    def allow(self, now: float) -> bool:
        """Whether one more, at `now` (seconds), is within the intensity; it is counted if so."""
        times = self._times
        while times and now - times[0] >= self._intensity.seconds:
            times.popleft()
        if len(times) >= self._intensity.restarts:
            return False
        times.append(now)
        return True
