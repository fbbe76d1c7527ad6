"""Tables that are empty nearly always, in objects that are many: all that are empty are one, which weighs nothing.

An attribute begins as `EMPTY_TABLE` and is filled by `put`. Where it was emptied it may become `table or EMPTY_TABLE`
again, for an emptied dict keeps its memory. Sets that are empty nearly always are frozen ones, which begin as
`EMPTY_SET`: each other empty one weighs 216 bytes.
"""

from typing import Any, Final, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _EmptyTable(dict[Any, Any]):
    """The table that all empty attributes share. It refuses to be filled: `put` makes another one."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the empty table of all can't be filled: `put` makes one that can")

    __setitem__ = __ior__ = setdefault = update = _refuse


EMPTY_TABLE: Final[dict[Any, Any]] = _EmptyTable()
EMPTY_SET: Final[frozenset[Any]] = frozenset()


def put(table: dict[K, V], key: K, value: V) -> dict[K, V]:
    """The table with this member: the same one, or a new one in the place of `EMPTY_TABLE`."""
    if table is EMPTY_TABLE:
        return {key: value}
    table[key] = value
    return table


def without(members: frozenset[K], member: K) -> frozenset[K]:
    """The set without this member; `EMPTY_SET` where it was the last."""
    return members - {member} or EMPTY_SET if member in members else members
