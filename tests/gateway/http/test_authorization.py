"""The gateway as a protected resource: the exact challenges, the metadata, and their order before everything else."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from actors.ports import Answer, Asker, Principal, Rights, Unproven
from gateway.http.authorization import Authorization, Resource, metadata_url
from gateway.http.security import Security, SecurityChecks
from tests.support.trail import Trail

BOTH = "application/json, text/event-stream"
BASE = "https://mcp.test/gw"
META = "https://mcp.test/.well-known/oauth-protected-resource/gw"
ISSUER = "https://idp.test"
ANN = Asker(Principal("ann"), Rights(ISSUER, "ann", "app", frozenset({"dev"}), frozenset({"read"}), 2e9))


class FakeVerifier:
    """Knows a few tokens, and what they are asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.remembers: dict[str, Asker] = {}

    def known(self, token: str, resources: Sequence[str]) -> Asker | None:
        return self.remembers.get(token)

    async def verify(self, token: str, resources: Sequence[str]) -> Asker | Unproven:
        await trio.lowlevel.checkpoint()
        self.asked.append((token, tuple(resources)))
        old, away = Unproven(expired=True, reason="expired"), Unproven(away=True, reason="away")
        return {"good": ANN, "old": old, "away": away}.get(token, Unproven(reason="signature"))


class Revoking:
    """Has taken the access from one."""

    def revoked(self, asker: Asker) -> bool:
        return asker.principal.name == "bob"


@pytest.fixture
def verifier() -> FakeVerifier:
    return FakeVerifier()


@pytest.fixture
def app(make_app: Any, verifier: FakeVerifier) -> Any:
    resource = Resource(BASE, (ISSUER,), ("mcp", 'odd"one\\'))
    security = Security("127.0.0.1", tokens={"ci": "ci-token", "bob": "bob-token"})
    authorize = partial(Authorization, resource=resource, verifier=verifier, revocations=Revoking())
    return make_app(security=security, authorize=authorize)


SCOPE = 'scope="mcp odd\\"one\\\\"'
PLACE = f'resource_metadata="{META}/mcp/files"'
CASES: list[tuple[str | None, int, str]] = [
    (None, 401, f"Bearer {SCOPE}, {PLACE}"),
    ("Basic x", 401, f"Bearer {SCOPE}, {PLACE}"),
    ("Bearer ", 401, f"Bearer {SCOPE}, {PLACE}"),
    ("Bearer bad", 401, f'Bearer error="invalid_token", error_description="not valid here", {SCOPE}, {PLACE}'),
    ("Bearer bob-token", 401, f'Bearer error="invalid_token", error_description="not valid here", {SCOPE}, {PLACE}'),
    ("Bearer old", 401, f'Bearer error="invalid_token", error_description="expired", {SCOPE}, {PLACE}'),
    ("Bearer x y", 400, 'Bearer error="invalid_request", error_description="the Authorization header is malformed"'),
]


@pytest.mark.parametrize(("given", "status", "challenge"), CASES)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
async def test_each_case_has_its_challenge(
    ask: Any, app: Any, door: Any, given: str | None, status: int, challenge: str, method: str
) -> None:
    headers = {"accept": BOTH, **({"authorization": given} if given is not None else {})}
    heard = await ask(method, "/mcp/files", headers, app=app)
    assert (heard.status, heard.headers["www-authenticate"]) == (status, challenge)
    assert json.loads(heard.body)["error"]["code"] == -32600
    assert door.asked == []


async def test_a_token_that_is_remembered_is_not_asked_about_and_can_be_revoked(
    ask: Any, app: Any, door: Any, verifier: FakeVerifier
) -> None:
    verifier.remembers = {"ann.s": ANN, "bob.s": Asker(Principal("bob"), Rights(ISSUER, "bob"))}
    for token, status in (("ann.s", 200), ("bob.s", 401)):
        headers = {"accept": BOTH, "content-type": "application/json", "authorization": f"Bearer {token}"}
        assert (await ask("POST", "/mcp", headers, b"{}", app=app)).status == status
    assert [one.principal.name for one in door.asked] == ["ann"]
    assert [token for token, _ in verifier.asked] == ["bob.s"]
    address = await ask("POST", "/mcp?access_token=ann.s", {"accept": BOTH, "authorization": "Bearer ann.s"}, app=app)
    assert address.status == 400


