"""The processes of a run, and every trouble that can befall them. Whatever is killed comes back on the same port."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tests.chaos.nginx import balancer
from tests.chaos.plan import Trouble, What
from tests.chaos.story import Kind, Loss, Note, SdkCall, Story
from tests.support.ports import free_port
from tests.support.processes import ROOT, STAGEDOOR, Program, Programs, accepts, answers
from tests.support.redis_server import RedisServer

SERVER = Path(__file__).with_name("server.py")
SDKS: Sequence[tuple[Path, str, Sequence[str]]] = (
    (Path(sys.executable), "session", ("new0", "new1", "new2")),
    (ROOT / ".venv-sdks/py-1.27/bin/python", "session", ("old0", "old1", "old2")),
    (Path(sys.executable), "modern", ("modern0", "modern1")),
)
"""Which Python, which kind of client, and their names."""
PAUSE = 20.0
"""Seconds that a replica is stopped."""
PAUSE_BACKEND, PAUSE_REDIS = 2.0, 1.5
TOKENS = {"ann": "ann-of-the-chaos-suite", "bob": "bob-of-the-chaos-suite"}
USUAL_START = 1.5
"""Seconds that a gateway takes to start on a machine of usual speed."""


@dataclass
class Replica:
    """A gateway process, in all its lives."""

    listen: str
    admin: str
    program: Program | None = None
    lives: int = 0
    lost: bool = False
    """Not there, stopped, or draining."""


@dataclass
class Backend:
    """An HTTP server, in all its lives."""

    name: str
    port: int = field(default_factory=free_port)
    program: Program | None = None
    lives: int = 0
    one_at_a_time: trio.Lock = field(default_factory=trio.Lock)


class Ground:
    """`story` gets the losses as they happen."""

    def __init__(self, programs: Programs, redis: RedisServer, folder: Path, story: Story, replicas: int = 3) -> None:
        self.redis = redis
        self.story = story
        self.kills = 0
        self._programs = programs
        self._folder = folder
        self._log = folder / "executed.log"
        self._log.touch()
        self.replicas = [Replica(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}") for _ in range(replicas)]
        self._backends = [Backend("ids"), Backend("plain")]
        self._config = folder / "stagedoor.json"
        self._config.write_text(json.dumps(self._configuration(), indent=2))
        self._redis_busy = trio.Lock()
        self._back = trio.Condition()

    def _configuration(self) -> dict[str, object]:
        ids, plain = ({"type": "http", "url": f"http://127.0.0.1:{b.port}/mcp"} for b in self._backends)
        stdio = {"command": sys.executable, "args": ["-S", "-E", str(SERVER), "stdio", str(self._log)]}
        gateway = {"keys": ["5e" * 32], "auth": {"tokens": TOKENS}}
        return {"mcpServers": {"ids": ids, "plain": plain, "stdio": stdio}, "gateway": gateway}

    async def start(self) -> int:
        """Everything, and the port of the balancer."""
        for backend in self._backends:
            await trio.to_thread.run_sync(self._start_backend, backend)
        began = time.monotonic()
        await trio.to_thread.run_sync(self._start_replica, self.replicas[0])
        self.story.slowness = max(1.0, (time.monotonic() - began) / USUAL_START)
        async with trio.open_nursery() as nursery:
            for replica in self.replicas[1:]:
                nursery.start_soon(trio.to_thread.run_sync, self._start_replica, replica)
        addresses = [replica.listen for replica in self.replicas]
        _, port = await trio.to_thread.run_sync(balancer, self._programs, self._folder, addresses)
        return port

    def _start_replica(self, replica: Replica) -> None:
        command = [STAGEDOOR, "serve", "--listen", replica.listen, "--admin", replica.admin]
        command += ["--store", self.redis.url, "--config", self._config]
        while True:
            replica.lives += 1
            name = f"replica-{self.replicas.index(replica)}-{replica.lives}"
            replica.program = self._programs.start(name, command, fork=True)
            try:
                replica.program.wait_ready(answers(f"http://{replica.admin}/readyz"))
            except AssertionError:
                if "store_unusable" not in replica.program.output():
                    raise
            else:
                return  # else Redis was away, and whoever keeps processes running tries again

    def _start_backend(self, backend: Backend) -> None:
        backend.lives += 1
        command = [sys.executable, "-S", "-E", SERVER, backend.name, self._log, str(backend.port)]
        command += ["--ids"] if backend.name == "ids" else []
        backend.program = self._programs.start(f"{backend.name}-{backend.lives}", command, ready=accepts(backend.port))

    def start_sdks(self, port: int, seed: int) -> list[Program]:
        """Clients on SDKs; each of these programs ends with SIGTERM when its last call has."""
        sdk, log = Path(__file__).with_name("sdk.py"), self._folder / "sdk.log"
        log.touch()
        url, slowness = f"http://127.0.0.1:{port}/mcp", f"{self.story.slowness:.1f}"
        started = []
        for number, (python, mode, names) in enumerate(SDKS):
            token = list(TOKENS.values())[number % 2]
            command = [python, sdk, mode, url, token, log, str(seed), slowness, *names]
            started.append(self._programs.start(f"sdk-{mode}", command))
            self.story.sdks += names
        return started

    def sdk_calls(self) -> list[SdkCall]:
        """What they have written down; a call without an end got nothing."""
        lines = [json.loads(line) for line in (self._folder / "sdk.log").read_text().splitlines()]
        ended = {line["key"] for line in lines if "outcome" in line}
        missing = [
            {**line, "outcome": "timeout", "ended": time.monotonic()}
            for line in lines
            if "key" in line and "outcome" not in line and line["key"] not in ended
        ]
        return [SdkCall(**line) for line in [*lines, *missing] if "outcome" in line]

    # Trouble

    async def bring(self, trouble: Trouble, nursery: trio.Nursery) -> None:
        """Begins it; returns as soon as the next one may come. Its end is a task in the nursery."""
        with (self._folder / "troubles.txt").open("a") as file:
            file.write(f"{time.monotonic():.3f} {trouble}\n")
        await self._means[trouble.what](self, trouble, nursery)

    async def _lose(self, trouble: Trouble, nursery: trio.Nursery) -> None:
        """A replica, of which at least one is left to do the work."""
        async with self._back:
            while len(left := [r for r in self.replicas if not r.lost]) < min(2, len(self.replicas)):
                await self._back.wait()
            replica = left[int(trouble.target * len(left))]
            replica.lost = True
        ways: dict[What, Callable[[Replica], Awaitable[None]]] = {
            "kill replica": self._kill,
            "pause replica": self._pause,
            "drain replica": self._drain,
        }
        nursery.start_soon(self._lost, replica, ways[trouble.what])

    async def _lost(self, replica: Replica, way: Callable[[Replica], Awaitable[None]]) -> None:
        await way(replica)
        async with self._back:
            replica.lost = False
            self._back.notify_all()

    async def _kill(self, replica: Replica) -> None:
        self.kills += 1
        await self._restart(replica, "kill", signal.SIGKILL)

    async def _drain(self, replica: Replica) -> None:
        await self._restart(replica, "drain", signal.SIGTERM)

    async def _restart(self, replica: Replica, kind: Kind, number: signal.Signals) -> None:
        loss = self._note_loss(replica, kind)
        assert replica.program is not None
        status = await trio.to_thread.run_sync(replica.program.stop, number)
        assert kind == "kill" or status == 0, f"a drain ended with {status}. {replica.program.story()}"
        loss.left = time.monotonic()
        await trio.to_thread.run_sync(self._start_replica, replica)
        loss.until = time.monotonic()

    async def _pause(self, replica: Replica) -> None:
        loss = self._note_loss(replica, "pause")
        assert replica.program is not None
        replica.program.send(signal.SIGSTOP)
        await trio.sleep(PAUSE)
        replica.program.send(signal.SIGCONT)
        loss.until = time.monotonic()

    def _note_loss(self, replica: Replica, kind: Kind) -> Loss:
        loss = Loss(replica.listen, kind, time.monotonic())
        self.story.losses.append(loss)
        return loss

    async def _trouble_backend(self, trouble: Trouble, nursery: trio.Nursery) -> None:
        backend = self._backends[int(trouble.target * len(self._backends))]
        nursery.start_soon(self._kill_backend if trouble.what == "kill backend" else self._pause_backend, backend)

    async def _kill_backend(self, backend: Backend) -> None:
        async with backend.one_at_a_time:
            assert backend.program is not None
            self.kills += 1
            await trio.to_thread.run_sync(backend.program.stop, signal.SIGKILL)
            await trio.to_thread.run_sync(self._start_backend, backend)

    async def _pause_backend(self, backend: Backend) -> None:
        async with backend.one_at_a_time:
            assert backend.program is not None
            backend.program.send(signal.SIGSTOP)
            await trio.sleep(PAUSE_BACKEND)
            backend.program.send(signal.SIGCONT)

    async def _kill_process(self, trouble: Trouble, _nursery: trio.Nursery) -> None:
        """A server over stdio, of one session."""
        alive = [int(note.key) for note in self.notes() if note.what == "started" and is_server(int(note.key))]
        if alive:
            self.kills += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(alive[int(trouble.target * len(alive))], signal.SIGKILL)

    async def _trouble_redis(self, trouble: Trouble, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._kill_redis if trouble.what == "kill redis" else self._pause_redis)

    async def _kill_redis(self) -> None:
        async with self._redis_busy:
            self.kills += 1
            await trio.to_thread.run_sync(self.redis.kill)
            await trio.to_thread.run_sync(self.redis.start)

    async def _pause_redis(self) -> None:
        async with self._redis_busy:
            self.redis.pause()
            await trio.sleep(PAUSE_REDIS)
            self.redis.go_on()

    _means = {
        "kill replica": _lose,
        "pause replica": _lose,
        "drain replica": _lose,
        "kill backend": _trouble_backend,
        "pause backend": _trouble_backend,
        "kill process": _kill_process,
        "kill redis": _trouble_redis,
        "pause redis": _trouble_redis,
    }

    # Afterwards

    def notes(self) -> list[Note]:
        """What the backends have written down."""
        lines = (line.split("\t") for line in self._log.read_text().splitlines())
        return [Note(float(at), *rest) for at, *rest in lines]


def is_server(pid: int) -> bool:
    """Whether this process is a server of ours: its number may be another's by now."""
    with contextlib.suppress(OSError):
        return str(SERVER).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
