"""Writes the table of metrics into docs/operations.md. A test keeps the two equal."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from actors.protocol.instruments import INSTRUMENTS  # noqa: E402 - the tree must be on the path first

DOCUMENT = ROOT / "docs" / "operations.md"
BEGIN = "<!-- metrics: generated from actors/protocol/instruments.py by scripts/metrics_table.py -->\n"
END = "<!-- /metrics -->\n"


def table() -> str:
    """One row an instrument."""
    rows = ["| name | kind | labels | what |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in INSTRUMENTS.values()
    ]
    return "\n".join(rows) + "\n"


def render(text: str) -> str:
    """The document with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text()))
