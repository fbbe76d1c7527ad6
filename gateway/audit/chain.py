"""Lines of the audit trail, chained by hashes, and the check of such a chain. Pure: time and keys come in.

A line is one JSON object. `id` names the chain, which each process has for itself, and counts its lines; `prev` is
the SHA-256 of the line before it in that chain. Whoever can write to the file could make a whole chain anew, so the
head is signed now and then, with a key that the file does not have.
"""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from actors.protocol.errors import BROKEN
from actors.protocol.trail import END, HEAD, LOST, START, RequestLine

FIRST: Final = "0" * 64
"""The `prev` of the first line of a chain."""
LONGEST: Final = 60_000
"""Bytes of a line: it has to fit into one datagram on its way to a collector."""
_ID = re.compile(r"([A-Za-z0-9_-]+)\.([0-9]{1,18})")
_BEGUN: Final = rb'\{"ts":"[0-9T:.Z-]*","id":"([A-Za-z0-9_-]+)\.([0-9]{1,18})","prev":"([0-9a-f]{64})"'
"""How a line begins; behind that it says what has happened."""
_WITHIN: Final = ('{"ts":"', "[0-9T:.Z-]*", '","id":"', "[A-Za-z0-9_-]*", r"\.?", "[0-9]*", '","prev":"', "[0-9a-f]*")
"""The parts of that: texts, and patterns."""
_SEPARATOR: Final = b"\xe2\x80"
_LINE_SEPARATOR: Final = (b"\xe2\x80\xa8", b"\\u2028")
_PARAGRAPH_SEPARATOR: Final = (b"\xe2\x80\xa9", b"\\u2029")
"""What some readers take for the end of a line, though JSON allows it in a text; the first bytes of both."""
_encode: Final = msgspec.json.Encoder().encode

Values: TypeAlias = Mapping[str, Any] | RequestLine
"""What a line says, by its members."""


def signing_keys(keys: Sequence[bytes]) -> tuple[bytes, ...]:
    """The keys that sign heads, of those that seal: the first signs, any of them verifies."""
    return tuple(hashlib.sha256(b"stagedoor audit\0" + key).digest() for key in keys)


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 has them, in UTC, to the millisecond."""
    second, micros = divmod(round(seconds * 1e6), 1_000_000)
    return f"{_second(second)}.{micros // 1000:03}Z"


@lru_cache(16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Chain:
    """The lines of one process. `name` is random; `key` signs heads."""

    def __init__(self, name: str, key: bytes) -> None:
        self.name = name
        self.lines = 0
        self._key = key
        self._prev = FIRST

    def line(self, event: str, at: float, values: Values) -> bytes:
        """The next line, without its end."""
        self.lines += 1
        # What the chain says itself has nothing in it that JSON would escape.
        own = f'{{"ts":"{timestamp(at)}","id":"{self.name}.{self.lines}","prev":"{self._prev}","event":"{event}"'
        try:
            said = _encode(values)
        except (TypeError, ValueError, RecursionError) as error:  # half a surrogate pair in a foreign name, for one
            said = _encode({"unwritable": type(error).__name__})
        if _SEPARATOR in said:
            said = said.replace(*_LINE_SEPARATOR).replace(*_PARAGRAPH_SEPARATOR)
        if len(own) + len(said) > LONGEST:
            said = _encode({"unwritable": f"{len(own) + len(said)} bytes"})
        raw = own.encode() + (b"," + said[1:] if values else b"}")
        self._prev = hashlib.sha256(raw).hexdigest()
        return raw

    def head(self, at: float, event: str = HEAD) -> bytes:
        """A line that signs all lines up to here."""
        return self.line(event, at, {"mac": _mac(self._key, self.name, self.lines, self._prev)})


def _mac(key: bytes, name: str, lines: int, prev: str) -> str:
    return hmac.new(key, f"{name}.{lines}.{prev}".encode(), hashlib.sha256).hexdigest()


@dataclass(slots=True)
class Found:
    """What the check of one chain found. `signed` is the last line that a signature vouches for."""

    name: str
    first: int
    lines: int = 0
    signed: int = 0
    ended: bool = False
    lost: int = 0
    events: Counter[str] = field(default_factory=Counter)
    """How many lines of each event."""
    problems: list[str] = field(default_factory=list)
    _last: int = 0
    _hash: str = ""


@dataclass(slots=True)
class Verdict:
    """What the check of some files found. `foreign` are lines that belong to no chain: somebody else has written them.
    `torn` are beginnings of lines: what a full disk has left of one, which then stands whole behind that, or is the
    next one of a chain that goes no further."""

    chains: dict[str, Found] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing was changed, left out or put in, as far as signatures go."""
        return not self.foreign and not any(found.problems for found in self.chains.values())


