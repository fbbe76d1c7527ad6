"""Habits that a reader relies on: one broad `except`, shields with a deadline, modules that say what they are."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.architecture.source import CODE, ROOT, TESTS, TEXTS, below, none, text, tree


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


OF_LIBRARIES = {
    "os._exit",  # public, whatever its name
    "_run._r",  # trio's order of tasks, which only its module gives away
    "self.scope._cancel_status",  # whether a scope of trio is entered
    "connection._sock",  # redis-py gives its socket, which the loop writes and reads, no public name
    "self.session._request_id",  # the SDK tells nobody the id of a request that is to be cancelled
}


def private(path: Path) -> list[str]:
    """What the file uses of other objects that is theirs alone: names with an underscore in front, but for those of its
    own classes and of what they inherit from."""
    if re.search(r"(?<!\bself)(?<!\bcls)\._(?!_)", text(path)) is None:
        return []  # most files: they need not be parsed
    own = {node.name for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)} | {"self", "cls", "super()"}
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
            used = ast.unparse(node)
            if ast.unparse(node.value) not in own and used not in OF_LIBRARIES:
                found.append(f"{path}:{node.lineno}: {used}")
    return found


def test_tests_look_through_public_faces() -> None:
    assert TESTS
    none([line for path in TESTS for line in private(path)])


FOR_OTHERS = {
    "CLUSTER_RIGHTS",  # what the page on Redis asks for, which a test gives to a real one
}


def defined(path: Path) -> list[str]:
    """The names that a module gives itself, but for what a decorator hands on."""
    names = []
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.decorator_list:
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("__")]


def test_what_a_module_defines_is_used() -> None:
    words = Counter(word for path in CODE for word in re.findall(r"\w+", text(path)))
    defines = [(path, name) for path in CODE for name in defined(path)]
    assert len(defines) > 2000
    none([f"{path}: {name}" for path, name in defines if words[name] == 1 and name not in FOR_OTHERS])


DATACLASSES = {
    "Deltas",  # with the record, which is one
    "Grant",  # compared without its term
    "Record",
    "Replica",
    "Shelved",  # shown without its value
    "StreamHead",  # compared without its opener
    "Tree",  # no value, but who is there
    "Unproven",  # compared without its reason
}


def test_what_actors_are_told_is_made_at_no_cost_to_a_start() -> None:
    """A frozen dataclass is compiled at each start, for as long as fifty Structs take; few need what it alone has."""
    rooms = [p for p in below("actors") if not {"protocol", "machines", "runtime"} & set(p.parts)]
    classes = [node for path in rooms for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    frozen = {node.name for node in classes for made in node.decorator_list if "frozen=True" in ast.unparse(made)}
    assert frozen == DATACLASSES


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
