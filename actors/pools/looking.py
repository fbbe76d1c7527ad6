"""What the further processes of a pool define. `actors.endpoints.pinning` looks at a server over its first connection;
the others are the same command, which may say something else by now, so that each is looked at before it is called.
Loaded only where definitions that were not accepted are held back.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Raw

from actors.audit_lines import who_asks
from actors.endpoints.guard import PINS, SHOWN
from actors.endpoints.pinning import LISTED_IN, LOOK_AGAIN, LOOK_WITHIN, LOOKS, tell_all, unseen
from actors.machines.upstream.events import ServerInfo
from actors.ports import Principal
from actors.protocol import subjects
from actors.protocol.lookalikes import shown
from actors.protocol.methods import CHANGED, METHODS, UNSUBSCRIBE
from actors.protocol.pins import Pins
from actors.protocol.policy import called
from actors.protocol.steady import Items
from actors.protocol.subjects import Subject
from actors.services import Services
from actors.upstreams import messages as um
from actors.upstreams.own_calls import Then
from actors.upstreams.paging import Page, Paging

if TYPE_CHECKING:
    from actors.pools.pool import PooledConnection


class Ask(Protocol):
    """Sends a request of the pool's own over one of its connections."""

    def __call__(
        self, over: "PooledConnection", method: str, params: Raw, then: Then, seconds: float | None = None
    ) -> None: ...


class _Seen(NamedTuple):
    """A list as it was when it was looked at, and which names these pins hold back."""

    server_info: ServerInfo | None
    pins: Pins
    at: float
    held: frozenset[str]


class Looking:
    """Looks at the definitions of the further processes of one pool before they are called."""

    def __init__(
        self, backend: str, principal: Principal, services: Services, now: Callable[[], float], ask: Ask
    ) -> None:
        self._backend = backend
        self._principal = principal
        self._services = services
        self._now = now
        self._ask = ask
        self._seen: dict[tuple[int, str], _Seen] = {}
        """By connection and list."""
        self._waiting: set[int] = set()
        self._changes = 0
        """How often a process has said that a list is another one: a look that was under way then is of before."""

    def pass_on(
        self,
        number: int,
        over: "PooledConnection",
        call: um.Call,
        pins: Pins,
        send: Callable[[], object],
        refuse: Callable[[Raw], None],
        looks: int = 1,
    ) -> None:
        """Sends a call as soon as it is known that what it names is as it was accepted, or refuses it."""
        subject = subjects.named(call.method, call.params)
        if subject is None or call.method not in METHODS or call.method == UNSUBSCRIBE:
            send()
            return

        def decide(held: frozenset[str]) -> None:
            if pins.allows(subject.kind, subject.name, held):
                send()
            else:
                self._told_refusal(pins, subject, call)
                refuse(subjects.unknown(call.method, subject).raw)

        method = LISTED_IN[subject.kind]
        seen = self._seen.get((over.number, method))
        if seen is not None and self._counts(seen, over, pins):
            decide(seen.held)
            return

        changes = self._changes

        def looked(items: Items | None, error: Raw) -> None:
            if number not in self._waiting:
                return
            self._waiting.discard(number)
            overtaken = changes != self._changes
            if items is None or error or (overtaken and looks >= LOOKS):
                refuse(unseen(self._backend).raw)
                return
            if overtaken:
                self.pass_on(number, over, call, pins, send, refuse, looks + 1)
                return
            judged = pins.judge(subject.kind, items)
            tell_all(self._services, pins, self._backend, judged.told)
            self._seen[over.number, method] = _Seen(over.server_info, pins, self._now(), judged.held)
            decide(judged.held)

        def page(params: Raw, then: Page) -> None:
            self._ask(over, method, params, then, LOOK_WITHIN)

        self._waiting.add(number)
        Paging(METHODS[method].items or "", page, looked).start()

    def _counts(self, seen: _Seen, over: "PooledConnection", pins: Pins) -> bool:
        same = over.server_info is not None and seen.server_info is over.server_info and seen.pins == pins
        return same and self._now() - seen.at < LOOK_AGAIN

    def _told_refusal(self, pins: Pins, subject: Subject, call: um.Call) -> None:
        if pins.misses(subject.kind, subject.name):
            return
        services, name = self._services, shown(subject.name[:SHOWN])
        services.telemetry.count("stagedoor_pin_refusals_total", (self._backend,))
        why = {"mode": "enforce", "outcome": "deny", "rule": PINS, "server": self._backend}
        who = called(self._principal.name, call.rights)
        services.log.info("pin_refused", kind=subject.kind, item=name, principal=who, **why)
        if services.audit.on:
            about = who_asks(self._principal, call.rights, None)
            services.audit.record("deny", item=f"{subject.kind}:{name}", **why, **about)

    def forget(self, number: int) -> bool:
        """Nobody waits for this call any more; whether it was not sent yet."""
        waited = number in self._waiting
        self._waiting.discard(number)
        return waited

    def changed(self, over: "PooledConnection", notification: str) -> None:
        """A process says that this list is another one."""
        for method, said in CHANGED.items():
            if said == notification:
                self._changes += 1
                self._seen.pop((over.number, method), None)

    def left(self, over: "PooledConnection") -> None:
        """It is there no more."""
        for key in [key for key in self._seen if key[0] == over.number]:
            del self._seen[key]
