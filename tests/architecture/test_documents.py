"""Documents that are generated, or that name what the code has, are held against it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.architecture.source import CODE, ROOT, TESTS, TEXTS, below, none, text


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


def test_the_dashboards_are_what_the_script_makes_and_grafana_can_tell_their_panels_apart() -> None:
    dashboards = script("dashboards")
    for file, made in dashboards.files().items():
        assert file.read_text() == made, "run scripts/dashboards.py"
        panels = json.loads(made)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert set(dashboards.FOLDER.glob("*.json")) == dashboards.files().keys()


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
    for name, bound in trace_calls.BOUNDS.items():
        assert ways[name].hops <= bound.hops, name
        assert bound.calls is None or len(ways[name].calls) <= bound.calls, name
    plain = [ways[name] for name, flow in trace_calls.FLOWS.items() if flow.play is trace_calls.plain]
    assert all(max(way.there_and_back.values()) <= trace_calls.THERE_AND_BACK for way in plain)


def test_what_is_declared_emitted_and_documented_are_the_same_metrics() -> None:
    from actors.protocol.instruments import INSTRUMENTS

    code = "\n".join(text(path) for path in below("actors", "gateway") if path.name != "instruments.py")
    emitted = set(re.findall(r'"((?:stagedoor|mcp_server|mcp_client)_[a-z_]+)"', code))
    none(sorted(emitted ^ INSTRUMENTS.keys()))
    mentioned = {name for path in TEXTS for name in re.findall(r"`(stagedoor_[a-z_]+)", text(path))}
    none(sorted(mentioned - INSTRUMENTS.keys()))


ELSEWHERE = {
    *("weather.py", "hello.py", "ask.py", "todo.py", "tidy.py"),
    *("stagedoor/gap", "stagedoor/key", "stagedoor/missing"),
}
"""Files that a reader makes, and members of `_meta`."""


def places(path: Path) -> Iterator[str]:
    """What a document names of the tree: paths, files by their name alone, and modules to run."""
    homes = (ROOT, ROOT / "actors", ROOT / path.parent)
    folders = {folder.name for home in homes for folder in home.iterdir() if folder.is_dir()}
    for quoted in re.findall(r"`([^`\n]+)`", text(path)):
        for module in re.findall(r"python -m ([a-z_.]+)", quoted):
            yield module.replace(".", "/")
        for word in re.findall(r"[\w.{},*/-]+", quoted):
            first, slash, _ = word.partition("/")
            if (slash and first in folders) or re.fullmatch(r"\w+\.py", word):
                yield word


def is_there(place: str, path: Path) -> bool:
    """Whether a document means something by it, from wherever it may be meant: {a,b} is both, * is any."""
    if braces := re.search(r"\{(.*?)\}", place):
        return all(is_there(place.replace(braces[0], one), path) for one in braces[1].split(","))
    homes = (ROOT, ROOT / "actors", ROOT / path.parent)
    if any([*home.glob(place.rstrip("/")), *home.glob(f"{place}.py")] for home in homes):
        return True
    return "/" not in place and any(file.name == place for file in (*CODE, *TESTS))


def test_what_documents_name_of_the_tree_is_there() -> None:
    documents = [path for path in TEXTS if path.suffix == ".md"]
    named = {(path, place) for path in documents for place in places(path)}
    assert len(named) > 100
    none(sorted(f"{path}: {place}" for path, place in named if place not in ELSEWHERE and not is_there(place, path)))


def test_the_limits_in_the_guarantees_are_the_defaults() -> None:
    from actors.machines.upstream.events import UNSENT_MAX
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
        (UNSENT_MAX, r"{} notifications of clients"),
    ]:
        assert re.search(words.format(number), text), words.format(number)


def test_the_redis_rights_in_the_operations_guide_are_the_store_s() -> None:
    from gateway.store.redis.checks import RIGHTS

    assert f"`{' '.join(RIGHTS)}`" in (ROOT / "docs" / "operations.md").read_text()


ATTACKS = range(1, 17)
"""Those of the threat model, by number."""
BY_STORE = {"stores", "replicas"}
"""Fixtures that give a test the store in memory, and a Redis."""


def test_every_attack_of_the_threat_model_has_tests_that_there_are() -> None:
    page = text(Path("docs/threat-model.md"))
    rows = dict(re.findall(r"^\| (\d+) \|(.*)$", page, re.MULTILINE))
    assert [int(number) for number in rows] == list(ATTACKS)
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    none([f"{path} {name}" for path, name in named if Path(path) not in TESTS or f"def {name}" not in text(Path(path))])
    assert all("`tests/" in row for row in rows.values())


def test_every_attack_is_played_on_both_stores() -> None:
    rows = dict(re.findall(r"^\| (\d+) \|(.*)$", text(Path("docs/threat-model.md")), re.MULTILINE))
    for number in ATTACKS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", rows[str(number)])
        played = [name for path, name in named if name.startswith(f"test_{number}_") and _by_store(path, name)]
        assert played, f"attack {number}"


def _by_store(path: str, name: str) -> bool:
    """Whether this test is there for each kind of store."""
    found = re.search(rf"def {name}\(([^)]*)\)", text(Path(path)))
    return found is not None and not BY_STORE.isdisjoint(re.findall(r"(\w+):", found[1]))


def test_every_page_is_found_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", text(Path("README.md"))))
    pages = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
    assert pages
    none([page for page in pages if page not in linked])
