"""The table of backends and endpoints: one frozen value, replaced as a whole when the configuration changes.

No actor keeps it past a message: each message reads the present one through the cell that composition gives.
"""

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from actors.protocol.naming import prefixes
from actors.protocol.policy import Policy

if TYPE_CHECKING:
    from actors.protocol.pins import Pins


@dataclass(frozen=True, slots=True)
class StdioTarget:
    """A child process that speaks MCP on its standard streams. Values of `env` are credentials: never logged."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str | None = None
    confinement: "Confinement | None" = None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a child in a sandbox sees of the file system, beside the programs and libraries of the system, and whether
    it reaches a network. Paths are absolute."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a child process may have. None is as much as the gateway itself has. `memory` is in bytes, of each process;
    `processes` are all of its user; `files` are open at a time in each process."""

    memory: int | None = None
    processes: int | None = None
    files: int | None = None
    user: str | None = None
    sandbox: Sandbox | None = None


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A Streamable HTTP endpoint. Header values are credentials: never logged. `may_be_sse`: where it refuses
    `initialize`, it may be one of HTTP+SSE."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    may_be_sse: bool = False


@dataclass(frozen=True, slots=True)
class SseTarget:
    """An endpoint of HTTP+SSE (2024-11-05). Header values are credentials: never logged."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class NativeTarget:
    """A server that runs in this process; `server` belongs to the native adapter and is opaque here."""

    server: Any


@dataclass(frozen=True, slots=True)
class WebSocketTarget:
    """A WebSocket endpoint. Header values are credentials: never logged."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


RemoteTarget: TypeAlias = HttpTarget | SseTarget | WebSocketTarget
"""Those with a URL."""
Target: TypeAlias = StdioTarget | RemoteTarget | NativeTarget


def relates(target: Target) -> bool:
    """Whether what comes from there says which request it belongs to (as `actors.protocol.transport.RELATING`)."""
    return isinstance(target, HttpTarget | NativeTarget)


Sharing: TypeAlias = Literal["session", "principal", "pool", "shared"]
"""Who has a connection to a server together: nobody with anybody, the sessions of one principal (whose process is, in a
pool, one that was started ahead), or all."""


