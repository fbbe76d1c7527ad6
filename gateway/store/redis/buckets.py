"""`Buckets` in Redis: one function takes from all of them, or from none, by the clock of Redis.

All of them have one hash tag, so that a call which takes from several is one command in a Redis Cluster too.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from actors.ports import Done
from actors.protocol.limiting import ALL_GAVE, SECOND, WEEK, Bucket, Taken
from gateway.store.redis.links import Command
from gateway.store.redis.operations import Operation, Submits
from gateway.store.redis.scripts import SHA

_KINDS: Final = {False: "rate", True: "day"}


class RedisBuckets:
    """See `Buckets`."""

    def __init__(self, writer: Submits) -> None:
        self._writer = writer

    def take(self, buckets: Sequence[Bucket], cost: int, once: str, seconds: float, done: Done) -> Taken | None:
        """As in `Buckets`."""
        keys = [bucket_key(bucket.key) for bucket in buckets]
        if once:
            keys.append(f"sd:{{limits}}:once:{once}")
        said: list[str | int] = []
        for bucket in buckets:
            kind = "week" if bucket.quota and bucket.micros == WEEK else _KINDS[bucket.quota]
            said += (kind, bucket.most, bucket.micros)
        command: Command = ("EVALSHA", SHA["take"], len(keys), *keys, cost, round(seconds * 1000), *said)
        self._writer.submit(Operation("limits", command, done, _taken, waits=False, once=True))
        return None


def bucket_key(name: str) -> str:
    """The string of one bucket."""
    return f"sd:{{limits}}:{name}"


def _taken(reply: list[Any]) -> Taken:
    if len(reply) == 1:
        return ALL_GAVE
    place, micros = reply[1:]
    if place == 0:
        return Taken(free=True)
    return Taken(place - 1, micros / SECOND if micros >= 0 else math.inf)
