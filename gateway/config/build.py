"""From the model of a file to settings: what must hold between its parts, and the values that composition takes."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from pydantic.alias_generators import to_camel

from actors.protocol.headers import TOKEN
from actors.protocol.issuers import Issuer
from actors.protocol.policy import Policy
from actors.protocol.rights import STATIC, Rights
from actors.protocol.table import (
    BackendSpec,
    Confinement,
    Endpoint,
    HttpTarget,
    Limits,
    NativeTarget,
    Sandbox,
    SseTarget,
    StdioTarget,
    Table,
    Target,
    UpstreamAuth,
    WebSocketTarget,
)
from gateway.config.addresses import parse_address, parse_listen
from gateway.config.browsers import browser_of
from gateway.config.changes import flat
from gateway.config.foreign import SEGMENT, usable
from gateway.config.issuers import issuer_of, public_url, senseless
from gateway.config.models import SSE_TYPES, WEB_SOCKET_SCHEMES, WEB_SOCKET_TYPES, File, Server, ServerAuth
from gateway.config.natives import made
from gateway.config.policies import cases, policy_of
from gateway.config.problems import ConfigError, Path, Problem, dotted, nearest
from gateway.config.references import placed
from gateway.config.sections import PLACE, limits_from
from gateway.config.settings import AuditSettings, Auth, Callers, LogSettings, Settings, Tls, TracesSettings
from gateway.config.signing import fault_of
from gateway.config.values import parse_key, plain

if TYPE_CHECKING:
    from actors.protocol.pins import Pins

LOCK = "stagedoor.lock"
"""The file of pins, where none is named."""
_OWN_HEADERS = re.compile(
    "accept|accept-encoding|connection|content-length|content-type|expect|host|last-event-id|mcp-protocol-version"
    "|mcp-session-id|sec-websocket-[a-z-]*|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
)
"""Headers that the transport sets: a second value would contradict it."""

_BUILT: dict[str, Literal["client_credentials", "user", "key", "exchange"]] = {
    "client_credentials": "client_credentials",
    "user": "user",
    "key": "key",
    "exchange": "exchange",
}
_MODES: dict[str, tuple[str, ...]] = {
    "audience": ("exchange",),
    "delegation": ("exchange",),
    "metadata_url": ("user", "client_credentials"),
    "authorize_parameters": ("user",),
    "inside": ("user", "client_credentials", "exchange"),
    "omit_resource": ("user", "client_credentials", "exchange"),
}
"""Keys of `auth` by the modes that they are for."""
_OWN_PARAMETERS = re.compile(
    "response_type|response_mode|client_id|redirect_uri|state|code_challenge|code_challenge_method|scope|resource"
    "|request|request_uri"
)
"""What an authorization request says of itself: `scopes` and `omitResource` are there for the rest."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?[ -z|~]*\{key\}[ -z|~]*")
"""One header, and where in its value the key goes."""

_ORDER = [
    (PLACE[less], PLACE[more])
    for less, more in (("request_deadline", "request_deadline_cap"), ("replay_ttl_written", "replay_ttl"))
]
"""Limits of which the first cannot be more than the second."""

Resolve = Callable[[str], Any]
"""A reference → the object (`gateway.config.references`); ValueError with a sentence where there is none."""

_IDENTITY = {"command", "args", "cwd", "url", "native", "options", "enabled_tools", "disabled_tools"}
"""What exposed names and cursors depend on: neither limits nor credentials."""


