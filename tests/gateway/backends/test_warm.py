"""Processes of pools that are started ahead."""

import os
import sys

import pytest
import trio

from actors.ports import FrameReceived, TransportClosed
from actors.protocol.table import BackendSpec, StdioTarget
from gateway.backends import warm as module
from gateway.backends.guardian import Guardian
from gateway.backends.stdio import Offers, StdioLimits, StdioTransport
from gateway.backends.warm import Warm
from gateway.wire.process import Patience
from tests.support.patience import PATIENCE

SAYS_ITS_PID = """
import os, sys
for line in sys.stdin:
    print('{"pid":%d}' % os.getpid(), flush=True)
"""
QUICK = StdioLimits(patience=Patience(0.3, 0.3, 1.0), patience_cancelled=Patience(0.1, 0.2, 1.0))


def pool(script=SAYS_ITS_PID, *, least=2, most=0) -> BackendSpec:
    target = StdioTarget(sys.executable, ("-S", "-u", "-c", script))
    return BackendSpec("demo", target, sharing="pool", least=least, most=most)


class Processes:
    """What transports and pools of one gateway share."""

    def __init__(self, log) -> None:
        self.offers, self.slots, self.guardian = Offers(), trio.CapacityLimiter(20), Guardian()
        self._shared = {"guardian": self.guardian, "slots": self.slots, "log": log, "limits": QUICK}

    async def keep_warm(self, specs) -> None:
        await Warm(lambda: specs, self.offers, jitter=lambda: 0.0, **self._shared).run()

    def transport(self, spec, emit) -> StdioTransport:
        return StdioTransport(spec.name, spec.target, emit, offers=self.offers, **self._shared)

    @property
    def waiting(self) -> list[int]:
        return [offer.running.child.pid for offer in self.offers.open]


@pytest.fixture
async def processes(log, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "SELDOM", 0.01)
    processes = Processes(log)
    with trio.fail_after(PATIENCE):
        yield processes
        await processes.guardian.aclose()


async def until(condition):
    while not condition():
        await trio.sleep(0.005)


async def pid_of(processes, spec, events, nursery) -> tuple[int, object]:
    transport = processes.transport(spec, events)
    nursery.start_soon(transport.run)
    transport.send(b"{}", id=1)
    return int((await events.next(FrameReceived)).frame[7:-1]), transport


async def test_who_comes_gets_one_that_waits_and_the_next_is_started(processes, events, nursery):
    spec = pool()
    async with trio.open_nursery() as background:
        background.start_soon(processes.keep_warm, [spec])
        await until(lambda: len(processes.waiting) == 2)
        waiting = processes.waiting
        pid, transport = await pid_of(processes, spec, events, nursery)
        assert pid in waiting
        assert not transport.warm  # it has heard nothing: it is to be asked as any other
        await until(lambda: len(processes.waiting) == 2)
        assert pid not in processes.waiting
        transport.close()
        await events.next(TransportClosed)
        await until(lambda: processes.offers.living[spec.target] == 2)
        assert pid not in processes.waiting  # whoever had it was the last
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        left = processes.waiting
        background.cancel_scope.cancel()
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert processes.slots.borrowed_tokens == 0


async def test_with_those_in_use_there_are_never_more_than_it_may_have(processes, events, nursery, monkeypatch):
    spawn = module.spawn

    async def slowly(*arguments):
        await trio.sleep(0.05)  # those that are being started count too
        return await spawn(*arguments)

    monkeypatch.setattr(module, "spawn", slowly)
    spec = pool(least=2, most=3)
    async with trio.open_nursery() as background:
        background.start_soon(processes.keep_warm, [spec])
        transports = []
        for _ in range(3):
            await until(lambda: processes.waiting)
            transports.append((await pid_of(processes, spec, events, nursery))[1])
        await trio.sleep(0.1)
        assert processes.waiting == []
        transports[0].close()
        await until(lambda: len(processes.waiting) == 1)
        assert processes.offers.living[spec.target] == 3
        background.cancel_scope.cancel()
        for transport in transports[1:]:
            transport.close()


async def test_one_that_ends_by_itself_is_started_again_after_pauses_that_grow(processes, log, monkeypatch):
    monkeypatch.setattr("actors.machines.upstream.breaker.FIRST_DELAY", 0.01)
    spec = pool("raise SystemExit(3)", least=1)
    async with trio.open_nursery() as background:
        background.start_soon(processes.keep_warm, [spec])
        await until(lambda: len(log.of("pool_process_ended")) == 5)
        background.cancel_scope.cancel()
    pauses = [line["again"] for line in log.of("pool_process_ended")]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]


async def test_those_of_a_server_that_is_configured_otherwise_end(processes):
    specs = [pool()]
    async with trio.open_nursery() as background:
        background.start_soon(processes.keep_warm, specs)
        await until(lambda: len(processes.waiting) == 2)
        before = processes.waiting
        specs[:] = [pool(SAYS_ITS_PID + "\n")]
        await until(lambda: len(processes.waiting) == 2 and not set(before) & set(processes.waiting))
        specs.clear()
        await until(lambda: processes.slots.borrowed_tokens == 0)
        background.cancel_scope.cancel()


async def test_half_of_the_places_stay_free(processes):
    specs = [pool(least=50)]
    async with trio.open_nursery() as background:
        background.start_soon(processes.keep_warm, specs)
        await until(lambda: len(processes.waiting) >= 10)
        await trio.sleep(0.1)
        assert processes.slots.available_tokens >= 10
        background.cancel_scope.cancel()
