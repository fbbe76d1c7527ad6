"""Results that ask: `InputRequiredResult`, and the answers that come with the retry (2026-07-28 patterns/mrtr).

Server requests and answers are those of the handshake era, bare: no id, no `_meta` envelope, and no place for an
error.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from actors.protocol import errors
from actors.protocol.codec import NO_PARAMS
from actors.protocol.errors import BROKEN, Malformed, Refusal, invalid_params
from actors.protocol.messages import EMPTY
from actors.protocol.outcomes import INPUT_REQUIRED, KEY, KEY_FORM
from actors.protocol.payload import dumps, is_object, members, mentions, replace_members, text_or_none

QUESTIONS_MAX: Final = 64
"""Of one result: as many as a legacy server may have open."""


class InputRequest(Struct, frozen=True):
    """A server request of a backend. `key` names it among all that were ever asked in the course of one call."""

    key: str
    method: str
    params: Raw = EMPTY


def key_in(params: Raw) -> str:
    """The key that the server has chosen for this request; "" where it has not, or what it chose is none."""
    if not mentions(params, KEY.encode()):
        return ""
    try:
        meta = members(params).get("_meta", EMPTY)
        key = text_or_none(members(meta).get(KEY)) if is_object(meta) else None
    except Malformed:
        return ""
    return key if key is not None and KEY_FORM.fullmatch(key) else ""


class InputRequired(Struct, frozen=True):
    """A result that asks. `requests`: by key, method and params; `state` goes back as it is, None if there was none."""

    requests: dict[str, tuple[str, Raw]]
    state: str | None


def build(requests: Iterable[InputRequest], state: str | None) -> Raw:
    """The result. One of both must be there. Every server request has params: some clients read none without."""
    asked: dict[str, dict[str, Any]] = {}
    for question in requests:
        asked[question.key] = {"method": question.method, "params": question.params or NO_PARAMS}
    result: dict[str, Any] = {"resultType": INPUT_REQUIRED}
    if asked:
        result["inputRequests"] = asked
    if state is not None:
        result["requestState"] = state
    return dumps(result)


class _Question(Struct):
    method: str
    params: Raw = EMPTY


class _Result(Struct):
    inputRequests: dict[str, _Question] = {}  # the wire's names  # noqa: N815
    requestState: str | None = None  # noqa: N815


def read(result: Raw) -> InputRequired | None:
    """What a result asks; None for one that does not ask. Raises Malformed for one that asks in a wrong form, or for
    nothing, or for too much."""
    if text_or_none(members(result).get("resultType")) != INPUT_REQUIRED:
        return None
    try:
        asking = msgspec.json.decode(result, type=_Result)
    except BROKEN as broken:
        raise Malformed(_malformed(f"the server's questions are malformed: {broken}")) from None
    if not asking.inputRequests and asking.requestState is None:
        raise Malformed(_malformed("the server asks for nothing"))
    if len(asking.inputRequests) > QUESTIONS_MAX:
        raise Malformed(_malformed("the server asks too much at once"))
    return InputRequired({key: (q.method, q.params) for key, q in asking.inputRequests.items()}, asking.requestState)


def _malformed(detail: str) -> errors.ProtocolError:
    return errors.internal(detail, reason="malformed", executed="unknown")


def exposed(result: Raw, expose: Callable[[str, Raw], Raw]) -> Raw:
    """A result with the params of its server requests as `expose` gives them, by method. The same object if it asks
    for nothing. Raises Malformed."""
    if not mentions(result, b"inputRequests"):
        return result
    asked = members(members(result).get("inputRequests", Raw(b"{}")))
    for key, question in asked.items():
        method, params = text_or_none(members(question).get("method")), members(question).get("params", NO_PARAMS)
        if method is not None:
            asked[key] = replace_members(question, {"params": expose(method, params)})
    return replace_members(result, {"inputRequests": dumps(asked)}) if asked else result


# What comes with the retry -----------------------------------------------------------------------------------


def answers(params: Raw) -> dict[str, Raw]:
    """The answers by key; none for a request that is no retry. Refusal (-32602) if they are no object."""
    given = members(params).get("inputResponses")
    if given is None:
        return {}
    if not is_object(given):
        raise Refusal(invalid_params("inputResponses must be an object"))
    return members(given)


def state_of(params: Raw) -> str | None:
    """The `requestState` of a retry, None if there is none. Refusal (-32602) if it is no string."""
    given = members(params).get("requestState")
    if given is None:
        return None
    state = text_or_none(given)
    if state is None:
        raise Refusal(invalid_params("requestState must be a string"))
    return state


class _Elicited(Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | int | float | bool | list[str]] = {}


class _Block(Struct):
    type: str


class _Sampled(Struct):
    role: Literal["user", "assistant"]
    content: _Block | list[_Block]
    model: str


class _Root(Struct):
    uri: str


class _Rooted(Struct):
    roots: list[_Root]


_READERS: Final[dict[str, Callable[[Raw], Any]]] = {
    "elicitation/create": msgspec.json.Decoder(_Elicited).decode,
    "sampling/createMessage": msgspec.json.Decoder(_Sampled).decode,
    "roots/list": msgspec.json.Decoder(_Rooted).decode,
}


def check(method: str, answer: Raw) -> None:
    """Refusal (-32602) for what is no result of this method."""
    read_as = _READERS.get(method)
    if read_as is None:
        raise Refusal(invalid_params(f"{method} has no answers"))
    try:
        read_as(answer)
    except BROKEN as broken:
        raise Refusal(invalid_params(f"an answer to {method} is malformed: {broken}")) from None