@dataclass(slots=True)
class Builder:
    """Builds settings from one file. They are for use only when it found no `problems`."""

    file: File
    folder: FilePath
    resolve: Resolve
    problems: list[Problem] = field(default_factory=list)
    lock: Callable[[str], str | None] | None = None
    """What stands in a lock file; None: there is none. ValueError where it can't be read."""

    def settings(self) -> Settings:
        gateway = self.file.gateway
        sections = {name: getattr(gateway, name) for name in ("limits", "sessions", "replay", "drain", "reload")}
        limits = limits_from(sections)
        self._check_order(limits)
        listen, admin = parse_listen(gateway.listen), parse_address(gateway.admin)
        if listen == admin and listen.port:
            self._add(("gateway", "admin"), "is the address of `listen`: the two are separate listeners")
        table = self._table(limits)
        return Settings(
            table=table,
            limits=limits,
            listen=listen,
            admin=admin,
            store=gateway.store.get_secret_value(),
            workers=gateway.workers,
            prestart=gateway.prestart,
            new_privileges=gateway.new_privileges,
            auth=replace(self._auth(), browser=browser_of(self.file, self.problems)),
            public_url=public_url(gateway.public_url) if gateway.public_url is not None else "",
            client_metadata_url=gateway.client_metadata_url,
            client_keys=tuple(self._client_keys()),
            client_key_algorithm=gateway.client_key_algorithm,
            keys=tuple(parse_key(key.get_secret_value()) for key in gateway.keys),
            tls=self._tls(),
            log=self._log(),
            traces=self._traces(),
            audit=self._audit(),
            values=self._values(table),
            lock=self._lock_file,
            callers=self.callers,
            policy_tests=tuple(cases(gateway, self._known, self.callers, self.problems)),
            config_digest=digest(self.file.model_dump_json(by_alias=True, exclude={"schema_", "inputs"})),
        )

    def _values(self, table: Table) -> dict[Path, str]:
        """What stands in the file; of a lock file, what tells it from another one."""
        pins = [spec.pins.digest for spec in table.backends.values() if spec.pins is not None]
        locked: dict[Path, str] = {("gateway", "pins", "content"): digest("".join(pins))} if pins else {}
        return {**flat(self.file), **locked}

    @property
    def _lock_file(self) -> FilePath:
        return self._file(self.file.gateway.pins.file or LOCK)

    def _pins(self, servers: dict[str, Server]) -> dict[str, "Pins"]:
        """By server, where anything is to be done about what was not accepted."""
        section, place = self.file.gateway.pins, self._lock_file
        wanted = section.file or section.mode or any(server.pins for server in servers.values())
        if self.lock is None:
            return {}
        try:
            text, why = self.lock(str(place)), ""
        except ValueError as error:
            text, why = None, str(error)
        if not wanted and text is None and not why:
            return {}
        from gateway.config.locks import pins_of  # only where there are pins

        return pins_of(self.file, servers, place, text, why, self.problems)

    def _check_order(self, limits: Limits) -> None:
        for less, more in _ORDER:
            if getattr(limits, less.limit) > getattr(limits, more.limit):
                self._add(less.path, f"is more than `{dotted(more.path)}`")

    def _table(self, limits: Limits) -> Table:
        specs: dict[str, BackendSpec] = {}
        identities: dict[str, Any] = {}
        members = self._groups()
        separator = self.file.gateway.naming.separator
        found = [*self._servers()]
        for name, server, path in found:
            if not server.disabled and separator in name:
                hint = "give it another name, or set another `gateway.naming.separator`"
                self._add(path, f'the name holds the separator "{separator}" of exposed names: {hint}')
            target = None if server.disabled else self._target(server, path)
            if target is not None:
                groups = tuple(group for group, names in members.items() if name in names)
                specs[name] = replace(_spec(name, server, target, groups, limits), auth=self._server_auth(server, path))
                identities[name] = server.model_dump(mode="json", include=_IDENTITY)
        pins = self._pins({name: server for name, server, _ in found if name in specs})
        specs = {name: replace(spec, pins=pins.get(name)) for name, spec in specs.items()}
        endpoints = {name: Endpoint(name, "transparent", (name,)) for name in specs}
        endpoints[""] = Endpoint("", "aggregate", tuple(specs))
        for group, names in members.items():
            endpoints[group] = Endpoint(group, "aggregate", tuple(name for name in specs if name in names))
        routes = [[endpoint.name, endpoint.kind, endpoint.backends] for endpoint in endpoints.values()]
        policy = self._policy(specs)
        said = [separator, identities, routes, *([policy.shown] if policy is not None else ())]
        said += [{name: one.digest for name, one in pins.items()}] if pins else []
        return Table(specs, endpoints, separator, digest(json.dumps(said)), policy)

    @property
    def _known(self) -> list[str]:
        """The names of all servers, of those too that are left out."""
        return [*{**self.file.mcp_servers, **self.file.servers}]

    def _policy(self, specs: dict[str, BackendSpec]) -> Policy | None:
        servers, names = {name: specs.get(name) for name in self._known}, [*self._known, *self.file.gateway.groups]
        paths = ("/mcp", *(f"/mcp/{name}" for name in names))
        return policy_of(self.file.gateway, servers, paths, self.callers, self.problems)

    @property
    def callers(self) -> Callers:
        """Who can come in, as far as rules can name him."""
        tokens = self.file.gateway.auth.tokens or {}
        rights = {p: Rights(STATIC, p, "", frozenset(t.groups), frozenset(t.scopes)) for p, t in tokens.items()}
        return Callers(rights, tuple(section.issuer for section in self.file.gateway.auth.issuers))

    def _servers(self) -> Iterator[tuple[str, Server, Path]]:
        """Every server, switched off or not, with its place; bad names are told once."""
        seen: set[str] = set()
        for key, servers in (("mcpServers", self.file.mcp_servers), ("servers", self.file.servers)):
            for name, server in servers.items():
                if name in seen:
                    self._add((key, name), "stands in `mcpServers` and in `servers`")
                elif self._fits_a_path(name, (key, name)):
                    seen.add(name)
                    yield name, server, (key, name)

    def _target(self, server: Server, path: Path) -> Target | None:
        if server.command is not None:
            return self._stdio(server, server.command, path)
        if server.url is not None:
            headers = tuple(self._headers(server, path))
            if server.type in WEB_SOCKET_TYPES or server.url.lower().startswith(WEB_SOCKET_SCHEMES):
                return WebSocketTarget(server.url, headers)
            if server.type in SSE_TYPES:
                return SseTarget(server.url, headers)
            return HttpTarget(server.url, headers, may_be_sse=server.type is None)
        return self._native(server, path)

    def _server_auth(self, server: Server, path: Path) -> UpstreamAuth | None:
        """None where headers are all there is."""
        auth, path = server.auth, (*path, "auth")
        if auth is None or auth.mode not in _BUILT:
            for key in sorted(auth.model_fields_set - {"mode"}) if auth is not None else ():
                self._add((*path, to_camel(key)), "has no meaning where `headers` are all there is")
            return None
        self._check_client(auth, path)
        self._check_modes(auth, path)
        itself = auth.mode in ("client_credentials", "exchange")
        if itself and (auth.client_id is None or (auth.client_secret is None and auth.private_key is None)):
            self._add(path, "needs `clientId` and `clientSecret` (or `privateKey`)")
        if auth.mode == "client_credentials":
            if auth.catalog is not None:
                self._add((*path, "catalog"), "is for servers with an account of each user")
        elif server.sharing in ("shared", "pool"):
            self._add((*path, "mode"), f'does not fit `"sharing": "{server.sharing}"`: an account is one user\'s')
        self._check_variable(server, auth, path)
        header = auth.header.partition(":")[0].strip().lower()
        if any(name.lower() == header for name in server.headers):
            self._add((*path, "mode"), "sets a header that stands in `headers` too")
        return UpstreamAuth(
            mode=_BUILT[auth.mode],
            issuer=self._exchanges_at(server, auth, path) if auth.mode == "exchange" else auth.issuer,
            audience=auth.audience,
            delegation=auth.delegation,
            client_id=auth.client_id,
            client_secret=plain(auth.client_secret),
            private_key=plain(auth.private_key),
            algorithm=auth.private_key_algorithm,
            metadata_url=auth.metadata_url,
            inside=tuple(auth.inside),
            for_token_endpoint=auth.assertion_audience == "token_endpoint",
            authorize=tuple(auth.authorize_parameters.items()),
            omit_resource=auth.omit_resource,
            scopes=tuple(auth.scopes),
            catalog=plain(auth.catalog),
            header=auth.header,
            variable=auth.variable,
        )

    def _check_modes(self, auth: ServerAuth, path: Path) -> None:
        """What only some modes have a meaning for."""
        for key, modes in _MODES.items():
            if getattr(auth, key) and auth.mode not in modes:
                self._add((*path, to_camel(key)), f"is for {' and '.join(f'`{mode}`' for mode in modes)}")
        for name in auth.authorize_parameters:
            if _OWN_PARAMETERS.fullmatch(name) or not name.strip():
                self._add((*path, "authorizeParameters", name), "is not for others to say")
        if auth.omit_resource and auth.mode == "exchange" and not auth.audience:
            self._add((*path, "audience"), "is missing: nothing else says what the token is for")
        if auth.assertion_audience != "issuer" and auth.private_key is None:
            self._add((*path, "assertionAudience"), "has no meaning without `privateKey`")

    def _check_variable(self, server: Server, auth: ServerAuth, path: Path) -> None:
        """A key goes to a URL in a header, and to a process in a variable."""
        if server.command is None:
            if auth.variable is not None:
                self._add((*path, "variable"), "is for servers with a `command`")
            return
        if auth.variable is None:
            self._add((*path, "variable"), "is missing: the variable that carries the key of the user")
        elif not _VARIABLE.fullmatch(auth.variable):
            self._add((*path, "variable"), "is not a name that a variable can have")
        elif auth.variable in server.env:
            self._add((*path, "variable"), "stands in `env` too")
        for key in ("header", "catalog"):
            if key in auth.model_fields_set:
                self._add((*path, key), "has no meaning for a process")

    def _exchanges_at(self, server: Server, auth: ServerAuth, path: Path) -> str:
        """The issuer of tokens that are exchanged: one of the gateway's own, since it is shown nobody else's."""
        issuers = [section.issuer for section in self.file.gateway.auth.issuers]
        if not issuers:
            self._add((*path, "mode"), "needs `gateway.auth.issuers`: whose tokens are exchanged")
        elif auth.issuer is None and len(issuers) > 1:
            self._add((*path, "issuer"), "is missing: the one of `gateway.auth.issuers` whose client this is")
        elif auth.issuer is not None and auth.issuer not in issuers:
            self._add((*path, "issuer"), "is none of `gateway.auth.issuers`: a token is shown to its own issuer alone")
        if server.type in WEB_SOCKET_TYPES or (server.url or "").lower().startswith(WEB_SOCKET_SCHEMES):
            self._add((*path, "mode"), "does not fit a WebSocket: it would go on with a token that has ended")
        return auth.issuer or (issuers[0] if issuers else "")

    def _check_client(self, auth: ServerAuth, path: Path) -> None:
        if auth.client_secret is not None and auth.private_key is not None:
            self._add((*path, "privateKey"), "stands beside `clientSecret`: a client has one of them")
        key = plain(auth.private_key)
        if key is not None and (fault := fault_of(key, auth.private_key_algorithm)):
            self._add((*path, "privateKey"), fault)
        if auth.client_id is None and (auth.client_secret is not None or auth.private_key is not None):
            self._add((*path, "clientId"), "is missing: whose secret it is")
        if auth.mode == "key" and not _KEY_HEADER.fullmatch(auth.header):
            self._add((*path, "header"), "is no header with `{key}` in it, such as `X-Api-Key: {key}`")
        if auth.issuer is not None and not auth.issuer.startswith(("https://", "http://")):
            self._add((*path, "issuer"), "is no https:// URL")

    def _native(self, server: Server, path: Path) -> NativeTarget | None:
        try:
            found = self.resolve(placed(server.native or "", self.folder))
        except ValueError as error:
            self._add((*path, "native"), str(error))
            return None
        try:
            return NativeTarget(made(found, server.options, self._file))
        except ConfigError as error:
            self.problems += [replace(problem, path=(*path, *problem.path)) for problem in error.problems]
            return None

    def _stdio(self, server: Server, command: str, path: Path) -> StdioTarget:
        if not command:
            self._add((*path, "command"), "is empty")
        for name in server.env:
            if not name or "=" in name or "\0" in name:
                self._add((*path, "env", name), "is not a name that a variable can have")
        env = tuple((name, value.get_secret_value()) for name, value in server.env.items())
        cwd = None if server.cwd is None else str(self._file(server.cwd))
        return StdioTarget(command, tuple(server.args), env, cwd, self._confinement(server, path))

    def _confinement(self, server: Server, path: Path) -> Confinement | None:
        sandbox = self._sandbox(server, path) if server.sandbox is not None else None
        given = server.resources
        confinement = Confinement(given.memory_bytes, given.processes, given.files, server.user, sandbox)
        return None if confinement == Confinement() else confinement

    def _sandbox(self, server: Server, path: Path) -> Sandbox:
        found: dict[str, tuple[str, ...]] = {}
        for key in ("read", "write"):
            paths = [self._file(text).resolve() for text in getattr(server.folders, key)]
            for index, place in enumerate(paths):
                if not place.exists():
                    self._add((*path, "folders", key, index), "there is no such file or folder")
            found[key] = tuple(map(str, paths))
        return Sandbox(**found, network=server.network)

    def _headers(self, server: Server, path: Path) -> Iterator[tuple[str, str]]:
        for name, value in server.headers.items():
            if not TOKEN.fullmatch(name):
                self._add((*path, "headers", name), "is not a header name (RFC 9110, section 5.1)")
            elif _OWN_HEADERS.fullmatch(name):
                self._add((*path, "headers", name), "is set by the gateway itself")
            yield name, value.get_secret_value()

    def _groups(self) -> dict[str, set[str]]:
        """Servers by group, from both places where a file can say it. A group needs a name of its own that fits a
        path, and servers that are there."""
        known = {**self.file.mcp_servers, **self.file.servers}
        groups = {group: set(names) for group, names in self.file.gateway.groups.items()}
        for group, listed in self.file.gateway.groups.items():
            for index, name in enumerate(listed):
                if name not in known:
                    place = ("gateway", "groups", group, index)
                    self.problems.append(Problem(f'there is no server "{name}"', place, nearest(name, known)))
        for name, server in known.items():
            for group in server.groups:
                groups.setdefault(group, set()).add(name)
        for group in groups:
            path = self._place_of(group)
            if self._fits_a_path(group, path) and group in known:
                self._add(path, f'the group "{group}" has the name of a server: both would be /mcp/{group}')
        return groups

    def _place_of(self, group: str) -> Path:
        if group in self.file.gateway.groups:
            return ("gateway", "groups", group)
        for key, servers in (("mcpServers", self.file.mcp_servers), ("servers", self.file.servers)):
            for name, server in servers.items():
                if group in server.groups:
                    return (key, name, "groups", server.groups.index(group))
        raise KeyError(group)

    def _auth(self) -> Auth:
        section = self.file.gateway.auth
        path: Path = ("gateway", "auth", "tokens")
        if section.tokens == {}:
            self._add(path, "names no principal: nobody could come in (leave it out for one anonymous principal)")
        owners: dict[str, str] = {}
        rights: dict[str, Rights] = {}
        for principal, given in (section.tokens or {}).items():
            token = given.token.get_secret_value()
            if given.groups or given.scopes:
                rights[principal] = Rights(STATIC, principal, "", frozenset(given.groups), frozenset(given.scopes))
            if principal in ("", "anonymous") or re.match(r"\d+:", principal):
                self._add((*path, principal), "is not a name that a principal can have")
            if token in owners:
                self._add((*path, principal), f'has the token of "{owners[token]}"')
            owners[token] = principal
        tokens = tuple((principal, token) for token, principal in owners.items())
        return Auth(
            tokens,
            tuple(section.hosts),
            tuple(section.origins),
            rights,
            tuple(self._issuers()),
            section.bind_client,
            section.legacy_metadata,
            anonymous=section.anonymous,
        )

    def _issuers(self) -> Iterator[Issuer]:
        gateway, named = self.file.gateway, set[str]()
        listen = parse_listen(gateway.listen)
        if gateway.auth.issuers and not gateway.public_url and (listen.path or not listen.loopback):
            self._add(("gateway", "publicUrl"), "is missing: with `auth.issuers` clients are told where the gateway is")
        for index, section in enumerate(gateway.auth.issuers):
            path: Path = ("gateway", "auth", "issuers", index)
            if section.issuer in named:
                self._add((*path, "issuer"), "is there already")
            named.add(section.issuer)
            found = issuer_of(section)
            for key, why in senseless(section, found):
                self._add((*path, *key.split(".")), why)
            yield found

    def _client_keys(self) -> Iterator[str]:
        for index, secret in enumerate(self.file.gateway.client_keys):
            key = secret.get_secret_value()
            if fault := fault_of(key, self.file.gateway.client_key_algorithm):
                self._add(("gateway", "clientKeys", index), fault)
            yield key

    def _log(self) -> LogSettings:
        section = self.file.gateway.log
        share = section.requests_sample if section.requests else None
        path = self._file(section.access_file) if section.access_file is not None else None
        return LogSettings(section.level, section.format, share, section.access, path)

    def _traces(self) -> TracesSettings | None:
        section = self.file.gateway.traces
        if section is None:
            return None
        for name in section.headers:
            if not TOKEN.fullmatch(name):
                self._add(("gateway", "traces", "headers", name), "is not a header name (RFC 9110, section 5.1)")
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
            self._add(("gateway", "traces"), "needs OpenTelemetry: pip install 'stagedoor[traces]'")
        headers = tuple((name, value.get_secret_value()) for name, value in section.headers.items())
        return TracesSettings(section.endpoint, headers, section.sample)

    def _audit(self) -> AuditSettings:
        section = self.file.gateway.audit
        for name in section.otlp_headers:
            if not TOKEN.fullmatch(name):
                self._add(("gateway", "audit", "otlpHeaders", name), "is not a header name (RFC 9110, section 5.1)")
        return AuditSettings(
            None if section.file is None else self._file(section.file),
            section.arguments,
            section.on_full == "block",
            section.syslog,
            section.otlp,
            tuple((name, value.get_secret_value()) for name, value in section.otlp_headers.items()),
        )

    def _tls(self) -> Tls | None:
        section = self.file.gateway.tls
        if section is None:
            return None
        from gateway.config.certificates import is_missing, tls_fault  # where there is TLS

        cert, key = self._file(section.cert), self._file(section.key)
        missing = [name for name, file in (("cert", cert), ("key", key)) if is_missing(file)]
        for name in missing:
            self._add(("gateway", "tls", name), "there is no such file")
        if not missing and (fault := tls_fault(cert, key)) is not None:
            self._add(("gateway", "tls", fault[0]), fault[1])
        return Tls(cert, key)

    def _file(self, text: str | FilePath) -> FilePath:
        return self.folder / FilePath(text).expanduser()

    def _fits_a_path(self, name: str, path: Path) -> bool:
        if SEGMENT.fullmatch(name):
            return True
        hint = f', such as "{found}"' if (found := usable(name)) is not None else ""
        self._add(path, f"a name is a part of a URL: up to 64 letters, digits and -._, a letter or digit first{hint}")
        return False

    def _add(self, path: Path, message: str) -> None:
        self.problems.append(Problem(message, path))


def digest(text: str) -> str:
    """16 hex digits that name this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _alone(server: Server) -> bool:
    """Whether each user has one process with his key, since nothing else is said."""
    return server.command is not None and server.auth is not None and "sharing" not in server.model_fields_set


def _spec(name: str, server: Server, target: Target, groups: tuple[str, ...], limits: Limits) -> BackendSpec:
    enabled = server.enabled_tools
    return BackendSpec(
        name=name,
        target=target,
        timeout=limits.request_deadline if server.timeout is None else server.timeout,
        sharing="principal" if _alone(server) else server.sharing,
        enabled_tools=None if enabled is None else tuple(enabled),
        disabled_tools=tuple(server.disabled_tools),
        groups=groups,
        idle_stop=server.idle_stop,
        least=server.min,
        most=server.max,
    )
