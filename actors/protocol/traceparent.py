"""The context of a trace, as a message's `_meta` or a header brings it (W3C Trace Context, "traceparent Header")."""

import re

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NONE = "0" * 32
_NOBODY = "0" * 16


def trace_id(traceparent: str) -> str:
    """The id of the trace, in 32 hexadecimal digits; empty if the text is no `traceparent`, or one of an invalid trace,
    or of one that nobody records (the flag "sampled"): there would be nothing to look at. A later version than 00 may
    have more behind the flags, but never an `ff` in front."""
    match = _FORM.fullmatch(traceparent, 0, 512)
    if match is None or match[1] == "ff" or match[2] == _NONE or match[3] == _NOBODY:
        return ""
    if not int(match[4], 16) & 1 or (match[1] == "00" and match[5] is not None):
        return ""
    return match[2]
