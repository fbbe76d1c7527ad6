"""Each alert fires when it should, and keeps quiet when it should, by promtool's own evaluation of the rules."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.protocol.instruments import INSTRUMENTS, SECONDS, SHORT
from tests.architecture.source import below, text
from tests.architecture.test_documents import script
from tests.monitoring.prometheus import MISSING, installed
from tests.support.processes import ROOT, need

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
OPERATIONS = ROOT / "docs" / "operations.md"
HERE = 'job="stagedoor",instance="a"'
SERVED = "mcp_server_operation_duration_seconds"


@dataclass
class Case:
    """Series, scraped once a minute (their values in the notation of promtool), and what is seen after so many."""

    alert: str
    series: dict[str, str]
    at: int
    labels: dict[str, str] | None = None
    """Of the alert, but its severity; None: it is quiet."""
    what: str = ""


def buckets(name: str, bounds: tuple[float, ...], labels: str, upto: float) -> dict[str, str]:
    """A histogram that gets ten observations a minute, all of which fall into the bucket of this bound."""
    le = ((f"{bound:g}", bound) for bound in bounds)
    each = {text: "0+10x40" if bound >= upto else "0x40" for text, bound in le} | {"+Inf": "0+10x40"}
    return {f'{name}_bucket{{{HERE}{labels},le="{text}"}}': values for text, values in each.items()}


def grows(name: str, labels: str = "") -> str:
    """A counter's name in the notation of promtool."""
    return f"{name}{{{HERE}{labels}}}"


def up(server: str, a: str, b: str) -> dict[str, str]:
    """The gauge at two replicas."""
    of = f'job="stagedoor",server="{server}"'
    return {f'stagedoor_backend_up{{{of},instance="{i}"}}': values for i, values in (("a", a), ("b", b))}


def requests(good: str, failed: str, error: str = "-32603") -> dict[str, str]:
    """Requests with and without an error."""
    return {
        grows(f"{SERVED}_count", ',error_type=""'): good,
        grows(f"{SERVED}_count", f',error_type="{error}"'): failed,
    }


def limited(outcome: str, values: str, mode: str = "enforce") -> dict[str, str]:
    """What limits of calls come to."""
    return {grows("stagedoor_limit_decisions_total", f',of="call",outcome="{outcome}",mode="{mode}"'): values}


def rejected(reason: str, values: str) -> dict[str, str]:
    """Refusals of one kind."""
    return {grows("stagedoor_messages_rejected_total", f',reason="{reason}"'): values}


ZEROS = {
    grows("stagedoor_events_lost_total"): "0x40",
    grows("stagedoor_fenced_writes_total"): "0x40",
    grows("stagedoor_gaps_total", ',reason="lost"'): "0x40",
    grows("stagedoor_actor_crashes_total", ',actor="SessionActor"'): "0x40",
    grows("stagedoor_connection_crashes_total", ',listener="public"'): "0x40",
    grows("stagedoor_worker_deaths_total"): "0x40",
}
ONCE = "0x4 1x35"
JOB, REPLICA = {"job": "stagedoor"}, {"job": "stagedoor", "instance": "a"}
CALLS = ',mcp_method_name="tools/call"'
SINK = ',sink="syslog"'
TOKENS, REFUSED = "stagedoor_upstream_tokens_total", ',server="files",event="refused"'
SESSIONS = ',state="live",era="legacy"'

