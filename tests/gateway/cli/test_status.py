"""`stagedoor status`."""

import json
import time
from typing import Any

from gateway.cli.status import EVERY

REPLICA = {"incarnation": "abc", "alive": True, "asked": True, "host": "box", "pid": 7}
SERVERS = [
    {"name": "good", "status": "healthy", "era": "legacy", "connections": 2},
    {"name": "bad", "status": "down", "error": {"reason": "spawn_failed", "message": "no such program"}},
]


def pages() -> list[tuple[int, dict[str, Any]]]:
    def session(key: str, state: str) -> dict[str, Any]:
        return {"key": key, "state": state, "era": "legacy"}

    first = {"replicas": [REPLICA], "sessions": [session("a", "live"), session("b", "live")], "modern": 2}
    return [
        (200, {**first, "next": "other:"}),
        (200, {"sessions": [], "modern": 3, "next": "rest:"}),
        (200, {"sessions": [session("b", "live"), session("c", "at rest")], "modern": 0}),
    ]


def test_replicas_servers_and_sessions_are_shown(stagedoor, composition):
    composition.gateway, composition.told = SERVERS, pages()
    shown = stagedoor("status").stdout
    assert "abc" in shown
    assert "no such program" in shown
    assert [line.split() for line in shown.splitlines()[-3:]] == [
        ["at", "rest", "legacy", "1"],
        ["live", "legacy", "2"],
        ["live", "modern", "5"],
    ]


def test_programs_get_the_same_as_json(stagedoor, composition):
    composition.gateway, composition.told = SERVERS, pages()
    found = json.loads(stagedoor("status", "--json").stdout)
    assert found["replicas"] == [REPLICA]
    assert found["servers"] == SERVERS
    assert {"state": "live", "era": "legacy", "sessions": 2} in found["sessions"]


def test_without_a_gateway_it_fails(stagedoor, composition):
    result = stagedoor("status")
    assert result.exit_code == 1
    assert "no admin listener" in result.output


def test_watched_it_looks_again_until_it_is_interrupted(stagedoor, composition, monkeypatch):
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        composition.told = pages()
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    composition.gateway, composition.told = SERVERS, pages()
    shown = stagedoor("status", "--watch")
    assert waits == [EVERY] * 3
    assert shown.stdout.count("no such program") == 3
    assert (shown.exit_code, shown.stderr) == (0, ""), "that is how it ends"
