"""From start to drain: opens what the gateway stands on, in order, and closes it in the reverse one."""

import ctypes
import gc
import json
import os
import resource
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import trio

from actors.ports import (
    NO_AUDIT,
    Accounts,
    Audit,
    Buckets,
    Cluster,
    Connector,
    ListStore,
    Log,
    Observer,
    Sealer,
    Shelf,
    Store,
    Telemetry,
    Transport,
    TransportEvent,
)
from actors.protocol.instruments import PERMANENT
from actors.protocol.table import (
    BackendSpec,
    HttpTarget,
    Limits,
    NativeTarget,
    RemoteTarget,
    SseTarget,
    StdioTarget,
    Table,
    WebSocketTarget,
)
from actors.services import Services, TableCell
from gateway.backends.connector import (
    CONNECTIONS,
    CredentialsOf,
    KeyOf,
    StdioConnector,
    TargetConnector,
    no_credentials,
    no_key,
)
from gateway.backends.native import NativeTransport
from gateway.backends.stdio import StdioLimits
from gateway.config import Settings
from gateway.observability.logging import prepare
from gateway.observability.operations import Observing, RequestLog
from gateway.observability.redaction import Redaction
from gateway.observability.writer import Writer
from gateway.sealing import AesSealer
from gateway.store.lists import open_file_lists
from gateway.store.memory import MemoryStore
from gateway.version import VERSION
from gateway.wire.confine import forbid_new_privileges

if TYPE_CHECKING:
    from gateway.backends.http_connector import HttpConnector
    from gateway.http.security import Security
    from gateway.reloading import Reloader

KEY_BYTES = 32

SWEEP = 5.0
"""Seconds between two looks for what has expired in the store of this process, and among idle connections."""
WATCHDOG = 6.0
"""Seconds beyond grace and drain deadline after which the process is ended, whatever hangs."""
IDLE_GRACE = 1.0
"""Seconds from the first step of the drain in which connections without a request stay open, and all is served on them
as before: where other replicas accept, their clients find those at the next connection."""


GARBAGE_LOOK = 1.0
"""Seconds between two looks at how large the process has become."""
GARBAGE_STEP = 32 * 1024 * 1024
"""Bytes by which the process may grow before it looks for garbage among what has come since."""
GARBAGE_GROWTH = 2
GARBAGE_SLACK = 128 * 1024 * 1024
"""By so much, factor and bytes, it may grow before it looks for garbage everywhere."""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGE_BLOCK = 4 * 1024 * 1024
"""Bytes from which on memory is taken from the system for itself, and given back at once."""
FREE_KEPT = 16 * 1024 * 1024
"""Bytes of free memory at the end of the heap that are kept for what comes."""


class ClusterStore(Store, Cluster, Protocol):
    """A store, who else works on it, and what they share besides."""

    @property
    def shelf(self) -> Shelf: ...

    @property
    def buckets(self) -> Buckets: ...


LAST_LINES = 2.0
"""Seconds at the end for lines of the access log that wait."""


def load_libraries(settings: Settings) -> None:
    """Those that are needed for sure are loaded before the loop turns: it would stand still for each, and a process
    that has just come would be taken for an overloaded one."""
    prepare()
    if settings.traces is not None:
        import_module("gateway.tracing.opening")
    if not settings.store.startswith("memory:"):
        import_module("gateway.store.redis.store")
    if any(isinstance(spec.target, RemoteTarget) for spec in settings.table.backends.values()):
        import_module("gateway.backends.http_connector")


def collect_again() -> None:
    """Garbage is collected from here on, among what comes: what a start has made stays."""
    gc.freeze()
    gc.enable()


