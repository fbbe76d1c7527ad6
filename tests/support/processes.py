"""Real programs for the end-to-end tests: started in a group of their own, awaited until they answer, ended for sure.

Nothing that a test starts outlives it: every program, and whatever it starts in turn, carries a mark in its
environment, and all that bear the mark are killed at the end (Linux; elsewhere only the groups of programs that still
run are). Output goes to a file, and is part of the message when a program does not come up or end as it should; a
Python program that hangs says first where.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.forked import Forked
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, installed

ROOT = Path(__file__).resolve().parents[2]
NODE_PACKAGES = ROOT / "tests" / "node" / "node_modules"
PYPI_SERVERS = ROOT / ".venv-servers" / "bin"
LOCKED_RUNNERS = ROOT / "tests" / "support" / "bin"  # npx and uvx that run what the tests have locked
FORKS = Path(__file__).with_name("forks.py")
STAGEDOOR = Path(sys.executable).with_name("stagedoor")

LOOK_EVERY = 0.05  # seconds between two looks at a program that is starting or ending
OUTPUT_SHOWN = 6000  # characters of output in a failure's message
MARK = "STAGEDOOR_TEST_MARK"


def accepts(port: int) -> Callable[[], bool]:
    """Readiness: something accepts connections on 127.0.0.1:port."""

    def look() -> bool:
        with socket.socket() as sock:
            sock.settimeout(PATIENCE)
            return sock.connect_ex(("127.0.0.1", port)) == 0

    return look


def answers(url: str, status: int = 200) -> Callable[[], bool]:
    """Readiness: GET url has that status."""

    def look() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return bool(response.status == status)
        except urllib.error.HTTPError as error:
            return error.code == status
        except OSError:
            return False

    return look


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_EVERY)
    return True


class Program:
    """A program that a test started, and the file with its output. Of `stagedoor`, it may be a fork."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path, fork: bool = False
    ) -> None:
        self.name = name
        self.log = log
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | Forked
        if fork:
            with log.open("wb") as output, open(os.devnull, "rb") as nothing:
                self._process = Forked(command[1:], (nothing, output, output), {**env, MARK: self._mark}, cwd)
            return
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**env, MARK: self._mark},
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def story(self) -> str:
        """What a failure's message says of it."""
        state = "running" if self.status is None else f"ended with {self.status}"
        return f"{self.name} ({state}) wrote:\n{self.output()[-OUTPUT_SHOWN:] or '(nothing)'}"

    def wait_ready(self, ready: Callable[[], bool]) -> None:
        """Raises AssertionError, with the output, when it ends early or is never ready."""
        in_time = _until(lambda: self.status is not None or ready())
        assert self.status is None, f"{self.name} ended while starting. {self.story()}"
        assert in_time, f"{self.name} was never ready. {self.abort()}"

    def wait_output(self, part: str) -> None:
        assert _until(lambda: part in self.output()), f"{part!r} was never printed. {self.story()}"

    def family(self) -> list[int]:
        """Process ids of the program and all it started that still run, by their mark. (A fork shows the mark that its
        parent was started with.)"""
        needle = f"{MARK}={self._mark}".encode()
        found = [self.pid] if isinstance(self._process, Forked) and self.status is None else []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # gone, or somebody else's
                if needle in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return found

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals it and returns its exit status. Raises AssertionError when it does not end."""
        self.send(number)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end after {number.name}. {self.abort()}") from None

    def abort(self) -> str:
        """Ends a program that hangs; its story, with the stacks of its threads if it is Python."""
        if self.status is None:
            self.send(signal.SIGABRT)
            _until(lambda: self.status is not None)
        return self.story()

    def wait_alone(self) -> None:
        """Raises AssertionError when something that it started outlives it."""
        assert _until(lambda: not self.family()), f"{self.name} left processes {self.family()}. {self.story()}"

    def kill(self) -> None:
        """Kills it and all it started."""
        if self.status is None:  # of one that has ended, the number may be another's by now
            with contextlib.suppress(ProcessLookupError):  # a fork that has no group yet
                os.killpg(self.pid, signal.SIGKILL)
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class Gateway:
    """A running gateway and its two addresses."""

    program: Program
    url: str
    admin: str

    def endpoint(self, backend: str | None = None) -> str:
        return f"{self.url}/mcp" + (f"/{backend}" if backend else "")


class Programs:
    """Starts programs, with logs in one folder, and ends all of them at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Program] = []

    def start(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        *,
        ready: Callable[[], bool] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        fork: bool = False,
    ) -> Program:
        """Starts a program; with `ready`, returns when it is. `env` is added to the environment of the tests. `fork`:
        the program is `stagedoor`, and the test is not about how it starts."""
        log = self._folder / f"{len(self._started)}-{name}.log"
        around = {**environment(), "XDG_STATE_HOME": str(self._folder), **(env or {})}
        program = Program(name, [os.fspath(part) for part in command], log, around, cwd, fork)
        self._started.append(program)
        if ready is not None:
            program.wait_ready(ready)
        return program

    def forks(self, name: str, command: Sequence[str | os.PathLike[str]]) -> list[str]:
        """The command of a program on Python that starts at once: it is a fork of one that has everything imported."""
        python, *program = command
        socket = self._folder / f"{len(self._started)}-{name}.socket"
        self.start(name, [python, FORKS, socket, *program], ready=socket.exists)
        return [sys.executable, "-IS", str(FORKS.with_name("fork.py")), str(socket)]

    def gateway(
        self,
        config: Mapping[str, Any] | Path | None = None,
        *options: str,
        in_place_of: Gateway | None = None,
        ulimit: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Gateway:
        """Starts a gateway: a config to write, a config file, or none for the demo servers.

        It listens on free ports, or on those of a gateway that has ended. `ulimit` are
        arguments of the shell's command of this name.
        """
        if in_place_of is None:
            listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        else:
            listen, admin = (url.removeprefix("http://") for url in (in_place_of.url, in_place_of.admin))
        command: list[str | os.PathLike[str]] = [STAGEDOOR, "serve", "--listen", listen, "--admin", admin, *options]
        if isinstance(config, Mapping):
            file = self._folder / f"{len(self._started)}-config.json"
            file.write_text(json.dumps(config, indent=2))
            config = file
        if config is not None:
            command += ["--config", config]
        if ulimit is not None:
            command = ["sh", "-c", f'ulimit {ulimit}; exec "$@"', "sh", *command]
        ready = answers(f"http://{admin}/readyz")
        program = self.start("stagedoor", command, ready=ready, env=env, fork=ulimit is None)
        return Gateway(program, f"http://{listen}", f"http://{admin}")

    def end(self) -> None:
        for program in reversed(self._started):
            program.kill()


def environment() -> dict[str, str]:
    """The environment for programs of a test: locked servers and the private node first on PATH."""
    path = os.pathsep.join((str(LOCKED_RUNNERS), str(NODE_PACKAGES / ".bin"), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "NO_COLOR": "1"}


def stagedoor(
    *words: str | os.PathLike[str], env: Mapping[str, str] | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, in a fork; `env` is added to the environment of the tests."""
    return forked.stagedoor(*words, env={**environment(), **(env or {})}, cwd=ROOT, check=check)


def need(there: bool, what: str) -> None:
    """A missing tool skips the test on somebody's machine, and fails it where everything must run."""
    if there:
        return
    message = f"{what} missing: `make test` installs it"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Programs that end with the test."""
    started = Programs(tmp_path)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def shared_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Programs that end with the last test of the file, for tests that leave them as they found them."""
    started = Programs(tmp_path_factory.mktemp("programs"))
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def redis_url() -> Iterator[str]:
    """The URL of a redis-server of the test's own."""
    need(installed(), "redis-server is")
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def node() -> Path:
    """The private node, with the packages of tests/node beside it."""
    need((NODE_PACKAGES / ".bin" / "node").exists(), "the node packages of tests/node are")
    return NODE_PACKAGES / ".bin" / "node"


@pytest.fixture(scope="session")
def pypi_servers() -> Path:
    """The folder with mcp-server-time and mcp-server-git."""
    need((PYPI_SERVERS / "mcp-server-time").exists(), "the servers of tests/servers are")
    return PYPI_SERVERS
