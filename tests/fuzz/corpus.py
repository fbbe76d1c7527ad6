"""Requests that clients on official SDKs really sent: what the fuzzer mutates.

`requests.jsonl` has one request a line. What belongs to one run only is a placeholder (`{session}`, `{path}`,
`{prefix}`), filled in when a request is sent again. `record.py` writes the file anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("requests.jsonl")
SESSION, PATH, PREFIX = "{session}", "{path}", "{prefix}"


@dataclass(frozen=True)
class Recorded:
    """A request: its HTTP method, its headers but for those that every request has anew, and its body."""

    method: str
    headers: tuple[tuple[str, str], ...]
    body: Any

    @property
    def modern(self) -> bool:
        """Whether it is of the era without sessions."""
        return ("mcp-protocol-version", "2026-07-28") in self.headers

    def line(self) -> str:
        return json.dumps({"method": self.method, "headers": dict(self.headers), "body": self.body}, ensure_ascii=False)


def recorded() -> list[Recorded]:
    found = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.append(Recorded(row["method"], tuple(row["headers"].items()), row["body"]))
    return found
