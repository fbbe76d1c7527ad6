"""What of a text its reader does not see, or takes for something else.

A model reads what people do not see: characters without a width, letters of the tags block, text that turns round. A
terminal obeys what it should show. And two names that look the same are one to whoever approves them.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

_HIDDEN: Final = (
    ("an escape sequence", "\x1b\x9b"),
    ("a control character", "\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9a\x9c-\x9f"),
    ("a character that turns the direction of text", "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"),
    (
        "a character without a width",
        "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb",
    ),
    ("a letter of the tags block, which nobody sees", "\U000e0000-\U000e007f"),
    ("a variation selector that nothing is varied by", "\U000e0100-\U000e01ef"),
    ("half of a character", "\ud800-\udfff"),
)
"""What it is, and the characters. Line breaks and tabs are text; so is U+FE0F, which makes a sign an emoji."""

_ANY: Final = re.compile(f"[{''.join(characters for _, characters in _HIDDEN)}]")
_EACH: Final = tuple((what, re.compile(f"[{characters}]")) for what, characters in _HIDDEN)
TELL_MAX: Final = 3
"""Places that are told of one text."""

_ALIKE: Final = str.maketrans(
    dict(
        zip(
            "аесорхуѕіјԁһԛԝвкмнтгпАВЕКМНОРСТХУѕІЈαοινκτρυχγΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
            "aecopxysijdhqwbkmhtrnABEKMHOPCTXYsIJaoivktpuxyABEZHIKMNOPTYX",
            strict=True,
        )
    )
    | {"0": "o", "1": "l", "|": "l"}
)
"""Letters that are drawn like Latin ones: of Cyrillic and Greek, and the digits that are. (The table of UTS 39 has some
thousand more.)"""


def hidden(text: str) -> list[str]:
    """What stands in a text unseen, each with its code and place; of many the first."""
    if text.isascii() and text.isprintable():
        return []
    found = []
    for match in _ANY.finditer(text):
        character = match.group()
        what = next(what for what, pattern in _EACH if pattern.match(character))
        found.append(f"{what} (U+{ord(character):04X} at {match.start()})")
        if len(found) == TELL_MAX:
            break
    return found


def hidden_within(value: Any, place: str = "") -> list[str]:
    """The same of all texts of a JSON value, names of members included, with where they stand."""
    found: list[str] = []
    left: list[tuple[str, Any]] = [(place, value)]
    while left and len(found) < TELL_MAX:
        at, one = left.pop()
        if isinstance(one, str):
            found += [f"{at}: {what}" if at else what for what in hidden(one)]
        elif isinstance(one, dict):
            found += [f"{at}: in a name: {what}" for name in one for what in hidden(name)]
            left += [(f"{at}.{shown(name)}" if at else shown(name), inner) for name, inner in reversed(one.items())]
        elif isinstance(one, list):
            left += [(f"{at}[{index}]", inner) for index, inner in reversed([*enumerate(one)])]
    return found[:TELL_MAX]


def shown(text: str) -> str:
    """The text with what nobody sees written out: safe for a terminal, a log and a diff."""
    return _ANY.sub(lambda match: f"\\u{{{ord(match.group()):X}}}", text)


def skeleton(name: str) -> str:
    """Equal for names that look the same."""
    plain = _ANY.sub("", unicodedata.normalize("NFKC", name)).translate(_ALIKE)
    folded = unicodedata.normalize("NFKC", plain.casefold()).translate(_ALIKE)
    return folded.replace("i", "l").replace("rn", "m")  # a capital I is a small l


def alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The names that can be taken for each other, together."""
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        groups.setdefault(skeleton(name), {})[name] = None
    return [tuple(group) for group in groups.values() if len(group) > 1]
