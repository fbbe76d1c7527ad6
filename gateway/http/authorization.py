"""The gateway as a protected resource (OAuth 2.1; RFC 6750, RFC 9728): who sends a request, and what is answered to
whom it can't be told of. Every address in it is made of the configured one, never of a header.
"""

import re
import string
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from actors.ports import NO_AUDIT, Answer, Asker, Audit, Revocations, Unproven, Verifier
from actors.protocol.headers import VERSION_HEADER
from actors.protocol.versions import MODERN, VERSIONS
from gateway.http.request import Scope, peer_of
from gateway.http.response import refusal
from gateway.http.routes import Health, IssuerMetadata, Mcp, Messages, Metadata, Pages, Route, Sse, Ws
from gateway.http.security import NOBODY, SecurityChecks

RETRY: Final = 5
"""Seconds after which it is worth trying again where an issuer is away."""
METADATA_AGE: Final = 300
TOLD: Final = 10_000
"""Tokens, with the addresses that they came from, of which it is remembered that they are in the audit trail."""

_BEARER = (string.ascii_letters + string.digits + "-._~+/").encode()
"""Of what a token is made, but for `=` at its end (RFC 6750, section 2.1). An expression takes four times as long."""
_BEARERS: Final = ("Bearer ", "bearer ")
"""How almost everybody writes it, though case does not matter."""
_BEARER_AT: Final = len(_BEARERS[0])
_QUOTED = re.compile(r'(["\\])')
_UNQUOTABLE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Resource:
    """What clients are told of this resource: its address without a path of ours, the issuers whose tokens it takes,
    and the scopes that they ask for first."""

    url: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] = ()
    name: str = "Stagedoor"


class _Refused(NamedTuple):
    """Nobody in particular asks: what is answered, and why, in a word for those who run the gateway."""

    answer: Answer
    reason: str


