"""What an HTTP answer of a backend means (2025-11-25, basic/transports), as pure functions.

Nothing of a refusal's headers is passed on: a challenge of the backend is meant for the gateway.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Literal

from actors.protocol.codec import Batch, Frame, Malformed, decode_frame, encode
from actors.protocol.errors import OVERLOADED, internal, parse_error_member
from actors.protocol.messages import Error, Message, RequestId, Result

ACCEPTED: Final = 202
NOT_EXECUTED: Final = frozenset({301, 302, 307, 308, 401, 404, 405, 406, 407, 411, 413, 414, 415, 421, 426, 429, 431})
"""Statuses by which a server says that it did not begin: the target moved, or the request itself was refused."""
OURS_ONLY: Final = frozenset({401, 407})
"""The gateway's own credentials are at fault; the client can neither help it nor should it see the answer."""
PASSING: Final = frozenset({408, 409, 425, 429})
"""Refusals of a stream that a later attempt may not meet; so may all of 5xx. (409: the old stream is not gone yet.)"""
WORDS: Final = 4096
"""Bytes of a refusal that are looked at for what it says to people."""


class Kind(Enum):
    """How a POSTed request goes on."""

    JSON = "json"
    EVENTS = "events"
    REFUSED = "refused"


def media_type(content_type: bytes) -> bytes:
    """Without parameters, lower-case."""
    return content_type.partition(b";")[0].strip().lower()


@lru_cache(16)  # a server says the same of nearly all its answers
def kind_of(status: int, content_type: bytes) -> Kind:
    """How a request goes on, by the head of its answer alone."""
    if 200 <= status < 300 and status != ACCEPTED:
        media = media_type(content_type)
        if media == b"application/json":
            return Kind.JSON
        if media == b"text/event-stream":
            return Kind.EVENTS
    return Kind.REFUSED


@dataclass(frozen=True, slots=True)
class Lost:
    """The backend does not know our session any more; it did not execute the request."""

    guessed: bool = False
    """Taken from a 400, which may mean something else too."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The body is the JSON-RPC error that answers the request."""


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no response."""

    reason: str
    message: str
    executed: Literal["no", "unknown"]


def judge(status: int, body: bytes, *, has_session: bool, may_guess: bool) -> Lost | Answered | Failed:
    """What a POSTed request was refused with.

    `may_guess`: the session worked before, and no 400 has been taken for its loss since; servers built on the
    TypeScript SDK's example answer so instead of 404.
    """
    if 200 <= status < 300:
        what = "accepted the request without answering it" if status == ACCEPTED else "answered in no known media type"
        return Failed("protocol", f"the server {what}", "unknown")
    if status == 404 and has_session:
        return Lost()
    code = error_code(body)
    if status == 400 and has_session and may_guess and code in (None, OVERLOADED):
        return Lost(guessed=True)
    if code is not None and status not in OURS_ONLY:
        return Answered()
    return Failed("http_status", f"the server answered with HTTP {worded(status)}", executed_by(status))


def worded(status: int) -> str:
    """`401 Unauthorized`: the number, and what RFC 9110 calls it."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def words_of(status: int, body: bytes) -> str:
    """What a refusal says to people, in one line; "" where it says nothing, is a page for a browser or a message for
    whoever asked, or is about our credentials."""
    if status in OURS_ONLY or 200 <= status < 300 or b'"jsonrpc"' in body:
        return ""
    text = " ".join(body[:WORDS].decode("utf-8", "replace").split())
    return "" if text.startswith("<") else "".join(filter(str.isprintable, text))


def executed_by(status: int) -> Literal["no", "unknown"]:
    """Whether a request that got this status may have been executed."""
    return "no" if status in NOT_EXECUTED else "unknown"


def error_code(body: bytes) -> int | None:
    """The code of the JSON-RPC error that this body is; None if it is none."""
    try:
        message = decode_frame(body)
    except Malformed:
        return None
    # The decoder has checked the error member.
    return parse_error_member(message.error).code if isinstance(message, Error) else None


def as_answer(body: bytes, id: RequestId) -> bytes | None:
    """The JSON-RPC error that request `id` was refused with, as the answer to it; None where the body is none.

    Its own id says nothing: a server that has not read the request gives none, or one that nobody asked by (the
    official Python SDK 1: "server-error").
    """
    message = read(body)
    return encode(Error(id, message.error)) if isinstance(message, Error) else None


def instead(answer: Result, status: int) -> bytes:
    """The error that a server gets in the place of an answer that it refused: too large, say. It waits for one."""
    error = internal(f"the answer was refused with HTTP {worded(status)}")
    return encode(Error(answer.id, error.raw))


def read(frame: bytes) -> Frame | Malformed:
    """What this frame is; what can't be read is an error as a value."""
    try:
        return decode_frame(frame)
    except Malformed as malformed:
        return malformed.with_traceback(None)


def answers(frame: Frame | Malformed, id: RequestId) -> bool:
    """Whether this frame, come on the stream of request `id`, holds its outcome, well-formed or not.

    What can't be read at all counts as that: the request may get nothing better, and must not wait for it.
    """
    if isinstance(frame, Batch):
        return any(_is_outcome(message, id) for message in frame.messages)
    return _is_outcome(frame, id)


def _is_outcome(message: Message | Malformed, id: RequestId) -> bool:
    if isinstance(message, Malformed):
        return not message.asks and message.outcome_of in (id, None)
    # An error without id is by a server that could not read ours; on this stream there is only one it can mean.
    return isinstance(message, (Result, Error)) and (message.id == id or message.id is None)
