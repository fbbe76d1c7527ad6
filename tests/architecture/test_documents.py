"""Documents that are generated, or that name what the code has, are held against it."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

from tests.architecture.source import ROOT, below, none, text


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_metrics_is_the_code_s() -> None:
    metrics_table = script("metrics_table")
    text = metrics_table.DOCUMENT.read_text()
    assert metrics_table.render(text) == text, "run scripts/metrics_table.py"


def test_the_page_on_compatibility_is_the_matrix_s_table() -> None:
    compatibility = script("compatibility")
    assert compatibility.DOCUMENT.read_text() == compatibility.render(), "run scripts/compatibility.py"


def test_the_way_of_every_flow_can_be_traced_and_has_a_row_in_the_document() -> None:
    trace_calls = script("trace_calls")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in trace_calls.DOCUMENT.read_text().splitlines()]
    assert [row for row in rows if row in trace_calls.FLOWS] == list(trace_calls.FLOWS)
    ways = {name: trace_calls.trace(name) for name in trace_calls.FLOWS}
    assert all(0 < way.runtime < len(way.calls) for way in ways.values())
    name = next(iter(ways))
    assert trace_calls.trace(name).calls == ways[name].calls, "the same code has another trace"


def test_every_declared_metric_is_emitted_somewhere() -> None:
    from actors.protocol.instruments import INSTRUMENTS

    code = "\n".join(text(path) for path in below("actors", "gateway") if path.name != "instruments.py")
    none([name for name in INSTRUMENTS if f'"{name}"' not in code])


def test_the_limits_in_the_guarantees_are_the_defaults() -> None:
    from actors.protocol.modern.link_calls import UNSAID_MAX
    from actors.protocol.table import Limits

    text = (ROOT / "docs" / "guarantees.md").read_text()
    limits = Limits()
    for number, words in [
        (limits.requests_per_session, r"{} requests in flight: `429`"),
        (limits.get_streams_per_session, r"{} GET streams: `409`"),
        (limits.requests_per_principal, r"{} requests in flight over all"),
        (f"{limits.sessions:,}", r"{}: `503` for a further"),
        (limits.box_events, r"wait for a GET stream: {};"),
        (limits.child_processes, r"{} child processes"),
        (int(limits.admission), r"mailbox \| {} s"),
        (limits.stream_after, r"becomes a stream \| {} s"),
        (int(limits.request_deadline), r"a request \| {} s without progress"),
        (int(limits.list_deadline), r"for one server \| {} s"),
        (int(limits.link_connect), r"a connection to a server \| {} s"),
        (int(limits.server_request_wait), r"without a stream to carry it \| {} s"),
        (int(limits.drain_deadline), r"the drain \| {} s"),
        (UNSAID_MAX, r"{} notifications of clients"),
    ]:
        assert re.search(words.format(number), text), words.format(number)


def test_the_redis_rights_in_the_operations_guide_are_the_store_s() -> None:
    from gateway.store.redis.checks import RIGHTS

    assert f"`{' '.join(RIGHTS)}`" in (ROOT / "docs" / "operations.md").read_text()