@dataclass(frozen=True, slots=True)
class UpstreamAuth:
    """How the gateway is authorized at a server, where that is more than the headers of its target.

    `client_credentials`: as itself, by tokens of the server's authorization server. `user`: by the tokens of the user
    whose call it is, who has connected his account. `key`: by a key that this user has given. `exchange`: by a token
    that `issuer` gives for the one by which the user asks, meant for `audience` if the server's URL does not say it.
    `issuer`: the authorization server, if not the one that the server names; `metadata_url`: where its metadata is, if
    it is not where that says; `catalog`: a token by which lists are asked for that no user is there for, and nothing
    else.
    """

    mode: Literal["client_credentials", "user", "key", "exchange"]
    issuer: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    algorithm: str = "ES256"
    metadata_url: str | None = None
    inside: tuple[str, ...] = ()
    """Further addresses of the authorization server that need not be of the internet."""
    for_token_endpoint: bool = False
    """What `private_key` signs is for the token endpoint, instead of the issuer."""
    authorize: tuple[tuple[str, str], ...] = ()
    """Further parameters of the request by which a user signs in."""
    omit_resource: bool = False
    """The authorization server is not told which resource a token is for."""
    scopes: tuple[str, ...] = ()
    audience: str | None = None
    delegation: bool = False
    """Of `exchange`: the gateway shows a token of its own too, as the one who acts for the user."""
    catalog: str | None = field(default=None, repr=False)
    header: str = "Authorization: Bearer {key}"
    """Of `key`: the header that carries it."""
    variable: str | None = None
    """Of `key`: the variable that carries it to a process."""

    @property
    def named(self) -> tuple[str, ...]:
        """The addresses of authorization servers that the operator has written himself."""
        return tuple(url for url in (self.issuer, self.metadata_url, *self.inside) if url is not None)

    @property
    def personal(self) -> bool:
        """Whether a connection is one principal's: nobody else's calls go over it."""
        return self.mode in ("user", "key", "exchange")

    @property
    def connected(self) -> bool:
        """Whether users connect accounts for it, on our pages."""
        return self.mode in ("user", "key")


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One configured MCP server.

    `timeout` is its request deadline in seconds. `enabled_tools` (None: all) and `disabled_tools` are shell-style
    patterns over the server's own tool names; disabled wins. A process that was unused for `idle_stop` seconds is
    stopped; None: it stays for as long as a session has it. `least` and `most` bound the processes of a `pool`, those
    that nobody has yet included. `account`: of a
    connection, the principal whose account it uses, if `auth` is personal. `pins`: what of its definitions was
    accepted; None: nobody asks.
    """

    name: str
    target: Target
    timeout: float = 300.0
    sharing: Sharing = "session"
    enabled_tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    idle_stop: float | None = None
    least: int = 0
    most: int = 0
    auth: UpstreamAuth | None = None
    account: str = ""
    pins: "Pins | None" = None

    @property
    def common(self) -> bool:
        """Whether several sessions use one connection: those of everybody (`shared`), or of one principal. What a
        server would ask over it would be asked of any of them, so that it is not told of anything that it could ask."""
        return self.sharing != "session"

    @property
    def personal(self) -> bool:
        """Whether each principal has connections of his own to it, with his own account."""
        return self.auth is not None and self.auth.personal

    @property
    def exchanged(self) -> bool:
        """Whether what is asked goes with what an issuer gives for the token of whoever asks: to the server the same
        user is somebody else with other rights."""
        return self.auth is not None and self.auth.mode == "exchange"

    @property
    def connectable(self) -> bool:
        """Whether each principal connects an account for it."""
        return self.auth is not None and self.auth.connected

    def of(self, principal: str) -> "BackendSpec":
        """For the connections of this principal."""
        return replace(self, account=principal) if self.personal else self


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What one path below `/mcp` serves: one backend as it is, or several merged under prefixed names."""

    name: str
    kind: Literal["transparent", "aggregate"]
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """All backends and endpoints. `endpoints[""]` is `/mcp`; `digest` names the configuration they came from. `policy`:
    who may see and do what of it; None: everybody everything."""

    backends: dict[str, BackendSpec]
    endpoints: dict[str, Endpoint]
    separator: str = "__"
    digest: str = ""
    policy: Policy | None = None
    by_rights: bool = field(default=False, init=False)
    """Whether a user may see something else with other rights."""

    def __post_init__(self) -> None:
        by_rights = self.policy is not None or any(spec.exchanged for spec in self.backends.values())
        object.__setattr__(self, "by_rights", by_rights)


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the gateway. Times in seconds, sizes in bytes."""

    message_bytes: int = 4 * 1024 * 1024
    """A message of a client or a backend; refused before it is parsed."""
    bodies_bytes: int = 256 * 1024 * 1024
    """Bodies of POSTs, over all connections, until each begins to be answered; a further one over 16 KiB gets 503."""
    sessions: int = 20_000
    """Live sessions of one process; a further `initialize` gets 503."""
    requests_per_session: int = 64
    """Requests in flight of one session; a further one gets 429."""
    requests_per_principal: int = 512
    """Requests in flight of one principal over all its sessions; the anonymous principal has no such bound."""
    sessions_per_principal: int = 2_000
    """Live sessions of one principal in one process; a further `initialize` gets 429. 0: no bound of its own."""
    sessions_anonymous: int = 0
    """The same for the anonymous principal, which is everybody where there are no tokens. 0: no bound of its own; of
    what is kept for its modern clients, the longest unused goes above `sessionsPerPrincipal`."""
    get_streams_per_session: int = 4
    """GET streams open in one session; a further one gets 409."""
    request_deadline: float = 300.0
    """From acceptance to outcome; progress restarts it."""
    request_deadline_cap: float = 3600.0
    """The longest a request may live, whatever progress it makes."""
    stream_after: float = 0.25
    """An answer that takes longer turns into an SSE stream."""
    idle_ttl: float = 1800.0
    """A session without messages and streams for this long ends."""
    passivate_after: float = 60.0
    """A session without messages and streams for this long leaves memory."""
    follow_after: int = 8
    """After so many POSTs on end that came to the same other replica, the session goes there: a balancer leads its
    client there. 0: never."""
    admission: float = 2.0
    """How long a message may wait in a mailbox before it is revoked."""
    server_request_wait: float = 5.0
    """How long a server's request waits for a GET stream when no call is there to carry it."""
    link_connect: float = 30.0
    """From start to ready of a backend connection."""
    link_idle: float = 300.0
    """A connection of the catalogue, or of modern clients, without use for this long is closed."""
    park_ttl: float = 600.0
    """How long a call waits for answers of a modern client; then it is cancelled at its server."""
    parked_per_principal: int = 256
    """Calls of one principal that wait so; for a further one the one that waits longest gives way, after 60 s at the
    earliest; else the server requests of the further one are refused, and it gets -32603."""
    broker_idle: float = 900.0
    """Connections that a modern client has to a legacy server are closed after so long without use."""
    overflow_connections: int = 7
    """To one such server over stdio: more of them, while a call waits for answers on the first. 0: others wait, and a
    server that never asked keeps its process after a cancel that it does not answer."""
    list_deadline: float = 3.0
    """How long merged lists wait for a server, all its lists together; then they are given without it."""
    stderr_lines: int = 10
    """Last lines of a server's standard error in the error when it can't be started, and for operators; 0: none."""
    child_processes: int = 200
    """Child processes in all, of which one principal leaves an eighth to others; a further one waits `process_wait`."""
    process_wait: float = 10.0
    """Then the call gets -32603 with `reason: "backend_full"`."""
    replay_ttl: float = 300.0
    """How long the log of a finished stream is kept."""
    replay_ttl_written: float = 60.0
    """The same, when every event had been written to the client."""
    log_events: int = 4096
    """Events kept in the logs of one session."""
    log_bytes: int = 16 * 1024 * 1024
    """Bytes kept in the logs of one session."""
    outbox_events: int = 512
    """Events that wait for one connection; more make it a slow consumer."""
    outbox_bytes: int = 8 * 1024 * 1024
    """Bytes that wait for one connection (one single larger event is let through)."""
    store_outage: float = 60.0
    """While the store is away, and another replica may be able to reach it, sessions that are in memory go on for so
    long, without records; then their requests get 503."""
    box_events: int = 64
    """Messages that wait for a GET stream while none is attached."""
    keep_alive: float = 25.0
    """Between two comments on a silent SSE stream."""
    write: float = 30.0
    """A client that takes nothing for this long is cut, or less than 64 KiB while more waits for it."""
    drain_grace: float = 0.0
    """From 'not ready' to the first step of the drain: so long everybody is served, and balancers may notice."""
    drain_deadline: float = 8.0
    """From the first step of the drain to its end."""
    reload_grace: float = 300.0
    """How long those who hold a connection to a server keep it after a reload that gave it another command, address or
    credential; whoever connects meanwhile gets the server that is configured."""


