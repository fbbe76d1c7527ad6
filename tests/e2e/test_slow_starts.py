"""Servers that need long to start, as real processes: they are waited for, and not taken for something else.

The gateway's clock stands still unless a process "starts": then it goes on until that one has had its time. So the
times are exact, and no machine is too slow for them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ports import TransportEvent
from actors.protocol.table import BackendSpec, StdioTarget
from gateway.backends.connector import StdioConnector
from gateway.backends.stdio import StdioTransport
from tests.support.door_client import RpcError
from tests.support.harness import Gateway, RecordingLog, open_gateway
from tests.support.modern_client import ModernClient
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.e2e

SERVER = Path(__file__).with_name("slow_server.py")
STEP = 0.5


@dataclass
class Slow:
    """One such server, and its connector: each of its processes needs so many seconds from when it was started."""

    folder: Path
    era: str
    seconds: float
    name: str = "alpha"
    log: RecordingLog = field(default_factory=RecordingLog)
    began: dict[str, float] = field(default_factory=dict)
    """When each process was started, by its id."""

    def __post_init__(self) -> None:
        self.processes = StdioConnector(self.log)
        self.transports: list[StdioTransport] = []

    @property
    def spec(self) -> BackendSpec:
        command = ("-S", "-E", str(SERVER), str(self.folder), self.era)
        return BackendSpec(self.name, StdioTarget(sys.executable, command))

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> StdioTransport:
        self.transports.append(self.processes.connect(spec, emit, modern))
        return self.transports[-1]

    def look(self, now: float) -> bool:
        """Whether the clock may go on, for a process that starts; one that has had its time is ready."""
        started = self.log.events("backend_started")
        starting = False
        for pid in [str(line["pid"]) for line in started]:
            if now - self.began.setdefault(pid, now) >= self.seconds:
                (self.folder / pid).with_suffix(".go").touch()
            else:
                starting = starting or is_alive(pid)
        return starting and not any("not started" in repr(transport) for transport in self.transports)


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def pause() -> None:
    """A moment of real time."""
    await trio.to_thread.run_sync(time.sleep, 0.01)


async def until(done: Callable[[], bool], slow: Slow, clock: MockClock) -> None:
    """Lets processes start, one after the other or at once, until this is so. From then on the clock goes by itself: a
    process that is still starting is ended, and that has its deadlines."""
    give_up = time.monotonic() + PATIENCE
    try:
        while not done():
            assert time.monotonic() < give_up, f"{len(slow.began)} starts"
            if slow.look(trio.current_time()):
                clock.jump(STEP)
                await wait_all_tasks_blocked()
            else:
                await pause()
    finally:
        clock.rate = 1.0


async def served(gateway: Gateway, kind: str, route: str) -> str:
    """A first call, which is made again if the aggregate does not know the tool yet: what it said."""
    endpoint, tool = (route, "echo") if route else ("", "alpha__echo")
    client = (
        await gateway.connect(endpoint)
        if kind == "session"
        else ModernClient(gateway.actors.door, gateway.nursery, endpoint)
    )
    while True:
        try:
            result = await client.call("tools/call", {"name": tool, "arguments": {}})
        except RpcError:
            if not route:
                await pause()
                continue
            raise
        return str(result["content"][0]["text"])


@pytest.mark.parametrize("seconds", [7, 15, 25])
@pytest.mark.parametrize("era", ["modern", "legacy", "dual"])
@pytest.mark.parametrize("kind", ["session", "sessionless"])
@pytest.mark.parametrize("route", ["alpha", ""], ids=["transparent", "aggregate"])
async def test_a_server_that_starts_slowly_serves_its_first_client(
    tmp_path: Path, mock_clock: MockClock, seconds: int, era: str, kind: str, route: str
) -> None:
    """With one process for the client, and one for the catalogue where there is one, whatever had to be found out."""
    slow = Slow(tmp_path, era, seconds)
    answers: list[str] = []
    async with open_gateway(slow, connector=slow) as gateway:  # type: ignore[arg-type]

        async def call() -> None:
            answers.append(await served(gateway, kind, route))

        gateway.nursery.start_soon(call)
        await until(lambda: bool(answers), slow, mock_clock)
        assert len(slow.began) <= (1 if route else 2)
        assert answers[0] in slow.began
        known = gateway.actors.tree.eras
        spoken = known.modern(slow.spec) if kind == "sessionless" else known.legacy(slow.spec)
        assert spoken is (era in (("modern", "dual") if kind == "sessionless" else ("legacy", "dual")))
    await slow.processes.aclose()
