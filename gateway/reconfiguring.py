"""The configuration in force, and how another one takes its place: one after the other, and all of it or nothing."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from actors.ports import Log, Telemetry
from actors.protocol.table import NativeTarget, Table
from actors.runtime.boundary import boundary
from gateway import lifecycle
from gateway.config import ConfigError, Settings
from gateway.config.problems import Path as Place
from gateway.observability.logging import configure

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.changes import Changes
    from gateway.config.snapshot import Snapshot

LOOK = 1.0
"""Seconds between two looks at the files. What stands in them counts when two looks have found the same: who writes one
piece by piece is done by then."""

SUPERVISOR = "supervisor"

Apply = Callable[[Settings], Awaitable[str]]
"""Puts settings in force; why that can't be, if it can't."""


def put_in_force(gateway: "Gateway", settings: Settings) -> None:
    """The one place where another configuration becomes the values that are read anew: for each request, message and
    line of the log. What can't change while the gateway runs stays (`gateway.config.changes.FIXED`)."""
    from gateway.authorizing import claims_of
    from gateway.config.changes import kept

    before, actors, app = gateway.settings, gateway.actors, gateway.app
    assert actors is not None
    assert app is not None
    settings = replace(
        settings,
        client_metadata_url=before.client_metadata_url,
        client_keys=before.client_keys,
        client_key_algorithm=before.client_key_algorithm,
        listen=before.listen,
        admin=before.admin,
        store=before.store,
        workers=before.workers,
        keys=before.keys,
        tls=before.tls,
        audit=before.audit,
        new_privileges=before.new_privileges,
        limits=kept(settings.limits, before.limits),
        table=same_natives(before, settings),
    )
    # Connections of before are still there, and with them their credentials.
    hidden = (*settings.secrets, *before.secrets)
    configure(settings.log.level, settings.log.format, hidden)
    gateway.secrets.know(hidden)
    processes = actors.services.limits.child_processes  # as many as there are descriptors for
    actors.replace_limits(replace(settings.limits, child_processes=processes))
    actors.prestart = settings.prestart
    if settings.table != before.table:
        actors.replace_table(settings.table)
    app.bound_by(settings.limits)
    of_tokens = [(s.auth, s.public_url, claims_of(s)) for s in (before, settings)]
    if of_tokens[0] != of_tokens[1]:
        app.admit(lifecycle.security(settings), gateway.authorize(settings))
    if gateway.duplex is not None:
        gateway.duplex.limits = settings.limits
    gateway.settings = settings
    actors.services.accounts = gateway.invitations()


def same_natives(before: Settings, after: Settings) -> Table:
    """The table with the servers of this process as they are, where the same is said of them: a function that makes
    one makes another one each time."""
    backends = dict(after.table.backends)
    for name, spec in backends.items():
        former = before.table.backends.get(name)
        native = isinstance(spec.target, NativeTarget) and former is not None
        if native and former is not None and _made_of(before, name) == _made_of(after, name):
            backends[name] = replace(spec, target=former.target)
    return replace(after.table, backends=backends)


def _made_of(settings: Settings, name: str) -> Mapping[object, str]:
    of = ("native", "options")
    return {p: v for p, v in settings.values.items() if p[:2] == ("mcpServers", name) and len(p) > 2 and p[2] in of}


