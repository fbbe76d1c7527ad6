"""Official clients log in by their own OAuth helpers, at an authorization server that nobody here wrote."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import trio
from mcp import Client, ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from tests.support import chromium
from tests.support.pages import Pages
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import ROOT, Gateway, Programs, accepts, node, shared_programs

__all__ = ["node", "shared_programs"]

pytestmark = [
    pytest.mark.e2e,
    # The SDK lets go of answers that it has not read to their end.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

NATIVE = str(ROOT / "tests" / "gateway" / "native" / "inquirer.py") + ":server"
BACK = "http://127.0.0.1:9/callback"
MODERN = "2026-07-28"


@pytest.fixture(scope="module")
def issuer(shared_programs: Programs, node: Path) -> str:
    port = free_port()
    shared_programs.start(
        "issuer", [str(node), str(ROOT / "tests/node/issuer.mjs"), str(port), "3"], ready=accepts(port)
    )
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def gateway(shared_programs: Programs, issuer: str) -> Gateway:
    auth = {"issuers": [{"issuer": issuer, "scopes": ["mcp"]}], "tokens": {"ci": "token-of-ci-robots-00"}}
    policy = [{"allow": ["inquirer:*"], "scopes": {"inquirer:who": ["write"]}}]
    servers = {"inquirer": {"native": NATIVE}}
    return shared_programs.gateway({"mcpServers": servers, "gateway": {"auth": auth, "policy": policy}})


class Storage:
    """What a client keeps, in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.given = 0

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens, self.given = tokens, self.given + 1

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Of one user: follows redirects, with cookies, until it is sent back to the client."""

    def __init__(self, issuer: str, user: str) -> None:
        self._issuer, self._user, self.came = issuer, user, ""

    async def go(self, url: str) -> None:
        async with httpx2.AsyncClient(timeout=PATIENCE, trust_env=False) as http:
            await http.get(f"{self._issuer}/login?user={self._user}")
            while not url.startswith(BACK):
                answer = await http.get(url)
                assert answer.is_redirect, answer.text
                url = str(answer.next_request.url)  # type: ignore[union-attr]
        self.came = url

    async def back(self) -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.came).query).items()}
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))


@asynccontextmanager
async def logged_in(url: str, issuer: str, user: str, storage: Storage, version: str = "2025-11-25") -> Any:
    browser = Browser(issuer, user)
    metadata = OAuthClientMetadata(redirect_uris=[BACK], client_name="test", token_endpoint_auth_method="none")  # type: ignore[list-item]
    provider = OAuthClientProvider(url, metadata, storage, browser.go, browser.back)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(auth=provider, timeout=PATIENCE, trust_env=False))
        transport = streamable_http_client(url, http_client=http)
        if version == MODERN:
            yield await stack.enter_async_context(Client(transport, mode=MODERN))
            return
        streams = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        yield session


@pytest.mark.parametrize("name", ["", "inquirer"], ids=["all servers", "one server"])
async def test_the_python_sdk_logs_in_and_refreshes_in_the_middle_of_its_session(
    gateway: Gateway, issuer: str, name: str
) -> None:
    storage = Storage()
    tool = "may" if name else "inquirer__may"
    with trio.fail_after(PATIENCE):
        async with logged_in(gateway.endpoint(name), issuer, "ann", storage) as session:
            for _ in range(2):
                result = await session.call_tool(tool, {})
                assert json.loads(result.content[0].text) == {"result": ["dev", "mcp", "ann"]}
                given = storage.given
                await trio.sleep(3.2)  # the client refreshes what has ended by its own clock
            assert given == 2


@pytest.mark.parametrize("name", ["", "inquirer"], ids=["all servers", "one server"])
async def test_the_python_sdk_logs_in_refreshes_and_steps_up_without_a_session(
    gateway: Gateway, issuer: str, name: str
) -> None:
    storage = Storage()
    prefix = "" if name else "inquirer__"
    with trio.fail_after(PATIENCE):
        async with logged_in(gateway.endpoint(name), issuer, "ann", storage, MODERN) as client:
            assert client.protocol_version == MODERN
            for _ in range(2):
                result = await client.call_tool(f"{prefix}may", {})
                assert json.loads(result.content[0].text) == {"result": ["dev", "mcp", "ann"]}
                given = storage.given
                await trio.sleep(3.2)
            assert given == 2
            assert "ann" in (await client.call_tool(f"{prefix}who", {})).content[0].text
            assert set(((storage.tokens and storage.tokens.scope) or "").split()) >= {"mcp", "write"}


@pytest.mark.parametrize("name", ["", "inquirer"], ids=["all servers", "one server"])
async def test_the_python_sdk_asks_for_the_scope_that_a_tool_needs(gateway: Gateway, issuer: str, name: str) -> None:
    storage = Storage()
    prefix = "" if name else "inquirer__"
    with trio.fail_after(PATIENCE):
        async with logged_in(gateway.endpoint(name), issuer, "ann", storage) as session:
            assert storage.tokens is not None
            assert (storage.tokens.scope or "").split() == ["mcp"]
            assert "ann" in (await session.call_tool(f"{prefix}who", {})).content[0].text
            assert set((storage.tokens.scope or "").split()) >= {"mcp", "write"}
            result = await session.call_tool(f"{prefix}may", {})
            assert json.loads(result.content[0].text)["result"] == ["dev", "mcp", "write", "ann"]


@pytest.mark.parametrize("name", ["", "inquirer"], ids=["all servers", "one server"])
@pytest.mark.parametrize(("major", "revision"), [("1", "2025-11-25"), ("2", "2025-11-25"), ("2", "2026-07-28")])
def test_the_typescript_sdks_log_in_refresh_and_step_up(
    gateway: Gateway, issuer: str, node: Path, name: str, major: str, revision: str
) -> None:
    urllib.request.urlopen(f"{issuer}/login?user=ann", timeout=PATIENCE).close()
    script, prefix = str(ROOT / "tests/node/login_client.mjs"), "" if name else "inquirer__"
    command = [str(node), script, major, revision, gateway.endpoint(name), f"{prefix}may", f"{prefix}who"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert [json.loads(text)["result"][:2] for text in said["texts"][:2]] == [["dev", "mcp"]] * 2
    assert "ann" in said["texts"][2]
    assert (said["asked"], said["refreshed"], said["same"]) == (2, 1, True)


async def test_3_a_token_is_good_at_the_endpoint_that_it_is_for_and_its_session_is_nobody_elses(
    gateway: Gateway, issuer: str
) -> None:
    storages = {user: Storage() for user in ("ann", "bob")}
    with trio.fail_after(PATIENCE):
        for user, storage in storages.items():
            async with logged_in(gateway.endpoint("inquirer"), issuer, user, storage):
                pass
        tokens = {user: storage.tokens.access_token for user, storage in storages.items() if storage.tokens}
        both = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        async with httpx2.AsyncClient(timeout=PATIENCE, trust_env=False, headers=both) as http:

            async def post(path: str, user: str, message: Any, **headers: str) -> httpx2.Response:
                headers["authorization"] = f"Bearer {tokens[user]}"
                return await http.post(gateway.endpoint(path), json=message, headers=headers)

            assert (await post("", "ann", ask)).status_code == 401  # a token for one server is none for all
            opened = await post("inquirer", "ann", ask)
            assert opened.status_code == 200
            session = opened.headers["mcp-session-id"]
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            at = gateway.endpoint("inquirer")
            for user, status in (("ann", 200), ("bob", 404)):
                assert (await post("inquirer", user, ping, **{"mcp-session-id": session})).status_code == status
            bobs = {"authorization": f"Bearer {tokens['bob']}", "mcp-session-id": session}
            assert (await http.get(at, headers={**bobs, "last-event-id": "g1:1-1"})).status_code == 404
            assert (await http.delete(at, headers=bobs)).status_code == 404


# The same authorization server as the provider of a server behind a gateway: this server is a gateway too

ANN = "token-of-ann-for-pages"


@pytest.fixture(scope="module")
def front(shared_programs: Programs, gateway: Gateway) -> Gateway:
    server = {"url": gateway.endpoint("inquirer"), "auth": {"mode": "user"}}
    config = {"mcpServers": {"behind": server}, "gateway": {"auth": {"tokens": {"ann": ANN}}}}
    return shared_programs.gateway(config)


async def call(front: Gateway, http: httpx2.AsyncClient, session: dict[str, str]) -> Any:
    """The result of a call of the tool behind the gateway in front, by a client that can open no pages."""
    both = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {ANN}"}

    async def post(message: dict[str, Any]) -> httpx2.Response:
        return await http.post(front.endpoint(), json={"jsonrpc": "2.0", **message}, headers=both | session)

    if not session:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opened = await post({"id": 1, "method": "initialize", "params": params})
        session["mcp-session-id"] = opened.headers["mcp-session-id"]
        await post({"method": "notifications/initialized"})
    answer = await post({"id": 2, "method": "tools/call", "params": {"name": "behind__may", "arguments": {}}})
    said = [line for line in answer.text.splitlines() if line.startswith("data: {")] or ["data: " + answer.text]
    return json.loads(said[-1].removeprefix("data: "))["result"]


async def test_a_user_connects_an_account_at_an_authorization_server_that_nobody_here_wrote(
    front: Gateway, issuer: str
) -> None:
    """Found by the server's challenge, registered there, with PKCE, `iss` and `resource`; its tokens live for 3 s, and
    its refresh tokens are good once."""
    session: dict[str, str] = {}
    with trio.fail_after(PATIENCE):
        async with httpx2.AsyncClient(timeout=PATIENCE, trust_env=False) as http:
            page = f"{front.url}/connect"
            asked = await call(front, http, session)
            assert asked["isError"]
            assert page in asked["content"][0]["text"]
            await http.get(f"{issuer}/login?user=bob")
            pages = Pages(http, front.url)
            await pages.open(page)
            await pages.press("Go on", token=ANN)
            await pages.press("Connect: behind")
            assert urlsplit(issuer).netloc in pages.text
            await pages.press("Connect")
            assert "is connected" in pages.text
            for _ in range(2):
                result = await call(front, http, session)
                said = json.loads(result["content"][0]["text"])["result"]
                assert said == ["ops", "mcp", "bob"], "as who signed in there"
                await trio.sleep(3.2)
            await pages.open(page)
            await pages.press("Disconnect: behind")
            assert "not connected" in pages.text
            assert (await call(front, http, session))["isError"]


async def test_the_pages_work_on_a_phone_and_for_everybody(front: Gateway, issuer: str, tmp_path: Path) -> None:
    program = chromium.installed()
    if program is None or not chromium.AXE.exists():
        pytest.skip(chromium.MISSING)
    urllib.request.urlopen(f"{issuer}/login?user=ann", timeout=PATIENCE).close()
    with trio.fail_after(3 * PATIENCE):
        async with chromium.open_page(program, tmp_path) as page:
            await page.open(f"{front.url}/connect")
            await page.shows("Who are you?")
            assert await page.faults() == []
            await page.type("token", ANN)
            await page.press("Go on")
            await page.shows("Connect: behind")
            assert await page.faults() == []
            await page.press("Connect: behind")
            assert "Rights" in await page.shows("Sign in at")
            assert await page.faults() == []
            await page.press("Connect")
            await page.shows("is connected")
            assert await page.faults() == []
            await page.open(f"{front.url}/connect")
            await page.shows("Connect again: behind")
            assert await page.faults() == []
            await page.press("Disconnect: behind")
            await page.shows("not connected")
            await page.open(f"{front.url}/connect/nothing")
            await page.shows("Nothing here")
            assert await page.faults() == []
