"""How many series there may be: which one an event is counted in.

Of the names of tools so many are kept apart for each server, and so many in all; a label whose values are known says
nothing else; and no instrument has more than so many series. What is beyond that is counted together, as `other`.
Whoever was let in once stays, so that no sum over several processes ever falls.
"""

from collections.abc import Iterable
from typing import TypeAlias

from actors.protocol.instruments import OTHER, Instrument

Labels: TypeAlias = tuple[str, ...]
"""Values in the declared order."""

LABEL_MAX = 128
"""Characters of one label; a longer one is cut."""

TOOLS_PER_SERVER = 200
"""Names of tools kept apart for one server; those beyond are counted together."""

TOOLS_OF_ALL = 1000
"""The same for instruments that do not name the server."""

SERIES_PER_NUMBER = 10_000
"""A last bound for counters and gauges, whatever the labels are; series beyond are counted together."""

SERIES_PER_HISTOGRAM = 3000
"""The same for histograms, each series of which is some twenty lines of a scrape."""

_TOOL, _SERVER = "gen_ai_tool_name", "server"


class Bounds:
    """Says which series an event is counted in, for these instruments and the life of a process."""

    def __init__(self, instruments: Iterable[Instrument]) -> None:
        self._declared = {instrument.name: instrument for instrument in instruments}
        self._admitted: dict[str, set[Labels]] = {name: set() for name in self._declared}
        self._tools: dict[str, set[str]] = {}
        self._values = {
            name: {one.labels.index(label): frozenset(values) for label, values in one.values.items()}
            for name, one in self._declared.items()
        }

    def admit(self, name: str, labels: Labels) -> Labels:
        """The labels under which a series is kept: its own, as long as the bounds allow. Raises ValueError if there are
        not as many as declared."""
        instrument, admitted = self._declared[name], self._admitted[name]
        if labels in admitted:
            return labels
        if len(labels) != len(instrument.labels):
            raise ValueError(f"{name} has the labels {instrument.labels}, not {labels}")
        labels = tuple(label[:LABEL_MAX] for label in labels)
        for at, known in self._values[name].items():
            if labels[at] not in known:
                labels = (*labels[:at], OTHER, *labels[at + 1 :])
        if _TOOL in instrument.labels:
            labels = self._bound_tool(instrument.labels, labels)
        most = SERIES_PER_HISTOGRAM if instrument.kind == "histogram" else SERIES_PER_NUMBER
        if labels not in admitted and len(admitted) >= most:
            return (OTHER,) * len(labels)
        admitted.add(labels)
        return labels

    def free(self, name: str, labels: Labels) -> None:
        """This series is no more; only a gauge may go."""
        self._admitted[name].discard(labels)

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
