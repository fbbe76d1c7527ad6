"""From settings to the audit trail, for composition."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from actors.ports import Audit, Log, Telemetry
from actors.protocol.trail import EVENTS
from gateway.audit import chain
from gateway.audit.arguments import MORE, Redact, teller
from gateway.audit.chain import signing_keys
from gateway.audit.journal import Journal
from gateway.audit.sinks import FileSink, OtlpSink, Sink, SyslogSink
from gateway.config import Settings
from gateway.config.changes import differences
from gateway.lifecycle import key_file, state_directory
from gateway.observability.redaction import Redaction
from gateway.version import VERSION

KEYS: Final = 100
"""Keys that a line on another configuration names."""
PROBLEM: Final = 1000
"""Characters of why one can't be put in force."""
FLUSH: Final = 3.0
"""Seconds that writing what waits may take at the end."""


@asynccontextmanager
async def open_journal(settings: Settings, log: Log, metrics: Telemetry, redact: Redact) -> AsyncIterator[Journal]:
    """The trail, with its threads. `redact` hides credentials in arguments."""
    audit, signing = settings.audit, signing_keys(audit_keys(settings))[0]
    service = {"service.name": "stagedoor", "service.version": VERSION, "host.name": socket.gethostname()}
    copies: list[Sink] = []
    if audit.syslog is not None:
        copies.append(SyslogSink(audit.syslog))
    if audit.otlp is not None:
        copies.append(OtlpSink(audit.otlp, dict(audit.otlp_headers), service))

    def failed(why: str | None) -> None:
        if why is None:
            log.info("audit_recovered")
        else:
            log.error("audit_failed", error=why, path=str(audit.file), refusing=audit.block)

    journal = Journal(
        FileSink(audit.file) if audit.file is not None else None,
        copies,
        key=signing,
        block=audit.block,
        about={"version": VERSION, "host": socket.gethostname(), "pid": os.getpid()},
        dropped=lambda sink, lines: metrics.count("stagedoor_audit_lines_lost_total", (sink,), lines),
        failed=failed,
        waiting=lambda lines: metrics.gauge("stagedoor_audit_lines_waiting", lines),
        arguments=teller(audit.arguments, signing, redact),
    )
    try:
        yield journal
    finally:
        with trio.move_on_after(FLUSH + 2, shield=True):  # what has happened is to be in the trail
            await journal.aclose(FLUSH)


def tell_configuration(
    audit: Audit, outcome: str, by: str, before: Settings | None, after: Settings, problem: str = ""
) -> None:
    """That a configuration came into force, or could not. Values are not told: of all of them together a digest with a
    key, by which what two processes have in force, or one had at two times, can be compared."""
    told: dict[str, Any] = {}
    if before is not None:
        told = {"before": _digest(audit, before), "keys": _keys(before, after)}
    if problem:
        told["problem"] = Redaction(after.secrets).text(problem)[:PROBLEM]
    else:
        told["after"] = _digest(audit, after)
    audit.record("policy.reload", outcome=outcome, by=by, **told)


def _digest(audit: Audit, settings: Settings) -> str:
    return audit.digest(msgspec.json.encode(sorted((list(path), value) for path, value in settings.values.items())))


def _keys(before: Settings, after: Settings) -> list[str]:
    """The keys that are others now, as far as they count without a restart."""
    found = differences(before.values, after.values)
    servers = [*found.added, *found.removed, *(f"{name}.{key}" for name, keys in found.changed.items() for key in keys)]
    keys = [*(f"mcpServers.{name}" for name in servers), *found.settings]
    return keys if len(keys) <= KEYS else [*keys[:KEYS], MORE]


def audit_keys(settings: Settings) -> tuple[bytes, ...]:
    """The keys that seal; one of this machine where none is configured, so that a trail can be verified when its
    process is over."""
    return settings.keys or (key_file(state_directory() / "sealing.key"),)


def verify(settings: Settings | None, files: tuple[Path, ...], partial: bool) -> dict[str, Any]:
    """As `gateway.cli.client.Verify`."""
    keys = () if settings is None else signing_keys(audit_keys(settings))
    verdict = chain.verify(_lines(files), keys, partial=partial)
    chains = [
        {
            "chain": found.name,
            "first": found.first,
            "lines": found.lines,
            "signed": found.signed,
            "ended": found.ended,
            "lost": found.lost,
            "events": dict(sorted(found.events.items())),
            "unknown": sorted(set(found.events) - set(EVENTS)),
            "problems": found.problems,
        }
        for found in verdict.chains.values()
    ]
    return {
        "good": verdict.good,
        "signed": bool(keys),
        "chains": chains,
        "foreign": verdict.foreign,
        "torn": verdict.torn,
    }


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield f"{file.name}:{number}", line.rstrip(b"\n")


__all__ = ["open_journal", "tell_configuration", "verify"]
