"""Names of members that some readers take for others.

JSON tells capitals from small letters. The decoders of Go and of .NET do not, as many use them, and of `name` and
`Name` take whichever comes last. What was judged by the one must not be done by the other, so that of what looks like a
member that MCP has there may be that one spelling alone.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from actors.protocol.errors import Malformed, invalid_params

SHOWN: Final = 100
"""Characters of a name in an error."""
VALUES_MAX: Final = 16_384
"""Values in arguments that conditions ask about: each condition is given all of them, and everybody waits meanwhile."""


def folded(name: str) -> str:
    """The same for names that differ in capitals alone, letter by letter: also `ſ` is an `s` to them, and the sign of
    the Kelvin a `k`."""
    if name.isascii():
        return name.lower()
    return "".join(small if len(small := letter.casefold()) == 1 else letter for letter in name)


class Members(frozenset[str]):
    """Names that stand for what is looked at here."""

    by_folded: Mapping[str, str]

    def __new__(cls, names: Iterable[str]) -> "Members":
        """Of members that MCP has."""
        found = super().__new__(cls, names)
        found.by_folded = {folded(name): name for name in found}
        return found

    def other(self, name: str) -> str | None:
        """Which of these this one could be taken for, though it is another one."""
        return None if name in self else self.by_folded.get(folded(name))


PARAMS: Final = Members(
    (
        "name",
        "uri",
        "arguments",
        "ref",
        "argument",
        "context",
        "cursor",
        "task",
        "taskId",
        "notifications",
        "requestState",
        "inputResponses",
        "_meta",
    )
)
"""Of params that say what is asked for."""
REF: Final = Members(("type", "name", "uri"))
"""Of what arguments are completed for."""


def check(present: Collection[str], known: Members = PARAMS) -> None:
    """Raises Malformed for a name that could be taken for one of these."""
    if known.issuperset(present):
        return  # nearly always
    for name in present:
        other = known.other(name)
        if other is not None:
            raise Malformed(invalid_params(f"{name[:SHOWN]!r} could be taken for {other!r}"))


def check_within(value: Any, known: Members) -> None:
    """Raises Malformed for a name, however deep, that could be taken for one of these, or for another one in its
    object; and for more than VALUES_MAX of them."""
    todo, seen = [value], 1
    while todo:
        one = todo.pop()
        if not isinstance(one, list | dict):
            continue
        seen += len(one)
        if seen > VALUES_MAX:
            raise Malformed(invalid_params(f"more than {VALUES_MAX} values in the arguments"))
        if isinstance(one, list):
            todo += one
        else:
            check(one, known)
            if len({folded(name) for name in one}) < len(one):
                raise Malformed(invalid_params("two members of the arguments differ in capitals alone"))
            todo += one.values()
