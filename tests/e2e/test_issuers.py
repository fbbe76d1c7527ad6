"""Authorization servers that nobody here wrote, and which Java runs: Keycloak, whose tokens are as companies have them,
and mock-oauth2-server. Both exchange tokens (RFC 8693). `make issuers` fetches them and runs this; so does `make chaos`
where there is Maven.

A gateway in front takes their tokens, and has the same users at a server that takes them too: a second gateway, by
exchange, and by accounts that users connect on the page of the first one.
"""

from __future__ import annotations

import base64
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from tests.support.pages import Pages
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import ROOT, Gateway, Programs, answers, shared_programs

__all__ = ["shared_programs"]

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

BUILT = ROOT / "build" / "issuers"
NATIVE = str(ROOT / "tests" / "gateway" / "native" / "inquirer.py") + ":server"
STARTS = 4 * PATIENCE
"""Keycloak builds itself when it starts for the first time."""
SECRET = "secret-of-the-gateway"
WORD = "password-of-ann"
BACK = "http://127.0.0.1:9/callback"


def browser() -> httpx2.AsyncClient:
    """To browsers this machine is as safe as https is: Keycloak's cookies are `Secure`."""
    jar = CookieJar(DefaultCookiePolicy(secure_protocols=("http", "https")))
    return httpx2.AsyncClient(timeout=PATIENCE, trust_env=False, cookies=jar)


class Idp(ABC):
    """An authorization server with the users ann, in the group dev, and bob, in none. The client `gateway` is ours,
    with a secret; `inspector` is anybody's, whose tokens are for `mcp`."""

    issuer: str
    options: Mapping[str, Any] = {}
    dev = "dev"
    scope = "openid mcp"

    @abstractmethod
    async def sign_in(self, pages: Pages, user: str, audience: str = "") -> None:
        """On its own page. `audience`: whom the tokens are meant for, where that is said by whoever signs in."""

    async def token(self, user: str) -> str:
        """As a client of the user's gets it: by a code, with PKCE."""
        verifier = "v" * 43
        query = {
            "client_id": "inspector",
            "response_type": "code",
            "redirect_uri": BACK,
            "scope": self.scope,
            "state": "s",
            "code_challenge": "7w_YNF9DSfIdPf_pRjSq646_kPr-2-o9NAl16JGghdM",
            "code_challenge_method": "S256",
        }
        async with browser() as http:
            metadata = (await http.get(f"{self.issuer}/.well-known/openid-configuration")).json()
            pages = Landing(http, self.issuer)
            await pages.open(f"{metadata['authorization_endpoint']}?{urlencode(query)}")
            await self.sign_in(pages, user, "mcp")
            code = parse_qs(urlsplit(pages.landed).query)["code"][0]
            form = {
                "grant_type": "authorization_code",
                "client_id": "inspector",
                "code": code,
                "code_verifier": verifier,
                "redirect_uri": BACK,
            }
            answer = await http.post(metadata["token_endpoint"], data=form)
            assert answer.status_code == 200, answer.text
            token: str = answer.json()["access_token"]
            return token


class Landing(Pages):
    """Of a browser that is sent back to a client in the end: `landed` is where."""

    landed = ""

    async def open(self, url: str) -> None:
        if url.startswith(BACK):
            self.landed = url
        else:
            await super().open(url)


class Keycloak(Idp):
    """One realm, made by its administrators' REST API as docs/issuers/keycloak.md says."""

    options: Mapping[str, Any] = {"preset": "keycloak"}
    dev = "/dev"

    def __init__(self, url: str) -> None:
        self.url, self.issuer = url, f"{url}/realms/main"
        self._admin("POST", "", {"realm": "main", "enabled": True})
        self._admin("POST", "/main/groups", {"name": "dev"})
        for user, groups in (("ann", ["/dev"]), ("bob", [])):
            name = {"username": user, "firstName": user, "lastName": user, "email": f"{user}@example.com"}
            word = {"type": "password", "value": WORD}
            self._admin("POST", "/main/users", name | {"enabled": True, "groups": groups, "credentials": [word]})
        member = {"full.path": "true", "claim.name": "groups", "id.token.claim": "true"}
        groups_of = self._mapper("oidc-group-membership-mapper", **member)
        for_us = self._mapper("oidc-audience-mapper", **{"included.client.audience": "gateway"})
        resource = self._mapper("oidc-audience-mapper", **{"included.custom.audience": "mcp"})
        behind = self._mapper("oidc-audience-mapper", **{"included.client.audience": "tracker"})
        self._client("tracker", clientAuthenticatorType="client-secret", secret="of-nobody", publicClient=False)
        self._scope("mcp", groups_of, for_us, resource)
        self._scope("tracker", groups_of, behind)
        self._scope("groups", groups_of)
        self._client("inspector", publicClient=True, redirectUris=[BACK], optionalClientScopes=["mcp"])
        self._client(
            "gateway",
            publicClient=False,
            secret=SECRET,
            redirectUris=["http://127.0.0.1:*"],
            defaultClientScopes=["basic", "acr", "groups"],
            optionalClientScopes=["tracker", "offline_access"],
            attributes={"standard.token.exchange.enabled": "true"},
        )

    def _admin(self, method: str, path: str, body: Any = None) -> Any:
        form = {"grant_type": "password", "client_id": "admin-cli", "username": "admin", "password": WORD}
        with httpx2.Client(timeout=PATIENCE, trust_env=False) as http:
            given = http.post(f"{self.url}/realms/master/protocol/openid-connect/token", data=form).json()
            bearer = {"authorization": f"Bearer {given['access_token']}"}
            answer = http.request(method, f"{self.url}/admin/realms{path}", json=body, headers=bearer)
        assert answer.is_success, (path, answer.text)
        return answer.json() if answer.content else None

    @staticmethod
    def _mapper(kind: str, **config: str) -> dict[str, Any]:
        config = {"access.token.claim": "true", "introspection.token.claim": "true", **config}
        name = f"{kind} {sorted(config.items())}"[:200]
        return {"name": name, "protocol": "openid-connect", "protocolMapper": kind, "config": config}

    def _scope(self, name: str, *mappers: dict[str, Any]) -> None:
        shown = {"include.in.token.scope": "true"}
        scope = {"name": name, "protocol": "openid-connect", "attributes": shown, "protocolMappers": mappers}
        self._admin("POST", "/main/client-scopes", scope)

    def _client(self, name: str, **more: Any) -> None:
        scopes = {"defaultClientScopes": ["basic", "acr"]}
        self._admin("POST", "/main/clients", {"clientId": name, "standardFlowEnabled": True, **scopes, **more})

    async def sign_in(self, pages: Pages, user: str, audience: str = "") -> None:
        assert "kc-form-login" in pages.text, pages.text
        await pages.fill(username=user, password=WORD)

    async def log_out(self, user: str) -> None:
        """No token of this user's is good any more."""
        (found,) = self._admin("GET", f"/main/users?username={user}")
        self._admin("POST", f"/main/users/{found['id']}/logout", {})


class MockOAuth2(Idp):
    """Whoever comes says on its page who he is, and what his token has."""

    def __init__(self, url: str) -> None:
        self.issuer = f"{url}/main"

    async def sign_in(self, pages: Pages, user: str, audience: str = "") -> None:
        claims = {"groups": ["dev"] if user == "ann" else []} | ({"aud": [audience]} if audience else {})
        await pages.fill(username=user, claims=json.dumps(claims))


