"""Who may come in, as a file says it: issuers, and how pages find out whose browser it is. What can't be meant so."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from actors.protocol.policy import Facts
from actors.protocol.rights import Rights
from gateway.config import Problem, Settings, advice, load
from gateway.config.settings import Address
from gateway.http.security import SecurityChecks
from gateway.lifecycle import security

ISSUER = {"issuer": "https://idp.test"}
TOKENS = {"ann": "a" * 32}
ASKED = {"endpoint": "https://idp.test", "clientId": "a"}
PUBLIC = "https://mcp.test"
PROXY = {"mode": "proxy", "header": "X-User", "from": ["10.0.0.0/8", "::1"]}
PERSONAL = {"tracker": {"url": "https://tracker.test/mcp", "auth": {"mode": "user"}}}


def config(auth: Any = None, servers: Any = None, **gateway: Any) -> str:
    return json.dumps({"mcpServers": servers or {}, "gateway": {"publicUrl": PUBLIC, "auth": auth or {}, **gateway}})


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"issuer": "https://idp.test?x=1"}, "issuer", "without a query"),
        ({"issuer": "https://login.test/{tenantid}/v2.0"}, "issuer", "name each"),
        ({"audiences": ["/"]}, "audiences[0]", "names nothing"),
        ({"algorithms": []}, "algorithms", "no token would be good"),
        ({"subjectClaim": []}, "subjectClaim", "nobody could be told from anybody else"),
        ({"introspect": "always"}, "introspect", "needs `introspection`"),
        ({"scopes": ["a b"]}, "scopes[0]", "must be one scope"),
        ({"scopes": ["offline_access"]}, "scopes[0]", "no resource asks for it"),
        (
            {"introspection": {"endpoint": "http://idp.test", "clientId": "a", "clientSecret": "b"}},
            None,
            "must be https",
        ),
        ({"introspection": ASKED}, "introspection.clientSecret", "is missing"),
        ({"introspection": ASKED | {"privateKey": "x"}}, "introspection.privateKey", "signs by ES256"),
        (
            {"introspection": ASKED | {"privateKey": "x", "clientSecret": "y"}},
            "introspection.privateKey",
            "one of them",
        ),
        ({"introspection": ASKED | {"method": "none"}}, "introspection.method", "must be"),
    ],
)
def test_an_issuer_that_can_not_be_meant_so_is_refused(
    problem: Callable[..., Problem], more: dict[str, Any], field: str | None, words: str
) -> None:
    found = problem(config({"issuers": [ISSUER | more]}))
    assert words in found.message
    assert found.field.startswith("gateway.auth.issuers[0]." + (field or "introspection."))


@pytest.mark.parametrize(
    ("auth", "gateway", "field", "words"),
    [
        ({"browser": {"mode": "none"}}, {}, "auth.browser.mode", "only this machine can reach"),
        ({"browser": {"mode": "none"}}, {"listen": "0.0.0.0:80"}, "auth.browser.mode", "only this machine can reach"),
        ({"browser": {"mode": "oidc", "clientId": "x"}}, {}, "auth.browser.mode", "needs `auth.issuers`"),
        ({"issuers": [ISSUER], "browser": {"mode": "oidc"}}, {}, "auth.browser.clientId", "is missing"),
        (
            {"issuers": [ISSUER], "bindClient": True, "browser": {"mode": "oidc", "clientId": "x"}},
            {},
            "auth.browser.mode",
            "does not fit `bindClient`",
        ),
        (
            {"issuers": [ISSUER], "bindClient": True, "browser": PROXY},
            {},
            "auth.browser.mode",
            "does not fit `bindClient`",
        ),
        ({"browser": {"mode": "token"}}, {}, "auth.browser.mode", "needs `auth.tokens`"),
        ({"browser": {"mode": "proxy", "header": "X-User"}}, {}, "auth.browser", "says nothing"),
        ({"browser": PROXY | {"from": ["lan"]}}, {}, "auth.browser.from[0]", "must be an address or a network"),
        ({"browser": PROXY | {"header": "X User"}}, {}, "auth.browser.header", "is not a header name"),
        ({"browser": PROXY | {"groups": "a:b"}}, {}, "auth.browser.groups", "is not a header name"),
        (
            {"tokens": TOKENS, "browser": {"mode": "token", "clientId": "x"}},
            {},
            "auth.browser.clientId",
            "has no meaning",
        ),
        ({"browser": {"mode": "guess"}}, {}, "auth.browser.mode", "must be 'oidc', 'token', 'proxy' or 'none'"),
        (
            {"tokens": TOKENS, "browser": {"mode": "token"}},
            {"listen": "0.0.0.0:80", "publicUrl": None},
            "publicUrl",
            "users are sent there",
        ),
        ({"issuers": [ISSUER]}, {}, "auth.browser", "users sign in at the first issuer"),
        ({}, {}, "auth.browser", "nothing says who its users are"),
        ({}, {"publicUrl": "https://mcp.test?x=1"}, "publicUrl", "without a query"),
    ],
)
def test_pages_that_could_not_tell_who_is_there_are_refused(
    problems: Callable[..., list[Problem]], auth: Any, gateway: Any, field: str, words: str
) -> None:
    found = problems(config(auth, PERSONAL, **gateway))
    assert [one.field for one in found if words in one.message] == [f"gateway.{field}"]


def test_each_way_to_tell_whose_browser_it_is_can_be_said(settings: Callable[..., Settings]) -> None:
    def browser(auth: Any, **gateway: Any) -> Any:
        return settings(config(auth, PERSONAL, **gateway)).auth.browser

    secret = {"mode": "oidc", "clientId": "pages", "clientSecret": "s"}
    oidc = browser({"issuers": [ISSUER], "browser": secret})
    assert (oidc.mode, oidc.client_id, oidc.client_secret) == ("oidc", "pages", "s")
    proxy = browser({"browser": PROXY | {"groups": "X-Groups"}})
    assert (proxy.header, proxy.groups, proxy.peers) == ("X-User", "X-Groups", ("10.0.0.0/8", "::1"))
    assert browser({"tokens": TOKENS}).mode == "token"
    filled = {"mode": "token", "header": None, "from": [], "clientId": ""}  # as templates write what is not set
    assert browser({"tokens": TOKENS, "browser": filled}).mode == "token"
    assert browser({}, publicUrl=None).mode == "none"
    assert browser({"browser": {"mode": "none"}}, publicUrl="http://127.0.0.1:8080").mode == "none"
    assert settings(config()).auth.browser is None


def test_pages_that_nobody_is_sent_to_need_no_public_address(settings: Callable[..., Settings]) -> None:
    browser = {"mode": "token"}
    found = settings(config({"tokens": TOKENS, "browser": browser}, listen="0.0.0.0:80", publicUrl=None))
    assert found.unguarded == ""


@pytest.mark.parametrize(
    ("auth", "gateway", "words"),
    [
        ({"anonymous": True}, {}, "believe whoever opens a link"),
        ({"tokens": TOKENS, "browser": {"mode": "none"}}, {}, "believe whoever opens a link"),
        ({"tokens": TOKENS}, {"publicUrl": None}, "set `gateway.publicUrl`"),
        (
            {"issuers": [ISSUER], "browser": {"mode": "oidc", "clientId": "x"}},
            {"publicUrl": None},
            "`gateway.publicUrl`",
        ),
    ],
)
def test_an_option_does_not_open_to_others_what_is_for_this_machine(
    settings: Callable[..., Settings], auth: Any, gateway: Any, words: str
) -> None:
    found = settings(config(auth, PERSONAL, **{"publicUrl": "http://127.0.0.1:8080", **gateway}))
    assert found.unguarded == ""
    assert words in replace(found, listen=Address("0.0.0.0", 8080)).unguarded


def test_an_option_moves_no_gateway_behind_a_login_proxy_to_a_socket(settings: Callable[..., Settings]) -> None:
    found = settings(config({"browser": PROXY}, PERSONAL))
    assert found.unguarded == ""
    assert "no login proxy" in replace(found, listen=Address.unix("/run/x")).unguarded


def test_an_option_moves_a_gateway_from_a_socket_to_where_its_login_proxy_has_an_address(
    settings: Callable[..., Settings],
) -> None:
    found = settings(config({"browser": PROXY}, PERSONAL, listen="unix:/run/x"))
    assert "no login proxy" in found.unguarded
    assert replace(found, listen=Address("127.0.0.1", 8080)).unguarded == ""


def pem(key: Any, form: Any = serialization.PrivateFormat.PKCS8, password: bytes | None = None) -> str:
    """The text of a private key."""
    seal = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, seal).decode()


KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC_KEY = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

SM2 = "MEECAQAwEwYHKoZIzj0CAQYIKoEcz1UBgi0EJzAlAgEBBCAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAQ=="  # its number is 1
UNKNOWN_CURVE = f"-----BEGIN PRIVATE KEY-----\n{SM2}\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        ("hush", None),
        ("hush", "EdDSA"),
        ("\0", None),
        ("/run/secrets/key.pem", None),
        (PUBLIC_KEY.decode(), None),
        (UNKNOWN_CURVE, None),
        (pem(KEY, password=b"x"), None),
        (pem(KEY), "ES384"),
        (pem(KEY), "RS256"),
        (pem(ed25519.Ed25519PrivateKey.generate()), None),
    ],
)
def test_a_key_that_can_not_sign_is_a_problem_at_the_start(
    problem: Callable[..., Problem], key: str, algorithm: str | None
) -> None:
    auth = {"mode": "client_credentials", "clientId": "gw", "privateKey": key, "privateKeyAlgorithm": algorithm}
    servers = {"tracker": {"url": "https://tracker.test/mcp", "auth": {k: v for k, v in auth.items() if v}}}
    found = problem(config({"tokens": TOKENS}, servers))
    assert found.field == "mcpServers.tracker.auth.privateKey"
    assert f"signs by {algorithm or 'ES256'}" in found.message
    assert key not in str(found)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (pem(KEY), "ES256"),
        (pem(KEY, serialization.PrivateFormat.TraditionalOpenSSL), "ES256"),
        (pem(ed25519.Ed25519PrivateKey.generate()), "EdDSA"),
    ],
)
def test_a_key_may_be_written_in_each_form_that_there_is(
    settings: Callable[..., Settings], key: str, algorithm: str
) -> None:
    auth = {"mode": "client_credentials", "clientId": "gw", "privateKey": key, "privateKeyAlgorithm": algorithm}
    servers = {"tracker": {"url": "https://tracker.test/mcp", "auth": auth}}
    spec = settings(config({"tokens": TOKENS}, servers)).table.backends["tracker"]
    assert spec.auth is not None
    assert spec.auth.private_key == key


@pytest.mark.parametrize("names", [["https://idp.test#"], ["https://other.test#ann"], [""]])
def test_a_rule_for_a_principal_that_no_issuer_has_can_never_match(
    problems: Callable[..., list[Problem]], names: list[str]
) -> None:
    policy = [{"who": {"principals": names}, "allow": ["files:*"]}]
    found = problems(config({"issuers": [ISSUER]}, {"files": {"command": "sh"}}, policy=policy))
    assert [one.field for one in found] == ["gateway.policy[0].who.principals[0]"]


@pytest.mark.parametrize(
    ("who", "fits"),
    [
        ({"principals": ["ann"], "clients": ["app"]}, False),
        ({"principals": ["ann"], "scopes": ["write"]}, False),
        ({"principals": ["ann", "https://idp.test#bob"], "clients": ["app"]}, True),
        ({"groups": ["dev"], "clients": ["app"]}, True),
    ],
)
def test_a_rule_is_for_somebody_who_has_one_of_each_of_its_lists(
    problems: Callable[..., list[Problem]], settings: Callable[..., Settings], who: dict[str, Any], fits: bool
) -> None:
    auth, policy = {"issuers": [ISSUER], "tokens": TOKENS}, [{"who": who, "allow": ["files:*"]}]
    text = config(auth, {"files": {"command": "sh"}}, policy=policy)
    if fits:
        assert settings(text).table.policy is not None
        return
    (found,) = problems(text)
    assert (found.field, "one of each" in found.message) == ("gateway.policy[0].who", True)


@pytest.mark.parametrize("auth", [{}, {"tokens": TOKENS}, {"issuers": [ISSUER]}])
def test_a_rule_may_be_for_who_comes_over_stdio(settings: Callable[..., Settings], auth: Any) -> None:
    policy = [{"who": {"principals": ["anonymous"]}, "allow": ["files:*"]}]
    found = settings(config(auth, {"files": {"command": "sh"}}, policy=policy)).table.policy
    assert found is not None
    assert found.ruleset("anonymous", Rights()).decide("tool", "files", "x", Facts(None)).outcome == "allow"


def test_an_issuer_that_lets_everybody_ask_may_get_an_empty_secret(settings: Callable[..., Settings]) -> None:
    """As on an address that only the gateway reaches."""
    found = settings(config({"issuers": [ISSUER | {"introspection": ASKED | {"clientSecret": ""}}]}))
    assert found.auth.issuers[0].introspection is not None


def test_the_client_of_our_own_document_has_keys_that_can_sign(
    problem: Callable[..., Problem], settings: Callable[..., Settings]
) -> None:
    key, other = pem(KEY), pem(rsa.generate_private_key(65537, 2048))
    found = settings(config(clientKeys=[key]))
    assert (found.client_keys, found.client_key_algorithm) == ((key,), "ES256")
    assert key in found.secrets
    assert key[:40] not in repr(found)
    assert settings(config(clientKeys=[other], clientKeyAlgorithm="RS256")).client_keys == (other,)
    wrong = problem(config(clientKeys=[key, other]))
    assert (wrong.field, "signs by ES256" in wrong.message) == ("gateway.clientKeys[1]", True)
    assert "PRIVATE" not in wrong.message


SECRET = {"clientId": "gw", "clientSecret": "s"}


@pytest.mark.parametrize(
    ("auth", "field", "words"),
    [
        ({"mode": "key", "metadataUrl": "https://idp.test/m"}, "metadataUrl", "is for `user` and `client_credentials`"),
        ({"mode": "user", "metadataUrl": "http://idp.test/m"}, "metadataUrl", "must be https"),
        ({"mode": "client_credentials", **SECRET, "authorizeParameters": {"a": "b"}}, "authorizeParameters", "`user`"),
        ({"mode": "key", "inside": ["https://idp.corp.test"]}, "inside", "`exchange`"),
        ({"mode": "user", "inside": ["10.0.0.1:80"]}, "inside[0]", "must be an address"),
        ({"mode": "user", "authorizeParameters": {"state": "x"}}, "authorizeParameters.state", "not for others"),
        ({"mode": "user", "authorizeParameters": {" ": "x"}}, "authorizeParameters. ", "not for others"),
        ({"mode": "key", "omitResource": True}, "omitResource", "`exchange`"),
        ({"mode": "user", "audience": "x"}, "audience", "is for `exchange`"),
        ({"mode": "client_credentials", **SECRET, "delegation": True}, "delegation", "is for `exchange`"),
        ({"mode": "user", **SECRET, "assertionAudience": "token_endpoint"}, "assertionAudience", "`privateKey`"),
        ({"mode": "user", "assertionAudience": "me"}, "assertionAudience", "must be 'issuer' or 'token_endpoint'"),
        ({"mode": "static", "omitResource": True}, "omitResource", "has no meaning"),
    ],
)
def test_what_has_no_meaning_for_how_a_server_is_authorized_is_refused(
    problem: Callable[..., Problem], auth: dict[str, Any], field: str, words: str
) -> None:
    found = problem(config({"tokens": TOKENS}, {"tracker": {"url": "https://tracker.test/mcp", "auth": auth}}))
    assert words in found.message
    assert found.field == f"mcpServers.tracker.auth.{field}"


@pytest.mark.parametrize("audience", [None, ""])
def test_what_is_exchanged_for_no_resource_needs_an_audience(
    problem: Callable[..., Problem], audience: str | None
) -> None:
    auth = {"mode": "exchange", **SECRET, "omitResource": True, "audience": audience}
    found = problem(config({"issuers": [ISSUER]}, {"tracker": {"url": "https://tracker.test/mcp", "auth": auth}}))
    assert (found.field, "what the token is for" in found.message) == ("mcpServers.tracker.auth.audience", True)


@pytest.mark.parametrize("catalog", ["a b", "a\r\nX-Other: b", ""])
def test_a_credential_for_lists_is_one_that_a_header_can_carry(problem: Callable[..., Problem], catalog: str) -> None:
    servers = {"tracker": {"url": "https://tracker.test", "auth": {"mode": "user", "catalog": catalog}}}
    found = problem(config({"tokens": TOKENS}, servers))
    assert (found.field, "must be a token or a key" in found.message) == ("mcpServers.tracker.auth.catalog", True)


def test_check_says_that_the_public_address_is_without_the_path_of_the_endpoint(write: Callable[[str], Any]) -> None:
    found = [one for one in advice(load(write(config(publicUrl=f"{PUBLIC}/mcp")), {})) if "/mcp/mcp" in one.message]
    assert [one.field for one in found] == ["gateway.publicUrl"]


@pytest.mark.parametrize(
    ("public", "served", "foreign"),
    [
        ("https://MCP.example.com/gw", ["mcp.example.com", "mcp.example.com:443"], ["example.com", "gw"]),
        ("https://mcp.example.com:8443", ["mcp.example.com:8443"], ["mcp.example.com", "mcp.example.com:443"]),
        ("https://[2001:db8::1]:8443", ["[2001:db8::1]:8443"], ["[2001:db8::1]", "[2001:db8::2]:8443"]),
        ("https://b\u00fccher.example.", ["xn--bcher-kva.example", "xn--bcher-kva.example."], ["b\u00fccher.test"]),
    ],
)
def test_the_host_of_the_public_address_is_served(
    settings: Callable[..., Settings], public: str, served: list[str], foreign: list[str]
) -> None:
    gate = SecurityChecks(security(settings(f'{{"gateway": {{"publicUrl": "{public}"}}}}')))
    assert [gate.host_allowed(host) for host in served] == [True] * len(served)
    assert gate.origin_allowed(f"https://{served[0]}")
    assert not any(gate.host_allowed(host) for host in ("evil.example", *foreign))
    without = SecurityChecks(security(settings("{}")))
    assert not any(without.host_allowed(host) for host in ("", *served))
