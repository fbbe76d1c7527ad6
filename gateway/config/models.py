"""The shape of a configuration file: the keys, what each accepts, and the sentence that the documentation gives it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, SecretStr, model_validator
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gateway.config.sections import Section, section
from gateway.config.signing import SigningAlgorithm
from gateway.config.values import (
    AccessText,
    AddressText,
    Algorithm,
    Argument,
    AudienceText,
    BackendUrl,
    Bound,
    CatalogText,
    ClaimText,
    Count,
    EnvValue,
    FileText,
    FirstScope,
    HeaderName,
    HeaderValue,
    HostText,
    IssuerAddress,
    KeyText,
    ListenText,
    NetworkText,
    OriginText,
    OtlpLogsUrl,
    OtlpUrl,
    Positive,
    Processes,
    PublicAddress,
    RateText,
    ScopeText,
    Separator,
    Share,
    StoreUrl,
    Switch,
    SyslogUrl,
    TokenText,
    WebAddress,
    check_token,
)
from gateway.wire.url import SOCKET

STDIO_TYPES = ("stdio",)
HTTP_TYPES = ("http", "streamable-http", "streamableHttp")
SSE_TYPES = ("sse",)
WEB_SOCKET_TYPES = ("ws",)
WEB_SOCKET_SCHEMES = ("ws:", "wss:")

_KINDS = ("command", "url", "native")
_BELONGS = {
    "args": "command",
    "env": "command",
    "cwd": "command",
    "user": "command",
    "sandbox": "command",
    "idle_stop": "command",
    "headers": "url",
    "options": "native",
}
_ANY_KIND: JsonDict = {"oneOf": [{"required": [kind]} for kind in _KINDS]}


class ResourcesSection(Section):
    """What the processes of one server may use. Without a number there is no limit but the gateway's own."""

    memory_bytes: Count | None = None
    """Bytes that each of its processes may write to (Linux; addresses that are only reserved do not count)."""
    processes: Count | None = None
    """Processes and threads. The system counts those of the same user together, and does not stop root: give the server
    a `user` of its own."""
    files: Count | None = None
    """Files and connections that each of its processes may have open."""


class FoldersSection(Section):
    """What a server in a sandbox finds besides the programs and libraries of the system, its `cwd` (to read), and an
    empty home and `/tmp` that end with it. Paths are relative to this file, and must be there."""

    read: list[Argument] = []
    """Files and folders that it may read."""
    write: list[Argument] = []
    """Files and folders that it may also change."""


class ServerAuth(Section):
    """How the gateway is authorized at a server with a `url`, where that is more than `headers`."""

    mode: Literal["none", "static", "client_credentials", "user", "key", "exchange"]
    """`static` (or `none`): by `headers` alone. `client_credentials`: as itself, by tokens of the server's
    authorization server. `user`: by the account of the user whose call it is, which he connects on our pages. `key`: by
    an API key that each user gives there. `exchange`: by a token that the issuer gives for the one by which the user
    asks."""
    issuer: str | None = None
    """The authorization server, if not the first one that the server names; it must be among those that it names. Of
    `exchange`: which one of `gateway.auth.issuers`, where there are several."""
    client_id: str | None = None
    """Our client there. Without it `user` registers one, where the authorization server allows that."""
    client_secret: SecretStr | None = None
    """Its secret. It is sent to one issuer: the configured one, else the first that the server has named."""
    private_key: SecretStr | None = None
    """Instead of a secret: a private key in PEM, without a password (`private_key_jwt`)."""
    private_key_algorithm: SigningAlgorithm = "ES256"
    """What it signs by."""
    assertion_audience: Literal["issuer", "token_endpoint"] = "issuer"
    """What the signature says that it is for: older authorization servers want the address of their token endpoint."""
    metadata_url: WebAddress | None = None
    """Of `user` and `client_credentials`: where the metadata of the authorization server is, if it is not where its
    issuer says."""
    inside: list[WebAddress] = []
    """Further addresses (`https://HOST:PORT`) of an authorization server in your own network, where its endpoints are
    not at the host of its issuer. Whatever else a server or its metadata names must be of the internet."""
    authorize_parameters: dict[str, str] = {}
    """Of `user`: what else the request says by which users sign in, such as `{"access_type": "offline"}`."""
    omit_resource: Switch = False
    """Leaves out `resource` (RFC 8707), which Entra ID refuses; the scopes have to say what the token is for."""
    scopes: list[ScopeText] = []
    """What to ask for, besides what the server demands; without any, what it names."""
    audience: str | None = None
    """Of `exchange`: what the issuer calls the server, besides its URL."""
    delegation: Switch = False
    """Of `exchange`: the gateway shows the issuer a token of its own besides the user's (`actor_token`), so that what
    it gives says who acts for the user (`act`). The client must be allowed to have one (`client_credentials`)."""
    catalog: CatalogText | None = None
    """Of `user`, `key` and `exchange`: a bearer token by which the gateway asks for lists that it shows to users who
    have not connected yet. No call is ever made with it."""
    header: str = "Authorization: Bearer {key}"
    """Of `key`: the header that carries the key, written where `{key}` stands."""
    variable: str | None = None
    """Of `key`, at a server with a `command`: the variable that carries it to the process, which is this user's
    alone."""


