"""What goes to authorization servers, and how their answers are read."""

import base64
import json
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.oauth import assertions, grants
from gateway.oauth.errors import AwayError, ClientRefusedError, GrantRefusedError, OAuthError
from gateway.oauth.grants import Client
from gateway.oauth.metadata import AuthorizationServer

ISSUER = "https://as.example"


def server(**members: object) -> AuthorizationServer:
    return AuthorizationServer(ISSUER, f"{ISSUER}/auth", f"{ISSUER}/token", **members)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offered", "secret", "key", "chosen"),
    [
        (None, True, False, "client_secret_basic"),
        (("client_secret_post",), True, False, "client_secret_post"),
        (("client_secret_post", "client_secret_basic"), True, False, "client_secret_basic"),
        (("client_secret_basic",), False, False, "none"),
        (("private_key_jwt",), False, True, "private_key_jwt"),
    ],
)
def test_a_client_authenticates_as_the_server_offers(
    offered: tuple[str, ...] | None, secret: bool, key: bool, chosen: str
) -> None:
    assert grants.method_for(server(methods=offered), secret=secret, key=key) == chosen


def test_both_halves_of_basic_are_form_encoded_first() -> None:
    client = Client("a:b c", "client_secret_basic", "p%ß")
    headers, form = grants.authenticated({"grant_type": "x"}, client, ISSUER, 0)
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"a%3Ab+c:p%25%C3%9F"
    assert form == {"grant_type": "x"}
    assert "p%ß" not in repr(client)


def test_a_secret_goes_into_the_form_and_a_public_client_sends_its_id() -> None:
    assert grants.authenticated({}, Client("id", "client_secret_post", "s"), ISSUER, 0) == (
        {},
        {"client_id": "id", "client_secret": "s"},
    )
    assert grants.authenticated({}, Client("id"), ISSUER, 0) == ({}, {"client_id": "id"})


def test_a_key_signs_an_assertion_for_this_issuer_alone() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    client = Client("me", "private_key_jwt", key=pem)
    _, form = grants.authenticated({}, client, ISSUER, 1000)
    assert form["client_assertion_type"] == assertions.TYPE
    options = {"verify_exp": False, "verify_iat": False}
    claims = jwt.decode(form["client_assertion"], key.public_key(), ["ES256"], audience=ISSUER, options=options)  # type: ignore[arg-type]
    assert claims["iss"] == claims["sub"] == "me"
    assert claims["exp"] - claims["iat"] <= 300
    _, again = grants.authenticated({}, client, ISSUER, 1000)
    assert again["client_assertion"] != form["client_assertion"]
    with pytest.raises(OAuthError):
        grants.authenticated({}, Client("me", "private_key_jwt", key="no key"), ISSUER, 0)


def test_an_authorize_url_keeps_its_own_query_and_says_all_of_ours() -> None:
    url = grants.authorize_url(
        "https://as.example/auth?tenant=a%20b",
        client_id="https://gw/x",
        redirect_uri="https://gw/connect/callback",
        state="s",
        code_challenge="c",
        scopes=("a", "b"),
        resource="https://mcp.example/a?b=c",
    )
    query = parse_qs(urlsplit(url).query)
    assert query == {
        "tenant": ["a b"],
        "response_type": ["code"],
        "client_id": ["https://gw/x"],
        "redirect_uri": ["https://gw/connect/callback"],
        "state": ["s"],
        "code_challenge": ["c"],
        "code_challenge_method": ["S256"],
        "scope": ["a b"],
        "resource": ["https://mcp.example/a?b=c"],
    }


def test_a_verifier_is_fresh_long_enough_and_its_challenge_that_of_rfc_7636() -> None:
    assert len(grants.verifier()) >= 43
    assert grants.verifier() != grants.verifier()
    challenged = grants.challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert challenged == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize(
    ("challenged", "supported", "configured", "before", "offline", "chosen"),
    [
        (("a",), ("a", "b"), (), (), False, ("a",)),
        (None, ("a", "b"), (), (), False, ("a", "b")),
        (None, None, (), (), False, ()),
        ((), ("a",), (), (), False, ()),
        (("a",), None, ("c",), (), False, ("c", "a")),
        (("b",), None, (), ("a",), False, ("a", "b")),
        (("a",), None, (), (), True, ("a", "offline_access")),
    ],
)
def test_scopes_are_chosen_by_the_challenge_and_united_with_those_before(
    challenged: tuple[str, ...] | None,
    supported: tuple[str, ...] | None,
    configured: tuple[str, ...],
    before: tuple[str, ...],
    offline: bool,
    chosen: tuple[str, ...],
) -> None:
    at = server(scopes=("offline_access",) if offline else ())
    assert grants.scopes_for(at, challenged, supported, configured, before) == chosen


