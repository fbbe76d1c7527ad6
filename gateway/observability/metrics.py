"""Counting: what happens in the process, kept as plain dicts.

The hot path is one or two dict operations: no lock, no label objects. It belongs to the thread of the event loop; other
threads hand what they measured to it. A scrape reads the dicts as they are (`gateway.observability.exposition`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from actors.protocol.instruments import INSTRUMENTS, OTHER, Instrument

Labels: TypeAlias = tuple[str, ...]
"""Values in the declared order."""

Cell: TypeAlias = float | list[float]
"""A number; for a histogram how many fell into each bucket (the last is unbounded), and behind them their sum."""

Numbers: TypeAlias = dict[str, dict[Labels, Cell]]
"""Series by instrument and labels."""

LABEL_MAX = 128
"""Characters of one label; a longer one is cut."""

TOOLS_PER_SERVER = 200
"""Names of tools kept apart for one server; those beyond are counted together."""

TOOLS_OF_ALL = 1000
"""The same for instruments that do not name the server."""

SERIES_PER_INSTRUMENT = 10_000
"""A last bound, whatever the labels are; series beyond are counted together."""


_TOOL, _SERVER = "gen_ai_tool_name", "server"


class Metrics:
    """The numbers of this process: the port `Telemetry` over the declared instruments.

    A name that is not declared is a KeyError, a wrong number of labels a ValueError: both are slips in our own code.
    """

    def __init__(self, instruments: Iterable[Instrument] = INSTRUMENTS.values()) -> None:
        self.instruments = tuple(instruments)
        self._declared = {instrument.name: instrument for instrument in self.instruments}
        self._bounds = {one.name: one.buckets for one in self.instruments if one.kind == "histogram"}
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._cells: dict[str, dict[Labels, list[float]]] = {}
        self._tools: dict[str, set[str]] = {}
        for instrument in self.instruments:
            if instrument.kind == "histogram":
                self._cells[instrument.name] = {}
            else:
                # A counter that starts at nothing rather than absent can be differentiated from its first step on.
                self._numbers[instrument.name] = {} if instrument.labels else {(): 0}

    def count(self, name: str, labels: Labels = (), amount: int = 1) -> None:
        """Adds to a counter."""
        series = self._numbers[name]
        try:
            series[labels] += amount
        except KeyError:
            labels = self._admit(name, labels, series)
            series[labels] = series.get(labels, 0) + amount

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None:
        """Sets a gauge."""
        series = self._numbers[name]
        series[labels if labels in series else self._admit(name, labels, series)] = value

    def observe(self, name: str, seconds: float, labels: Labels = ()) -> None:
        """Adds a duration to a histogram."""
        series, bounds = self._cells[name], self._bounds[name]
        cell = series.get(labels)
        if cell is None:
            cell = series.setdefault(self._admit(name, labels, series), [0.0] * (len(bounds) + 2))
        cell[bisect_left(bounds, seconds)] += 1
        cell[-1] += seconds

    def numbers(self) -> Numbers:
        """All series as they are at this moment; not a copy."""
        return {one.name: {**self._numbers, **self._cells}[one.name] for one in self.instruments}  # type: ignore[misc]

    def _admit(self, name: str, labels: Labels, series: Mapping[Labels, object]) -> Labels:
        """The labels under which a series that is not there yet is kept: its own, as long as the bounds allow."""
        declared = self._declared[name].labels
        if len(labels) != len(declared):
            raise ValueError(f"{name} has the labels {declared}, not {labels}")
        labels = tuple(label[:LABEL_MAX] for label in labels)
        if _TOOL in declared:
            labels = self._bound_tool(declared, labels)
        if labels not in series and len(series) >= SERIES_PER_INSTRUMENT:
            return (OTHER,) * len(labels)
        return labels

    def _bound_tool(self, declared: tuple[str, ...], labels: Labels) -> Labels:
        at = declared.index(_TOOL)
        named = _SERVER in declared
        server = labels[declared.index(_SERVER)] if named else ""
        tools = self._tools.setdefault(server, set())
        if labels[at] not in tools and labels[at] not in ("", OTHER):
            if len(tools) >= (TOOLS_PER_SERVER if named else TOOLS_OF_ALL):
                return (*labels[:at], OTHER, *labels[at + 1 :])
            tools.add(labels[at])
        return labels
