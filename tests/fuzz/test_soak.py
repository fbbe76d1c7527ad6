"""A life like any other, for long: afterwards memory, descriptors, children and keys of the store are what they were.

Sessions are opened, used, ended, and forgotten; streams break and are resumed; clients without sessions are asked and
do not come back, or listen and leave; servers are killed. `SOAK_SECONDS` says how long, for all stores together.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
import trio

from tests.fuzz.honest import MODERN, BrokenAnswerError, Client, WrongAnswerError
from tests.fuzz.test_fuzz import GONE, words
from tests.fuzz.wire import Wire
from tests.support.processes import Gateway, Program, Programs, accepts, free_port
from tests.support.redis_server import RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("SOAK_SECONDS", "1200")) / 2  # for each of the two stores
WARM_UP = 20.0  # seconds of the same life before it is measured what there is
SEED = os.environ.get("FUZZ_SEED", "1")
LIVES = 12  # at once
KILL_EVERY = 5.0  # seconds
SETTLE = 120.0  # seconds in which everything must be gone that is nobody's any more
MEMORY = 64 << 20  # bytes more than before
DESCRIPTORS, CHILDREN, KEYS = 4, 0, 0  # more than before
OWN = re.compile(rb"sd:lists|sd:c:.*|sd:r:.*:alive")  # keys that are there as long as the gateway
TOKENS = {"ann": "token-of-ann", "bob": "token-of-bob"}
SERVERS = {"legacy": ("legacy", True), "modern": ("modern", True), "piped": ("legacy", False)}
SHORT = {
    "limits": {"linkIdle": 5, "brokerIdle": 5, "parkTtl": 8, "requestDeadline": 30, "keepAlive": 2},
    "sessions": {"idleTtl": 8, "passivateAfter": 2},
    "replay": {"ttl": 6, "ttlWritten": 3},
}
GAUGES = (
    "stagedoor_sessions",
    "stagedoor_streams_open",
    "stagedoor_requests_in_flight",
    "stagedoor_exchanges",
    "stagedoor_parked_calls",
    "stagedoor_child_processes",
)


@dataclass
class Ground:
    """The gateway, its servers, and what its store holds."""

    programs: Programs
    store: RedisServer | None
    ports: dict[str, int] = field(default_factory=dict)
    servers: dict[str, Program] = field(default_factory=dict)
    gateway: Gateway = field(init=False)
    statistics: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        backends: dict[str, Any] = {}
        for name, (era, http) in SERVERS.items():
            if http:
                self.ports[name] = free_port()
                self.serve(name)
                backends[name] = {"type": "http", "url": f"http://127.0.0.1:{self.ports[name]}/mcp"}
            else:
                backends[name] = {"command": sys.executable, "args": [str(HERE / "honest_server.py"), era]}
        config = {"mcpServers": backends, "gateway": {**SHORT, "auth": {"tokens": TOKENS}}}
        self.gateway = self.programs.gateway(config, *(("--store", self.store.url) if self.store else ()))

    def serve(self, name: str) -> None:
        command = [sys.executable, HERE / "honest_server.py", SERVERS[name][0], str(self.ports[name])]
        self.servers[name] = self.programs.start(name, command, ready=accepts(self.ports[name]))

    def children(self) -> list[int]:
        pid = self.gateway.program.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill(self, rng: random.Random) -> None:
        """One server, over HTTP or a process of the gateway's."""
        name = rng.choice([*SERVERS, "piped"])
        if name in self.servers:
            self.servers[name].kill()
            self.serve(name)
        elif children := self.children():
            os.kill(rng.choice(children), signal.SIGKILL)
        self.statistics[f"{name} killed"] += 1

    def holds(self) -> dict[str, int]:
        """What the gateway has, of each kind."""
        pid = self.gateway.program.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found = {
            "memory": pages * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "children": len(self.children()),
            "keys": 0,
        }
        if self.store is not None:
            found["keys"] = len(self.keys(self.store.url))
        return found

    def keys(self, url: str) -> list[bytes]:
        """Keys of the store, without its own (the lease, and the lists of servers). What says that a session has ended
        stays ten minutes, so that a late write finds it."""
        with redis.Redis.from_url(url) as client:
            keys = [key for key in client.scan_iter(count=1000) if not OWN.fullmatch(key)]
            return [key for key in keys if not (key.endswith(b":s") and client.hget(key, "state") == b"ended")]

    def left(self) -> str:
        """What the store still has, for whoever wonders why."""
        if self.store is None:
            return ""
        with redis.Redis.from_url(self.store.url) as client:
            found = {key: (client.type(key), client.ttl(key)) for key in self.keys(self.store.url)}
            return repr({key: (*of, client.hgetall(key)) if of[0] == b"hash" else of for key, of in found.items()})

    def busy(self) -> dict[str, float]:
        """The gauges that are not back at nothing."""
        with urllib.request.urlopen(f"{self.gateway.admin}/metrics", timeout=30) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if line.startswith(GAUGES)]
        gauges = ((name, float(value)) for name, _, value in lines if name.partition("{")[0] in GAUGES)
        return {name: value for name, value in gauges if value}


