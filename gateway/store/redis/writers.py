"""The writers of a store: one for each primary, so that one which is away holds up nothing that is written to others.

Which writer has a slot of a Redis Cluster is settled when the store is opened: when slots move later a session's
operations keep their writer, and with it their order. (Then a writer may serve more than one primary.)
"""

from collections.abc import Callable
from itertools import count
from typing import Final

from actors.ports import Failed
from gateway.store.redis.links import key_of
from gateway.store.redis.operations import Operation
from gateway.store.redis.slots import Slots
from gateway.store.redis.writer import State, Writer

MOST: Final = 16
"""Writers, each of which is a task and a connection; in a larger cluster some primaries share one."""

ROOM: Final = 8 * 1024 * 1024
"""Bytes that may wait for any of several writers, however many there are: twice the largest message."""


class Shards:
    """Which primary has a key. `slots`: as they are shared out; None: there is one."""

    def __init__(self, slots: Slots | None = None) -> None:
        self._slots = slots
        self._numbers = {address: n % MOST for n, address in enumerate(slots.primaries)} if slots else {}
        self.count = max(self._numbers.values(), default=0) + 1

    @property
    def fixed(self) -> bool:
        """Whether there is one primary whatever happens."""
        return self._slots is None

    def of(self, key: object) -> int:
        """Its number."""
        primary = self._slots.primary_of(key) if self._slots is not None else None
        return self._numbers[primary] if primary is not None else 0

    def place(self, shard: int) -> str:
        """A part of a key that makes it one of this primary's."""
        return next(part for n in count() if self.of(part := f"{{{n}}}") == shard)


class Writers:
    """All writers as one. `make(probe, room)` makes a writer that asks by the key `probe` whether its primary is back,
    and lets so many bytes wait."""

    def __init__(self, shards: Shards, queue_bytes: int, make: Callable[[str, int], Writer]) -> None:
        self.shards = shards
        room = queue_bytes if shards.count == 1 else max(ROOM, queue_bytes // shards.count)
        self.all = [make(f"sd:probe:{shards.place(shard)}", room) for shard in range(shards.count)]

    def submit(self, operation: Operation) -> None:
        """Gives an operation to the writer of its primary (see `Writer`). What goes to one primary keeps its order."""
        self._of(operation).submit(operation)

    def submit_after(self, first: Operation, operation: Operation) -> None:
        """The second is executed after the first, and not at all if that fails."""
        if not self.shards.fixed:
            # One writer keeps no order between two primaries, and its slots may come to be another's any time.
            done = first.done

            def settled(outcome: object) -> None:
                done(outcome)
                if isinstance(outcome, Failed):
                    operation.done(outcome)
                else:
                    self.submit(operation)

            first.done, first.waits = settled, operation.waits
            self.submit(first)
        else:
            self.submit(first)
            self.submit(operation)

    @property
    def state(self) -> State:
        """How Redis is; of several primaries, how one of those is that are in trouble."""
        return next((writer.state for writer in self.all if writer.state != "ok"), "ok")

    @property
    def queued(self) -> int:
        """Bytes that wait or are under way."""
        return sum(writer.queued for writer in self.all)

    def doubt(self) -> None:
        """See `Writer`."""
        for writer in self.all:
            writer.doubt()

    def renew(self) -> None:
        """See `Writer`."""
        for writer in self.all:
            writer.renew()

    def close(self, within: float) -> None:
        """See `Writer`."""
        for writer in self.all:
            writer.close(within)

    def _of(self, operation: Operation) -> Writer:
        return self.all[self.shards.of(key_of(operation.command)) if len(self.all) > 1 else 0]
