"""The servers that come with it, behind the gateway and for clients of both eras."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.client import McpError
from stagedoor import open_client
from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, shared_programs

__all__ = ["shared_programs"]
pytestmark = pytest.mark.e2e

ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28"}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "a.txt").write_text("first")
    return folder


@pytest.fixture(scope="module")
def gateway(shared_programs: Programs, notes: Path) -> Gateway:
    servers = {
        "calculate": {"native": "gateway.native.calculate"},
        "files": {"native": "gateway.native.files", "options": {"root": str(notes)}},
    }
    return shared_programs.gateway({"mcpServers": servers})


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(gateway: Gateway, era: str) -> Any:
    return lambda name: partial(open_client, gateway.endpoint(name), ERAS[era])()


async def test_calculate(opened: Any) -> None:
    async with opened("calculate") as client:
        result = await client.call_tool("calculate", {"expression": "2 ** 1000"})
        assert result.structured_content == {"expression": "2 ** 1000", "result": 2**1000}
        result = await client.call_tool("calculate", {"expression": "9 ** 9 ** 9"})
        assert result.is_error
        assert "Too large" in result.text


async def test_files(opened: Any, notes: Path) -> None:
    uri = f"file://{notes}/a.txt"
    async with opened("files") as client:
        [resource] = [resource for resource in await client.list_resources() if resource.name == "a.txt"]
        assert (resource.uri, resource.mime_type, resource.raw["size"]) == (uri, "text/plain", 5)
        [template] = await client.list_templates()
        assert template.uri_template == f"file://{notes}/{{+path}}"
        async with client.subscribe(uri) as updates:
            (notes / "a.txt").write_text("later")
            with trio.fail_after(PATIENCE):
                assert (await anext(aiter(updates))).uri == uri
        assert (await client.read_resource(uri)).text == "later"
        with pytest.raises(McpError):
            await client.read_resource(f"file://{notes}/../a.txt")
    (notes / "a.txt").write_text("first")
