"""The supervisor with real processes that are no gateways (`stub`): sockets, respawn, rolling restart, ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gateway.http.sockets import close_listeners, open_listeners
from gateway.supervising import reap
from gateway.workers import backoff
from gateway.workers.backoff import FIRST
from gateway.workers.channel import Hello, State
from gateway.workers.supervisor import LOOK_WITHIN, Supervisor
from gateway.workers.worker import Plan, Worker
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT
from tests.workers import stub

pytestmark = pytest.mark.e2e


class Lines:
    """A log that is read by the test."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **values: self.events.append((event, values))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [values for name, values in self.events if name == event]


class Site:
    """A supervisor that runs, the port of its workers, and who was reaped."""

    def __init__(self, behaviour: str, workers: int, **limits: float) -> None:
        self.listeners = open_listeners("127.0.0.1", 0)
        self.port = self.listeners[0].getsockname()[1]
        self.log = Lines()
        self.reaped: list[str] = []
        hello = Hello(
            place=0,
            listeners=[one.fileno() for one in self.listeners],
            listen=("127.0.0.1", self.port),
            store="",
        )
        command = (sys.executable, stub.__file__, behaviour)
        self.supervisor = Supervisor(Plan(workers, command, hello, **limits), self.log, self.reap)
        self.status: int | None = None
        self.answers: list[int] = []
        self.failures: list[str] = []

    async def reap(self, incarnation: str) -> None:
        self.reaped.append(incarnation)

    async def run(self) -> None:
        self.status = await self.supervisor.run()

    @property
    def ready(self) -> list[Worker]:
        return [worker for worker in self.supervisor.workers if worker.is_ready]

    async def ask(self, path: str = "/") -> int:
        """The process id of whoever answers."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            answer = b"".join([data async for data in stream])
        return int(answer.rpartition(b"\r\n")[2])

    async def keep_asking(self, path: str) -> None:
        """Clients without end; each failure is noted."""
        while True:
            try:
                self.answers.append(await self.ask(path))
            except (OSError, ValueError, trio.BrokenResourceError) as error:
                self.failures.append(repr(error))
            await trio.sleep(0.005)

    def counted(self) -> float:
        series = self.supervisor.totals.numbers()["stagedoor_http_responses_total"]
        return float(sum(cell for cell in series.values() if not isinstance(cell, list)))


@asynccontextmanager
async def supervised(behaviour: str = "serve", workers: int = 2, **limits: float) -> AsyncIterator[Site]:
    site = Site(behaviour, workers, **limits)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(site.run)
            yield site
            site.supervisor.stop("the test is over")
    close_listeners(site.listeners)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.sleep(0.01)


async def test_workers_answer_on_one_port_and_drain_together() -> None:
    async with supervised() as site:
        await until(lambda: len(site.ready) == 2)
        found = {worker.pid for worker in site.ready}
        seen: set[int] = set()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(site.keep_asking, stub.SLOW)
            await until(lambda: seen.update(site.answers) or seen == found)
            nursery.cancel_scope.cancel()
    assert site.status == 0
    assert not site.supervisor.workers
    assert not site.failures


async def test_a_killed_worker_is_replaced_at_once_and_its_counters_stay() -> None:
    async with supervised() as site:
        await until(lambda: len(site.ready) == 2)
        for _ in range(20):
            await site.ask()
        await site.supervisor.look()
        assert site.counted() == 20
        victim = site.ready[0]
        os.kill(victim.pid, signal.SIGKILL)
        await victim.ended.wait()
        assert site.counted() == 20
        await until(lambda: len(site.ready) == 2)
        assert victim.pid not in {worker.pid for worker in site.ready}
        await site.ask()
        await site.supervisor.look()
        assert site.counted() == 21
    (died,) = site.log.of("worker_died")
    assert (died["worker"], died["pid"]) == (victim.place, victim.pid), "by the number that its own lines have"
    assert (died["restart_in"], died["status"]) == (0, -signal.SIGKILL)
    assert site.reaped == [f"of-{victim.pid}"], "of those that drained, nobody's lease is ended"
    assert site.supervisor.deaths == 1


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), None])
async def test_a_lease_that_can_t_be_ended_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    async def fails(*_: Any, **__: Any) -> bool:
        if fault is not None:
            raise fault
        return False

    monkeypatch.setattr(trio.to_thread, "run_sync", fails)
    log = Lines()
    await reap("redis://nowhere", log, "of-the-dead")
    assert len(log.of("lease_not_ended")) == 1


async def test_connections_that_wait_while_no_worker_runs_are_served_by_the_next() -> None:
    async with supervised(workers=1) as site:
        await until(lambda: site.ready)
        os.kill(site.ready[0].pid, signal.SIGKILL)
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await site.ask())

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert len(answers) == 20


async def test_one_that_dies_again_and_again_is_waited_for_and_the_others_go_on(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    async with supervised(str(broken)) as site:
        await until(lambda: len(site.ready) == 2)
        broken.touch()
        os.kill(site.ready[0].pid, signal.SIGKILL)
        await until(lambda: len(site.log.of("worker_died")) >= 3)
        delays = [line["restart_in"] for line in site.log.of("worker_died")]
        assert delays[:3] == [0, 1, 2]
        assert await site.ask() == site.ready[0].pid
        broken.unlink()
        await until(lambda: len(site.ready) == 2)


async def test_one_that_was_never_ready_has_not_lived_however_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "STEADY", 0.01)
    broken = tmp_path / "broken"
    async with supervised(str(broken)) as site:
        await until(lambda: len(site.ready) == 2)
        broken.touch()
        os.kill(site.ready[0].pid, signal.SIGKILL)
        await until(lambda: len(site.log.of("worker_died")) >= 3)
        assert [line["restart_in"] for line in site.log.of("worker_died")][:3] == [0, 1, 2]


async def test_one_that_stands_still_is_not_ready_and_is_again_when_it_goes_on() -> None:
    async with supervised(silent_within=PATIENCE) as site:
        await until(lambda: len(site.ready) == 2)
        before = {worker.pid for worker in site.ready}
        for worker in site.supervisor.workers:
            os.kill(worker.pid, signal.SIGSTOP)
        await until(lambda: not site.ready)
        assert await site.supervisor.ask("end", "abc", {}) == (503, {"error": "no worker answers"})
        with trio.fail_after(LOOK_WITHIN):
            await site.supervisor.look()  # of whoever is not heard of nobody waits for a word
        for worker in site.supervisor.workers:
            os.kill(worker.pid, signal.SIGCONT)
        await until(lambda: {worker.pid for worker in site.ready} == before)
    assert site.supervisor.deaths == 0


async def test_one_that_stands_still_for_long_is_replaced() -> None:
    began = trio.current_time()
    async with supervised(silent_within=4.0) as site:
        await until(lambda: len(site.ready) == 2)
        victim = site.ready[0]
        os.kill(victim.pid, signal.SIGSTOP)
        await victim.ended.wait()
        assert victim.lived <= trio.current_time() - began - 4.0, "to stand still is not to live"
        await until(lambda: len(site.ready) == 2)
        assert victim.pid not in {worker.pid for worker in site.ready}
        assert -signal.SIGKILL in [line["status"] for line in site.log.of("worker_died")]
        assert f"of-{victim.pid}" in site.reaped


class Mortal:
    """In place of a process."""

    def __init__(self) -> None:
        self.killed: float | None = None

    def kill(self) -> None:
        self.killed = trio.current_time()


async def silence(of: Worker, mortal: Mortal) -> None:
    await of.kill_if_silent(mortal)  # type: ignore[arg-type]


def lonely() -> Worker:
    return Worker(0, Plan(1, (), Hello(place=0, listeners=[], listen=("", 0), store="")), lambda worker: None)


async def test_ten_seconds_without_a_word_are_the_end(autojump_clock: Any) -> None:
    worker, mortal = lonely(), Mortal()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silence, worker, mortal)
        await trio.sleep(50)
        assert mortal.killed is None, "it is not ready yet, for which there is another limit"
        await worker.heard(State(ready=True))
        for _ in range(100):
            await trio.sleep(1)
            await worker.heard(State(ready=True))
        began = trio.current_time()
        assert not worker.silent
        await trio.sleep(4)
        assert worker.silent
        assert mortal.killed is None
    assert mortal.killed is not None
    assert 9 <= mortal.killed - began <= 10


async def test_a_standstill_of_the_supervisor_is_none_of_its_workers(mock_clock: Any) -> None:
    worker, mortal = lonely(), Mortal()
    await worker.heard(State(ready=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silence, worker, mortal)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3600)  # it was stopped; what its workers said meanwhile is read in the next moment
        await trio.testing.wait_all_tasks_blocked()
        assert mortal.killed is None
        assert not worker.silent
        nursery.cancel_scope.cancel()


async def test_a_look_that_was_answered_is_over_whatever_is_said_next() -> None:
    worker = lonely()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.look)
            await trio.testing.wait_all_tasks_blocked()
            for answers in (1, 0):
                await worker.heard(State(ready=True, answers=answers))


async def test_where_none_was_ever_ready_it_gives_up_with_the_status_of_the_first() -> None:
    site = Site("fail", 2)
    with trio.fail_after(PATIENCE):
        await site.run()
    close_listeners(site.listeners)
    assert site.status == 3
    assert not site.supervisor.workers


async def test_one_that_is_never_ready_is_killed() -> None:
    site = Site("mute", 1, ready_within=1.0)
    with trio.fail_after(PATIENCE):
        await site.run()
    close_listeners(site.listeners)
    assert site.status == 1


async def test_one_that_does_not_drain_is_killed_and_the_status_says_so() -> None:
    async with supervised("stay", end_within=0.5) as site:
        await until(lambda: len(site.ready) == 2)
    assert site.status == 1
    assert not site.supervisor.workers


async def test_one_whose_drain_takes_longer_by_its_own_configuration_has_so_long() -> None:
    async with supervised("linger", end_within=0.5) as site:
        await until(lambda: len(site.ready) == 2)
    assert site.status == 0


async def test_the_word_to_drain_is_said_however_much_else_was_asked() -> None:
    async with supervised(workers=1, silent_within=PATIENCE, end_within=PATIENCE) as site:
        await until(lambda: site.ready)
        (worker,) = site.ready
        os.kill(worker.pid, signal.SIGSTOP)
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(worker.look)
                    await trio.sleep(0)
        site.supervisor.stop("the test is over")
        os.kill(worker.pid, signal.SIGCONT)
    assert site.status == 0


async def test_a_rolling_restart_replaces_all_and_no_request_fails() -> None:
    async with supervised() as site:
        await until(lambda: len(site.ready) == 2)
        former = {worker.pid for worker in site.ready}
        async with trio.open_nursery() as nursery:
            for path in ("/", stub.SLOW) * 4:
                nursery.start_soon(site.keep_asking, path)
            least = 2
            site.supervisor.roll()
            while not site.log.of("rolling_restart_done"):
                least = min(least, len(site.ready))
                await trio.sleep(0.005)
            asked = len(site.answers)
            await until(lambda: len(site.answers) > asked + 50)
            nursery.cancel_scope.cancel()
        assert least == 2, "the new one is ready before the old one drains"
        assert not site.failures
        assert not former & {worker.pid for worker in site.supervisor.workers}
        assert len(site.ready) == 2
        assert set(site.answers) > former
    assert site.supervisor.deaths == 0


async def test_a_second_rolling_restart_while_one_runs_begins_once_more() -> None:
    async with supervised(workers=1) as site:
        await until(lambda: site.ready)
        site.supervisor.roll()
        await until(lambda: len(site.supervisor.workers) == 2)
        site.supervisor.roll()
        site.supervisor.roll()
        await until(lambda: len(site.log.of("rolling_restart_done")) == 2)
        assert len(site.ready) == 1


async def test_a_rolling_restart_whose_new_worker_fails_leaves_the_old_ones(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    async with supervised(str(broken)) as site:
        await until(lambda: len(site.ready) == 2)
        former = [worker.pid for worker in site.ready]
        broken.touch()
        site.supervisor.roll()
        await until(lambda: site.log.of("rolling_restart_failed"))
        assert [worker.pid for worker in site.ready] == former
        broken.unlink()
        site.supervisor.roll()
        await until(lambda: site.log.of("rolling_restart_done"))


async def test_a_rolling_restart_without_a_process_to_be_had_leaves_the_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async with supervised() as site:
        await until(lambda: len(site.ready) == 2)
        former = [worker.pid for worker in site.ready]
        descriptors = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "open_process", fails)
            for times in (1, 2, 3):
                site.supervisor.roll()
                await until(lambda times=times: len(site.log.of("rolling_restart_failed")) == times)
        assert [worker.pid for worker in site.ready] == former
        assert len(os.listdir("/proc/self/fd")) == descriptors
        site.supervisor.roll()
        await until(lambda: site.log.of("rolling_restart_done"))


@pytest.mark.parametrize("when", ["a new one starts", "an old one drains"])
async def test_the_word_to_stop_during_a_rolling_restart_ends_all_in_order(when: str) -> None:
    async with supervised("linger") as site:
        await until(lambda: len(site.ready) == 2)
        site.supervisor.roll()
        await until(lambda: len(site.supervisor.workers) == 3)
        if when == "an old one drains":
            await until(lambda: any(worker.draining for worker in site.supervisor.workers))
        site.supervisor.stop("the test is over")
        await until(lambda: site.status is not None)
        assert site.status == 0
        assert not site.supervisor.workers
        assert not site.log.of("rolling_restart_done")


async def test_a_rolling_restart_while_a_dead_worker_is_waited_for_leaves_as_many_as_there_should_be(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken"
    async with supervised(str(broken)) as site:
        await until(lambda: len(site.ready) == 2)
        broken.touch()
        os.kill(site.ready[0].pid, signal.SIGKILL)
        await until(lambda: len(site.log.of("worker_died")) == 3)
        former = {worker.pid for worker in site.ready}
        broken.unlink()
        site.supervisor.roll()
        await until(lambda: site.log.of("rolling_restart_done"))
        await until(lambda: len(site.ready) == 2)
        await trio.sleep(2 * FIRST + 0.5)  # longer than the dead one's place was to stay empty
        assert len(site.supervisor.workers) == 2
        assert not former & {worker.pid for worker in site.supervisor.workers}


async def test_a_worker_killed_during_a_rolling_restart_leaves_as_many_as_there_should_be() -> None:
    async with supervised() as site:
        await until(lambda: len(site.ready) == 2)
        former = site.ready
        site.supervisor.roll()
        await until(lambda: len(site.supervisor.workers) == 3)
        os.kill(former[0].pid, signal.SIGKILL)
        await until(lambda: site.log.of("rolling_restart_done"))
        await until(lambda: len(site.supervisor.workers) == 2)
        assert not {worker.pid for worker in former} & {worker.pid for worker in site.supervisor.workers}


async def test_a_second_word_to_stop_ends_all_at_once() -> None:
    async with supervised("stay") as site:
        await until(lambda: len(site.ready) == 2)
        workers = site.supervisor.workers
        site.supervisor.stop("first")
        site.supervisor.kill()
        await until(lambda: site.status is not None)
        assert site.status == 1
        assert all(worker.ended.is_set() for worker in workers)


async def test_what_is_asked_of_sessions_goes_to_the_worker_that_has_them_else_to_any() -> None:
    async with supervised() as site:
        assert await site.supervisor.ask("list", "", {}) == (503, {"error": "no worker answers"})
        await until(lambda: len(site.ready) == 2)
        for worker in site.ready:
            assert worker.state is not None
            cursor = f"{worker.state.incarnation}:7"
            expected = {"pid": worker.pid, "what": "list", "name": "", "cursor": cursor}
            assert await site.supervisor.ask("list", "", {"cursor": cursor}) == (200, expected)
        assert (await site.supervisor.ask("end", "abc", {}))[1]["name"] == "abc"


async def test_a_session_is_moved_from_the_worker_that_has_it_to_another() -> None:
    async with supervised() as site:
        await until(lambda: len(site.ready) == 2)
        one, two = site.ready
        taken = {"pid": two.pid, "what": "take", "name": one.incarnation}
        assert await site.supervisor.ask("move", one.incarnation, {}) == (200, taken)
        assert await site.supervisor.ask("move", one.incarnation, {"to": two.incarnation}) == (200, taken)
        status, body = await site.supervisor.ask("move", "of-another-machine", {"to": two.incarnation})
        assert (status, body["what"], body["pid"]) == (200, "move", two.pid)
        for to in (one.incarnation, "elsewhere"):
            status, body = await site.supervisor.ask("move", one.incarnation, {"to": to})
            assert (status, body["what"], body["pid"]) == (200, "move", one.pid), "its own worker knows"


async def test_a_worker_that_dies_while_it_is_asked_is_an_answer() -> None:
    async with supervised(workers=1) as site:
        await until(lambda: site.ready)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await site.supervisor.ask("end", "nobody", {}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.1)
            os.kill(site.ready[0].pid, signal.SIGKILL)
        assert answers == [(503, {"error": "no worker answers"})]


SUPERVISE = """
import socket, sys, trio
from gateway.http.sockets import open_listeners
from gateway.workers import backoff
from gateway.workers.backoff import FIRST
from gateway.workers.channel import Hello, State
from gateway.workers.supervisor import LOOK_WITHIN, Supervisor
from gateway.workers.worker import Plan
import structlog

