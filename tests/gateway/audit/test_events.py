"""The table of events: what the code writes down, and what the documentation says of it."""

import ast
from pathlib import Path

import pytest

from actors.protocol.trail import EVENTS, MEMBERS, WHERE, WHO, undeclared
from gateway.audit.sinks import Line
from scripts.audit_table import DOCUMENT, render

ROOT = Path(__file__).parents[3]


def recorded() -> dict[str, list[tuple[str, set[str]]]]:
    """What the sources record: by event, where, and the members that are named there."""
    found: dict[str, list[tuple[str, set[str]]]] = {}
    for folder in ("actors", "gateway"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr not in ("record", "record_often") or not node.args:
                    continue
                event = node.args[0]
                if isinstance(event, ast.Constant) and isinstance(event.value, str):
                    members = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                    found.setdefault(event.value, []).append((f"{path.name}:{node.lineno}", members))
    return found


def test_all_that_is_written_down_is_declared(subtests: pytest.Subtests) -> None:
    for event, places in recorded().items():
        for place, members in places:
            with subtests.test(place):
                assert not undeclared(event, members)


def test_all_that_is_declared_is_written_down_somewhere(subtests: pytest.Subtests) -> None:
    files = [path for folder in ("actors", "gateway") for path in (ROOT / folder).rglob("*.py")]
    texts = "".join(path.read_text() for path in files if path.name != "trail.py")
    for event in EVENTS:
        with subtests.test(event):
            assert event.startswith("audit.") or f'"{event}"' in texts


def test_every_member_is_explained_and_every_explanation_is_of_a_member() -> None:
    assert {member for event in EVENTS.values() for member in event.members} == set(MEMBERS)
    assert {*WHO, *WHERE} <= set(MEMBERS)


def test_the_documentation_has_the_table() -> None:
    text = DOCUMENT.read_text()
    assert render(text) == text, "run scripts/audit_table.py"


def test_refusals_are_warnings_for_collectors() -> None:
    grave = {event for event in EVENTS if Line(event, 0.0, b"").severity == "warning"}
    assert grave == {event for event, row in EVENTS.items() if row.refusal}
    assert {"authn.fail", "deny", "audit.lost"} <= grave
