"""The results as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from loadtest.targets import CELLS, SIDE_BY_SIDE, TRANSPORTS

NUMBERS = ("calls_per_s", "cpu_us", "p50_ms", "p99_ms")
COMPARED = {
    "of_sessions": CELLS,
    "of_http": TRANSPORTS,
    "of_native_http": SIDE_BY_SIDE[0],
    "of_native_stdio": SIDE_BY_SIDE[1],
}
"""Targets of which the CPU per call is told as a multiple of the first one's, and under which name."""
SHOWN = 5
"""Errors of one target under one load; if it does not work at all, each is another."""
UNIT_LOAD = "16 callers"
"""The floor's CPU per call under this load is the unit, called a floor."""


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each load and target: medians of the rounds, and its cost in floors."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["load"], row["target"]), []).append(row)
    result = []
    for (load, target), found in cells.items():
        good = [row for row in found if row.get("calls")]
        cell: dict[str, Any] = {"load": load, "target": target, "errors": _errors(found)}
        if good:
            cell |= {name: median(row[name] for row in good) for name in NUMBERS}
            cell |= _compared_to_first(load, target, good, cells)
        result.append(cell)
    _add_ratios(result)
    return result


def _compared_to_first(
    load: str, target: str, rows: list[dict[str, Any]], cells: dict[tuple[str, str], list[dict[str, Any]]]
) -> dict[str, float]:
    """Of each round by itself, since what else the machine does changes from one to the next; then the median."""
    found = {}
    for name, targets in COMPARED.items():
        if target in targets:
            first = {row["round"]: row["cpu_us"] for row in cells.get((load, targets[0]), ()) if row.get("calls")}
            ratios = [row["cpu_us"] / first[row["round"]] for row in rows if row["round"] in first]
            if ratios:
                found[name] = median(ratios)
    return found


def _errors(rows: Iterable[dict[str, Any]]) -> list[str]:
    texts = {row["failed"] for row in rows if "failed" in row}
    for row in rows:
        texts |= {f"{count}x {text}" for text, count in row.get("errors", {}).items()}
    return sorted(texts)[:SHOWN]


def _add_ratios(cells: list[dict[str, Any]]) -> None:
    """Cost in floors, and latency added to what the backend itself takes under the same load."""
    by_place = {(cell["load"], cell["target"]): cell for cell in cells if "cpu_us" in cell}
    unit = by_place.get((UNIT_LOAD, "floor"), {}).get("cpu_us")
    for cell in by_place.values():
        direct = by_place.get((cell["load"], "direct"), {})
        if unit:
            cell["floors"] = cell["cpu_us"] / unit
        if here := by_place.get((cell["load"], "floor")):
            cell["floors_here"] = cell["cpu_us"] / here["cpu_us"]
        if direct:
            for name in ("p50_ms", "p99_ms"):
                cell[f"added_{name}"] = cell[name] - direct[name]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _lines(head: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [head, tuple("---" if number == 0 else "---:" for number in range(len(head))), *body]
    return ["| " + " | ".join(row) + " |" for row in rows]


def render(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    machine = report["machine"]
    lines = [
        f"Measured {report['at']} at commit {report['commit']}; medians of {report['rounds']} rounds of "
        f"{report['seconds']:g} s. {machine['cpu']}, {machine['cpus']} CPUs, Python {machine['python']}, "
        f"{machine['system']}; load average {machine['load']:.1f} before it began.",
        "Server on one CPU, load, backend and Redis on another. CPU is the server process's own, all threads.",
        f"A floor is what the floor uses for a call with {UNIT_LOAD}; '× floor here' is the floor under the same load.",
        "",
        *(f"- {name}: {what}" for name, what in report["targets"].items()),
        "",
    ]
    for load in dict.fromkeys(cell["load"] for cell in report["loads"]):
        lines += _load(load, [cell for cell in report["loads"] if cell["load"] == load])
    return "\n".join(lines + _compared(report["loads"]) + _memory(report["memory"])) + "\n"


def _load(load: str, cells: list[dict[str, Any]]) -> list[str]:
    body = [
        (
            cell["target"],
            _number(cell.get("calls_per_s"), 0),
            _number(cell.get("cpu_us"), 0),
            _number(cell.get("floors"), 1),
            _number(cell.get("floors_here"), 1),
            _number(cell.get("p50_ms"), 2),
            _number(cell.get("p99_ms"), 2),
            _number(cell.get("added_p50_ms"), 2),
            _number(cell.get("added_p99_ms"), 2),
        )
        for cell in cells
    ]
    head = (load, "calls/s", "CPU µs/call", "floors", "× floor here", "p50 ms", "p99 ms", "added p50", "added p99")
    errors = [f"- {cell['target']}: {error}" for cell in cells for error in cell["errors"]]
    return [*_lines(head, body), "", *errors, *([""] if errors else [])]


def _compared(cells: list[dict[str, Any]]) -> list[str]:
    """CPU per call of targets that belong together, as a multiple of the first one's."""
    lines: list[str] = []
    for name, targets in COMPARED.items():
        there = {(cell["load"], cell["target"]): cell[name] for cell in cells if name in cell}
        if len({target for _, target in there}) < len(targets):
            continue
        body = [
            (load, *(_number(there.get((load, target)), 2) for target in targets))
            for load in dict.fromkeys(load for load, _ in there)
        ]
        lines += [*_lines((f"CPU/call, as a multiple of {targets[0]}'s", *targets), body), ""]
    return lines


def _memory(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    head = (
        "held at once",
        "idle sessions",
        "open streams",
        "KiB/session",
        "KiB at rest",
        "KiB/stream",
        "resident MiB",
    )
    body = [
        (
            row["target"],
            _number(row.get("sessions"), 0),
            _number(row.get("streams"), 0),
            _number(row.get("kib_per_session"), 1),
            _number(row.get("kib_per_resting_session"), 1),
            _number(row.get("kib_per_stream"), 1),
            _number(row.get("resident_mib"), 0),
        )
        for row in rows
    ]
    failures = [f"- {row['target']}: {row['failed']}" for row in rows if "failed" in row]
    return [*_lines(head, body), "", *failures]


TOP = 25
NEARLY_ALL = 0.9
"""What has that much of the time within itself only drives the rest, and is left out."""


def profile(title: str, found: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The functions that cost most by themselves, and those within which most is spent."""
    calls, cost = found.get("calls", 0), found.get("cpu_us") or 0.0
    head = ("function", "own %", "own µs/call", "within µs/call", "times/call")
    parts = [f"{title}: {calls} calls, {cost:.0f} µs of CPU each; {found.get('errors') or found.get('failed') or ''}"]
    for by in ("own", "within"):
        body: list[tuple[str, ...]] = [
            (
                row["function"],
                _number(row["own"] * 100, 1),
                _number(row["own"] * cost, 1),
                _number(row["within"] * cost, 1),
                _number(None if row["calls"] is None else row["calls"] / max(1, calls), 1),
            )
            for row in sorted(rows, key=lambda row: -row[by])
            if row["within"] < NEARLY_ALL
        ]
        parts += ["", f"Most {by}:", "", *_lines(head, body[:TOP])]
    return "\n".join(parts) + "\n"
