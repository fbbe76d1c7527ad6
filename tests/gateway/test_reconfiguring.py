"""When the configuration is read anew, one after the other, and what is left where it can't be used."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.protocol.table import Limits
from gateway.app import Gateway
from gateway.config import Address, Settings, load
from gateway.config.changes import digests
from gateway.observability.lag import Lag
from gateway.reconfiguring import LOOK, Reloads, put_in_force, same_natives
from gateway.roles import Alone
from tests.support.certificates import Authority
from tests.support.harness import RecordingLog, RecordingTelemetry

RELOADS = "stagedoor_reloads_total"


class Site:
    """A file, and what was put in force of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "c.json"
        self.log, self.telemetry = RecordingLog(), RecordingTelemetry()
        self.applied: list[Settings] = []
        self.refuses = ""
        self.gate = trio.Event()
        self.gate.set()
        self.write()
        self.reloads = Reloads(load(self.file).settings, self.log, self.telemetry, self.apply)

    def write(self, gateway: dict[str, Any] | None = None, **servers: Any) -> None:
        found = {name: {"command": command} for name, command in servers.items()}
        self.file.write_text(json.dumps({"mcpServers": found, "gateway": gateway or {}}))

    async def apply(self, settings: Settings) -> str:
        await self.gate.wait()
        if not self.refuses:
            self.applied.append(settings)
        return self.refuses

    @property
    def good(self) -> float:
        return self.telemetry.gauges["stagedoor_last_reload_successful", ()]

    def outcomes(self) -> dict[str, int]:
        return {labels[0]: n for (name, labels), n in self.telemetry.counts.items() if name == RELOADS}


@asynccontextmanager
async def running(site: Site, *, watch: bool = False) -> AsyncIterator[Site]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.reloads.run)
        if watch:
            nursery.start_soon(site.reloads.watch)
        yield site
        nursery.cancel_scope.cancel()


async def reload(site: Site) -> None:
    """Asks for it, and waits until that is done."""
    before = sum(site.outcomes().values())
    site.reloads.request()
    with trio.fail_after(60):
        while sum(site.outcomes().values()) == before:
            await trio.sleep(0.01)