# ------------------------------------------------------------------------------------ what it means that it is replaced


class Replaced(Struct, frozen=True):
    """The table is another one; whoever depends on it is told."""

    before: Table


def same_server(before: BackendSpec | None, after: BackendSpec | None) -> bool:
    """Whether a connection that was made as configured before is still one to the configured server."""
    if before is None or after is None:
        return False
    return (before.target, before.sharing, before.auth) == (after.target, after.sharing, after.auth)


def replaced(before: Table, after: Table) -> frozenset[str]:
    """The backends that are gone, or are other servers than before: what is known of them counts no more."""
    return frozenset(n for n, spec in before.backends.items() if not same_server(spec, after.backends.get(n)))


def left_out(spec: BackendSpec, tool: str) -> str | None:
    """Which of a server's own filters does not let a tool through, by the server's own name for it; None: they all
    do."""
    if any(fnmatchcase(tool, pattern) for pattern in spec.disabled_tools):
        return "disabledTools"
    if spec.enabled_tools is not None and not any(fnmatchcase(tool, pattern) for pattern in spec.enabled_tools):
        return "enabledTools"
    return None


def connection_name(spec: BackendSpec, whose: str = "") -> str:
    """Of a connection that everybody uses who comes to this server as it is configured here, or every session of the
    principal `whose`: another one has another name. It is the same in one process only, and says nothing of what it was
    made of."""
    target = id(spec.target.server) if isinstance(spec.target, NativeTarget) else spec.target
    name = f"{spec.name}-{hash((target, spec.sharing, spec.auth, spec.account)) & (1 << 64) - 1:016x}"
    return name if spec.sharing in ("session", "shared") else f"{name}-{whose}"


TOOLS = frozenset({"tools"})
LISTS = frozenset({"tools", "prompts", "resources"})
"""The kinds of what servers list."""


NONE: frozenset[str] = frozenset()


def touched(before: Table, after: Table, endpoint: str, kept: frozenset[str] = NONE) -> frozenset[str]:
    """Of which kinds an endpoint may list other things than before, or list them under other names, where `kept` are
    asked for their lists as they were."""
    was, served = before.endpoints.get(endpoint), after.endpoints.get(endpoint)
    if was != served or served is None:
        return LISTS if was != served else NONE
    names = served.backends
    # A backend that is on other endpoints only may still be the rival of one here.
    named, renamed = (prefixes(tuple(table.backends), table.separator).by_backend for table in (before, after))
    if served.kind == "aggregate" and any(named.get(n) != renamed.get(n) for n in names):
        return LISTS
    others = replaced(before, after) - kept | after.backends.keys() - before.backends.keys()
    if not others.isdisjoint(names) or any(pinned(before, n) != pinned(after, n) for n in names):
        return LISTS
    return TOOLS if any(filters(before, n) != filters(after, n) for n in names) else NONE


def pinned(table: Table, name: str) -> "Pins | None":
    """What of a backend's definitions was accepted, if that is asked."""
    spec = table.backends.get(name)
    return spec.pins if spec is not None else None


def repinned(before: Table, after: Table) -> frozenset[str]:
    """The backends of which something else is accepted than before."""
    return frozenset(name for name in after.backends if pinned(before, name) != pinned(after, name))


def filters(table: Table, name: str) -> object:
    """What decides over the tools that are shown of a backend."""
    spec = table.backends.get(name)
    return spec and (spec.enabled_tools, spec.disabled_tools)
