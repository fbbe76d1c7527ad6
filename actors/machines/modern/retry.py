"""A request that was answered with server requests, and comes again with answers (2026-07-28, patterns/mrtr).

Whatever the client is to hold meanwhile goes out sealed. Three kinds: the call waits at an affinity pool (*park*),
the backend keeps its own state (*wrap*), or nothing is kept and the request runs again (*rerun*: the way of
2025-11-25 to send a user to a URL, which ends the call with error -32042).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.machines.modern import input_required, request_state
from actors.machines.modern.input_required import InputRequest
from actors.machines.modern.request_state import State
from actors.protocol import errors, modern_tasks, pages, translate
from actors.protocol import payload as json
from actors.protocol.capabilities import ClientBits
from actors.protocol.cursors import Sealer
from actors.protocol.errors import Refusal
from actors.protocol.messages import EMPTY, Outcome
from actors.protocol.methods import METHODS
from actors.protocol.outcomes import MAY_ASK, lacked, missing
from actors.protocol.tasks import for_model
from actors.protocol.versions import MODERN

STATE_BYTES: Final = 512 * 1024
"""Of the state that a backend keeps with the client: twice as much, sealed, is what a client may bring back."""
URLS_MAX: Final = 16
"""Addresses that a user is sent to for one request; a state holds them all."""
URL_BYTES: Final = 4096
"""Of one of them, with its message."""


class Request(Struct, frozen=True):
    """Who asks for what, and until when a state made at this moment is good (seconds of the wall clock). `tool`: what
    the backend calls the tool that is asked for, where that is known; `paid`: makes that of a state."""

    principal: str
    method: str
    params: Raw
    now: float
    ttl: float
    tool: str = ""
    paid: Callable[[], str] = str


# The way out -------------------------------------------------------------------------------------------------


def suspended(
    request: Request, backend: str, place: tuple[str, str, int], questions: tuple[InputRequest, ...], sealer: Sealer
) -> Raw:
    """The result for a call that waits at an affinity pool; `place` is incarnation, suspended call and round."""
    incarnation, suspend, round = place
    state = _state(request, "park", backend, incarnation=incarnation, suspend=suspend, round=round)
    return input_required.build(questions, request_state.seal(state, sealer))


def wrapped(request: Request, backend: str, result: Raw, sealer: Sealer) -> Raw:
    """A backend's own InputRequiredResult, its state sealed for this client alone: the backend sees the gateway, and
    can't tell its clients apart. Raises Malformed."""
    upstream = input_required.state_of(result)
    if upstream is None:
        return result
    sealed = request_state.seal(_state(request, "wrap", backend, upstream=upstream), sealer)
    return json.replace_members(result, {"requestState": json.dumps(sealed)})


Expose: TypeAlias = Callable[[str, str, Raw], Raw]
"""The params of a backend's server request as the client sees them, by backend and method."""


def sent_away(
    request: Request, backend: str, error: Raw, bits: ClientBits, sealer: Sealer, expose: Expose
) -> Outcome | None:
    """For error -32042: one server request for each address, and the request runs again afterwards; a client that
    can't be asked is told the addresses. None for another error, and for one that names no address."""
    if request.method not in MAY_ASK:
        return None
    why, wanted = pages.sent_away(error) or ("", [])
    if not 0 < len(wanted) <= URLS_MAX:
        return None
    visits = (json.dumps({"mode": "url", "message": page.message, "url": page.url}) for page in wanted)
    asked = tuple(bytes(expose(backend, "elicitation/create", visit)).decode() for visit in visits)
    if missing(bits, "elicitation/create", Raw(asked[0].encode())) is not None:
        return pages.in_words(for_model(request.method), why, wanted)
    if any(len(params) > URL_BYTES for params in asked):
        return None
    return True, _visit(request, backend, asked, sealer)


def connecting(request: Request, backend: str, params: Raw, sealer: Sealer) -> Raw:
    """The result that sends the user to our page; the request runs again when he has connected his account."""
    return _visit(request, backend, (bytes(params).decode(),), sealer, "connect")


def _visit(
    request: Request, backend: str, asked: tuple[str, ...], sealer: Sealer, kind: Literal["rerun", "connect"] = "rerun"
) -> Raw:
    questions = [InputRequest(_key(n), "elicitation/create", Raw(params.encode())) for n, params in enumerate(asked)]
    return input_required.build(questions, request_state.seal(_state(request, kind, backend, urls=asked), sealer))


def _key(number: int) -> str:
    return f"url-{number + 1}"


def _state(request: Request, kind: Any, backend: str, **members: Any) -> State:
    return State(
        kind,
        backend,
        request.principal,
        request.method,
        request_state.digest(request.method, request.params),
        request.now + request.ttl,
        paid=request.paid(),
        **members,
    )


# The way back ------------------------------------------------------------------------------------------------


class Fresh(Struct, frozen=True):
    """A request like any other. `backend`: the only one that may get it (None: whose it is). `visited`: its user has
    gone to our page, and may be there still. `paid`: as of its state."""

    params: Raw
    backend: str | None = None
    visited: bool = False
    paid: str = ""


class Waiting(Struct, frozen=True):
    """It goes on at an affinity pool."""

    backend: str
    place: tuple[str, str, int]
    answers: dict[str, Raw]
    paid: str = ""


