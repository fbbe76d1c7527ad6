"""Checks files by the rules of flake8-async: `async_rules.py OPTIONS FILES`, as its own command would.

That one finds out for each of its rules anew where everything stands in a file, which takes longer than the rules do;
here it is found out once. (No rule changes the file: mending is not asked for.) As a plugin of flake8 it would wait for
the checks of that too, which ruff has done.
"""

import gc
import sys
from collections.abc import Iterable

import flake8_async
from flake8_async.base import Error
from flake8_async.runner import Flake8AsyncRunner_cst
from libcst.metadata import MetadataWrapper


class OnePlace(Flake8AsyncRunner_cst):
    """All rules on the same tree."""

    def run(self) -> Iterable[Error]:
        tree = MetadataWrapper(self.module, unsafe_skip_copy=True)
        visitors = (*self.utility_visitors, *self.visitors)
        for visitor in visitors:
            tree.visit(visitor)
        yield from self.state.problems
        self.noqas = visitors[-1].noqas


if __name__ == "__main__":
    flake8_async.Flake8AsyncRunner_cst = OnePlace
    gc.disable()  # a tree of syntax is many objects, none of which is garbage before its file is done
    sys.exit(flake8_async.main())
