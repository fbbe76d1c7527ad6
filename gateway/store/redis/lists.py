"""`ListStore` in Redis: one hash, read once by the process that holds the store, and written by its writer."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.store.redis.errors import LinkDown
from gateway.store.redis.links import Link
from gateway.store.redis.operations import OVERHEAD, Operation, Submits

HASH: Final = "sd:lists"


class RedisLists:
    """See `ListStore`. What Redis has no room for, or is away for too long for, is lost."""

    def __init__(self, writer: Submits, values: Mapping[str, bytes]) -> None:
        self._writer = writer
        self._values = values

    def load(self) -> Mapping[str, bytes]:
        return self._values

    def put(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._writer.submit(Operation(HASH, ("HDEL", HASH, key), _ignore, when_full=True))
        else:
            size = OVERHEAD + len(value)
            self._writer.submit(Operation(HASH, ("HSET", HASH, key, value), _ignore, size=size, waits=False))


def read(link: Link) -> dict[str, bytes]:
    """All that is kept; nothing, if it can't be read."""
    try:
        (found,) = link.exchange([("HGETALL", HASH)])
    except LinkDown:
        return {}
    return {key.decode(): value for key, value in found.items()} if isinstance(found, dict) else {}


def _ignore(outcome: Any) -> None:
    """It is a hint."""
