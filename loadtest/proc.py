"""What Linux says of a process: the CPU it has used and the memory it holds."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PAGE = resource.getpagesize()


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond (/proc/<pid>/task/*/schedstat)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def proportional_bytes(pid: int) -> int:
    """Resident memory of a process, where what it shares with others counts by its share (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@contextmanager
def on_cpu(*cpus: int) -> Iterator[None]:
    """Runs the block, and what it starts, on these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_file_limit() -> int:
    """Takes all the file descriptors that this user may have; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def machine() -> dict[str, str | int | float]:
    """What the numbers were measured on, and how busy it was with other things just before."""
    model = "unknown"
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cpus": os.cpu_count() or 0,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }
