"""How the authorization server of an MCP server is found, document by document."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import trio

from actors.protocol.table import BackendSpec, HttpTarget, UpstreamAuth
from gateway.oauth import metadata
from gateway.oauth.challenges import Challenge
from gateway.oauth.discovery import WITHIN, Answer, Discovery
from gateway.oauth.errors import AwayError, OAuthError
from gateway.oauth.flows import Flow, Flows
from gateway.oauth.trust import checked, trusted_by

SERVER = "https://s.test/mcp"
ISSUER = "https://idp.test/t"
KNOWN = "/.well-known/oauth-protected-resource"
USER = UpstreamAuth("user")
RESOURCE = {"resource": SERVER, "authorization_servers": [ISSUER]}
ISSUERS = {"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token"}
FIRST, SECOND, THIRD = (
    "https://idp.test/.well-known/oauth-authorization-server/t",
    "https://idp.test/.well-known/openid-configuration/t",
    "https://idp.test/t/.well-known/openid-configuration",
)


class Documents:
    """What is to be had where; a number: that status."""

    def __init__(self, there: Mapping[str, Any], slow: float = 0.0) -> None:
        self.there = there
        self.slow = slow
        self.asked: list[str] = []

    async def __call__(self, method: str, url: str, **more: Any) -> Answer:
        self.asked.append(url)
        await trio.sleep(self.slow)
        found = self.there.get(url, 404)
        return Answer(found) if isinstance(found, int) else Answer(200, json.dumps(found).encode())


HEADER = Challenge("bearer", {"resource_metadata": "https://s.test/prm"})


@pytest.mark.parametrize(
    ("there", "challenge", "asked"),
    [
        ({"https://s.test/prm": RESOURCE, FIRST: ISSUERS}, HEADER, ["https://s.test/prm", FIRST]),
        ({f"https://s.test{KNOWN}/mcp": RESOURCE, FIRST: ISSUERS}, None, [f"https://s.test{KNOWN}/mcp", FIRST]),
        (
            {f"https://s.test{KNOWN}": RESOURCE, THIRD: ISSUERS, SECOND: 403},
            HEADER,
            ["https://s.test/prm", f"https://s.test{KNOWN}/mcp", f"https://s.test{KNOWN}", FIRST, SECOND, THIRD],
        ),
    ],
)
async def test_documents_are_asked_for_in_the_order_of_mcp_until_one_is_there(
    there: dict[str, Any], challenge: Challenge | None, asked: list[str]
) -> None:
    http = Documents(there)
    found = await Discovery(http).provider(SERVER, challenge, USER)
    assert (found.server.issuer, found.resource.resource, http.asked) == (ISSUER, SERVER, asked)


async def test_a_server_without_a_document_has_the_issuer_that_is_configured() -> None:
    found = await Discovery(Documents({FIRST: ISSUERS})).provider(SERVER, None, replace(USER, issuer=ISSUER))
    assert (found.server.token_endpoint, found.resource.resource) == (f"{ISSUER}/token", None)
    with pytest.raises(OAuthError, match="has no metadata"):
        await Discovery(Documents({})).provider(SERVER, None, replace(USER, issuer=ISSUER))
    by_default = await Discovery(Documents({})).provider(SERVER, None, USER)
    assert by_default.server.token_endpoint == "https://s.test/token"


@pytest.mark.parametrize("broken", [f"https://s.test{KNOWN}/mcp", FIRST])
async def test_a_server_with_a_fault_of_its_own_is_away_and_nothing_else_is_taken_instead(broken: str) -> None:
    whole = {f"https://s.test{KNOWN}/mcp": RESOURCE, f"https://s.test{KNOWN}": RESOURCE, FIRST: ISSUERS}
    http = Documents({**whole, SECOND: ISSUERS, broken: 500})
    with pytest.raises(AwayError):
        await Discovery(http).provider(SERVER, None, USER)
    assert http.asked[-1] == broken


async def test_7_documents_that_each_come_at_the_last_moment_hold_up_nobody_for_long(autojump_clock: Any) -> None:
    http, start = Documents({}, slow=9.9), trio.current_time()
    with pytest.raises(AwayError):
        await Discovery(http).provider(SERVER, HEADER, USER)
    assert trio.current_time() - start == WITHIN


ELSEWHERE = "https://docs.test/idp.json"


@pytest.mark.parametrize("there", [{f"https://s.test{KNOWN}/mcp": RESOURCE}, {}])
async def test_the_operator_may_say_where_the_metadata_is(there: dict[str, Any]) -> None:
    auth = replace(USER, metadata_url=ELSEWHERE)
    http = Documents({**there, ELSEWHERE: ISSUERS, FIRST: 500})
    found = await Discovery(http).provider(SERVER, None, auth)
    assert (found.server.issuer, found.resource.resource) == (ISSUER, SERVER if there else None)
    assert http.asked[-1] == ELSEWHERE
    assert "https://docs.test:443" in found.trusted


@pytest.mark.parametrize(
    ("said", "issuer", "reason"),
    [
        (ISSUERS, "https://other.test", "issuer_mismatch"),
        ({**ISSUERS, "issuer": "https://other.test"}, None, "issuer_changed"),
        ({**ISSUERS, "issuer": "javascript:x"}, None, "bad_metadata"),
        ({"token_endpoint": f"{ISSUER}/token"}, None, "bad_metadata"),
        (404, ISSUER, "no_metadata"),
    ],
)
async def test_8_a_document_that_the_operator_has_named_is_of_an_issuer_that_the_server_names(
    said: Any, issuer: str | None, reason: str
) -> None:
    http = Documents({f"https://s.test{KNOWN}/mcp": RESOURCE, ELSEWHERE: said, FIRST: ISSUERS})
    with pytest.raises(OAuthError) as refused:
        await Discovery(http).provider(SERVER, None, replace(USER, metadata_url=ELSEWHERE, issuer=issuer))
    assert refused.value.reason == reason


async def test_a_copy_of_its_metadata_may_say_that_an_authorization_server_offers_pkce() -> None:
    """As of one that does, and leaves it out of its own."""
    its_own = {**ISSUERS, "authorization_endpoint": f"{ISSUER}/authorize"}
    copy = {**its_own, "code_challenge_methods_supported": ["S256"]}
    discovery = Discovery(Documents({f"https://s.test{KNOWN}/mcp": RESOURCE, FIRST: its_own, ELSEWHERE: copy}))
    with pytest.raises(OAuthError) as refused:
        metadata.for_users((await discovery.provider(SERVER, None, USER)).server)
    assert refused.value.reason == "no_pkce"
    found = await discovery.provider(SERVER, None, replace(USER, metadata_url=ELSEWHERE))
    assert checked(metadata.for_users(found.server), found.trusted) == "https://idp.test:443"


async def test_an_authorization_server_that_refuses_resources_is_told_of_none() -> None:
    http = Documents({f"https://s.test{KNOWN}/mcp": {**RESOURCE, "scopes_supported": ["a"]}, FIRST: ISSUERS})
    found = await Discovery(http).provider(SERVER, None, replace(USER, omit_resource=True))
    assert (found.resource.resource, found.resource.scopes) == (None, ("a",))


async def test_7_the_operator_may_say_what_else_of_an_authorization_server_is_inside() -> None:
    auth = replace(USER, issuer=ISSUER, inside=("https://tokens.corp.test:8443",))
    found = await Discovery(Documents({FIRST: ISSUERS})).provider(SERVER, None, auth)
    assert found.trusted == {"https://s.test:443", "https://idp.test:443", "https://tokens.corp.test:8443"}
    assert checked("http://127.0.0.1/x", trusted_by("http://localhost/mcp")) == "http://127.0.0.1:80"


@pytest.mark.parametrize("host", ["127.evil.test", "127.0.0.1.evil.test", "localhost.evil.test", "127-0-0-1.test"])
async def test_7_a_name_that_begins_like_an_address_of_this_machine_is_not_of_it(host: str) -> None:
    with pytest.raises(OAuthError) as refused:
        checked("http://127.0.0.1/x", trusted_by(f"https://{host}/mcp"))
    assert refused.value.reason == "not_https"


@pytest.mark.parametrize("page", ["http://idp.test/authorize", "http://127.0.0.1/authorize"])
async def test_no_browser_is_sent_to_a_page_that_is_not_https(page: str) -> None:
    """But by servers of this machine (OAuth 2.1, section 1.5)."""
    flow, spec = Flow("ann", "a", SERVER), BackendSpec("a", HttpTarget(SERVER), auth=USER)
    said = {**ISSUERS, "authorization_endpoint": page, "code_challenge_methods_supported": ["S256"]}
    discovery = Discovery(Documents({f"https://s.test{KNOWN}/mcp": RESOURCE, FIRST: said}))
    nothing: Any = None
    flows = Flows(nothing, nothing, nothing, discovery, nothing, redirect_uri="", described=None)
    with pytest.raises(OAuthError) as refused:
        await flows.provider(flow, spec)
    assert refused.value.reason == "not_https"
