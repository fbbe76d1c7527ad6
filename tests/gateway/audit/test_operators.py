"""What the audit trail has of operators: what they did, and the configurations that came into force."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.ports import Asker, Principal
from gateway import app as module
from gateway.admin.app import FROM
from gateway.app import Gateway
from gateway.auditing import tell_configuration
from gateway.config import Settings, load
from gateway.observability.lag import Lag
from gateway.revoking import Revoked
from gateway.roles import Alone
from tests.support.harness import RecordingLog, open_gateway
from tests.support.mcp_backend import Backend
from tests.support.patience import PATIENCE
from tests.support.trail import Trail, watched

OPERATOR = {FROM: "127.0.0.1"}


@pytest.fixture
def trail() -> Trail:
    return Trail()


def composed(served: Any, settings: Settings) -> Gateway:
    """The composition over actors of a test."""
    gateway = Gateway(settings, RecordingLog(), Lag(), Alone(settings, lambda settings: None))
    gateway.actors = served.actors
    gateway.revoked = Revoked(served.store.shelf, served.actors, served.log, lambda: 1e9)
    return gateway


def settings(path: Path, **gateway: Any) -> Settings:
    path.write_text(json.dumps({"gateway": gateway}))
    return load(path).settings


async def test_what_an_operator_does_is_told_with_what_came_of_it(
    autojump_clock: MockClock, trail: Trail, tmp_path: Path
) -> None:
    async with open_gateway(Backend("alpha"), **watched(trail)) as served:
        gateway = composed(served, settings(tmp_path / "c.json"))
        client = await served.connect(principal=Principal("ann"))
        [key] = served.actors.sessions.table
        assert (await gateway.operate("list", "", {}))[0] == 200
        assert (await gateway.operate("end", key, OPERATOR))[0] == 200
        assert (await gateway.operate("end", "0" * 32, OPERATOR))[0] == 404
        assert (await gateway.operate("move", "nonsense", {**OPERATOR, "to": "r2"}))[0] == 400
        assert (await gateway.operate("revoke", "ann", OPERATOR))[0] == 200
        assert (await gateway.operate("restore", "ann", OPERATOR))[0] == 200
        assert [{k: v for k, v in line.items() if k not in ("event", "ip")} for line in trail.of("admin")] == [
            {"action": "end", "outcome": "done", "status": 200, "target": key[:12]},
            {"action": "end", "outcome": "refused", "status": 404, "target": "0" * 32},
            {"action": "move", "outcome": "refused", "status": 400, "target": "nonsense", "to": "r2"},
            {"action": "revoke", "outcome": "done", "status": 200, "target": "ann"},
            {"action": "restore", "outcome": "done", "status": 200, "target": "ann"},
        ]
        assert {line["ip"] for line in trail.of("admin")} == {"127.0.0.1"}
        assert client.session not in json.dumps(trail.lines)


async def test_who_has_no_access_any_more_does_not_come_to_the_page_of_accounts_by_his_token(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_gateway(Backend("alpha")) as served:
        gateway = composed(served, settings(tmp_path / "c.json", auth={"tokens": {"ann": "A" * 32}}))
        found = await gateway.who("A" * 32)
        assert found is not None
        assert found.principal.name == "ann"
        await gateway.operate("revoke", "ann", OPERATOR)
        assert await gateway.who("A" * 32) is None
        await gateway.operate("restore", "ann", OPERATOR)
        assert await gateway.who("A" * 32) == found


async def test_an_operator_does_nothing_that_could_not_be_written_down(
    autojump_clock: MockClock, trail: Trail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway(Backend("alpha"), **watched(trail)) as served:
        gateway = composed(served, settings(tmp_path / "c.json"))
        trail.full = True
        assert (await gateway.operate("revoke", "ann", OPERATOR))[0] == 503
        assert gateway.revoked is not None
        assert not gateway.revoked.revoked(Asker(Principal("ann"), issued=1.0))
        assert (await gateway.operate("list", "", {}))[0] == 200


async def test_that_the_trail_has_no_room_degrades(autojump_clock: MockClock, trail: Trail, tmp_path: Path) -> None:
    async with open_gateway(Backend("alpha"), **watched(trail)) as served:
        gateway = composed(served, settings(tmp_path / "c.json"))
        assert not gateway.readiness().degraded
        trail.full = True
        state = gateway.readiness()
        assert (state.ready, state.degraded, state.details["audit"]) == (True, True, "full")


def test_a_configuration_in_force_is_told_by_keys_and_digests_without_a_value(trail: Trail, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    before = settings(file, policyMode="observe", log={"level": "info"})
    after = settings(file, auth={"tokens": {"ann": "very-secret-token"}}, log={"level": "debug"})
    tell_configuration(trail, "started", "start", None, before)
    tell_configuration(trail, "reloaded", "signal", before, after)
    tell_configuration(trail, "refused", "files", None, after, "bad: very-secret-token is no token")
    started, reloaded, refused = trail.of("policy.reload")
    assert started == {"event": "policy.reload", "outcome": "started", "by": "start", "after": reloaded["before"]}
    assert (reloaded["outcome"], reloaded["by"]) == ("reloaded", "signal")
    assert reloaded["after"] != reloaded["before"]
    assert {"gateway.log.level", "gateway.policyMode"} <= set(reloaded["keys"])
    assert refused["problem"] == "bad: [redacted] is no token"
    assert "after" not in refused
    assert "very-secret-token" not in json.dumps(trail.lines)


async def reloaded(gateway: Gateway, outcome: str) -> None:
    with trio.fail_after(PATIENCE):
        while gateway.reloads.outcome != outcome:
            await trio.sleep(0.01)


async def test_the_gateway_tells_what_it_puts_in_force_and_what_it_refuses(
    trail: Trail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "put_in_force", lambda gateway, settings: setattr(gateway, "settings", settings))
    async with open_gateway(Backend("alpha"), **watched(trail)) as served:
        file = tmp_path / "c.json"
        gateway = composed(served, settings(file))
        gateway.serves.set()
        settings(file, log={"level": "debug"})
        served.nursery.start_soon(gateway.reloads.run)
        gateway.reloads.request()
        await reloaded(gateway, "reloaded")
        file.write_text("{")
        gateway.reloads.request("files")
        await reloaded(gateway, "refused")
        told = [(line["outcome"], line["by"], line.get("keys")) for line in trail.of("policy.reload")]
        assert told == [("reloaded", "signal", ["gateway.log.level"]), ("refused", "files", None)]
        assert str(file) in trail.of("policy.reload")[1]["problem"]
