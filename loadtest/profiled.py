"""The gateway's command line, with a profiler beside it: `python -m loadtest.profiled --out FILE --by samples serve …`.

SIGUSR1 starts a profiler, SIGQUIT ends it and writes FILE. `samples` looks at the stack at each tick of used CPU: it
disturbs little, and its shares are true. `calls` is cProfile: its counts are exact, but it makes small functions look
dear, and its times have in them what other processes took.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from loadtest.targets import ROOT

TICK = 0.001  # seconds of CPU; the system's own clock may be coarser
ENOUGH = 50  # times that a profiler looked: shares of fewer are chance
Rows = list[dict[str, Any]]
"""For each function: `own` and `within` as shares of the whole, `calls` if they were counted."""


def where(file: str, line: int, name: str) -> str:
    """A function as people look for it."""
    path = Path(file)
    if path.is_relative_to(ROOT) and ".venv" not in path.parts:
        return f"{path.relative_to(ROOT)}:{line} {name}"
    return f"{path.parent.name}/{path.name}:{line} {name}" if line else name


class Samples:
    """Where CPU time is used, by looking now and then."""

    def __init__(self) -> None:
        self._own: Counter[CodeType] = Counter()
        self._within: Counter[CodeType] = Counter()
        self._made: dict[CodeType, str] = {}

    @property
    def looks(self) -> int:
        """How often it looked."""
        return self._own.total()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, TICK, TICK)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self._own[frame.f_code] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            if frame.f_code.co_filename == "<string>" and "self" in frame.f_locals:
                # Of a dataclass: nothing but the object says of which.
                self._made[frame.f_code] = type(frame.f_locals["self"]).__qualname__
            frame = frame.f_back
        self._within.update(seen)

    def _name(self, code: CodeType) -> str:
        if code in self._made:
            return f"dataclass {self._made[code]} {code.co_name}"
        return where(code.co_filename, code.co_firstlineno, code.co_qualname)

    def rows(self) -> Rows:
        signal.setitimer(signal.ITIMER_PROF, 0)
        total = self.looks or 1
        return [
            {
                "function": self._name(code),
                "own": self._own[code] / total,
                "within": count / total,
                "calls": None,
            }
            for code, count in self._within.items()
        ]


class Calls:
    """What is called how often, by cProfile."""

    looks = ENOUGH  # it misses nothing

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def start(self) -> None:
        self._profile.enable()

    def rows(self) -> Rows:
        self._profile.disable()
        found = pstats.Stats(self._profile)
        total = found.total_tt or 1.0  # type: ignore[attr-defined]
        return [
            {"function": where(*key), "own": own / total, "within": within / total, "calls": calls}
            for key, (_, calls, own, within, _) in found.stats.items()  # type: ignore[attr-defined]
        ]


PROFILERS: dict[str, type[Samples | Calls]] = {"samples": Samples, "calls": Calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--by", choices=PROFILERS, required=True)
    options, rest = parser.parse_known_args()
    looking: list[Samples | Calls] = []

    def start(_number: int, _frame: FrameType | None) -> None:
        looking.append(PROFILERS[options.by]())
        looking[-1].start()

    def end(_number: int, _frame: FrameType | None) -> None:
        profiler = looking.pop()
        rows = profiler.rows()
        part = options.out.with_suffix(".part")
        part.write_text(json.dumps({"looks": profiler.looks, "rows": rows}))
        part.rename(options.out)

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGQUIT, end)  # SIGUSR2 is the gateway's own
    sys.argv = ["stagedoor", *rest]
    from gateway.cli import main as gateway

    gateway()


if __name__ == "__main__":
    main()
