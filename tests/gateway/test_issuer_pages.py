"""The pages on issuers, as they stand there: the file is good, and the token of a page comes to what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports import Asker
from gateway.config import load
from gateway.config.issuers import PRESETS
from gateway.config.policies import explained
from gateway.oauth.verifier import TokenVerifier
from tests.support.harness import RecordingLog, RecordingTelemetry
from tests.support.issuer import NOW, FakeIssuer
from tests.support.processes import ROOT

PAGES = ROOT / "docs" / "issuers"
MCP = "https://mcp.example.com/mcp"


def test_each_preset_has_a_page() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_token_of_the_page_gets_in_with_the_rights_of_its_case(
    preset: str, tmp_path: Path, autojump_clock: Any
) -> None:
    text = (PAGES / f"{preset}.md").read_text()
    config, claims = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("jsonc", "json"))  # type: ignore[index]
    file = tmp_path / "stagedoor.jsonc"
    file.write_text(config)
    settings = load(file).settings
    (issuer,), (case,) = settings.auth.issuers, settings.policy_tests
    idp = FakeIssuer(issuer.issuer)
    async with trio.open_nursery() as nursery:
        more: Any = (nursery, RecordingLog(), RecordingTelemetry(), lambda: NOW)
        verifier = TokenVerifier(settings.auth.issuers, idp, *more)
        token = idp.token(headers={"typ": "JWT"}, **json.loads(claims))
        found = await verifier.verify(token, [MCP])
        assert isinstance(found, Asker)
        assert found.principal.name == case.principal
        own, theirs = found.rights, case.rights
        for part in ("issuer", "subject", "groups", "scopes", "client"):
            assert getattr(own, part) == getattr(theirs, part), part
        assert explained(settings.table, case.principal, own, case.item).outcome == case.expect
        other = idp.token(**{**json.loads(claims), "aud": "https://another.example.com"})
        assert not isinstance(await verifier.verify(other, [MCP]), Asker)
        nursery.cancel_scope.cancel()
