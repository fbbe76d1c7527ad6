"""The set-ups of docs/authorization.md, as they stand there: with a real authorization server, real clients, and the
server that the page names."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.test_login import Storage, logged_in, node, shared_programs
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import ROOT, Gateway, Programs, accepts, stagedoor

__all__ = ["node", "shared_programs"]

pytestmark = [
    pytest.mark.e2e,
    # The SDK lets go of answers that it has not read to their end.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

PAGE = (ROOT / "docs" / "authorization.md").read_text()
SECRETS = {"INTROSPECTION_SECRET": "gateway-secret-of-the-tests", "ANN_TOKEN": "a" * 32, "CI_TOKEN": "c" * 32}
MCP = "https://mcp.example.com"
IDP = "https://idp.example.com"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    served = tmp_path / "served"
    served.mkdir()
    (served / "note.txt").write_text("hello")
    return tmp_path


def issuer(programs: Programs, node: Path, *options: str) -> str:
    port = free_port()
    command = [str(node), str(ROOT / "tests/node/issuer.mjs"), str(port), "600", *options]
    programs.start("issuer", command, ready=accepts(port))
    return f"http://127.0.0.1:{port}"


def set_up(programs: Programs, heading: str, folder: Path, idp: str = IDP) -> tuple[Gateway, Path]:
    """The gateway of this section, and its file, with what it names here in the place of what it names there."""
    found = re.search(rf"### {heading}\n.*?```jsonc\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, heading
    url, admin = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    text = found[1].replace(MCP, url).replace(IDP, idp).replace("/srv/files", str(folder / "served"))
    file = folder / "stagedoor.jsonc"
    file.write_text(text)
    ran(["check", str(file)])
    place: Any = Gateway(None, url, admin)  # type: ignore[arg-type]
    return programs.gateway(file, in_place_of=place), file


def ran(command: list[str]) -> str:
    done = stagedoor(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def challenged(gateway: Gateway) -> Any:
    """The metadata that the challenge leads to."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{gateway.url}/mcp", timeout=PATIENCE)
    assert refused.value.code == 401
    challenge = refused.value.headers["WWW-Authenticate"]
    place = f"{gateway.url}/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{place}"' in challenge
    with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


async def started(session: ClientSession) -> set[str]:
    """The tools, once the server has come up: until then a list lacks them."""
    while not (found := await tools(session)):
        await trio.sleep(0.2)
    return found


async def tools(session: ClientSession) -> set[str]:
    return {tool.name.removeprefix("files__") for tool in (await session.list_tools()).tools}


async def test_users_log_in_at_an_authorization_server_that_gives_jwts(
    shared_programs: Programs, node: Path, folder: Path
) -> None:
    idp = issuer(shared_programs, node)
    gateway, _ = set_up(shared_programs, "Users log in at an authorization server that gives JWTs", folder, idp)
    assert challenged(gateway)["authorization_servers"] == [idp]
    ann, bob = Storage(), Storage()
    written = {"path": str(folder / "served" / "new.txt"), "content": "x"}
    with trio.fail_after(PATIENCE):
        async with logged_in(gateway.endpoint(), idp, "ann", ann) as session:
            assert {"read_text_file", "write_file"} <= await started(session)
            assert ann.tokens is not None
            assert ann.tokens.scope == "mcp"
            assert not (await session.call_tool("files__write_file", written)).is_error
            assert "write" in (ann.tokens.scope or "")
        async with logged_in(gateway.endpoint(), idp, "bob", bob) as session:
            assert await tools(session) == set()
            with pytest.raises(MCPError):
                await session.call_tool("files__write_file", written)


async def test_users_log_in_where_tokens_can_t_be_read(shared_programs: Programs, node: Path, folder: Path) -> None:
    idp = issuer(shared_programs, node, "opaque")
    gateway, _ = set_up(shared_programs, "Users log in where tokens can't be read", folder, idp)
    assert challenged(gateway)["scopes_supported"] == ["mcp"]
    ann, bob = Storage(), Storage()
    with trio.fail_after(PATIENCE):
        async with logged_in(gateway.endpoint(), idp, "ann", ann) as session:
            assert ann.tokens is not None
            assert "." not in ann.tokens.access_token
            assert "read_text_file" in await started(session)
        async with logged_in(gateway.endpoint(), idp, "bob", bob) as session:
            assert await tools(session) == set()
        both = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with httpx2.AsyncClient(timeout=PATIENCE, trust_env=False, headers=both) as http:
            for token in ("made-up", "x" * 43):
                answer = await http.post(gateway.endpoint(), json=ping, headers={"authorization": f"Bearer {token}"})
                assert answer.status_code == 401
                assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@asynccontextmanager
async def brought(gateway: Gateway, token: str) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(timeout=PATIENCE, trust_env=False, headers=headers) as http,
        streamable_http_client(gateway.endpoint(), http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


async def test_programs_and_a_few_people_with_configured_tokens(shared_programs: Programs, folder: Path) -> None:
    gateway, file = set_up(shared_programs, "Programs and a few people, with configured tokens", folder)
    ran(["policy", "test", "--config", str(file)])
    with trio.fail_after(PATIENCE):
        async with brought(gateway, SECRETS["ANN_TOKEN"]) as session:
            assert {"read_text_file", "write_file"} <= await started(session)
        async with brought(gateway, SECRETS["CI_TOKEN"]) as session:
            seen = await started(session)
            assert "read_text_file" in seen
            assert all(name.startswith(("read_", "list_")) for name in seen)
