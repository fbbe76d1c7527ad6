"""The code and the documents of the project, as the tests of this folder read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("actors", "gateway", "stagedoor")
CODE = sorted(p.relative_to(ROOT) for top in OURS for p in (ROOT / top).rglob("*.py"))
TESTS = sorted(p.relative_to(ROOT) for p in (ROOT / "tests").rglob("*.py") if "node_modules" not in p.parts)
TEXTS = sorted(
    p.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "actors/**/*.md", "gateway/**/*.md", "examples/*", "Makefile", "scripts/*")
    for p in ROOT.glob(pattern)
    if p.is_file()
)


@cache
def text(path: Path) -> str:
    """A file below ROOT."""
    return (ROOT / path).read_text()


@cache
def tree(path: Path) -> ast.Module:
    """The same, parsed."""
    return ast.parse(text(path))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that the file imports, wherever it does."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def below(*folders: str) -> list[Path]:
    """The code in these folders, which must exist."""
    found = [path for path in CODE if path.as_posix().startswith(tuple(f"{folder}/" for folder in folders))]
    assert found, folders
    return found


def none(found: list[str]) -> None:
    """Fails with everything that was found, a line each."""
    assert not found, "\n".join(["found:", *found])
