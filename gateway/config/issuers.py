"""From what a file says of an issuer to the value that the gateway goes by; what the well-known ones call things."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from actors.protocol.issuers import Introspection, Issuer, claim_path
from gateway.config.models import IntrospectionSection, IssuerSection
from gateway.config.signing import fault_of
from gateway.config.values import plain

ANY: Final = "any-from-this-as"

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Roles of the realm are groups, like those of the `groups` mapper. Access tokens have `typ: JWT`.
    "keycloak": {"groups_claims": ["groups", "realm_access.roles"], "scopes_claim": ["scope"]},
    # `sub` is another one for each application; tenant and object are the person.
    "entra": {"subject_claim": ["tid", "oid"], "groups_claims": ["groups", "roles"], "scopes_claim": ["scp"]},
    "okta": {"groups_claims": ["groups"], "scopes_claim": ["scp"]},
    # With role based access control a token has `permissions`, which are what scopes are elsewhere.
    "auth0": {"groups_claims": ["groups", "roles"], "scopes_claim": ["scope", "permissions"]},
}


def issuer_of(section: IssuerSection) -> Issuer:
    """The issuer of this section."""
    given: dict[str, Any] = dict(PRESETS.get(section.preset or "", {}))
    given |= {name: getattr(section, name) for name in section.model_fields_set if getattr(section, name) is not None}
    audiences = given.get("audiences", [])
    found: dict[str, Any] = {
        "audiences": tuple(one.removesuffix("/") for one in audiences if one != ANY),
        "any_audience": ANY in audiences,
        "jwks_uri": section.jwks_uri,
        "strict_type": section.typ == "strict",
        "introspection": _introspection(section.introspection) if section.introspection is not None else None,
        "always": section.introspect == "always",
        "scopes": tuple(section.scopes),
        "bound": section.bound_tokens == "accept",
    }
    if "algorithms" in given:
        found["algorithms"] = tuple(given["algorithms"])
    for key, name in (("subject_claim", "subject"), ("groups_claims", "groups"), ("scopes_claim", "scope_claims")):
        if key in given:
            paths = [given[key]] if isinstance(given[key], str) else given[key]
            found[name] = tuple(map(claim_path, paths))
    return Issuer(section.issuer, **found)


def _introspection(section: IntrospectionSection) -> Introspection:
    secret, key = plain(section.client_secret), plain(section.private_key)
    method = section.method if key is None else "private_key_jwt"
    return Introspection(section.endpoint, section.client_id, secret, method, key, section.private_key_algorithm)


def senseless(section: IssuerSection, issuer: Issuer) -> Iterator[tuple[str, str]]:
    """What of it can't be meant so, by its key."""
    if section.preset == "entra" and not issuer.audiences:
        yield "audiences", "is missing: Entra gives no tokens for the address of the gateway"
    if issuer.any_audience and issuer.introspection is None:
        yield "audiences", "any-from-this-as is for issuers with `introspection`"
    if issuer.always and issuer.introspection is None:
        yield "introspect", "needs `introspection`: where and as whom the issuer is asked"
    if issuer.introspection is not None:
        yield from _unproved(issuer.introspection)
    if not issuer.algorithms:
        yield "algorithms", "is empty: no token would be good"
    if not issuer.subject:
        yield "subjectClaim", "is empty: nobody could be told from anybody else"


def _unproved(asked: Introspection) -> Iterator[tuple[str, str]]:
    """Where nothing, or two things, would say that it is the gateway which asks."""
    if asked.client_secret is None and asked.private_key is None:
        yield "introspection.clientSecret", "is missing (or `privateKey`)"
    if asked.private_key is None:
        return
    if asked.client_secret:
        yield "introspection.privateKey", "stands beside `clientSecret`: a client has one of them"
    elif fault := fault_of(asked.private_key, asked.algorithm):
        yield "introspection.privateKey", fault


def public_url(text: str) -> str:
    """An address as clients compare it: scheme and host in lower case, no default port, no final slash (MCP 2026-07-28,
    authorization, "Canonical Server URI")."""
    parts = urlsplit(text)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = parts.port if parts.port != {"http": 80, "https": 443}[parts.scheme.lower()] else None
    return f"{parts.scheme.lower()}://{host}{f':{port}' if port is not None else ''}{parts.path.rstrip('/')}"
