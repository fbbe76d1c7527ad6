"""Observes requests and calls: as spans, if traces are configured, and as lines of the log, if those are."""

import time
from collections.abc import Callable
from functools import partial
from random import random
from typing import Any, Protocol

from actors.ports import Audit, Log
from actors.protocol.operations import Audited, Operation
from actors.protocol.trail import RequestLine
from gateway.observability.access import CLIENT_GONE

GRAVE = frozenset({"timed_out", "lost"})
"""Ends that are nobody's wish: they are warnings."""


class Tracer(Protocol):
    """`gateway.tracing.spans.Spans` is one."""

    def began(self, operation: Operation) -> None: ...

    def ended(self, operation: Operation) -> None: ...


class RequestLog:
    """One line for each request of a client, when it has its end. Of those that went well a `share` is written (0 to
    1); the others always are."""

    def __init__(self, log: Log, share: float = 1.0, dice: Callable[[], float] = random) -> None:
        self._log = log
        self._share = share
        self._dice = dice

    def write(self, operation: Operation, seconds: float) -> None:
        """Its line, unless it is left out."""
        if operation.outcome == "relayed":
            return  # the replica that has answered it says more
        if not operation.error and operation.outcome == "answered" and self._share < 1 and self._dice() >= self._share:
            return
        say = self._log.warning if operation.outcome in GRAVE else self._log.info
        say("request", **_values(operation, seconds))

    def refused(self, status: int, ms: float, trace: str = "") -> None:
        """What was refused before it could be read as a request; or its client left before it came whole."""
        outcome = "disconnected" if status == CLIENT_GONE else "refused"
        values = {"error": str(status), "status": status, "ms": round(ms, 3), "transport": "http"}
        self._log.info("request", method="", outcome=outcome, **values, **({"trace": trace} if trace else {}))


def _values(operation: Operation, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "method": operation.method,
        "tool": operation.tool,
        "id": operation.id,
        "endpoint": operation.endpoint,
        "outcome": operation.outcome,
        "error": operation.error,
        "code": operation.code,
        "status": operation.status,
        "ms": round(seconds * 1000, 3),
        "session": operation.session,
        "trace": operation.trace_id,
        "backend": operation.backend,
        "era": operation.era,
        "version": operation.version,
        "transport": operation.transport,
    }
    return {name: value for name, value in found.items() if value or name in ("method", "outcome", "ms")}


class Observing:
    """Implements the port `Observer`."""

    def __init__(
        self,
        tracer: Tracer | None = None,
        log: RequestLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
        audit: Audit | None = None,
    ) -> None:
        self._tracer = tracer
        self._log = log
        self._audit = audit
        self._clock = clock
        self.traces = tracer is not None
        """As in the port: lines are of requests of clients alone."""
        self.names = tracer is not None or log is not None
        """As in the port."""

    def began(self, operation: Operation) -> None:
        """As in the port."""
        operation.began = self._clock()
        if self._tracer is not None:
            self._tracer.began(operation)

    def ended(self, operation: Operation) -> None:
        """As in the port."""
        if self._tracer is not None:
            self._tracer.ended(operation)
        if self._log is not None and operation.side == "server":
            self._log.write(operation, self._clock() - operation.began)
        if self._audit is not None and operation.audited is not None and operation.outcome != "relayed":
            # (The replica that has answered such a one writes a line.)
            event = "session" if operation.method == "initialize" else "call"
            self._audit.record_late(event, partial(_line, operation, operation.audited, self._clock()))


def _line(operation: Operation, audited: Callable[[], Audited], ended: float) -> RequestLine:
    """What the audit trail says of it."""
    who = audited()
    return RequestLine(
        method=operation.method,
        principal=who.principal,
        iss=who.iss,
        client_id=who.client_id,
        ip=who.ip,
        item=who.item,
        args=who.args or None,
        outcome=operation.outcome or "",
        code=operation.code,
        ms=round((ended - operation.began) * 1000, 1),
        server=operation.backend,
        endpoint=operation.endpoint,
        session=operation.session,
        era=operation.era,
        transport=operation.transport,
        trace_id=operation.trace_id,
        span_id=operation.span_id,
    )
