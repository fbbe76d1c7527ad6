"""Metrics as Prometheus and OpenMetrics read them. The only place that knows the Prometheus library."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from actors.protocol.instruments import Instrument
from gateway.observability.metrics import Cell, Labels, Numbers


class Counted(Protocol):
    """Series with their declarations; `Metrics` is one."""

    @property
    def instruments(self) -> Sequence[Instrument]: ...

    def numbers(self) -> Numbers: ...


class Exposition:
    """The page behind `/metrics`: the instruments, and what the operating system counts of this process, or `process`
    says that it counts of several."""

    def __init__(self, metrics: Counted, process: Callable[[], Mapping[str, float]] | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Numbers(metrics))
        if process is None:
            ProcessCollector(registry=self._registry)
        else:
            self._registry.register(_Figures(process))

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type, in the form that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Numbers(Collector):
    """Turns plain numbers into the library's families at the moment of a scrape."""

    def __init__(self, metrics: Counted) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        numbers = self._metrics.numbers()
        for instrument in self._metrics.instruments:
            yield _family(instrument, list(numbers[instrument.name].items()))


_OF_THIS_PROCESS = ProcessCollector(registry=None)


def process_figures() -> dict[str, float]:
    """What the operating system counts of this process, by the names that Prometheus gives it."""
    return {sample.name: float(sample.value) for family in _OF_THIS_PROCESS.collect() for sample in family.samples}


class _Figures(Collector):
    """The same of several processes."""

    def __init__(self, figures: Callable[[], Mapping[str, float]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for name, value in self._figures().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(name, "What the operating system counts of all processes", value=value)


def _family(instrument: Instrument, series: list[tuple[Labels, Cell]]) -> Metric:
    name, text, labels = instrument.name, instrument.help, instrument.labels
    if instrument.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        bounds = [*map(floatToGoString, instrument.buckets), "+Inf"]
        for values, cell in series:
            assert isinstance(cell, list)
            buckets = list(zip(bounds, accumulate(cell[:-1]), strict=True))
            histogram.add_metric(values, buckets, sum_value=cell[-1])
        return histogram
    family = (CounterMetricFamily if instrument.kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for values, cell in series:
        assert not isinstance(cell, list)
        family.add_metric(values, cell)
    return family
