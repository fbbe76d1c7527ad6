"""Writes the table of metrics into docs/monitoring.md. A test keeps the two equal."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from actors.protocol.instruments import INSTRUMENTS  # noqa: E402 - the tree must be on the path first

DOCUMENT = ROOT / "docs" / "monitoring.md"
BEGIN = "<!-- metrics: generated from actors/protocol/instruments.py by scripts/metrics_table.py -->\n"
END = "<!-- /metrics -->\n"


VALUES = (
    "What these labels say, where all of it is known; anything else is `other`:",
    "",
    "| name | label | values |",
    "| --- | --- | --- |",
)


def table() -> str:
    """One row an instrument, then one for each label whose values are known."""
    rows = ["| name | kind | labels | what |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in INSTRUMENTS.values()
    ]
    known = [
        f"| `{one.name}` | `{label}` | {', '.join(f'`{value}`' for value in values)} |"
        for one in INSTRUMENTS.values()
        for label, values in one.values.items()
    ]
    return "\n".join([*rows, "", *VALUES, *known]) + "\n"


def render(text: str) -> str:
    """The document with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text()))
