"""From settings to the audit trail, for composition."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from actors.ports import Log, Telemetry
from gateway.audit import chain
from gateway.audit.arguments import teller
from gateway.audit.chain import signing_keys
from gateway.audit.journal import Journal
from gateway.audit.sinks import FileSink, OtlpSink, Sink, SyslogSink
from gateway.config import Settings
from gateway.lifecycle import key_file, state_directory
from gateway.observability.redaction import Redaction
from gateway.version import VERSION

FLUSH: Final = 3.0
"""Seconds that writing what waits may take at the end."""


@asynccontextmanager
async def open_journal(settings: Settings, log: Log, metrics: Telemetry) -> AsyncIterator[Journal]:
    """The trail, with its threads."""
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
        arguments=teller(audit.arguments, signing, Redaction(settings.secrets)),
    )
    try:
        yield journal
    finally:
        with trio.move_on_after(FLUSH + 2, shield=True):  # what has happened is to be in the trail
            await journal.aclose(FLUSH)


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
            "problems": found.problems,
        }
        for found in verdict.chains.values()
    ]
    return {"good": verdict.good, "signed": bool(keys), "chains": chains, "foreign": verdict.foreign}


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield f"{file.name}:{number}", line.rstrip(b"\n")


__all__ = ["open_journal", "verify"]
