"""What a handler raises to say why it failed, and what it gets when the client did not do its part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from msgspec import Raw
from pydantic import ValidationError

from actors.protocol.errors import (
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
)
from gateway.native.content import to_json

Feature: TypeAlias = Literal[
    "roots", "sampling", "sampling.tools", "sampling.context", "elicitation", "elicitation.url"
]
"""What a client may be able to do."""


class RpcError(Exception):
    """Fails the request with this JSON-RPC error, whatever kind of handler raises it. `data` is any JSON value.

    Codes of one's own belong outside of -32768 to -32000: a modern client gets -32603 in the place of one from -32099
    to -32000, since those have a meaning to it, or none, and the error as it was in `data`.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        if not isinstance(code, int) or isinstance(code, bool) or not isinstance(message, str):
            raise TypeError(f"an error has a whole number and a text, and this one {code!r} and {message!r}"[:WHAT_MAX])
        self.code = code
        self.message = message
        self.data = None if data is None else Raw(to_json(data))


class ParseError(RpcError):
    """What was sent can't be read (-32700)."""

    def __init__(self, message: str = "Parse error", data: Any = None) -> None:
        super().__init__(PARSE_ERROR, message, data)


class InvalidRequestError(RpcError):
    """The request is none, or none at this time (-32600)."""

    def __init__(self, message: str = "Invalid request", data: Any = None) -> None:
        super().__init__(INVALID_REQUEST, message, data)


class MethodNotFoundError(RpcError):
    """There is no such method here (-32601)."""

    def __init__(self, message: str = "Method not found", data: Any = None) -> None:
        super().__init__(METHOD_NOT_FOUND, message, data)


class InvalidParamsError(RpcError):
    """The request itself is wrong: an unknown name, a missing member, a cursor that is not ours (-32602)."""

    def __init__(self, message: str = "Invalid params", data: Any = None) -> None:
        super().__init__(INVALID_PARAMS, message, data)


class PromptNotFoundError(InvalidParamsError):
    """There is no prompt of this name (-32602)."""

    def __init__(self, name: str, data: Any = None) -> None:
        super().__init__(f"Unknown prompt: {cut(name)}", data)


class InternalError(RpcError):
    """The server failed (-32603)."""

    def __init__(self, message: str = "Internal error", data: Any = None) -> None:
        super().__init__(INTERNAL, message, data)


URI_MAX: Final = 8192
"""Characters of a URI that an error repeats."""


class NotFoundError(RpcError):
    """There is no resource at this URI (-32002)."""

    def __init__(self, uri: str, message: str = "Resource not found") -> None:
        super().__init__(RESOURCE_NOT_FOUND, message, {"uri": uri[:URI_MAX]})


_BY_CODE: Final[Mapping[int, Callable[[str, Any], RpcError]]] = {
    PARSE_ERROR: ParseError,
    INVALID_REQUEST: InvalidRequestError,
    METHOD_NOT_FOUND: MethodNotFoundError,
    INVALID_PARAMS: InvalidParamsError,
    INTERNAL: InternalError,
    RESOURCE_NOT_FOUND: lambda message, data: NotFoundError(_uri_in(data), message),
}


def error_of(code: int, message: str, data: Any = None) -> RpcError:
    """The typed error of this code, for one that came from somewhere else and is to be passed on; one without a type of
    its own is a plain `RpcError`, which keeps the code."""
    typed = _BY_CODE.get(code)
    return RpcError(code, message, data) if typed is None else typed(message, data)


def _uri_in(data: Any) -> str:
    uri = data.get("uri") if isinstance(data, Mapping) else None
    return uri if isinstance(uri, str) else ""


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
    """The client never declared what the handler asked of it. `Context.can` tells before.

    Where a handler lets it pass, a client without sessions gets -32021, as its revision has it; one with a session
    reads of it in the result of a tool, and gets -32600 from anything else.
    """

    def __init__(self, feature: Feature) -> None:
        super().__init__(f"This needs a client that can do {feature}, and this one has not declared it")
        self.feature = feature

    @property
    def required(self) -> dict[str, Any]:
        """What the client would have to declare, in wire form."""
        kind, _, part = self.feature.partition(".")
        part = part or ("form" if kind == "elicitation" else "")
        return {kind: {part: {}} if part else {}}


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
