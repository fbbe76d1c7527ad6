"""The client side of HTTP/1.1 framing, without IO: requests encoded, responses parsed.

llhttp (under httptools) does the parsing. Added here: bounds on the head and on framing overhead, the end of a body by
the end of the connection, interim (1xx) responses skipped, and the verdict whether the connection can be used again.
Methods whose responses are framed differently (HEAD, CONNECT) are not offered, nor upgrades.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import httptools

from gateway.wire.errors import HeaderError, PeerError, SizeError

OVERHEAD_MAX: Final = 64 * 1024
"""Bytes of a response head; also of what may follow it without a byte of body (chunk extensions, trailers)."""

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_KEPT: Final = re.compile(rb"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})\b", re.IGNORECASE)


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Header lines. HeaderError for what would break the framing."""
    lines = []
    for name, value in headers:
        try:
            key, content = name.encode(), value.strip(" \t").encode()
        except UnicodeEncodeError:  # half of a surrogate pair; the error would show the value
            raise HeaderError("a header has characters that none may have") from None
        if not _NAME.fullmatch(key):
            raise HeaderError(f"not a header name: {name!r}")
        if not _VALUE.fullmatch(content):
            raise HeaderError(f"the value of header {name!r} has characters that no header may have")
        lines.append(b"%b: %b\r\n" % (key, content))
    return b"".join(lines)


def encode_request(method: bytes, request_line_end: bytes, headers: bytes, body: bytes | None) -> bytes:
    """A whole request. `body` None is a request without one (GET, DELETE)."""
    if body is None:
        return b"%b%b%b\r\n" % (method, request_line_end, headers)
    return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (method, request_line_end, headers, len(body), body)


def kept_alive(announced: bytes) -> int | None:
    """Seconds for which a peer keeps an idle connection, by its Keep-Alive header; None if that does not say."""
    found = _KEPT.search(announced)
    return int(found[1]) if found is not None else None


class ResponseParser:
    """The responses of one connection, one after the other: `expect`, then `feed` until `complete`.

    `status` is 0 until the head is there. Header names are lower-case; a repeated header is joined by commas.
    """

    __slots__ = (
        "_body",
        "_expecting",
        "_framed",
        "_headers",
        "_overhead",
        "_parser",
        "_progress",
        "complete",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._expecting = False
        self.complete = True
        self.reusable = True
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._framed = False
        """Whether the end of the body is known before the connection ends."""
        self._overhead = 0
        self._progress = False

    def expect(self) -> None:
        """A request goes out; the next response answers it."""
        self._reset()
        self._expecting = True
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Raises PeerError for what is not HTTP, SizeError for an endless head."""
        if self._parser is None:
            raise PeerError("the connection was closed", sent=True)
        self._progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            raise PeerError("the connection was switched to another protocol unasked", sent=True) from upgrade
        except httptools.HttpParserError as error:
            self.reusable = False
            if not self.complete:
                raise PeerError(f"not an HTTP/1 response: {error}", sent=True) from error
        if self._progress:
            self._overhead = 0
        else:
            self._overhead += len(data)
            if self._overhead > OVERHEAD_MAX and not self.complete:
                raise SizeError(f"a response head of more than {OVERHEAD_MAX} bytes", sent=True)

    def close(self) -> None:
        """Nothing more is fed. (The two halves hold each other: without this only a garbage collection frees them.)"""
        self._parser = None

    def feed_eof(self) -> None:
        """The connection has ended. PeerError if the response is not whole."""
        self.reusable = False
        if self.complete:
            return
        if not self.status:
            raise PeerError("the connection was closed before a response", sent=True)
        if self._framed:
            raise PeerError("the connection was closed in the middle of a response", sent=True)
        self.complete = True

    @property
    def has_more(self) -> bool:
        """Whether there is more to take than was taken, or the response is whole."""
        return self.complete or bool(self._body)

    def take_body(self) -> bytes:
        """What has come of the body since the last call."""
        body = self._body
        if not body:
            return b""
        whole = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        return whole

    # Called by httptools

    def on_message_begin(self) -> None:
        if not self._expecting:
            # A response that nobody asked for: what follows would be taken for the answer to the next request.
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._progress = True
        if not self._expecting or self._parser is None:
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200:  # interim
            return
        folded: dict[bytes, bytes] = {}
        for name, value in headers:
            folded[name] = folded[name] + b", " + value if name in folded else value
        self.headers = folded
        self._framed = b"content-length" in folded or b"transfer-encoding" in folded
        self.status = status

    def on_body(self, body: bytes) -> None:
        self._progress = True
        if self._expecting:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._expecting and self.status and self._parser is not None:
            self._expecting = False
            self.complete = True
            self.reusable = self.reusable and self._parser.should_keep_alive()