class Reloads:
    """Reads the file anew and puts it in force, for one gateway or one supervisor. `run` does so when that is asked
    for; `settings` are those in force."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        telemetry: Telemetry,
        apply: Apply,
        refused: Callable[[str], object] = lambda why: None,
    ) -> None:
        """`refused` hears why a configuration could not be put in force."""
        self.settings = settings
        self._started = settings
        self.began: Mapping[Place, str] = settings.values
        """What stood in the file at the start: it counts where that needs a restart."""
        self.by = SUPERVISOR
        """What wanted the last attempt: `signal` or `files`; in a worker its supervisor."""
        self._refused = refused
        self.at = 0.0
        """When they came into force."""
        self.good = True
        """What was read last is in force."""
        self.outcome = "started"
        """Of the last attempt: `reloaded`, `unchanged` or `refused`."""
        self._key = secrets.token_bytes(32)
        """For digests that others compare theirs with; it is this process's alone."""
        self._log = log
        self._telemetry = telemetry
        self._apply = apply
        self._asked = trio.Event()
        self.turn = trio.Lock()
        """Whoever changes what is in force has it."""
        self.tell(good=True)

    def request(self, by: str = "signal") -> None:
        """Once more, from the beginning, if it is being done."""
        self.by = by
        if self.settings.source is None:
            self._log.warning("reload_ignored", hint="there is no configuration file that could be read anew")
        else:
            self._asked.set()

    def compare(self, told: Mapping[str, str] | None) -> tuple[int, dict[str, Any]]:
        """What a configuration of which these digests are told would change; None: the key for them. Digests of what is
        in force go to nobody: whoever asks learns of a value that it is the same as his, or another one."""
        from gateway.config.changes import from_digests

        if told is None:
            return 200, {"key": self._key.hex(), "at": self.at, "outcome": self.outcome}
        try:
            return 200, from_digests(self._in_force(), told, self._key).told()
        except ValueError as error:
            return 400, {"error": str(error)}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            async with self.turn:
                self._done(await self._reload())

    def _done(self, outcome: str) -> None:
        self.outcome = outcome
        self._telemetry.count("stagedoor_reloads_total", (outcome,))
        if outcome != "refused":
            self.tell(good=True)

    def tell(self, *, good: bool) -> None:
        """Whether what was read just now is in force."""
        self.good = good
        self._telemetry.gauge("stagedoor_last_reload_successful", float(good))
        if good:
            self.at = time.time()
            self._telemetry.gauge("stagedoor_reload_success_timestamp_seconds", self.at)

    async def _reload(self) -> str:
        settings = await self.read()
        if settings is None:
            return "refused"
        if settings.source == self.settings.source:
            self._log.info("configuration_unchanged")
            return "unchanged"
        changes = self._changes(settings)
        why = await self._apply(settings)
        if why:
            self._refuse(why)
            return "refused"
        self.settings = settings
        self._log.info("configuration_reloaded", **{k: v for k, v in changes.told().items() if k != "needs_restart"})
        self._tell_fixed(changes)
        return "reloaded"

    def restarted(self, settings: Settings, began: Mapping[Place, str]) -> None:
        """These were put in force by a start of workers, but for what stays as it `began`."""
        self.settings, self.began = settings, began
        self.tell(good=True)
        self._tell_fixed(self._changes(settings))

    def _tell_fixed(self, changes: "Changes") -> None:
        if changes.fixed:
            self._log.warning("needs_restart", keys=list(changes.fixed), hint="they count from the next start on")

    def _in_force(self) -> Mapping[Place, str]:
        from gateway.config.changes import in_force

        return in_force(self.settings.values, self.began)

    def _changes(self, settings: Settings) -> "Changes":
        """Of what is in force, by these. What an earlier reload has left for the next start is told again, while the
        file has it."""
        from gateway.config.changes import differences

        return differences(self._in_force(), settings.values)

    async def read(self) -> Settings | None:
        """What stands in the file; None, and a line in the log, if it can't be used."""
        source, found = self.settings.source, list[Settings]()
        assert source is not None

        def load() -> Settings:
            from gateway.config import load

            return load(Path(source.file)).settings

        async def read() -> None:
            found.append(await trio.to_thread.run_sync(load, abandon_on_cancel=True))

        exit = await boundary(read)
        if exit.error is None and found:
            refused = self._unguarded(found[0]) or found[0].unreadable
            if refused:
                self._refuse(refused)
            return None if refused else found[0]
        if exit.error is None:
            return None
        told = isinstance(exit.error, ConfigError)
        self._refuse(str(exit.error) if told else f"{type(exit.error).__name__}: {exit.error}")
        return None

    def _unguarded(self, settings: Settings) -> str:
        """As `Settings.unguarded`, where this gateway listens and with what was said at its start: nobody opens a
        gateway by taking the tokens out of its file."""
        anonymous = settings.auth.anonymous or self._started.auth.anonymous
        auth = replace(settings.auth, anonymous=anonymous)
        return replace(settings, listen=self._started.listen, auth=auth).unguarded

    def _refuse(self, why: str) -> None:
        self._log.error("configuration_refused", error=why, hint="what was in force stays in force")
        self.tell(good=False)
        self._refused(why)

    async def watch(self) -> None:
        """Asks for it whenever other things stand in the files, or what is in force does once more after others were
        refused; until it is cancelled."""
        last: Mapping[str, str | None] | None = None
        tried: Mapping[str, str | None] | None = None
        while self.settings.source is not None:
            await trio.sleep(LOOK)
            source = self.settings.source
            known: Mapping[str, str | None] = {**source.secrets, **source.locks, source.file: source.text}
            now = await trio.to_thread.run_sync(_contents, source, abandon_on_cancel=True)
            news = now != tried and (now != known or not self.good)
            if now == last and news and now[source.file] is not None:
                tried = now
                self.request("files")
            elif now == known and self.good:
                tried = None
            last = now


def _contents(source: "Snapshot") -> Mapping[str, str | None]:
    """What stands in these files; None: nothing that could be read."""
    from gateway.config.snapshot import content, lock, secret

    found = {file: secret(Path(file)) for file in source.secrets}
    found |= {file: lock(Path(file)) for file in source.locks}
    return found | {source.file: content(Path(source.file))}
