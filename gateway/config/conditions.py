"""Conditions of rules in CEL, the Common Expression Language. The library is an optional part of the installation
(`stagedoor[policy]`), and loaded when a configuration has a condition."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, Final

from actors.protocol.policy import ConditionError, Variable

_BOUND: Final = re.compile(r"\.(?:all|exists|exists_one|existsOne|map|filter)\(\s*([A-Za-z_]\w*)\s*,")
"""Names that an expression binds itself, for the elements of a list."""
_QUOTED: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_CLAIMS: Final = re.compile(r"(?<![\w.])claims\b")
_MEMBER: Final = re.compile(r"""claims\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\])""")
_INSIDE: Final = re.compile(r"""(?:"([^"\\]+)"|'([^'\\]+)')\s+in\s+$""")
"""How an expression asks about a claim: `claims.x`, `claims["x"]`, `"x" in claims`."""
_NAMED: Final = re.compile(
    r"""\.\s*([A-Za-z_]\w*)\b(?!\s*\()|\[\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\]|(?:"([^"\\]+)"|'([^'\\]+)')\s+in\b"""
)
"""How it asks about any member: `.x`, `["x"]`, `"x" in`. A function is none: a tool may have an argument `Filter`."""
_KNOWN: Final = {variable.value for variable in Variable}
_SAMPLE: Final[Mapping[str, Any]] = {
    "principal": "",
    "groups": [],
    "scopes": [],
    "claims": {},
    "client": "",
    "server": "",
    "tool": "",
    "args": {},
    "annotations": {},
}
_WRONG: Final = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError)
"""What the library raises where an expression has no value."""


class CelCondition:
    """One expression, compiled. Implements `actors.protocol.policy.Condition`."""

    __slots__ = ("_run", "claims", "members", "text", "variables")

    def __init__(self, text: str) -> None:
        """Raises ValueError with a sentence for what is no condition."""
        try:
            cel = import_module("cel")
        except ImportError:
            raise ValueError('needs CEL, which is not installed: `pip install "stagedoor[policy]"`') from None
        program = cel.compile(text)  # ValueError, in which the place is marked
        used = set(program.variables()) - (set(_BOUND.findall(text)) - _KNOWN)
        unknown = sorted(used - _KNOWN)
        if unknown:
            names = ", ".join(variable.value for variable in Variable)
            raise ValueError(f'there is no variable "{unknown[0]}": there are {names}')
        self.text = text
        self.variables = frozenset(map(Variable, used))
        self.claims = frozenset(_claims(text)) if Variable.CLAIMS in self.variables else frozenset()
        self.members = frozenset(filter(None, chain.from_iterable(_NAMED.findall(text))))
        self._run = program.execute
        self._look_for_functions()
        if not used:
            self._look_whether_it_holds()

    def _look_for_functions(self) -> None:
        """A function that there is not is found out at the start, as far as the expression comes without arguments."""
        try:
            self._run(_SAMPLE)
        except RuntimeError as error:
            if str(error).startswith("Undefined"):
                raise ValueError(str(error)) from None
        except _WRONG:
            pass

    def _look_whether_it_holds(self) -> None:
        """What asks about nothing is the same for every call."""
        try:
            holds = self.holds({})
        except ConditionError as error:
            raise ValueError(str(error)) from None
        if not holds:
            raise ValueError("can never match: it is false whatever is asked")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """As in `Condition`."""
        try:
            value = self._run({variable.value: values[variable.value] for variable in self.variables})
        except _WRONG as error:
            raise ConditionError(str(error)) from error
        if not isinstance(value, bool):
            raise ConditionError("it is neither true nor false")
        return value

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """By its text: what the library has made of it can't be copied."""
        return partial(CelCondition), (self.text,)


def _claims(text: str) -> Iterator[str]:
    """The claims that an expression names: no others come with a request. Raises ValueError where it names none."""
    plain = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    for found in _CLAIMS.finditer(plain):
        named = _MEMBER.match(text, found.start()) or _INSIDE.search(text[: found.start()])
        if named is None:
            raise ValueError('has to name the claims that it asks about: claims.department, or claims["a.b"]')
        yield next(name for name in named.groups() if name)
