"""One real worker, with the test as its supervisor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gateway.http.sockets import close_listeners, open_listeners
from gateway.workers.channel import Ask, Channel, Drain, FromWorker, Hello, State, Told, ToWorker
from gateway.working import Working
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, environment

pytestmark = pytest.mark.e2e

TELL = """
import os, sys
from pathlib import Path
files = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
told = Path(sys.argv[1])
told.with_suffix(".part").write_text(" ".join(str(file.stat().st_ino) for file in files if file.exists()))
told.with_suffix(".part").rename(told)
sys.stdin.read()
"""
"""A server that says which files it has open, and nothing else."""


class Held:
    """A worker at the other end of a channel."""

    def __init__(self, channel: Channel[FromWorker], process: trio.Process, inodes: set[int]) -> None:
        self.channel = channel
        self.process = process
        self.inodes = inodes
        """Of what it inherited."""

    async def next(self, kind: type[Any]) -> Any:
        """What it says next of this kind."""
        while True:
            said = await self.channel.receive()
            assert said is not None, "it is gone"
            if isinstance(said, kind):
                return said

    async def ready(self) -> State:
        while not (state := await self.next(State)).ready:
            pass
        found: State = state
        return found


@asynccontextmanager
async def worker(folder: Path, config: dict[str, Any]) -> AsyncIterator[Held]:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    listeners = open_listeners("127.0.0.1", 0)
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno(), *(one.fileno() for one in listeners)]
    hello = Hello(
        place=0, listeners=descriptors[1:], listen=listeners[0].getsockname(), store="memory://", keys=[b"k" * 32]
    )
    command = [sys.executable, "-P", "-m", "stagedoor", "serve", str(file), "--worker", str(theirs.fileno())]
    env = {**environment(), "XDG_STATE_HOME": str(folder)}
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                lambda task_status: trio.run_process(
                    command, pass_fds=descriptors, env=env, check=False, task_status=task_status
                )
            )
            inodes = {os.fstat(descriptor).st_ino for descriptor in descriptors}
            theirs.close()
            channel: Channel[FromWorker] = Channel(ours, FromWorker)
            held = Held(channel, process, inodes)
            await channel.send(hello)
            yield held
            await channel.send(Drain("the test is over"))
            while await channel.receive() is not None:
                pass
            await channel.aclose()
            assert await process.wait() == 0
    close_listeners(listeners)


async def test_it_says_how_long_its_drain_may_take_by_its_own_configuration(tmp_path: Path) -> None:
    async with worker(tmp_path, {"mcpServers": {}, "gateway": {"drain": {"deadline": 123}}}) as held:
        assert (await held.ready()).ends_within > 123


async def test_a_question_that_makes_no_sense_is_answered_and_ends_nothing(tmp_path: Path) -> None:
    async with worker(tmp_path, {"mcpServers": {}}) as held:
        await held.ready()
        for number, options in enumerate(({"limit": "9" * 5000}, {"limit": "-1"}, {"cursor": "x" * 5000})):
            await held.channel.send(Ask(number, "list", "", options))
            told = await held.next(Told)
            assert (told.number, told.status) == (number, 400 if "limit" in options else 200)


async def test_no_server_gets_what_the_worker_inherited(tmp_path: Path) -> None:
    told = tmp_path / "told"
    server = {"command": sys.executable, "args": ["-c", TELL, str(told)]}
    async with worker(tmp_path, {"mcpServers": {"teller": server}}) as held:
        await held.ready()
        while not told.exists():
            await trio.sleep(0.05)
        assert not held.inodes & {int(word) for word in told.read_text().split()}


STUCK = """
import os, sys
from gateway.working import end_with_supervisor
end_with_supervisor(int(sys.argv[1]), 0.2)
print("ready", flush=True)
while True:
    pass
"""


def test_one_whose_loop_does_not_turn_does_not_outlive_its_supervisor() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", STUCK, str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, cwd=ROOT, env=environment()
        )
    try:
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            ours.close()
            assert process.wait(PATIENCE) == 1
    finally:
        process.kill()


async def test_an_operators_question_that_crashes_is_told_so_and_ends_nothing() -> None:
    ours, theirs = socket.socketpair()
    channel: Channel[FromWorker] = Channel(ours, FromWorker)
    mine: Channel[ToWorker] = Channel(theirs, ToWorker)
    role, logged = Working(mine, Hello(place=0, listeners=[], listen=("", 0), store="")), []

    async def operate(*_: Any) -> Any:
        raise ValueError("a fault")

    log = SimpleNamespace(error=lambda event, **_: logged.append(event))
    gateway: Any = SimpleNamespace(operate=operate, log=log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(role.hear, gateway)
        for number in (7, 8):
            await channel.send(Ask(number, "list"))
            assert await channel.receive() == Told(number, 500, {"error": "internal error"})
        nursery.cancel_scope.cancel()
    assert logged == ["operator_crashed"] * 2
    await channel.aclose()
    await mine.aclose()