def verify(lines: Iterable[tuple[str, bytes]], keys: Sequence[bytes] = (), *, partial: bool = False) -> Verdict:
    """Checks lines in the order in which they were written, each with the words that say where it stands. Without
    `keys` (`signing_keys`) signatures are not looked at, and a chain that was made anew passes. `partial`: what comes
    first of a chain may be missing, since it is in an earlier file."""
    verdict = Verdict()
    begun: dict[tuple[str, int], list[_Begun]] = {}
    """Beginnings of lines that do not stand whole behind them yet."""
    for place, raw in lines:
        entry = _read(raw)
        if entry is not None:
            for one in begun.pop((_name(entry[0]), entry[1]), ()):
                (verdict.torn if raw.startswith(one.raw) else verdict.foreign).append(one.place)
            _follow(verdict, place, raw, *entry, keys, partial)
        elif (match := re.match(_BEGUN, raw)) is not None and not _is_json(raw):
            one = _Begun(place, raw, match[1].decode(), int(match[2]), match[3].decode())
            begun.setdefault((one.chain, one.number), []).append(one)
        else:
            (verdict.torn if _unsaid().fullmatch(raw) else verdict.foreign).append(place)
    for one in chain.from_iterable(begun.values()):
        (verdict.torn if _is_next(verdict, one, partial) else verdict.foreign).append(one.place)
    return verdict


class _Entry(msgspec.Struct):
    id: str
    prev: str
    event: str
    mac: str = ""
    count: int = 0


_DECODER = msgspec.json.Decoder(_Entry)


def _read(raw: bytes) -> "tuple[_Entry, int] | None":
    try:
        entry = _DECODER.decode(raw)
    except BROKEN:
        return None
    match = _ID.fullmatch(entry.id)
    return (entry, int(match[2])) if match is not None else None


class _Begun(msgspec.Struct, frozen=True):
    """The beginning of a line."""

    place: str
    raw: bytes
    chain: str
    number: int
    prev: str


@cache
def _unsaid() -> re.Pattern[bytes]:
    """Matches whatever a line may begin with that says nothing yet."""
    whole = ""
    for text in reversed(_WITHIN):
        for part in [text] if text.endswith(("*", "?")) else [re.escape(one) for one in reversed(text)]:
            whole = f"(?:{part}{whole})?"
    return re.compile(whole.encode())


def _is_json(raw: bytes) -> bool:
    """What is JSON begins no other."""
    try:
        msgspec.json.decode(raw)
    except BROKEN:
        return False
    return True


def _is_next(verdict: Verdict, begun: _Begun, partial: bool) -> bool:
    """Whether this would be the next line of its chain, whose process could not write it any more."""
    found = verdict.chains.get(begun.chain)
    if found is None:
        return begun.number == 1 or partial
    return not found.ended and (begun.number, begun.prev) == (found._last + 1, found._hash)


def _name(entry: _Entry) -> str:
    """Of its chain."""
    return entry.id.rpartition(".")[0]


def _follow(
    verdict: Verdict, place: str, raw: bytes, entry: "_Entry", number: int, keys: Sequence[bytes], partial: bool
) -> None:
    name = _name(entry)
    found = verdict.chains.get(name)
    if found is None:
        found = verdict.chains[name] = Found(name, number, _last=number - 1, _hash=entry.prev)
        opening = number == 1 and entry.prev == FIRST and entry.event == START
        if not opening and not (partial and number > 1 and entry.prev != FIRST):
            found.problems.append(f"{place}: line {number} can't be the first of its chain")
    if found.ended:
        found.problems.append(f"{place}: stands behind the end of its chain")
    if number != found._last + 1:
        found.problems.append(f"{place}: is line {number} of its chain, behind line {found._last}")
    elif entry.prev != found._hash:
        found.problems.append(f"{place}: does not follow line {found._last}, or that one was changed")
    if entry.event in (HEAD, END):
        _signature(found, place, entry, number, keys)
    found.ended = entry.event == END
    found.lost += entry.count if entry.event == LOST else 0
    found.lines += 1
    found.events[entry.event] += 1
    found._last, found._hash = number, hashlib.sha256(raw).hexdigest()


def _signature(found: Found, place: str, entry: _Entry, number: int, keys: Sequence[bytes]) -> None:
    if not keys:
        return
    expected = [_mac(key, found.name, number - 1, entry.prev) for key in keys]
    if any(hmac.compare_digest(mac.encode(), entry.mac.encode()) for mac in expected):
        found.signed = number
    else:
        found.problems.append(f"{place}: is not signed by a key of this configuration")


__all__ = ["END", "FIRST", "HEAD", "LOST", "START", "Chain", "Found", "Verdict", "signing_keys", "timestamp", "verify"]
