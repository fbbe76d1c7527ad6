"""What is allowed in a configuration and yet unwise."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.config import advice, load


def warned(write: Callable[..., Path], told: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> list[str]:
    return [problem.field for problem in advice(load(write(json.dumps(told)), environ or {})) if problem.field]


def with_credentials(secret: str) -> dict[str, Any]:
    issuer = "https://idp.example"
    introspection = {"endpoint": f"{issuer}/introspect", "clientId": "g", "clientSecret": secret}
    service = {"mode": "client_credentials", "clientId": "c", "clientSecret": secret, "issuer": issuer}
    return {
        "mcpServers": {
            "a": {"url": "https://a.example/mcp", "auth": service},
            "b": {"url": "https://b.example/mcp", "auth": {"mode": "user", "catalog": secret}},
        },
        "gateway": {
            "publicUrl": "https://mcp.example",
            "store": "redis://r",
            "audit": {"otlp": "https://c.example/v1/logs", "otlpHeaders": {"Authorization": secret}},
            "auth": {
                "issuers": [{"issuer": issuer, "introspection": introspection}],
                "browser": {"mode": "oidc", "clientId": "p", "clientSecret": secret},
            },
        },
    }


def test_nothing_is_said_of_servers_that_are_left_out_whatever_stands_in_them(write: Callable[..., Path]) -> None:
    wrong = {"env": "x", "headers": [1], "options": 5, "auth": {"mode": "user", "clientSecret": 5}}
    others = {"auth": {"clientSecret": True}}  # as another program means it
    told = {
        "mcpServers": {"on": {"native": "gateway.native.demo:server", **others}, "off": {"disabled": True, **wrong}},
        "servers": {"left": wrong},
        "mcp": {"excluded": ["left"]},
    }
    assert warned(write, told) == []


def test_a_credential_in_clear_is_told_wherever_it_stands(write: Callable[..., Path]) -> None:
    assert {
        "mcpServers.a.auth.clientSecret",
        "mcpServers.b.auth.catalog",
        "gateway.audit.otlpHeaders.Authorization",
        "gateway.auth.issuers[0].introspection.clientSecret",
        "gateway.auth.browser.clientSecret",
    } <= {*warned(write, with_credentials("hush-hush"))}
    assert warned(write, with_credentials("${S}"), {"S": "hush-hush"}) == []


def test_accounts_that_end_with_the_process_are_told_of(write: Callable[..., Path]) -> None:
    told = with_credentials("${S}")
    del told["gateway"]["store"]
    assert warned(write, told, {"S": "hush-hush"}) == ["mcpServers.b.auth"]
