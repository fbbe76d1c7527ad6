"""What differs between two configurations, told by places and never by values."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, Settings, load
from gateway.config.changes import FIXED, Changes, differences, digests, flat, from_digests
from gateway.config.loading import load_snapshot
from gateway.config.models import File

KEY = b"nobody keeps this"
BEFORE: dict[str, Any] = {
    "mcpServers": {
        "kept": {"command": "one"},
        "other": {"command": "one", "env": {"TOKEN": "hunter2-secret"}, "disabledTools": ["x"]},
        "gone": {"url": "https://a.test/mcp"},
    },
    "gateway": {"limits": {"requestDeadline": 5}, "auth": {"tokens": {"ann": "token-of-ann"}}},
}
AFTER: dict[str, Any] = {
    "mcpServers": {
        "kept": {"command": "one"},
        "other": {"command": "one", "env": {"TOKEN": "another-secret"}, "disabledTools": ["y"]},
        "come": {"url": "https://a.test/mcp"},
        "off": {"command": "x", "disabled": True},
    },
    "gateway": {
        "limits": {"requestDeadline": 6, "messageBytes": 5000},
        "auth": {"tokens": {"ann": "new-token-of-ann"}},
        "listen": "127.0.0.1:9",
    },
}
WHAT = Changes(
    added=("come",),
    removed=("gone",),
    changed={"other": ("disabledTools", "env.TOKEN")},
    settings=("gateway.auth.tokens.ann.token", "gateway.limits.requestDeadline"),
    fixed=("gateway.limits.messageBytes", "gateway.listen"),
)


def read(folder: Path, data: dict[str, Any], name: str = "c.json") -> Settings:
    file = folder / name
    file.write_text(json.dumps(data))
    return load(file).settings


def test_what_a_reload_changes_is_told_by_name(tmp_path: Path) -> None:
    before, after = read(tmp_path, BEFORE), read(tmp_path, AFTER)
    assert differences(before.values, after.values) == WHAT
    assert differences(before.values, before.values).told() == {}


def test_digests_tell_the_same_and_nothing_else(tmp_path: Path) -> None:
    before, after = read(tmp_path, BEFORE), read(tmp_path, AFTER)
    sent = digests(after.values, KEY)
    assert from_digests(before.values, sent, KEY) == WHAT
    assert "secret" not in str(sent)
    assert "token-of" not in str(sent)
    with pytest.raises(ValueError, match="no places"):
        from_digests(before.values, {"nonsense": "x"}, KEY)


def test_a_secret_from_a_file_has_no_newline_and_its_errors_name_field_and_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("top-secret\n")
    server = {"url": "https://a.test/mcp", "headers": {"Authorization": "Bearer ${file:token}"}}
    settings = read(tmp_path, {"mcpServers": {"a": server}})
    assert settings.table.backends["a"].target.headers == (("Authorization", "Bearer top-secret"),)
    assert "top-secret" in settings.secrets
    assert "top-secret" not in repr(settings)
    server["headers"]["Authorization"] = "${file:/nowhere/at/all}"
    where = r"mcpServers\.a\.headers\.Authorization: the file /nowhere/at/all is not there"
    with pytest.raises(ConfigError, match=where):
        read(tmp_path, {"mcpServers": {"a": server}})
    (tmp_path / "broken").write_bytes(b"hun\xffter")
    server["headers"]["Authorization"] = "${file:broken}"
    with pytest.raises(ConfigError, match="not UTF-8") as told:
        read(tmp_path, {"mcpServers": {"a": server}})
    assert "ter" not in str(told.value).partition("file broken")[2]
    (tmp_path / "lines").write_text("one\ntwo\n")
    server["headers"]["Authorization"] = "${file:lines}"
    with pytest.raises(ConfigError, match="line break") as told:
        read(tmp_path, {"mcpServers": {"a": server}})
    assert "two" not in str(told.value)


def test_a_snapshot_is_what_was_read_whatever_became_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    data = {"mcpServers": {"a": {"command": "x", "env": {"K": "${file:token}"}}}}
    settings = read(tmp_path, data)
    assert settings.source is not None
    (tmp_path / "token").unlink()
    (tmp_path / "c.json").write_text("{ half")
    again = type(settings.source).decoded(settings.source.encoded())
    assert load_snapshot(again).settings == settings


IN_FORCE = {
    *(
        f"auth.{key}"
        for key in ("anonymous", "bindClient", "browser", "hosts", "issuers", "legacyMetadata", "origins", "tokens")
    ),
    *(
        "drain",
        "limits",
        "log.format",
        "log.level",
        "naming",
        "pins",
        "policy",
        "policyMode",
        "policyTests",
        "prestart",
    ),
    *("groups", "publicUrl", "reload", "replay", "sessions"),
}
"""What `put_in_force` puts in force of `gateway`."""


def test_of_every_key_it_is_decided_whether_a_reload_puts_it_in_force_or_a_restart() -> None:
    """A new one comes here first: else a reload would say that it counts, and nothing would have changed."""
    for path in flat(File()):
        if path[0] == "gateway":
            beginnings = {".".join(path[1:end]) for end in range(2, len(path) + 1)}
            fixed = any(path[: len(place)] == place for place in FIXED)
            assert fixed or beginnings & IN_FORCE, path
    known = {".".join(path[1:end]) for path in flat(File()) for end in range(2, len(path) + 1)} | {"groups"}
    assert not IN_FORCE - known


def test_what_observes_requests_is_made_at_the_start() -> None:
    for key in (("traces", "sample"), ("log", "requests"), ("log", "access"), ("log", "accessFile")):
        assert any(("gateway", *key)[: len(fixed)] == fixed for fixed in FIXED)
    assert ("gateway", "log") not in FIXED, "the level takes effect at once"
