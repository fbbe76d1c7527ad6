"""The server side of HTTP/1.1 framing, without IO: bytes in, request events out; response heads and chunks encoded.

llhttp (under httptools) does the parsing and refuses by itself what smugglers use: a second Content-Length, one next to
Transfer-Encoding, bare CR or LF, folded headers, chunk sizes that are not hex. Added here: one `Host`, plain `chunked`
as the only coding, HTTP/1.x only, sizes and counts. An `Upgrade` is ignored, as RFC 9110 §7.8 allows, so that clients
which offer h2c on every first request (Java's) are served in HTTP/1.1; the HTTP/2 preface and CONNECT are refused.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import TypeAlias

import httptools
from msgspec import Struct

Headers: TypeAlias = list[tuple[bytes, bytes]]

_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)([/?][^#]*)?", re.IGNORECASE)


class Head(Struct, frozen=True):
    """The head of a request. Header names are lower-case; `length` is None for a chunked body."""

    method: str
    target: bytes
    version: str
    headers: Headers
    keep_alive: bool
    length: int | None
    expects_continue: bool


class Malformed(Struct, frozen=True):
    """The input is no request that we serve; nothing after it will be read."""

    status: int
    reason: str


class Mark(Enum):
    """END closes the body of a request."""

    END = "end"


END = Mark.END
Event: TypeAlias = Head | bytes | Mark | Malformed


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes in bytes. `body` bounds the body as it is on the wire, framing included."""

    head: int = 32 * 1024
    headers: int = 100
    body: int = 16 * 1024 * 1024


_CLOSED = Malformed(400, "closed")