class Server(Section):
    """One MCP server: a command that speaks on its standard streams, a URL, or an object in this process."""

    model_config = ConfigDict(json_schema_extra=_ANY_KIND)

    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse", "ws"] | None = None
    """The transport. It may be left out: it follows from `command` or `url`, and a server that refuses Streamable HTTP
    is asked for HTTP+SSE of 2024-11-05 (`sse`). `ws` is WebSocket."""
    command: Argument | None = None
    """The program to start, looked up on `PATH`."""
    args: list[Argument] = []
    """Its arguments."""
    env: dict[str, EnvValue] = {}
    """Variables for it, besides those that it inherits."""
    cwd: Argument | None = None
    """The directory in which it runs, relative to this file; without it, the gateway's own."""
    user: Argument | None = None
    """The user as whom it runs, where the gateway itself runs as root."""
    resources: ResourcesSection = ResourcesSection()
    sandbox: Literal["bwrap"] | None = None
    """`bwrap`: it runs in a sandbox of bubblewrap, with what `folders` and `network` say and nothing else."""
    folders: FoldersSection = FoldersSection()
    network: Switch = False
    """Whether it reaches networks from its sandbox, this machine included."""
    url: BackendUrl | None = None
    """Its endpoint: an `http(s)://` or `ws(s)://` URL, or `unix:/path`: on that Unix domain socket `/mcp`, `/sse` with
    `sse`, `/ws` with `ws`."""
    headers: dict[str, HeaderValue] = {}
    """Headers sent with every request to it: the place for its credentials."""
    native: str | None = None
    """A server in this process, as `module:attribute` or `path/to/file.py:attribute`, relative to this file; of a
    module or file alone, its `server`. The object is the server, or a function that makes it of the `options`."""
    auth: ServerAuth | None = None
    """How the gateway is authorized there, where that is more than headers. See [below](#servers-behind-oauth)."""
    options: dict[str, Any] = {}
    """What the function that makes a `native` server takes. Paths are relative to this file."""
    sharing: Literal["session", "principal", "pool", "shared"] = "session"
    """`session`: a connection of its own for each client session. `principal`: one for all sessions of a user. `pool`:
    the same, by a process that was started ahead and is given to nobody else afterwards. `shared`: one for all, for
    servers without state."""
    min: Bound = 0
    """Processes of a `pool` that are kept started for whoever comes next."""
    max: Bound = 0
    """Processes that a `pool` may have, whoever has them; 0 is no bound but `gateway.limits.childProcesses`."""
    idle_stop: Positive | None = None
    """Seconds after which a process that nobody has used is stopped; the next call starts it again. Without it, the
    process stays for as long as a session has it."""
    timeout: Positive | None = None
    """Seconds that a request to it may take; progress restarts them. Without it, `gateway.limits.requestDeadline`."""
    enabled_tools: list[str] | None = None
    """Shell-style patterns of its own tool names; only these are served. Without it, all."""
    disabled_tools: list[str] = []
    """Patterns of tools that are not served, whatever `enabledTools` says."""
    pins: Literal["off", "warn", "block"] | None = None
    """What is done about definitions of its that are not as `stagedoor.lock` has them: nothing, a warning, or they are
    held back until they are accepted. Without it, what `gateway.pins.mode` says."""
    disabled: Switch = False
    """Leaves the server out, and with it whatever is missing or wrong in it."""
    groups: list[str] = []
    """Groups it belongs to, besides those under `gateway.groups`."""

    @model_validator(mode="after")
    def _one_kind(self) -> "Server":
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if not given:
            raise PydanticCustomError("kind", "has none of `command`, `url` and `native`: one says where the server is")
        if len(given) > 1:
            raise _error(given[1], f"stands beside `{given[0]}`: a server has one of them")
        for key, kind in _BELONGS.items():
            if getattr(self, key) and given[0] != kind:
                raise _error(to_camel(key), f"goes with `{kind}`, this server has `{given[0]}`")
        if self.auth is not None and given[0] != "url" and (given[0] != "command" or self.auth.mode != "key"):
            raise _error("auth", "goes with `url`; a server with `command` has a `key` in a `variable`")
        self._check_confinement(given[0])
        self._check_pool(given[0])
        transports = {"command": STDIO_TYPES, "url": HTTP_TYPES + SSE_TYPES + WEB_SOCKET_TYPES, "native": ()}[given[0]]
        if self.type is not None and self.type not in transports:
            raise _error("type", f"does not fit a server with `{given[0]}`")
        self._check_scheme()
        return self

    def _check_pool(self, kind: str) -> None:
        if self.sharing == "pool" and kind != "command":
            raise _error("sharing", f"`pool` goes with `command`, this server has `{kind}`")
        for key in ("min", "max"):
            if getattr(self, key) and self.sharing != "pool":
                raise _error(key, 'goes with `"sharing": "pool"`')
        if self.max and self.min > self.max:
            raise _error("min", "is more than `max`")

    def _check_confinement(self, kind: str) -> None:
        if kind != "command" and self.resources != ResourcesSection():
            raise _error("resources", f"goes with `command`, this server has `{kind}`")
        if self.sandbox is None and (self.folders != FoldersSection() or self.network):
            key = "network" if self.network else "folders"
            raise _error(key, 'goes with `"sandbox": "bwrap"`: without one a server sees everything')

    def _check_scheme(self) -> None:
        url = self.url or f"{SOCKET}:"
        web_socket = url.lower().startswith(WEB_SOCKET_SCHEMES)
        if self.type in WEB_SOCKET_TYPES and not web_socket and not url.startswith(f"{SOCKET}:"):
            raise _error("url", "must be a ws:// or wss:// URL, or unix:/PATH: `type` says that it is WebSocket")
        if web_socket and self.type not in (None, *WEB_SOCKET_TYPES):
            raise _error("type", "does not fit a ws:// URL")