class Authorization:
    """Tells who sends a request to one listener, or what is answered to a stranger. `verifier` knows the tokens of
    issuers, `checks` those that are configured."""

    def __init__(
        self,
        checks: SecurityChecks,
        resource: Resource | None = None,
        verifier: Verifier | None = None,
        revocations: Revocations | None = None,
        mirror: Callable[[], Awaitable[bytes | None]] | None = None,
        audit: Audit = NO_AUDIT,
        note: Callable[[Asker, str], Awaitable[None] | None] | None = None,
        public_url: str = "",
    ) -> None:
        """`note` is told of each good token of an issuer; what it came with goes on when that is done."""
        self._audit = audit
        self._told: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        self._checks = checks
        self._note = note
        self._mirror = mirror
        self._resource = resource
        self._verifier = verifier
        self._revocations = revocations
        self._issuers = resource.issuers if resource is not None else ()
        self._prefix = urlsplit(resource.url if resource is not None else public_url).path.rstrip("/")

    def known(self, scope: Scope, headers: Mapping[str, str], target: Route | None) -> Asker | None:
        """Who asks for this, where that is as good as known; None: `admit` says it."""
        if self._checks.open and self._verifier is None:
            return NOBODY
        found = self._here(scope, headers, target)
        if not isinstance(found, Asker) or (self._note is not None and found.rights.issuer in self._issuers):
            return None
        if self._audit.on:
            self._tell(found, scope, headers, target)
        return found

    async def admit(self, scope: Scope, headers: Mapping[str, str], target: Route | None) -> Asker | Answer:
        """Who asks for this; nothing of a body is read before. The answer is to whom that can't be told of."""
        if self._checks.open and self._verifier is None:
            return NOBODY
        found: Asker | _Refused | None = None
        given, token = headers.get("authorization", ""), ""
        if self._verifier is not None and given.startswith(_BEARERS) and not scope.get("query_string"):
            # What is remembered of an issuer's token is all that nearly every request needs.
            token = given[_BEARER_AT:]
            found = self._remembered(self._verifier, token, target)
        if found is None:
            found, token = await self._asker(scope, headers, target), _token(headers)
        if isinstance(found, _Refused):
            if self._audit.on:
                self._tell_refused(found, peer_of(scope), _era(headers, target))
            return found.answer
        if self._note is not None and found.rights.issuer in self._issuers:
            noted = self._note(found, token)
            if noted is not None:
                await noted
        if self._audit.on:
            self._tell(found, scope, headers, target)
        return found

    async def _asker(self, scope: Scope, headers: Mapping[str, str], target: Route | None) -> "Asker | _Refused":
        found = self._here(scope, headers, target)
        if found is not None:
            return found
        assert self._verifier is not None
        path = path_of(target)
        told = await self._verifier.verify(_token(headers), self.resources(target))
        if isinstance(told, Unproven):
            return _Refused(self._unproven(told, path), told.reason)
        return self._unless_revoked(told, path)

    def _here(self, scope: Scope, headers: Mapping[str, str], target: Route | None) -> "Asker | _Refused | None":
        """As far as nobody has to be waited for. None: the verifier says it."""
        if b"access_token=" in scope.get("query_string", b""):
            # Addresses end up in logs, histories and referrers (RFC 6750, section 5.3).
            return self._malformed(
                "token_in_query", "a token belongs into the Authorization header, not into the address"
            )
        if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
            return self._malformed("malformed", "there are two Authorization headers")
        given = headers.get("authorization")
        path = path_of(target)
        if given is None:
            return _Refused(self._unauthorized(path), "no_token")
        scheme = given.partition(" ")[0]
        if scheme.lower() != "bearer":
            return _Refused(self._unauthorized(path), "no_token")
        token = _token(headers)
        if not token:
            return _Refused(self._unauthorized(path), "no_token")  # a scheme alone is no credentials
        if not _well_formed(token):
            return self._malformed("malformed", "the Authorization header is malformed")
        found = self._checks.asker(token)
        if found is None and self._verifier is not None:
            return self._remembered(self._verifier, token, target)
        if found is None:
            return _Refused(self._unauthorized(path, "not valid here"), "unknown")
        return self._unless_revoked(found, path)

    def _remembered(self, verifier: Verifier, token: str, target: Route | None) -> Asker | None:
        found = verifier.known(token, self.resources(target))
        return None if found is None or (self._revocations is not None and self._revocations.revoked(found)) else found

    def _unless_revoked(self, found: Asker, path: str) -> "Asker | _Refused":
        if self._revocations is not None and self._revocations.revoked(found):
            return _Refused(self._unauthorized(path, "not valid here"), "revoked")
        return found

    def _tell_refused(self, found: "_Refused", peer: str, era: str) -> None:
        by = {name: value for name, value in (("ip", peer), ("era", era)) if value}
        self._audit.record_often("authn.fail", reason=found.reason, status=found.answer.status, **by)

    def _tell(self, asker: Asker, scope: Scope, headers: Mapping[str, str], target: Route | None) -> None:
        """A token that is good is told of once for each address that it comes from."""
        # By its hash, which it remembers: an asker may have thousands of groups, and would be kept with them all.
        came = (asker.principal.name, hash(asker), peer_of(scope))
        if came in self._told:
            return  # nearly always
        self._told[came] = None
        if len(self._told) > TOLD:
            self._told.popitem(last=False)
        who = {"principal": asker.principal.name, "iss": asker.rights.issuer, "client_id": asker.rights.client}
        told = {**who, "ip": came[2], "era": _era(headers, target)}
        self._audit.record("authn.ok", **{name: value for name, value in told.items() if value})

    def withdrawn(self, asker: Asker) -> bool:
        """Whether somebody who was let in before has no access any more: by an operator, or since his token, its issuer
        or being nobody is not in the configuration in force."""
        if self._revocations is not None and self._revocations.revoked(asker):
            return True
        if asker is NOBODY:
            return not self._checks.open or self._verifier is not None
        if asker.digest:
            return not self._checks.configured(asker)
        return self._resource is None or asker.rights.issuer not in self._resource.issuers

    # Resources

    def resources(self, target: Route | None) -> tuple[str, ...]:
        """The addresses that a token for this may be meant for: its own, and what is above it. Never the reverse: who
        has a token for one server is not let into all."""
        if self._resource is None:
            return ()
        return _resources(self._resource.url, target)

    def metadata(self, target: Metadata) -> Answer | None:
        """Protected resource metadata (RFC 9728, section 3.2); None where there is none. `target` names one that there
        is. The root form is that of `/mcp`, for old clients that look nowhere else."""
        resource = self._resource
        if resource is None or not resource.issuers:
            return None
        document: dict[str, object] = {
            "resource": resource.url + (target.path or "/mcp"),
            "authorization_servers": resource.issuers,
            "bearer_methods_supported": ["header"],
            "resource_name": resource.name,
        }
        if resource.scopes:
            document["scopes_supported"] = resource.scopes
        headers = (("Cache-Control", f"max-age={METADATA_AGE}"),)
        return Answer(200, msgspec.json.encode(document), headers)

    async def issuer_metadata(self) -> Answer | None:
        """That of the first issuer, for clients of 2025-03-26, if it is mirrored and can be had."""
        body = await self._mirror() if self._mirror is not None else None
        headers = (("Cache-Control", f"max-age={METADATA_AGE}"),)
        return Answer(200, body, headers) if body is not None else None

    @property
    def prefix(self) -> str:
        """What the path of each address begins with where a proxy has put the gateway below a path."""
        return self._prefix

    # Challenges (RFC 6750, section 3; MCP 2026-07-28, authorization, "Error Handling")

    def insufficient(self, path: str, scopes: Sequence[str], description: str = "this needs more scopes") -> str:
        """The challenge of a 403: the token is good, but this needs all of these scopes."""
        return self._challenge(path, scopes, error="insufficient_scope", description=description)

    def _challenge(self, path: str, scopes: Sequence[str], *, error: str = "", description: str = "") -> str:
        parameters: dict[str, str] = {}
        if error:
            parameters["error"] = error
        if description:
            parameters["error_description"] = description
        if scopes:
            parameters["scope"] = " ".join(scopes)
        if self._resource is not None and self._resource.issuers:
            parameters["resource_metadata"] = metadata_url(self._resource.url, path)
        else:
            parameters["realm"] = "stagedoor"
        return "Bearer " + ", ".join(starmap(_parameter, parameters.items()))

    def _unauthorized(self, path: str, description: str = "") -> Answer:
        """Without a description: there were no credentials, and no error is to be named."""
        scopes = self._resource.scopes if self._resource is not None else ()
        error = "invalid_token" if description else ""
        challenge = self._challenge(path, scopes, error=error, description=description)
        return refusal(401, "Unauthorized: a bearer token is required", ("WWW-Authenticate", challenge))

    def _unproven(self, told: Unproven, path: str) -> Answer:
        if told.away:
            return refusal(
                503,
                "Nobody can tell at the moment whose this token is",
                ("Retry-After", str(RETRY)),
                kind="unauthorized",
            )
        return self._unauthorized(path, "expired" if told.expired else "not valid here")

    @staticmethod
    def _malformed(reason: str, why: str) -> "_Refused":
        challenge = f'Bearer error="invalid_request", error_description="{why}"'
        return _Refused(refusal(400, f"Bad request: {why}", ("WWW-Authenticate", challenge)), reason)


