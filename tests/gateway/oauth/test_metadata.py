"""Which metadata is asked for, and what it may say."""

import json

import pytest

from gateway.oauth import metadata
from gateway.oauth.errors import OAuthError

SERVER = "https://mcp.example/a/b"
ISSUER = "https://as.example/tenant"


def document(**members: object) -> bytes:
    return json.dumps(members).encode()


def test_the_metadata_of_a_server_is_at_its_path_and_else_at_the_root() -> None:
    known = "https://mcp.example/.well-known/oauth-protected-resource"
    assert metadata.resource_urls(SERVER) == (f"{known}/a/b", known)
    assert metadata.resource_urls("https://mcp.example/") == (known,)
    assert metadata.resource_urls("https://mcp.example:8443") == (known.replace("example", "example:8443"),)


def test_the_metadata_of_an_issuer_is_asked_for_in_the_order_of_mcp() -> None:
    assert metadata.issuer_urls(ISSUER) == (
        "https://as.example/.well-known/oauth-authorization-server/tenant",
        "https://as.example/.well-known/openid-configuration/tenant",
        "https://as.example/tenant/.well-known/openid-configuration",
    )
    assert metadata.issuer_urls("https://as.example") == (
        "https://as.example/.well-known/oauth-authorization-server",
        "https://as.example/.well-known/openid-configuration",
    )


@pytest.mark.parametrize(
    "resource", [SERVER, "https://mcp.example/a", "https://mcp.example", "https://MCP.example:443/a/"]
)
def test_a_resource_may_be_the_server_or_a_parent_and_is_kept_as_it_is(resource: str) -> None:
    found = metadata.read_resource(SERVER, document(resource=resource, authorization_servers=[ISSUER]))
    assert found == metadata.Resource(resource, (ISSUER,), None)


@pytest.mark.parametrize(
    "resource",
    [
        "https://mcp.example/a/c",
        "https://mcp.example/a/b/c",
        "https://mcp.example/a/bc",
        "https://other.example/a/b",
        "http://mcp.example/a/b",
        "https://mcp.example:444/a/b",
        f"{SERVER}#x",
        "",
        7,
        None,
        "https://mcp.example:x/a",
    ],
)
def test_metadata_of_another_resource_is_refused(resource: object) -> None:
    with pytest.raises(OAuthError) as refused:
        metadata.read_resource(SERVER, document(resource=resource, authorization_servers=[ISSUER]))
    assert refused.value.reason == "resource_mismatch"


def server(**members: object) -> metadata.AuthorizationServer:
    usual = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth", "token_endpoint": f"{ISSUER}/token"}
    usual["code_challenge_methods_supported"] = ["plain", "S256"]  # type: ignore[assignment]
    return metadata.read_server(ISSUER, document(**(usual | members)))


@pytest.mark.parametrize("issuer", [f"{ISSUER}/", "https://AS.example/tenant", "https://evil.example", None])
def test_8_the_issuer_of_metadata_must_be_the_one_asked_for_to_the_letter(issuer: object) -> None:
    with pytest.raises(OAuthError) as refused:
        server(issuer=issuer)
    assert refused.value.reason == "issuer_mismatch"


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "https://u:p@as/x", "https://as/#f", "//as/x", "https://a b/"]
)
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
def test_endpoints_are_web_addresses(name: str, url: str) -> None:
    with pytest.raises(OAuthError):
        server(**{name: url})


@pytest.mark.parametrize(
    "host",
    [
        "login\N{LATIN SMALL LETTER SHARP S}.example",
        "g\N{CYRILLIC SMALL LETTER O}ogle.com",
        "log\N{ZERO WIDTH NON-JOINER}in.example",
        "\N{FULLWIDTH LATIN SMALL LETTER L}ogin.example",
        "login\N{IDEOGRAPHIC FULL STOP}example",
        "login%2Eexample",
        "login.example\\.evil.example",
        "login.example.",
        "[::1%25x]",
        ":443",
    ],
)
def test_8_a_sign_in_is_at_no_host_that_browsers_read_otherwise(host: str) -> None:
    """It is compared with that of other issuers, and shown to whoever is to sign in there."""
    with pytest.raises(OAuthError):
        server(authorization_endpoint=f"https://{host}/in")
    with pytest.raises(OAuthError):
        metadata.choose_issuer(metadata.Resource(SERVER, (f"https://{host}",)), None)


@pytest.mark.parametrize(
    "host", ["xn--gogle-jye.com", "LOGIN.example:8443", "127.0.0.1:9", "[2001:db8::1]:9", "a_b.test"]
)
def test_a_sign_in_is_wherever_else_its_issuer_says(host: str) -> None:
    url = f"https://{host}/in"
    assert metadata.for_users(server(authorization_endpoint=url)) == url


@pytest.mark.parametrize("methods", [[], ["plain"], None, "S256"])
def test_10_users_are_not_sent_where_pkce_by_s256_is_not_offered(methods: object) -> None:
    found = server(code_challenge_methods_supported=methods)
    with pytest.raises(OAuthError) as refused:
        metadata.for_users(found)
    assert refused.value.reason == "no_pkce"
    assert metadata.for_users(server()) == f"{ISSUER}/auth"


def test_a_configured_issuer_is_never_exchanged_for_another_one() -> None:
    named = metadata.Resource(SERVER, ("https://evil.example", ISSUER))
    assert metadata.choose_issuer(named, None) == "https://evil.example"
    assert metadata.choose_issuer(named, ISSUER) == ISSUER
    with pytest.raises(OAuthError) as refused:
        metadata.choose_issuer(metadata.Resource(SERVER, ("https://evil.example",)), ISSUER)
    assert refused.value.reason == "issuer_changed"


@pytest.mark.parametrize(
    "issuer", ["https://[::1", "https://\u2100.test/", "no-address", "javascript:x", "https://a b/"]
)
def test_7_a_server_may_name_web_addresses_only_as_its_issuers(issuer: str) -> None:
    found = metadata.read_resource(SERVER, document(resource=SERVER, authorization_servers=[issuer]))
    with pytest.raises(OAuthError):
        metadata.choose_issuer(found, None)


HALF = (
    b'{"issuer": "https://as.example/tenant", "resource": "https://mcp.example/a/b", "scopes_supported": ["\\ud800"]}'
)


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"[" * 100_000, b'"text"', b'{"x": NaN}', HALF])
def test_what_is_no_document_is_refused_and_not_more(body: bytes) -> None:
    with pytest.raises(OAuthError):
        metadata.read_server(ISSUER, body)
    with pytest.raises(OAuthError):
        metadata.read_resource(SERVER, body)


def test_a_server_of_2025_03_26_is_its_own_issuer() -> None:
    assert metadata.at_origin("http://127.0.0.1:9/mcp") == "http://127.0.0.1:9"
    found = metadata.by_default("https://mcp.example")
    assert metadata.for_users(found) == "https://mcp.example/authorize"
    assert found.registration_endpoint == "https://mcp.example/register"
