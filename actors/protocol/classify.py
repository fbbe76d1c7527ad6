"""What an inbound message is, by a ladder of checks: the first rung that fails is the answer.

The era is chosen here, once per message, and nowhere else. Pure: which sessions exist, and what their machine allows
in its phase, is asked later by whoever takes the route.
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from actors.protocol import errors
from actors.protocol.codec import Batch, Frame, Malformed, decode_frame
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import Notification, Request, RequestId, Response
from actors.protocol.meta import Envelope, names_version
from actors.protocol.payload import id_fits
from actors.protocol.versions import MODERN_VERSIONS, SERVED, VERSIONS


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


class ModernRequest(Struct, frozen=True):
    """A request of the modern era, all of whose headers and envelope are in order."""

    request: Request
    envelope: Envelope


class ModernNotification(Struct, frozen=True):
    """A notification of that era. On HTTP the revision has none that means anything; what it does not know may mean
    something to the one server behind an endpoint (`classify_modern.between_peers`)."""

    notification: Notification


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


Route: TypeAlias = (
    Initialize | LegacyRequest | LegacyNotification | LegacyResponse | LegacyBatch | ModernRequest | ModernNotification
)
ModernRung: TypeAlias = Callable[[Frame, str], Route | Rejection]
"""What to make of a frame of the modern era, or of none that is known, and the revision that its header, or else its
body, names ("": ill-typed)."""


def refuse_modern(frame: Frame, version: str) -> Route | Rejection:
    """The rung of a gateway without the modern era: names the revisions that it has, so that the client falls back."""
    if version in MODERN_VERSIONS or (isinstance(frame, Request | Notification) and names_version(frame.params)):
        return Rejection(errors.unsupported_protocol_version(version), _id_of(frame))
    return Rejection(errors.unsupported_version_header(version), _id_of(frame))


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
    """The route of a decoded frame. `session` and `version` are the headers Mcp-Session-Id and MCP-Protocol-Version.

    The era (2026-07-28, versioning; streamable-http, "Backward Compatibility"): `initialize` is of the old one, unless
    header and `_meta` both say otherwise, for then it is a method that the new one lacks; else what names a revision in
    its `_meta` is of the new one; else the header decides, and one that nobody here knows is of the new era too.
    """
    initialize = isinstance(frame, Request) and frame.method == "initialize"
    if version in MODERN_VERSIONS and not initialize:
        return modern(frame, version)  # whatever the body names
    named = names_version(frame.params) if isinstance(frame, Request | Notification) else None
    if isinstance(frame, Request) and initialize and not (named and version in MODERN_VERSIONS):
        if version is not None and version not in SERVED:
            return Rejection(errors.unsupported_version_header(version), frame.id)
        return LegacyRequest(session, frame) if session else Initialize(frame)
    if named is not None or (version is not None and version not in VERSIONS):
        return modern(frame, version if version is not None else named or "")
    if isinstance(frame, Batch):
        return _batch(frame, session)
    if not session:
        return Rejection(errors.missing_session(), _id_of(frame))
    if isinstance(frame, Request):
        return LegacyRequest(session, frame)
    if isinstance(frame, Notification):
        return LegacyNotification(session, frame)
    return LegacyResponse(session, frame)


def check_headers(session: str | None, version: str | None) -> Rejection | None:
    """The rungs for a GET or DELETE, which carry no message: None if it may go on to the session."""
    if version in MODERN_VERSIONS:
        return Rejection(errors.refusal("post_only"))
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


def _id_of(frame: Frame) -> RequestId | None:
    return frame.id if isinstance(frame, Request) else None
