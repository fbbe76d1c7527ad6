"""What an inbound message is, by a ladder of checks: the first rung that fails is the answer.

The era is chosen here, once per message, and nowhere else. Pure: which sessions exist, and what their machine allows
in its phase, is asked later by whoever takes the route.
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Raw, Struct

from actors.protocol import errors
from actors.protocol.codec import Batch, Frame, Malformed, decode_frame
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import Message, Notification, Request, RequestId, Response
from actors.protocol.payload import id_fits, members, mentions, meta_of, text_or_none
from actors.protocol.versions import MODERN, VERSIONS

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
"""The key of `_meta` by which each modern request says its revision (2026-07-28, basic, "_meta")."""


class Initialize(Struct, frozen=True):
    """The first message of a session that does not exist yet."""

    request: Request


class LegacyRequest(Struct, frozen=True):
    """A request in a session; also a second `initialize`, which the session refuses, once it is known to exist."""

    session: str
    request: Request


class LegacyNotification(Struct, frozen=True):
    session: str
    notification: Notification


class LegacyResponse(Struct, frozen=True):
    """The client's answer to a request of the server's."""

    session: str
    response: Response


class LegacyBatch(Struct, frozen=True):
    """Several messages; whether the session's revision has batches, the session knows."""

    session: str
    batch: Batch


class Modern(Struct, frozen=True):
    """A message of the era without sessions, with the revision that it names."""

    version: str
    message: Message


class Rejection(Struct, frozen=True):
    """The answer, and the id of the request that it answers, where there is one."""

    error: ProtocolError
    id: RequestId | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.error.status

    @property
    def body(self) -> bytes:
        """The JSON-RPC error response."""
        return errors.encode_error_body(self.error, self.id)


Route: TypeAlias = Initialize | LegacyRequest | LegacyNotification | LegacyResponse | LegacyBatch | Modern
ModernRung: TypeAlias = Callable[[Frame, str], Route | Rejection]
"""What to make of a frame that names a modern revision."""


def refuse_modern(frame: Frame, version: str) -> Route | Rejection:
    """The rung of a gateway without the modern era: names the revisions that it has, so that the client falls back."""
    return Rejection(errors.unsupported_protocol_version(version), _id_of(frame))


def classify_body(
    body: bytes,
    session: str | None,
    version: str | None,
    *,
    limit: int | None = None,
    modern: ModernRung = refuse_modern,
) -> Route | Rejection:
    """Decodes a POST body and classifies it; never raises. `session` and `version` are header values, if present."""
    try:
        frame = decode_frame(body, limit)
    except Malformed as malformed:
        return Rejection(malformed.error, echoed(malformed))
    return classify(frame, session, version, modern=modern)


def echoed(malformed: Malformed) -> RequestId | None:
    """The id under which a client's message is refused; one that is too long is not repeated."""
    return malformed.id if malformed.id is not None and id_fits(malformed.id) else None


def classify(
    frame: Frame, session: str | None, version: str | None, *, modern: ModernRung = refuse_modern
) -> Route | Rejection:
    """The route of a decoded frame. `session` and `version` are the headers Mcp-Session-Id and MCP-Protocol-Version."""
    if version is not None and version not in VERSIONS:
        # A revision that nobody here knows is a modern one if the body names one too.
        if version == MODERN or (not isinstance(frame, Batch) and _named_version(frame) is not None):
            return modern(frame, version)
        return Rejection(errors.unsupported_version_header(version), _id_of(frame))
    if isinstance(frame, Batch):
        return _batch(frame, session)
    if isinstance(frame, Request) and frame.method == "initialize" and not session:
        return Initialize(frame)
    if not session:
        named = _named_version(frame)
        if named is not None:
            return modern(frame, named)
        return Rejection(errors.missing_session(), _id_of(frame))
    if isinstance(frame, Request):
        return LegacyRequest(session, frame)
    if isinstance(frame, Notification):
        return LegacyNotification(session, frame)
    return LegacyResponse(session, frame)


def check_headers(session: str | None, version: str | None) -> Rejection | None:
    """The rungs for a GET or DELETE, which carry no message: None if it may go on to the session."""
    if version is not None and version not in VERSIONS:
        return Rejection(errors.unsupported_version_header(version))
    return None if session else Rejection(errors.missing_session())


def _batch(batch: Batch, session: str | None) -> Route | Rejection:
    """2025-03-26, transports: requests and notifications, or responses, never both; lifecycle: never `initialize`."""
    asks = answers = False
    for message in batch.messages:
        if isinstance(message, Request) and message.method == "initialize":
            return Rejection(errors.invalid_request("initialize in a batch"))
        asks = asks or isinstance(message, Request | Notification)
        answers = answers or not isinstance(message, Request | Notification | Malformed)
    if asks and answers:
        return Rejection(errors.invalid_request("requests and responses in one batch"))
    if not session:
        return Rejection(errors.missing_session())
    return LegacyBatch(session, batch)


def _named_version(message: Message) -> str | None:
    """The revision in the `_meta` of a message; a modern client names it in each."""
    if not isinstance(message, Request | Notification) or not mentions(message.params, b"protocolVersion"):
        return None
    try:
        meta: dict[str, Raw] = members(meta_of(message.params))
    except Malformed:
        return None
    return text_or_none(meta.get(PROTOCOL_VERSION_KEY))


def _id_of(frame: Frame) -> RequestId | None:
    return frame.id if isinstance(frame, Request) else None