class Settled(Struct, frozen=True):
    """It has its outcome."""

    ok: bool
    payload: Raw


Retry: TypeAlias = Fresh | Waiting | Settled


def resume(request: Request, sealer: Sealer) -> Retry:
    """What to do with a request; never raises. One that brings no state is as it is (a backend may ask without one)."""
    if not _may_ask(request.method) or not json.mentions(request.params, b"requestState"):
        return Fresh(request.params)
    try:
        token = input_required.state_of(request.params)
        if token is None:
            return Fresh(request.params)
        state = request_state.unseal(
            token,
            sealer,
            principal=request.principal,
            method=request.method,
            params=request.params,
            now=request.now,
        )
        return _resumed(request, state, input_required.answers(request.params), sealer)
    except Refusal as refusal:
        return Settled(False, refusal.error.raw)


def _may_ask(method: str) -> bool:
    """Whether a state may have been given out for it: of a method that nobody here knows its server decides."""
    return method in MAY_ASK or method not in METHODS


def _resumed(request: Request, state: State, answers: dict[str, Raw], sealer: Sealer) -> Retry:
    if state.kind == "park":
        return Waiting(state.backend, (state.incarnation, state.suspend, state.round), answers, state.paid)
    if state.kind == "wrap":
        own = json.dumps(state.upstream)
        return Fresh(json.replace_members(request.params, {"requestState": own}), state.backend, paid=state.paid)
    return _visited(request, state, answers, sealer)


class _Elicited(Struct):
    action: str


def _visited(request: Request, state: State, answers: dict[str, Raw], sealer: Sealer) -> Retry:
    """The user has been to the addresses, or would not go. What was not answered is asked again."""
    given = [answers.get(_key(number), EMPTY) for number in range(len(state.urls))]
    for answer in given:
        if answer:
            input_required.check("elicitation/create", answer)
    ours = state.kind == "connect"
    if not all(given):
        request = replace(request, paid=partial(str, state.paid))  # paid for once, however often it is asked
        return Settled(True, _visit(request, state.backend, state.urls, sealer, "connect" if ours else "rerun"))
    if all(msgspec.json.decode(answer, type=_Elicited).action == "accept" for answer in given):
        bare: dict[str, Raw | None] = {"requestState": None, "inputResponses": None}
        return Fresh(json.replace_members(request.params, bare), state.backend, ours, state.paid)
    words = "The user did not go to the address that the server asked for."
    if request.method == "tools/call":
        return Settled(True, errors.as_result(words))
    return Settled(False, errors.internal(words, reason="declined", executed="no").raw)


# The outcome of a call ---------------------------------------------------------------------------------------


class Backend(Struct, frozen=True):
    """Who answered, in which revision; `info` is its Implementation."""

    name: str
    version: str
    info: Raw = EMPTY


def finished(
    request: Request, backend: Backend, outcome: Outcome, bits: ClientBits, sealer: Sealer, expose: Expose
) -> Outcome:
    """The outcome of a call at a backend as its client may get it. Raises Malformed, and Refusal for a task that is
    malformed, or may not be."""
    ok, payload = outcome
    if not ok:
        away = sent_away(request, backend.name, payload, bits, sealer, expose)
        return away if away is not None else (False, _error(request, backend, payload))
    if request.method in modern_tasks.METHODS:
        return _about_task(request, backend, payload, expose)
    if backend.version != MODERN:
        refused = _lacked(payload)
        if refused is not None:
            return False, refused.raw
        version, info = backend.version, backend.info
        return True, translate.result(request.method, payload, MODERN, version, implementation=info)
    if json.mentions(payload, b"taskId") and modern_tasks.is_task(payload):
        return True, modern_tasks.created(
            request.method, payload, bits, backend.name, sealer, principal=request.principal, tool=request.tool
        )
    asking = input_required.read(payload) if json.mentions(payload, b"input_required") else None
    if asking is None:
        return outcome
    if asking.state is not None and len(asking.state.encode()) > STATE_BYTES:
        words = "the server's state is too large to be kept by a client"
        return False, errors.internal(words, reason="state_too_large", executed="unknown", backend=backend.name).raw
    exposed = input_required.exposed(payload, lambda method, params: expose(backend.name, method, params))
    return True, wrapped(request, backend.name, exposed, sealer)


def _lacked(result: Raw) -> errors.ProtocolError | None:
    """What the client lacks, if a legacy server's result says so."""
    if not json.mentions(result, errors.LACKING.encode()):
        return None
    return lacked(json.members(result).get("_meta", EMPTY), errors.LACKING)


def _about_task(request: Request, backend: Backend, payload: Raw, expose: Expose) -> Outcome:
    """The answer to a request about a task, which may hold server requests."""
    id = json.text_or_none(json.members(request.params).get("taskId")) or ""
    answered = modern_tasks.answered(request.method, payload, id)
    return True, input_required.exposed(answered, lambda method, params: expose(backend.name, method, params))


def _error(request: Request, backend: Backend, error: Raw) -> Raw:
    uri = json.text_or_none(json.members(request.params).get("uri")) if request.method == "resources/read" else None
    return translate.error(request.method, error, MODERN, backend.version, uri=uri)
