"""Several workers as one gateway: sums, readiness, servers."""

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec

from actors.protocol.instruments import INSTRUMENTS, SERVER
from gateway.observability.bounds import TOOLS_PER_SERVER, Labels
from gateway.observability.exposition import write
from gateway.observability.metrics import Cell, Metrics
from gateway.supervising import OWN
from gateway.workers.channel import State
from gateway.workers.overview import Totals, readiness, rows, seen, servers

ANSWERS = "stagedoor_http_responses_total"
LAG = "stagedoor_scheduler_lag_seconds"
STREAMS = "stagedoor_streams_open"
CLIENT = "mcp_client_operation_duration_seconds"


def worker(answers: int = 0, lags: tuple[float, ...] = (), gauges: dict[str, float] | None = None) -> State:
    metrics = Metrics()
    for _ in range(answers):
        metrics.count(ANSWERS, ("POST", "200"))
    for lag in lags:
        metrics.observe(LAG, lag)
    for name, value in (gauges or {}).items():
        metrics.gauge(name, value, {STREAMS: ("get",), "stagedoor_backend_up": ("fx",)}.get(name, ()))
    return State(ready=True, numbers=rows(metrics.numbers()))


def counted(series: Mapping[Labels, Cell]) -> dict[Labels, Cell]:
    """Without those that are there from the start, and say nothing yet."""
    return {labels: cell for labels, cell in series.items() if cell}


def totals(*living: State) -> Totals:
    made = Totals()
    made.living = lambda: living
    return made


def test_counters_and_histograms_are_summed():
    numbers = totals(worker(2, (0.001,)), worker(3, (0.001, 9.0))).numbers()
    assert counted(numbers[ANSWERS]) == {("POST", "200"): 5}
    (cell,) = numbers[LAG].values()
    assert isinstance(cell, list)
    assert sum(cell[:-1]) == 3
    assert cell[-2] == 1
    assert abs(cell[-1] - 9.002) < 1e-9


def test_what_an_ended_worker_counted_stays_and_what_it_had_open_does_not():
    made = totals(worker(1, gauges={STREAMS: 2.0}))
    made.ended(worker(4, (0.5,), {STREAMS: 7.0}))
    numbers = made.numbers()
    assert counted(numbers[ANSWERS]) == {("POST", "200"): 5}
    assert counted(numbers[STREAMS]) == {("get",): 2.0}
    made.ended(worker(10))
    assert counted(made.numbers()[ANSWERS]) == {("POST", "200"): 15}
    assert made.numbers() == made.numbers(), "a look changes nothing"


def test_gauges_are_summed_or_the_worst():
    one = worker(
        gauges={STREAMS: 2, "stagedoor_backend_up": 1, "stagedoor_store_up": 1, "stagedoor_lease_age_seconds": 1}
    )
    other = worker(
        gauges={STREAMS: 3, "stagedoor_backend_up": 0, "stagedoor_store_up": 0, "stagedoor_lease_age_seconds": 9}
    )
    numbers = totals(one, other).numbers()
    assert counted(numbers[STREAMS]) == {("get",): 5}
    assert numbers["stagedoor_backend_up"] == {("fx",): 0}
    assert numbers["stagedoor_store_up"] == {(): 0}
    assert numbers["stagedoor_lease_age_seconds"] == {(): 9}


def test_no_counter_and_no_bucket_ever_falls_whichever_workers_begin_and_end():
    chance, living, made = Random(7), [Metrics()], Totals()
    made.living = lambda: [State(ready=True, numbers=rows(one.numbers())) for one in living]
    before: dict[tuple[str, Labels, int], float] = {}
    for step in range(300):
        worker = chance.choice(living)
        worker.count(ANSWERS, ("POST", str(200 + chance.randrange(4))))
        worker.observe(CLIENT, chance.random(), ("tools/call", f"tool{step}", "", "http", "", "fx"))
        if chance.random() < 0.1:
            living.append(Metrics())
        if chance.random() < 0.1 and len(living) > 1:
            made.ended(State(ready=False, numbers=rows(living.pop(0).numbers())))
        numbers = made.numbers()
        now = {
            (name, labels, at): value
            for name in (ANSWERS, CLIENT)
            for labels, cell in numbers[name].items()
            for at, value in enumerate(cell if isinstance(cell, list) else [cell])
        }
        assert all(now[key] >= value for key, value in before.items()), step
        before = now
    assert sum(numbers[ANSWERS].values()) == 300
    assert sum(sum(cell[:-1]) for cell in numbers[CLIENT].values()) == 300


def test_the_tools_of_all_workers_there_ever_were_are_bounded_together():
    made = Totals()
    for life in range(4):
        worker = Metrics()
        for tool in range(100):
            worker.observe(CLIENT, 0.1, ("tools/call", f"tool{life}-{tool}", "", "http", "", "fx"))
        made.ended(State(ready=False, numbers=rows(worker.numbers())))
    series = made.numbers()[CLIENT]
    assert len({labels[1] for labels in series}) <= TOOLS_PER_SERVER + 2
    assert sum(sum(cell[:-1]) for cell in series.values()) == 400