def _error(key: str, message: str) -> PydanticCustomError:
    """An error at one key of the model: the loader reads `field` from the context and adds it to the place."""
    return PydanticCustomError("field", "{message}", {"message": message, "field": key})


class Token(Section):
    """A bearer token, and what it gives to whoever brings it."""

    token: TokenText
    """The token."""
    groups: list[str] = []
    """The groups that its principal is in."""
    scopes: list[ScopeText] = []
    """The scopes that it has."""

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        check_token(value)
        return {"token": value}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}


class IntrospectionSection(Section):
    """Where an issuer says what a token is worth (RFC 7662), and as whom it is asked."""

    endpoint: WebAddress
    """The address of its introspection endpoint."""
    client_id: str
    """The gateway's own client there."""
    client_secret: SecretStr | None = None
    """Its secret."""
    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent: by HTTP Basic, or in the form."""
    private_key: SecretStr | None = None
    """Instead of a secret: a private key in PEM, without a password (`private_key_jwt`)."""
    private_key_algorithm: SigningAlgorithm = "ES256"
    """What it signs by."""


class IssuerSection(Section):
    """One issuer of access tokens (an authorization server)."""

    issuer: IssuerAddress
    """Its identifier, exactly as its tokens and its metadata have it."""
    preset: Literal["keycloak", "entra", "okta", "auth0"] | None = None
    """What its claims are called; what else is set here goes before it."""
    audiences: list[AudienceText] | None = None
    """Values of `aud` that are taken besides the addresses of the gateway's endpoints. `any-from-this-as`: what it
    introspects may be meant for anybody."""
    jwks_uri: WebAddress | None = None
    """Where its keys are, if its metadata does not say."""
    algorithms: list[Algorithm] | None = None
    """By which its tokens may be signed: all of RS, PS and ES with 256, 384 and 512, and EdDSA."""
    typ: Literal["any", "strict"] | None = None
    """`strict`: the header of a token must say that it is an access token (`at+jwt`, RFC 9068)."""
    subject_claim: ClaimText | list[ClaimText] | None = None
    """The claim that says who somebody is, for good, or several that say it together: `sub`."""
    groups_claims: list[ClaimText] | None = None
    """The claims that have the groups, as paths: `groups` and `roles`."""
    scopes_claim: ClaimText | list[ClaimText] | None = None
    """The claims that have the scopes: `scope` and `scp`."""
    introspection: IntrospectionSection | None = None
    """How the issuer is asked what a token is worth which is no JWT."""
    introspect: Literal["opaque", "always"] = "opaque"
    """`always`: it is asked about JWTs too, so that one that was revoked is good for a minute at most."""
    scopes: list[FirstScope] = []
    """The scopes that clients ask for first."""
    bound_tokens: Literal["refuse", "accept"] = "refuse"
    """Tokens that are bound to a key of the client's (`cnf`): the gateway can't check that."""


class BrowserSection(Section):
    """How the pages for connecting accounts find out whose browser it is."""

    mode: Literal["oidc", "token", "proxy", "none"]
    """`oidc`: by signing in at the issuer of the gateway's own tokens. `token`: by the token of the user's client.
    `proxy`: a login proxy in front says so. `none`: whoever opens a link is who it was made for; only where nobody but
    this machine can reach the gateway."""
    client_id: str | None = None
    """Of `oidc`: the gateway's client at the issuer. Its redirect address is `<publicUrl>/connect/callback`."""
    client_secret: SecretStr | None = None
    """Its secret, if it has one."""
    header: HeaderName | None = None
    """Of `proxy`: the header that names the principal, as rules do: by the name of a configured token, or as
    `ISSUER#SUBJECT`."""
    groups: HeaderName | None = None
    """Of `proxy`: the header that has his groups, with commas between them. By it rules show servers to groups."""
    from_: list[NetworkText] = Field([], alias="from")
    """Of `proxy`: the addresses or networks that may say so."""


