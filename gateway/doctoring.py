"""What `stagedoor doctor` finds out: what each process of a configuration costs, and which could be shared."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from actors.protocol.table import BackendSpec, Endpoint, StdioTarget, Table
from gateway.backends import guardian_main
from gateway.calling import open_client
from gateway.cli.client import Client, ClientFailedError
from gateway.config import Settings

MUCH: Final = 64 * 1024 * 1024
"""Bytes from which on it is worth a word that every session has a process of its own."""
SETTLE: Final = 0.5
"""Seconds after the lists, in which a server may start what it starts late."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one server costs, with all that it has started. `memory` is in bytes."""

    processes: int
    memory: int


async def examine(settings: Settings) -> list[dict[str, Any]]:
    """Each server that is a process, started alone, in the order of the configuration. `error` says why one could not
    be examined; else `processes`, `memory`, `seconds` until its lists were there, `tools`, and what can be said of
    `sharing` in `advice`."""
    found = []
    for spec in settings.table.backends.values():
        if isinstance(spec.target, StdioTarget):
            found.append({"name": spec.name, "sharing": spec.sharing, **await _examine(settings, spec)})
    return found


async def _examine(settings: Settings, spec: BackendSpec) -> dict[str, Any]:
    # One process, whoever asks it for its lists, whatever was accepted of it, and without the key of a user: nobody is
    # there to give one.
    alone = replace(spec, sharing="shared", idle_stop=None, auth=None, pins=None)
    endpoint = Endpoint(spec.name, "transparent", (spec.name,))
    merged = Endpoint("", "aggregate", (spec.name,))
    table = Table({spec.name: alone}, {spec.name: endpoint, "": merged}, settings.table.separator)
    told: dict[str, Any] = {}
    try:
        async with open_client(replace(settings, table=table)) as client:
            told = await _visit(spec, client)
    except* ClientFailedError as failed:
        told = {"error": str(failed.exceptions[0])}
    return told


async def _visit(spec: BackendSpec, client: Client) -> dict[str, Any]:
    before, began = await _children(), trio.current_time()
    [server] = await client.servers()
    if (error := server.get("error")) is not None:
        lines = [str(error.get("message", "it does not work")), *(f"  {line}" for line in error.get("stderr") or ())]
        return {"error": "\n".join(lines)}
    tools = await client.list("tools") if server.get("counts", {}).get("tools") else []
    seconds = trio.current_time() - began
    await trio.sleep(SETTLE)
    cost = await trio.to_thread.run_sync(_cost, await _children() - before)
    return {
        "processes": cost.processes,
        "memory": cost.memory,
        "seconds": round(seconds, 2),
        "tools": len(tools),
        # One without sessions has one process, whoever comes.
        "advice": _advice(spec, cost, tools) if server.get("era") != "modern" else "",
    }


def _advice(spec: BackendSpec, cost: Cost, tools: list[dict[str, Any]]) -> str:
    if spec.sharing != "session":
        return ""
    only_reads = tools and all((tool.get("annotations") or {}).get("readOnlyHint") is True for tool in tools)
    if only_reads and spec.auth is None:  # what has a user's key is his alone
        return 'by its own word all its tools only read: "sharing": "shared" may do, one process for everybody'
    if cost.memory >= MUCH or cost.processes > 1:
        return 'each session has that: "sharing": "principal" is one for each user'
    return ""


async def _children() -> frozenset[int]:
    """Our children, but for the one that ends them."""
    return await trio.to_thread.run_sync(_ours)


def _ours() -> frozenset[int]:
    me = os.getpid()
    return frozenset(
        entry.pid for entry in _processes() if entry.parent == me and guardian_main.__file__ not in entry.command
    )


def _cost(children: Iterable[int]) -> Cost:
    """Of these, of their groups, and of all that they have started, also in groups of its own, as browsers are."""
    processes, wanted = _processes(), set(children)
    found: list[_Process] = []
    while more := [entry for entry in processes if not {entry.pid, entry.parent, entry.group}.isdisjoint(wanted)]:
        found += more
        wanted |= {entry.pid for entry in more}
        processes = [entry for entry in processes if entry.pid not in wanted]
    return Cost(len(found), sum(_memory(entry) for entry in found))


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    group: int
    resident: int
    command: str


def _processes() -> list[_Process]:
    """Those of this machine. Images often lack `ps`; Linux needs none."""
    return _by_proc() if sys.platform == "linux" else _by_ps()


def _by_ps() -> list[_Process]:
    words = ["ps", "-A", "-ww", "-o", "pid=,ppid=,pgid=,rss=,args="]
    listed = subprocess.run(words, capture_output=True, text=True, errors="replace", check=True, timeout=10).stdout
    rows = ([*line.split(None, 4), ""] for line in listed.splitlines())
    return [_Process(int(row[0]), int(row[1]), int(row[2]), int(row[3]) * 1024, row[4]) for row in rows]


def _by_proc() -> list[_Process]:
    found = [_of_proc(entry) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [entry for entry in found if entry is not None]


def _of_proc(entry: os.DirEntry[str]) -> _Process | None:
    """One of Linux (proc(5)); None of one that has ended."""
    try:
        # The name of its program, which may hold anything, stands in brackets.
        stat = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
        command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    if stat[0] == b"Z":
        return None
    return _Process(int(entry.name), int(stat[1]), int(stat[2]), int(stat[21]) * resource.getpagesize(), command)


def _memory(process: _Process) -> int:
    """In bytes; where the system tells more, what it shares with others counts in part."""
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # another system, it has ended, or is somebody else's
    return process.resident


__all__ = ["examine"]
