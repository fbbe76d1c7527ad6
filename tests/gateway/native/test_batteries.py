"""The servers that come with it, behind the gateway and for clients of both eras."""

from __future__ import annotations

import sys
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
        "vectors": {"native": "gateway.native.vectors", "options": {"path": str(notes.parent / "vectors.db")}},
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


async def test_vectors(opened: Any, era: str) -> None:
    async with opened("vectors") as client:
        names = [tool.name for tool in await client.list_tools()]
        assert sorted(names) == ["db_delete", "db_insert", "db_list", "db_query", "db_stats"]
        for id, vector in enumerate(([1, 0], [0.9, 0.1], [0, 1])):
            await client.call_tool("db_insert", {"id": id, "vector": vector, "metadata": str(id), "db_name": era})
        result = await client.call_tool("db_query", {"vector": [2, 0], "top_k": 2, "db_name": era})
        assert [match["id"] for match in result.structured_content["matches"]] == [0, 1]
        assert (await client.call_tool("db_insert", {"id": 9, "vector": [1], "db_name": era})).is_error


async def test_it_is_listed_and_served_as_it_is(tmp_path: Path) -> None:
    stagedoor = str(Path(sys.executable).with_name("stagedoor"))
    command = [stagedoor, "ls", "tools", "--native", "gateway.native.vectors"]
    listed = await trio.run_process(command, capture_stdout=True)
    assert sorted(line.split()[0] for line in listed.stdout.decode().splitlines()) == [
        "db_delete",
        "db_insert",
        "db_list",
        "db_query",
        "db_stats",
    ]
    served, environment = [stagedoor, "stdio", "--native", "gateway.native.vectors"], {"XDG_STATE_HOME": str(tmp_path)}
    async with open_client(served, env=environment) as client:
        assert (await client.call_tool("db_insert", {"id": 1, "vector": [1, 2]})).structured_content["id"] == 1
    assert (tmp_path / "stagedoor" / "vectors.db").exists()