# --- Lives


def client_of(ground: Ground, rng: random.Random) -> Client:
    server, modern, aggregate = rng.choice(list(SERVERS)), rng.random() < 0.4, rng.random() < 0.5
    port = int(ground.gateway.url.rpartition(":")[2])
    path, prefix = ("/mcp", f"{server}__") if aggregate else (f"/mcp/{server}", "")
    token = TOKENS[rng.choice(list(TOKENS))]
    return Client(Wire(port, lambda _: None), token, path, prefix, modern, rng, words(rng, ""))


async def use(client: Client) -> None:
    for _ in range(client.rng.randint(1, 10)):
        await client.use()
        await trio.sleep(client.rng.random() * 0.1)


async def be_asked_and_leave(client: Client) -> None:
    """A call that asks, and nobody who answers."""
    if client.modern:
        await client.call("elicit", client.words())
    else:
        with trio.move_on_after(0.3):
            await client.call("elicit", client.words())


async def listen_and_leave(client: Client) -> None:
    """A stream for what the server has to say by itself."""
    uri = f"{client.prefix.removesuffix('__')}+memo:///one" if client.prefix else "memo:///one"
    with trio.move_on_after(client.rng.random() * 3):
        if client.modern:
            wanted = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": [uri]}}
            body = json.dumps(client.message("subscriptions/listen", wanted, 1, None)).encode()
            headers = {**client.headers("subscriptions/listen", None), "mcp-protocol-version": MODERN}
            async with client.wire.request("POST", client.path, headers, body) as response:
                while await response.event() is not None:
                    pass
        else:
            await client.ask("resources/subscribe", {"uri": uri})
            async with client.wire.request("GET", client.path, client.headers("", None)) as response:
                while await response.event() is not None:
                    pass


async def live(ground: Ground, number: int) -> None:
    """Client after client; what a killed server takes with it is no fault."""
    rng = random.Random(f"{SEED}/life/{number}")
    while True:
        client = client_of(ground, rng)
        ground.statistics["lives"] += 1
        try:
            await client.open()
            await use(client)
            await rng.choices([use, be_asked_and_leave, listen_and_leave], [2, 1, 1])[0](client)
            if rng.random() < 0.6:  # the others go without a word
                await client.end()
        except (WrongAnswerError, BrokenAnswerError, *GONE):
            ground.statistics["lives that a killed server ended"] += 1
        ground.statistics["checked"] += client.checked
        ground.statistics.update(client.kinds)


async def kill_now_and_then(ground: Ground) -> None:
    rng = random.Random(f"{SEED}/kills")
    while True:
        await trio.sleep(KILL_EVERY)
        await trio.to_thread.run_sync(ground.kill, rng)


async def soak(ground: Ground, seconds: float) -> None:
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for number in range(LIVES):
                nursery.start_soon(live, ground, number)
            nursery.start_soon(kill_now_and_then, ground)


def settle(ground: Ground, base: dict[str, int]) -> dict[str, int]:
    """What there is when nothing is under way, and no more than there was."""
    spare = {"memory": MEMORY, "descriptors": DESCRIPTORS, "children": CHILDREN, "keys": KEYS}
    end = time.monotonic() + SETTLE
    while True:
        busy, found = ground.busy(), ground.holds()
        over = {name: found[name] - count - spare[name] for name, count in base.items()}
        more = {name: count for name, count in over.items() if count > 0}
        if not busy and not more:
            return found
        if time.monotonic() > end:
            pytest.fail(f"left over: {busy}, more than at first: {more} of {base}; {ground.left()}")
        time.sleep(1)


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisServer | None]:
    if request.param == "memory":
        yield None
        return
    assert installed()
    with RedisServer() as server:
        yield server


def test_after_a_long_life_there_is_no_more_than_before(programs: Programs, store: RedisServer | None) -> None:
    ground = Ground(programs, store)
    try:
        trio.run(soak, ground, WARM_UP)
        base = settle(ground, {"keys": 0})
        trio.run(soak, ground, SECONDS)
        found = settle(ground, base)
        print(f"{dict(ground.statistics)}\nat first {base}\nat last  {found}")
        assert ground.statistics["checked"] > 0
        assert ground.gateway.program.stop(signal.SIGTERM) == 0
        assert "Traceback" not in ground.gateway.program.output()
    except BaseException as error:
        error.add_note(f"seed {SEED}; {dict(ground.statistics)}; {ground.gateway.program.story()}")
        raise