async def test_where_nobody_can_tell_it_is_no_fault_of_the_clients(ask: Any, app: Any) -> None:
    heard = await ask("POST", "/mcp", {"accept": BOTH, "authorization": "Bearer away"}, app=app)
    assert (heard.status, heard.headers["retry-after"]) == (503, "5")
    assert "www-authenticate" not in heard.headers


@pytest.mark.parametrize("query", ["access_token=good", "x=1&access_token=good"])
async def test_a_token_in_the_address_is_refused_and_not_looked_at(
    ask: Any, app: Any, verifier: FakeVerifier, query: str
) -> None:
    heard = await ask("POST", f"/mcp?{query}", {"accept": BOTH, "authorization": "Bearer good"}, app=app)
    assert heard.status == 400
    assert 'error="invalid_request"' in heard.headers["www-authenticate"]
    assert verifier.asked == []


@pytest.mark.parametrize("fields", [("Bearer good", "Bearer good"), ("Basic x", "Bearer good"), ("Bearer good", "")])
async def test_two_authorizations_are_refused_and_neither_is_looked_at(
    app: Any, verifier: FakeVerifier, fields: tuple[str, str]
) -> None:
    assert await asked(app, *fields) == 400
    assert verifier.asked == []


async def test_what_is_asked_carries_whose_token_it_was(ask: Any, app: Any, door: Any, verifier: FakeVerifier) -> None:
    headers = {"accept": BOTH, "content-type": "application/json"}
    await ask("POST", "/mcp/files", {**headers, "authorization": "Bearer good"}, body=b"{}", app=app)
    await ask("GET", "/mcp", {**headers, "authorization": "Bearer ci-token"}, app=app)
    assert [(one.principal.name, one.rights.subject) for one in door.asked] == [("ann", "ann"), ("ci", "ci")]
    assert door.asked[0].rights == ANN.rights
    assert verifier.asked == [("good", (f"{BASE}/mcp/files", f"{BASE}/mcp", BASE))]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/files", "/messages/files", "/sse", "/ws", "/nowhere"])
