"""Which primary of a Redis Cluster has which key."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final

from hiredis import pack_command
from redis.crc import key_slot

from gateway.store.redis.targets import Address, Target

SLOTS: Final = 16_384
"""Of any Redis Cluster."""

_NOBODY: Final = 0xFFFF


class Slots:
    """Which primary has which slot, as some node of the cluster has said it."""

    def __init__(self, shares: Iterable[tuple[int, int, Address]]) -> None:
        """`shares`: first slot, last slot, and the primary that has them."""
        shares = list(shares)
        self.primaries = sorted({address for _, _, address in shares})
        self._of = array("H", [_NOBODY]) * SLOTS
        for first, last, address in shares:
            self._of[first : last + 1] = array("H", [self.primaries.index(address)]) * (last + 1 - first)

    def primary_of(self, key: object) -> Address | None:
        """The primary that has the key; None if nobody does."""
        number = self._of[key_slot(str(key).encode())]
        return None if number == _NOBODY else self.primaries[number]


def ask_slots(target: Target, address: Address) -> Slots:
    """Asks this node; redis-py's exceptions, or OSError."""
    connection = target.connection(address)
    try:
        connection.connect()
        connection.send_packed_command([pack_command(("CLUSTER", "SLOTS"))], check_health=False)  # type: ignore[arg-type]
        return Slots(_shares(connection.read_response(), address))
    finally:
        connection.disconnect()


def _shares(reply: Sequence[Any], asked: Address) -> Iterable[tuple[int, int, Address]]:
    for first, last, (host, port, *_), *_ in reply:
        # One that does not know its own name is there where it was asked.
        yield first, last, ((host or b"").decode() or asked[0], port)
