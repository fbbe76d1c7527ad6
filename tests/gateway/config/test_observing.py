"""What the configuration says of traces and of lines for requests."""

import json
from pathlib import Path

import pytest

from gateway.config import ConfigError, Settings, load


@pytest.fixture
def read(tmp_path):
    def read(**gateway) -> Settings:
        file = tmp_path / "stagedoor.json"
        file.write_text(json.dumps({"mcpServers": {}, "gateway": gateway}))
        return load(file, {}).settings

    return read


def test_nothing_is_observed_unless_it_is_asked_for(read):
    settings = read()
    assert settings.traces is None
    assert (settings.log.requests, settings.log.access) == (None, "off")


def test_traces_may_leave_everything_to_the_environment(read):
    traces = read(traces={}).traces
    assert (traces.endpoint, traces.headers, traces.sample) == (None, (), None)


def test_the_headers_for_the_collector_are_secrets(read):
    settings = read(traces={"endpoint": "http://me:pass-word-9@c:4318", "headers": {"Authorization": "Basic abcdefgh"}})
    assert {"abcdefgh", "Basic abcdefgh", "pass-word-9"} <= set(settings.secrets)
    assert "abcdefgh" not in repr(settings)
    assert "pass-word-9" not in repr(settings)


@pytest.mark.parametrize(
    ("gateway", "place"),
    [
        ({"traces": {"sample": 1.5}}, "sample"),
        ({"traces": {"endpoint": "collector:4318"}}, "endpoint"),
        ({"traces": {"headers": {"bad name": "x"}}}, "bad name"),
        ({"log": {"requestsSample": -1}}, "requestsSample"),
        ({"log": {"access": "{nothing}"}}, "access"),
        ({"log": {"access": "on"}}, "access"),
    ],
)
def test_what_can_t_be_meant_is_refused_with_its_place(read, gateway, place):
    with pytest.raises(ConfigError) as refused:
        read(**gateway)
    assert place in str(refused.value)


def test_traces_without_the_library_are_refused_with_what_to_install(read, monkeypatch):
    monkeypatch.setattr("gateway.config.build.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"stagedoor\[traces\]"):
        read(traces={})


def test_the_access_log_s_file_is_beside_the_configuration(read, tmp_path):
    log = read(log={"access": "combined", "accessFile": "logs/access.log", "requests": True, "requestsSample": 0.1}).log
    assert (log.access, log.access_file, log.requests) == ("combined", Path(tmp_path / "logs" / "access.log"), 0.1)
