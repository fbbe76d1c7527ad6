"""What a session lets in: a POST as a whole, then each request by itself. Predicates only; nothing is done here.

A POST that is refused as a whole has an HTTP status that says so, and nothing of it was executed; a request that is
refused by itself gets a JSON-RPC error as its answer.
"""

from actors.protocol import asks, capabilities, errors, tasks
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol.messages import Error, Request, Result
from actors.protocol.methods import METHODS, Kind, Sender, known
from actors.protocol.session_state import Session
from actors.protocol.session_table import REFUSALS
from actors.protocol.versions import can_use


def refusal_of_post(session: Session, event: ev.Posted, requests: list[Request]) -> fx.RefusePost | None:
    """What refuses a POST, with these requests in it, as a whole, before anything of it is done."""
    if event.batch:
        if not can_use(session.version, "batches"):
            return fx.RefusePost(event.post, errors.batch_refused())
        if any(m.method == "initialize" for m in requests):
            return fx.RefusePost(event.post, errors.invalid_request("initialize can't be part of a batch"))
    ids = [request.id for request in requests]
    for id in ids:
        if id in session.requests or ids.count(id) > 1:
            return fx.RefusePost(event.post, errors.invalid_request("a request with this id is in flight"), id)
    for message in event.messages:
        if isinstance(message, Result | Error) and not asks.was_issued(session, message.id):
            return fx.RefusePost(event.post, errors.invalid_request("a response to no request of this server"))
    work = [request.method for request in requests if request.method != "ping"]
    error = _refusal_of_work(session, work) if work else None
    return fx.RefusePost(event.post, error, ids[0]) if error is not None else None


def _refusal_of_work(session: Session, methods: list[str]) -> errors.ProtocolError | None:
    """Requests need a phase that takes them, and room. (A ping needs neither: 2025-11-25 utilities/ping.)"""
    refusal = REFUSALS.get((session.phase, "initialize" if "initialize" in methods else "request"))
    if refusal is not None:
        return refusal()
    if len(methods) > session.rules.requests:
        return errors.invalid_request(f"a batch may hold {session.rules.requests} requests")
    if len(session.requests) + len(methods) > session.rules.requests:
        return errors.too_many_requests()
    return None


def refusal_of_request(session: Session, request: Request) -> errors.ProtocolError | None:
    """What revision and declared capabilities forbid (2025-11-25 lifecycle, "Operation")."""
    row = METHODS.get(request.method)
    if row is not None and not _is_known(session, request.method, Sender.CLIENT, Kind.REQUEST):
        return errors.method_not_found(request.method)
    if not session.rules.gates:
        return None
    declared = session.server
    if row is None or declared is None or not capabilities.allows(declared, request.method, session.version):
        return errors.method_not_found(request.method)
    return None


def _is_known(session: Session, method: str, sender: Sender, kind: Kind) -> bool:
    row = known(method, sender, session.version)
    return row is not None and row.kind is kind


def why_drop(session: Session, method: str, sender: Sender) -> str | None:
    """Why a notification of this end goes nowhere: it is unknown, or of a feature that was not declared. None if it may
    pass. A transparent endpoint passes what only its two ends know."""
    if not _is_known(session, method, sender, Kind.NOTIFICATION):
        return "unknown_notification" if session.rules.gates or method in METHODS else None
    if not session.rules.gates or session.client is None or session.server is None:
        return None
    # The status of a task comes from the end that runs it, and that declared it.
    clients = METHODS[method].client_capability or (method == tasks.STATUS and sender is Sender.CLIENT)
    declared = session.client.capabilities if clients else session.server
    return None if capabilities.allows(declared, method, session.version) else "undeclared_notification"
