"""Every query of the dashboards is run by a real Prometheus that has scraped two real replicas under load."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from actors.protocol.instruments import INSTRUMENTS, Instrument
from tests.architecture.test_documents import script
from tests.monitoring.load import TRACE, one_round
from tests.monitoring.prometheus import MISSING, Prometheus, finite, installed
from tests.support.ports import free_port
from tests.support.processes import ROOT, Gateway, Programs, accepts, need
from tests.support.redis_server import MISSING as NO_REDIS
from tests.support.redis_server import RedisServer
from tests.support.redis_server import installed as has_redis

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

dashboards = script("dashboards")
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
ROUNDS = 3

QUIET = {
    "Clients that stop reading": "no client does",
    "Messages that belong to nothing": "every client keeps to the protocol",
    "list_changed and lists": "no list changes",
    "Full mailboxes": "nobody floods",
    "Events left out": "every stream is read",
    "Lost, fenced, gaps": "the store stays",
    "Modern requests and suspended calls": "none is under way when it is looked",
    "Child processes": "no server is one",
    "Sessions brought into memory": "no replica dies",
    "Store errors": "the store stays",
    "Letters that wait": "they are read at once",
    "Mailboxes": "they are read at once",
    "Crashes and restarts": "nothing crashes",
    "Workers": "there is no supervisor",
    "Garbage collection": "there may be none in so short a time",
    "Sessions at the server": "no server forgets one",
    "Lists given without it": "what was asked for was there",
    "Handlers that hold up the loop": "none does",
    "Requests in flight": "none is under way when it is looked",
    "Event streams": "none is open when it is looked",
    "Tokens for servers": "no server wants one",
    "Accounts of users": "no server has any",
    "Requests without good credentials": "nobody has to say who he is",
    "Lines of the audit trail that were lost": "none is",
    "Lines of the audit trail that wait": "there is no trail",
    "Configurations": "none is read anew",
    "CPU": "the system's clock of it is coarse",
}
"""Panels that this load leaves at 0, and why. They have series all the same."""


@dataclass
class Watched:
    """Prometheus, and what it watches."""

    prometheus: Prometheus
    gateways: list[Gateway]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    need(installed(), MISSING)
    need(has_redis(), NO_REDIS)
    folder = tmp_path_factory.mktemp("monitoring")
    programs, redis, port = Programs(folder), RedisServer(), free_port()
    try:
        redis.start()
        backend = [sys.executable, "-m", "loadtest.backend", "--port", str(port)]
        programs.start("backend", backend, ready=accepts(port), cwd=ROOT)
        config = {
            "mcpServers": {
                "demo": {"native": "gateway.native.demo:server"},
                "plain": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
                "gone": {"type": "http", "url": f"http://127.0.0.1:{free_port()}/mcp"},
            }
        }
        gateways = [programs.gateway(config, "--store", redis.url) for _ in range(2)]
        targets = [gateway.admin.removeprefix("http://") for gateway in gateways]
        prometheus = Prometheus(programs, folder, targets, RULES)
        began = time.time()
        prometheus.wait(lambda: prometheus.scraped(2, began), "the gateways were never scraped")
        for _ in range(ROUNDS):
            one_round(*gateways, "plain")
            ended = time.time()
            prometheus.wait(lambda since=ended: prometheus.scraped(2, since), "it was not scraped again")
        yield Watched(prometheus, gateways)
    finally:
        programs.end()
        redis.stop()


class Asked(NamedTuple):
    """One query, and where it stands."""

    board: str
    row: str
    panel: str
    expr: str


def queries(**chosen: str) -> Iterator[Asked]:
    """Of both dashboards, with these variables chosen, and every other one at "All"."""
    for board in dashboards.boards():
        for row in board.rows:
            for panel in row.panels:
                for query in panel.queries:
                    text = dashboards.expression(query).replace("$__rate_interval", "5m")
                    filled = re.sub(r"\$(\w+)", lambda name: chosen.get(name[1], ".*"), text)
                    yield Asked(board.uid, row.title, panel.title, filled)


def test_every_query_of_every_panel_has_data(watched: Watched) -> None:
    found = {asked: watched.prometheus.values(asked.expr) for asked in queries()}
    assert [asked for asked, values in found.items() if not values] == []
    lives = {asked[:3] for asked, values in found.items() if any(value > 0 for value in finite(values))}
    dead = {asked.panel for asked in found if asked[:3] not in lives and asked.row != "Everything else"}
    assert sorted(dead - QUIET.keys()) == []
    assert QUIET.keys() <= {asked.panel for asked in found}


def test_one_server_and_one_tool_can_be_chosen(watched: Watched) -> None:
    for asked in queries(server="demo", tool="echo"):
        if asked.board == "stagedoor-drilldown" and asked.row in ("Tool", "Calls of the server"):
            values = finite(watched.prometheus.values(asked.expr))
            assert any(value > 0 for value in values) or asked.panel in QUIET, asked
    for asked in queries(server="nothing", tool="invented"):
        if asked.board == "stagedoor-drilldown" and asked.row == "Tool":
            assert watched.prometheus.values(asked.expr) == [], asked


def test_the_variables_of_the_dashboards_have_values(watched: Watched) -> None:
    for board in dashboards.boards():
        for name, (series, label) in board.variables.items():
            matching = re.sub(r"\$\w+", ".*", series)
            values = watched.prometheus.get(f"label/{label}/values", **{"match[]": matching})
            assert [value for value in values if value], name


def test_the_rules_are_evaluated_and_the_server_that_is_down_is_on_its_way_to_an_alert(watched: Watched) -> None:
    def rules() -> dict[str, dict[str, str]]:
        groups = watched.prometheus.get("rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    watched.prometheus.wait(lambda: all(rule["health"] == "ok" for rule in rules().values()), "a rule does not work")
    state = {name for name, rule in rules().items() if rule["state"] != "inactive"}
    assert "StagedoorBreakerOpen" in state
    assert state <= {"StagedoorBreakerOpen", "StagedoorBackendDown", "StagedoorErrorRatio", "StagedoorLoopLag"}


def test_a_trace_leads_from_a_bucket_to_itself(watched: Watched) -> None:
    now = time.time()
    for name in ("mcp_server_operation_duration_seconds", "mcp_client_operation_duration_seconds"):
        found = watched.prometheus.get("query_exemplars", query=f"{name}_bucket", start=now - 600, end=now + 60)
        assert {one["labels"]["trace_id"] for series in found for one in series["exemplars"]} == {TRACE}


def test_every_family_is_on_a_dashboard_and_a_new_one_gets_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set().union(*map(dashboards.asked_for, dashboards.boards()))
    assert INSTRUMENTS.keys() - asked == set()
    fresh = Instrument("stagedoor_news_total", "counter", "What is new", ("reason",))
    monkeypatch.setitem(dashboards.INSTRUMENTS, fresh.name, fresh)
    overview = dashboards.boards()[0]
    assert overview.rows[-1].title == "Everything else"
    assert overview.rows[-1].panels[-1].queries[0].expr == "sum by (reason) (rate(stagedoor_news_total{@}[~]))"


def test_what_is_asked_for_is_declared() -> None:
    words = {word for asked in queries() for word in re.findall(r"\b(?:stagedoor|mcp)_\w+", asked.expr)}
    families = {re.sub(r"_(bucket|count|sum)$", "", word) for word in words}
    labels = {label for one in INSTRUMENTS.values() for label in one.labels}
    assert families - INSTRUMENTS.keys() - labels == set()
