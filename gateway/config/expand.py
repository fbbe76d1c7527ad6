"""`${VAR}`, `${VAR:-default}` and `${env:VAR}` in the strings of a configuration; `$${` stands for a plain `${`."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.config.problems import Path, Problem

_REFERENCE = re.compile(r"\$(?P<escape>\$\{)|\$\{(?P<body>[^}]*)(?P<close>\}?)")
_BODY = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)


def expand(value: Any, environ: Mapping[str, str]) -> tuple[Any, list[Problem]]:
    """The value with every string expanded, and what could not be. Keys stay as they are.

    As in a shell, the default stands in for a variable that is unset or empty.
    """
    problems: list[Problem] = []
    return _expand(value, (), environ, problems), problems


def _expand(value: Any, path: Path, environ: Mapping[str, str], problems: list[Problem]) -> Any:
    if isinstance(value, str):
        return _text(value, path, environ, problems)
    if isinstance(value, list):
        return [_expand(item, (*path, index), environ, problems) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _expand(item, (*path, key), environ, problems) for key, item in value.items()}
    return value


def _text(text: str, path: Path, environ: Mapping[str, str], problems: list[Problem]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if not match["close"]:
            problems.append(Problem('"${" is not closed (a plain "${" is written "$${")', path))
            return match[0]
        value, complaint = _lookup(match["body"], environ)
        if complaint:
            problems.append(Problem(complaint, path))
        return value

    return _REFERENCE.sub(replace, text)


def _lookup(body: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    if body.startswith("input:"):
        return "", f"${{{body}}} is asked for by an editor, which is not here: write ${{VAR}} and set the variable"
    match = _BODY.fullmatch(body)
    if match is None:
        return "", f'${{{body}}} is none of ${{VAR}}, ${{VAR:-default}}, ${{env:VAR}} (a plain "${{" is written "$${{")'
    value, default = environ.get(match["name"]), match["default"]
    if value or (value is not None and default is None):
        return value, None
    if default is None:
        return "", f"the variable {match['name']} is not set and there is no default"
    return default, None
