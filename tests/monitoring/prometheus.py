"""A real Prometheus for tests: its own port and folder, a scrape every half second, and what can be asked of it."""

from __future__ import annotations

import json
import math
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import Programs, answers

MISSING = "prometheus and promtool"


def installed() -> bool:
    """Whether there are both."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


class Prometheus:
    """One that scrapes these admin listeners, and evaluates these rules."""

    def __init__(self, programs: Programs, folder: Path, targets: Sequence[str], rules: Path) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "stagedoor", "static_configs": [{"targets": list(targets)}]}],
        }
        file = folder / "prometheus.json"
        file.write_text(json.dumps(config))  # YAML, as all JSON is
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage"]
        programs.start("prometheus", command, ready=answers(f"http://127.0.0.1:{self.port}/-/ready"))

    def get(self, path: str, **params: str | float) -> Any:
        """The data of an answer of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> list[float]:
        """What an expression comes to at this moment: a number for each series."""
        found = self.get("query", query=expr)
        series = [found] if found["resultType"] == "scalar" else found["result"]
        return [float((one["value"] if isinstance(one, dict) else one)[1]) for one in series]

    def wait(self, what: Callable[[], bool], why: str) -> None:
        """Until this is so."""
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, why
            time.sleep(0.1)

    def scraped(self, targets: int, since: float) -> bool:
        """Whether each target was scraped after this time."""
        times = self.values('timestamp(up{job="stagedoor"} == 1)')
        return len(times) == targets and min(times) > since


def finite(values: Sequence[float]) -> list[float]:
    """Without what is no number."""
    return [value for value in values if math.isfinite(value)]
