"""What docstrings say of parameters, in the styles of Google, of NumPy and of Sphinx."""

import re
from collections.abc import Collection, Iterator, Sequence
from textwrap import dedent
from typing import Final, NamedTuple

_GOOGLE: Final = re.compile(r"(Args|Arguments|Parameters|Params):\s*")
_UNDERLINE: Final = re.compile(r"-{3,}\s*")
_GOOGLE_ENTRY: Final = re.compile(r"(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_ENTRY: Final = re.compile(r"(\w+)\s*(?::.*)?()")
_SPHINX_ENTRY: Final = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")


class _Section(NamedTuple):
    """A section of these lines; the entries begin at `body`."""

    first: int
    body: int
    end: int
    entry: re.Pattern[str]


def split(doc: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The docstring without the section on parameters, and what that says of those with these names."""
    lines = doc.splitlines()
    for section in _sections(lines):
        found = _entries(dedent("\n".join(lines[section.body : section.end])).splitlines(), section.entry)
        told = {name: text for name, text in found.items() if name in names and text}
        if told:
            rest = "\n".join([*lines[: section.first], "", *lines[section.end :]])
            return re.sub(r"\n{3,}", "\n\n", rest).strip(), told
    return doc, {}


def _sections(lines: Sequence[str]) -> Iterator[_Section]:
    for at, line in enumerate(lines):
        if _GOOGLE.fullmatch(line):
            yield _Section(at, at + 1, _end(lines, at + 1), _GOOGLE_ENTRY)
        elif line.rstrip() == "Parameters" and at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]):
            following = (n - 1 for n in range(at + 3, len(lines)) if _UNDERLINE.fullmatch(lines[n]))
            yield _Section(at, at + 2, next(following, len(lines)), _NUMPY_ENTRY)
        elif line.startswith(":param"):
            yield _Section(at, at, _end(lines, at, (":param", ":type")), _SPHINX_ENTRY)


def _end(lines: Sequence[str], body: int, within: tuple[str, ...] = ()) -> int:
    """Of what is indented, or begins with one of these."""
    outside = (n for n in range(body, len(lines)) if lines[n][:1].strip() and not lines[n].startswith(within))
    return next(outside, len(lines))


def _entries(lines: Sequence[str], entry: re.Pattern[str]) -> dict[str, str]:
    told: dict[str, list[str]] = {}
    texts: list[str] = []
    for line in lines:
        if line[:1].strip():
            found = entry.fullmatch(line.rstrip())
            texts = told.setdefault(found[1], [found[2]]) if found else []
        else:
            texts.append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in told.items()}
