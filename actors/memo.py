"""Values made of lists, kept so that sessions which see the same lists share them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from actors.paging import Items

MEMO_SIZE = 512
"""Different views kept ready; a gateway has about as many as it has kinds of clients."""


@dataclass(slots=True)
class Memo:
    """Merged lists and tables by what they were made of, shared by all sessions of the process."""

    versions: dict[bytes, int] = field(default_factory=dict)
    values: "OrderedDict[tuple[object, ...], object]" = field(default_factory=OrderedDict)

    def version(self, items: Items) -> int:
        """The same number for the same items."""
        if len(self.versions) > 4 * MEMO_SIZE:
            self.versions.clear()
            self.values.clear()
        digest = sha256()
        for item in items:
            digest.update(b"%d," % len(item))
            digest.update(item)
        return self.versions.setdefault(digest.digest(), len(self.versions) + 1)

    def get(self, key: tuple[object, ...], make: Callable[[], object]) -> object:
        """The value for the key, made once."""
        value = self.values.get(key)
        if value is None:
            value = self.values[key] = make()
            while len(self.values) > MEMO_SIZE:
                self.values.popitem(last=False)
        return value
