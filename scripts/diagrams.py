"""Draws the state diagrams of actors/machines/README.md from the tables of the machines. A test keeps the two equal."""

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from actors.machines.cluster import lease  # noqa: E402 - the tree must be on the path first
from actors.machines.modern import request as exchange  # noqa: E402 - the same
from actors.machines.modern import (  # noqa: E402
    subscription,
    suspended_calls,
)
from actors.machines.session import state as session_state  # noqa: E402 - the same
from actors.machines.upstream import (  # noqa: E402
    legacy_state,
    task_drive,
)
from actors.machines.upstream import modern_state as modern_link  # noqa: E402 - the same

DOCUMENT = ROOT / "actors" / "machines" / "README.md"

Table = Mapping[tuple[Enum, str], Enum]

DIAGRAMS: dict[str, tuple[Table, Enum]] = {
    "session": (session_state.TRANSITIONS, session_state.SessionPhase.NEW),
    "upstream connection to a legacy server": (legacy_state.TRANSITIONS, legacy_state.Phase.IDLE),
    "upstream connection to a modern server": (modern_link.TRANSITIONS, modern_link.Phase.IDLE),
    "modern request": (exchange.TRANSITIONS, exchange.Phase.RECEIVED),
    "subscription": (subscription.TRANSITIONS, subscription.Phase.RECEIVED),
    "suspended call": (suspended_calls.TRANSITIONS, suspended_calls.Phase.WAITING),
    "task drive": (task_drive.TRANSITIONS, task_drive.Phase.CREATING),
    "lease": (lease.TRANSITIONS, lease.LeasePhase.STARTING),
}
"""By name: the table, and where a life begins."""


def draw(table: Table, first: Enum) -> str:
    """A Mermaid state diagram: one arrow for each pair of phases, with every cause on it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (phase, cause), to in table.items():
        arrows.setdefault((phase.name, to.name), []).append(cause)
    last = {to.name for to in table.values()} - {phase.name for phase, _ in table}
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {first.name}"]
    lines += [f"    {phase} --> {to}: {', '.join(causes)}" for (phase, to), causes in arrows.items()]
    lines += [f"    {name} --> [*]" for name in sorted(last)]
    return "\n".join(lines) + "\n"


def render(text: str) -> str:
    """The document with fresh diagrams."""
    for name, (table, first) in DIAGRAMS.items():
        begin, end = f"<!-- diagram: {name}, by scripts/diagrams.py -->\n", f"<!-- /diagram: {name} -->\n"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the document has no place for the diagram of a {name}")
        text = f"{before}{begin}```mermaid\n{draw(table, first)}```\n{end}{after}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text()))
