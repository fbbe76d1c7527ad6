"""The manifest and the tests belong together: no clause without a test, no test for a clause that is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.interaction.requirements import ELSEWHERE, REQUIREMENTS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(file: Path) -> Iterator[Function]:
    """The tests of a file."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, Function) and node.name.startswith("test_"):
            yield node


def claims(test: Function) -> Iterator[str]:
    """The clauses that a test says it proves."""
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement":
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant), f"{test.name}: clauses are named in place"
                yield str(argument.value)


@cache
def proofs() -> dict[str, list[str]]:
    """Clause → its tests."""
    found: dict[str, list[str]] = {}
    for file in sorted(HERE.rglob("test_*.py")):
        for test in functions(file):
            for clause in claims(test):
                found.setdefault(clause, []).append(f"{file.name}::{test.name}")
    for clause, name in ELSEWHERE.items():
        found.setdefault(clause, []).append(name)
    return found


def test_every_clause_has_a_test() -> None:
    unproved = [clause for name, clause in REQUIREMENTS.items() if not proofs().get(name)]
    assert not unproved, "\n".join(f"nothing proves: {clause.text} ({clause.source})" for clause in unproved)


def test_every_claim_is_a_clause() -> None:
    unknown = {clause: tests for clause, tests in proofs().items() if clause not in REQUIREMENTS}
    assert not unknown


def test_every_test_named_of_another_folder_is_there() -> None:
    places = [test.partition("::") for test in ELSEWHERE.values()]
    missing = [f"{file}::{name}" for file, _, name in places if name not in {f.name for f in functions(ROOT / file)}]
    assert not missing, "\n".join(missing)


def test_every_clause_says_what_and_where() -> None:
    for name, clause in REQUIREMENTS.items():
        assert name == name.lower()
        assert clause.text
        assert clause.source
