"""The door of the era without sessions: finds the actor that serves a request, and waits for the outcome.

It runs in the edge's own task and keeps no state: cancelling a call means that the connection broke, which in this era
is the cancellation of the request.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache

from actors.exchanges.exchange_messages import Begin, Inform
from actors.exchanges.exchanges import ExchangesActor, Kind
from actors.named import LIVES
from actors.ports import Answer, Post, Reply
from actors.protocol import capabilities, errors
from actors.protocol.classify import ModernNotification, ModernRequest
from actors.protocol.errors import ProtocolError
from actors.protocol.messages import RequestId
from actors.protocol.modern import ladder
from actors.quotas import NoShareLeft, Shares
from actors.runtime import ActorDown, AtCapacity, MailboxFull, NotTaken, Ref, Registry, SystemClosed
from actors.services import Services

AFFINITY_HEADER = "stagedoor-affinity"
"""By this a client may say which of its requests belong together: those with one value reach the same connections of
backends that have sessions. Without it all requests of a principal belong together. The value means nothing else, and
gives access to nothing: what it leads to is the principal's own."""


class ModernDoor:
    """`make` makes an actor of exchanges; `overloaded` whether new work waits outside."""

    def __init__(
        self,
        services: Services,
        registry: Registry,
        supervisor: Shares,
        make: Callable[[Kind], ExchangesActor],
        overloaded: Callable[[], bool],
    ) -> None:
        self._services = services
        self._registry = registry
        self._supervisor = supervisor
        self._make = make
        self._overloaded = overloaded

    async def request(self, post: Post, route: ModernRequest) -> Reply:
        """A request that has passed the ladder."""
        request, envelope = route.request, route.envelope
        if self._overloaded():
            return _refused(errors.overloaded(), request.id)
        kind = Kind(post.endpoint, post.principal, envelope.bits, post.headers.get(AFFINITY_HEADER, ""))
        for _ in range(LIVES):
            found = self._find(kind)
            if isinstance(found, ProtocolError):
                return _refused(found, request.id)
            try:
                reply: Reply = await found.call(
                    lambda reply: Begin(request, envelope, post.headers, reply), self._services.limits.admission
                )
                return reply
            except (MailboxFull, NotTaken):
                self._services.telemetry.count("stagedoor_mailbox_refusals_total", ("exchanges",))
                return _refused(errors.overloaded(), request.id)
            except ActorDown as down:
                if down.taken:
                    # It may have been given to a backend: said so, never tried again.
                    error = errors.internal("the request was lost", reason="crashed", executed="unknown")
                    return _refused(error, request.id)
        return _refused(errors.overloaded(), request.id)

    async def notification(self, post: Post, route: ModernNotification) -> Answer:
        """A notification. It passes where what it means is between the client and one server; elsewhere nobody could
        say whose it is, so that it is accepted and dropped. Nothing says what became of it."""
        notification = route.notification
        served = self._services.table.value.endpoints.get(post.endpoint)
        if served is None or served.kind != "transparent" or not ladder.between_peers(notification.method):
            self._services.telemetry.count("stagedoor_messages_dropped_total", ("unknown_notification",))
            return Answer(202)
        if self._overloaded():
            return _refused(errors.overloaded())
        # It says nothing of its client that a server could be told.
        kind = Kind(post.endpoint, post.principal, frozenset(), post.headers.get(AFFINITY_HEADER, ""))
        for _ in range(LIVES):
            found = self._find(kind)
            if isinstance(found, ProtocolError):
                return _refused(found)
            try:
                answer: Answer = await found.call(
                    lambda reply: Inform(notification, reply), self._services.limits.admission
                )
                return answer
            except (MailboxFull, NotTaken):
                self._services.telemetry.count("stagedoor_mailbox_refusals_total", ("exchanges",))
                return _refused(errors.overloaded())
            except ActorDown as down:
                if down.taken:  # it may have been given to a backend
                    return _refused(errors.internal("the notification was lost", reason="crashed", executed="unknown"))
        return _refused(errors.overloaded())

    def _find(self, kind: Kind) -> Ref | ProtocolError:
        """The actor for such requests, which is started if there is none."""
        name = name_of(kind)
        running = self._registry.whereis(name)
        if running is not None and running.alive:
            return running
        try:
            return self._supervisor.start_for(kind.principal, self._make(kind), name)
        except NoShareLeft:
            return errors.too_many_requests("kinds of clients of this principal")
        except AtCapacity:
            return errors.overloaded()
        except SystemClosed:
            return errors.draining()


NAMES = 512
AFFINITY = 128
"""Names of actors that are remembered, and the most characters of what their clients say for it."""


def name_of(kind: Kind) -> str:
    """The name of the actor: long words of clients make it no longer."""
    brief = len(kind.affinity) <= AFFINITY and capabilities.short(kind.bits)
    return (_name if brief else _name.__wrapped__)(kind.endpoint, kind.principal.name, kind.bits, kind.affinity)


@lru_cache(NAMES)
def _name(endpoint: str, principal: str, bits: capabilities.ClientBits, affinity: str) -> str:
    parts = (endpoint, principal, capabilities.bits_key(bits), affinity)
    digest = hashlib.sha256(b"".join(b"%d:%b" % (len(p.encode()), p.encode()) for p in parts))
    return f"exchanges-{digest.hexdigest()[:32]}"


def _refused(error: ProtocolError, id: RequestId | None = None) -> Answer:
    error = errors.for_modern(error)
    return Answer(error.status, errors.encode_error_body(error, id), error.headers)
