"""What the client gets when a handler raised.

A tool's failure is a result that the model can read (`isError`, 2025-11-25, server/tools, "Error Handling"); a wrong
request, and whatever else fails, is a JSON-RPC error.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Raw

from actors.protocol import codec, errors
from actors.protocol.errors import INVALID_REQUEST, LACKING, REQUIRED, ProtocolError, Refusal
from actors.protocol.messages import EMPTY, Request
from actors.runtime.boundary import thread_boundary
from gateway.native.content import to_json
from gateway.native.context import Client
from gateway.native.errors import ClientUnableError, RpcError, ToolError, UrlRequiredError
from gateway.native.tools import failed


@contextmanager
def no_exit() -> Iterator[None]:
    """Turns a handler's `sys.exit`, which the crash boundary lets pass, into a crash: the process is not its own. So is
    what only Python raises, into a coroutine that nobody wants any more."""
    try:
        yield
    except* SystemExit:
        raise RuntimeError("the handler called sys.exit") from None
    except* GeneratorExit:
        raise RuntimeError("the handler raised GeneratorExit") from None


def is_expected(error: BaseException) -> bool:
    """Whether the handler chose to fail so; anything else is a bug in it."""
    return isinstance(error, (RpcError, ToolError, Refusal))


def chosen(error: BaseException) -> BaseException:
    """Of failures that the tasks of a nursery all chose, the first; anything else as it is: a bug among them is one."""
    failures, left = [], [error]
    while left:
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
        else:
            failures.append(one)
    return failures[0] if all(map(is_expected, failures)) else error


def answer(request: Request, error: BaseException, client: Client) -> bytes:
    """The frame that ends the request, whatever a foreign exception makes of being looked at."""
    answers: list[bytes] = []

    def look() -> None:
        with no_exit():
            answers.append(_answer(request, error, client))

    thread_boundary(look)
    return answers[0] if answers else codec.encode_error(request.id, errors.internal(type(error).__name__))


def _answer(request: Request, error: BaseException, client: Client) -> bytes:
    wrong = _rpc_error(error, client)
    if wrong is None and request.method == "tools/call":
        result = failed(_text(error), client.revision)
        if isinstance(error, ClientUnableError):
            result["_meta"] = {LACKING: error.required}
        return codec.encode_result(request.id, Raw(to_json(result)))
    if isinstance(error, ClientUnableError):
        wrong = ProtocolError(INVALID_REQUEST, _text(error), Raw(to_json({REQUIRED: error.required})))
    return codec.encode_error(request.id, wrong or errors.internal(_text(error)))


def _rpc_error(error: BaseException, client: Client) -> ProtocolError | None:
    if isinstance(error, Refusal):
        return error.error
    if isinstance(error, UrlRequiredError) and not client.can("elicitation.url"):
        return None
    if isinstance(error, RpcError):
        return ProtocolError(error.code, _legible(error.message), error.data or EMPTY)
    return None


def _text(error: BaseException) -> str:
    if isinstance(error, UrlRequiredError):
        return "\n".join(f"{e.message}: {e.url}" for e in error.elicitations)
    text = _said(error)
    if isinstance(error, ToolError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _said(error: BaseException) -> str:
    said: list[str] = []

    def ask() -> None:
        with no_exit():
            said.append(_legible(str(error)))

    thread_boundary(ask)  # `str` of a foreign exception may raise too
    return said[0] if said else ""


def _legible(text: str) -> str:
    """Without the lone surrogates that file names may bring: they have no UTF-8."""
    return text.encode("utf-8", "replace").decode()
