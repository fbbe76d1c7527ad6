"""Requests of handlers to the client: who waits for which answer, and what happens when none comes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from msgspec import Raw

from actors.protocol import codec
from actors.protocol.errors import parse_error_member
from actors.protocol.messages import EMPTY, Error, RequestId, Response, Result
from gateway.native.errors import ClientRefusedError, ClientTimeoutError

ASKED_MAX: Final = 64
"""Requests of one session that may wait for the client."""

Send = Callable[[bytes, RequestId | None], None]


@dataclass(slots=True)
class _Waiting:
    answered: trio.Event = field(default_factory=trio.Event)
    answer: Response | None = None


class Asking:
    """The open requests of one session. `send` takes a frame and the client's request that it belongs to."""

    def __init__(self, send: Send, patience: float) -> None:
        self._send = send
        self._patience = patience
        self._waiting: dict[RequestId, _Waiting] = {}
        self._last = 0

    async def ask(self, method: str, params: Raw, related: RequestId | None) -> Any:
        """The client's result, decoded. ClientRefusedError, ClientTimeoutError.

        A request whose handler was cancelled or lost patience is withdrawn by `notifications/cancelled`.
        """
        if len(self._waiting) >= ASKED_MAX:
            raise ClientRefusedError(method, 0, "too many requests wait for it already")
        self._last += 1
        id, waiting = self._last, _Waiting()
        self._waiting[id] = waiting
        try:
            self._send(codec.encode_request(id, method, params), related)
            with trio.move_on_after(self._patience):
                await waiting.answered.wait()
        finally:
            del self._waiting[id]
            if waiting.answer is None:
                self._withdraw(id, related)
        return _outcome(method, waiting.answer)

    def answered(self, response: Response) -> None:
        """Takes an answer of the client; one to a request that nobody waits for is dropped."""
        waiting = self._waiting.get(response.id) if response.id is not None else None
        if waiting and waiting.answer is None:
            waiting.answer = response
            waiting.answered.set()

    def _withdraw(self, id: RequestId, related: RequestId | None) -> None:
        self._send(codec.encode_cancelled(id, "nobody waits for the answer any more"), related)


def _outcome(method: str, answer: Response | None) -> Any:
    match answer:
        case None:
            raise ClientTimeoutError(f"The client did not answer {method} in time")
        case Result(result=result):
            return codec.loads(result)
        case Error(error=raw):
            error = parse_error_member(raw)
            data = codec.loads(error.data) if error.data is not EMPTY and error.data else None
            raise ClientRefusedError(method, error.code, error.message, data)
