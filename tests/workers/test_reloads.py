"""A reload and what can happen to workers meanwhile, with workers that are no processes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.config import load
from gateway.config.snapshot import Snapshot
from gateway.reconfiguring import Reloads
from gateway.supervising import reload, renewed
from gateway.workers import supervisor as module
from gateway.workers.channel import Hello
from gateway.workers.supervisor import Supervisor
from gateway.workers.worker import Plan
from tests.support.harness import RecordingLog, RecordingTelemetry
from tests.support.patience import PATIENCE


class Puppet:
    """A worker that does what a test says: `dies` ends it, `answers` lets it answer questions about configurations."""

    made: list[Puppet]

    def __init__(self, place: int, plan: Plan, on_state: Any) -> None:
        self.place, self.pid, self.state = place, len(self.made) + 1, None
        self.begins_with = plan.hello.config
        self.in_force = self.begins_with
        self.asked: list[tuple[bytes, bool]] = []
        self.draining = self.silent = self.is_ready = False
        self.incarnation, self.lived = "", 100.0
        self.ready, self.ended, self.dies = trio.Event(), trio.Event(), trio.Event()
        self.answers = trio.Event()
        self.answers.set()
        self.gets_ready = True
        self._on_state = on_state
        self.made.append(self)

    async def run(self) -> int:
        if self.gets_ready:
            self.is_ready = True
            self.ready.set()
            self._on_state(self)
        await self.dies.wait()
        self.is_ready = False
        self.ended.set()
        self.ready.set()
        return 0 if self.draining else 1

    def drain(self, reason: str) -> None:
        self.draining = True
        self.dies.set()

    async def reload(self, config: bytes, *, commit: bool) -> tuple[int, dict[str, Any]] | None:
        self.asked.append((config, commit))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._unless_ended, nursery.cancel_scope)
            await self.answers.wait()
            nursery.cancel_scope.cancel()
        if self.ended.is_set():
            return None
        if commit:
            self.in_force = config
        return 200, {}

    async def _unless_ended(self, scope: trio.CancelScope) -> None:
        await self.ended.wait()
        scope.cancel()


class Late(Puppet):
    """One that is not ready before a test says so."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gets_ready = False


class Site:
    """A supervisor of puppets and its file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "c.json"
        self.write("one")
        settings = load(self.file).settings
        self.log = RecordingLog()
        assert settings.source is not None
        hello = Hello(place=0, listeners=[], listen=("127.0.0.1", 1), store="", config=settings.source.encoded())
        self.told: list[dict[str, Any]] = []
        plan = Plan(2, ("none",), hello)
        self.supervisor = Supervisor(plan, self.log, self.reap, self.fresh, lambda **told: self.told.append(told))
        self.telemetry = RecordingTelemetry()
        self.reloads = Reloads(settings, self.log, self.telemetry, partial(reload, self.supervisor))

    @property
    def good(self) -> float:
        return self.telemetry.gauges["stagedoor_last_reload_successful", ()]

    async def reap(self, incarnation: str) -> None:
        raise AssertionError(incarnation)

    async def fresh(self) -> Any:
        return await renewed(self.reloads, self.supervisor)

    def write(self, command: str, **gateway: Any) -> None:
        self.file.write_text(json.dumps({"mcpServers": {"a": {"command": command}}, "gateway": gateway}))

    def in_force(self) -> list[str]:
        """By which file each of those that run goes."""
        return [command_of(worker.in_force) for worker in self.running]

    @property
    def running(self) -> list[Puppet]:
        return [worker for worker in Puppet.made if not worker.ended.is_set()]


def command_of(config: bytes) -> str:
    return str(json.loads(Snapshot.decoded(config).text)["mcpServers"]["a"]["command"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    Puppet.made = []
    monkeypatch.setattr(module, "Worker", Puppet)
    return Site(tmp_path)


@asynccontextmanager
async def run(site: Site) -> AsyncIterator[list[Puppet]]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.supervisor.run)
        nursery.start_soon(site.reloads.run)
        await wait_all_tasks_blocked()
        yield Puppet.made
        site.supervisor.stop("the test is over")
        await until(lambda: not site.running)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    """The file is read by a thread, which takes real time."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.002)


async def test_one_that_dies_between_the_looks_and_the_word_is_followed_by_one_with_the_new_file(site: Site) -> None:
    async with run(site) as (first, second):
        site.write("two")
        second.answers = trio.Event()
        site.reloads.request()
        await until(lambda: first.asked)
        first.dies.set()
        second.answers.set()
        await until(lambda: site.reloads.outcome == "reloaded")
        await until(lambda: len(site.running) == 2)
        assert site.in_force() == ["two", "two"]
        assert first not in site.running
        assert site.log.events("configuration_not_applied") == []


async def test_one_that_is_started_while_the_others_look_is_told_the_word_too(site: Site) -> None:
    async with run(site) as (first, second):
        site.write("two")
        second.answers = trio.Event()
        site.reloads.request()
        await until(lambda: second.asked)
        first.dies.set()
        await until(lambda: len(Puppet.made) == 3)
        assert command_of(Puppet.made[2].begins_with) == "one"
        second.answers.set()
        await until(lambda: site.reloads.outcome == "reloaded")
        assert site.in_force() == ["two", "two"]


