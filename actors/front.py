"""The server's face of a session: what turns the client's requests into calls on links, and what links say into events.

Two kinds: `transparent` (one backend, as it is) and `aggregate` (several, under one roof). What both share is here: the
session's links, opened when first needed, and the bookkeeping of calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Raw

from actors.catalogue import CatalogueChanged, Key, Listed
from actors.link import (
    Call,
    Cancel,
    GiveAnswer,
    Join,
    LinkActor,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkReady,
    LinkTold,
    LinkWithdrew,
    Notify,
)
from actors.memo import Memo
from actors.named import Named
from actors.ports import Principal
from actors.protocol import capabilities, errors, session_record
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol import payload as json
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.messages import RequestId
from actors.protocol.session_state import Client
from actors.protocol.table import BackendSpec, Endpoint, Table
from actors.runtime import AtCapacity, Context, DynamicSupervisor, Ref, SystemClosed
from actors.services import Services


@dataclass(frozen=True, slots=True)
class Tree:
    """The actors that sessions work with."""

    links: DynamicSupervisor
    backends: Named
    catalogue: Named
    hellos: dict[Key, Hello]
    """What each backend last said of itself to the catalogue."""
    memo: Memo
    """Merged lists and tables, shared by all sessions."""


class Host(Protocol):
    """What a front needs of its session's actor."""

    ctx: Context
    principal: Principal

    @property
    def epoch(self) -> int:
        """Of the session's present life."""

    def event(self, event: ev.SessionEvent) -> None:
        """Steps the session's machine."""

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Changes the session's record."""

    @property
    def client(self) -> Client | None:
        """What the client said of itself."""

    @property
    def version(self) -> str:
        """The negotiated revision."""

    @property
    def level(self) -> str | None:
        """The log level that the client chose."""


Waiter = Callable[[LinkOutcome], None]
"""Gets the outcome of a call that the front made."""


