from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from actors.ports import Telemetry
from gateway.observability import Exposition, Metrics, merge
from gateway.observability.metrics import SERIES_PER_INSTRUMENT, TOOLS_OF_ALL, TOOLS_PER_SERVER


@dataclass(frozen=True)
class Declared:
    name: str
    kind: str
    labels: tuple[str, ...] = ()
    help: str = "what it says"
    buckets: tuple[float, ...] | None = None


CALLS = Declared("calls_total", "counter", ("gen_ai_tool_name", "server"))
PLAIN = Declared("plain_total", "counter")
OPEN = Declared("open", "gauge", ("state",))
LAG = Declared("lag_seconds", "gauge")
TIME = Declared("time_seconds", "histogram", ("gen_ai_tool_name",), buckets=(0.1, 1.0))
ALL = (CALLS, PLAIN, OPEN, LAG, TIME)


def samples(metrics: Metrics, *others: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = Exposition(metrics)
    body, _ = page.merged_page([other.snapshot() for other in others]) if others else page.page()
    found = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            if not sample.name.startswith("process_"):
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_it_is_the_telemetry_that_the_actors_ask_for() -> None:
    telemetry: Telemetry = Metrics(ALL)
    telemetry.count("plain_total")


def test_counters_add_up_gauges_are_set_and_histograms_collect() -> None:
    metrics = Metrics(ALL)
    metrics.count("calls_total", ("echo", "fx"))
    metrics.count("calls_total", ("echo", "fx"), 2)
    metrics.gauge("open", 5, ("ready",))
    metrics.gauge("open", 3, ("ready",))
    for seconds in (0.05, 0.1, 0.5, 7):
        metrics.observe("time_seconds", seconds, ("echo",))
    tool = ("gen_ai_tool_name", "echo")
    assert samples(metrics) == {
        ("calls_total", (tool, ("server", "fx"))): 3,
        ("plain_total", ()): 0,
        ("open", (("state", "ready"),)): 3,
        ("lag_seconds", ()): 0,
        ("time_seconds_bucket", (tool, ("le", "0.1"))): 2,
        ("time_seconds_bucket", (tool, ("le", "1.0"))): 3,
        ("time_seconds_bucket", (tool, ("le", "+Inf"))): 4,
        ("time_seconds_count", (tool,)): 4,
        ("time_seconds_sum", (tool,)): 7.65,
    }


def test_what_is_not_declared_or_has_other_labels_is_a_slip() -> None:
    metrics = Metrics(ALL)
    with pytest.raises(KeyError):
        metrics.count("nothing_total")
    with pytest.raises(KeyError):
        metrics.observe("open", 1, ("x",))
    with pytest.raises(ValueError, match="calls_total has the labels"):
        metrics.count("calls_total", ("echo",))


def test_both_text_formats_are_served_and_have_types_and_helps() -> None:
    metrics = Metrics(ALL)
    metrics.count("calls_total", ('a "b"\n\\', "fx"))
    body, content_type = Exposition(metrics).page()
    assert content_type.startswith("text/plain")
    assert "# HELP calls_total what it says\n# TYPE calls_total counter\n" in body.decode()
    body, content_type = Exposition(metrics).page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name: family for family in parse_openmetrics(body.decode())}
    assert families["calls"].samples[0].labels["gen_ai_tool_name"] == 'a "b"\n\\'


def test_the_page_has_what_the_system_counts_of_the_process() -> None:
    assert b"process_resident_memory_bytes" in Exposition(Metrics(ALL)).page()[0]


def test_tools_beyond_the_bound_of_their_server_are_counted_together() -> None:
    metrics = Metrics(ALL)
    for n in range(TOOLS_PER_SERVER + 50):
        metrics.count("calls_total", (f"tool{n}", "fx"))
    metrics.count("calls_total", ("tool1", "fx"))
    metrics.count("calls_total", ("one", "another"))
    series = metrics.numbers()["calls_total"]
    assert len(series) == TOOLS_PER_SERVER + 2
    assert series["other", "fx"] == 50
    assert series["tool1", "fx"] == 2
    assert series["one", "another"] == 1


def test_an_instrument_that_names_no_server_has_one_bound_for_all_tools() -> None:
    metrics = Metrics(ALL)
    for n in range(TOOLS_OF_ALL + 5):
        metrics.observe("time_seconds", 0.2, (f"tool{n}",))
    series = metrics.numbers()["time_seconds"]
    assert len(series) == TOOLS_OF_ALL + 1
    assert series["other",] == [0, 5, 0, pytest.approx(1.0)]


def test_no_instrument_grows_without_bound() -> None:
    metrics = Metrics(ALL)
    for n in range(SERIES_PER_INSTRUMENT + 10):
        metrics.gauge("open", n, (f"state{n}",))
    assert len(metrics.numbers()["open"]) == SERIES_PER_INSTRUMENT + 1
    assert metrics.numbers()["open"]["other",] == SERIES_PER_INSTRUMENT + 9


def test_several_processes_read_as_one() -> None:
    one, two = Metrics(ALL), Metrics(ALL)
    one.count("calls_total", ("echo", "fx"), 2)
    two.count("calls_total", ("echo", "fx"), 3)
    two.count("calls_total", ("add", "fx"))
    one.gauge("open", 4, ("ready",))
    two.gauge("open", 6, ("ready",))
    one.gauge("lag_seconds", 0.5)
    two.gauge("lag_seconds", 0.2)
    one.observe("time_seconds", 0.05, ("echo",))
    two.observe("time_seconds", 2.0, ("echo",))
    merged = merge(ALL, [one.snapshot(), two.snapshot()])
    assert merged == {
        "calls_total": {("echo", "fx"): 5, ("add", "fx"): 1},
        "plain_total": {(): 0},
        "open": {("ready",): 10},
        "lag_seconds": {(): 0.5},
        "time_seconds": {("echo",): [1, 0, 1, 2.05]},
    }
    assert samples(one, two)["open", (("state", "ready"),)] == 10


def test_what_another_version_declares_otherwise_is_left_out() -> None:
    other = Metrics(
        [
            Declared("calls_total", "counter", ("one",)),
            Declared("time_seconds", "histogram", ("gen_ai_tool_name",), buckets=(1.0,)),
            Declared("newer_total", "counter"),
        ]
    )
    other.count("calls_total", ("x",))
    other.observe("time_seconds", 1, ("x",))
    assert merge(ALL, [other.snapshot()]) == {one.name: {} for one in ALL}


@pytest.mark.parametrize("snapshot", [b"", b"[]", b"nonsense", b"\xff"])
def test_what_is_not_a_snapshot_is_refused(snapshot: bytes) -> None:
    with pytest.raises(ValueError):
        merge(ALL, [snapshot])


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 1000))))
def test_a_merge_of_parts_is_the_whole(steps: list[tuple[int, str, int]]) -> None:
    parts, whole = [Metrics(ALL) for _ in range(3)], Metrics(ALL)
    for part, tool, amount in steps:
        for metrics in (parts[part], whole):
            metrics.count("calls_total", (tool, "fx"), amount)
            metrics.observe("time_seconds", amount / 256, (tool,))
    assert merge(ALL, [part.snapshot() for part in parts]) == merge(ALL, [whole.snapshot()])
