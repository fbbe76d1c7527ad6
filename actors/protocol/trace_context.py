"""W3C Trace Context and Baggage as MCP carries them: in the `_meta` of a request, or in headers beside it.

`_meta` counts first, for a header belongs to a connection and not to a message (OpenTelemetry, semantic conventions for
MCP, "Context propagation"). What comes from the two places is never mixed: a state without its parent means nothing.
What can't be read is treated as absent (W3C Trace Context, 3.2.2.5 and 3.3.1.5).
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from actors.protocol.errors import BROKEN, Malformed
from actors.protocol.messages import EMPTY
from actors.protocol.payload import dumps, members, mentions, meta_of, replace_members, text_or_none
from actors.protocol.transport import Headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

PARENT_CHARACTERS: Final = 512
"""A longer `traceparent` is none; later versions may say more than today's."""
STATE_MEMBERS: Final = 32
"""Of a tracestate (W3C Trace Context, 3.3.1.1)."""
STATE_BYTES: Final = 512
"""Characters that everybody must pass on (3.3.1.5); a longer one is left out."""
BAGGAGE_MEMBERS: Final = 64
BAGGAGE_BYTES: Final = 8192
"""What everybody must pass on (W3C Baggage, 3.3.2); more than that is left out."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_STATE_KEY: Final = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_STATE: Final = re.compile(rf"({_STATE_KEY})=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e])")
_BAGGAGE: Final = re.compile(r"[\x20-\x7e]+")
"""Printable ASCII: anything else would break out of a header, and has to be percent-encoded."""


class TraceContext(Struct, frozen=True):
    """Where in which trace somebody is; `sampled`: whether it is recorded there."""

    trace_id: str
    span_id: str
    sampled: bool = False
    state: str = ""

    @property
    def parent(self) -> str:
        """As a `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


class Carried(Struct, frozen=True):
    """What a request brings. `ambient`: what its headers say, where that is something else than `context`."""

    context: TraceContext | None = None
    baggage: str = ""
    ambient: TraceContext | None = None


NOTHING_CARRIED: Final = Carried()


def parse(parent: str, state: str = "") -> TraceContext | None:
    """The context of a `traceparent`; None for what is none."""
    found = _PARENT.fullmatch(parent) if len(parent) <= PARENT_CHARACTERS else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1), _state(state))


def trace_id(parent: str) -> str:
    """The id of the trace of a `traceparent`; empty if it is none, or one that nobody records: there would be nothing
    to look at."""
    context = parse(parent)
    return context.trace_id if context is not None and context.sampled else ""


def _state(state: str) -> str:
    """The tracestate without what is empty; "" for one that can't be read or says too much."""
    parts = [part.strip(" \t") for part in state.split(",")] if len(state) <= STATE_BYTES else []
    parts = [part for part in parts if part]
    found = [_STATE.fullmatch(part) for part in parts]
    keys = {match[1] for match in found if match is not None}
    return ",".join(parts) if len(keys) == len(parts) <= STATE_MEMBERS else ""


def _baggage(text: str) -> str:
    text = text.replace("\t", " ")
    fits = len(text) <= BAGGAGE_BYTES and text.count(",") < BAGGAGE_MEMBERS
    return text.strip() if fits and "=" in text and _BAGGAGE.fullmatch(text) else ""


class _Keys(Struct):
    parent: Raw = msgspec.field(name=TRACEPARENT, default=EMPTY)
    state: Raw = msgspec.field(name=TRACESTATE, default=EMPTY)
    baggage: Raw = msgspec.field(name=BAGGAGE, default=EMPTY)


class _Params(Struct):
    meta: _Keys | None = msgspec.field(name="_meta", default=None)


class _Frame(Struct):
    params: _Params | None = None


_NAMES: Final = (TRACEPARENT.encode(), BAGGAGE.encode())
"""Without these there is nothing to read."""
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_frame = msgspec.json.Decoder(_Frame).decode


def _texts(keys: _Keys | None) -> tuple[str, str, str]:
    if keys is None:
        return "", "", ""
    return text_or_none(keys.parent) or "", text_or_none(keys.state) or "", text_or_none(keys.baggage) or ""


def carried(params: Raw, headers: Mapping[str, str]) -> Carried:
    """What a request with these params and headers (names in lower case) brings."""
    if not (TRACEPARENT in headers or BAGGAGE in headers or (params and mentions(params, *_NAMES))):
        return NOTHING_CARRIED
    try:
        parent, state, baggage = _texts(_decode_params(params).meta if params else None)
    except BROKEN:
        parent = state = baggage = ""
    own = parse(parent, state)
    beside = parse(headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "").replace("\n", ","))
    baggage = _baggage(baggage) or _baggage(headers.get(BAGGAGE, ""))
    if own is None:
        return Carried(beside, baggage)
    return Carried(own, baggage, beside if beside is not None and beside.span_id != own.span_id else None)


def carrying(params: Raw, context: TraceContext, baggage: str = "") -> Raw:
    """Params whose `_meta` says that they come from there. Params that are no object stay as they are: whoever gets
    them refuses them."""
    try:
        present = dict(members(meta_of(params)))
        for name, value in ((TRACEPARENT, context.parent), (TRACESTATE, context.state), (BAGGAGE, baggage)):
            present.pop(name, None)
            if value:
                present[name] = dumps(value)
        return replace_members(params, {"_meta": dumps(present)})
    except Malformed:
        return params


def as_headers(frame: bytes) -> Headers:
    """The headers that say beside a request what its `_meta` says."""
    if not mentions(Raw(frame), *_NAMES):
        return ()
    try:
        params = _decode_frame(frame).params
    except BROKEN:
        return ()
    parent, state, baggage = _texts(params.meta if params is not None else None)
    context = parse(parent, state)
    pairs = ((TRACEPARENT, context.parent), (TRACESTATE, context.state)) if context is not None else ()
    return tuple((name, value) for name, value in (*pairs, (BAGGAGE, _baggage(baggage))) if value)