class Front(ABC):
    """One session's front. `calls` maps the session's calls to the backend that runs each; calls of the front's own
    have
    negative numbers."""

    def __init__(self, host: Host, endpoint: str, services: Services, tree: Tree) -> None:
        self.host = host
        self.endpoint = endpoint
        self.services = services
        self.tree = tree
        self.links: dict[str, Ref] = {}
        self.hellos: dict[str, Hello] = {}
        self.calls: dict[int, str] = {}
        self.waiters: dict[int, Waiter] = {}
        self.subscriptions: tuple[str, ...] = ()
        self._subscribing: dict[int, tuple[str, bool]] = {}
        self._own = 0

    # What a session asks of it

    @abstractmethod
    def dispatch(self, effect: fx.Dispatch) -> None:
        """A request of the client; `CallEnded` follows, now or later."""

    @abstractmethod
    def told(self, message: LinkTold) -> None:
        """A notification of a backend."""

    @abstractmethod
    def asked(self, message: LinkAsked) -> None:
        """A request of a backend."""

    def listed(self, message: Listed) -> None:  # noqa: B027 - most fronts have nothing to do here
        """The catalogue's answer; only an aggregate asks it."""

    def changed(self, message: CatalogueChanged) -> None:  # noqa: B027 - most fronts have nothing to do here
        """The catalogue heard of a change; only an aggregate watches it."""

    def change_due(self, notification: str) -> None:  # noqa: B027 - most fronts have nothing to do here
        """A coalesced notification is due; only an aggregate coalesces."""

    def gather_due(self, method: str) -> None:  # noqa: B027 - most fronts have nothing to do here
        """A list deadline has passed; only an aggregate gathers."""

    def note(self, call: int, method: str, params: Raw) -> None:
        """Remembers what a call will have changed in the session if it succeeds."""
        if method in ("resources/subscribe", "resources/unsubscribe"):
            try:
                uri = msgspec.json.decode(params, type=Located).uri
            except (msgspec.DecodeError, RecursionError):
                return
            self._subscribing[call] = (uri, method == "resources/subscribe")

    def _subscribed(self, message: LinkOutcome) -> None:
        noted = self._subscribing.pop(message.call, None)
        if noted is None or not message.ok:
            return
        uri, wanted = noted
        rest = tuple(u for u in self.subscriptions if u != uri)
        self.subscriptions = (*rest, uri) if wanted else rest
        self.host.save(session_record.subscriptions(self.subscriptions))

    def restored(self, uris: tuple[str, ...]) -> None:
        """The session was rebuilt: its subscriptions are asked for again, on links of this life."""
        self.subscriptions = uris
        for uri in uris:
            self._own -= 1
            call = self._own
            self.waiters[call] = lambda outcome: None
            self.dispatch(fx.Dispatch(call, "resources/subscribe", json.dumps({"uri": uri}), False))

    def outcome(self, message: LinkOutcome) -> None:
        """The outcome of a call on a link."""
        self.calls.pop(message.call, None)
        if self._subscribing:
            self._subscribed(message)
        waiter = self.waiters.pop(message.call, None)
        if waiter is not None:
            waiter(message)
        elif message.call > 0:
            self.host.event(ev.CallEnded(message.call, message.ok, message.payload))

    def ready(self, message: LinkReady) -> None:
        """A link is up."""
        self.hellos[message.backend] = message.hello

    def down(self, message: LinkDown) -> None:
        """A link is down; it stays, and comes back with the next call."""
        self.hellos.pop(message.backend, None)
        self.host.event(ev.BackendLost(message.backend))

    def withdrew(self, message: LinkWithdrew) -> None:
        """A backend took a question back."""
        self.host.event(ev.AskWithdrawn(message.backend, message.id))

    def cancel(self, call: int, reason: str) -> None:
        """Nobody waits for this call any more."""
        self.waiters.pop(call, None)
        backend = self.calls.pop(call, None)
        link = self.links.get(backend) if backend is not None else None
        if link is not None:
            link.reply(Cancel(self.host.ctx.ref, call, reason))

    def broadcast(self, method: str, params: Raw) -> None:
        """A notification of the client for every backend that is connected."""
        for link in self.links.values():
            link.reply(Notify(method, params))

    def tell(self, backend: str, method: str, params: Raw) -> None:
        """A notification of the client for one backend."""
        link = self.links.get(backend)
        if link is not None:
            link.reply(Notify(method, params))

    def answer(self, backend: str, id: RequestId, ok: bool, payload: Raw) -> None:
        """The outcome of a backend's request."""
        link = self.links.get(backend)
        if link is not None:
            link.reply(GiveAnswer(id, ok, payload))

    def link_ended(self, ref: Ref) -> None:
        """A link's actor is gone (it crashed, or the gateway is draining): its calls are lost."""
        for backend, link in list(self.links.items()):
            if link is ref:
                del self.links[backend]
                self.hellos.pop(backend, None)
                self._lose(backend)

    def _lose(self, backend: str) -> None:
        error = errors.internal(
            f"the connection to server {backend!r} ended", reason="link_ended", executed="unknown", backend=backend
        ).raw
        for call in [c for c, b in self.calls.items() if b == backend]:
            self.outcome(LinkOutcome(backend, call, False, error))
        self.host.event(ev.BackendLost(backend))

    def deadline(self, call: int) -> float:
        """Seconds that a call may take."""
        spec = self.table.backends.get(self.calls.get(call, ""))
        limit = self.services.limits.request_deadline
        return min(limit, spec.timeout) if spec is not None else limit

    # For the two kinds

    @property
    def table(self) -> Table:
        """The present table; never kept past a message."""
        return self.services.table.value

    @property
    def served(self) -> Endpoint | None:
        """The endpoint as it is configured now."""
        return self.table.endpoints.get(self.endpoint)

    def own_call(self, backend: str, method: str, params: Raw, waiter: Waiter) -> bool:
        """A call of the front's own. False if there is no link to make it on."""
        self._own -= 1
        self.waiters[self._own] = waiter
        if self.call(self._own, backend, method, params, False):
            return True
        self.waiters.pop(self._own, None)
        return False

    def call(self, call: int, backend: str, method: str, params: Raw, progress: bool) -> bool:
        """Passes a call to a backend's link, which is opened if there is none."""
        link = self.link(backend)
        if link is None:
            return False
        self.calls[call] = backend
        link.reply(Call(self.host.ctx.ref, call, method, params, progress))
        return True

    def link(self, backend: str) -> Ref | None:
        """The session's link to a backend."""
        link = self.links.get(backend)
        if link is not None and link.alive:
            return link
        spec = self.table.backends.get(backend)
        if spec is None:
            return None
        try:
            link = self._start(spec)
        except (AtCapacity, SystemClosed):
            return None
        self.links[backend] = link
        self.host.ctx.monitor(link)
        link.reply(Join(self.host.ctx.ref))
        return link

    def _start(self, spec: BackendSpec) -> Ref:
        name = f"link-{spec.name}-shared" if spec.sharing == "shared" else None
        if name is not None:
            shared = self.host.ctx.system.registry.whereis(name)
            if shared is not None and shared.alive:
                return shared
        actor = LinkActor(spec, self.profile(spec), self.services, self.tree.backends, level=self.host.level)
        return self.tree.links.start_child(actor, name)

    def profile(self, spec: BackendSpec) -> Profile:
        """What a backend is told of the client."""
        client = self.host.client
        prefix = to_base36(self.host.epoch)
        if client is None or spec.sharing == "shared":
            # Nothing may be asked over a connection of several sessions: the answer would be anybody's.
            return Profile(Raw(b"{}"), Raw(self.services.identity), False, f"{prefix}s")
        declared = capabilities.declare(
            client.bits, roots_list_changed=client.capabilities.has(("roots", "listChanged"))
        )
        askable = bool(client.bits & {"sampling", "elicit.form", "elicit.url"})
        return Profile(declared, client.info, askable, prefix)

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        """Gives a call its outcome."""
        self.waiters.pop(call, None)
        if call > 0:
            self.host.event(ev.CallEnded(call, ok, payload))

    def refuse(self, call: int, error: errors.ProtocolError) -> None:
        """Gives a call an error of ours."""
        self.end(call, False, error.raw)


class Located(msgspec.Struct):
    """The member that names a resource."""

    uri: str


def to_base36(number: int) -> str:
    """Digits and lower-case letters."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    out = ""
    while number:
        number, rest = divmod(number, 36)
        out = digits[rest] + out
    return out or "0"
