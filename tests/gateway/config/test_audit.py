"""The section `audit` of a configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Problem, Settings
from gateway.config.settings import AuditSettings


def file(**audit: Any) -> str:
    return json.dumps({"gateway": {"audit": audit}})


def test_without_a_sink_nothing_is_written(settings: Callable[..., Settings]) -> None:
    assert settings("{}").audit == AuditSettings()
    assert not settings("{}").audit.on
    assert settings(file(syslog="unix:/dev/log")).audit.on


def test_all_of_it_arrives_with_paths_beside_the_file(settings: Callable[..., Settings], tmp_path: Path) -> None:
    found = settings(
        file(
            file="logs/a.jsonl",
            arguments="hash",
            onFull="drop",
            syslog="tls://logs.example:6514",
            otlp="https://collector.example/v1/logs",
            otlpHeaders={"Authorization": "Bearer hush-hush"},
        )
    )
    assert found.audit == AuditSettings(
        tmp_path / "logs" / "a.jsonl",
        "hash",
        False,
        "tls://logs.example:6514",
        "https://collector.example/v1/logs",
        (("Authorization", "Bearer hush-hush"),),
    )
    assert "hush-hush" in found.secrets


@pytest.mark.parametrize(
    ("audit", "field"),
    [
        ({"arguments": "some"}, "arguments"),
        ({"onFull": "wait"}, "onFull"),
        ({"syslog": "http://h"}, "syslog"),
        ({"syslog": "tcp://h:x"}, "syslog"),
        ({"syslog": f"udp://{'h' * 64}"}, "syslog"),
        ({"otlp": "collector:4317"}, "otlp"),
        ({"otlp": "http://name:word@collector:4318/v1/logs"}, "otlp"),
        ({"otlpHeaders": {"a b": "c"}}, "otlpHeaders.a b"),
    ],
)
def test_what_can_t_be_meant_is_an_error(problem: Callable[..., Problem], audit: dict[str, Any], field: str) -> None:
    assert problem(file(**audit)).field == f"gateway.audit.{field}"
