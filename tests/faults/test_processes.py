"""Real processes, killed at any moment: gateway, Redis, servers. Clients go on as if nothing were, and every call has
its outcome and at most one execution.
"""

from __future__ import annotations

import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from tests.faults import promises
from tests.faults.client import Client
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Program, Programs, accepts, free_port
from tests.support.redis_server import MISSING, RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

SERVER = Path(__file__).with_name("counting_server.py")
CLIENTS = 4
SETTLE = PATIENCE
"""Seconds in which, after all trouble, every call has its outcome and every client is served again."""
TOOLS = ("alpha__quick", "alpha__slow", "beta__quick", "beta__slow")


@dataclass
class Ground:
    """What may be killed. `alpha` is reached over pipes, a process for each session; `beta` over HTTP."""

    programs: Programs
    redis: RedisServer
    folder: Path
    port: int = field(default_factory=free_port)
    gateway: Gateway = field(init=False)
    beta: Program = field(init=False)

    def __post_init__(self) -> None:
        self.start_beta()
        alpha = {"command": sys.executable, "args": ["-S", "-E", str(SERVER), str(self.folder / "executed")]}
        beta = {"type": "http", "url": f"http://127.0.0.1:{self.port}/mcp"}
        config = {"mcpServers": {"alpha": alpha, "beta": beta}}
        self.gateway = self.programs.gateway(config, "--store", self.redis.url)
        self.config = config

    def start_beta(self) -> None:
        command = [sys.executable, "-S", "-E", SERVER, self.folder / "executed", str(self.port)]
        self.beta = self.programs.start("beta", command, ready=accepts(self.port))

    # Trouble: each ends with everything running again

    def kill_the_gateway(self) -> None:
        self._restart(signal.SIGKILL)

    def drain_the_gateway(self) -> None:
        self._restart(signal.SIGTERM)

    def _restart(self, number: signal.Signals) -> None:
        self.gateway.program.stop(number)
        self.gateway = self.programs.gateway(self.config, "--store", self.redis.url, in_place_of=self.gateway)

    def kill_redis(self) -> None:
        self.redis.kill()
        self.redis.start()

    def pause_redis(self) -> None:
        self.redis.pause()
        trio.from_thread.run(trio.sleep, 1.5)
        self.redis.go_on()

    def kill_beta(self) -> None:
        self.beta.stop(signal.SIGKILL)
        self.start_beta()

    def executions(self) -> Counter[str]:
        """By the key of the call."""
        file = self.folder / "executed"
        return Counter(file.read_text().split()) if file.exists() else Counter()


Trouble = Callable[[Ground], None]
EVERY_TROUBLE: tuple[Trouble, ...] = (
    Ground.kill_the_gateway,
    Ground.kill_beta,
    Ground.kill_redis,
    Ground.drain_the_gateway,
    Ground.pause_redis,
)


async def live(client: Client, chance: random.Random, over: trio.Event) -> None:
    """Calls, one after the other, until it is over."""
    while not over.is_set():
        if client.session is None and not await client.initialize():
            await trio.sleep(0.5)
            continue
        fate = await client.call(chance.choice(TOOLS))
        if fate.kind == "gone" or fate.status == 404:
            client.session = None
        await trio.sleep(chance.uniform(0, 0.2))


async def last(client: Client) -> None:
    """After all trouble it is served."""
    for _ in range(20):
        if client.session is None and not await client.initialize():
            await trio.sleep(0.5)
            continue
        fates = [await client.call(tool) for tool in ("alpha__quick", "beta__quick")]
        if all(fate.ok for fate in fates):
            return
        if any(fate.status == 404 for fate in fates):
            client.session = None
        await trio.sleep(1)
    raise AssertionError(f"{client.who} is not served again: {fates}")


async def endure(ground: Ground, troubles: list[Trouble], chance: random.Random) -> None:
    """All troubles, one after the other, while clients call."""
    port = int(ground.gateway.url.rpartition(":")[2])
    clients = [
        Client(lambda: trio.open_tcp_stream("127.0.0.1", port), f"client{n}", asks=False) for n in range(CLIENTS)
    ]
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(live, client, random.Random(chance.random()), over)
        for trouble in troubles:
            await trio.sleep(chance.uniform(0.5, 2.5))
            await trio.to_thread.run_sync(trouble, ground)
        await trio.sleep(1)
        over.set()
        nursery.cancel_scope.deadline = trio.current_time() + SETTLE
    assert not nursery.cancel_scope.cancelled_caught, "a call has no outcome"
    with trio.fail_after(SETTLE):
        for client in clients:
            await last(client)
    judge(clients, ground)


def judge(clients: list[Client], ground: Ground) -> None:
    """The promises, from outside. With a log that is written through, no answer and no session may be lost; a handshake
    that was cut short has no session yet."""
    executed = ground.executions()
    servers = SimpleNamespace(executions=executed, served={})
    nobody = SimpleNamespace(executions=Counter(), served={})
    seen: Any = SimpleNamespace(
        wrong=[], clients=clients, bystander=None, alpha=servers, beta=nobody, executions=lambda key: executed[key]
    )
    promises.check(seen, frozenset({"broken"}))
    kinds = Counter(fate.kind if not fate.ok else "result" for client in clients for _, fate in client.fates)
    assert kinds["result"] > CLIENTS, kinds
    print(dict(kinds))


def rig(programs: Programs, folder: Path, troubles: list[Trouble], chance: random.Random) -> None:
    if not installed():
        pytest.skip(MISSING)
    with RedisServer(aof=True) as redis:
        trio.run(endure, Ground(programs, redis, folder), troubles, chance)


@pytest.mark.parametrize("trouble", EVERY_TROUBLE, ids=lambda trouble: trouble.__name__)
def test_clients_go_on(trouble: Trouble, programs: Programs, tmp_path: Path) -> None:
    rig(programs, tmp_path, [trouble], random.Random(trouble.__name__))


@pytest.mark.chaos
def test_clients_go_on_through_everything(programs: Programs, tmp_path: Path) -> None:
    chance = random.Random(7)
    troubles = [chance.choice(EVERY_TROUBLE) for _ in range(30)]
    rig(programs, tmp_path, troubles, chance)
