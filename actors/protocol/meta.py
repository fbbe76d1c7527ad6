"""The `_meta` envelope: what each request of the modern era says of its client (2026-07-28, basic, "_meta").

Requests alone carry it. The other keys of `_meta`, W3C trace context among them, are not the gateway's and stay.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from actors.protocol import errors
from actors.protocol.capabilities import LEVELS, Capabilities, ClientBits, declared
from actors.protocol.errors import BROKEN, Malformed, ProtocolError, Refusal
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.payload import dumps, is_object, members, mentions, refused, text_or_none, token_of
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

OWN_KEYS: Final = frozenset({*ENVELOPE_KEYS, "progressToken", RELATED_TASK_KEY})
"""What each request to a backend says anew, or not at all."""

_NULL: Final = b"null"


class Envelope(Struct, frozen=True):
    """The envelope of one request. Nothing of it holds for another (basic, "Statelessness")."""

    version: str
    capabilities: Capabilities
    bits: ClientBits
    info: Raw = EMPTY
    """Self-reported; for display and logs only."""
    level: str | None = None
    """None: no log message may be sent for this request. Any text: what it means, a server may know."""
    progress: RequestId | None = None


class Keys(Struct, frozen=True):
    """The keys of a `_meta` that are the gateway's, as they were sent; EMPTY for those that are not there."""

    version: Raw = field(name=VERSION_KEY, default=EMPTY)
    capabilities: Raw = field(name=CAPABILITIES_KEY, default=EMPTY)
    info: Raw = field(name=INFO_KEY, default=EMPTY)
    level: Raw = field(name=LEVEL_KEY, default=EMPTY)
    token: Raw = field(name="progressToken", default=EMPTY)


class _Params(Struct):
    meta: Keys | None = field(name="_meta", default=None)


_decode_params = msgspec.json.Decoder(_Params).decode


def look(params: Raw) -> tuple[str, Keys]:
    """The version and all keys, once both required keys are there and of their types. Refusal (-32602, 400) if not."""
    try:
        keys = _decode_params(params).meta if params else None
    except BROKEN as broken:
        if not is_object(params) or isinstance(broken, RecursionError):
            raise _unreadable(refused(broken)) from None
        keys = None
    if keys is None:
        raise _refused("params._meta is missing")
    version = text_or_none(keys.version)
    if version is None:
        raise _refused(f"params._meta needs {VERSION_KEY}, a string")
    if not is_object(keys.capabilities):
        raise _refused(f"params._meta needs {CAPABILITIES_KEY}, an object")
    return version, keys


def read(params: Raw, extensions: Collection[str] | None = None) -> Envelope:
    """The envelope of a request; `extensions` are the ids that count as declared (None: all).

    Refusal (-32602, 400) for required keys that are missing or ill-typed, for a level that is no text, and for a
    progress token that cannot be kept. What is only for display is left out where it is ill-typed.
    """
    return envelope(*look(params), extensions)


def envelope(version: str, keys: Keys, extensions: Collection[str] | None = None) -> Envelope:
    """The envelope of what `look` found."""
    try:
        token = token_of(keys.token)
    except Malformed as malformed:
        raise _unreadable(malformed) from None
    ids = None if extensions is None else frozenset(extensions)
    capabilities, bits = declared(bytes(keys.capabilities), version, ids)
    info = keys.info if is_object(keys.info) else EMPTY
    return Envelope(version, capabilities, bits, info, _level(keys.level), token)


def introduce(params: Raw, info: Raw) -> Raw:
    """Params with the client's Implementation, for a server with sessions that is told of each request who sent it.
    Raises Malformed for params that are no object."""
    present: dict[str, Any] = {**members(params)}
    present["_meta"] = {**members_of(present), INFO_KEY: info}
    return dumps(present)


def info_of(params: Raw) -> Raw:
    """The client's Implementation in the params of any request; EMPTY where there is none."""
    if not mentions(params, b"clientInfo"):
        return EMPTY
    try:
        keys = _decode_params(params).meta
    except BROKEN:
        return EMPTY
    return keys.info if keys is not None and is_object(keys.info) else EMPTY


def names_version(params: Raw) -> str | None:
    """The version that the `_meta` of any message names: "" where the key holds something else than a text, None
    where there is no such key."""
    if not mentions(params, b"protocolVersion"):
        return None
    try:
        keys = _decode_params(params).meta
    except BROKEN:
        return None
    return text_or_none(keys.version) or "" if keys is not None and keys.version else None


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
    present: dict[str, Any] = {**members(params)}
    kept: dict[str, Any] = {key: value for key, value in members_of(present).items() if key not in OWN_KEYS}
    kept[VERSION_KEY] = version
    kept[CAPABILITIES_KEY] = capabilities or {}
    if info:
        kept[INFO_KEY] = info
    if level is not None:
        kept[LEVEL_KEY] = level
    if token is not None:
        kept["progressToken"] = token
    present["_meta"] = kept
    return dumps(present)


def members_of(present: Mapping[str, Any]) -> dict[str, Raw]:
    """The keys of the `_meta` among members; of one that is no object: none. Raises Malformed."""
    meta = present.get("_meta", EMPTY)
    return members(meta) if is_object(meta) else {}


def _level(raw: Raw) -> str | None:
    if not raw or bytes(raw) == _NULL:
        return None
    level = text_or_none(raw)
    if level is None:
        raise _refused(f"{LEVEL_KEY} must be a string")
    return level


def unknown_level(level: str | None) -> ProtocolError | None:
    """The refusal of a level that no revision has; None for any other, or for none."""
    if level is None or level in LEVELS:
        return None
    return errors.refusal("invalid_envelope", f"{LEVEL_KEY} must be one of {', '.join(LEVELS)}")


def _unreadable(malformed: Malformed) -> Refusal:
    return Refusal(msgspec.structs.replace(malformed.error, kind="invalid_envelope"))


def _refused(detail: str) -> Refusal:
    return Refusal(errors.refusal("invalid_envelope", detail))
