"""What the edge checks, from one configuration to the next."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports import Asker
from gateway.authorizing import Admission
from gateway.config import load
from gateway.config.settings import Address
from gateway.http.authorization import Authorization
from gateway.http.routes import Mcp
from gateway.http.security import Security, SecurityChecks
from tests.support.harness import RecordingLog, RecordingTelemetry
from tests.support.issuer import FakeIssuer


async def test_a_reload_while_the_issuer_is_away_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idp, file, now = FakeIssuer(), tmp_path / "stagedoor.json", time.time()
    monkeypatch.setattr("gateway.oauth.http.GuardedHttp", lambda: idp)
    token = idp.token(aud="http://127.0.0.1:8080/mcp", iat=now, exp=now + 600)
    headers = {"authorization": f"Bearer {token}"}
    scope = {"query_string": b"", "headers": [(b"authorization", headers["authorization"].encode())]}
    async with trio.open_nursery() as nursery:
        admission = Admission(Address("127.0.0.1", 8080), nursery, RecordingLog(), RecordingTelemetry())

        def reloaded(**auth: Any) -> Authorization:
            file.write_text(json.dumps({"mcpServers": {"a": {"command": "a"}}, "gateway": {"auth": auth}}))
            return admission(load(file).settings)(SecurityChecks(Security("127.0.0.1")))

        found = await reloaded(issuers=[{"issuer": idp.issuer}]).admit(scope, headers, Mcp(""))
        assert isinstance(found, Asker)
        idp.away = True
        more = reloaded(issuers=[{"issuer": idp.issuer, "scopes": ["mcp"]}], tokens={"ci": "c" * 32})
        assert isinstance(await more.admit(scope, headers, Mcp("")), Asker)
        nursery.cancel_scope.cancel()
