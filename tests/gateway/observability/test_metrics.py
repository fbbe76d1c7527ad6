import ast
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from actors.ports import Telemetry
from actors.protocol.instruments import INSTRUMENTS, Instrument
from gateway.observability import Metrics
from gateway.observability.bounds import SERIES_PER_HISTOGRAM, SERIES_PER_NUMBER, TOOLS_OF_ALL, TOOLS_PER_SERVER
from gateway.observability.exposition import write

ROOT = Path(__file__).parents[3]
HELP = "what it says"
CALLS = Instrument("calls_total", "counter", HELP, ("gen_ai_tool_name", "server"))
PLAIN = Instrument("plain_total", "counter", HELP)
OPEN = Instrument("open", "gauge", HELP, ("state",))
AGE = Instrument("age_seconds", "gauge", HELP)
UP = Instrument("store_up", "gauge", HELP)
TIME = Instrument("time_seconds", "histogram", HELP, ("gen_ai_tool_name",), (0.1, 1.0))
ALL = (CALLS, PLAIN, OPEN, AGE, UP, TIME)


def page(metrics: Metrics, accept: str = "") -> tuple[bytes, str]:
    return write(metrics.instruments, metrics.numbers(), metrics.examples(), accept=accept)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = page(metrics)
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
    tool, none = ("gen_ai_tool_name", "echo"), ("gen_ai_tool_name", "")
    assert samples(metrics) == {
        ("calls_total", (tool, ("server", "fx"))): 3,
        ("plain_total", ()): 0,
        ("open", (("state", ""),)): 0,
        ("open", (("state", "ready"),)): 3,
        ("age_seconds", ()): 0,
        ("store_up", ()): 0,
        ("time_seconds_bucket", (tool, ("le", "0.1"))): 2,
        ("time_seconds_bucket", (tool, ("le", "1.0"))): 3,
        ("time_seconds_bucket", (tool, ("le", "+Inf"))): 4,
        ("time_seconds_count", (tool,)): 4,
        ("time_seconds_sum", (tool,)): 7.65,
        **{("time_seconds_bucket", (none, ("le", le))): 0 for le in ("0.1", "1.0", "+Inf")},
        ("time_seconds_count", (none,)): 0,
        ("time_seconds_sum", (none,)): 0,
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
    body, content_type = page(metrics)
    assert content_type.startswith("text/plain")
    assert "# HELP calls_total what it says\n# TYPE calls_total counter\n" in body.decode()
    body, content_type = page(metrics, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name: family for family in parse_openmetrics(body.decode())}
    assert families["calls"].samples[0].labels["gen_ai_tool_name"] == 'a "b"\n\\'


def test_the_page_has_what_the_system_counts_of_the_process() -> None:
    assert b"process_resident_memory_bytes" in page(Metrics(ALL))[0]


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
    assert len(series) == TOOLS_OF_ALL + 2
    assert series["",] == [0, 0, 0, 0], "which was there from the start"
    assert series["other",] == [0, 5, 0, pytest.approx(1.0)]


def test_no_instrument_grows_without_bound() -> None:
    metrics = Metrics(ALL)
    for n in range(SERIES_PER_NUMBER + 10):
        metrics.gauge("open", n, (f"state{n}",))
    assert len(metrics.numbers()["open"]) == SERIES_PER_NUMBER + 1
    assert metrics.numbers()["open"]["other",] == SERIES_PER_NUMBER + 9


def test_no_histogram_grows_without_bound() -> None:
    times = Instrument("times_seconds", "histogram", HELP, ("server", "error_type"), (0.1,))
    metrics = Metrics([times])
    for n in range(SERIES_PER_HISTOGRAM + 10):
        metrics.observe("times_seconds", 0.2, (f"server{n}", ""))
    series = metrics.numbers()["times_seconds"]
    assert len(series) == SERIES_PER_HISTOGRAM + 1
    assert series["other", "other"][1] == 10


STATES = Instrument("states", "gauge", HELP, ("server", "state"), values={"state": ("up", "down")})
FAILURES = Instrument("failures_total", "counter", HELP, ("server", "reason"), values={"reason": ("a", "b")})
UPS = Instrument("up", "gauge", HELP, ("server",), start=1.0)


def test_every_series_whose_labels_are_known_exists_from_the_start() -> None:
    metrics = Metrics([*ALL, STATES, FAILURES, UPS])
    assert metrics.numbers()["failures_total"] == {}, "no server is known"
    metrics.know({"x", "y"})
    numbers = metrics.numbers()
    assert numbers["failures_total"] == {(server, reason): 0 for server in "xy" for reason in "ab"}
    assert numbers["up"] == {("x",): 1, ("y",): 1}
    metrics.count("failures_total", ("x", "a"))
    metrics.know({"x", "z"})
    assert metrics.numbers()["failures_total"]["x", "a"] == 1
    assert metrics.numbers()["failures_total"]["y", "a"] == 0, "a counter never goes"
    assert metrics.numbers()["failures_total"]["z", "b"] == 0


def test_gauges_of_a_server_that_is_gone_go_with_what_they_counted() -> None:
    metrics = Metrics([STATES, UPS])
    metrics.know({"x", "y"})
    metrics.gauge("states", 2, ("y", "up"))
    metrics.know({"x"})
    assert metrics.numbers() == {
        "states": {("x", "up"): 0, ("x", "down"): 0, ("y", "up"): 2},
        "up": {("x",): 1},
    }
    metrics.gauge("states", 0, ("y", "up"))
    metrics.know({"x"})
    assert ("y", "up") not in metrics.numbers()["states"]
    metrics.know({"x", "y"})
    assert metrics.numbers()["states"]["y", "up"] == 0


def test_what_a_label_is_not_declared_to_say_is_counted_as_other() -> None:
    metrics = Metrics([FAILURES])
    metrics.know({"x"})
    for reason in ("a", "invented", "invented too"):
        metrics.count("failures_total", ("x", reason))
    assert metrics.numbers()["failures_total"] == {("x", "a"): 1, ("x", "b"): 0, ("x", "other"): 2}


def test_a_copy_of_the_numbers_stays_as_it_is() -> None:
    metrics = Metrics(ALL)
    metrics.observe("time_seconds", 0.2, ("echo",))
    copy = metrics.numbers()
    metrics.observe("time_seconds", 0.2, ("echo",))
    metrics.count("plain_total")
    assert copy["time_seconds"]["echo",] == [0, 1, 0, 0.2]
    assert copy["plain_total"] == {(): 0}


def test_every_family_has_a_series_as_soon_as_the_gateway_serves() -> None:
    metrics = Metrics()
    metrics.know({"demo"})
    families = {family.name: family for family in parse(page(metrics)[0].decode())}
    empty = [name for name in INSTRUMENTS if not families[name.removesuffix("_total")].samples]
    assert empty == []
    body = page(metrics)[0].decode()
    assert 'stagedoor_takeovers_total{reason="takeover"} 0.0' in body
    assert 'stagedoor_resumes_total{outcome="hit"} 0.0' in body
    assert 'stagedoor_resumes_total{outcome="missed"} 0.0' in body
    assert "mcp_client_operation_duration_seconds_count{" in body


def test_an_observation_with_a_trace_is_an_exemplar_of_its_bucket_in_openmetrics() -> None:
    now = iter((100.0, 200.0, 300.0))
    metrics = Metrics(ALL, clock=lambda: next(now))
    first, second, slow = "a" * 32, "b" * 32, "c" * 32
    metrics.observe("time_seconds", 0.5, ("echo",), first)
    metrics.observe("time_seconds", 0.6, ("echo",), second)
    metrics.observe("time_seconds", 9.0, ("echo",), slow)
    metrics.observe("time_seconds", 0.7, ("echo",))
    body = page(metrics, "application/openmetrics-text; version=1.0.0")[0].decode()
    found = {
        sample.labels["le"]: sample.exemplar
        for family in parse_openmetrics(body)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert {le: (one.labels, one.value, float(one.timestamp)) for le, one in found.items()} == {
        "1.0": ({"trace_id": second}, 0.6, 200.0),
        "+Inf": ({"trace_id": slow}, 9.0, 300.0),
    }
    assert "trace_id" not in page(metrics)[0].decode(), "the older form has no place for it"


def test_every_declared_instrument_is_on_the_page() -> None:
    metrics = Metrics()
    for name, one in INSTRUMENTS.items():
        labels = tuple(f"{label} value" for label in one.labels)
        if one.kind == "histogram":
            metrics.observe(name, 0.5, labels)
        elif one.kind == "counter":
            metrics.count(name, labels)
        else:
            metrics.gauge(name, 1, labels)
    body = page(metrics)[0].decode()
    for name, one in INSTRUMENTS.items():
        assert f"# HELP {name} {one.help}\n# TYPE {name} {one.kind}\n" in body
    list(parse_openmetrics(page(metrics, "application/openmetrics-text")[0].decode()))


def test_all_that_the_code_counts_is_declared_with_those_labels() -> None:
    wrong = [slip for file in SOURCES for slip in _slips(file)]
    assert wrong == []


SOURCES = [file for folder in ("actors", "gateway") for file in sorted((ROOT / folder).rglob("*.py"))]
KINDS = {"count": "counter", "gauge": "gauge", "observe": "histogram"}
LABELS_AT = {"count": 1, "gauge": 2, "observe": 2}


def _slips(file: Path) -> list[str]:
    """Calls of the port whose name is a literal and which do not fit the table; labels are compared where they are a
    literal too, or left out."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS):
            continue
        if not (node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)):
            continue
        name, method, at = node.args[0].value, node.func.attr, LABELS_AT[node.func.attr]
        declared = INSTRUMENTS.get(name)
        labels = node.args[at] if len(node.args) > at else ast.Tuple(elts=[])
        if declared is None:
            if name.startswith(("stagedoor_", "mcp_")):
                found.append(f"{file.name}:{node.lineno}: {name} is not declared")
        elif declared.kind != KINDS[method]:
            found.append(f"{file.name}:{node.lineno}: {name} is a {declared.kind}")
        elif isinstance(labels, ast.Tuple) and len(labels.elts) != len(declared.labels):
            found.append(f"{file.name}:{node.lineno}: {name} has the labels {declared.labels}")
    return found