class AuthSection(Section):
    """Who may come in. Without `tokens` and `issuers` every client is the one anonymous principal."""

    tokens: dict[str, Token] | None = None
    """The bearer token of each principal, by the principal's name: the token, or an object with `token` and the
    `groups` and `scopes` that it gives."""
    issuers: list[IssuerSection] = []
    """The authorization servers whose tokens are taken."""
    legacy_metadata: Switch = False
    """Answers at `/.well-known/oauth-authorization-server` as the first issuer does, for clients of 2025-03-26."""
    bind_client: Switch = False
    """What belongs to a user belongs to one OAuth client of that user: another one finds nothing of it. Limits of rules
    are the user's, `sessionsPerPrincipal` and its like each client's."""
    anonymous: Switch = False
    """Says that everybody may come in without a token, where there are no `tokens` and `issuers` and others than this
    machine can reach the gateway: it does not start without it."""
    hosts: list[HostText] = []
    """`Host` values allowed besides loopback names, the listen address and the host of `publicUrl`: `name`, or
    `name:port` for one port. The admin listener takes these names too, with any port."""
    origins: list[OriginText] = []
    """`Origin` values allowed besides those of loopback names, the listen address and the host of `publicUrl`."""
    browser: BrowserSection | None = None
    """How the pages for connecting accounts find out whose browser it is ([below](#connecting-accounts)). Without it:
    by tokens, if there are `tokens`."""


