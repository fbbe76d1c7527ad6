"""Writes the tables of events into docs/audit.md. A test keeps them equal to the code."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from actors.protocol.trail import EVENTS, MEMBERS  # noqa: E402 - the tree must be on the path first

DOCUMENT = ROOT / "docs" / "audit.md"
BEGIN = "<!-- events: generated from actors/protocol/trail.py by scripts/audit_table.py -->\n"
END = "<!-- /events -->\n"


def table() -> str:
    """One row an event, then one for each member."""
    rows = ["| event | what it tells | members |", "| --- | --- | --- |"]
    rows += [
        f"| `{event.name}` | {event.help} | {', '.join(f'`{member}`' for member in event.members)} |"
        for event in EVENTS.values()
    ]
    rows += ["", "What has nothing to say is left out.", "", "| member | what it is |", "| --- | --- |"]
    rows += [f"| `{name}` | {what} |" for name, what in MEMBERS.items()]
    return "\n".join(rows) + "\n"


def render(text: str) -> str:
    """The document with fresh tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text()))
