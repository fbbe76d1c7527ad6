"""Values made of lists, kept so that sessions which see the same lists share them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

from actors.links.paging import Items

MEMO_SIZE = 512
"""Different views kept ready; a gateway has about as many as it has kinds of clients."""


@dataclass(slots=True)
class Memo:
    """Merged lists and tables by what they were made of, shared by all sessions of the process."""

    versions: "OrderedDict[bytes, int]" = field(default_factory=OrderedDict)
    values: "OrderedDict[tuple[object, ...], object]" = field(default_factory=OrderedDict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

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

    def get(self, key: tuple[object, ...], make: Callable[[], object]) -> object:
        """The value for the key, made once."""
        value = self.values.get(key)
        if value is None:
            value = self.values[key] = make()
            if len(self.values) > MEMO_SIZE:
                self.values.popitem(last=False)
        else:
            self.values.move_to_end(key)
        return value