class RequestDecoder:
    """Turns bytes into `events`, in order; a Malformed is the last one. Whoever takes them calls `next_event`."""

    __slots__ = (
        "_deaf",
        "_events_before",
        "_fault",
        "_headers",
        "_in_body",
        "_in_head",
        "_length",
        "_limits",
        "_next",
        "_parser",
        "_target",
        "_wire",
        "events",
    )

    def __init__(self, limits: RequestLimits) -> None:
        self.events: list[Event | bytearray] = []
        self._next = 0
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: Headers = []
        self._in_head = False
        self._in_body = False
        self._deaf = False
        self._length: int | None = 0
        self._wire = 0
        self._fault: Malformed | None = None
        self._events_before = 0

    @property
    def idle(self) -> bool:
        """Whether no request has begun that is not complete."""
        return not self._in_head and not self._in_body

    @property
    def empty(self) -> bool:
        """Whether no request has begun but those that were taken whole."""
        return self.idle and not self.events

    @property
    def in_head(self) -> bool:
        """Whether a request has begun whose head is not complete."""
        return self._in_head

    def feed(self, data: bytes) -> None:
        """Takes what came from the peer."""
        if self._fault is not None:
            return
        self._events_before = len(self.events)
        self._wire += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._fail(self._fault or Malformed(400, str(error)))
        else:
            self._check_size()

    def next_event(self) -> Event | None:
        """Takes the next event; None when there is none."""
        if self._next == len(self.events):
            return None
        event = self.events[self._next]
        self._next += 1
        if self._next == len(self.events):
            self.events.clear()
            self._next = 0
        return bytes(event) if isinstance(event, bytearray) else event

    def take_rest(self) -> bytes | None:
        """After a Head: takes the body and the END of its request, if they are there already."""
        body, end = b"", self._next
        if end < len(self.events) and isinstance(self.events[end], bytes | bytearray):
            body, end = bytes(self.events[end]), end + 1  # type: ignore[arg-type]
        if end == len(self.events) or self.events[end] is not END:
            return None
        self._next = end
        self.next_event()
        return body

    def close(self) -> None:
        """Lets go of the parser, with which this object forms a cycle. May be called twice."""
        if self._fault is not _CLOSED:
            del self._parser
            self._fault = _CLOSED
            self._headers, self._target = [], b""

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._ignore_upgrade()

    def _ignore_upgrade(self) -> None:
        """The parser takes what follows for another protocol, and would skip a body: a fresh one goes on instead,
        which is told a head that has the same body."""
        self._parser = httptools.HttpRequestParser(self)
        if self._in_body:
            framing = b"transfer-encoding: chunked" if self._length is None else b"content-length: %d" % self._length
            self._deaf = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
            self._deaf = False

    def _check_size(self) -> None:
        if self._in_head and self._wire > self._limits.head:
            self._fail(Malformed(431, "The request's head is too large"))
        elif self._in_body and self._wire > self._limits.body:
            self._fail(Malformed(413, "The request is too large"))

    def _fail(self, fault: Malformed) -> None:
        # A request that breaks in the bytes that began it was never seen by anyone.
        begun = [at for at in range(self._events_before, len(self.events)) if isinstance(self.events[at], Head)]
        if self._in_body and begun:
            while len(self.events) > begun[-1]:
                self.events.pop()
        self._fault = fault
        self._in_head = self._in_body = False
        self.events.append(fault)

    def _refuse(self, status: int, reason: str) -> None:
        self._fault = Malformed(status, reason)
        raise ValueError(reason)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        self._in_head = True
        self._target = b""
        self._headers = []
        # Bytes of an earlier request in the same read are not this one's; its own first bytes go uncounted.
        self._wire = 0

    def on_url(self, url: bytes) -> None:
        if self._in_head:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        headers, version = self._headers, self._parser.get_http_version()
        names, values = zip(*headers, strict=True) if headers else ((), ())
        size = len(self._target) + sum(map(len, names)) + sum(map(len, values)) + 4 * len(headers)
        hosts = names.count(b"host")
        expects = b"expect" in names and version == "1.1"
        if b"expect" in names and not _all_are(b"100-continue", b"expect", headers):
            self._refuse(417, "Unsupported expectation")
        length: int | None = int(values[names.index(b"content-length")]) if b"content-length" in names else 0
        if b"transfer-encoding" in names:
            if version != "1.1" or not _all_are(b"chunked", b"transfer-encoding", headers):
                self._refuse(501, "Unsupported transfer coding")
            length = None
        method = self._parser.get_method().decode("ascii")
        if version not in {"1.0", "1.1"}:
            self._refuse(505, "HTTP/1.1 only")
        if size > self._limits.head or len(headers) > self._limits.headers:
            self._refuse(431, "The request's head is too large")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(400, "Exactly one Host is required")
        if self._target[:1] != b"/":
            self._read_absolute_target()
        if method == "CONNECT" or not (self._target.startswith(b"/") or self._target == b"*"):
            self._refuse(400, "The request target must be a path or a URL")
        if not self._target.isascii():
            self._refuse(400, "The request target must be ASCII")
        self._in_head = False
        self._in_body = True
        self._length = length
        self.events.append(
            Head(method, self._target, version, self._headers, self._parser.should_keep_alive(), length, expects)
        )

    def _read_absolute_target(self) -> None:
        """A URL, as for a proxy, must be accepted by every server, and its authority stands for the Host that was sent
        (RFC 9112 §3.2.2)."""
        url = _ABSOLUTE.fullmatch(self._target)
        if url is not None:
            self._headers = [header for header in self._headers if header[0] != b"host"] + [(b"host", url[1])]
            rest = url[2] or b""
            self._target = rest if rest.startswith(b"/") else b"/" + rest

    def on_body(self, body: bytes) -> None:
        # Small chunks that came together are one event: a body may have a million of them.
        last = self.events[-1] if self.events else None
        if isinstance(last, bytearray):
            last += body
        elif isinstance(last, bytes):
            self.events[-1] = bytearray(last) + body
        else:
            self.events.append(body)

    def on_message_complete(self) -> None:
        if self._length != 0 and self._parser.should_upgrade():
            return  # the body was skipped, and is still to come
        self._in_body = False
        self.events.append(END)


def _all_are(value: bytes, name: bytes, headers: Headers) -> bool:
    """Whether each of the headers of this name has this value."""
    return all(found.lower() == value for called, found in headers if called == name)


_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode("ascii")) for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def encode_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The status line and headers of a response. ValueError for a header that would break out of its line."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        lines.append(b"%b: %b\r\n" % (name, value))
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise ValueError("A response header holds a control character")
    return head + b"\r\n"


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
