"""Counting: what happens in the process, kept as plain dicts.

The hot path is one or two dict operations: no lock, no label objects. It belongs to the thread of the event loop; other
threads hand what they measured to it. A scrape takes a copy (`numbers`), which is written down by another thread
(`gateway.observability.exposition`).
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

from actors.protocol.instruments import INSTRUMENTS, SERVER, Instrument
from gateway.observability.bounds import Bounds, Labels

Cell: TypeAlias = float | list[float]
"""A number; for a histogram how many fell into each bucket (the last is unbounded), and behind them their sum."""

Numbers: TypeAlias = dict[str, dict[Labels, Cell]]
"""Series by instrument and labels."""


class Example(NamedTuple):
    """One value that was measured lately, the trace it belongs to, and when (seconds since 1970)."""

    trace: str
    value: float
    at: float


Examples: TypeAlias = dict[str, dict[Labels, dict[int, Example]]]
"""The last one of each bucket (its position), by instrument and series."""


class Metrics:
    """The numbers of this process: the port `Telemetry` over the declared instruments.

    A name that is not declared is a KeyError, a wrong number of labels a ValueError: both are slips in our own code.
    """

    def __init__(
        self, instruments: Iterable[Instrument] = INSTRUMENTS.values(), clock: Callable[[], float] = time.time
    ) -> None:
        self.instruments = tuple(instruments)
        self._clock = clock
        self._bounds = Bounds(self.instruments)
        self._buckets = {one.name: one.buckets for one in self.instruments if one.kind == "histogram"}
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._cells: dict[str, dict[Labels, list[float]]] = {}
        self._examples: Examples = {}
        self._servers: frozenset[str] | None = None
        for instrument in self.instruments:
            series: dict[str, dict[Labels, float]] | dict[str, dict[Labels, list[float]]]
            series = self._cells if instrument.name in self._buckets else self._numbers
            series[instrument.name] = {}
        self.know(frozenset())

    def know(self, servers: AbstractSet[str]) -> None:
        """These are the servers that there are: what can be counted of them exists from here on, at 0, so that its
        first step can be seen; what gauges said of others that have nothing any more is forgotten."""
        if servers != self._servers:
            self._servers = frozenset(servers)
            for instrument in self.instruments:
                self._start(instrument, self._servers)
        for instrument in self.instruments:
            if instrument.kind == "gauge" and SERVER in instrument.labels:
                self._forget_others(instrument, self._servers)

    def _start(self, instrument: Instrument, servers: Iterable[str]) -> None:
        name = instrument.name
        for labels in instrument.from_the_start(sorted(servers)):
            kept = self._bounds.admit(name, labels)
            if name in self._buckets:
                self._cells[name].setdefault(kept, self._empty(name))
            else:
                self._numbers[name].setdefault(kept, instrument.start)

    def _forget_others(self, instrument: Instrument, servers: frozenset[str]) -> None:
        at, series = instrument.labels.index(SERVER), self._numbers[instrument.name]
        for labels in [one for one, value in series.items() if value == instrument.start and one[at] not in servers]:
            del series[labels]
            self._bounds.free(instrument.name, labels)

    def _empty(self, name: str) -> list[float]:
        return [0.0] * (len(self._buckets[name]) + 2)

    def count(self, name: str, labels: Labels = (), amount: int = 1) -> None:
        """Adds to a counter."""
        series = self._numbers[name]
        try:
            series[labels] += amount
        except KeyError:
            labels = self._bounds.admit(name, labels)
            series[labels] = series.get(labels, 0) + amount

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None:
        """Sets a gauge."""
        series = self._numbers[name]
        series[labels if labels in series else self._bounds.admit(name, labels)] = value

    def observe(self, name: str, seconds: float, labels: Labels = (), trace: str = "") -> None:
        """Adds a duration to a histogram; `trace` is the id of the trace that it belongs to, if it belongs to one."""
        series, bounds = self._cells[name], self._buckets[name]
        cell = series.get(labels)
        if cell is None:
            labels = self._bounds.admit(name, labels)
            cell = series.setdefault(labels, self._empty(name))
        bucket = bisect_left(bounds, seconds)
        cell[bucket] += 1
        cell[-1] += seconds
        if trace:
            examples = self._examples.setdefault(name, {}).setdefault(labels, {})
            examples[bucket] = Example(trace, seconds, self._clock())

    def numbers(self) -> Numbers:
        """All series as they are at this moment: a copy."""
        found: Numbers = {}
        for one in self.instruments:
            if one.kind == "histogram":
                found[one.name] = {labels: [*cell] for labels, cell in self._cells[one.name].items()}
            else:
                found[one.name] = dict(self._numbers[one.name])
        return found

    def examples(self) -> Examples:
        """For histograms whose observations had a trace, the last ones: a copy."""
        return {name: {labels: dict(of) for labels, of in series.items()} for name, series in self._examples.items()}
