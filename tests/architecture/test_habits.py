"""Habits that a reader relies on: one broad `except`, shields with a deadline, modules that say what they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(p.relative_to(ROOT) for top in ("actors", "gateway", "stagedoor") for p in (ROOT / top).rglob("*.py"))

TEXTS = sorted(
    p.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "actors/**/*.md", "gateway/**/*.md", "examples/*", "Makefile", "scripts/*")
    for p in ROOT.glob(pattern)
    if p.is_file()
)


@pytest.mark.parametrize("path", CODE, ids=str)
def test_a_shield_has_its_deadline_on_the_same_line(path: Path) -> None:
    for line in (ROOT / path).read_text().splitlines():
        if re.search(r"shield=True", line):
            assert re.search(r"(move_on_after|fail_after|move_on_at)\(", line), f"{path}: {line.strip()}"


def broad(handler: ast.ExceptHandler) -> bool:
    names = [n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)] if handler.type is not None else []
    return handler.type is None or bool({"Exception", "BaseException"} & set(names))


@pytest.mark.parametrize("path", [p for p in CODE if not p.as_posix().startswith("actors/runtime/")], ids=str)
def test_only_the_crash_boundary_catches_broadly(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text())
    found = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and broad(n)]
    assert not found, f"{path}: broad except in lines {found}"


@pytest.mark.parametrize("path", CODE, ids=str)
def test_nothing_is_left_for_later(path: Path) -> None:
    text = (ROOT / path).read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


@pytest.mark.parametrize("path", [p for p in CODE if "__main__" not in p.name], ids=str)
def test_a_module_says_what_it_is(path: Path) -> None:
    text = (ROOT / path).read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


@pytest.mark.parametrize("path", [p for p in TEXTS if p.suffix == ".md"], ids=str)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / path).read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (ROOT / path.parent / target).exists(), f"{path} links to {target}"