@pytest.fixture(scope="module")
def keycloak(shared_programs: Programs) -> Keycloak:
    program = next(BUILT.glob("keycloak/*/bin/kc.sh"), None)
    if program is None:
        pytest.skip("Keycloak missing: `make issuers` fetches it")
    port, managed = free_port(), free_port()
    options = [f"--http-port={port}", f"--http-management-port={managed}", "--http-host=127.0.0.1", "--db=dev-mem"]
    environment = {
        "KC_BOOTSTRAP_ADMIN_USERNAME": "admin",
        "KC_BOOTSTRAP_ADMIN_PASSWORD": WORD,
        "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
    }
    started = shared_programs.start("keycloak", [program, "start-dev", *options], env=environment)
    wait(started, f"http://127.0.0.1:{port}/realms/master")
    return Keycloak(f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def mock(shared_programs: Programs) -> MockOAuth2:
    if not (BUILT / "mock-oauth2-server").exists():
        pytest.skip("mock-oauth2-server missing: `make issuers` fetches it")
    port = free_port()
    main = "no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt"
    environment = {
        "SERVER_HOSTNAME": "127.0.0.1",
        "SERVER_PORT": str(port),
        "JSON_CONFIG": json.dumps({"interactiveLogin": True}),
    }
    command = ["java", "-Xmx128m", "-cp", f"{BUILT}/mock-oauth2-server/*", main]
    started = shared_programs.start("mock-oauth2-server", command, env=environment)
    wait(started, f"http://127.0.0.1:{port}/main/.well-known/openid-configuration")
    return MockOAuth2(f"http://127.0.0.1:{port}")


def wait(program: Any, url: str) -> None:
    there, end = answers(url), time.monotonic() + STARTS
    while not there():
        assert program.status is None, program.story()
        assert time.monotonic() < end, program.story()
        time.sleep(0.5)


@pytest.fixture(scope="module", params=["keycloak", "mock"])
def idp(request: pytest.FixtureRequest) -> Idp:
    found: Idp = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def behind(shared_programs: Programs, idp: Idp) -> Gateway:
    """The server that takes tokens for the tracker."""
    issuer = {"issuer": idp.issuer, "audiences": ["tracker"], "scopes": ["openid", "tracker"], **idp.options}
    return shared_programs.gateway(
        {"mcpServers": {"inquirer": {"native": NATIVE}}, "gateway": {"auth": {"issuers": [issuer]}}}
    )


@pytest.fixture(scope="module")
def front(shared_programs: Programs, idp: Idp, behind: Gateway) -> Gateway:
    ours = {"clientId": "gateway", "clientSecret": SECRET}
    tracker = behind.endpoint("inquirer")
    servers = {
        "here": {"native": NATIVE},
        "exchanged": {
            "url": tracker,
            "auth": {"mode": "exchange", "audience": "tracker", "scopes": ["tracker"], **ours},
        },
        "own": {"url": tracker, "auth": {"mode": "user", **ours}},
    }
    auth = {
        "issuers": [{"issuer": idp.issuer, "audiences": ["mcp"], "scopes": ["openid", "mcp"], **idp.options}],
        "browser": {"mode": "oidc", **ours},
    }
    policy = [{"who": {"groups": [idp.dev]}, "allow": ["*:*"]}, {"allow": ["here:who"]}]
    return shared_programs.gateway({"mcpServers": servers, "gateway": {"auth": auth, "policy": policy}})


class Client:
    """A session of a user, by a client that can open no pages."""

    def __init__(self, http: httpx2.AsyncClient, gateway: Gateway, token: str) -> None:
        self._http, self._url = http, gateway.endpoint()
        self._headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}

    async def post(self, message: dict[str, Any]) -> httpx2.Response:
        return await self._http.post(self._url, json={"jsonrpc": "2.0", **message}, headers=self._headers)

    async def open(self) -> int:
        """The status of its `initialize`."""
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opened = await self.post({"id": 1, "method": "initialize", "params": params})
        if opened.status_code == 200:
            self._headers["mcp-session-id"] = opened.headers["mcp-session-id"]
            await self.post({"method": "notifications/initialized"})
        return opened.status_code

    async def call(self, tool: str) -> Any:
        """What the tool answers, or the error."""
        answer = await self.post({"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
        said = [line for line in answer.text.splitlines() if line.startswith("data: {")] or ["data: " + answer.text]
        message = json.loads(said[-1].removeprefix("data: "))
        if "error" in message:
            return message["error"]
        text = message["result"]["content"][0]["text"]
        return text if message["result"].get("isError") else json.loads(text).get("result", text)


@pytest.fixture
async def http() -> Any:
    async with browser() as found:
        yield found


def subject(token: str) -> str:
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return str(claims["sub"])


async def test_users_get_in_with_the_rights_of_their_groups(
    idp: Idp, front: Gateway, behind: Gateway, http: Any
) -> None:
    ann, bob = await idp.token("ann"), await idp.token("bob")
    for token, may in ((ann, True), (bob, False)):
        client = Client(http, front, token)
        assert await client.open() == 200
        said = await client.call("here__may")
        if may:
            assert said[0] == idp.dev
            assert said[-1] == subject(token)
            assert "mcp" in said or not idp.options, "the mock's tokens have no scopes"
        else:
            assert said["code"] == -32602
    assert await Client(http, front, ann[:-8] + "AAAAAAAA").open() == 401
    assert await Client(http, behind, ann).open() == 401, "it is not meant for that one"


async def test_a_token_is_exchanged_for_one_that_is_meant_for_the_server(idp: Idp, front: Gateway, http: Any) -> None:
    token = await idp.token("ann")
    client = Client(http, front, token)
    assert await client.open() == 200
    for _ in range(2):
        said = await client.call("exchanged__may")
        assert (said[0], said[-1]) == (idp.dev, subject(token)), "as the same user, with a token of his own"


async def test_who_signs_in_on_our_page_connects_his_account(idp: Idp, front: Gateway, http: Any) -> None:
    token = await idp.token("ann")
    client = Client(http, front, token)
    assert await client.open() == 200
    page = f"{front.url}/connect"
    assert page in await client.call("own__may")
    pages = Pages(http, front.url)
    await pages.open(page)
    await pages.press("Sign in")
    await idp.sign_in(pages, "ann")
    await pages.press("Connect: own")
    assert urlsplit(idp.issuer).netloc in pages.text
    await pages.press("Connect")
    if "is connected" not in pages.text:  # it asks again who that is
        await idp.sign_in(pages, "ann", "tracker")
    assert "is connected" in pages.text
    said = await client.call("own__may")
    assert (said[0], said[-1]) == (idp.dev, subject(token))


async def test_a_token_that_keycloak_does_not_know_any_more_is_refused(
    keycloak: Keycloak, shared_programs: Programs, http: Any
) -> None:
    endpoint = f"{keycloak.issuer}/protocol/openid-connect/token/introspect"
    asks = {"endpoint": endpoint, "clientId": "gateway", "clientSecret": SECRET}
    issuer = {"issuer": keycloak.issuer, "preset": "keycloak", "audiences": ["mcp"], "introspect": "always"}
    issuers = [issuer | {"introspection": asks}]
    gateway = shared_programs.gateway(
        {"mcpServers": {"here": {"native": NATIVE}}, "gateway": {"auth": {"issuers": issuers}}}
    )
    good, gone = await keycloak.token("ann"), await keycloak.token("bob")
    await keycloak.log_out("bob")
    assert await Client(http, gateway, good).open() == 200
    assert await Client(http, gateway, gone).open() == 401
