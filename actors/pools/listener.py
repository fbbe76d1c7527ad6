"""What pools are told of the other replicas: their mail, and that one is gone."""

from collections.abc import Sequence

from actors.cluster.letters import FromPool, ToPool, UnreadableError, decode
from actors.pools.pools import Pools
from actors.ports import Incarnation


class PoolListener:
    """A `ClusterListener`."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def on_mail(self, letters: Sequence[bytes]) -> None:
        for data in letters:
            try:
                letter = decode(data)
            except UnreadableError:
                continue
            if isinstance(letter.body, ToPool | FromPool):
                self._pools.take(letter)

    def on_renamed(self, former: Incarnation, now: Incarnation) -> None:
        """To the others the former one is dead, and with it all that it was joined to them by."""
        self._pools.process_down(former)

    def on_certain(self) -> None:
        """It is as it was."""

    def on_down(self, incarnation: Incarnation) -> None:
        self._pools.process_down(incarnation)
