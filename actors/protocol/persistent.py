"""A mapping that is a value, and whose changed copies cost the same however large it is."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

_MISSING = object()


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """Never changes; `having` and `without` give other ones.

    All copies share one dict, which the one that was used last has; any other knows in what it differs from the next
    (H. Baker, "Shallow binding makes functional arrays fast", 1991). A state machine only goes on with its last value,
    so that is a change in place, and an earlier value is still what it was for whoever looks. Not for threads.
    """

    __slots__ = ("_dict", "_key", "_next", "_value")

    def __init__(self, members: Mapping[K, V] | None = None) -> None:
        self._dict: dict[K, V] | None = dict(members) if members else {}
        self._next: PersistentMap[K, V] | None = None
        self._key: K | None = None
        self._value: object = None

    def having(self, key: K, value: V) -> "PersistentMap[K, V]":
        """With this member; one that was there keeps its place."""
        return self._changed(key, value)

    def without(self, key: K) -> "PersistentMap[K, V]":
        """Without this member, if it is there."""
        return self._changed(key, _MISSING)

    def _changed(self, key: K, value: object) -> "PersistentMap[K, V]":
        members = self._dict if self._dict is not None else self._taken()
        other: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        self._value = members.get(key, _MISSING)
        _set(members, key, value)
        other._dict, self._dict = members, None
        self._next, self._key = other, key
        return other

    def _taken(self) -> dict[K, V]:
        """The dict, brought back to what it is here from whoever has it."""
        path = [self]
        while (members := path[-1]._dict) is None:
            path.append(cast(PersistentMap[K, V], path[-1]._next))
        holder = path.pop()
        for older in reversed(path):
            key = cast(K, older._key)
            holder._next, holder._key, holder._value = older, key, members.get(key, _MISSING)
            _set(members, key, older._value)
            holder._dict, older._dict = None, members
            older._next, older._key, older._value = None, None, None
            holder = older
        return members

    def __getitem__(self, key: K) -> V:
        return (self._dict if self._dict is not None else self._taken())[key]

    def __contains__(self, key: object) -> bool:
        return key in (self._dict if self._dict is not None else self._taken())

    def __len__(self) -> int:
        return len(self._dict if self._dict is not None else self._taken())

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._dict if self._dict is not None else self._taken()))

    def items(self) -> ItemsView[K, V]:
        """As they are at this moment, whatever is made of the mapping meanwhile."""
        return dict(self._dict if self._dict is not None else self._taken()).items()

    def values(self) -> ValuesView[V]:
        """As they are at this moment, whatever is made of the mapping meanwhile."""
        return dict(self._dict if self._dict is not None else self._taken()).values()

    def __repr__(self) -> str:
        return repr(self._dict if self._dict is not None else self._taken())


def _set(members: dict[K, V], key: K, value: object) -> None:
    if value is _MISSING:
        members.pop(key, None)
    else:
        members[key] = cast(V, value)
