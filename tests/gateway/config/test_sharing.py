"""Who shares a server, in a configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Problem, Settings, advice, load


def file(gateway: Any = None, **server: Any) -> str:
    return json.dumps({"mcpServers": {"a": {"command": "sh", **server}}, "gateway": gateway or {}})


def test_a_pool_is_as_written(settings: Callable[..., Settings]) -> None:
    spec = settings(file(sharing="pool", min=2, max=9, idleStop=30)).table.backends["a"]
    assert (spec.sharing, spec.least, spec.most, spec.idle_stop, spec.common) == ("pool", 2, 9, 30.0, True)
    assert not settings(file()).table.backends["a"].common


@pytest.mark.parametrize(
    ("server", "field"),
    [
        ({"sharing": "principal", "min": 1}, "min"),
        ({"max": 3}, "max"),
        ({"sharing": "pool", "min": 3, "max": 2}, "min"),
        ({"sharing": "everybody"}, "sharing"),
        ({"sharing": "principal", "idleStop": 0}, "idleStop"),
        ({"command": None, "url": "http://127.0.0.1:1/mcp", "sharing": "pool"}, "sharing"),
        ({"command": None, "url": "http://127.0.0.1:1/mcp", "idleStop": 9}, "idleStop"),
    ],
)
def test_what_can_t_be_meant_is_an_error(problem: Callable[..., Problem], server: dict[str, Any], field: str) -> None:
    entry = {key: value for key, value in {"command": "sh", **server}.items() if value is not None}
    assert problem(json.dumps({"mcpServers": {"a": entry}})).field == f"mcpServers.a.{field}"


def test_one_process_for_each_user_needs_users_where_others_can_reach_it(write: Callable[..., Path]) -> None:
    def warned(gateway: Any) -> bool:
        found = advice(load(write(file(gateway, sharing="principal")), {}))
        return any(problem.field == "mcpServers.a.sharing" for problem in found)

    assert warned({"listen": "0.0.0.0:8080"})
    assert not warned({"listen": "127.0.0.1:8080"})
    assert not warned({"listen": "0.0.0.0:8080", "auth": {"tokens": {"ann": "0123456789012345678901"}}})
    issuers = {"issuers": [{"issuer": "https://idp.example"}]}
    assert not warned({"listen": "0.0.0.0:8080", "publicUrl": "https://mcp.example", "auth": issuers})
