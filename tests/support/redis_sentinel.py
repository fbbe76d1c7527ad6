"""A real sentinel for tests, which finds a dead primary within a second."""

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.patience import PATIENCE
from tests.support.redis_server import free_port

NAME = "main"


class Sentinel:
    """Watches the server at `primary` under the name of `main`. `lines` are added to its configuration."""

    def __init__(self, primary: int, *lines: str) -> None:
        self.port = free_port()
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{NAME}"
        self._folder = tempfile.TemporaryDirectory(prefix="stagedoor-sentinel-")
        file = Path(self._folder.name) / "sentinel.conf"
        watch = (f"monitor {NAME} 127.0.0.1 {primary} 1", f"down-after-milliseconds {NAME} 400")
        more = (f"failover-timeout {NAME} 3000",)
        told = [f"port {self.port}", "bind 127.0.0.1", *lines, *(f"sentinel {line}" for line in (*watch, *more))]
        file.write_text("\n".join(told) + "\n")
        command = ["redis-server", str(file), "--sentinel"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def primary(self) -> int | None:
        """The port of the primary, as the sentinel knows it; None while it can't be asked."""
        found = self._ask("GET-MASTER-ADDR-BY-NAME", NAME)
        return int(found[1]) if found else None

    def replicas(self) -> int:
        """How many replicas it could promote."""
        found = self._ask("REPLICAS", NAME) or []
        return sum(dict(zip(each[::2], each[1::2], strict=True))[b"flags"] == b"slave" for each in map(_flat, found))

    def wait(self, condition: Any, within: float = PATIENCE) -> None:
        """Raises AssertionError if that does not come true."""
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, "the sentinel does not come to it"
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends it and removes its data."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _ask(self, *command: str) -> Any:
        with redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0)) as client:
            client.response_callbacks.clear()
            try:
                return client.execute_command("SENTINEL", *command)
            except redis.RedisError:
                return None


def _flat(entry: Any) -> list[Any]:
    return [part for pair in entry.items() for part in pair] if isinstance(entry, dict) else list(entry)
