"""Writes the two Grafana dashboards into deploy/grafana. A test keeps them equal to what this makes, and runs every
query.

A family of `actors/protocol/instruments.py` that no panel below asks for gets one in the row "Everything else" of the
overview: a new one is on the board by running this script, and finds its place when somebody gives it one.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from actors.protocol.instruments import INSTRUMENTS, Instrument  # noqa: E402 - the tree must be on the path first

FOLDER = ROOT / "deploy" / "grafana"
WIDTH, HEIGHT, ACROSS = 8, 7, 3
SERVED, ASKED = "mcp_server_operation_duration_seconds", "mcp_client_operation_duration_seconds"
CALLS = 'mcp_method_name="tools/call"'
FAILED = 'error_type=~"-32603|-32000|-32001|malformed|other"'
"""Errors that are a server's or ours, as the alert on their ratio counts them."""
UNKNOWN = f'{CALLS}, error_type="-32602"'


class Query(NamedTuple):
    """In an expression `@` stands for the selector of the dashboard's variables, `~` for the interval of a rate."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    help: str = ""


class Row(NamedTuple):
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    """One dashboard. `variables` are labels that can be chosen, with the series in which their values are found."""

    uid: str
    title: str
    description: str
    variables: dict[str, tuple[str, str]]
    rows: tuple[Row, ...]


def rate(name: str, by: str = "", matches: str = "") -> str:
    """Events a second."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}{{@{', ' + matches if matches else ''}}}[~]))"


def rates(title: str, *of: tuple[str, str], help: str = "", unit: str = "ops") -> Panel:
    """Several counters, each by a label of its own, or as one."""
    queries = [Query(rate(name, by), legend(by, words(name) if len(of) > 1 else "")) for name, by in of]
    return Panel(title, tuple(queries), unit, help=help)


def words(name: str) -> str:
    """What a metric is called in a legend."""
    return name.removeprefix("stagedoor_").removesuffix("_total").replace("_", " ")


def legend(by: str, before: str = "") -> str:
    """What a series is called: by its labels, behind what all have in common."""
    return " ".join([before, *(f"{{{{{label}}}}}" for label in by.split(", ") if label)]).strip()


def gauge(title: str, name: str, by: str = "", unit: str = "short", how: str = "sum", help: str = "") -> Panel:
    """A number that goes up and down."""
    text = legend(by) or title.lower()
    return Panel(title, (Query(f"{how}{f' by ({by})' if by else ''} ({name}{{@}})", text),), unit, help=help)


def stat(title: str, expr: str, unit: str = "short", help: str = "") -> Panel:
    """One number, large."""
    return Panel(title, (Query(expr),), unit, "stat", help)


def percentiles(title: str, name: str, matches: str = "", help: str = "") -> Panel:
    """p50, p95 and p99 of a duration."""
    inner = rate(f"{name}_bucket", "le", matches)
    of = [Query(f"histogram_quantile({q}, {inner})", f"p{round(q * 100)}") for q in (0.5, 0.95, 0.99)]
    return Panel(title, tuple(of), "s", help=help)


def percentile(title: str, name: str, by: str, matches: str = "", q: float = 0.99, unit: str = "s") -> Panel:
    """One percentile, by labels."""
    inner = rate(f"{name}_bucket", f"le, {by}", matches)
    return Panel(title, (Query(f"histogram_quantile({q}, {inner})", legend(by)),), unit)


def share(part: str, whole: str) -> str:
    """A part of a whole, 0 where there is nothing."""
    return f"({part}) / ({whole} > 0) or vector(0)"