async def test_nothing_of_a_body_is_read_before_it_is_known_whose_it_is(app: Any, path: str) -> None:
    async def receive() -> Any:
        raise AssertionError("the body was read")

    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    for authorization in (b"Bearer bad", b"Bearer away", b"Bearer x y"):
        headers = [(b"host", b"localhost"), (b"authorization", authorization), (b"content-length", b"9999999999")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await app(scope, receive, send)
    assert [event["status"] for event in sent if "status" in event] == [401, 503, 400]


async def test_14_a_foreign_host_or_origin_is_refused_before_a_token_is_looked_at(
    ask: Any, app: Any, verifier: FakeVerifier
) -> None:
    for headers in ({"host": "evil.test"}, {"origin": "https://evil.test"}):
        heard = await ask("POST", "/mcp", {"accept": BOTH, "authorization": "Bearer good", **headers}, app=app)
        assert heard.status == 403
    assert verifier.asked == []


# Metadata ------------------------------------------------------------------------------------------------------

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.mark.parametrize("below", ["", "/gw"], ids=["stripped by a proxy", "as it is"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/files", "/sse", "/sse/files", "/ws", "/ws/files"])
async def test_every_endpoint_has_its_metadata(ask: Any, app: Any, path: str, below: str) -> None:
    heard = await ask("GET", WELL_KNOWN + below + path, {}, app=app)
    assert heard.status == 200
    assert heard.headers["content-type"] == "application/json"
    assert (heard.headers["access-control-allow-origin"], heard.headers["cache-control"]) == ("*", "max-age=300")
    assert json.loads(heard.body) == {
        "resource": BASE + path,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "resource_name": "Stagedoor",
        "scopes_supported": ["mcp", 'odd"one\\'],
    }
    assert metadata_url(BASE, path) == META + path


@pytest.mark.parametrize("headers", [{}, {"x-forwarded-host": "evil.test", "forwarded": "host=evil.test"}])
async def test_14_the_root_is_that_of_all_servers_and_no_header_changes_an_address(
    ask: Any, app: Any, headers: dict[str, str]
) -> None:
    heard = await ask("GET", WELL_KNOWN, headers, app=app)
    assert json.loads(heard.body)["resource"] == f"{BASE}/mcp"
    refused = await ask("GET", "/mcp", {"accept": BOTH, **headers}, app=app)
    assert "evil" not in refused.headers["www-authenticate"]


@pytest.mark.parametrize("origin", ["https://inspector.test", "http://localhost:6274"], ids=["foreign", "allowed"])
@pytest.mark.parametrize(("path", "status"), [("/mcp", 200), ("/mcp/nope", 404)])
async def test_a_page_of_any_origin_may_read_it(ask: Any, app: Any, path: str, status: int, origin: str) -> None:
    heard = await ask("GET", WELL_KNOWN + path, {"origin": origin}, app=app)
    # Of one that is named twice browsers show nothing.
    assert (heard.status, heard.headers["access-control-allow-origin"]) == (status, "*")
    asked = {"origin": origin, "access-control-request-headers": "mcp-protocol-version"}
    heard = await ask("OPTIONS", WELL_KNOWN + path, asked, app=app)
    granted = [heard.headers[f"access-control-allow-{what}"] for what in ("origin", "methods", "headers")]
    assert (heard.status, granted) == (204, ["*", "GET, HEAD, OPTIONS", "mcp-protocol-version"])


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_a_foreign_host_may_not_read_it(ask: Any, app: Any, method: str) -> None:
    assert (await ask(method, f"{WELL_KNOWN}/mcp", {"host": "evil.test"}, app=app)).status == 403


@pytest.mark.parametrize("path", ["/mcp/nope", "/nope", "/mcp/files/x", "/healthz", "/messages", "x"])
async def test_there_is_none_of_what_there_is_not(ask: Any, app: Any, path: str) -> None:
    assert (await ask("GET", WELL_KNOWN + path, {}, app=app)).status in (401, 404)


async def test_without_issuers_there_is_none(ask: Any, make_app: Any) -> None:
    app = make_app(security=Security("127.0.0.1", tokens={"ci": "x"}))
    assert (await ask("GET", f"{WELL_KNOWN}/mcp", {}, app=app)).status == 404
    assert (await ask("POST", f"{WELL_KNOWN}/mcp", {}, app=app)).status == 405


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (WELL_KNOWN, "GET, HEAD, OPTIONS"),
        ("/.well-known/oauth-authorization-server", "GET, HEAD, OPTIONS"),
        ("/connect", "GET, HEAD, POST, OPTIONS"),
        ("/connect/client-metadata.json", "GET, HEAD, POST, OPTIONS"),
    ],
)
async def test_who_comes_by_another_method_is_told_which_there_are(
    ask: Any, make_app: Any, path: str, allow: str
) -> None:
    async def page(*_: Any) -> Answer:
        return Answer(200, b"a page")

    heard = await ask("DELETE", path, {}, app=make_app(pages=page))
    assert (heard.status, heard.headers.get("allow")) == (405, allow)


def test_the_challenge_of_a_step_up_names_all_scopes_at_once() -> None:
    found = Authorization(SecurityChecks(Security("127.0.0.1")), Resource(BASE, (ISSUER,), ("mcp",)))
    assert found.insufficient("/mcp/x", ("a", "b"), "why é\r\n") == (
        f'Bearer error="insufficient_scope", error_description="why ???", scope="a b", resource_metadata="{META}/mcp/x"'
    )


# The audit trail


@pytest.fixture
def trail() -> Trail:
    return Trail()


@pytest.fixture
def audited(make_app: Any, verifier: FakeVerifier, trail: Trail) -> Any:
    security = Security("127.0.0.1", tokens={"ci": "ci-token", "bob": "bob-token"})
    resource = Resource(BASE, (ISSUER,), ("mcp",))
    authorize = partial(Authorization, resource=resource, verifier=verifier, revocations=Revoking(), audit=trail)
    return make_app(security=security, authorize=authorize)


async def asked(
    app: Any,
    *tokens: str | None,
    ip: str = "192.0.2.7",
    method: str = "GET",
    path: str = "/mcp",
    version: str = "",
) -> int:
    """A request from this address, whatever its headers say; the status."""
    headers = [(b"host", b"localhost"), (b"x-forwarded-for", b"203.0.113.1"), (b"forwarded", b"for=203.0.113.1")]
    headers += [(b"authorization", token.encode()) for token in tokens if token is not None]
    headers += [(b"mcp-protocol-version", version.encode())] if version else []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": b"",
        "client": (ip, 5),
    }
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        statuses.extend([event["status"]] if "status" in event else [])

    await app(scope, receive, send)
    return statuses[0]


