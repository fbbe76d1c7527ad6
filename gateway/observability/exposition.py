"""Metrics as Prometheus and OpenMetrics read them. The only place that knows the Prometheus library."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from actors.protocol.instruments import Instrument
from gateway.observability.bounds import Labels
from gateway.observability.metrics import Cell, Example, Examples, Numbers


def write(
    instruments: Sequence[Instrument],
    numbers: Numbers,
    examples: Examples,
    process: Mapping[str, float] | None = None,
    accept: str = "",
) -> tuple[bytes, str]:
    """The body behind `/metrics` and its content type, in the form that the `Accept` header asks for: the series of
    these instruments, and what the operating system counts of this process, or `process` says that it counts of
    several. Traces are in the OpenMetrics form alone, as exemplars; the older one has no place for them."""
    registry = CollectorRegistry()
    registry.register(_Given([_family(one, numbers[one.name], examples.get(one.name, {})) for one in instruments]))
    if process is None:
        ProcessCollector(registry=registry)
    else:
        registry.register(_Given([_figure(name, value) for name, value in process.items()]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Given(Collector):
    """Families that are made already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


_OF_THIS_PROCESS = ProcessCollector(registry=None)


def process_figures() -> dict[str, float]:
    """What the operating system counts of this process, by the names that Prometheus gives it."""
    return {sample.name: float(sample.value) for family in _OF_THIS_PROCESS.collect() for sample in family.samples}


def _figure(name: str, value: float) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(name, "What the operating system counts of all processes", value=value)


def _family(
    instrument: Instrument, series: Mapping[Labels, Cell], examples: Mapping[Labels, Mapping[int, Example]]
) -> Metric:
    name, text, labels = instrument.name, instrument.help, instrument.labels
    if instrument.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        bounds = [*map(floatToGoString, instrument.buckets), "+Inf"]
        for values, cell in series.items():
            assert isinstance(cell, list)
            of = examples.get(values, {})
            buckets = list(zip(bounds, accumulate(cell[:-1]), strict=True))
            told = [(*bucket, _exemplar(of[at])) if at in of else bucket for at, bucket in enumerate(buckets)]
            histogram.add_metric(values, told, sum_value=cell[-1])
        return histogram
    family = (CounterMetricFamily if instrument.kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for values, cell in series.items():
        assert not isinstance(cell, list)
        family.add_metric(values, cell)
    return family


def _exemplar(example: Example) -> Exemplar:
    return Exemplar({"trace_id": example.trace}, example.value, example.at)