def _era(headers: Mapping[str, str], target: Route | None) -> str:
    """Of the client, as far as that is seen before its message is read."""
    if isinstance(target, Sse | Messages):
        return "legacy"
    version = headers.get(VERSION_HEADER.lower(), "")
    return "legacy" if version in VERSIONS else "modern" if version == MODERN else ""


def _token(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").partition(" ")[2].strip()


def _well_formed(token: str) -> bool:
    body = token.encode("utf-8", "surrogatepass").rstrip(b"=")
    return bool(body) and not body.translate(None, _BEARER)


def path_of(target: Route | None) -> str:
    """The path that clients know a target by; what is none counts as part of `/mcp`."""
    if isinstance(target, Mcp):
        return _below("/mcp", target.endpoint)
    match target:
        case Ws(endpoint):
            return _below("/ws", endpoint)
        case Sse(endpoint) | Messages(endpoint):
            return _below("/sse", endpoint)
        case Health() | Metadata() | IssuerMetadata() | Pages() | None:
            return "/mcp"


@lru_cache(256)
def _resources(url: str, target: Route | None) -> tuple[str, ...]:
    path = path_of(target)
    above = [path[:at] for at in range(1, len(path)) if path[at] == "/"]
    return tuple(url + part for part in (path, *above, ""))


def _below(path: str, endpoint: str) -> str:
    return f"{path}/{endpoint}" if endpoint else path


def metadata_url(base: str, path: str) -> str:
    """Where the metadata of this resource is: the well-known part stands between host and path (RFC 9728, 3.1)."""
    parts = urlsplit(base)
    return f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}{path}"


def _parameter(name: str, value: str) -> str:
    return f'{name}="{_quotable(value)}"'


def _quotable(value: str) -> str:
    return _QUOTED.sub(r"\\\1", _UNQUOTABLE.sub("?", value))
