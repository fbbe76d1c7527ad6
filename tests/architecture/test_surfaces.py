"""What users can say to the gateway, and where: every command, option and endpoint is documented, and nothing
documented is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click

from gateway.admin.pages import pages
from gateway.cli import cli
from gateway.http.routes import Route, route
from tests.architecture.source import ROOT, TEXTS, below, none, text, tree
from tests.architecture.test_documents import script

PAGES = [path for path in TEXTS if path.suffix == ".md" and path.name != "CHANGELOG.md"]
ENDPOINTS = Path("docs/endpoints.md")


def test_the_page_on_the_command_line_is_what_the_commands_say() -> None:
    cli_reference = script("cli_reference")
    assert cli_reference.DOCUMENT.read_text() == cli_reference.render(), "run scripts/cli_reference.py"


def said(path: Path) -> Iterator[list[str]]:
    """Commands that a document shows, as words: in a line, or in a block of a shell."""
    page = text(path)
    blocks = re.findall(r"^```(?:sh|shell|bash|console|text)?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))
    for line in (*lines, *inline):
        words = line.strip().removeprefix("$ ").split("#")[0].split()
        if words[:1] == ["stagedoor"] and "…" not in words[1:2]:
            yield words[1:]


def slips(words: list[str]) -> Iterator[str]:
    """What of a command does not exist."""
    command: click.Command = cli
    options = {"--help", "--version", "-h"}
    for word in words:
        if word in ("|", ">", "&&", ";", "2>"):
            return
        if word.startswith("-"):
            name = word.partition("=")[0].strip("[]")
            if name not in options and name != "--":
                yield f"{name} of stagedoor {' '.join(words)}"
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                if re.fullmatch(r"[a-z]+", word):
                    yield f"stagedoor {' '.join(words)}"
                return
            command = found
            options = options | {opt for one in command.params for opt in (*one.opts, *one.secondary_opts)}


def test_every_command_that_documents_show_can_be_given() -> None:
    none([f"{path}: {slip}" for path in PAGES for words in said(path) for slip in slips(words)])


def test_every_variable_of_the_environment_that_is_read_is_documented() -> None:
    read = {
        name
        for path in below("actors", "gateway", "stagedoor")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"\bSTAGEDOOR_[A-Z_]+\b", node.value)
    }
    documented = {name for path in PAGES for name in re.findall(r"\bSTAGEDOOR_[A-Z_]+\b", text(path))}
    none(sorted(read - documented))


def documented(listener: str) -> dict[str, set[str]]:
    """Paths and methods in the table of a listener."""
    section = text(ENDPOINTS).partition(f"\n## {listener} listener\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(/[^`]*)` \| ([A-Z, ]+) \|", section, re.MULTILINE)
    return {path: set(methods.split(", ")) for path, methods in rows}


def test_every_path_of_the_public_listener_is_documented_and_served() -> None:
    kinds = {path: route(path.replace("NAME", "files")) for path in documented("Public")}
    none([path for path, kind in kinds.items() if kind is None])
    assert {type(kind) for kind in kinds.values()} == set(get_args(Route))


async def _nothing(accept: str) -> tuple[bytes, str]:
    return b"", accept


def test_every_path_of_the_admin_listener_is_documented_and_served() -> None:
    app = pages(_nothing, dict, lambda *_: None, lambda told: (200, {}))  # type: ignore[arg-type]
    named = {"<name>": "HANDLE", "<what>": "WHAT"}
    served: dict[str, set[str]] = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<\w+>", lambda part: named[part[0]], rule.rule)
        served.setdefault(path, set()).update(set(rule.methods or ()) - {"HEAD", "OPTIONS"})
    probes = set(re.findall(r'"(/[a-z]+)": (?:livez|readyz)', text(Path("gateway/admin/app.py"))))
    assert probes
    assert documented("Admin") == {**served, **{path: {"GET"} for path in probes}}
    assert (ROOT / ENDPOINTS).is_file()