class TlsSection(Section):
    """TLS of the public listener; paths are relative to this file."""

    cert: str
    """PEM file of the certificate and its chain."""
    key: str
    """PEM file of the private key."""


class NamingSection(Section):
    """How aggregates name what they serve."""

    separator: Separator = "__"
    """Stands between a server's name and the name of its tool or prompt; no server's name may hold it."""


class LogSection(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least urgent level that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """One JSON object a line, or text for people; `auto` is `console` on a terminal and `json` elsewhere."""
    requests: Switch = False
    """A line for each request of a client when it has its end."""
    requests_sample: Share = 1.0
    """The share of requests that went well which have such a line (0 to 1); any other end always has one."""
    access: AccessText = "off"
    """A line for each HTTP request: `off`, `json`, `combined` (Apache's form), or a text with fields in braces, such as
    `{time} {method} {path} {status} {ms}`."""
    access_file: FileText | None = None
    """Where these lines go; without it to standard error. The path is relative to this file."""


class TracesSection(Section):
    """Traces by OpenTelemetry, sent by OTLP over HTTP. They need the extra `traces`:
    `pip install 'stagedoor[traces]'`. What is not said here the `OTEL_*` variables may say."""

    endpoint: OtlpUrl | None = None
    """The collector: `http://HOST:PORT`, or a whole URL with its path. Without it `OTEL_EXPORTER_OTLP_ENDPOINT` counts,
    or else `http://localhost:4318`."""
    headers: dict[str, HeaderValue] = {}
    """Headers for the collector. They are taken for credentials."""
    sample: Share | None = None
    """Of the traces that begin here, the share that is recorded (0 to 1). A trace that began elsewhere is recorded if
    it is there. Without it `OTEL_TRACES_SAMPLER` counts, or else all are recorded."""


class AuditSection(Section):
    """Who did what, one JSON line each. Without a `file`, `syslog` or `otlp` nothing is written."""

    file: FileText | None = None
    """The file that lines are appended to, relative to this file; it is made so that only its owner can read it.
    Several processes may share it. Where it is moved away, a new one is begun."""
    arguments: Literal["none", "keys", "hash", "redacted", "full"] = "keys"
    """What is written of the arguments of a call: their names (`keys`), with a hash of each value that is the same
    within this deployment (`hash`), with their values but for what looks like a credential (`redacted`), or all
    (`full`); long values are cut."""
    on_full: Literal["block", "drop"] = "block"
    """What happens while the file can't be written and the queue is full: `block` refuses requests (503) rather than
    have them unrecorded, `drop` serves them, and the trail says how many lines are missing."""
    syslog: SyslogUrl | None = None
    """A daemon that gets a copy of each line (RFC 5424): `unix:/dev/log`, `udp://HOST:PORT`, `tcp://HOST:PORT` or
    `tls://HOST:PORT`. It never holds up the file."""
    otlp: OtlpLogsUrl | None = None
    """An OpenTelemetry collector that gets a copy of each line as a log record (OTLP over HTTP), such as
    `http://127.0.0.1:4318/v1/logs`."""
    otlp_headers: dict[str, HeaderValue] = {}
    """Headers for the collector: the place for its credentials."""


class PinsSection(Section):
    """Definitions of servers that somebody has looked at and accepted ([pins](pins.md))."""

    file: FileText | None = None
    """Where they stand, relative to this file. Without it, `stagedoor.lock` beside this file, if it is there."""
    mode: Literal["off", "warn", "block"] | None = None
    """For servers that do not say `pins` themselves. Without it, `warn` where there is a lock file, and `off` where
    there is none."""


class Who(Section):
    """For whom a rule is: those who have one of each list that is there. Without any list, everybody."""

    groups: list[str] | None = None
    """Groups of the token."""
    principals: list[str] | None = None
    """Configured tokens by their name; users of an issuer as `ISSUER#SUBJECT`; `anonymous`: whoever comes over stdio,
    or where there are no tokens and no issuers."""
    scopes: list[ScopeText] | None = None
    """Scopes of the token. Who lacks them does not see what the rule allows; to be asked for them, see `scopes` of the
    rule."""
    clients: list[str] | None = None
    """Ids of the OAuth clients to which tokens were issued."""


class LimitSection(Section):
    """How often something may be done."""

    most: RateText
    """So many per unit, such as `60/min`. Units are `s`, `min` and `h`, of a rate: what was used comes back evenly; and
    `day` and `week`, of a quota, which begins anew at midnight and on Monday, UTC."""
    burst: Count | None = None
    """How many a rate lets through at once; else as many as `most` says."""
    per: Literal["principal", "group", "all"] = "principal"
    """Who shares it: each principal has its own, or each of the rule's `who.groups` has one for its members, or all for
    whom the rule is share one."""
    each: Literal["item", "server", "tool"] = "item"
    """What has one of its own: all together that the item names, each server, or each tool (prompt)."""

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        return {"most": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}


class _OneOrMore:
    """A value stands for the list of it."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        listed = handler(core)
        return {"anyOf": [listed["items"], listed]}


Limiting = Annotated[list[LimitSection], BeforeValidator(lambda v: v if isinstance(v, list) else [v]), _OneOrMore()]


class PolicyRule(Section):
    """One rule. Items are `SERVER:TOOL`, `prompt:SERVER:NAME` and `resource:SERVER:URI`, each part a shell-style
    pattern over the server's own names."""

    who: Who = Who()
    allow: list[str] = []
    """What these may see and use."""
    deny: list[str] = []
    """What they may not, whichever rule allows it."""
    scopes: dict[str, list[str]] = {}
    """Scopes that items need besides: they stay listed, and a call without them is answered with a step-up."""
    limits: dict[str, Limiting] = {}
    """How often items may be used, and, by paths such as `/mcp`, how many requests endpoints take: `60/min`, an object
    as below, or a list of these."""
    when: str | None = None
    """A condition in CEL; the rule counts only for calls of which it is true. Needs `stagedoor[policy]`."""


class Caller(Section):
    """Who asks in a test of the policy. (`principals` and `clients` of one, as in `who`, mean the same.)"""

    principal: str = "anonymous"
    """As in `who`; a configured token has the groups and scopes that it is configured with, besides these."""
    groups: list[str] = []
    """Groups of the token."""
    scopes: list[str] = []
    """Its scopes."""
    client: str | None = None
    """The OAuth client that it was issued to."""
    claims: dict[str, Any] = {}
    """Further claims of a token of an issuer, for conditions."""

    @model_validator(mode="before")
    @classmethod
    def _of_one(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        one = {f"{key}s": key for key in ("principal", "client")}
        single = {one[key]: given[0] for key, given in value.items() if key in one and _alone(given)}
        return {**{key: given for key, given in value.items() if one.get(key) not in single}, **single}


def _alone(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1


class PolicyTest(Section):
    """A case that `stagedoor policy test` tries."""

    as_: Annotated[Caller, Field(alias="as")] = Caller()
    item: str
    """What is asked for: an item without patterns."""
    args: dict[str, Any] | None = None
    """Arguments of the call, for conditions."""
    expect: Literal["allow", "deny", "step-up"]
    """What must come of it."""


LimitsSection = section("limits", "Bounds of one process.")
SessionsSection = section("sessions", "How many client sessions there are, and how long each lives.")
ReplaySection = section("replay", "What is kept so that a client whose connection broke can resume its streams.")
DrainSection = section("drain", "How the gateway ends on SIGTERM.")
ReloadSection = section("reload", "What happens when the configuration is read anew, on SIGHUP or `--watch-config`.")


class Gateway(Section):
    """Everything about the gateway itself."""

    listen: ListenText = "127.0.0.1:8080"
    """Where clients connect: `HOST:PORT` (port 0 is any free one), or `unix:/PATH`, a socket that this user alone can
    use."""
    admin: AddressText = "127.0.0.1:8081"
    """Where `/livez`, `/readyz` and `/metrics` are. Never make it public."""
    public_url: PublicAddress | None = None
    """The address by which clients reach the gateway, without `/mcp`. With `issuers` everything that tells clients of
    addresses says this one."""
    client_metadata_url: WebAddress | None = None
    """Where the document is that describes the gateway to authorization servers, if not at
    `<publicUrl>/connect/client-metadata.json`."""
    client_keys: list[SecretStr] = []
    """Private keys in PEM, without a password, by which the gateway authenticates as the client of that document
    (`private_key_jwt`): the first signs, the document names all. Without them it has nothing but its address."""
    client_key_algorithm: SigningAlgorithm = "ES256"
    """What they sign by."""
    store: StoreUrl = SecretStr("memory://")
    """Where sessions and their streams are kept: `memory://`, or `redis://…`, which outlives the process."""
    workers: Processes = 1
    """Processes that serve together on `listen`, each with sessions of its own that the others take over when it ends.
    More than one needs a store that they share."""
    new_privileges: Switch = False
    """Lets servers that are processes run programs that give them more privileges, such as `sudo`. Otherwise Linux
    keeps the gateway and all that it starts from that (`no_new_privs`)."""
    prestart: bool = True
    """Start servers whose lists are not known yet ahead of the first client, so that merged lists have them."""
    keys: list[KeyText] = []
    """Keys that seal cursors, 32 bytes in hex or base64: the first seals, all open. Without them one is made."""
    auth: AuthSection = AuthSection()
    tls: TlsSection | None = None
    limits: LimitsSection = LimitsSection()  # type: ignore[valid-type]
    sessions: SessionsSection = SessionsSection()  # type: ignore[valid-type]
    replay: ReplaySection = ReplaySection()  # type: ignore[valid-type]
    groups: dict[str, list[str]] = {}
    """Names of servers by group; each group is an endpoint of its own, `/mcp/<group>`."""
    naming: NamingSection = NamingSection()
    policy: list[PolicyRule] | None = None
    policy_mode: Literal["enforce", "observe"] = "enforce"
    """`observe`: decisions are counted and logged, and change nothing."""
    policy_tests: list[PolicyTest] = []
    drain: DrainSection = DrainSection()  # type: ignore[valid-type]
    reload: ReloadSection = ReloadSection()  # type: ignore[valid-type]
    log: LogSection = LogSection()
    traces: TracesSection | None = None
    audit: AuditSection = AuditSection()
    pins: PinsSection = PinsSection()


class File(Section):
    """A configuration file."""

    # VS Code takes a comma at the end for a slip unless the schema says otherwise.
    model_config = ConfigDict(title="Stagedoor configuration", json_schema_extra={"allowTrailingCommas": True})

    schema_: Annotated[str | None, Field(alias="$schema")] = None
    """The JSON Schema that editors complete and check by."""
    mcp_servers: dict[str, Server] = {}
    """The MCP servers by name, in the shape that MCP clients use."""
    servers: dict[str, Server] = {}
    """The same, under the key of VS Code's `mcp.json`."""
    inputs: list[Any] = []
    """Accepted since VS Code's `mcp.json` has it; its values are never asked for."""
    gateway: Gateway = Gateway()
