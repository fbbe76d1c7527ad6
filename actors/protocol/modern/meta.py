"""The `_meta` envelope: what each request of the era without sessions says of its client (2026-07-28, basic, "_meta").

Requests alone carry it. The other keys of `_meta`, W3C trace context among them, are not the gateway's and stay.
"""

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol import errors
from actors.protocol.capabilities import LEVELS, Capabilities, ClientBits, client_bits, parse
from actors.protocol.errors import Malformed, Refusal
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.payload import (
    dumps,
    is_object,
    members,
    mentions,
    meta_of,
    progress_token,
    replace_members,
    text_or_none,
)
from actors.protocol.versions import MODERN

PREFIX: Final = "io.modelcontextprotocol/"
VERSION_KEY: Final = PREFIX + "protocolVersion"
CAPABILITIES_KEY: Final = PREFIX + "clientCapabilities"
INFO_KEY: Final = PREFIX + "clientInfo"
LEVEL_KEY: Final = PREFIX + "logLevel"
SERVER_KEY: Final = PREFIX + "serverInfo"
"""Of results: the server's Implementation."""
SUBSCRIPTION_KEY: Final = PREFIX + "subscriptionId"
"""Of everything on the stream of a `subscriptions/listen`: that request's id."""
RELATED_TASK_KEY: Final = PREFIX + "related-task"
"""Of 2025-11-25, whose tasks have another form here."""

ENVELOPE_KEYS: Final = (VERSION_KEY, CAPABILITIES_KEY, INFO_KEY, LEVEL_KEY)
RETRY_MEMBERS: Final = ("inputResponses", "requestState")
"""Members of params by which a request goes on where an InputRequiredResult left it."""

_NULL: Final = b"null"


class Envelope(Struct, frozen=True):
    """The envelope of one request. Nothing of it holds for another (basic, "Statelessness")."""

    version: str
    capabilities: Capabilities
    bits: ClientBits
    info: Raw = EMPTY
    """Self-reported; for display and logs only."""
    level: str | None = None
    """None: no log message may be sent for this request."""
    progress: RequestId | None = None


def required(params: Raw) -> str:
    """The version, once both required keys are there and of their types. Refusal (-32602, 400) if not."""
    return _required(_meta(params))[0]


def read(params: Raw, extensions: Collection[str] | None = None) -> Envelope:
    """The envelope of a request; `extensions` are the ids that count as declared (None: all).

    Refusal (-32602, 400) for required keys that are missing or ill-typed, for an unknown level, and for a progress
    token that cannot be kept. What is only for display is left out where it is ill-typed.
    """
    meta = _meta(params)
    version, declared = _required(meta)
    info = meta.get(INFO_KEY, EMPTY)
    try:
        token = progress_token(params)
    except Malformed as malformed:
        raise _unreadable(malformed) from None
    return Envelope(
        version,
        parse(declared),
        client_bits(declared, version, extensions),
        info if is_object(info) else EMPTY,
        _level(meta.get(LEVEL_KEY)),
        token,
    )


def names_version(params: Raw) -> str | None:
    """The version that the `_meta` of any message names: "" where the key holds something else than a text, None
    where there is no such key."""
    if not mentions(params, b"protocolVersion"):
        return None
    try:
        named = members(meta_of(params)).get(VERSION_KEY)
    except Malformed:
        return None
    return None if named is None else text_or_none(named) or ""


def stamp(
    params: Raw,
    *,
    capabilities: Raw,
    info: Raw,
    level: str | None,
    token: RequestId | None,
    version: str = MODERN,
) -> Raw:
    """Params for a backend of this era: this envelope in the place of the client's; what it does not name (EMPTY,
    None) is taken out. Raises Malformed for params that are no object."""
    own = {
        VERSION_KEY: dumps(version),
        CAPABILITIES_KEY: capabilities or dumps({}),
        INFO_KEY: info or None,
        LEVEL_KEY: None if level is None else dumps(level),
        "progressToken": None if token is None else dumps(token),
    }
    present = members(params)
    kept = {key: value for key, value in _lenient(params).items() if key not in own and key != RELATED_TASK_KEY}
    present["_meta"] = dumps(kept | {key: value for key, value in own.items() if value is not None})
    return dumps(present)


def bare(params: Raw) -> Raw:
    """Params for a backend with sessions: without the envelope, and without what belongs to a retry. The same object
    if none of it was there. Raises Malformed for params that are no object."""
    if not mentions(params, PREFIX.encode(), *(name.encode() for name in RETRY_MEMBERS)):
        return params
    changes: dict[str, Raw | None] = {name: None for name in RETRY_MEMBERS if name in members(params)}
    meta = _lenient(params)
    kept = {key: value for key, value in meta.items() if key not in ENVELOPE_KEYS}
    if len(kept) < len(meta):
        changes["_meta"] = dumps(kept) if kept else None
    return replace_members(params, changes) if changes else params


def _meta(params: Raw) -> dict[str, Raw]:
    try:
        meta = meta_of(params)
        if not meta:
            raise _refused("params._meta is missing")
        return members(meta)
    except Malformed as malformed:
        raise _unreadable(malformed) from None


def _lenient(params: Raw) -> dict[str, Raw]:
    """The keys of a `_meta`; of one that is no object: none."""
    return members(meta_of(params))


def _required(meta: dict[str, Raw]) -> tuple[str, Raw]:
    version = text_or_none(meta.get(VERSION_KEY))
    if version is None:
        raise _refused(f"params._meta needs {VERSION_KEY}, a string")
    declared = meta.get(CAPABILITIES_KEY, EMPTY)
    if not is_object(declared):
        raise _refused(f"params._meta needs {CAPABILITIES_KEY}, an object")
    return version, declared


def _level(raw: Raw | None) -> str | None:
    if raw is None or bytes(raw) == _NULL:
        return None
    level = text_or_none(raw)
    if level not in LEVELS:
        raise _refused(f"{LEVEL_KEY} must be one of {', '.join(LEVELS)}")
    return level


def _unreadable(malformed: Malformed) -> Refusal:
    return Refusal(msgspec.structs.replace(malformed.error, kind="invalid_envelope"))


def _refused(detail: str) -> Refusal:
    return Refusal(errors.refusal("invalid_envelope", detail))