OVERVIEW = Board(
    "stagedoor-overview",
    "Stagedoor: overview",
    "All replicas at a glance: requests, errors, sessions, streams, servers, the store, the processes.",
    {"job": ("stagedoor_sessions_max", "job"), "instance": ('stagedoor_sessions_max{job=~"$job"}', "instance")},
    (
        Row(
            "Overview",
            (
                stat("Tool calls a second", rate(f"{SERVED}_count", matches=CALLS), "ops"),
                stat(
                    "Error ratio",
                    share(rate(f"{SERVED}_count", matches=FAILED), rate(f"{SERVED}_count")),
                    "percentunit",
                    "Errors of servers and of the gateway; not what clients do wrong, nor what tools say themselves.",
                ),
                stat("Sessions in memory", "sum (stagedoor_sessions{@})"),
                stat("Requests in flight", "sum (stagedoor_requests_in_flight{@})"),
                stat("Servers that are down", "count (min by (server) (stagedoor_backend_up{@}) == 0) or vector(0)"),
                stat("Replicas", "count (stagedoor_sessions_max{@})"),
            ),
        ),
        Row(
            "Transport",
            (
                gauge("Connections", "stagedoor_connections_open", "listener"),
                rates("Answers by status", ("stagedoor_http_responses_total", "method, status"), unit="reqps"),
                gauge("Event streams", "stagedoor_streams_open", "kind"),
                Panel(
                    "Calls by transport of the server",
                    (Query(rate(f"{ASKED}_count", "network_transport"), "{{network_transport}}"),),
                    "ops",
                ),
                rates(
                    "Clients that stop reading",
                    ("stagedoor_slow_consumers_total", "kind"),
                    ("stagedoor_answers_dropped_total", "reason"),
                ),
            ),
        ),
        Row(
            "Protocol and messages",
            (
                Panel(
                    "Requests by method",
                    (Query(rate(f"{SERVED}_count", "mcp_method_name"), "{{mcp_method_name}}"),),
                    "reqps",
                ),
                percentiles("Duration at the gateway", SERVED),
                Panel("Errors by type", (Query(rate(f"{SERVED}_count", "error_type"), "{{error_type}}"),), "ops"),
                Panel(
                    "Revisions",
                    (Query(rate(f"{SERVED}_count", "mcp_protocol_version"), "{{mcp_protocol_version}}"),),
                    "reqps",
                ),
                rates("Messages that belong to nothing", ("stagedoor_messages_dropped_total", "reason")),
                rates(
                    "list_changed and lists",
                    ("stagedoor_list_changed_total", "list, outcome"),
                    ("stagedoor_lists_incomplete_total", "server"),
                    ("stagedoor_version_mismatches_total", ""),
                ),
            ),
        ),
        Row(
            "Tools",
            (
                Panel(
                    "Calls by tool",
                    (Query(f"topk(10, {rate(f'{SERVED}_count', 'gen_ai_tool_name', CALLS)})", "{{gen_ai_tool_name}}"),),
                    "ops",
                ),
                percentile("p99 by tool", SERVED, "gen_ai_tool_name", CALLS),
                Panel(
                    "Tools that failed",
                    (
                        Query(
                            rate(f"{SERVED}_count", "gen_ai_tool_name, error_type", f'{CALLS}, error_type!=""'),
                            "{{gen_ai_tool_name}} {{error_type}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Calls of tools that do not exist",
                    (Query(f"{rate(f'{SERVED}_count', matches=UNKNOWN)} or vector(0)", "calls"),),
                    "ops",
                    help="What models invent: tools that no list has shown, and arguments that no schema takes.",
                ),
            ),
        ),
        Row(
            "Limits",
            (
                rates("Messages refused", ("stagedoor_messages_rejected_total", "reason")),
                rates("Full mailboxes", ("stagedoor_mailbox_refusals_total", "actor")),
                rates("Events left out", ("stagedoor_events_shed_total", "kind")),
                Panel(
                    "Sessions against the cap",
                    (
                        Query(
                            "max by (instance) (max without (state, era) (stagedoor_sessions{@})"
                            " / stagedoor_sessions_max{@})",
                            "{{instance}}",
                        ),
                    ),
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Resources and prompts",
            (
                Panel(
                    "Requests",
                    (
                        Query(
                            rate(f"{SERVED}_count", "mcp_method_name", 'mcp_method_name=~"resources/.*|prompts/.*"'),
                            "{{mcp_method_name}}",
                        ),
                    ),
                    "reqps",
                ),
                percentile("p99", SERVED, "mcp_method_name", 'mcp_method_name=~"resources/.*|prompts/.*"'),
            ),
        ),
        Row(
            "Sessions and streams",
            (
                gauge("Sessions", "stagedoor_sessions", "era"),
                rates("Sessions that ended", ("stagedoor_sessions_ended_total", "reason")),
                percentiles("Length of sessions", "mcp_server_session_duration_seconds"),
                rates("Resumptions", ("stagedoor_resumes_total", "outcome"), ("stagedoor_events_replayed_total", "")),
                rates(
                    "Lost, fenced, gaps",
                    ("stagedoor_events_lost_total", ""),
                    ("stagedoor_fenced_writes_total", ""),
                    ("stagedoor_gaps_total", "reason"),
                    ("stagedoor_streams_unrecorded_total", ""),
                    ("stagedoor_records_restored_total", ""),
                ),
                Panel(
                    "Modern requests and suspended calls",
                    (
                        Query("sum (stagedoor_exchanges{@})", "modern requests"),
                        Query("sum (stagedoor_parked_calls{@})", "suspended calls"),
                    ),
                ),
            ),
        ),
        Row(
            "Servers",
            (
                gauge("State", "stagedoor_backend_up", "server", how="min", help="1 works, 0.5 is tried, 0 is refused"),
                Panel("Calls by server", (Query(rate(f"{ASKED}_count", "server"), "{{server}}"),), "ops"),
                percentile("p99 by server", ASKED, "server"),
                rates("Failures by reason", ("stagedoor_backend_failures_total", "server, reason")),
                gauge("Upstream connections", "stagedoor_backend_links", "state"),
                gauge("Child processes", "stagedoor_child_processes", "server"),
            ),
        ),
        Row(
            "Cluster and store",
            (
                rates("Sessions brought into memory", ("stagedoor_takeovers_total", "reason")),
                gauge("Store answers", "stagedoor_store_up", "instance", how="min"),
                percentiles("Store latency", "stagedoor_store_latency_seconds"),
                Panel(
                    "Commands that went out together",
                    (
                        Query(
                            share(rate("stagedoor_store_batch_size_sum"), rate("stagedoor_store_batch_size_count")),
                            "mean",
                        ),
                    ),
                ),
                rates("Store errors", ("stagedoor_store_errors_total", "operation, reason")),
                gauge("Age of the lease", "stagedoor_lease_age_seconds", "instance", "s", "max"),
                rates(
                    "Letters",
                    ("stagedoor_letters_sent_total", "kind"),
                    ("stagedoor_letters_received_total", "kind"),
                    ("stagedoor_letters_refused_total", "kind, reason"),
                ),
                percentiles("Mail to another replica", "stagedoor_mail_seconds"),
                gauge("Letters that wait", "stagedoor_inbox_depth", "instance"),
            ),
        ),
        Row(
            "Accounts and audit",
            (
                rates("Tokens for servers", ("stagedoor_upstream_tokens_total", "server, event")),
                rates("Accounts of users", ("stagedoor_account_connections_total", "server, outcome")),
                rates("Requests without good credentials", ("stagedoor_tokens_refused_total", "reason")),
                rates("Lines of the audit trail that were lost", ("stagedoor_audit_lines_lost_total", "sink")),
                gauge("Lines of the audit trail that wait", "stagedoor_audit_lines_waiting", "instance"),
                rates("Configurations", ("stagedoor_reloads_total", "outcome")),
                gauge("Last reload successful", "stagedoor_last_reload_successful", "instance", how="min"),
                Panel(
                    "Since the configuration could be used last",
                    (
                        Query(
                            "time() - max by (instance) (stagedoor_reload_success_timestamp_seconds{@})", "{{instance}}"
                        ),
                    ),
                    "s",
                ),
            ),
        ),
        Row(
            "Processes",
            (
                percentile("Lag of the loop, p90", "stagedoor_scheduler_lag_seconds", "instance", q=0.9),
                Panel("CPU", (Query("rate(process_cpu_seconds_total{@}[~])", "{{instance}}"),), "percentunit"),
                Panel("Memory", (Query("process_resident_memory_bytes{@}", "{{instance}}"),), "bytes"),
                Panel(
                    "File descriptors",
                    (Query("process_open_fds{@} / process_max_fds{@}", "{{instance}}"),),
                    "percentunit",
                ),
                Panel(
                    "Garbage collection",
                    (Query(rate("stagedoor_garbage_collection_seconds_sum", "instance"), "{{instance}}"),),
                    "percentunit",
                    help="Seconds of each second",
                ),
                gauge("Mailboxes", "stagedoor_mailbox_depth", "actor"),
                rates(
                    "Crashes and restarts",
                    ("stagedoor_actor_crashes_total", "actor"),
                    ("stagedoor_connection_crashes_total", "listener"),
                    ("stagedoor_worker_deaths_total", ""),
                    ("stagedoor_restarts_total", "actor"),
                ),
                gauge("Workers", "stagedoor_workers", "state"),
            ),
        ),
    ),
)

OF_TOOL = 'server=~"$server", gen_ai_tool_name=~"$tool"'
OF_SERVER = 'server=~"$server"'
EXPOSED = f'{CALLS}, gen_ai_tool_name=~"(.+__)?($tool)"'
"""The same tool as clients name it: as it is, or behind its server's name."""

DRILLDOWN = Board(
    "stagedoor-drilldown",
    "Stagedoor: one server, one tool, its sessions",
    "Choose a server and a tool. Which session is which is nowhere in metrics: `stagedoor sessions list` names them.",
    {
        "job": ("stagedoor_sessions_max", "job"),
        "instance": ('stagedoor_sessions_max{job=~"$job"}', "instance"),
        "server": ('stagedoor_backend_up{job=~"$job"}', "server"),
        "tool": (f'{ASKED}_count{{job=~"$job", server=~"$server"}}', "gen_ai_tool_name"),
    },
    (
        Row(
            "Server",
            (
                Panel("State", (Query(f"min by (server) (stagedoor_backend_up{{@, {OF_SERVER}}})", "{{server}}"),)),
                Panel(
                    "Upstream connections",
                    (
                        Query(
                            f"sum by (server, state) (stagedoor_backend_links{{@, {OF_SERVER}}})",
                            "{{server}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Child processes",
                    (Query(f"sum by (server) (stagedoor_child_processes{{@, {OF_SERVER}}})", "{{server}}"),),
                ),
                Panel(
                    "Failures by reason",
                    (
                        Query(
                            rate("stagedoor_backend_failures_total", "server, reason", OF_SERVER),
                            "{{server}} {{reason}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Sessions at the server",
                    (
                        Query(
                            rate("stagedoor_backend_sessions_lost_total", "server", OF_SERVER), "forgotten {{server}}"
                        ),
                        Query(rate("stagedoor_backend_sessions_left_total", "server", OF_SERVER), "left {{server}}"),
                        Query(rate("stagedoor_requests_continued_total", "server", OF_SERVER), "continued {{server}}"),
                    ),
                    "ops",
                ),
                Panel(
                    "Lists given without it",
                    (Query(rate("stagedoor_lists_incomplete_total", "server", OF_SERVER), "{{server}}"),),
                    "ops",
                ),
            ),
        ),
        Row(
            "Calls of the server",
            (
                Panel(
                    "By method",
                    (Query(rate(f"{ASKED}_count", "mcp_method_name", OF_SERVER), "{{mcp_method_name}}"),),
                    "ops",
                ),
                percentiles("Duration", ASKED, OF_SERVER),
                Panel(
                    "Errors by server",
                    (
                        Query(
                            rate(f"{ASKED}_count", "server, error_type", OF_SERVER),
                            "{{server}} {{error_type}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Handlers that hold up the loop",
                    (
                        Query(
                            rate("stagedoor_native_blocked_seconds_sum", "server, gen_ai_tool_name", OF_SERVER),
                            "{{server}} {{gen_ai_tool_name}}",
                        ),
                    ),
                    "percentunit",
                    help="Servers in this process that compute for over 250 ms at a time; seconds of each second",
                ),
            ),
        ),
        Row(
            "Tool",
            (
                Panel(
                    "Calls",
                    (Query(rate(f"{ASKED}_count", "gen_ai_tool_name", f"{CALLS}, {OF_TOOL}"), "{{gen_ai_tool_name}}"),),
                    "ops",
                ),
                percentiles("Duration at the server", ASKED, f"{CALLS}, {OF_TOOL}"),
                percentiles("Duration at the gateway", SERVED, EXPOSED),
                Panel(
                    "Outcomes",
                    (
                        Query(
                            rate(f"{SERVED}_count", "gen_ai_tool_name, error_type", EXPOSED),
                            "{{gen_ai_tool_name}} {{error_type}}",
                        ),
                    ),
                    "ops",
                ),
                Panel(
                    "Durations",
                    (Query(rate(f"{ASKED}_bucket", "le", f"{CALLS}, {OF_TOOL}"), "{{le}}"),),
                    "ops",
                    "heatmap",
                ),
            ),
        ),
        Row(
            "Sessions",
            (
                gauge("Sessions", "stagedoor_sessions", "instance, era"),
                rates("Sessions that ended", ("stagedoor_sessions_ended_total", "reason")),
                percentile(
                    "Length of sessions, p50", "mcp_server_session_duration_seconds", "mcp_protocol_version", q=0.5
                ),
                rates("Resumptions", ("stagedoor_resumes_total", "outcome")),
                rates("Sessions brought into memory", ("stagedoor_takeovers_total", "instance, reason")),
                gauge("Event streams", "stagedoor_streams_open", "instance, kind"),
            ),
        ),
    ),
)


def asked_for(board: Board) -> set[str]:
    """The families that a dashboard's queries name."""
    text = " ".join(query.expr for row in board.rows for panel in row.panels for query in panel.queries)
    words = {re.sub(r"_(bucket|count|sum)$", "", word) for word in re.findall(r"\w+", text)}
    return {name for name in INSTRUMENTS if name in words}


def of_its_own(one: Instrument) -> Panel:
    """A panel of a family that nobody has given a place."""
    by = ", ".join(one.labels)
    title = words(one.name).capitalize()
    if one.kind == "counter":
        return rates(title, (one.name, by), help=one.help)
    if one.kind == "gauge":
        return gauge(title, one.name, by, how=one.over_workers, help=one.help)
    return Panel(title, (Query(rate(f"{one.name}_count", by), legend(by) or title.lower()),), "ops", help=one.help)


def boards() -> tuple[Board, Board]:
    """Both, with every family in one of them."""
    left = [one for name, one in INSTRUMENTS.items() if name not in asked_for(OVERVIEW) | asked_for(DRILLDOWN)]
    if not left:
        return OVERVIEW, DRILLDOWN
    rest = Row("Everything else", tuple(of_its_own(one) for one in left))
    return OVERVIEW._replace(rows=(*OVERVIEW.rows, rest)), DRILLDOWN


def expression(query: Query) -> str:
    """As Grafana has it."""
    return query.expr.replace("@", 'job=~"$job", instance=~"$instance"').replace("~]", "$__rate_interval]")


# As Grafana reads it --------------------------------------------------------------------------------------------

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel_json(panel: Panel, id: int, x: int, y: int) -> dict[str, Any]:
    heat = panel.kind == "heatmap"
    targets = [
        {
            "refId": chr(ord("A") + at),
            "datasource": SOURCE,
            "expr": expression(query),
            "legendFormat": query.legend or "__auto",
            "format": "heatmap" if heat else "time_series",
            "exemplar": "_bucket" in query.expr,
        }
        for at, query in enumerate(panel.queries)
    ]
    return {
        "id": id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {} if panel.kind != "timeseries" else {"legend": {"displayMode": "table", "calcs": ["lastNotNull"]}},
        "targets": targets,
    }


def variable_json(label: str, series: str, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {label})", "refId": name},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def board_json(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    id = y = 0
    for row in board.rows:
        id += 1
        panels.append({"id": id, "type": "row", "title": row.title, "collapsed": False, "panels": []})
        panels[-1]["gridPos"] = {"x": 0, "y": y, "w": 24, "h": 1}
        y += 1
        for at, panel in enumerate(row.panels):
            id += 1
            panels.append(panel_json(panel, id, at % ACROSS * WIDTH, y + at // ACROSS * HEIGHT))
        y += -(-len(row.panels) // ACROSS) * HEIGHT
    chosen = [variable_json(label, series, name) for name, (series, label) in board.variables.items()]
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["stagedoor", "mcp"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "Stagedoor", "tags": ["stagedoor"], "keepTime": True}],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                *chosen,
            ]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def files() -> dict[Path, str]:
    """Every dashboard, by the file it belongs into."""
    return {
        FOLDER / f"{board.uid.removeprefix('stagedoor-')}.json": json.dumps(board_json(board), indent=1) + "\n"
        for board in boards()
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in files().items():
        file.write_text(text)