def test_every_family_is_there_before_a_worker_has_said_anything_and_no_gauge_speaks_for_the_workers():
    made = Totals()
    numbers = made.numbers()
    counters = [one.name for one in INSTRUMENTS.values() if one.kind != "gauge" and SERVER not in one.labels]
    assert [name for name in counters if not numbers[name]] == []
    assert numbers["stagedoor_takeovers_total"]["takeover",] == 0
    assert numbers["stagedoor_store_up"] == {}
    own = Metrics(INSTRUMENTS[name] for name in OWN)
    made.own = own.numbers
    made.living = lambda: [worker(gauges={"stagedoor_store_up": 1, "stagedoor_lease_age_seconds": 0.2})]
    assert made.numbers()["stagedoor_store_up"] == {(): 1}


def test_of_each_bucket_the_last_trace_that_any_worker_had_is_shown():
    one, other = (Metrics(clock=lambda at=at: at) for at in (1.0, 2.0))
    labels = ("tools/call", "echo", "", "http", "", "fx")
    one.observe(CLIENT, 0.1, labels, "a" * 32)
    one.observe(CLIENT, 9.0, labels, "b" * 32)
    other.observe(CLIENT, 0.1, labels, "c" * 32)
    states = [State(ready=True, numbers=rows(it.numbers()), examples=seen(it.examples())) for it in (other, one)]
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) for state in states]
    made = totals(*sent)
    assert {example.trace for example in made.examples()[CLIENT][labels].values()} == {"b" * 32, "c" * 32}
    page = write(made.instruments, made.numbers(), made.examples(), {}, "application/openmetrics-text")[0].decode()
    assert page.count("trace_id") == 2


def test_series_of_another_version_are_left_out():
    strange = State(
        ready=True,
        numbers={
            "stagedoor_of_tomorrow_total": [((), 1.0)],
            ANSWERS: [(("POST", "200", "more"), 1.0), (("POST", "200"), 2.0), (("GET", "200"), [1.0, 2.0])],
            LAG: [((), [1.0, 2.0]), ((), 3.0)],
        },
    )
    numbers = totals(strange).numbers()
    assert counted(numbers[ANSWERS]) == {("POST", "200"): 2}
    (cell,) = numbers[LAG].values()
    assert isinstance(cell, list)
    assert not any(cell)
    assert "stagedoor_of_tomorrow_total" not in numbers


def test_the_page_has_the_sums_and_the_processes():
    made = totals(worker(2), worker(3))
    made.living()[0].process["process_cpu_seconds_total"] = 1.5
    made.living()[0].process["process_max_fds"] = 100.0
    made.ended(State(ready=False, process={"process_cpu_seconds_total": 2.0, "process_open_fds": 9.0}))
    own = {"process_cpu_seconds_total": 0.5, "process_max_fds": 200.0, "process_open_fds": 7.0}
    page = write(made.instruments, made.numbers(), made.examples(), made.process(own))[0].decode()
    assert 'stagedoor_http_responses_total{method="POST",status="200"} 5.0' in page
    assert "process_cpu_seconds_total 4.0" in page
    assert "process_max_fds 100.0" in page
    assert "process_open_fds 7.0" in page


def test_it_is_ready_with_one_worker_and_degraded_with_fewer_than_there_should_be():
    up, down = State(ready=True, details={"sessions": 2}), State(ready=False, details={"sessions": 1})

    def say(*states: State | None) -> tuple[bool, bool, dict[str, Any]]:
        return readiness([({"pid": pid}, state) for pid, state in enumerate(states, 1)], 2)

    assert say(up, up)[:2] == (True, False)
    assert say(up, down)[:2] == (True, True)
    assert say(up, up, down)[:2] == (True, False), "a replaced worker drains beside them"
    assert say(up, State(ready=True, degraded=True))[:2] == (True, True)
    assert say(down, None)[:2] == (False, True)
    assert say() == (False, True, {"sessions": 0, "workers": []})
    details = say(up, None)[2]
    assert details["sessions"] == 2
    assert [one["pid"] for one in details["workers"]] == [1, 2]


def test_a_server_is_as_the_worker_says_that_has_the_worst_of_it():
    def says(*entries: dict[str, Any]) -> State:
        return State(ready=True, servers=list(entries))

    healthy = {"name": "fx", "status": "healthy", "connections": 2}
    failing = {"name": "fx", "status": "failing", "connections": 1, "error": {"message": "no"}}
    unused = {"name": "fx", "status": "unused"}
    assert servers([says(healthy), says(failing), says(unused)]) == [{**failing, "connections": 3}]
    assert servers([says(unused), says(healthy)]) == [healthy]
    assert servers([says(unused, {"name": "dx", "status": "unused"}), says(unused)]) == [
        unused,
        {"name": "dx", "status": "unused"},
    ]
