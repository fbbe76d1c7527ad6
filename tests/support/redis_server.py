"""A real redis-server for tests: its own port and directory, killed and started again at will."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.patience import PATIENCE
from tests.support.ports import free_port

MISSING = "redis-server is not installed (Debian: apt-get install redis-server)"


def installed() -> bool:
    """Whether there is a redis-server to start."""
    return shutil.which("redis-server") is not None


class RedisServer:
    """One server. `aof=True` writes every command through to a file, so that a restart loses nothing."""

    def __init__(self, *options: str, aof: bool = False) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="stagedoor-redis-"))
        self._options = [*options, *(["--appendonly", "yes", "--appendfsync", "always"] if aof else [])]
        self._started = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The store URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        """The store URL of its unix socket."""
        return f"unix://{self.directory}/redis.sock"

    def start(self) -> "RedisServer":
        """Starts it on the same data as before, and on the same port once it has started there."""
        for _ in range(3):
            self._spawn()
            if self._await_answer():
                self._started = True
                return self
            assert not self._started, "the port was taken while the server was down"
            self.port = free_port()
        raise RuntimeError("redis-server did not start")

    def _spawn(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        command += [str(self.directory), "--unixsocket", f"{self.directory}/redis.sock", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """As a crash would."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """It holds its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it and removes its data."""
        self.go_on()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self) -> Any:
        """A client to look and meddle with; close it."""
        return redis.Redis(port=self.port, protocol=3, retry=Retry(NoBackoff(), 0))

    def __enter__(self) -> "RedisServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _await_answer(self) -> bool:
        """False if it ended instead, as it does when its port is taken."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            with self.client() as client:
                try:
                    client.info("server")
                    return True
                except (redis.ResponseError, redis.AuthenticationError):
                    return True  # it answers, if only to those who know the password
                except redis.RedisError:
                    time.sleep(0.02)
        return False
