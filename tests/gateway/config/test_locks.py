"""A lock file: when it counts, for which server, and which one is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from actors.protocol.definitions import written
from actors.protocol.policy import Decision
from actors.protocol.rights import Rights
from gateway.config import ConfigError, Problem, Settings, load
from gateway.config.changes import differences
from gateway.config.loading import load_snapshot
from gateway.config.policies import explained
from gateway.config.snapshot import LOCK_BYTES, Snapshot

TOOL = {"name": "read", "inputSchema": {"type": "object"}}


def lock(**servers: Any) -> str:
    """A lock file with these tools by server."""
    found = {
        name: Raw(json.dumps({"v": 1, "lists": {"tools/list": tools}}).encode()) for name, tools in servers.items()
    }
    return written(found, indented=True).decode()


def config(server: dict[str, Any] | None = None, **pins: Any) -> str:
    servers = {"files": {"command": "sh", **(server or {})}, "notes": {"command": "sh"}}
    return json.dumps({"mcpServers": servers, "gateway": {"pins": pins} if pins else {}})


def modes(settings: Settings) -> dict[str, str | None]:
    return {name: spec.pins and spec.pins.mode for name, spec in settings.table.backends.items()}


def test_without_a_lock_file_nothing_is_pinned(settings: Callable[..., Settings]) -> None:
    assert modes(settings(config())) == {"files": None, "notes": None}
    assert modes(settings(config({"pins": "warn"}))) == {"files": "warn", "notes": None}


def test_a_lock_file_beside_the_configuration_warns(settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "stagedoor.lock").write_text(lock(files=[TOOL]))
    found = settings(config())
    assert modes(found) == {"files": "warn", "notes": "warn"}
    pins = found.table.backends["files"].pins
    assert pins is not None
    assert pins.allows("tool", "read")
    assert modes(settings(config({"pins": "off"}, mode="block"))) == {"files": None, "notes": "block"}


def test_it_may_stand_elsewhere(settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "mine.lock").write_text(lock(files=[TOOL]))
    assert modes(settings(config(file="pins/mine.lock"))) == {"files": "warn", "notes": "warn"}


@pytest.mark.parametrize("given", [config({"pins": "block"}), config(mode="block"), config(file="gone.lock")])
def test_one_that_has_to_be_there_and_is_not_is_told(problem: Callable[..., Problem], given: str) -> None:
    found = problem(given)
    assert found.field == "gateway.pins.file"
    assert "`stagedoor pin` makes it" in found.message


BROKEN = [
    "",
    "{",
    "[" * 100_000,
    '{"version":1,"servers":{}}',
    '{"version":2,"servers":{"files":{"v":1,"lists":{"tools/list":' + "[" * 3000 + "]" * 3000 + "}}}}",
    '{"version":2,"servers":{"files":{"v":1,"lists":{"tools/list":[{"name":"a"},{"name":"a"}]}}}}',
    '{"version":2,"servers":{"files":{"v":1,"lists":{"tools/list":[{"name":"a","name":"b"}]}}}}',
    '{"version":2,"servers":{"files":{"v":1,"lists":{"tools/list":[{}]}}}}',
    '{"version":2,"servers":{"files":{"v":1,"lists":{"anything":[]}}}}',
    "<<<<<<< HEAD\n" + lock(files=[TOOL]) + "=======\n",
]


@pytest.mark.parametrize("text", BROKEN)
def test_one_that_is_broken_is_refused_whole(problem: Callable[..., Problem], tmp_path: Path, text: str) -> None:
    (tmp_path / "stagedoor.lock").write_text(text)
    found = problem(config())
    assert found.field == "gateway.pins.file"
    assert found.message.startswith("stagedoor.lock can't be used: ")
    assert len(found.message) < 200


def test_what_is_no_file_or_too_large_is_refused_and_not_waited_for(
    problem: Callable[..., Problem], tmp_path: Path
) -> None:
    place = tmp_path / "stagedoor.lock"
    os.mkfifo(place)
    assert "is no file" in problem(config()).message
    place.unlink()
    place.mkdir()
    assert "is no file" in problem(config()).message
    place.rmdir()
    with place.open("wb") as sparse:
        sparse.truncate(LOCK_BYTES + 1)
    assert "is larger than" in problem(config()).message
    place.write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in problem(config()).message


def test_another_lock_file_is_another_configuration_and_lists_depend_on_it(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    file, place = write(config()), tmp_path / "stagedoor.lock"
    place.write_text(lock(files=[TOOL]))
    before = load(file).settings
    place.write_text(lock(files=[{**TOOL, "description": "other"}]))
    after = load(file).settings
    assert before.source != after.source
    assert before.table.digest != after.table.digest
    assert differences(before.values, after.values).settings == ("gateway.pins.content",)
    place.write_text(lock(files=[TOOL]))
    assert load(file).settings.table == before.table


def test_a_worker_has_the_file_as_it_was_when_its_supervisor_read_it(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    file, place = write(config({"pins": "block"})), tmp_path / "stagedoor.lock"
    place.write_text(lock(files=[TOOL]))
    before = load(file).settings
    assert before.source is not None
    place.write_text("{")
    again = load_snapshot(Snapshot.decoded(before.source.encoded())).settings
    assert again.table == before.table
    with pytest.raises(ConfigError):
        load(file)
    place.unlink()
    assert load_snapshot(before.source).settings.table == before.table


def test_a_configuration_without_pins_does_not_load_what_they_need(write: Callable[..., Path]) -> None:
    program = (
        "import sys, pathlib, gateway.app, gateway.cli; from gateway.config import load;"
        "load(pathlib.Path(sys.argv[1]));"
        "print([m for m in sys.modules if m.endswith(('.pins', '.pinning', '.lookalikes', '.locks'))])"
    )
    given = [sys.executable, "-c", program, str(write(config()))]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_was_not_accepted_is_explained_as_held_back(settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "stagedoor.lock").write_text(lock(files=[TOOL]))
    table = settings(config({"pins": "block"})).table
    rights = Rights("", "", "")
    assert explained(table, "anonymous", rights, "files:read").outcome == "allow"
    assert explained(table, "anonymous", rights, "files:write") == Decision("deny", "pins: it was not accepted")
    assert explained(table, "anonymous", rights, "notes:write").outcome == "allow", "it only warns"
