"""What stands for a transport that could not be made."""

from collections.abc import Callable

import trio

from actors.ports import NO_RIGHTS, Headers, RequestFailed, Rights, TransportClosed, TransportEvent, TransportKind
from actors.protocol.diagnostics import without_addresses
from actors.protocol.messages import RequestId
from gateway.backends.bound import BoundTransport


class StillbornTransport(BoundTransport):
    """A transport that only says why it could not be made, and ends."""

    kind: TransportKind = "http"

    def __init__(self, message: str, emit: Callable[[TransportEvent], None]) -> None:
        self._message = message
        self._emit = emit

    async def run(self) -> None:
        await trio.lowlevel.checkpoint()
        self._emit(TransportClosed("config", without_addresses(self._message), self._message))

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        if id is not None:
            self._emit(RequestFailed(id, "config", without_addresses(self._message), "no", None, self._message))

    def negotiated(self, version: str) -> None: ...

    def listen(self) -> None: ...

    def forget(self, id: RequestId) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...
