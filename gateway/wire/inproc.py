"""What is asked of a server in this process by those who connect to it; the server itself is opaque to them."""

from collections.abc import Callable
from typing import Protocol

from actors.protocol.messages import RequestId
from actors.protocol.rights import NO_RIGHTS, Rights


class NativeSession(Protocol):
    """One session with a server. `principal` is who is on the other side, as the gateway knows them."""

    principal: str | None

    async def run(self) -> None:
        """Serves until `close`."""

    def receive(self, frame: bytes, rights: Rights = NO_RIGHTS) -> bool:
        """Takes a frame that is sent with these rights, or has no room for it. Never waits."""

    def cancel(self, id: RequestId) -> None:
        """Stops a request, which then gets no answer."""

    def close(self) -> None:
        """Ends the session."""


class NativeServer(Protocol):
    """Makes sessions. `send` gets each frame with the request that it belongs to; `crash` hears of handlers that
    raised what they should not: the method, and the exception; `blocked` of those that kept the event loop to
    themselves: the method, the tool or prompt, and for how many seconds."""

    def connect(
        self,
        send: Callable[[bytes, RequestId | None], None],
        crash: Callable[[str, BaseException], None],
        message_bytes: int,
        principal: str | None = None,
        blocked: Callable[[str, str, float], None] | None = None,
    ) -> NativeSession: ...
