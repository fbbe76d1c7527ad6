"""What is wrong with a configuration, told so that it can be mended: file, line, field, and the nearest known key."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the root of the file."""

_SENTENCES: Mapping[str, str] = {
    "string_type": "must be text (in quotes)",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "path_type": "must be text (in quotes)",
    "missing": "is missing",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "finite_number": "must be a finite number",
    "string_too_short": "is empty",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}
"""Of pydantic's errors by their type, those whose own text speaks of Python."""

Lines: TypeAlias = Mapping[Path, int]
"""The line, from 1, of each value of a file."""


def dotted(path: Path) -> str:
    """The path as a person writes it: `mcpServers.files.args[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; case, `_` and `-` do not count."""
    from difflib import get_close_matches  # only where something is wrong

    folded = {_fold(candidate): candidate for candidate in known}
    matches = get_close_matches(_fold(word), list(folded), n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def sentence(kind: str, message: str) -> str:
    """What pydantic says of a value, in the words of a configuration."""
    said = _SENTENCES.get(kind, message)
    return said.removeprefix("Value error, ").replace("Input should be", "must be")


def line_of(lines: Lines, path: Path) -> int | None:
    """The line of the value, or of the nearest thing around it that is in the file."""
    while path not in lines:
        if not path:
            return None
        path = path[:-1]
    return lines[path]


def _fold(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `message` never holds the value itself: it may be a credential."""

    message: str
    path: Path = ()
    nearest: str | None = None
    file: str = ""
    line: int | None = None

    @property
    def field(self) -> str:
        return dotted(self.path)

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        hint = f'; did you mean "{self.nearest}"?' if self.nearest else ""
        return ": ".join(part for part in (place, self.field, self.message + hint) if part)


HIDDEN_FROM: Final = 4
"""Characters of a value from which on it may be a credential; shorter ones are parts of ordinary words."""


def without(values: Iterable[str], problem: Problem) -> Problem:
    """The problem as it may be told: with none of these values in it, which others may quote that it is from."""
    message = problem.message
    for value in sorted((value for value in values if len(value) >= HIDDEN_FROM), key=len, reverse=True):
        message = message.replace(value, "[hidden]")
    return problem if message == problem.message else replace(problem, message=message)


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds every reason found, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
