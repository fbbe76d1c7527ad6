"""Checks files by the rules of flake8-async: `async_rules.py OPTIONS FILES`, as its own command would.

That one goes through the whole tree of a file for each of its rules, and finds out each time anew where everything
stands, which takes longer than the rules do. Here that is found out once, and a tree is made, and gone through, only
for a rule that has a word to look at in it. (No rule changes the file: mending is not asked for.) As a plugin of flake8
it would wait for the checks of that too, which ruff has done.
"""

import gc
import re
import sys
from collections.abc import Iterable

import flake8_async
from flake8_async.base import Error
from flake8_async.runner import Flake8AsyncRunner_cst
from libcst.metadata import MetadataWrapper

parsed = flake8_async.cst_parse_module_native

ABOUT = {
    "Visitor101": r"\byield\b",  # in the body of a scope or a nursery
    "Visitor91X": r"\b(fail_after|fail_at|move_on_after|move_on_at|CancelScope)\b",  # ASYNC100 only: the rest is off
    "NoqaHandler": r"noqa",
}
"""Visitors of whole trees by name, and what a file has in it if they can find something there."""


class OnePlace(Flake8AsyncRunner_cst):
    """All rules on the same tree. What it gets as the module is the source of one."""

    def run(self) -> Iterable[Error]:
        source = self.module
        rules = [visitor for visitor in self.visitors if concerned(visitor, source)]
        utilities = [visitor for visitor in self.utility_visitors if concerned(visitor, source)]
        if rules or "noqa" in source:
            tree = MetadataWrapper(parsed(source), unsafe_skip_copy=True)
            for visitor in (*utilities, *rules):
                tree.visit(visitor)
        yield from self.state.problems
        self.noqas = self.state.noqas


def concerned(visitor: object, source: str) -> bool:
    """Whether there is something in a file for a visitor; one that is not known here goes through every file."""
    return re.search(ABOUT.get(type(visitor).__name__, ""), source) is not None


if __name__ == "__main__":
    flake8_async.Flake8AsyncRunner_cst = OnePlace
    flake8_async.cst_parse_module_native = str
    gc.disable()  # a tree of syntax is many objects, none of which is garbage before its file is done
    sys.exit(flake8_async.main())
