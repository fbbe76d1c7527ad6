"""A mapping that is a value, and whose changed copies cost the same however large it is."""

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """Never changes; `having` and `without` give other ones.

    For tables without a constant bound: what is in flight on a connection that many share. (To copy a dict of up to 64
    members is as cheap; 1000 cost ten times as much.) The newest value has the dict, any earlier one knows in what it
    differs from the next (H. Baker, "Shallow binding makes functional arrays fast", 1991). A state machine only goes on
    with its last value, so that is a change in place; whoever looks at an earlier one pays for a copy, and changes
    nothing by that.
    """

    __slots__ = ("_dict", "_key", "_next", "_value", "get")

    get: Callable[..., V | None]  # type: ignore[assignment]
    """As of a dict: the newest value has the method of its dict itself, and an earlier one none (`__getattr__`)."""

    def __init__(self, members: Mapping[K, V] | None = None) -> None:
        self._dict: dict[K, V] | None = dict(members) if members else {}
        self._next: PersistentMap[K, V] | None = None
        self._key: Any = None
        self._value: Any = None
        self.get = self._dict.get

    def having(self, key: K, value: V) -> "PersistentMap[K, V]":
        """With this member; one that was there keeps its place."""
        members = self._dict
        if not members:  # an earlier value, or an empty one, which many may share
            return PersistentMap({**self._copied(), key: value} if members is None else {key: value})
        other: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        self._dict, self._next, self._key, self._value = None, other, key, members.get(key, _MISSING)
        members[key] = value
        other._dict, other.get = members, self.get
        del self.get
        return other

    def without(self, key: K) -> "PersistentMap[K, V]":
        """Without this member, if it is there."""
        members = self._dict
        if members is None:
            return PersistentMap({k: v for k, v in self._copied().items() if k != key})
        if key not in members:
            return self
        if len(members) == 1:
            return EMPTY_MAP
        other: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        self._dict, self._next, self._key, self._value = None, other, key, members.pop(key)
        other._dict, other.get = members, self.get
        del self.get
        return other

    def _copied(self) -> dict[K, V]:
        """What an earlier value holds: the newest one's members, with every change since undone."""
        changes, newest = [self], self._next
        while newest is not None and newest._dict is None:
            changes.append(newest)
            newest = newest._next
        assert newest is not None
        assert newest._dict is not None
        members = newest._dict.copy()
        for change in reversed(changes):
            if change._value is _MISSING:
                del members[change._key]
            else:
                members[change._key] = change._value
        return members

    def __getitem__(self, key: K) -> V:
        return (self._dict if self._dict is not None else self._copied())[key]

    def __getattr__(self, name: str) -> Any:
        if name != "get":
            raise AttributeError(name)
        return self._copied().get

    def __contains__(self, key: object) -> bool:
        return key in (self._dict if self._dict is not None else self._copied())

    def __len__(self) -> int:
        return len(self._dict if self._dict is not None else self._copied())

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._dict if self._dict is not None else self._copied()))

    def items(self) -> ItemsView[K, V]:
        """As they are at this moment, whatever is made of the mapping meanwhile."""
        return (self._dict.copy() if self._dict is not None else self._copied()).items()

    def values(self) -> ValuesView[V]:
        """As they are at this moment, whatever is made of the mapping meanwhile."""
        return (self._dict.copy() if self._dict is not None else self._copied()).values()

    def __repr__(self) -> str:
        return repr(self._dict if self._dict is not None else self._copied())


EMPTY_MAP: Final[PersistentMap[Any, Any]] = PersistentMap()
"""Most are empty most of the time."""
