"""What keeps a list as its reader knows it while its definitions are the same.

Servers list the same things in another order, or write the members of a schema in another one (hash maps, parallel
registration). To a model's prompt cache each such list is a new one; to its reader it says nothing new.
"""

from collections import deque

import msgspec
from msgspec import Raw

from actors.protocol.aggregate import item_name
from actors.protocol.errors import BROKEN

Items = tuple[Raw, ...]

_decode = msgspec.json.Decoder().decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def steady(known: Items, fetched: Items, member: str) -> Items:
    """A list that was fetched, in the order in which it is known: what is new comes last, in the server's order.

    `member` names an item. An item that differs only in the order of its members or in white space stays as it is
    known. If nothing else differs, the answer is `known` itself.
    """
    if known == fetched:
        return known
    left: dict[str | None, deque[Raw]] = {}
    for item in fetched:
        left.setdefault(item_name(item, member), deque()).append(item)
    kept: list[Raw] = []
    taken: set[int] = set()
    for old in known:
        same = left.get(item_name(old, member))
        if same:
            new = same.popleft()
            taken.add(id(new))
            kept.append(old if same_definition(old, new) else new)
    items = (*kept, *(item for item in fetched if id(item) not in taken))
    return known if items == known else items


def same_definition(one: Raw, other: Raw) -> bool:
    """Whether two JSON texts have the same value, whatever the order of their members."""
    if one == other:
        return True
    try:
        return bool(_encode_sorted(_decode(one)) == _encode_sorted(_decode(other)))
    except BROKEN:
        return False