listeners = open_listeners("127.0.0.1", 0)
hello = Hello(place=0, listeners=[one.fileno() for one in listeners], listen=("127.0.0.1", 0), store="")

async def nothing(incarnation):
    pass

async def main():
    supervisor = Supervisor(Plan(2, (sys.executable, sys.argv[1], "serve"), hello), structlog.get_logger(), nothing)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        while sum(worker.is_ready for worker in supervisor.workers) < 2:
            await trio.sleep(0.01)
        print("workers", *(worker.pid for worker in supervisor.workers), flush=True)

trio.run(main)
"""


@pytest.fixture
def supervisor_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SUPERVISE, stub.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield process
        process.kill()


def test_workers_end_when_their_supervisor_was_killed(supervisor_process: subprocess.Popen[str]) -> None:
    assert supervisor_process.stdout is not None
    words = next(line for line in supervisor_process.stdout if line.startswith("workers")).split()
    workers = [int(word) for word in words[1:]]
    assert len(workers) == 2
    supervisor_process.kill()
    end = time.monotonic() + PATIENCE
    while any(runs(worker) for worker in workers):
        assert time.monotonic() < end, "they outlived it"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_sockets_are_the_supervisor_s_and_it_takes_nothing_from_them() -> None:
    site = Site("serve", 1)
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(site.run)
                await site.supervisor.served.wait()
                await trio.to_thread.run_sync(client.recv, 1)
                site.supervisor.stop("done")

        trio.run(main)
    close_listeners(site.listeners)
    assert site.status == 0
