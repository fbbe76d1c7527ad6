"""Tasks between programs that nobody here wrote: server-everything, one of whose tools runs as a task only and whose
questions can be tasks of its client, and the official SDKs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client
from mcp import types as t

from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.node,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*as of 2026-07-28"),
]

RESEARCH = "simulate-research-query"
RUN_BY_CLIENTS = ("trigger-sampling-request-async", "trigger-elicitation-request-async")
OWN = ("everything", "everything-http")


def run(node: Path, *arguments: str) -> Any:
    """What the TypeScript SDK's client saw."""
    done = subprocess.run(
        [node, "tasks_client.mjs", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        cwd=ROOT / "tests" / "node",
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def looked_into(seen: Any, prefix: str) -> None:
    """A tool ran as a task, and asked its question on the way."""
    assert seen["offered"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    assert seen["id"].startswith(prefix)
    assert "Research Report: python (programming)" in seen["result"]
    assert "input_required" in seen["statuses"]
    assert {"kind": "elicitation", "task": False, "related": True} in seen["asked"]
    assert (seen["found"], seen["cancelled"], seen["unknown"]) == ("completed", "cancelled", -32602)


@pytest.mark.parametrize("backend", OWN)
def test_either_end_runs_tasks_of_the_other(everyday: Any, node: Path, backend: str) -> None:
    seen = run(node, everyday.gateway.endpoint(backend), "")
    looked_into(seen, "")
    for name, kind in zip(RUN_BY_CLIENTS, ("sampling", "elicitation"), strict=True):
        assert "[COMPLETED]" in seen["ran"][name]
        assert {"kind": kind, "task": True, "related": False} in seen["asked"]


@pytest.mark.parametrize("backend", OWN)
def test_on_a_merged_endpoint_tasks_say_whose_they_are(everyday: Any, node: Path, backend: str) -> None:
    looked_into(run(node, everyday.gateway.endpoint(), f"{backend}__"), f"{backend}:")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("backend", OWN)
async def test_a_client_without_tasks_calls_a_tool_that_runs_as_one(everyday: Any, backend: str, mode: str) -> None:
    asked: list[str] = []

    async def elicit(_context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        asked.append(params.message)
        return t.ElicitResult(action="accept", content={"interpretation": "snake"})

    with trio.fail_after(PATIENCE):
        async with Client(everyday.gateway.endpoint(backend), mode=mode, elicitation_callback=elicit) as client:
            result = await client.call_tool(RESEARCH, {"topic": "python", "ambiguous": True})
    assert isinstance(result, t.CallToolResult)
    assert isinstance(result.content[0], t.TextContent)
    assert "Research Report: python (snake)" in result.content[0].text
    assert len(asked) == 1
