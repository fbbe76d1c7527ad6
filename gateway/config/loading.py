"""Reads a configuration file into settings, or says everything that is wrong with it at once."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from gateway.config.build import Builder, Resolve
from gateway.config.document import Document, read
from gateway.config.expand import editors_words, expand
from gateway.config.foreign import SECTIONS, adapt, workspace
from gateway.config.models import File
from gateway.config.problems import ConfigError, Path, Problem, nearest, sentence, without
from gateway.config.references import import_object
from gateway.config.settings import Settings
from gateway.config.snapshot import Reading, Snapshot, text_of


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and the file as it was written. `notes` say what of it has no meaning here."""

    settings: Settings
    document: Document
    notes: tuple[Problem, ...] = ()


def load(file: FilePath, environ: Mapping[str, str] | None = None, resolve: Resolve = import_object) -> Loaded:
    """Reads one file. ConfigError holds every problem found, each with its place.

    `resolve` turns a `native` reference into the server object; the environment is the process's own by default.
    """
    reading, text = Reading(), text_of(file)
    loaded = _loaded(file, text, reading, environ, resolve)
    source = Snapshot(str(file), text, reading.secrets, reading.locks)
    return replace(loaded, settings=replace(loaded.settings, source=source))


def load_unpinned(file: FilePath, environ: Mapping[str, str] | None = None) -> Loaded:
    """The same, whatever stands in its lock file, and even if there is none."""
    return _loaded(file, text_of(file), Reading(), environ, import_object, pinned=False)


def load_snapshot(snapshot: Snapshot, environ: Mapping[str, str] | None = None) -> Loaded:
    """The same as it was at that moment."""
    loaded = _loaded(FilePath(snapshot.file), snapshot.text, snapshot, environ, import_object)
    return replace(loaded, settings=replace(loaded.settings, source=snapshot))


def _loaded(
    file: FilePath,
    text: str,
    files: Reading | Snapshot,
    environ: Mapping[str, str] | None,
    resolve: Resolve,
    *,
    pinned: bool = True,
) -> Loaded:
    document = read(file, text)
    notes: list[Problem] = []

    def content(path: str) -> str:
        return files.secret(str(document.folder / FilePath(path).expanduser()))

    environ = os.environ if environ is None else environ
    settings = settings_from(document, environ, resolve, notes, content, files.lock if pinned else None)
    return Loaded(settings, document, tuple(map(document.locate, notes)))


def settings_from(
    document: Document,
    environ: Mapping[str, str],
    resolve: Resolve = import_object,
    notes: list[Problem] | None = None,
    content: Callable[[str], str] | None = None,
    lock: Callable[[str], str | None] | None = None,
) -> Settings:
    """The settings that a document says; what has no meaning is added to `notes`. ConfigError as for `load`."""
    words = editors_words(workspace(document.folder))
    files = Reading().secret if content is None else content
    given: set[str] = set()
    data, problems = expand(_without_disabled(document.data), environ, words, files, given)
    adapted = adapt(data, document.folder)
    problems += adapted.problems
    file, wrong = _validated(_without_disabled(adapted.data), {problem.path for problem in problems})
    problems += wrong
    builder = Builder(file, document.folder, resolve, lock=lock)
    settings = builder.settings()
    told = {problem.path for problem in problems}
    problems += [problem for problem in builder.problems if problem.path not in told]
    if problems:
        raise _config_error(document, [without(given, adapted.placed(problem)) for problem in problems])
    if notes is not None:
        notes += adapted.notes
    return settings


ROUNDS = 16
"""How often a file is looked at without what was found wrong in it; what is wrong then in a server is not told."""


def _validated(data: dict[str, Any], told: set[Path]) -> tuple[File, list[Problem]]:
    """The file, and what is wrong with it: without that, so that the rest can be looked at too."""
    problems: list[Problem] = []
    lacking: set[Path] = set()
    """Servers that lack something only because it was wrong."""
    for _ in range(ROUNDS):
        try:
            return File.model_validate(data), problems
        except ValidationError as error:
            for detail, found in _problems_of(error):
                if found.path not in told and not (detail == "kind" and found.path in lacking):
                    problems.append(found)
                    told = told | {found.path}
                data = _without(data, found.path, lacking)
    return File(), problems


def _without(data: Any, path: Path, lacking: set[Path]) -> Any:
    """The data without the value at this place; a server that can't be read at all is one that is switched off."""
    if len(path) == 2 and path[0] in SECTIONS:
        return _cut(data, path, {"command": "", "disabled": True})
    lacking.add(path[:2])
    return _cut(data, path[:3], None)


def _cut(data: Any, path: Path, put: Any) -> Any:
    """A copy with `put` at this place; None: with nothing there."""
    if not path or not isinstance(data, dict) or path[0] not in data:
        return data
    first, rest = path[0], path[1:]
    if not rest or not isinstance(data[first], dict) or rest[0] not in data[first]:
        return {**{k: v for k, v in data.items() if k != first}, **({} if put is None else {first: put})}
    return {**data, first: _cut(data[first], rest, put)}


def _without_disabled(data: Mapping[str, Any]) -> dict[str, Any]:
    """The file with nothing but names and groups of the servers that are switched off: what such a server says, and
    the variables it refers to, may be missing or wrong."""
    return {
        **data,
        **{key: _reduced(data[key]) for key in SECTIONS if isinstance(data.get(key), dict)},
    }


def _reduced(servers: dict[str, Any]) -> dict[str, Any]:
    off = {name: one for name, one in servers.items() if isinstance(one, dict) and one.get("disabled") is True}
    return {
        **servers,
        **{name: {"command": "", "disabled": True, "groups": one.get("groups", [])} for name, one in off.items()},
    }


def _config_error(document: Document, problems: list[Problem]) -> ConfigError:
    located = [document.locate(problem) for problem in problems]
    return ConfigError(sorted(located, key=lambda problem: problem.line or 0))


def _problems_of(error: ValidationError) -> Iterator[tuple[str, Problem]]:
    """Each with its kind."""
    # include_input off: a wrong value may be a credential, and must not reach a terminal or a log.
    for detail in error.errors(include_url=False, include_input=False):
        path = tuple(detail["loc"])
        if detail["type"] == "extra_forbidden":
            yield detail["type"], Problem("unknown key", path, nearest(str(path[-1]), known_keys(path[:-1])))
        else:
            field = detail.get("ctx", {}).get("field")
            yield (
                detail["type"],
                Problem(sentence(detail["type"], detail["msg"]), path if field is None else (*path, field)),
            )


def known_keys(path: Path) -> list[str]:
    """The keys that a file may have at this place."""
    here: Any = File
    for step in path:
        fields: dict[str, FieldInfo] | None = getattr(here, "model_fields", None)
        if fields is None:
            here = get_args(here)[-1]  # the values of a dict
        else:
            here = next(field.annotation for field in fields.values() if field.alias == step)
        if type(None) in get_args(here) or hasattr(here, "__metadata__"):
            here = get_args(here)[0]
    return [field.alias or name for name, field in here.model_fields.items()]
