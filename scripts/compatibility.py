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


TRANSPORTS: tuple[tuple[str, ...], ...] = (
    ("", "Streamable HTTP", "HTTP+SSE (2024-11-05)", "WebSocket", "stdio", "in the process"),
    ("configured by", "`url`", '`url`; `"type": "sse"` says it ahead', "`url`", "`command`", "`native`"),
    ("on a Unix domain socket", "`/mcp`", "`/sse`", "`/ws`", "–", "–"),
    ("eras", "both", "that of sessions", "both", "both", "both"),
    (
        "which call a server's question or log message belongs to",
        "said",
        "not said: calls of a client that can be asked take turns",
        "the same",
        "the same",
        "said",
    ),
    (
        "a connection that breaks",
        "is gone on with, if the server gives event ids",
        'ends the session with the server: what was sent gets `executed: "unknown"`, the next call begins another one',
        "the same",
        "the same",
        "–",
    ),
    ("the session with the server outlives the process", "yes, with Redis", "no", "no", "no", "no"),
    ("a session at rest leaves memory", "yes", "no", "no", "no", "no"),
)
"""What a transport can't do, and how it is called in the configuration."""

TRANSPORTS_HEAD = """## Transports to servers

What a transport can't do, no server behind it can; all else is the same over each of them (`tests/interaction`).
"""


def transports() -> str:
    head, *rows = (f"| {' | '.join(row)} |" for row in TRANSPORTS)
    return "\n".join([TRANSPORTS_HEAD, head, "| --- |" + " --- |" * (len(TRANSPORTS[0]) - 1), *rows, ""])


def render() -> str:
    parts = [HEAD]
    for client in REVISIONS:
        parts.append(f"## A client of {client}\n\n{table(client)}\n")
    return "\n".join([*parts, transports()])


if __name__ == "__main__":
    DOCUMENT.write_text(render())
