"""Where lines of the audit trail go: a file, and copies to syslog and to an OpenTelemetry collector. All of it waits,
and runs in threads of its own."""

import contextlib
import errno
import http.client
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from actors.protocol.trail import EVENTS
from gateway.audit.chain import timestamp

ANSWER_BYTES: Final = 4096
"""Of a collector's answer that are read."""
TIMEOUT: Final = 5.0
"""Seconds that a collector may take for anything."""
_IN_TARGETS: Final = "%/?:@!$&'()*+,;=[]"
"""What stands in paths and queries as it is (RFC 3986, sections 3.3 and 3.4), letters and digits aside."""
_AUTHPRIV = 10
_SEVERITY = {"warning": 4, "notice": 5, "info": 6}
_NUMBERS = {"warning": (13, "WARN"), "notice": (10, "INFO2"), "info": (9, "INFO")}
"""OpenTelemetry's severities (logs data model)."""


class Line(NamedTuple):
    """A line with what a sink wants to know of it, which then need not be read again."""

    event: str
    at: float
    raw: bytes
    trace: tuple[str, str] | None = None
    """The ids of the trace and the span that it is of."""

    @property
    def severity(self) -> str:
        row = EVENTS.get(self.event)
        refusal = row is not None and row.refusal
        return "warning" if refusal else "notice" if self.event.startswith("audit.") else "info"


class Sink(Protocol):
    """Takes lines in their order. `write` raises OSError if it could not, and then is given the same lines again; else
    it says of how many the other side would not have one, now or ever."""

    name: str

    def write(self, lines: Sequence[Line]) -> int: ...

    def close(self) -> None: ...


class BusyError(OSError):
    """The other side wants to be left alone for so many seconds."""

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class FileSink:
    """A file that only its owner reads, appended to by all processes that have it open: one write is one batch of whole
    lines. Where somebody has moved it away, the next batch begins a new one."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._done = 0
        self._torn = b""

    def write(self, lines: Sequence[Line]) -> int:
        file = self._open()
        batch = self._torn + b"".join([line.raw + b"\n" for line in lines[self._done :]])
        written = os.write(file, batch)
        if written == len(batch):
            self._done, self._torn = 0, b""
            return 0
        # A full disk. What is left of a line must not take the next one with it, which may be of another process.
        whole = batch[:written].rfind(b"\n") + 1
        self._done += batch[len(self._torn) : whole].count(b"\n")
        if written > whole:
            self._torn = b"\n"
        elif whole:
            self._torn = b""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> int:
        if self._file is not None and not self._is_there(self._file):
            self.close()
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._torn = b"\n" if _is_torn(self._path) else b""
        return self._file

    def _is_there(self, file: int) -> bool:
        """Whether it still has its name."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _is_torn(path: Path) -> bool:
    """Whether a process has ended that could not write the rest of a line there."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:  # it is empty, or no file that has an end
        return False


class SyslogSink:
    """RFC 5424: `unix:/dev/log`, `udp://HOST:PORT`, `tcp://HOST:PORT` (octet counting, RFC 6587), `tls://HOST:PORT`
    (RFC 5425)."""

    name = "syslog"

    def __init__(self, url: str, *, host: str | None = None) -> None:
        self._url = url
        self._host = host or socket.gethostname()
        self._socket: socket.socket | None = None
        self._done = 0
        self._refused = 0

    def write(self, lines: Sequence[Line]) -> int:
        try:
            if self._socket is not None and _is_over(self._socket):
                self.close()
            connected = self._socket = self._socket or self._connect()
            if connected.type == socket.SOCK_DGRAM:
                return self._write_each(connected, lines)
            messages = [self._message(line) for line in lines]
            connected.sendall(b"".join([b"%d %s" % (len(message), message) for message in messages]))
            return 0
        except OSError:
            self.close()
            raise

    def _write_each(self, datagrams: socket.socket, lines: Sequence[Line]) -> int:
        for line in lines[self._done :]:  # those before it were sent, though one behind them could not be
            self._refused += not _fitted(datagrams, self._message(line))
            self._done += 1
        refused, self._done, self._refused = self._refused, 0, 0
        return refused

    def _message(self, line: Line) -> bytes:
        priority = _AUTHPRIV * 8 + _SEVERITY[line.severity]
        header = f"<{priority}>1 {timestamp(line.at)} {self._host} stagedoor {os.getpid()} {line.event[:32]} - "
        return header.encode("ascii", "replace") + b"\xef\xbb\xbf" + line.raw

    def _connect(self) -> socket.socket:
        parts = urlsplit(self._url)
        if parts.scheme == "unix":
            return _unix(parts.path)
        where = (parts.hostname or "", parts.port or (6514 if parts.scheme == "tls" else 514))
        if parts.scheme == "udp":
            family, kind, protocol, _, address = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
            datagrams = socket.socket(family, kind, protocol)
            datagrams.settimeout(TIMEOUT)
            datagrams.connect(address)
            return datagrams
        stream = socket.create_connection(where, TIMEOUT)
        if parts.scheme == "tls":
            return ssl.create_default_context().wrap_socket(stream, server_hostname=where[0])
        return stream

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_over(connected: socket.socket) -> bool:
    """Whether the other side has ended it. What is sent on such a stream is lost, and nothing says so at first."""
    if connected.type == socket.SOCK_DGRAM:
        return False
    connected.setblocking(False)
    try:
        return not connected.recv(ANSWER_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    finally:
        connected.settimeout(TIMEOUT)


def _fitted(datagrams: socket.socket, message: bytes) -> bool:
    """Sends it; whether it was not too large for a datagram there. Others are not to wait behind such a one."""
    try:
        datagrams.send(message)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        return False
    return True


def _unix(path: str) -> socket.socket:
    """Most daemons take datagrams there, some streams."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        connected = socket.socket(socket.AF_UNIX, kind)
        connected.settimeout(TIMEOUT)
        try:
            connected.connect(path)
        except OSError:
            connected.close()
            if kind == socket.SOCK_STREAM:
                raise
        else:
            return connected
    raise AssertionError