def tune_gc() -> None:
    """Thousands of sessions make a full collection stop the loop (1 µs for each object: 0.15 s for 1,000 busy ones), so
    Python's own schedule is not used, and what lives for ever is left out. What ends is freed by reference counting;
    `collect_garbage` bounds what is not."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)


def keep_free_memory() -> None:
    """A message of a megabyte uses the memory that the one before had. As it comes, the C library gives every large
    block back at once, and the system clears each page of the next (of a large result that was a quarter of the CPU).
    What the environment says (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`) holds; libraries other than glibc
    have no such choice."""
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, FREE_KEPT)


def memory_used() -> int:
    """The bytes that this process has in memory; where the system does not say so, the most it has had."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class GarbageBound:
    """Runs a collection whenever the process has become so much larger than after the last one that garbage may be why;
    one that does not grow never stops for it. What has lived through a collection is left out of the next ones, which
    are short therefore, until the process has become so much larger that this may be garbage too."""

    def __init__(self, used: Callable[[], int] = memory_used) -> None:
        self._used = used
        self._after = self._after_all = used()

    def look(self) -> float | None:
        """The seconds that a collection took, if it was time for one."""
        used = self._used()
        everywhere = used >= GARBAGE_GROWTH * self._after_all + GARBAGE_SLACK
        if not everywhere and used < self._after + GARBAGE_STEP:
            return None
        began = time.perf_counter()
        if everywhere:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._after = self._used()
        if everywhere:
            self._after_all = self._after
        return time.perf_counter() - began


async def collect_garbage(telemetry: Telemetry) -> None:
    """Keeps the bound; runs until it is cancelled."""
    bound = GarbageBound()
    while True:
        await trio.sleep(GARBAGE_LOOK)
        pause = bound.look()
        if pause is not None:
            telemetry.observe("stagedoor_garbage_collection_seconds", pause)


class KnownSecrets:
    """The credentials of the configuration in force, as far as others may write of them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.know(secrets)

    def know(self, secrets: Iterable[str]) -> None:
        """These, and no others."""
        self._redaction = Redaction(secrets)

    def foreign(self, text: str) -> str:
        """As `Redaction.foreign`."""
        return self._redaction.foreign(text)

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As `Redaction.arguments`."""
        return self._redaction.arguments(given)

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        """As a `Redaction`."""
        return self._redaction(logger, method, event)


class NativeConnector:
    """Makes transports to servers of this process."""

    def __init__(self, log: Log, telemetry: Telemetry, limits: Limits) -> None:
        self._log = log
        self._telemetry = telemetry
        self._limits = limits

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        """As in `Connector`."""
        message_bytes = self._limits.message_bytes
        return NativeTransport(
            spec, emit, log=self._log, telemetry=self._telemetry, message_bytes=message_bytes, shared=modern
        )


class RemoteConnector:
    """Reaches servers over a network. What that takes is loaded with the first of them, since many have none."""

    def __init__(
        self,
        log: Log,
        nursery: trio.Nursery,
        limits: Limits,
        connections: int,
        credentials: CredentialsOf,
        redact: Callable[[str], str],
    ) -> None:
        self._log = log
        self._nursery = nursery
        self._limits = limits
        self._connections = connections
        self._credentials = credentials
        self._redact = redact
        self._http: HttpConnector | None = None

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        """As in `Connector`."""
        if self._http is None:
            self._http = self._made()
        return self._http.connect(spec, emit, modern)

    def _made(self) -> "HttpConnector":
        from gateway.backends.http_call import HttpLimits
        from gateway.backends.http_connector import HttpConnector

        return HttpConnector(
            self._log,
            self._nursery,
            limits=HttpLimits(message_bytes=self._limits.message_bytes),
            connections=self._connections,
            credentials=self._credentials,
            redact=self._redact,
        )

    def sweep(self) -> None:
        """As `HttpConnector.sweep`."""
        if self._http is not None:
            self._http.sweep()

    def close(self) -> None:
        """As `HttpConnector.close`."""
        if self._http is not None:
            self._http.close()


@asynccontextmanager
async def open_connector(
    log: Log,
    telemetry: Telemetry,
    limits: Limits,
    secrets: "Iterable[str] | KnownSecrets" = (),
    *,
    connections: int = CONNECTIONS,
    credentials: CredentialsOf = no_credentials,
    key: KeyOf = no_key,
    descriptors: tuple[int, int] | None = None,
    new_privileges: bool = False,
    pools: Callable[[], Iterable[BackendSpec]] = tuple,
) -> AsyncIterator[Connector]:
    """The connector for every kind of target. `secrets` are taken out of what servers write for people;
    `connections` bounds those over HTTP, `descriptors` is the limit of open files that child processes get. Without
    `new_privileges` neither this process nor a child can gain any, to its end. `pools` are the servers whose processes
    are started ahead, as they are configured at that moment."""
    if not new_privileges:
        forbid_new_privileges()  # before there are threads: children are started in those
    redact = secrets.foreign if isinstance(secrets, KnownSecrets) else Redaction(secrets).foreign
    stdio = StdioConnector(
        log,
        processes=limits.child_processes,
        limits=StdioLimits(
            message_bytes=limits.message_bytes,
            slot_wait=limits.process_wait,
            stderr_lines=limits.stderr_lines,
            descriptors=descriptors,
        ),
        key=key,
        redact=redact,
    )
    try:
        async with trio.open_nursery() as nursery:
            remote = RemoteConnector(log, nursery, limits, connections, credentials, redact)
            nursery.start_soon(_sweep, remote.sweep)
            nursery.start_soon(stdio.keep_warm, pools, random)
            yield TargetConnector(
                {
                    StdioTarget: stdio,
                    HttpTarget: remote,
                    SseTarget: remote,
                    WebSocketTarget: remote,
                    NativeTarget: NativeConnector(log, telemetry, limits),
                },
            )
            remote.close()
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(2, shield=True):
            await stdio.aclose()


@asynccontextmanager
async def open_store(
    url: str,
    limits: Limits,
    log: Log,
    *,
    on_lost: Callable[[str], None] = lambda reason: None,
    on_batch: Callable[[int, float], None] = lambda operations, seconds: None,
    info: Mapping[str, Any] | None = None,
    seals: Sequence[str] = (),
) -> AsyncIterator[ClusterStore]:
    """The store that the URL names; see `open_redis_store`."""
    if url.startswith("memory:"):
        store = MemoryStore(limits, trio.current_time, wall=time.time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_sweep, lambda: store.sweep(trio.current_time()))
            yield store
            nursery.cancel_scope.cancel()
        return
    from gateway.store.redis.store import open_redis_store  # its library takes a while to load

    async with open_redis_store(
        url, limits, log=log, on_lost=on_lost, on_batch=on_batch, info=info, seals=seals
    ) as redis:
        yield redis


@asynccontextmanager
async def open_lists(store: Store, log: Log) -> AsyncIterator[ListStore | None]:
    """Where the last lists known are kept: with the sessions, or, if these end with the process, on this machine."""
    with_sessions: ListStore | None = getattr(store, "lists", None)
    if with_sessions is not None:
        yield with_sessions
        return
    try:
        path = state_directory() / "lists.json"
    except RuntimeError as error:  # this user has no home
        log.warning("lists_not_kept", error=str(error), hint="set XDG_STATE_HOME")
        yield None
        return
    async with open_file_lists(path, log) as lists:
        yield lists


def request_log(settings: Settings, log: Log) -> RequestLog | None:
    """What writes a line for each request, if the settings want that."""
    share = settings.log.requests
    return RequestLog(log, share) if share is not None else None


def disabled_by(environment: Mapping[str, str]) -> bool:
    """Whether it switches every SDK of OpenTelemetry off."""
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


@asynccontextmanager
async def open_access(settings: Settings, metrics: Telemetry, log: Log) -> AsyncIterator[Writer | None]:
    """What the lines of the access log go to, if there is to be one; what waits is written before it ends."""
    if settings.log.access == "off":
        yield None
        return
    writer = Writer(metrics, log, settings.log.access_file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        try:
            yield writer
        finally:
            nursery.cancel_scope.cancel()
            with trio.move_on_after(LAST_LINES, shield=True):
                await writer.flush()
            writer.close()


@asynccontextmanager
async def open_observer(
    settings: Settings, lines: RequestLog | None, metrics: Telemetry, log: Log, instance: str, audit: Audit = NO_AUDIT
) -> AsyncIterator[Observer | None]:
    """Who observes requests, if the settings want spans or lines of them, or the audit trail is on; what waits to be
    sent is sent before it ends."""
    traces, trail = settings.traces, audit if audit.on else None
    if traces is None or disabled_by(os.environ):
        yield Observing(None, lines, audit=trail) if lines is not None or trail is not None else None
        return
    from gateway.tracing.opening import open_spans  # which most do without

    opened = open_spans(
        traces.endpoint, dict(traces.headers), traces.sample, metrics, log, instance=instance, version=VERSION
    )
    async with opened as spans:
        yield Observing(spans, lines, audit=trail)


@asynccontextmanager
async def open_audit(
    settings: Settings, log: Log, metrics: Telemetry, secrets: KnownSecrets | None = None
) -> AsyncIterator[Audit]:
    """The audit trail that the settings want; what it is behind is written before it ends. `secrets`: of the
    configuration in force, if that can become another one."""
    if not settings.audit.on:
        yield NO_AUDIT
        return
    from gateway.auditing import open_journal  # which many do without

    known = secrets or KnownSecrets(settings.secrets)
    async with open_journal(settings, log, metrics, known.arguments) as journal:
        yield journal


async def _sweep(sweep: Callable[[], object]) -> None:
    while True:
        await trio.sleep(SWEEP)
        sweep()


def with_reloader(settings: Settings, log: Log) -> tuple[Settings, "Reloader | None"]:
    """The settings with a reloader in the server's place, if it is to be loaded anew."""
    if settings.reload is None:
        return settings, None
    from gateway.reloading import Reloader  # few are

    reloader = Reloader(settings.reload, log)
    specs = {name: replace(spec, target=NativeTarget(reloader)) for name, spec in settings.table.backends.items()}
    return replace(settings, table=replace(settings.table, backends=specs)), reloader


def security(settings: Settings) -> "Security":
    """Who may speak to the public listener."""
    from gateway.http.security import Security  # not where there is none

    return Security(
        settings.listen.host,
        (*settings.auth.hosts, *_own_host(settings.public_url)),
        settings.auth.origins,
        dict(settings.auth.tokens) or None,
        any_host=bool(settings.listen.path),
        rights=settings.auth.rights,
    )


def _own_host(public_url: str) -> tuple[str, ...]:
    """What clients say as Host that come by the address which they are told."""
    parts = urlsplit(public_url)
    if not parts.hostname:
        return ()
    host = parts.hostname.encode("idna").decode().removesuffix(".")  # a name of other letters goes out as xn--…
    return (host if parts.port is None else f"{host}:{parts.port}",)


def sealer(settings: Settings, log: Log) -> AesSealer:
    """With the configured keys; without any, with one of this process, or, if sessions outlive it, of this machine."""
    if settings.keys:
        return AesSealer(settings.keys)
    if settings.store.startswith("memory:"):
        return ephemeral_sealer()
    return AesSealer([machine_key(log)])


def machine_key(log: Log) -> bytes:
    """The key of this machine, for a configuration without keys."""
    path = state_directory() / "sealing.key"
    log.warning("sealing_key_from_file", path=str(path), hint="set gateway.keys to share it between machines")
    return key_file(path)


def ephemeral_sealer() -> AesSealer:
    """With a key that ends with the process."""
    return AesSealer([os.urandom(32)])


def identity() -> bytes:
    """The gateway's own `Implementation`."""
    return json.dumps({"name": "stagedoor", "title": "Stagedoor", "version": VERSION}).encode()


def replica_info(table: Table) -> Mapping[str, Any]:
    """What this replica says of itself to the others."""
    return {"version": VERSION, "configuration": table.digest}


def services_for(
    table: Table,
    limits: Limits,
    store: ClusterStore,
    connector: Connector,
    sealer: Sealer,
    metrics: Telemetry,
    log: Log,
    lists: ListStore | None = None,
    audit: Audit | None = None,
    observer: Observer | None = None,
    accounts: Accounts | None = None,
) -> Services:
    """The one value that every MCP actor gets."""
    return Services(
        store=store,
        cluster=store,
        connector=connector,
        sealer=sealer,
        telemetry=metrics,
        log=log,
        limits=limits,
        table=TableCell(table),
        jitter=random,
        identity=identity(),
        lists=lists,
        audit=audit or NO_AUDIT,
        observer=observer,
        accounts=accounts,
        buckets=store.buckets,
    )


def state_directory() -> Path:
    """Where this machine keeps what outlives the process."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "stagedoor"


def key_file(path: Path) -> bytes:
    """The key in this file, which is made, readable for nobody else, if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Written whole under another name first: nobody can ever read half a key, or an empty one.
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(KEY_BYTES))
        with suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    key = path.read_bytes()
    if len(key) < KEY_BYTES:
        raise OSError(f"{path} does not hold a key: remove it, and a new one is made")
    return key


@contextmanager
def signals(
    stop: Callable[[str], None], others: Mapping[signal.Signals, Callable[[], None]] = MappingProxyType({})
) -> Iterator[Callable[[trio.Nursery], None]]:
    """SIGTERM and SIGINT call `stop` once; the second one ends the process at once, also when the loop has not even
    heard of the first, since something keeps it to itself. What `others` call does not end it."""
    numbers = [signal.SIGTERM, signal.SIGINT, *others]
    with trio.open_signal_receiver(*numbers) as received:
        _end_without_the_loop((signal.SIGTERM, signal.SIGINT))

        async def listen() -> None:
            seen = 0
            async for number in received:
                if number in others:
                    others[signal.Signals(number)]()
                    continue
                seen += 1
                if seen > 1:
                    os._exit(1)
                stop(signal.Signals(number).name)

        yield lambda nursery: nursery.start_soon(listen)


def _end_without_the_loop(numbers: Iterable[signal.Signals]) -> None:
    """Until the handlers of before are back: a signal that comes later than a second after the first ends the process.
    Sooner ones may be the same, told by a terminal and by whoever has started us: the loop counts them."""
    taken = {number: signal.getsignal(number) for number in numbers}
    first: list[float] = []

    def heard(number: int, frame: Any) -> None:
        first.append(time.monotonic())
        if first[-1] - first[0] > 1:
            os._exit(1)
        cast(Callable[[int, Any], Any], taken[signal.Signals(number)])(number, frame)

    for number in numbers:
        signal.signal(number, heard)


def longest_drain(limits: Limits) -> float:
    """Seconds from the word to drain until the watchdog ends the process."""
    return IDLE_GRACE + limits.drain_grace + limits.drain_deadline + WATCHDOG


def start_watchdog(seconds: float, log: Log) -> None:
    """A thread that ends the process when the drain hangs: nothing in the loop could."""

    def bark() -> None:
        log.error("drain_hangs", seconds=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, bark)
    timer.daemon = True
    timer.start()


def crash_logger(log: Log, telemetry: Any) -> Callable[[str, BaseException], None]:
    """What the actor system reports crashes to."""

    def report(name: str, error: BaseException) -> None:
        kind = name.split("-", maxsplit=1)[0].split("/", maxsplit=1)[0]
        telemetry.count("stagedoor_actor_crashes_total", (kind,))
        if kind in PERMANENT:
            telemetry.count("stagedoor_restarts_total", (kind,))
        log.error("actor_crashed", actor=name, exc_info=error)

    return report


__all__ = [
    "IDLE_GRACE",
    "GarbageBound",
    "KnownSecrets",
    "collect_again",
    "collect_garbage",
    "crash_logger",
    "keep_free_memory",
    "load_libraries",
    "longest_drain",
    "machine_key",
    "open_access",
    "open_connector",
    "open_lists",
    "open_observer",
    "open_store",
    "replica_info",
    "request_log",
    "sealer",
    "security",
    "services_for",
    "signals",
    "start_watchdog",
    "tune_gc",
    "with_reloader",
]
