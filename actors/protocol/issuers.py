"""Whose tokens are taken, and what is read of them: the configured issuers as values, and claims as rights. Pure.

An issuer says who somebody is by a *subject* (`sub`, or what `subject` names), which is theirs for good; what they
may do is said by claims that every issuer calls otherwise. A claim is named by a path: `realm_access.roles`, with
names that have dots in quotes: `"https://example.com/roles"`.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from actors.protocol.rights import Rights

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""By which tokens may be signed: never by a shared secret, never by none (RFC 8725, section 3.1)."""
MEMBERS: Final = 1_000
"""Groups, or scopes, of one token that are read."""

CLAIM: Final = 4096
"""Characters of a claim that a rule asks about; of a longer one it can't be told what it says."""

EVERYTHING: Final = ""
"""Among the claims that are asked about: all of them count. (It is the name of none that a rule can ask about.)"""
_OF_ONE_TOKEN: Final = frozenset({"exp", "iat", "jti", "nbf"})
"""Claims that say nothing of the bearer."""

REFUSALS: Final = (
    "too_long", "malformed", "critical_extension", "no_issuer", "unknown_issuer", "algorithm", "type", "unknown_key",
    "signature", "issuer", "no_expiry", "expired", "not_yet", "bound", "no_subject", "audience", "opaque", "refused",
    "inactive", "away",
)  # fmt: skip
"""Why a token is not taken: what the owner is told. `away`: nobody could tell."""

ClaimPath: TypeAlias = tuple[str, ...]
_STEP = re.compile(r"""(?:"([^"]+)"|'([^']+)'|([^."']+))(?:\.|$)""")
_CLIENTS = ("client_id", "azp", "cid", "appid")
"""What issuers call the client that a token was given to: RFC 9068; Keycloak and Auth0; Okta; Entra 1.0."""


@dataclass(frozen=True, slots=True)
class Introspection:
    """Where an issuer says what a token is worth (RFC 7662), and as whom it is asked."""

    endpoint: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    method: str = "client_secret_basic"
    """As OAuth calls them (RFC 7591, section 2)."""
    private_key: str | None = field(default=None, repr=False)
    """For `private_key_jwt`."""
    algorithm: str = "ES256"


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer. `audiences`: besides the addresses of our endpoints. `any_audience`: what it introspects may be meant
    for anybody. `strict_type`: a token must say that it is an access token. `always`: JWTs are introspected too.
    `scopes`: what clients are told to ask for first. `bound`: tokens that are bound to a key (`cnf`) are taken like any
    other."""

    issuer: str
    audiences: tuple[str, ...] = ()
    any_audience: bool = False
    jwks_uri: str | None = None
    algorithms: tuple[str, ...] = ALGORITHMS
    strict_type: bool = False
    subject: tuple[ClaimPath, ...] = (("sub",),)
    groups: tuple[ClaimPath, ...] = (("groups",), ("roles",))
    scope_claims: tuple[ClaimPath, ...] = (("scope",), ("scp",))
    introspection: Introspection | None = None
    always: bool = False
    scopes: tuple[str, ...] = ()
    bound: bool = False


def claim_path(text: str) -> ClaimPath:
    """`a.b` or `"a.b".c`. ValueError for what is none."""
    steps, at = [], 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise ValueError("must be the path of a claim, like realm_access.roles; quote names that have dots")
        steps.append(step[1] or step[2] or step[3])
        at = step.end()
    if not steps or text.endswith("."):
        raise ValueError("must be the path of a claim, like realm_access.roles")
    return tuple(steps)


def subject_of(claims: Mapping[str, Any], issuer: Issuer) -> str | None:
    """Who it is; None: the token does not say. Of several claims none can be mistaken for the end of another."""
    parts = []
    for path in issuer.subject:
        value = _at(claims, path)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            return None
        parts.append(str(value))
    return parts[0] if len(parts) == 1 else ":".join(f"{len(part)}:{part}" for part in parts)


def rights_of(
    claims: Mapping[str, Any], issuer: Issuer, expiry: float | None, asked: Collection[str] = ()
) -> Rights | None:
    """What the claims of a token that is good give; None: they do not say to whom. `asked`: those that rules ask
    about, and `EVERYTHING` where whatever it says may make a difference."""
    subject = subject_of(claims, issuer)
    if subject is None:
        return None
    groups = _texts(claims, issuer.groups, split=False)
    lacks = lacks_groups(claims)
    partial = lacks or len(groups) > MEMBERS
    groups = [] if lacks else groups[:MEMBERS]
    scopes = _texts(claims, issuer.scope_claims, split=True)[:MEMBERS]
    client = next((claims[name] for name in _CLIENTS if isinstance(claims.get(name), str)), "")
    further = tuple((name, json.dumps(claims[name])) for name in sorted(asked) if name in claims)
    kept = tuple((name, value) for name, value in further if len(value) <= CLAIM)
    cut = tuple(name for name, value in further if len(value) > CLAIM)
    others = _digest(claims) if EVERYTHING in asked else ""
    return Rights(
        issuer.issuer, subject, client, frozenset(groups), frozenset(scopes), expiry, kept, partial, cut, others
    )


def _digest(claims: Mapping[str, Any]) -> str:
    """Equal for two tokens that say the same, whenever they were issued."""
    said = sorted((name, json.dumps(value)) for name, value in claims.items() if name not in _OF_ONE_TOKEN)
    return hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def lacks_groups(claims: Mapping[str, Any]) -> bool:
    """Whether there were too many groups for the token (Entra's overage): those in it may not be all."""
    names = claims.get("_claim_names")
    return (isinstance(names, Mapping) and "groups" in names) or claims.get("hasgroups") in (True, "true")


def _texts(claims: Mapping[str, Any], paths: Iterable[ClaimPath], *, split: bool) -> list[str]:
    found: list[str] = []
    for path in paths:
        value = _at(claims, path)
        if isinstance(value, str):
            found += value.split() if split else [value]
        elif isinstance(value, list):
            found += [one for one in value if isinstance(one, str)]
    return [one for one in found if one]


def _at(claims: Any, path: ClaimPath) -> Any:
    for step in path:
        if not isinstance(claims, Mapping):
            return None
        claims = claims.get(step)
    return claims
