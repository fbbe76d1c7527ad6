"""Shell-style patterns over names and URIs: `*` is any text, `?` one character, `[a-z]` and `[!a-z]` one of a set.

Besides whether a text fits, it can be said of two patterns whether some text fits both, and whether one lets through
all that the other does: what a rule can ever match is known without a list of names.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

EXPRESSION: Final = re.compile(r"\{[^{}]*\}")
"""In a URI template: what is put in its place is not known yet (RFC 6570)."""
_MARKS: Final = re.compile("\ud800+")
TEMPLATE_MAX: Final = 512
"""Characters of a template that is compared with patterns: how long that takes grows with both, and any client, and any
server, can make one up."""

SHORTENED_MAX: Final = 16 * 1024
"""Characters of one that is looked through for its expressions."""


class Set(NamedTuple):
    """One character: of these ranges, or (`out`) of none of them."""

    ranges: tuple[tuple[str, str], ...]
    out: bool = False

    @property
    def some(self) -> bool:
        """Whether any character is one of them."""
        return self.out or bool(self.ranges)

    def has(self, character: str) -> bool:
        """Whether this character is one of them."""
        return any(low <= character <= high for low, high in self.ranges) is not self.out


ONE: Final = Set((), out=True)
"""`?`: any character."""
MANY: Final = None
"""`*`: any number of any characters."""

MARK: Final = "\ud800"
"""Stands for any text in a template, where no other half of a character can be."""
Token = Set | None


class Glob:
    """One pattern. `text` is how it is written, `read_as` what counts of it. `marked`, of a template: its text with a
    MARK for each `*`. What follows from these is found out when it is asked for first."""

    def __init__(self, text: str, read_as: str | None = None, marked: str | None = None) -> None:
        self.text = text
        self.read_as = text if read_as is None else read_as
        self.marked = marked

    def __repr__(self) -> str:
        return f"<Glob {self.text!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Glob):
            return NotImplemented
        return (self.text, self.read_as, self.marked) == (other.text, other.read_as, other.marked)

    def __hash__(self) -> int:
        return hash(self.text)

    def matches(self, text: str) -> bool:
        """Whether the whole of a text fits."""
        return self._regex.fullmatch(text) is not None

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """What it is made of; no two MANY stand together."""
        return _tokens(self.read_as) if self.marked is None else tuple(map(_token, self.marked))

    @cached_property
    def literal(self) -> bool:
        """Whether one text alone fits."""
        return all(token is not None and _single(token) for token in self.tokens)

    @cached_property
    def ends(self) -> tuple[tuple[Set, ...], tuple[Set, ...]] | None:
        """The characters before its first `*`, and those after its last one, backwards; None: it has none."""
        if self.marked is not None:
            parts = self.marked.split(MARK)
            return (_characters(parts[0]), _characters(parts[-1][::-1])) if len(parts) > 1 else None
        if MANY not in self.tokens:
            return None
        return tuple(_until_many(self.tokens)), tuple(_until_many(reversed(self.tokens)))

    @cached_property
    def dead(self) -> bool:
        """Whether nothing fits."""
        return self.marked is None and not all(token is MANY or token.some for token in self.tokens)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return _expression(self, _class)

    @cached_property
    def covering(self) -> re.Pattern[str]:
        """Of templates that it covers: only a `*` lets a MARK through."""
        return _expression(self, lambda token: f"(?!{MARK}){_class(token)}")


@lru_cache(4096)
def glob(text: str) -> Glob:
    """The pattern that is written so."""
    return Glob(text)


def _tokens(text: str) -> tuple[Token, ...]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "*":
            if not tokens or tokens[-1] is not MANY:
                tokens.append(MANY)
        elif character == "?":
            tokens.append(ONE)
        elif character == "[" and (end := _end_of_set(text, at)):
            tokens.append(_set(text[at:end]))
            at = end + 1
        else:
            tokens.append(_only(character))
    return tuple(tokens)


def _token(character: str) -> Token:
    return MANY if character == MARK else _only(character)


def _characters(text: str) -> tuple[Set, ...]:
    return tuple(map(_only, text))


def _until_many(tokens: Iterable[Token]) -> Iterator[Set]:
    for token in tokens:
        if token is None:
            return
        yield token


def shortened(text: str) -> str:
    """A URI template with nothing in its expressions: they may name any number of parameters."""
    return EXPRESSION.sub("{}", text) if len(text) <= SHORTENED_MAX else text


def template(text: str) -> Glob | None:
    """The texts that a (shortened) URI template can become, about: any text for each of its expressions. None: it is
    too long to be compared."""
    return _template(text) if len(text) <= TEMPLATE_MAX else None


@lru_cache(512)
def _template(text: str) -> Glob:
    marked = EXPRESSION.sub(MARK, text)
    return Glob(text, marked=_MARKS.sub(MARK, marked) if MARK * 2 in marked else marked)


def meets(one: Glob, other: Glob) -> bool:
    """Whether some text fits both."""
    if one.dead or other.dead:
        return False
    if one.ends is not None and other.ends is not None:
        # Between their ends all that either wants can follow upon all that the other does.
        return all(map(_share, one.ends[0], other.ends[0])) and all(map(_share, one.ends[1], other.ends[1]))
    if other.marked is not None and other.ends is None:
        return one.matches(other.marked)  # one text
    walk = _Walk(one, _share)
    for token in other.tokens:
        if not walk.reached or walk.takes_all:
            break
        if token is MANY:
            walk.any_text()
        else:
            walk.step(token)
    return walk.takes_all or walk.through


def covers(wide: Glob, narrow: Glob) -> bool:
    """Whether all that fits the narrow one fits the wide one, as far as that can be seen: each token of the narrow one
    is taken for a character that only a `*` or what holds all of it lets through."""
    if narrow.marked is not None:  # as many as any server may have on its list
        return wide.covering.fullmatch(narrow.marked) is not None
    walk = _Walk(wide, _within)
    for token in narrow.tokens:
        if not walk.reached or walk.takes_all:
            break
        walk.step(token)
    return walk.takes_all or walk.through


class _Walk:
    """Through one pattern by the tokens of another one. A bit of `reached` is a place before one of its tokens, or
    behind the last one, where one may be: so many steps at once, since whoever makes up templates has all others wait
    for what is found out here."""

    __slots__ = ("_dead", "_end", "_fits", "_many", "_masks", "_tokens", "reached")

    def __init__(self, through: Glob, fits: Callable[[Set, Set], bool]) -> None:
        """`fits`: whether a token of the other pattern may be one of this."""
        self._tokens = through.tokens
        self._fits = fits
        self._end = 1 << len(self._tokens)
        self._many = _bits(token is MANY for token in self._tokens)
        self._dead = _bits(token is not MANY and not token.some for token in self._tokens)
        self._masks: dict[Token, int] = {MANY: 0}
        self.reached = self._skipped(1)

    @property
    def through(self) -> bool:
        """Whether one may be at its end."""
        return bool(self.reached & self._end)

    @property
    def takes_all(self) -> bool:
        """Whether one may be before a `*` that is the last token: whatever comes, one comes through."""
        return bool(self.reached & self._many & self._end >> 1)

    def step(self, token: Token) -> None:
        """On by a token, which a `*` takes too."""
        mask = self._masks.get(token)
        if mask is None:
            own = ((one is not None and token is not None and self._fits(token, one)) for one in self._tokens)
            mask = self._masks[token] = _bits(own)
        self.reached = self._skipped((self.reached & mask) << 1 | self.reached & self._many)

    def any_text(self) -> None:
        """On by any text: to all places behind, up to a token that no character is."""
        reached = self.reached
        while (further := self._skipped(reached | (reached & ~self._dead & (self._end - 1)) << 1)) != reached:
            reached = further
        self.reached = reached

    def _skipped(self, reached: int) -> int:
        """A `*` may be no text. (No two of them stand together.)"""
        return reached | (reached & self._many) << 1


def _bits(each: Iterable[bool]) -> int:
    return sum(1 << at for at, one in enumerate(each) if one)


def _single(token: Set) -> bool:
    return not token.out and len(token.ranges) == 1 and token.ranges[0][0] == token.ranges[0][1]


def _share(a: Set, b: Set) -> bool:
    """Whether two sets have a character in common. Of two that leave something out, nearly all is left."""
    if a is b:
        return True  # nothing is compared that no character is of
    if a.out and b.out:
        return True
    if a.out:
        a, b = b, a
    if b.out:
        return any(not _filled(range, b.ranges) for range in a.ranges)
    return any(low <= high2 and low2 <= high for low, high in a.ranges for low2, high2 in b.ranges)


def _within(narrow: Set, wide: Set) -> bool:
    """Whether all of one set is in the other."""
    if wide.out:
        inside = Set(wide.ranges)
        return (
            all(_filled(range, narrow.ranges) for range in wide.ranges)
            if narrow.out
            else not wide.ranges or not _share(narrow, inside)
        )
    return not narrow.out and all(_filled(range, wide.ranges) for range in narrow.ranges)


def _filled(range: tuple[str, str], ranges: tuple[tuple[str, str], ...]) -> bool:
    """Whether these ranges hold every character of this one."""
    low, high = range
    at = ord(low)
    for start, end in sorted(ranges):
        if ord(start) <= at <= ord(end):
            at = ord(end) + 1
    return at > ord(high)


@lru_cache(1024)
def _only(character: str) -> Set:
    return Set(((character, character),))


def _end_of_set(text: str, at: int) -> int:
    """Where the set that begins here ends; 0: nowhere, so that it is a bracket like any other character."""
    first = at + 1 if text[at : at + 1] == "!" else at
    return max(0, text.find("]", first + 1))


def _set(inside: str) -> Set:
    out = inside.startswith("!")
    characters = inside[1:] if out else inside
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(characters):
        low = characters[at]
        if characters[at + 1 : at + 2] == "-" and at + 2 < len(characters):
            high = characters[at + 2]
            at += 3
        else:
            high = low
            at += 1
        if low <= high:
            ranges.append((low, high))
    return Set(tuple(ranges), out)


def _expression(pattern: Glob, class_of: Callable[[Set], str]) -> re.Pattern[str]:
    """Without a way back between two `*`: how long it takes grows with the text, and not with its square."""
    parts: list[list[str]] = [[]]
    for token in pattern.tokens:
        if token is None:
            parts.append([])
        else:
            parts[-1].append(class_of(token))
    joined = ["".join(part) for part in parts]
    if len(joined) == 1:
        return re.compile(joined[0], re.DOTALL)
    middle = "".join(f"(?>.*?{part})" for part in joined[1:-1])
    return re.compile(f"{joined[0]}{middle}.*{joined[-1]}", re.DOTALL)


def _class(token: Set) -> str:
    if token is ONE or (token.out and not token.ranges):
        return "."
    if _single(token):
        return re.escape(token.ranges[0][0])
    if not token.ranges:
        return r"(?!)"
    inside = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in token.ranges)
    return f"[{'^' if token.out else ''}{inside}]"
