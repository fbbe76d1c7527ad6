"""`${VAR}`, `${VAR:-default}` and `${env:VAR}` in the strings of a configuration, and `${file:PATH}` for what stands in
a file, such as a secret that is mounted; `$${` stands for a plain `${`.

So do the words that editors have: `${workspaceFolder}`, `${workspaceFolderBasename}`, `${userHome}`,
`${pathSeparator}`. And where Gemini CLI has `"$VAR"` as a whole value, it stands for that variable, if it is set.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from gateway.config.problems import Path, Problem

_REFERENCE = re.compile(r"\$(?P<escape>\$\{)|\$\{(?P<body>[^}]*)(?P<close>\}?)")
_BODY = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)


def _no_files(path: str) -> str:
    raise ValueError("can't be read here")


@dataclass(frozen=True, slots=True)
class _Known:
    """What references stand for. `read` gets the content of a file; ValueError says why there is none."""

    environ: Mapping[str, str]
    words: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str], str] = _no_files
    given: set[str] = field(default_factory=set)
    """What came from the environment and from files, line by line, as it may be quoted; but for places of files, which
    are no credentials and help to find what is wrong."""

    def came(self, value: str) -> None:
        if not (value.startswith(os.sep) and os.path.exists(value)):
            self.given.update((value, *value.splitlines()))


_BARE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


def editors_words(workspace: FilePath) -> dict[str, str]:
    """What editors put in the place of their own words; `workspace` is the folder that the file is about."""
    return {
        "workspaceFolder": str(workspace),
        "workspaceFolderBasename": workspace.name,
        "workspaceRoot": str(workspace),
        "userHome": str(FilePath.home()),
        "pathSeparator": os.sep,
        "/": os.sep,
    }


def expand(
    value: Any,
    environ: Mapping[str, str],
    words: Mapping[str, str] | None = None,
    read: Callable[[str], str] = _no_files,
    given: set[str] | None = None,
) -> tuple[Any, list[Problem]]:
    """The value with every string expanded, and what could not be. Keys stay as they are.

    As in a shell, the default stands in for a variable that is unset or empty. `words` are references that are no
    variables, `read` gets the content of a file. What came from the environment and from files is added to `given`.
    """
    problems: list[Problem] = []
    known = _Known(environ, words or {}, read, set() if given is None else given)
    return _expand(value, (), known, problems), problems


def _expand(value: Any, path: Path, known: _Known, problems: list[Problem]) -> Any:
    if isinstance(value, str):
        return _text(value, path, known, problems)
    if isinstance(value, list):
        return [_expand(item, (*path, index), known, problems) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _expand(item, (*path, key), known, problems) for key, item in value.items()}
    return value


def _text(text: str, path: Path, known: _Known, problems: list[Problem]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if not match["close"]:
            problems.append(Problem('"${" is not closed (a plain "${" is written "$${")', path))
            return match[0]
        value, complaint = _lookup(match["body"], known)
        if complaint:
            problems.append(Problem(complaint, path))
        elif match["body"] not in known.words:
            known.came(value)
        return value

    if (bare := _BARE.fullmatch(text)) is not None and (value := known.environ.get(bare[1])):
        known.came(value)
        return value
    return _REFERENCE.sub(replace, text)


def _lookup(body: str, known: _Known) -> tuple[str, str | None]:
    word = known.words.get(body)
    if word is not None:
        return word, None
    environ = known.environ
    if body.startswith("input:"):
        return "", f"${{{body}}} is asked for by an editor, which is not here: write ${{VAR}} and set the variable"
    if body.startswith("file:"):
        path = body.removeprefix("file:")
        try:
            return known.read(path), None
        except ValueError as error:
            return "", f"the file {path} {error}"
    match = _BODY.fullmatch(body)
    if match is None:
        forms = "${VAR}, ${VAR:-default}, ${env:VAR}, ${file:PATH}"
        return "", f'${{{body}}} is none of {forms} (a plain "${{" is written "$${{")'
    value, default = environ.get(match["name"]), match["default"]
    if value or (value is not None and default is None):
        return value, None
    if default is None:
        return "", f"the variable {match['name']} is not set and there is no default"
    return default, None
