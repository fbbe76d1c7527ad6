"""What a handler raises to say why it failed, and what it gets when the client did not do its part."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from msgspec import Raw
from pydantic import ValidationError

from actors.protocol.errors import INVALID_PARAMS, RESOURCE_NOT_FOUND, URL_ELICITATION_REQUIRED
from gateway.native.content import to_json


class RpcError(Exception):
    """Fails the request with this JSON-RPC error, whatever kind of handler raises it. `data` is any JSON value."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = None if data is None else Raw(to_json(data))


def invalid_params(message: str, data: Any = None) -> RpcError:
    """The request itself is wrong: an unknown name, a missing member, a cursor that is not ours."""
    return RpcError(INVALID_PARAMS, message, data)


URI_MAX: Final = 8192
"""Characters of a URI that an error repeats."""


class NotFoundError(RpcError):
    """There is no resource at this URI (-32002)."""

    def __init__(self, uri: str, message: str = "Resource not found") -> None:
        super().__init__(RESOURCE_NOT_FOUND, message, {"uri": uri[:URI_MAX]})


@dataclass(frozen=True, slots=True)
class UrlElicitation:
    """A page the user has to visit. `id` names the visit; `Server.elicitation_complete(id)` says that it is done."""

    message: str
    url: str
    id: str


class UrlRequiredError(RpcError):
    """The request can succeed only after the user has visited these pages (-32042, for clients of 2025-11-25 that can
    open URLs); the client then sends it again."""

    def __init__(self, elicitations: Sequence[UrlElicitation], message: str = "Please visit the page first") -> None:
        self.elicitations = tuple(elicitations)
        pages = [{"mode": "url", "message": e.message, "url": e.url, "elicitationId": e.id} for e in self.elicitations]
        super().__init__(URL_ELICITATION_REQUIRED, message, {"elicitations": pages})


class ToolError(Exception):
    """A tool failed in a way that the model should read about: the text of the `isError` result, word for word."""


class BadValuesError(ToolError):
    """Arguments that do not fit their schema; the text says which and why."""


class TooLargeError(ToolError):
    """What a handler wants to send is larger than a message may be."""


class ClientUnableError(ToolError):
    """The client never declared what the handler asked of it. `Context.can` tells before."""


class ClientRefusedError(ToolError):
    """The client answered a request of the handler with a JSON-RPC error (-1: the user said no)."""

    def __init__(self, method: str, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"The client refused {method}: {message}")
        self.code = code
        self.message = message
        self.data = data


class ClientTimeoutError(ToolError):
    """The client did not answer a request of the handler in time; the request was withdrawn."""


SHOWN: Final = 10
"""Faults that are named; of the others it is said how many there are."""
COUNTED: Final = 100
"""Of more faults than this only the number is said: to name one, all would have to be made into texts."""
WHERE_MAX, WHAT_MAX = 200, 400
"""Characters of the place of a fault, which the client chooses, and of what is wrong there."""


def explain(error: ValidationError) -> str:
    """What is wrong, in a line: `to: Input should be a valid integer`. Little work, and short, whatever it is."""
    count = error.error_count()
    if count > COUNTED:
        return f"{count} values do not fit"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return named((f"{_where(fault['loc'])}: {fault['msg'][:WHAT_MAX]}".removeprefix(": ") for fault in faults), count)


def named(faults: Iterable[str], count: int) -> str:
    """The first ones of so many."""
    more = [f"and {count - SHOWN} more"] if count > SHOWN else []
    return "; ".join([*islice(faults, SHOWN), *more])


def cut(text: str) -> str:
    """A name that somebody else chose, for a message."""
    return text if len(text) <= WHERE_MAX else f"{text[:WHERE_MAX]}..."


def _where(place: tuple[int | str, ...]) -> str:
    return cut(".".join(str(part)[: WHERE_MAX + 1] for part in place[: WHERE_MAX + 1]))
