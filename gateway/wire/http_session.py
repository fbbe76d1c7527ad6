"""The headers of our messages to one MCP endpoint, and the session they belong to."""

import re
from collections.abc import Iterable
from typing import Final

from actors.protocol.headers import VERSION_HEADER
from gateway.wire.http1_client import encode_headers

SESSION: Final = "Mcp-Session-Id"
MESSAGE: Final = "application/json, text/event-stream"
"""What answers a message, either of the two."""
OURS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "host", "keep-alive"}
    | {"last-event-id", "mcp-protocol-version", "mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that the protocol or the framing needs; configuration does not replace them."""

_SESSION_ID: Final = re.compile(rb"[\x21-\x7e]{1,1024}")


def configured_headers(configured: Iterable[tuple[str, str]]) -> bytes:
    """The header lines that every message has, less those that are ours. ValueError for headers that are none."""
    kept = [(name, value) for name, value in configured if name.lower() not in OURS]
    if "user-agent" not in {name.lower() for name, _ in kept}:
        kept.append(("User-Agent", "stagedoor"))
    return encode_headers(kept)


class HttpSession:
    """One session with a backend, from before its `initialize` on; a lost one is replaced by a fresh one.

    `worked`: the backend accepted a message that carried the session id. `guessed_lost`: a 400 was taken for the loss
    of the session before this one, and no request has succeeded since.
    """

    __slots__ = ("_configured", "_post", "guessed_lost", "id", "version", "worked")

    def __init__(self, configured: Iterable[tuple[str, str]], *, guessed_lost: bool = False) -> None:
        """ValueError for configured headers that are none."""
        self._configured = configured_headers(configured)
        self._post: bytes | None = None
        self.id: str | None = None
        self.version: str | None = None
        self.worked = False
        self.guessed_lost = guessed_lost

    def take_id(self, header: bytes) -> bool:
        """Keeps the session id that came with a response, if it may be one; False if it can't be used.

        Once the handshake is over no response gives or changes it ("Session Management").
        """
        if not header or self.version is not None or self.id is not None:
            return True
        if not _SESSION_ID.fullmatch(header):
            return False
        self.id = header.decode()
        self._post = None
        return True

    def take_version(self, version: str) -> None:
        """The revision that the handshake settled on."""
        self.version = version
        self._post = None

    def take_over(self, id: str | None, version: str) -> None:
        """Goes on with a session that worked before. An id that no header can carry is none."""
        self.id = id if id is not None and _SESSION_ID.fullmatch(id.encode("utf-8", "replace")) else None
        self.version = version
        self.worked = True
        self._post = None

    def post_headers(self) -> bytes:
        """For a message."""
        if self._post is None:
            self._post = self._for(MESSAGE, ("Content-Type", "application/json"))
        return self._post

    def get_headers(self, last_event_id: str | None = None) -> bytes:
        """For a stream; with an id, for the rest of the stream that this event was on."""
        headers = self._for("text/event-stream")
        if last_event_id is None:
            return headers
        return headers + encode_headers([("Last-Event-ID", last_event_id)])

    def delete_headers(self) -> bytes:
        """For the end of the session."""
        return self._for("*/*")

    def _for(self, accept: str, *more: tuple[str, str]) -> bytes:
        own = [("Accept", accept), *more]
        if self.id is not None:
            own.append((SESSION, self.id))
        if self.version is not None:
            own.append((VERSION_HEADER, self.version))
        return encode_headers(own) + self._configured