async def test_what_stands_in_the_file_is_put_in_force_and_told(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        site.write(a="one")
        await reload(site)
        assert list(site.applied[0].table.backends) == ["a"]
        assert site.log.events("configuration_reloaded") == [{"added": ["a"]}]
        await reload(site)
        assert (len(site.applied), site.outcomes()) == (1, {"reloaded": 1, "unchanged": 1})


async def test_what_needs_a_restart_is_told_as_long_as_the_file_has_it_and_no_longer(tmp_path: Path) -> None:
    def needs_restart() -> list[list[str]]:
        return [line["keys"] for line in site.log.events("needs_restart")]

    async with running(Site(tmp_path)) as site:
        other = {"listen": "127.0.0.1:9000", "limits": {"messageBytes": 5000}}
        site.write(other)
        await reload(site)
        site.write(other, a="one")
        await reload(site)
        assert needs_restart() == [["gateway.limits.messageBytes", "gateway.listen"]] * 2
        key = bytes.fromhex(site.reloads.compare(None)[1]["key"])
        told = site.reloads.compare(digests(site.reloads.settings.values, key))[1]
        assert told == {"needs_restart": needs_restart()[0]}
        site.write(a="one")
        await reload(site)
        assert len(needs_restart()) == 2


async def test_what_can_not_be_used_changes_nothing(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        before = site.reloads.settings
        site.file.write_text('{"mcpServers": {"a": {"command": 5}}}')
        await reload(site)
        site.file.unlink()
        await reload(site)
        site.write(a="one")
        site.refuses = "worker 1: no"
        await reload(site)
        assert (site.applied, site.reloads.settings) == ([], before)
        first, second, third = [line["error"] for line in site.log.events("configuration_refused")]
        assert "mcpServers.a.command: must be text" in first
        assert "No such file" in second
        assert third == "worker 1: no"
        assert site.good == 0.0
        site.refuses = ""
        await reload(site)
        assert site.good == 1.0
        assert site.outcomes() == {"refused": 3, "reloaded": 1}


@pytest.mark.parametrize(("anonymous", "outcome"), [(False, "refused"), (True, "reloaded")])
async def test_a_file_without_its_tokens_opens_nothing_where_others_can_reach(
    tmp_path: Path, anonymous: bool, outcome: str
) -> None:
    async with running(Site(tmp_path)) as site:
        auth: dict[str, Any] = {"tokens": {"ann": "0123456789012345678901"}}
        site.file.write_text(json.dumps({"gateway": {"auth": auth}}))
        started = replace(load(site.file).settings, listen=Address("192.0.2.1", 80))  # by an option
        site.reloads = Reloads(started, site.log, site.telemetry, site.apply)
        site.reloads.request()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(site.reloads.run)
            site.file.write_text(json.dumps({"gateway": {"auth": {"anonymous": True} if anonymous else {}}}))
            await reload(site)
            nursery.cancel_scope.cancel()
        assert site.outcomes() == {outcome: 1}
        assert len(site.applied) == int(anonymous)


async def test_what_could_not_be_served_after_a_restart_is_not_put_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = Authority(tmp_path).issue("gateway")
    monkeypatch.setattr("gateway.config.settings._readable", lambda file: file != issued.key)
    async with running(Site(tmp_path)) as site:
        site.write({"tls": {"cert": str(issued.certificate), "key": str(issued.key)}})
        await reload(site)
        assert (site.outcomes(), site.applied) == ({"refused": 1}, [])
        (told,) = site.log.events("configuration_refused")
        assert f"can't read {issued.key}" in told["error"]


async def test_a_module_that_fails_when_it_is_imported_is_a_bad_file_too(tmp_path: Path) -> None:
    (tmp_path / "broken_at_import.py").write_text("raise RuntimeError('on purpose')")
    async with running(Site(tmp_path)) as site:
        site.file.write_text('{"mcpServers": {"a": {"native": "broken_at_import.py:server"}}}')
        await reload(site)
        (told,) = site.log.events("configuration_refused")
        assert told["error"] == "RuntimeError: on purpose"


async def test_what_is_asked_for_meanwhile_is_done_once_more_and_never_at_the_same_time(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        site.gate = trio.Event()
        site.write(a="one")
        site.reloads.request()
        with trio.fail_after(60):
            while not site.gate.statistics().tasks_waiting:
                await trio.sleep(0.01)
        site.write(a="two")
        for _ in range(3):
            site.reloads.request()
        site.gate.set()
        with trio.fail_after(60):
            while len(site.applied) < 2:
                await trio.sleep(0.01)
        commands = [settings.table.backends["a"].target.command for settings in site.applied]  # type: ignore[union-attr]
        assert commands == ["one", "two"]


async def test_without_a_file_there_is_nothing_to_read(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.reloads.settings = Settings(site.reloads.settings.table)
    site.reloads.request()
    assert site.log.events("reload_ignored")
    await site.reloads.watch()  # ends at once
    await wait_all_tasks_blocked()


async def test_a_file_that_is_watched_counts_when_nobody_writes_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    site = Site(tmp_path)

    async def here(call: Any, *given: Any, **_: Any) -> Any:  # on the clock that jumps there are no threads
        await trio.lowlevel.checkpoint()
        return call(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    async with running(site, watch=True):
        await trio.sleep(5 * LOOK)
        assert site.outcomes() == {}
        for n in range(5):  # one that grows is left alone
            site.file.write_text("{" + " " * n)
            await trio.sleep(LOOK)
        assert site.outcomes() == {}
        await trio.sleep(5 * LOOK)
        assert site.outcomes() == {"refused": 1}  # once, however long it stands there
        site.file.unlink()
        await trio.sleep(5 * LOOK)
        site.write(a="one")
        await trio.sleep(5 * LOOK)
        assert site.outcomes() == {"refused": 1, "reloaded": 1}
        site.file.touch()
        await trio.sleep(5 * LOOK)
        assert site.outcomes() == {"refused": 1, "reloaded": 1}


async def test_what_is_in_force_is_told_to_be_so_when_it_stands_in_the_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Who takes back what was refused has mended the file, and is told so."""
    site = Site(tmp_path)

    async def here(call: Any, *given: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    text = site.file.read_text()
    async with running(site, watch=True):
        for n in (1, 2):
            site.file.write_text("{")
            await trio.sleep(5 * LOOK)
            assert (site.outcomes()["refused"], site.good) == (n, 0.0)
            site.file.write_text(text)
            await trio.sleep(5 * LOOK)
            assert (site.outcomes()["unchanged"], site.good) == (n, 1.0)


async def test_secrets_are_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    (tmp_path / "key").write_text("first\n")
    site = Site(tmp_path)

    async def here(call: Any, *given: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    site.file.write_text('{"mcpServers": {"a": {"command": "x", "env": {"KEY": "${file:key}"}}}}')
    async with running(site, watch=True):
        await trio.sleep(5 * LOOK)
        (tmp_path / "key").write_text("second\n")
        await trio.sleep(5 * LOOK)
        assert [s.table.backends["a"].target.env for s in site.applied] == [(("KEY", "first"),), (("KEY", "second"),)]  # type: ignore[union-attr]
        assert site.log.events("configuration_reloaded")[1] == {"changed": {"a": ["env.KEY"]}}


async def test_what_was_accepted_meanwhile_is_put_in_force_and_a_broken_lock_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    site, lock = Site(tmp_path), tmp_path / "stagedoor.lock"

    async def here(call: Any, *given: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    site.write(a="one")
    async with running(site, watch=True):
        await trio.sleep(5 * LOOK)
        for text in (LOCK % "read", LOCK % "write", "{"):
            lock.write_text(text)
            await trio.sleep(5 * LOOK)
        pins = [settings.table.backends["a"].pins for settings in site.applied]
        assert [one and [n for n in ("read", "write") if one.allows("tool", n)] for one in pins] == [
            None,
            ["read"],
            ["write"],
        ]
        assert site.log.events("configuration_reloaded")[2] == {"settings": ["gateway.pins.content"]}
        (refused,) = site.log.events("configuration_refused")
        assert "stagedoor.lock can't be used" in refused["error"]


async def test_a_lock_file_is_read_anew_only_where_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """However its lines end, and never from a pipe."""
    lock = tmp_path / "stagedoor.lock"
    lock.write_bytes((LOCK % "read").encode() + b"\r\n")
    site = Site(tmp_path)

    async def here(call: Any, *given: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    async with running(site, watch=True):
        await trio.sleep(5 * LOOK)
        assert site.outcomes() == {}
        lock.unlink()
        os.mkfifo(lock)
        await trio.sleep(5 * LOOK)
        assert site.outcomes() == {"refused": 1}


LOCK = '{"version":2,"servers":{"a":{"v":1,"lists":{"tools/list":[{"name":"%s"}]}}}}'


def test_a_server_of_this_process_that_is_configured_as_before_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "made_here.py").write_text("import stagedoor\n\ndef server():\n    return stagedoor.Server('x')\n")
    file = tmp_path / "c.json"

    def read(**more: Any) -> Settings:
        file.write_text(json.dumps({"mcpServers": {"a": {"native": "made_here.py", **more}}}))
        return load(file).settings

    before, after, other = read(), read(disabledTools=["x"]), read(native="made_here.py:server")
    assert before.table.backends["a"].target != after.table.backends["a"].target
    kept = same_natives(before, after).backends["a"]
    assert kept.target == before.table.backends["a"].target
    assert kept.disabled_tools == ("x",)
    assert same_natives(before, other).backends["a"].target == other.table.backends["a"].target


async def test_a_gateway_that_drains_puts_nothing_in_force(tmp_path: Path) -> None:
    site = Site(tmp_path)
    before = load(site.file).settings
    gateway = Gateway(before, site.log, Lag(), Alone(before, lambda settings: None))
    gateway.serves.set()
    gateway.stop("SIGTERM")
    site.write(a="one")
    assert await gateway.reconfigure(load(site.file).settings) == "the gateway is draining"
    assert gateway.settings is before


def test_who_may_come_in_is_looked_at_anew_when_rules_ask_about_another_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.reconfiguring.configure", lambda *_: None)
    file, admitted = tmp_path / "stagedoor.json", list[frozenset[str]]()

    def settings(*rules: dict[str, Any]) -> Settings:
        auth = {"issuers": [{"issuer": "https://idp.test"}]}
        gateway = {"auth": auth, "policy": rules}
        file.write_text(json.dumps({"mcpServers": {"a": {"command": "a"}}, "gateway": gateway}))
        return load(file).settings

    nothing = lambda *_: None  # noqa: E731
    actors = SimpleNamespace(
        services=SimpleNamespace(limits=Limits()), replace_limits=nothing, replace_table=nothing, prestart=()
    )
    app = SimpleNamespace(bound_by=nothing, admit=lambda security, claims: admitted.append(claims))
    gateway: Any = SimpleNamespace(
        settings=settings({"allow": ["a:*"]}),
        actors=actors,
        app=app,
        secrets=SimpleNamespace(know=nothing),
        duplex=None,
        authorize=lambda settings: settings.table.policy.claims,
        invitations=lambda: None,
    )
    put_in_force(gateway, settings({"allow": ["a:x"]}))
    assert admitted == []
    put_in_force(gateway, settings({"allow": ["a:x"], "when": "claims.level == 1"}))
    put_in_force(gateway, settings({"allow": ["a:y"], "when": "claims.level == 2"}))
    assert admitted == [{"level"}]
