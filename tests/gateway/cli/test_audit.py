"""`stagedoor audit verify`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.protocol.trail import EVENTS
from gateway.audit.chain import END, START, Chain, signing_keys
from gateway.cli import cli, composed

KEY = "ab" * 32


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """A configuration with a trail of four lines beside it."""
    chain = Chain("c", signing_keys([bytes.fromhex(KEY)])[0])
    lines = [chain.line(START, 0, {}), chain.line("call", 1, {"item": "x"}), chain.head(2), chain.head(3, END)]
    (tmp_path / "audit.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    config = tmp_path / "stagedoor.json"
    config.write_text(json.dumps({"gateway": {"keys": [KEY], "audit": {"file": "audit.jsonl"}}}))
    return config


def run(*words: object):
    return CliRunner().invoke(cli, ["audit", "verify", *map(str, words)], obj=composed)


def test_the_trail_of_a_configuration_is_verified_with_its_keys(trail: Path) -> None:
    done = run("--config", trail)
    assert done.exit_code == 0, done.output
    assert "chain c: 4 lines; signed to its end" in done.output
    told = json.loads(run("--config", trail, "--json").stdout)
    assert told["good"] is True
    assert told["chains"][0]["signed"] == 4


def test_a_change_is_named_and_ends_with_status_1(trail: Path) -> None:
    file = trail.parent / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"item":"x"', b'"item":"y"'))
    done = run("--config", trail)
    assert done.exit_code == 1
    assert "audit.jsonl:3: does not follow line 2, or that one was changed" in done.output


def test_a_trail_made_anew_by_somebody_without_the_key_is_found_out(trail: Path) -> None:
    forged = Chain("c", b"another key of some kind")
    lines = [forged.line(START, 0, {}), forged.head(3, END)]
    (trail.parent / "audit.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    assert run("--config", trail).exit_code == 1
    unsigned = run(trail.parent / "audit.jsonl")
    assert unsigned.exit_code == 0
    assert "signatures were not checked" in unsigned.output


def test_what_was_cut_off_has_no_end_and_nothing_can_be_put_in_its_place(trail: Path) -> None:
    file = trail.parent / "audit.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]))
    done = run("--config", trail)
    assert done.exit_code == 0
    assert "signed to its end; it has no end: its process runs, or was killed" in done.output
    file.write_bytes(b"".join([*lines[:2], lines[3]]))
    assert run("--config", trail).exit_code == 1


def test_rotated_files_are_read_one_after_the_other(trail: Path) -> None:
    file = trail.parent / "audit.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    old = trail.parent / "audit.jsonl.1"
    old.write_bytes(b"".join(lines[:2]))
    file.write_bytes(b"".join(lines[2:]))
    assert run("--config", trail, old, file).exit_code == 0
    assert run("--config", trail, file).exit_code == 1
    assert run("--config", trail, "--partial", file).exit_code == 0


def test_without_a_file_it_says_what_to_name(tmp_path: Path) -> None:
    config = tmp_path / "stagedoor.json"
    config.write_text(json.dumps({"gateway": {"keys": [KEY]}}))
    assert run("--config", config).exit_code == 2
    missing = run(tmp_path / "nowhere")
    assert missing.exit_code == 1
    assert "No such file" in missing.output


def test_it_says_what_there_is_and_what_this_version_does_not_know(tmp_path: Path) -> None:
    chain = Chain("c", signing_keys([bytes.fromhex(KEY)])[0])
    lines = [chain.line(START, 0, {}), *[chain.line(event, 1, {}) for event in [*EVENTS, "call", "from.later"]]]
    (tmp_path / "audit.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    done = run(tmp_path / "audit.jsonl", "--json")
    [told] = json.loads(done.stdout)["chains"]
    assert told["events"]["call"] == 2
    assert set(EVENTS) < set(told["events"])
    assert told["unknown"] == ["from.later"]
    assert "2 call" in run(tmp_path / "audit.jsonl").output
    assert "this version does not know from.later" in run(tmp_path / "audit.jsonl").output
