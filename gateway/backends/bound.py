"""What transports have in common whose session lives and dies with the process they speak to."""

from actors.ports import Resumable
from actors.protocol.messages import RequestId


class BoundTransport:
    """The half of `actors.ports.Transport` that is about going on elsewhere, for those that can't."""

    warm = False
    """There is nothing to go on with."""

    @property
    def stderr(self) -> tuple[str, ...]:
        """Nothing, but for processes."""
        return ()

    @property
    def kept(self) -> Resumable | None:
        """Nothing."""
        return None

    def resume(self, kept: Resumable) -> None:
        """Never called: there is nothing to resume."""

    def pick_up(self, id: RequestId, cursor: str) -> None:
        """Never called, as `resume`."""

    def close(self) -> None:
        """See the port."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Nothing would be left."""
        self.close()

    def belongs_to(self, principal: str) -> None:
        """The server is not told."""

    def hand_over(self) -> None:
        """Nobody could take it."""
        self.close()