@pytest.mark.parametrize(
    ("advertised", "iss", "good"),
    [
        (True, ISSUER, True),
        (False, ISSUER, True),
        (False, None, True),
        (True, None, False),
        (True, f"{ISSUER}/", False),
        (False, "https://evil.example", False),
        (True, "https://AS.example", False),
        (True, "", False),
    ],
)
def test_the_issuer_of_an_answer_is_compared_as_a_string(advertised: bool, iss: str | None, good: bool) -> None:
    if good:
        grants.check_iss(ISSUER, advertised, iss)
    else:
        with pytest.raises(OAuthError):
            grants.check_iss(ISSUER, advertised, iss)


def answer(**members: object) -> bytes:
    return json.dumps({"access_token": "at", "token_type": "bearer"} | members).encode()


def test_tokens_are_read_as_servers_write_them() -> None:
    found = grants.tokens(ISSUER, 200, answer(expires_in="60", refresh_token="rt"), ("a",), 1000)
    assert (found.access, found.refresh, found.expires, found.scopes) == ("at", "rt", 1060, ("a",))
    assert grants.tokens(ISSUER, 200, answer(scope="x y"), (), 0).scopes == ("x", "y")
    assert grants.tokens(ISSUER, 200, answer(), (), 0).expires is None
    assert grants.tokens(ISSUER, 200, answer(expires_in=10**400), (), 0).expires is None
    assert "rt" not in repr(found)
    assert "at'" not in repr(found)


@pytest.mark.parametrize(
    "members",
    [
        {"access_token": "a\r\nb: c"},
        {"access_token": ""},
        {"access_token": 7},
        {"token_type": "DPoP"},
        {"access_token": "ü"},
        {"refresh_token": "\ud800"},
        {"scope": "\ud800"},
    ],
)
def test_a_token_that_no_header_can_carry_is_none(members: dict[str, object]) -> None:
    with pytest.raises(OAuthError):
        grants.tokens(ISSUER, 200, answer(**members), (), 0)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, "invalid_grant", GrantRefusedError),
        (401, "invalid_client", ClientRefusedError),
        (500, "invalid_grant", AwayError),
        (503, None, AwayError),
        (429, "invalid_grant", AwayError),
        (400, "invalid_scope", OAuthError),
        (400, None, OAuthError),
        (302, None, OAuthError),
    ],
)
def test_only_words_of_the_server_end_a_grant(status: int, error: str | None, kind: type[OAuthError]) -> None:
    with pytest.raises(OAuthError) as refused:
        grants.tokens(ISSUER, status, json.dumps({"error": error}).encode(), (), 0)
    assert type(refused.value) is kind


def test_a_registration_says_what_kind_of_application_we_are() -> None:
    body = grants.registration(server(), "https://gw.example/connect/callback", ("a",))
    assert body["application_type"] == "web"
    assert body["scope"] == "a"
    assert body["token_endpoint_auth_method"] == "client_secret_basic"
    local = grants.registration(server(methods=("none",)), "http://127.0.0.1:8080/connect/callback", ())
    assert local["application_type"] == "native"
    assert local["token_endpoint_auth_method"] == "none"
    assert "scope" not in local


def test_a_registered_client_is_what_the_answer_says() -> None:
    body = {
        "client_id": "c",
        "client_secret": "s",
        "client_secret_expires_at": 99,
        "token_endpoint_auth_method": "client_secret_post",
    }
    found = grants.registered(server(), 201, json.dumps(body).encode())
    assert found == Client("c", "client_secret_post", "s", expires=99.0)
    public = grants.registered(server(), 201, b'{"client_id":"c","client_secret_expires_at":0}')
    assert public == Client("c")
    body["client_secret_expires_at"] = 10**400
    assert grants.registered(server(), 201, json.dumps(body).encode()).expires is None
    for status, wrong in ((400, b"{}"), (201, b"{}"), (201, b'{"client_id":""}'), (201, b'{"client_id":"\\ud800"}')):
        with pytest.raises(OAuthError):
            grants.registered(server(), status, wrong)
    with pytest.raises(AwayError):
        grants.registered(server(), 502, b"")
