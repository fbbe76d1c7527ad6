"""Issuers in a file, and tokens as the well-known ones really write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from actors.protocol.issuers import claim_path, rights_of, subject_of
from gateway.config.issuers import issuer_of, public_url
from gateway.config.models import IssuerSection

KEYCLOAK = {
    "exp": 1800000300, "iat": 1800000000, "jti": "onrtac:0c5e", "iss": "https://id.test/realms/main",
    "aud": ["https://mcp.test/mcp", "account"], "sub": "f3a1c1de-0000-4000-8000-0a1b2c3d4e5f", "typ": "Bearer",
    "azp": "inspector", "sid": "x", "acr": "1", "realm_access": {"roles": ["offline_access", "ops"]},
    "resource_access": {"account": {"roles": ["view-profile"]}}, "scope": "openid mcp", "groups": ["/dev"],
    "preferred_username": "ann",
}  # fmt: skip
ENTRA = {
    "aud": "api://stagedoor", "iss": "https://login.microsoftonline.com/t1/v2.0", "iat": 1800000000, "exp": 1800000300,
    "azp": "app-1", "azpacr": "0", "oid": "o1", "tid": "t1", "sub": "pairwise-1", "scp": "mcp.read mcp.write",
    "roles": ["Admin"], "groups": ["8f1c0f9e-0000"], "ver": "2.0",
}  # fmt: skip
OKTA = {
    "ver": 1, "jti": "AT.x", "iss": "https://org.okta.test/oauth2/default", "aud": "https://mcp.test/mcp",
    "iat": 1800000000, "exp": 1800000300, "cid": "0oa1", "uid": "00u1", "scp": ["mcp", "openid"],
    "sub": "ann@example.com", "groups": ["Everyone", "dev"],
}  # fmt: skip
AUTH0 = {
    "iss": "https://tenant.auth0.test/", "sub": "auth0|64f", "aud": ["https://mcp.test/mcp", "https://tenant/userinfo"],
    "iat": 1800000000, "exp": 1800000300, "scope": "openid mcp", "azp": "client-1", "permissions": ["read:files"],
    "https://example.com/roles": ["admin"],
}  # fmt: skip

SHAPES: list[tuple[str, Mapping[str, Any], str, set[str], set[str], str]] = [
    ("keycloak", KEYCLOAK, KEYCLOAK["sub"], {"/dev", "offline_access", "ops"}, {"openid", "mcp"}, "inspector"),  # type: ignore[list-item]
    ("entra", ENTRA, "2:t1:2:o1", {"Admin", "8f1c0f9e-0000"}, {"mcp.read", "mcp.write"}, "app-1"),
    ("okta", OKTA, "ann@example.com", {"Everyone", "dev"}, {"mcp", "openid"}, "0oa1"),
    ("auth0", AUTH0, "auth0|64f", set(), {"openid", "mcp", "read:files"}, "client-1"),
]


def section(**values: Any) -> IssuerSection:
    return IssuerSection.model_validate({"issuer": "https://idp.test", **values})


@pytest.mark.parametrize(
    ("preset", "claims", "subject", "groups", "scopes", "client"), SHAPES, ids=lambda v: str(v)[:8]
)
def test_a_preset_reads_the_claims_of_its_kind(
    preset: str, claims: Mapping[str, Any], subject: str, groups: set[str], scopes: set[str], client: str
) -> None:
    issuer = issuer_of(section(issuer=claims["iss"], preset=preset, audiences=["x"]))
    rights = rights_of(claims, issuer, 1.0)
    assert rights is not None
    assert (rights.issuer, rights.subject, rights.client) == (claims["iss"], subject, client)
    assert (rights.groups, rights.scopes) == (groups, scopes)


def test_what_is_set_goes_before_the_preset() -> None:
    given = section(preset="auth0", groupsClaims=['"https://example.com/roles"'], subjectClaim="email")
    issuer = issuer_of(given)
    rights = rights_of({**AUTH0, "email": "ann@example.com"}, issuer, None)
    assert rights is not None
    assert (rights.groups, rights.subject) == ({"admin"}, "ann@example.com")


@pytest.mark.parametrize("more", [{"_claim_names": {"groups": "src1"}, "_claim_sources": {}}, {"hasgroups": "true"}])
def test_who_is_in_too_many_groups_for_a_token_is_in_none(more: Mapping[str, Any]) -> None:
    rights = rights_of({**ENTRA, **more}, issuer_of(section(preset="entra", audiences=["x"])), None)
    assert rights is not None
    assert rights.groups == frozenset()


def test_no_two_pairs_of_claims_are_one_subject() -> None:
    issuer = issuer_of(section(subjectClaim=["tid", "oid"]))
    assert subject_of({"tid": "a", "oid": "1:b"}, issuer) != subject_of({"tid": "a:1", "oid": "b"}, issuer)
    for claims in ({"tid": "a"}, {"tid": "", "oid": "b"}, {"tid": True, "oid": "b"}, {"tid": ["a"], "oid": "b"}):
        assert subject_of(claims, issuer) is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("groups", ("groups",)),
        ("realm_access.roles", ("realm_access", "roles")),
        ('"https://a.test/x".y', ("https://a.test/x", "y")),
        ("'a.b'", ("a.b",)),
        ("cognito:groups", ("cognito:groups",)),
    ],
)
def test_a_claim_is_named_by_its_path(text: str, path: tuple[str, ...]) -> None:
    assert claim_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", '"a', 'a"b', '""'])
def test_what_names_no_claim_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path of a claim"):
        claim_path(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("https://MCP.Example.com/", "https://mcp.example.com"),
        ("HTTPS://mcp.example.com:443/Gate/", "https://mcp.example.com/Gate"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:80/x", "http://[::1]/x"),
    ],
)
def test_the_public_address_is_as_clients_compare_it(text: str, canonical: str) -> None:
    assert public_url(text) == canonical