CASES = [
    Case("StagedoorDown", {grows("up"): "1x4 0x35"}, 7, REPLICA),
    Case("StagedoorDown", {grows("up"): "1x4 0 1x35"}, 7, what="it came back at once"),
    Case("StagedoorDown", {'up{job="node",instance="a"}': "0x40"}, 7, what="another job"),
    Case("StagedoorBackendDown", up("files", "1 0x39", "1 0 0.5 0x37"), 12, {**JOB, "server": "files"}),
    Case("StagedoorBackendDown", up("files", "1 0x39", "1x40"), 20, what="one replica reaches it"),
    Case("StagedoorBackendDown", up("files", "0 0 0 0 0 1 0x35", "0x40"), 9, what="it worked in between"),
    Case("StagedoorBreakerOpen", up("files", "1 0x39", "1x40"), 4, {**REPLICA, "server": "files"}),
    Case("StagedoorBreakerOpen", up("files", "1 0 0.5 0.5 0.5 0.5", "1x40"), 5, what="it is tried"),
    Case("StagedoorErrorRatio", requests("0+90x40", "0+10x40"), 15, JOB),
    Case("StagedoorErrorRatio", requests("0+990x40", "0+10x40"), 15, what="one in a hundred"),
    Case("StagedoorErrorRatio", requests("0+10x40", "0+90x40", "tool_error"), 15, what="tools say so"),
    Case("StagedoorErrorRatio", requests("0+10x40", "0+90x40", "-32602"), 15, what="clients do it wrong"),
    Case("StagedoorLatencyP99", buckets(SERVED, SECONDS, CALLS, 30.0), 20, JOB),
    Case("StagedoorLatencyP99", buckets(SERVED, SECONDS, CALLS, 5.0), 20, what="half of it"),
    Case("StagedoorEventsLost", {**ZEROS, grows("stagedoor_events_lost_total"): ONCE}, 7, JOB),
    Case("StagedoorEventsLost", {**ZEROS, grows("stagedoor_fenced_writes_total"): ONCE}, 7, JOB),
    Case("StagedoorEventsLost", {**ZEROS, grows("stagedoor_gaps_total", ',reason="lost"'): ONCE}, 7, JOB),
    Case("StagedoorEventsLost", ZEROS, 7, what="none"),
    Case("StagedoorEventsLost", {**ZEROS, grows("stagedoor_events_lost_total"): ONCE}, 20, what="long ago"),
    Case("StagedoorTakeovers", {grows("stagedoor_takeovers_total", ',reason="takeover"'): ONCE}, 7, JOB),
    Case("StagedoorTakeovers", {grows("stagedoor_takeovers_total", ',reason="crash"'): ONCE}, 7, JOB),
    Case("StagedoorTakeovers", {grows("stagedoor_takeovers_total", ',reason="activation"'): "0+9x40"}, 7, what="woken"),
    Case("StagedoorCrashes", {**ZEROS, grows("stagedoor_worker_deaths_total"): ONCE}, 7, JOB),
    Case("StagedoorCrashes", ZEROS, 7, what="none"),
    Case("StagedoorStoreDegraded", {grows("stagedoor_store_up"): "1x4 0x35"}, 7, REPLICA),
    Case("StagedoorStoreDegraded", {grows("stagedoor_store_up"): "1x4 0 1x35"}, 7, what="for a moment"),
    Case(
        "StagedoorMailboxRefusals",
        {grows("stagedoor_mailbox_refusals_total", ',actor="session"'): ONCE},
        7,
        {**JOB, "actor": "session"},
    ),
    Case("StagedoorMailboxRefusals", {grows("stagedoor_mailbox_refusals_total", ',actor="session"'): "4x40"}, 7),
    Case("StagedoorNoRoom", rejected("overloaded", "0+20x40"), 12, {**JOB, "reason": "overloaded"}),
    Case("StagedoorNoRoom", rejected("server_full", "0+20x40"), 12, {**JOB, "reason": "server_full"}),
    Case("StagedoorNoRoom", rejected("overloaded", "0+5x40"), 12, what="now and then"),
    Case("StagedoorNoRoom", rejected("session_not_found", "0+100x40"), 12, what="clients do it wrong"),
    Case("StagedoorLoopLag", buckets("stagedoor_scheduler_lag_seconds", SHORT, "", 1.0), 15, REPLICA),
    Case("StagedoorLoopLag", buckets("stagedoor_scheduler_lag_seconds", SHORT, "", 0.1), 15, what="a little late"),
    Case(
        "StagedoorSessionsNearCap",
        {grows("stagedoor_sessions", SESSIONS): "17000x40", grows("stagedoor_sessions_max"): "20000x40"},
        10,
        REPLICA,
    ),
    Case(
        "StagedoorSessionsNearCap",
        {grows("stagedoor_sessions", SESSIONS): "15000x40", grows("stagedoor_sessions_max"): "20000x40"},
        10,
        what="there is room",
    ),
    Case(
        "StagedoorAuditLinesLost", {grows("stagedoor_audit_lines_lost_total", SINK): ONCE}, 7, {**JOB, "sink": "syslog"}
    ),
    Case("StagedoorAuditLinesLost", {grows("stagedoor_audit_lines_lost_total", SINK): "4x40"}, 7, what="long ago"),
    Case("StagedoorAuditBehind", {grows("stagedoor_audit_lines_waiting"): "0x4 8192x35"}, 8, REPLICA),
    Case("StagedoorAuditBehind", {grows("stagedoor_audit_lines_waiting"): "0x4 8192 0x35"}, 8, what="for a moment"),
    Case("StagedoorUpstreamTokensRefused", {grows(TOKENS, REFUSED): "0+2x40"}, 20, {**JOB, "server": "files"}),
    Case("StagedoorUpstreamTokensRefused", {grows(TOKENS, REFUSED): ONCE}, 20, what="a user's account has ended"),
    Case("StagedoorLimitsReached", limited("refused", "0+10x40"), 20, {**JOB, "of": "call"}),
    Case("StagedoorLimitsReached", limited("refused", "0+5x40"), 20, what="now and then"),
    Case("StagedoorLimitsReached", limited("passed", "0+100x40"), 20, what="they let it through"),
    Case("StagedoorLimitsReached", limited("refused", "0+10x40", "observe"), 20, what="they only would have"),
    Case("StagedoorLimitsNotCounted", limited("closed", ONCE), 7, {**JOB, "outcome": "closed"}),
    Case("StagedoorLimitsNotCounted", limited("open", ONCE), 7, {**JOB, "outcome": "open"}),
    Case("StagedoorLimitsNotCounted", limited("refused", ONCE), 7, what="the store has said so"),
    Case("StagedoorReloadRefused", {grows("stagedoor_last_reload_successful"): "1x4 0x35"}, 5, REPLICA),
    Case("StagedoorReloadRefused", {grows("stagedoor_last_reload_successful"): "1x4 0x35"}, 39, REPLICA),
    Case("StagedoorReloadRefused", {grows("stagedoor_last_reload_successful"): "1x4 0x5 1x30"}, 12, what="mended"),
]


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def expected(case: Case) -> list[dict[str, Any]]:
    """What is to be seen of the alert, its words as Prometheus fills them in."""
    if case.labels is None:
        return []
    rule, labels = alerts()[case.alert], case.labels
    words = {
        key: re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels[match[1]], text)
        for key, text in rule["annotations"].items()
    }
    return [{"exp_labels": {**rule["labels"], **labels}, "exp_annotations": words}]


