"""What a configuration comes to: frozen values with all defaults filled in, ready for composition."""

import ipaddress
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from actors.protocol.issuers import Issuer
from actors.protocol.rights import Rights
from actors.protocol.table import Limits, RemoteTarget, StdioTarget, Table
from gateway.config.problems import Path as Place
from gateway.config.references import Loaded
from gateway.config.snapshot import Snapshot
from gateway.wire.url import is_loopback

CREDENTIAL = re.compile(r"authorization|cookie|token|secret|passw|api[-_]?key|credential", re.IGNORECASE)
"""What the name of a header or of a variable says when its value is a credential."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds; port 0 is any free one. With a `path` it is a Unix socket, and host and port say
    nothing."""

    host: str
    port: int
    path: str = ""

    @classmethod
    def unix(cls, path: str) -> "Address":
        """A socket in the file system, which only this machine can reach."""
        return cls("localhost", 0, path)

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def wildcard(self) -> bool:
        """Every interface of this machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def url_host(self) -> str:
        """A name under which this machine itself reaches the listener, as it stands in a URL."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else "::1" if self.wildcard else self.host  # noqa: S104
        return f"[{host}]" if ":" in host else host

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Browser:
    """How the pages for connecting accounts find out whose browser it is."""

    mode: Literal["oidc", "token", "proxy", "none"]
    client_id: str = ""
    client_secret: str | None = field(default=None, repr=False)
    header: str = ""
    peers: tuple[str, ...] = ()
    groups: str = ""


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may come in: bearer token by principal (none: one anonymous principal), further Hosts and Origins.
    `rights` are those of principals that have groups or scopes. `issuers`: whose tokens are taken besides; with
    `bind_client` what is theirs is one client's."""

    tokens: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    rights: Mapping[str, Rights] = field(default_factory=dict)
    issuers: tuple[Issuer, ...] = ()
    bind_client: bool = False
    legacy_metadata: bool = False
    browser: Browser | None = None
    anonymous: bool = False
    """Whether nobody has to say who he is on purpose, also where others can reach the gateway."""

    @property
    def asked(self) -> bool:
        """Whether anybody has to say who he is."""
        return bool(self.tokens or self.issuers)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the public listener, as absolute paths."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where the audit trail goes, and what stands in it. Headers are credentials: never logged."""

    file: Path | None = None
    arguments: Literal["none", "keys", "hash", "redacted", "full"] = "keys"
    block: bool = True
    syslog: str | None = None
    otlp: str | None = None
    otlp_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def on(self) -> bool:
        """Whether anything is written."""
        return any((self.file, self.syslog, self.otlp))


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`auto` is `console` on a terminal and `json` elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    requests: float | None = None
    """The share of requests that went well which have a line; None: none has, whatever its end."""
    access: str = "off"
    access_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TracesSettings:
    """Where traces go; None: what the environment says."""

    endpoint: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    sample: float | None = None


