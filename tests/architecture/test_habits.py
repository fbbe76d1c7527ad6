"""Habits that a reader relies on: one broad `except`, shields with a deadline, modules that say what they are."""

from __future__ import annotations

import ast
import re

from tests.architecture.source import CODE, ROOT, TEXTS, none, text, tree


def test_a_shield_has_its_deadline_on_the_same_line() -> None:
    limited = re.compile(r"(move_on_after|fail_after|move_on_at)\(")
    shields = [(p, n, s) for p in CODE for n, s in enumerate(text(p).splitlines(), 1) if "shield=True" in s]
    assert shields
    none([f"{path}:{number}: {line.strip()}" for path, number, line in shields if not limited.search(line)])


def broad(handler: ast.ExceptHandler) -> bool:
    names = [n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)] if handler.type is not None else []
    return handler.type is None or bool({"Exception", "BaseException"} & set(names))


def test_nothing_but_the_crash_boundary_which_needs_no_except_catches_broadly() -> None:
    handlers = [(path, node) for path in CODE for node in ast.walk(tree(path)) if isinstance(node, ast.ExceptHandler)]
    assert len(handlers) > 100
    none([f"{path}:{node.lineno}" for path, node in handlers if broad(node)])


def test_nothing_is_left_for_later() -> None:
    none([f"{path}: {word}" for path in CODE for word in re.findall(r"\b(TODO|FIXME|XXX)\b", text(path))])


def test_a_module_says_what_it_is() -> None:
    said = [path for path in CODE if "__main__" not in path.name and text(path).strip()]
    none([str(path) for path in said if not ast.get_docstring(tree(path))])


def test_links_between_documents_lead_somewhere() -> None:
    links = [
        (path, target)
        for path in TEXTS
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text(path))
        if not re.match(r"[a-z]+:", target)
    ]
    assert links
    none([f"{path}: {target}" for path, target in links if not (ROOT / path.parent / target).exists()])
