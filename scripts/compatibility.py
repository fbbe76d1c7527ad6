"""Writes docs/compatibility.md from the table that the tests of the matrix hold. A test keeps the two equal."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.matrix.table import REVISIONS, RULES, UNKNOWN  # noqa: E402 - the tree must be on the path first

DOCUMENT = ROOT / "docs" / "compatibility.md"

HEAD = """<!-- generated from tests/matrix/table.py by scripts/compatibility.py -->
# What works between which revisions

Official SDKs of each revision's time are put on both sides of the gateway, and every feature is tried in every cell
(`tests/matrix`); a test holds this page to what was seen. Every message that the gateway sends there, to clients and
to servers, is valid by the JSON Schema of the revision in which it is said. What the two eras are, and how the gateway
brings them together, is in [eras.md](eras.md).

Other SDKs are tried on what all of them have (`tests/e2e/peers`): clients on the official Go, Rust (rmcp) and Java SDKs
and on mcp-go visit servers on the Go SDK and on FastMCP, over HTTP and stdio, on both routes, in each era that they
speak.

- **yes**: as if client and server spoke the same revision
- *another word*: what the client sees instead, since its revision or the server's has no better
- **–**: the server's revision does not have the feature
"""


def cell(feature: str, client: str, server: str) -> str:
    outcome = RULES[feature].outcome(client, server)
    if feature not in ("unknown tool", "missing resource") and outcome == UNKNOWN:
        return "–"
    best = {RULES[feature].outcome(c, s) for c in REVISIONS[-2:] for s in REVISIONS[-2:] if c == s}
    if feature == "revision" or outcome in best:
        return "yes"
    return f"*{outcome}*"


def table(client: str) -> str:
    rows = [
        f"| client {client}, server | " + " | ".join(REVISIONS) + " | |",
        "| --- |" + " --- |" * (len(REVISIONS) + 1),
    ]
    for feature, rule in RULES.items():
        if feature != "revision":
            cells = " | ".join(cell(feature, client, server) for server in REVISIONS)
            rows.append(f"| {feature} | {cells} | {rule.note} |")
    return "\n".join(rows)


def render() -> str:
    parts = [HEAD]
    for client in REVISIONS:
        parts.append(f"## A client of {client}\n\n{table(client)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(render())