class OtlpSink:
    """Log records for an OpenTelemetry collector: OTLP over HTTP, as JSON, to `…/v1/logs`."""

    name = "otlp"

    def __init__(self, url: str, headers: Mapping[str, str], service: Mapping[str, str]) -> None:
        self._url = urlsplit(url)
        query = f"?{self._url.query}" if self._url.query else ""
        self._target = quote((self._url.path or "/v1/logs") + query, safe=_IN_TARGETS)
        said = {**headers, "Content-Type": "application/json"}
        self._headers = {name: value.encode() for name, value in said.items()}
        self._resource = {"attributes": [_attribute(name, value) for name, value in service.items()]}

    def write(self, lines: Sequence[Line]) -> int:
        status, body, after = self._post(lines)
        if status in (408, 429, 502, 503, 504):  # OTLP/HTTP, "Retryable Response Codes" and "OTLP/HTTP Throttling"
            raise BusyError(f"the collector answered {status}", _seconds(after))
        if status == 413 and len(lines) > 1:
            half = len(lines) // 2
            return self.write(lines[:half]) + self.write(lines[half:])
        return min(_rejected(body), len(lines)) if status < 300 else len(lines)

    def _post(self, lines: Sequence[Line]) -> tuple[int, bytes, str]:
        body = msgspec.json.encode(
            {
                "resourceLogs": [
                    {
                        "resource": self._resource,
                        "scopeLogs": [
                            {"scope": {"name": "stagedoor.audit"}, "logRecords": [self._record(line) for line in lines]}
                        ],
                    }
                ]
            }
        )
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=TIMEOUT)
        with contextlib.closing(connection):
            try:
                connection.request("POST", self._target, body, self._headers)
                answer = connection.getresponse()
                return answer.status, answer.read(ANSWER_BYTES), answer.getheader("Retry-After") or ""
            except http.client.HTTPException as error:
                raise OSError(f"the collector does not speak HTTP: {type(error).__name__}") from None

    def _record(self, line: Line) -> dict[str, object]:
        number, text = _NUMBERS[line.severity]
        trace = dict(zip(("traceId", "spanId"), line.trace or (), strict=False))
        return {
            "timeUnixNano": str(int(line.at * 1e9)),
            "observedTimeUnixNano": str(time.time_ns()),
            "severityNumber": number,
            "severityText": text,
            "eventName": line.event,
            "body": {"stringValue": line.raw.decode()},
            **trace,  # in hex, other than bytes elsewhere in JSON of Protobuf
        }

    def close(self) -> None:
        """Nothing stays open."""


def _seconds(after: str) -> float:
    """What `Retry-After` says: seconds, or a date (RFC 9110, section 10.2.3); 0 if it says nothing."""
    if after.isascii() and after.isdigit():
        return float(after[:9])
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, OverflowError, TypeError):
        return 0.0


class _Partial(msgspec.Struct):
    rejectedLogRecords: int | str = 0  # as it is on the wire  # noqa: N815


class _Accepted(msgspec.Struct):
    partialSuccess: _Partial = msgspec.field(default_factory=_Partial)  # noqa: N815


def _rejected(body: bytes) -> int:
    """How many records a collector did not take that took the others (OTLP/HTTP, "Partial Success")."""
    try:
        return max(0, int(msgspec.json.decode(body, type=_Accepted).partialSuccess.rejectedLogRecords))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return 0


def _attribute(name: str, value: str) -> dict[str, object]:
    return {"key": name, "value": {"stringValue": value}}
