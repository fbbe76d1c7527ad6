"""Values made of lists, kept so that sessions which see the same lists share them."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

from actors.links.paging import Items

MEMO_SIZE = 512
"""Different views kept ready; a gateway has about as many as it has kinds of clients."""
MEMO_BYTES = 256 * 1024 * 1024
"""Of all values, about: a server with a long list that is another one each time must not fill the memory with old ones.
"""


@dataclass(slots=True)
class Memo:
    """Merged lists and tables by what they were made of, shared by all sessions of the process."""

    versions: "OrderedDict[bytes, int]" = field(default_factory=OrderedDict)
    values: "OrderedDict[tuple[object, ...], object]" = field(default_factory=OrderedDict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    sizes: dict[tuple[object, ...], int] = field(default_factory=dict)
    size: int = 0
    """Of all values."""

    def version(self, items: Items) -> int:
        """The same number for the same items, as long as they are remembered; never one number for two contents."""
        digest = sha256()
        for item in items:
            digest.update(b"%d," % len(item))
            digest.update(item)
        key = digest.digest()
        number = self.versions.get(key)
        if number is None:
            number = self.versions[key] = next(self.numbers)
            if len(self.versions) > 4 * MEMO_SIZE:
                self.versions.popitem(last=False)
        else:
            self.versions.move_to_end(key)
        return number

    def get(self, key: tuple[object, ...], make: Callable[[], object], of: Iterable[Items] = ()) -> object:
        """The value for the key, made once, of these lists. What was not used for longest makes room."""
        value = self.values.get(key)
        if value is not None:
            self.values.move_to_end(key)
            return value
        value = self.values[key] = make()
        self.sizes[key] = sum(len(item) for items in of for item in items)
        self.size += self.sizes[key]
        while len(self.values) > MEMO_SIZE or (self.size > MEMO_BYTES and len(self.values) > 1):
            oldest, _ = self.values.popitem(last=False)
            self.size -= self.sizes.pop(oldest)
        return value
