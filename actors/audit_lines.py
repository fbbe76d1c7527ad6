"""What the audit trail tells beside requests: who asks, and of what users are asked in the course of a call."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw

from actors.machines.modern import input_required
from actors.machines.session import events as ev
from actors.machines.session.state import ServerRequest
from actors.ports import Audit, Principal
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.messages import Error, Result
from actors.protocol.methods import ELICIT
from actors.protocol.operations import Operation
from actors.protocol.rights import Rights

ACTIONS = frozenset({"accept", "decline", "cancel"})


def who_asks(principal: Principal, rights: Rights, operation: Operation | None) -> dict[str, Any]:
    """Who makes a request, and by which way, as lines of the trail say it."""
    told = {"principal": principal.name, "iss": rights.issuer, "client_id": rights.client}
    if operation is not None:
        told |= {
            "ip": operation.peer,
            "endpoint": operation.endpoint,
            "session": operation.session,
            "era": operation.era,
            "transport": operation.transport,
            "trace_id": operation.trace_id,
            "span_id": operation.span_id,
        }
    return {name: value for name, value in told.items() if value}


def who_asks_often(principal: Principal, rights: Rights, operation: Operation | None) -> dict[str, Any]:
    """The same in a line that stands for many: they are of many traces."""
    told = who_asks(principal, rights, operation)
    return {name: value for name, value in told.items() if name not in ("trace_id", "span_id")}


def mode_of(method: str, params: Raw) -> dict[str, str]:
    """Whether a user is sent to a page or shown a form."""
    if method != ELICIT:
        return {}
    return {"mode": "url" if json.text_or_none(_members(params).get("mode")) == "url" else "form"}


def answer_to(method: str, answer: Raw) -> str:
    """What the user has answered, in a word."""
    action = json.text_or_none(_members(answer).get("action")) if method == ELICIT else None
    return action if action in ACTIONS else "answered"


def _members(given: Raw) -> Mapping[str, Raw]:
    """Of what nobody has looked at yet. That it is no object is told to whoever sent it elsewhere, if it matters."""
    try:
        return json.members(given)
    except errors.Malformed:
        return {}


Who = Callable[[ServerRequest], Mapping[str, Any]]
"""Who is asked, and by which way."""


def changed(
    audit: Audit,
    before: Mapping[str, ServerRequest],
    after: Mapping[str, ServerRequest],
    event: ev.SessionEvent,
    who: Who,
) -> None:
    """Tells what a session's user is asked since this event, and what has become of what he was asked before."""
    for id, ask in after.items():
        if id not in before and isinstance(event, ev.ServerRequested):
            _tell(audit, ask, "asked", {**mode_of(ask.method, event.params), **who(ask)})
    for id, ask in before.items():
        if id not in after:
            _tell(audit, ask, _outcome(id, ask, event), who(ask))


def _tell(audit: Audit, ask: ServerRequest, outcome: str, more: Mapping[str, Any]) -> None:
    server = {"server": ask.backend} if ask.backend else {}
    audit.record("elicit", method=ask.method, outcome=outcome, **server, **more)


def _outcome(id: str, ask: ServerRequest, event: ev.SessionEvent) -> str:
    if isinstance(event, ev.Posted):
        for message in event.messages:
            if isinstance(message, Result | Error) and message.id == id:
                return answer_to(ask.method, message.result) if isinstance(message, Result) else "error"
    return "expired" if isinstance(event, ev.ServerRequestExpired) else "withdrawn"


# Clients without sessions, whose questions are results ----------------------------------------------------------


def asked_by(audit: Audit, result: Raw, who: Callable[[], Mapping[str, Any]]) -> None:
    """Tells what a result asks of the user (`InputRequiredResult`), if it asks anything, and `who` it is that is
    asked."""
    if not json.mentions(result, b"inputRequests"):
        return
    try:
        found = input_required.read(result)
    except errors.Malformed:
        return
    if found is None or not found.requests:
        return
    more = who()
    for method, params in found.requests.values():
        audit.record("elicit", method=method, outcome="asked", **mode_of(method, params), **more)


def answered_by(audit: Audit, params: Raw, more: Mapping[str, Any]) -> None:
    """Tells what a retry answers. It says to what by a key alone; an answer shows what it is one to."""
    try:
        answers = input_required.answers(params)
    except errors.Refusal:
        return
    for answer in answers.values():
        present = _members(answer)
        method = next((method for member, method in _ANSWERS.items() if member in present), "")
        audit.record("elicit", method=method, outcome=answer_to(method, answer), **more)


_ANSWERS = {"action": ELICIT, "roots": "roots/list", "model": "sampling/createMessage"}
