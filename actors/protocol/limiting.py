"""Limits of rules: how often something may be done, who shares that, and what is said when it is enough. Pure.

A *rate* (per second, minute or hour) is counted by the generic cell rate algorithm: what was used comes back evenly,
and up to `burst` may come at once. A *quota* (per day or week) is counted from the beginning of the day or of Monday,
UTC. A *bucket* is one count; it is named by what the limit is for and not by how much it allows, so that another number
goes on where the former one was.
"""

import math
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from actors.protocol import errors
from actors.protocol.errors import ProtocolError

Per: TypeAlias = Literal["principal", "group", "all"]
Each: TypeAlias = Literal["item", "server", "tool"]

SECOND: Final = 1_000_000
"""Everything is counted in microseconds, as whole numbers."""
UNITS: Final = {
    "s": SECOND,
    "min": 60 * SECOND,
    "h": 3600 * SECOND,
    "day": 86_400 * SECOND,
    "week": 7 * 86_400 * SECOND,
}
QUOTAS: Final = ("day", "week")
WEEK: Final = UNITS["week"]
MONDAY: Final = 4 * 86_400 * SECOND
"""The first one since 1970, from which weeks are counted."""
MOST: Final = 1_000_000
"""The largest number in a limit."""
BURST_MOST: Final = 100_000
"""The largest burst."""
LEAST_MICROS: Final = 100
"""Between two of a rate: 10,000 in a second."""

_WORDS: Final = {"s": "second", "min": "minute", "h": "hour", "day": "day", "week": "week"}
_TEXT: Final = re.compile(r"([0-9]{1,9}) ?/ ?([a-z]+)")


class Limit(Struct, frozen=True):
    """So many in a unit of time. `per`: who has a bucket of his own; `each`: what has one, of all that the limit
    names."""

    most: int
    unit: str
    burst: int = 0
    per: Per = "principal"
    each: Each = "item"

    @property
    def quota(self) -> bool:
        """Whether it is counted from the beginning of a window of the calendar."""
        return self.unit in QUOTAS

    @property
    def micros(self) -> int:
        """Microseconds between two, for a rate; of its window, for a quota."""
        return UNITS[self.unit] if self.quota else -(-UNITS[self.unit] // self.most)

    @property
    def at_once(self) -> int:
        """The most that one moment lets through."""
        return self.most if self.quota else self.burst or self.most

    def __str__(self) -> str:
        burst = f", {self.burst} at once" if self.burst else ""
        each = "" if self.each == "item" else f", each {self.each} by itself"
        whose = "for all together" if self.per == "all" else f"for each {self.per}"
        return f"{self.most}/{self.unit}{burst} {whose}{each}"


def amount(text: str) -> tuple[int, str]:
    """What `60/min` says. Raises ValueError with a sentence."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"must be a number per unit, as 60/min: units are {', '.join(UNITS)}")
    most, unit = int(found[1]), found[2]
    if not 1 <= most <= MOST:
        raise ValueError(f"must be 1 to {MOST:,}: to forbid something use `deny`")
    if unit not in QUOTAS and UNITS[unit] < most * LEAST_MICROS:
        raise ValueError(f"must be {SECOND // LEAST_MICROS:,} in a second at most")
    return most, unit


class Bucket(Struct, frozen=True, cache_hash=True):
    """One count, by its name. `quota`: `most` in each window of `micros`; otherwise a rate of one in `micros`, of
    which `most` may come at once."""

    key: str
    quota: bool
    most: int
    micros: int


class Due(NamedTuple):
    """What a call has to take from, and by which rule."""

    rule: str
    item: str
    limit: Limit
    bucket: Bucket


def due(rule: str, item: str, limit: Limit, whose: Iterable[object], of: str) -> Due:
    """`whose` and `of` tell the bucket from all others of this limit: who has it, and of what."""
    name = repr((item, limit.unit, limit.per, limit.each, [*whose], of))
    key = sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    return Due(rule, item, limit, Bucket(key, limit.quota, limit.at_once, limit.micros))


class Taken(Struct, frozen=True):
    """What became of a try to take from several buckets: all of them gave, or none. `refused`: the place of the one
    that has to be waited for longest, for so many `seconds` (infinite: it never gives so much at once). `free`: it was
    paid for before."""

    refused: int | None = None
    seconds: float = 0.0
    free: bool = False


ALL_GAVE: Final = Taken()


# What is said ----------------------------------------------------------------------------------------------------


def whole_seconds(seconds: float) -> int | None:
    """For `Retry-After`, which has no fractions (RFC 9110, section 10.2.3); None: it makes no sense to come again."""
    return max(1, math.ceil(seconds)) if seconds < math.inf else None


def reached(due: Due, seconds: float, what: str) -> str:
    """What a model, or whoever reads errors, is told."""
    limit = due.limit
    whose = {"principal": "", "group": ", which your group shares,", "all": ", which all share,"}[limit.per]
    said = f"the limit of {limit.most} per {_WORDS[limit.unit]} for {what}{whose} is reached"
    left = whole_seconds(seconds)
    if left is None:
        return f"{said}: not more than {limit.at_once} can come at once"
    return f"{said}; retry in {left} s"


UNKNOWN: Final = "the quota for this can't be checked at the moment; retry in {} s"
UNKNOWN_FOR: Final = 5
"""Seconds after which it is worth a try."""


def covered(due: Due, kind: str) -> str:
    """What the limit is for, without what it does not say to whom it stops."""
    if kind == "endpoint":
        return "requests here"
    if due.limit.each == "server":
        return "this server"
    exact = due.limit.each == "tool" or not any(mark in due.item for mark in "*?[")
    return f"this {kind}" if exact else f"this {kind} and others"


def refusal(due: Due, seconds: float | None, kind: str) -> ProtocolError:
    """The error of a request that is not a tool call; `seconds` is None where nobody can tell."""
    if seconds is None:
        text = UNKNOWN.format(UNKNOWN_FOR)
        return errors.internal(text, reason="quota_unknown", executed="no", retryAfter=UNKNOWN_FOR)
    text = reached(due, seconds, covered(due, kind))
    return errors.internal(text, reason="limited", executed="no", retryAfter=whole_seconds(seconds))


def at_endpoint(due: Due, seconds: float | None) -> ProtocolError:
    """The same where it is all that is answered to a POST: with a status of its own (RFC 6585, section 4)."""
    if seconds is None:
        text = UNKNOWN.format(UNKNOWN_FOR)
        return errors.waits("quota_unknown", text, UNKNOWN_FOR, reason="quota_unknown")
    text = reached(due, seconds, covered(due, "endpoint"))
    return errors.waits("limited", text, whole_seconds(seconds), reason="limited")


def in_words(due: Due, seconds: float | None, kind: str) -> str:
    """What the result of a tool call says, for the model that made it."""
    text = UNKNOWN.format(UNKNOWN_FOR) if seconds is None else reached(due, seconds, covered(due, kind))
    return f"{text[0].upper()}{text[1:]}."