@dataclass(frozen=True, slots=True)
class Callers:
    """Who can come in, as rules know him: configured tokens with their rights, and users of these issuers, of whom
    nothing is known before they come."""

    tokens: Mapping[str, Rights] = field(default_factory=dict)
    issuers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """A case for the policy: who asks, for what, and what is to come of it."""

    principal: str
    rights: Rights
    item: str
    args: Any
    expect: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that composition needs to know.

    `table.digest` changes with what names and cursors depend on; `config_digest` with anything but credentials.
    `keys` seal what goes out to clients, the first seals and all open; empty: composition makes its own.
    `reload`: the one in-process server, if it is to be loaded anew when its files change.
    """

    table: Table
    limits: Limits = field(default_factory=Limits)
    listen: Address = Address("127.0.0.1", 8080)
    admin: Address = Address("127.0.0.1", 8081)
    workers: int = 1
    store: str = field(default="memory://", repr=False)
    prestart: bool = True
    new_privileges: bool = False
    auth: Auth = Auth()
    public_url: str = ""
    client_metadata_url: str | None = None
    client_keys: tuple[str, ...] = field(default=(), repr=False)
    client_key_algorithm: str = "ES256"
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    tls: Tls | None = None
    log: LogSettings = LogSettings()
    traces: TracesSettings | None = None
    audit: AuditSettings = AuditSettings()
    callers: Callers = Callers()
    policy_tests: tuple[PolicyTest, ...] = ()
    config_digest: str = ""
    reload: Loaded | None = None
    watch: bool = False
    """Whether that file is looked at all the time, and read anew when other things stand in it."""
    source: Snapshot | None = field(default=None, repr=False, compare=False)
    """The file that it was read from, as it was then."""
    values: Mapping[Place, str] = field(default_factory=dict, repr=False)
    """What stands in it, by where, with everything filled in; credentials too."""
    lock: Path | None = None
    """Where pins are, or would be."""

    @property
    def unshared(self) -> str:
        """Why it can't be served by several workers, if there are to be several; else empty."""
        if self.workers == 1:
            return ""
        if not hasattr(signal, "SIGUSR2"):
            return "several workers need a system that hands sockets on to other processes, and this one does not"
        if self.store.startswith("memory:"):
            return (
                "several workers need a store that they share, since a client's next message may reach another one:"
                " `--store redis://…` (or `gateway.store`), or one worker"
            )
        return ""

    @property
    def unguarded(self) -> str:
        """Why it can't be served where it listens, or is said to be: anybody could use it, and nobody said that this is
        meant; or nobody could open its pages. Else empty (MCP, security best practices: sessions of nobody in
        particular are for one machine)."""
        if self.listen.path and self.auth.browser is not None and self.auth.browser.mode == "proxy":
            return f"at {self.listen} no login proxy has an address that `gateway.auth.browser.from` could name"
        near = bool(self.listen.path) or self.listen.loopback
        proxied = self.auth.browser is not None and self.auth.browser.mode == "proxy"  # which knows who comes
        if near and (proxied or is_loopback(urlsplit(self.public_url).hostname or "localhost")):
            return ""
        where = self.public_url if near else self.listen  # by a proxy on this machine, or a tunnel
        connects = any(spec.auth is not None and spec.auth.connected for spec in self.table.backends.values())
        if (self.auth.issuers or (connects and self.auth.browser is not None)) and not self.public_url:
            return f"whoever reaches {self.listen} is told where the gateway is: set `gateway.publicUrl`"
        if self.auth.browser is not None and self.auth.browser.mode == "none":
            return (
                f"others can reach {where}, and its pages for accounts believe whoever opens a link: say by"
                " `gateway.auth.browser` how they find out who that is"
            )
        if self.auth.asked or self.auth.anonymous:
            return ""
        return (
            f"others can reach {where}, and nobody has to say who he is: anybody could use the servers. Set"
            " `gateway.auth.tokens` or `gateway.auth.issuers`, or if it is meant `gateway.auth.anonymous: true`"
            " (`--anonymous`)"
        )

    @property
    def unreadable(self) -> str:
        """Which files of `tls` whoever runs this process can't read, though who serves must; else empty. Who only looks
        at a configuration need not."""
        files = (self.tls.cert, self.tls.key) if self.tls is not None else ()
        closed = " and ".join(str(file) for file in files if not _readable(file))
        return f"{_running_user()} can't read {closed}: the user that serves must be able to" if closed else ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every credential in the configuration, so that logs can leave them out wherever they turn up.

        A header gives its last word too: the token of `Bearer …`. Of a child's variables only those count whose name
        says that they are credentials; the others are words like `true`.
        """
        found = [token for _, token in self.auth.tokens]
        for asked in [one.introspection for one in self.auth.issuers if one.introspection is not None]:
            found += [secret for secret in (asked.client_secret, asked.private_key) if secret]
        if self.auth.browser is not None:
            found += [self.auth.browser.client_secret or ""]
        found += [*self.client_keys, unquote(urlsplit(self.store).password or "")]
        for spec in self.table.backends.values():
            if isinstance(spec.target, RemoteTarget):
                found += [part for _, value in spec.target.headers for part in (value, value.split(" ")[-1])]
            elif isinstance(spec.target, StdioTarget):
                found += [value for name, value in spec.target.env if CREDENTIAL.search(name)]
            if spec.auth is not None:
                found += [s for s in (spec.auth.client_secret, spec.auth.private_key, spec.auth.catalog) if s]
        found += [part for _, value in self.audit.otlp_headers for part in (value, value.split(" ")[-1])]
        if self.traces is not None:
            found += [part for _, value in self.traces.headers for part in (value, value.split(" ")[-1])]
            found += [unquote(urlsplit(self.traces.endpoint or "").password or "")]
        return tuple(filter(None, found))


def _readable(file: Path) -> bool:
    return os.access(file, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _running_user() -> str:
    """By name, where the system has one."""
    try:
        import pwd  # not every system has it

        return f"the user {pwd.getpwuid(os.geteuid()).pw_name}"
    except (ImportError, KeyError):
        return "the user that runs this"
