"""What the backends of one endpoint are watched for, on behalf of all subscriptions of one actor of exchanges.

A backend without sessions is watched by an upstream `subscriptions/listen`, one for each different filter; one with
sessions by `resources/subscribe`, one for each resource, and by being connected to. A watch that is lost is begun
again, and what may have been missed meanwhile is announced (2026-07-28, patterns/subscriptions, "Graceful Closure").
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Raw

from actors.exchanges.exchange_messages import WatchDue
from actors.exchanges.modern_endpoint import ModernEndpoint
from actors.links.link_messages import LinkOutcome, LinkTold
from actors.protocol import breaker, capabilities, errors
from actors.protocol import payload as json
from actors.protocol.errors import ProtocolError, Refusal
from actors.protocol.link_calls import SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.link_events import Hello
from actors.protocol.messages import EMPTY
from actors.protocol.modern import filter as filters
from actors.protocol.modern.filter import Filter
from actors.protocol.modern.subscription import ACKNOWLEDGED

CAPABILITIES = {
    filters.TOOLS: ("tools", "listChanged"),
    filters.PROMPTS: ("prompts", "listChanged"),
    filters.RESOURCES: ("resources", "listChanged"),
}
"""What a backend with sessions must have declared to say that a list has changed."""

LASTS = 30.0
"""Seconds for which a watch must have been there for its loss to be the first one."""

Honoured = Callable[[Filter | None, ProtocolError | None], None]
"""Gets what a backend can do of a filter; None and an error, if it can do nothing at all."""


@dataclass(slots=True, eq=False)
class Watch:
    """What one backend is watched for, in its own words. `honoured` is None as long as it has not said what it can do;
    `since` when it did last; `call` is the number of the upstream subscription, 0 if there is none."""

    number: int
    backend: str
    filter: Filter
    honoured: Filter | None = None
    call: int = 0
    attempt: int = 0
    since: float = 0.0
    missed: bool = False
    waiting: list[Honoured] = field(default_factory=list)
    users: set[int] = field(default_factory=set)


class Watches:
    """The watches of one actor of exchanges; `users` are the numbers of its subscriptions."""

    def __init__(self, endpoint: ModernEndpoint) -> None:
        self._endpoint = endpoint
        self._watches: dict[tuple[str, Filter], Watch] = {}
        self._by_call: dict[int, Watch] = {}
        self._subscribed: dict[tuple[str, str], set[int]] = {}
        """Backend and resource → the watches that need this subscription."""
        self._next = 1

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, user: int, backend: str, filter: Filter, then: Honoured) -> None:
        """Watches a backend; `then` is called once, perhaps at once."""
        watch = self._watches.get((backend, filter))
        if watch is None:
            watch = self._watches[backend, filter] = Watch(self._next, backend, filter)
            self._next += 1
        watch.users.add(user)
        if watch.honoured is not None:
            then(watch.honoured, None)
            return
        watch.waiting.append(then)
        if len(watch.users) == 1:
            self._begin(watch)

    def remove(self, user: int) -> None:
        """A subscription is over; what nobody else needs is not watched any more."""
        for watch in [w for w in self._watches.values() if user in w.users]:
            watch.users.discard(user)
            if not watch.users:
                del self._watches[watch.backend, watch.filter]
                self._endpoint.host.ctx.cancel_timer(("watch", watch.number))
                self._end(watch)

    # How a watch begins

    def _begin(self, watch: Watch) -> None:
        def ready(hello: Hello | None, error: Raw) -> None:
            if not watch.users:
                return
            if hello is None:
                self._failed(watch, error)
            elif self._endpoint.modern(watch.backend):
                self._listen(watch)
            else:
                self._subscribe(watch, hello)

        self._endpoint.upstreams.when_ready(watch.backend, ready)

    def _listen(self, watch: Watch) -> None:
        """At a backend without sessions; its acknowledgement comes as a message on the call."""

        def ended(outcome: LinkOutcome) -> None:
            self._by_call.pop(watch.call, None)
            watch.call = 0
            endpoint, backend = self._endpoint, watch.backend
            if watch.honoured is not None and backend in endpoint.upstreams.links and endpoint.as_is(backend):
                # A loss is mended by the link: this is the server's own word, to the only ones who listen to it.
                for user in sorted(watch.users):
                    endpoint.host.unsubscribed(user, EMPTY if outcome.ok else outcome.payload)
            elif watch.users:
                self._failed(watch, outcome.payload if not outcome.ok else EMPTY)

        watch.call = self._endpoint.listen(watch.backend, watch.filter, ended)
        if watch.call:
            self._by_call[watch.call] = watch
        else:
            text = f"no connection to server {watch.backend!r} can be made"
            error = errors.internal(text, reason="no_link", executed="no", backend=watch.backend)
            self._failed(watch, error.raw)

    def _subscribe(self, watch: Watch, hello: Hello) -> None:
        """At a backend with sessions."""
        declared = capabilities.parse(hello.capabilities)
        changes = frozenset(m for m in watch.filter.changes if declared.has(CAPABILITIES[m]))
        wanted = watch.filter.uris if declared.has(("resources", "subscribe")) else ()
        left, good = set(wanted), set[str]()

        def subscribed(uri: str, ok: bool) -> None:
            left.discard(uri)
            if ok:
                good.add(uri)
            else:
                self._subscribed.get((watch.backend, uri), set()).discard(watch.number)
            if not left and watch.users:
                self._honoured(watch, Filter(changes, tuple(u for u in wanted if u in good)))

        if not wanted:
            self._honoured(watch, Filter(changes))
        for uri in wanted:
            self._ask(watch, uri, subscribed)

    def _ask(self, watch: Watch, uri: str, then: Callable[[str, bool], None]) -> None:
        self._subscribed.setdefault((watch.backend, uri), set()).add(watch.number)
        params = json.dumps({"uri": uri})
        if not self._endpoint.upstreams.own_call(
            watch.backend, SUBSCRIBE, params, lambda outcome: then(uri, outcome.ok)
        ):
            then(uri, False)

    def _end(self, watch: Watch) -> None:
        if watch.call:
            del self._by_call[watch.call]
            self._endpoint.cancel(watch.call, "unsubscribed")
        for uri in watch.filter.uris:
            needed = self._subscribed.get((watch.backend, uri))
            if needed is None:
                continue
            needed.discard(watch.number)
            if not needed:
                del self._subscribed[watch.backend, uri]
                self._unsubscribe(watch.backend, uri)

    def _unsubscribe(self, backend: str, uri: str) -> None:
        if backend in self._endpoint.upstreams.hellos and not self._endpoint.modern(backend):
            self._endpoint.upstreams.own_call(backend, UNSUBSCRIBE, json.dumps({"uri": uri}), lambda outcome: None)

    # How it goes on

    def heard(self, message: LinkTold) -> None:
        """A message on an upstream subscription: it is passed on as what belongs to no call."""
        watch = self._by_call.get(message.call or 0)
        if watch is None:
            return
        if message.method == ACKNOWLEDGED:
            try:
                self._honoured(watch, filters.read(message.params))
            except Refusal as refusal:
                self._failed(watch, refusal.error.raw)
        elif watch.filter.wants(message.method, message.params):
            self._endpoint.told(LinkTold(message.link, message.backend, None, message.method, message.params))

    def _honoured(self, watch: Watch, honoured: Filter) -> None:
        watch.honoured, watch.since = honoured, self._endpoint.host.ctx.now()
        waiting, watch.waiting = watch.waiting, []
        for then in waiting:
            then(honoured, None)
        if watch.missed:
            watch.missed = False
            self._announce(watch, honoured)

    def _announce(self, watch: Watch, honoured: Filter) -> None:
        """Nobody knows what has changed while nobody listened: everything may have."""
        ref = self._endpoint.host.ctx.ref
        for method in sorted(honoured.changes):
            self._endpoint.told(LinkTold(ref, watch.backend, None, method, EMPTY))
        for uri in honoured.uris:
            self._endpoint.told(LinkTold(ref, watch.backend, None, filters.UPDATED, json.dumps({"uri": uri})))

    # How it is lost, and found again

    def _failed(self, watch: Watch, error: Raw) -> None:
        """Whoever waits is told; as long as somebody is interested it is tried again."""
        if watch.honoured is not None and self._endpoint.host.ctx.now() - watch.since >= LASTS:
            watch.attempt = 0
        watch.honoured, watch.missed = None, True
        waiting, watch.waiting = watch.waiting, []
        for then in waiting:
            then(None, _error(error))
        if watch.users:
            watch.attempt += 1
            seconds = breaker.delay(watch.attempt, self._endpoint.services.jitter())
            self._endpoint.host.ctx.set_timer(("watch", watch.number), seconds, WatchDue(watch.number))

    def disconnected(self, backend: str) -> None:
        """Nothing is heard from this backend any more. (Upstream subscriptions end by themselves.)"""
        for watch in [w for w in self._watches.values() if w.backend == backend and w.honoured is not None]:
            if not watch.call:
                self._failed(watch, EMPTY)

    def due(self, number: int) -> None:
        """Time to try again."""
        watch = next((w for w in self._watches.values() if w.number == number), None)
        if watch is not None and watch.honoured is None and not watch.call:
            self._begin(watch)


def _error(error: Raw) -> ProtocolError:
    try:
        return errors.parse_error_member(error)
    except ValueError:
        return errors.internal("the server does not say what changes", reason="backend_down", executed="no")
