"""`stagedoor sessions`, with an admin listener that says what the test wants."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

KEY = "ab" * 16
REPLICA = {"incarnation": "0123456789abcdef", "alive": True, "asked": True, "host": "vm", "pid": 7}


def entry(key: str = KEY, **more: Any) -> dict[str, Any]:
    return {
        "key": key,
        "handle": key[:12],
        "principal": "ada",
        "endpoint": "alpha",
        "era": "legacy",
        "revision": "2025-11-25",
        "state": "live",
        "owner": REPLICA["incarnation"],
        "idle": 12.4,
        "in_flight": 3,
        **more,
    }


def test_sessions_are_a_line_each_and_replicas_stand_on_standard_error(
    stagedoor: Callable[..., Result], composition: Any
) -> None:
    composition.told = [
        (200, {"replicas": [REPLICA], "sessions": [entry()], "next": "x:1"}),
        (200, {"sessions": [entry("cd" * 16, endpoint="", owner=None, idle=None, state="at rest")]}),
    ]
    result = stagedoor("sessions", "list", "--url", "http://h:1/mcp", "--admin", "http://h:2")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "abababababab\tada\t/mcp/alpha\tlegacy\t2025-11-25\tlive\t01234567\t12 s\t3",
        "cdcdcdcdcdcd\tada\t/mcp\tlegacy\t2025-11-25\tat rest\t-\t-\t3",
    ]
    assert result.stderr == "replica 0123456789abcdef  alive  process 7 on vm\n"
    assert composition.asked == [("http://h:1/mcp", "http://h:2")] * 2
    assert [options["cursor"] for _, _, options in composition.operated] == ["", "x:1"]


def test_programs_get_them_whole_and_each_once(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [
        (200, {"replicas": [REPLICA], "sessions": [entry(idle=None)], "next": "x:1"}),
        (200, {"sessions": [entry()]}),
    ]
    assert json.loads(stagedoor("sessions", "list", "--json").stdout) == {
        "replicas": [REPLICA],
        "sessions": [entry()],
        "more": False,
    }


def test_a_limit_is_kept_and_said(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"sessions": [entry(f"{n:032x}") for n in range(5)]})]
    result = stagedoor("sessions", "list", "--limit", "3")
    assert len(result.stdout.splitlines()) == 3
    assert "there are more" in result.stderr


def test_one_is_ended_by_its_handle(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"key": KEY, "handle": KEY[:12], "ended": True})]
    result = stagedoor("sessions", "end", KEY[:12])
    assert (result.exit_code, result.stdout) == (0, "session abababababab has ended\n")
    assert composition.operated == [("end", KEY[:12], {})]


def test_what_is_refused_is_status_one_with_its_reason(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(404, {"error": "there is no such session\x1b[2J"}), None]
    result = stagedoor("sessions", "end", KEY)
    assert (result.exit_code, "no such session" in result.stderr, "\x1b" in result.stderr) == (1, True, False)
    result = stagedoor("sessions", "list")
    assert result.exit_code == 1
    assert "no admin listener of a gateway answers" in result.stderr


def test_one_is_moved_to_a_replica_or_any(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"handle": KEY[:12], "to": "there"}), (200, {"handle": KEY[:12]})]
    result = stagedoor("sessions", "move", KEY[:12], "--to", "there")
    assert (result.exit_code, result.stdout) == (0, "session abababababab was handed over to there\n")
    assert stagedoor("sessions", "move", KEY[:12]).stdout == "session abababababab was handed over\n"
    assert composition.operated == [("move", KEY[:12], {"to": "there"}), ("move", KEY[:12], {})]
