"""Results by which a server wants to know something before it goes on (2026-07-28, "Multi Round-Trip Requests")."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from actors.protocol.outcomes import MAY_ASK
from gateway.client.conversation import Dialect
from gateway.client.errors import InputError, InvalidAnswerError
from gateway.client.handlers import Handlers

ROUNDS: Final = 10
"""Of one request."""
AGAIN: Final = (0.05, 0.25)
"""Seconds before a request that has nothing to answer is made again: at first, and at most."""


def wants_input(result: Mapping[str, Any], dialect: Dialect, method: str) -> bool:
    """Whether this is such a result. InvalidAnswerError for one of a kind that is not known."""
    if dialect.asks:
        return False  # servers of the other era ask by requests
    kind = result.get("resultType", "complete")
    if kind == "complete":
        return False
    if kind != "input_required" or method not in MAY_ASK:
        raise InvalidAnswerError(f"a result of the kind {kind!r} to {method}")
    return True


async def answers(result: Mapping[str, Any], handlers: Handlers, round: int) -> dict[str, Any]:
    """What is added to the params of the request when it is made again. What a handler raises ends the request."""
    requests, state = result.get("inputRequests"), result.get("requestState")
    added: dict[str, Any] = {} if state is None else {"requestState": state}
    if requests:
        if not isinstance(requests, Mapping):
            raise InvalidAnswerError("inputRequests must be an object")
        added["inputResponses"] = {key: await _answer(asked, handlers) for key, asked in requests.items()}
    elif state is None:
        raise InvalidAnswerError("a server that wants to know something must say what")
    else:
        await trio.sleep(min(AGAIN[0] * 2 ** (round - 1), AGAIN[1]))
    return added


async def _answer(asked: Any, handlers: Handlers) -> dict[str, Any]:
    method, params = (asked.get("method"), asked.get("params")) if isinstance(asked, Mapping) else (None, None)
    if not isinstance(method, str) or not isinstance(params, Mapping | None):
        raise InvalidAnswerError("a server that wants to know something must ask by a method and an object of params")
    handler = handlers.handler(method)
    if handler is None:
        raise InputError(f"the server asks for {method}, and there is no handler for it")
    return await handler(dict(params or {}))
