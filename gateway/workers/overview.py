"""Several workers seen as one gateway: pure functions of what each said of itself last.

Metrics: counters and histograms are summed, those of workers that have ended included, so that no sum ever falls.
Gauges are of the living alone: summed, or the worst, as the table of instruments says (`over_workers`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from actors.protocol.instruments import INSTRUMENTS, Instrument
from gateway.observability.bounds import Bounds, Labels
from gateway.observability.metrics import Cell, Examples, Metrics, Numbers
from gateway.workers.channel import Row, Seen, State

_SMALLEST = ("process_max_fds", "process_start_time_seconds")
"""Figures of processes that are no amounts."""

_WORST = ("down", "failing", "recovering", "healthy", "unused")
"""States of a server, the first that any worker has is told."""


def rows(numbers: Numbers) -> dict[str, list[Row]]:
    """Series in the form in which they are sent; names without any are left out."""
    return {name: list(series.items()) for name, series in numbers.items() if series}


def seen(examples: Examples) -> dict[str, list[Seen]]:
    """Examples in the form in which they are sent."""
    return {name: list(series.items()) for name, series in examples.items()}


def added(into: Numbers, more: Mapping[str, Iterable[tuple[Labels, Cell]]], bounds: Bounds, *, gauges: bool) -> None:
    """Adds one process's series, within the bounds of all. What is not declared here, or in another shape, is another
    version's: left out."""
    for name, series in more.items():
        instrument = INSTRUMENTS.get(name)
        if instrument is None or (instrument.kind == "gauge" and not gauges):
            continue
        sums = into.setdefault(name, {})
        for labels, cell in series:
            if _fits(instrument, labels, cell):
                kept = bounds.admit(name, labels)
                before = sums.get(kept)
                sums[kept] = cell if before is None else _together(instrument, before, cell)


def _fits(instrument: Instrument, labels: Labels, cell: Cell) -> bool:
    if len(labels) != len(instrument.labels) or (instrument.kind == "histogram") != isinstance(cell, list):
        return False
    return not isinstance(cell, list) or len(cell) == len(instrument.buckets) + 2


def _together(instrument: Instrument, one: Cell, other: Cell) -> Cell:
    if isinstance(one, list) and isinstance(other, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    assert not isinstance(one, list)
    assert not isinstance(other, list)
    match instrument.over_workers:
        case "sum":
            return one + other
        case "min":
            return min(one, other)
        case "max":
            return max(one, other)


class Totals:
    """The metrics of all workers there ever were: what `Scraping` shows."""

    instruments = tuple(INSTRUMENTS.values())

    def __init__(self) -> None:
        self._bounds = Bounds(self.instruments)
        self._past: Numbers = {}
        added(self._past, {name: of.items() for name, of in Metrics().numbers().items()}, self._bounds, gauges=False)
        self._past_process: dict[str, float] = {}
        self.living: Callable[[], Sequence[State]] = tuple
        """What the workers that have not ended said last."""
        self.own: Callable[[], Numbers] = dict
        """What the supervisor counts itself; what it says of a gauge is said beside the workers."""

    def ended(self, last: State) -> None:
        """Keeps what a worker counted after it has ended."""
        added(self._past, last.numbers, self._bounds, gauges=False)
        for name, value in last.process.items():
            if name.endswith("_total"):
                self._past_process[name] = self._past_process.get(name, 0.0) + value

    def numbers(self) -> Numbers:
        """The series of now, by every declared instrument."""
        sums: Numbers = {instrument.name: {} for instrument in self.instruments}
        added(sums, {name: series.items() for name, series in self.own().items()}, self._bounds, gauges=True)
        added(sums, {name: series.items() for name, series in self._past.items()}, self._bounds, gauges=False)
        for state in self.living():
            added(sums, state.numbers, self._bounds, gauges=True)
        return sums

    def examples(self) -> Examples:
        """Those of the living: of each bucket the last one that any of them has."""
        latest: Examples = {}
        for state in self.living():
            for name, series in state.examples.items():
                of_name = latest.setdefault(name, {})
                for labels, found in series:
                    of_series = of_name.setdefault(labels, {})
                    for bucket, example in found.items():
                        if bucket not in of_series or of_series[bucket].at < example.at:
                            of_series[bucket] = example
        return latest

    def process(self, own: Mapping[str, float]) -> dict[str, float]:
        """What the operating system counts of all, the supervisor (`own`) included."""
        sums = dict(self._past_process)
        for figures in (own, *(state.process for state in self.living())):
            for name, value in figures.items():
                if name in sums and name in _SMALLEST:
                    sums[name] = min(sums[name], value)
                else:
                    sums[name] = sums.get(name, 0.0) + value
        return sums


def servers(states: Sequence[State]) -> list[dict[str, Any]]:
    """Each server once: as the worker says that has the worst of it, with the connections of all."""
    found: dict[str, dict[str, Any]] = {}
    for entry in (entry for state in states for entry in state.servers):
        before = found.get(entry["name"])
        worse = entry if before is None or _rank(entry) < _rank(before) else before
        connections = [one["connections"] for one in (before or {}, entry) if "connections" in one]
        found[entry["name"]] = {**worse, **({"connections": sum(connections)} if connections else {})}
    return list(found.values())


def _rank(entry: Mapping[str, Any]) -> int:
    status = entry.get("status")
    return _WORST.index(status) if status in _WORST else 0


def readiness(
    workers: Sequence[tuple[Mapping[str, Any], State | None]], wanted: int
) -> tuple[bool, bool, dict[str, Any]]:
    """Whether one of the workers is ready; whether that is less than all there should be; and what each says, after
    what is known of it."""
    states = [state for _, state in workers if state is not None]
    ready = [state for state in states if state.ready]
    degraded = len(ready) < wanted or any(state.degraded for state in ready)
    details = [
        {**known, "ready": False}
        if state is None
        else {
            **known,
            "ready": state.ready,
            "degraded": state.degraded,
            "incarnation": state.incarnation,
            **state.details,
        }
        for known, state in workers
    ]
    sessions = sum(int(state.details.get("sessions", 0)) for state in states)
    return bool(ready), degraded, {"sessions": sessions, "workers": details}