async def test_one_that_stands_still_as_the_word_is_given_hears_it_when_it_goes_on(site: Site) -> None:
    async with run(site) as (_, second):
        site.write("two")
        second.silent, second.answers = True, trio.Event()
        site.reloads.request()
        await until(lambda: site.in_force()[0] == "two")
        await wait_all_tasks_blocked()
        second.silent = False
        second.answers.set()
        await until(lambda: site.reloads.outcome == "reloaded")
        assert site.in_force() == ["two", "two"]


async def test_a_rolling_restart_waits_for_the_reload_and_begins_with_what_stands_in_the_file_then(site: Site) -> None:
    async with run(site) as (first, _):
        site.write("two")
        first.answers = trio.Event()
        site.reloads.request()
        await until(lambda: first.asked)
        site.supervisor.roll()
        await until(lambda: site.log.events("rolling_restart"))
        await wait_all_tasks_blocked()
        assert len(Puppet.made) == 2, "none is replaced before it is known by what"
        site.write("three")
        first.answers.set()
        await until(lambda: site.log.events("rolling_restart_done"))
        assert [command_of(worker.begins_with) for worker in site.running] == ["three", "three"]
        assert site.told == [{"action": "roll", "outcome": "done"}]
        site.reloads.request()
        await until(lambda: site.reloads.outcome == "unchanged")


async def test_a_rolling_restart_is_the_next_start_for_all_but_what_the_supervisor_has(site: Site) -> None:
    async with run(site):
        supervised = {"listen": "127.0.0.1:9000", "audit": {"file": "trail"}}
        site.write("two", **supervised, limits={"messageBytes": 5000})
        site.reloads.request()
        await until(lambda: site.log.events("needs_restart"))
        site.supervisor.roll()
        await until(lambda: site.log.events("rolling_restart_done"))
        assert len(site.log.events("needs_restart")) == 2, "it tells what it has not brought"
        site.write("three", **supervised, limits={"messageBytes": 5000})
        site.reloads.request()
        await until(lambda: len(site.log.events("needs_restart")) == 3)
        told = [line["keys"] for line in site.log.events("needs_restart")]
        still = ["gateway.audit.file", "gateway.listen"]
        assert told == [["gateway.audit.file", "gateway.limits.messageBytes", "gateway.listen"], still, still]


async def test_a_reload_in_the_middle_of_a_rolling_restart_reaches_those_that_run_and_those_that_come(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(site):
        monkeypatch.setattr(module, "Worker", Late)
        site.supervisor.roll()
        await until(lambda: len(Puppet.made) == 3)
        monkeypatch.setattr(module, "Worker", Puppet)
        site.write("two")
        site.reloads.request()
        await until(lambda: site.reloads.outcome == "reloaded")
        assert site.in_force() == ["two"] * 3
        Puppet.made[2].ready.set()
        await until(lambda: site.log.events("rolling_restart_done"))
        assert site.in_force() == ["two", "two"]


async def test_a_rolling_restart_tells_too_whether_the_file_could_be_used(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(site):
        site.file.write_text("{")
        site.supervisor.roll()
        await until(lambda: site.log.events("configuration_refused"))
        assert site.good == 0.0
        site.write("two")
        site.supervisor.roll()
        await until(lambda: site.log.events("rolling_restart_done"))
        assert site.good == 1.0
        monkeypatch.setattr(module, "Worker", Late)
        site.write("three")
        site.supervisor.roll()
        await until(lambda: command_of(Puppet.made[-1].begins_with) == "three")
        Puppet.made[-1].dies.set()
        await until(lambda: site.good == 0.0)


async def test_a_restart_that_fails_takes_back_its_file_but_not_that_of_a_reload_since(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(site):
        monkeypatch.setattr(module, "Worker", Late)
        site.write("two")
        site.supervisor.roll()
        await until(lambda: len(Puppet.made) == 3)
        late = Puppet.made[2]
        assert command_of(late.begins_with) == "two"
        monkeypatch.setattr(module, "Worker", Puppet)
        site.write("three")
        site.reloads.request()
        await until(lambda: site.reloads.outcome == "reloaded")
        late.dies.set()
        await until(lambda: site.log.events("rolling_restart_failed"))
        site.running[0].dies.set()
        await until(lambda: len(Puppet.made) == 4)
        assert site.in_force() == ["three", "three"]
        late, refused, died = site.told
        assert (late["action"], late["pid"], refused) == ("died", 3, {"action": "roll", "outcome": "refused"})
        assert (died["action"], died["reason"]) == ("died", "status 1")
    assert site.told[3:] == [{"action": "drain", "reason": "the test is over"}]


async def test_a_reload_during_a_drain_is_refused_and_changes_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Puppet, "drain", lambda self, reason: setattr(self, "draining", True))  # it takes its time
    async with run(site) as workers:
        site.supervisor.stop("SIGTERM")
        site.write("two")
        site.reloads.request()
        await until(lambda: site.reloads.outcome == "refused")
        assert [line["error"] for line in site.log.events("configuration_refused")] == ["the workers are draining"]
        assert [worker.asked for worker in workers] == [[], []]
        for worker in workers:
            worker.dies.set()
