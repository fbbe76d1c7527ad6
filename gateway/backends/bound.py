"""What transports have in common whose session lives and dies with the process they speak to."""

from collections.abc import Callable

import trio

from actors.ports import NO_RIGHTS, Headers, Log, RequestFailed, Resumable, Rights, TransportClosed, TransportEvent
from actors.protocol.messages import RequestId
from gateway.backends.outbox import Outbox, Outgoing


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


class DuplexTransport(BoundTransport):
    """Those with one channel for everything, the pipes of a process or a WebSocket: all messages leave by one outbox,
    and nothing on the wire says which request one belongs to. A lost channel is a closed transport."""

    _status: int | None = None
    """Of HTTP, by which the server did not let it come to a channel."""

    def __init__(self, name: str, emit: Callable[[TransportEvent], None], log: Log, outbox: Outbox) -> None:
        self._name = name
        self._emit = emit
        self._log = log
        self._outbox = outbox
        self._ending = trio.Event()
        self._end: tuple[str, str, str] | None = None
        self._told = False

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        """Puts the message into the outbox; a request that finds it full or closed fails, unexecuted."""
        if self._outbox.put(Outgoing(frame, id, tag)):
            return
        if id is not None:
            self._say(RequestFailed(id, "not_sent", f"{self._name} takes no more messages", "no"))
        elif not self._ending.is_set():
            self._log.warning("backend_message_dropped", backend=self._name, why="outbox full")

    def forget(self, id: RequestId) -> None:
        """Withdraws the request if it was not written yet."""
        self._outbox.withdraw(id)

    def negotiated(self, version: str) -> None:
        """Nothing to do: the revision is not sent on this wire."""

    def listen(self) -> None:
        """Nothing to do: messages that belong to no request come by themselves."""

    def restart(self) -> None:
        """Nothing to do: one channel is one session."""

    # The end

    def _end_with(self, reason: str, message: str, detail: str = "") -> None:
        if self._end is None:
            self._end = reason, message, detail
        self._ending.set()

    def _say(self, event: TransportEvent) -> None:
        if not self._told:
            self._emit(event)

    def _unsent(self, reason: str) -> str:
        """Why a request was not written, if the transport ended for this reason."""
        raise NotImplementedError

    def _tell_end(self) -> None:
        """Once: what was not written was not executed, and nothing more comes."""
        assert self._end is not None
        reason, message, detail = self._end
        for item in self._outbox.clear():
            if item.id is not None:
                why = self._unsent(reason)
                self._say(RequestFailed(item.id, why, message, "no", self._status, detail, self.stderr))
        self._say(TransportClosed(reason, message, detail, self.stderr))
        self._told = True