async def test_a_good_token_is_told_of_once_for_each_address_and_never_itself(audited: Any, trail: Trail) -> None:
    for ip in ("192.0.2.7", "192.0.2.7", "2001:db8::1"):
        await asked(audited, "Bearer good", ip=ip)
    await asked(audited, "Bearer ci-token")
    await asked(audited, "Bearer ci-token")
    ann = {"event": "authn.ok", "principal": "ann", "iss": ISSUER, "client_id": "app"}
    assert trail.lines == [
        {**ann, "ip": "192.0.2.7"},
        {**ann, "ip": "2001:db8::1"},
        {"event": "authn.ok", "principal": "ci", "iss": "static:", "ip": "192.0.2.7"},
    ]
    assert "good" not in json.dumps(trail.lines)
    assert "ci-token" not in json.dumps(trail.lines)


async def test_a_token_that_gives_something_else_than_before_is_told_of_again(
    audited: Any, trail: Trail, verifier: FakeVerifier
) -> None:
    """As one may by introspection, whose issuer is asked again; another value that says the same is no other."""
    for scopes in (("mcp",), ("mcp", "tools"), ("tools", "mcp")):
        verifier.remembers["opaque"] = Asker(Principal("ann"), Rights(ISSUER, "ann", scopes=frozenset(scopes)))
        await asked(audited, "Bearer opaque")
    assert [line["event"] for line in trail.lines] == ["authn.ok", "authn.ok"]


async def test_of_a_token_that_was_told_of_its_groups_are_not_kept(
    audited: Any, trail: Trail, verifier: FakeVerifier
) -> None:
    rights = Rights(ISSUER, "ann", groups=frozenset(f"group-{number}" for number in range(1000)))
    groups = weakref.ref(rights.groups)
    verifier.remembers["opaque"] = Asker(Principal("ann"), rights)
    del rights
    for _ in range(2):
        await asked(audited, "Bearer opaque")
    assert [line["event"] for line in trail.lines] == ["authn.ok"]
    verifier.remembers.clear()
    gc.collect()
    assert groups() is None


async def test_the_era_is_told_as_far_as_it_is_seen_before_a_message_is_read(audited: Any, trail: Trail) -> None:
    for path, version in (("/mcp", "2025-11-25"), ("/mcp", "2026-07-28"), ("/mcp", "1999-01-01"), ("/messages", "")):
        await asked(audited, "Bearer made-up", path=path, version=version)
    assert [line.get("era") for line in trail.lines] == ["legacy", "modern", None, "legacy"]
    await asked(audited, "Bearer good", version="2026-07-28")
    assert (trail.lines[-1]["event"], trail.lines[-1]["era"]) == ("authn.ok", "modern")


@pytest.mark.parametrize(
    ("token", "status", "reason"),
    [
        (None, 401, "no_token"),
        ("Basic x", 401, "no_token"),
        ("Bearer x y", 400, "malformed"),
        ("Bearer bob-token", 401, "revoked"),
        ("Bearer old", 401, "expired"),
        ("Bearer away", 503, "away"),
        ("Bearer made-up", 401, "signature"),
    ],
)
async def test_whoever_is_not_let_in_is_told_of_with_the_reason_and_without_the_token(
    audited: Any, trail: Trail, token: str | None, status: int, reason: str
) -> None:
    assert await asked(audited, token) == status
    assert trail.lines == [{"event": "authn.fail", "reason": reason, "status": status, "ip": "192.0.2.7"}]


async def test_who_is_let_in_without_a_token_is_no_line(make_app: Any, trail: Trail) -> None:
    app = make_app(authorize=partial(Authorization, audit=trail))
    await asked(app, None)
    assert trail.lines == []