def test_every_alert_fires_when_it_should_and_keeps_quiet_when_it_should(tmp_path: Path) -> None:
    need(installed(), MISSING)
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
            "alert_rule_test": [
                {"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": expected(case)},
            ],
        }
        for case in CASES
    ]
    file = tmp_path / "rules.test.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert {case.alert for case in CASES if case.labels is not None} == alerts().keys()
    assert {case.alert for case in CASES if case.labels is None} == alerts().keys()


def test_the_rules_are_well_formed_by_promtool_s_own_check() -> None:
    need(installed(), MISSING)
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_asks_for_what_is_counted_and_leads_to_its_paragraph(alert: str) -> None:
    rule = alerts()[alert]
    asked = re.findall(r"(?:stagedoor|mcp)_\w+(?=[{\[ )]|$)", re.sub(r'"[^"]*"', "", rule["expr"]))
    names = {re.sub(r"_(bucket|count|sum)$", "", word) for word in asked}
    assert names or rule["expr"].startswith("up{")
    assert names <= INSTRUMENTS.keys()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == alert.lower()
    text = OPERATIONS.read_text()
    assert f"\n### {alert}\n" in text
    paragraph = text.partition(f"\n### {alert}\n")[2].partition("\n###")[0].partition("\n## ")[0]
    assert all(word in paragraph for word in ("*Means:*", "*Look at:*", "*Do:*"))


@pytest.mark.parametrize("alert", alerts())
def test_what_an_alert_wants_to_see_grow_is_there_before_the_first_event(alert: str) -> None:
    """A series that begins with its first event does not grow by it. Those of a server begin with the server."""
    for name, matched in re.findall(r"increase\(\s*(\w+)(?:{([^}]*)})?\[", alerts()[alert]["expr"]):
        one = INSTRUMENTS[name]
        assert {*one.labels} - {"server"} == one.values.keys(), name
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', matched):
            assert {*values.split("|")} <= {*one.values[label]}, name


def test_every_paragraph_on_an_alert_is_of_a_rule() -> None:
    section = OPERATIONS.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (\w+)$", section, re.MULTILINE) == list(alerts())


def test_the_page_on_monitoring_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(r"^\| `(Stagedoor\w+)` \| (\w+) \|", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE)
    assert rows == [(name, rule["labels"]["severity"]) for name, rule in alerts().items()]


def test_what_the_paragraphs_name_is_there() -> None:
    section = OPERATIONS.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0].replace("\n", " ")
    panels = {panel.title for board in script("dashboards").boards() for row in board.rows for panel in row.panels}
    assert set(re.findall(r'"([A-Z][^"]+|p99[^"]*)"', section)) - panels == set()
    code = "\n".join(text(path) for path in below("actors", "gateway"))
    events = set(re.findall(r"`([a-z]+_[a-z_]+)`", section)) - {"stagedoor_native_blocked_seconds", "runbook_url"}
    assert {event for event in events if f'"{event}"' not in code} - {"rule_files", "tool_error"} == set()
