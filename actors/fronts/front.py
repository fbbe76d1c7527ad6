"""The server's face of a session: what turns the client's requests into calls on links, and what links say into events.

Two kinds: `transparent` (one backend, as it is) and `aggregate` (several, under one roof). What both share is here: the
session's links, opened when first needed, and the bookkeeping of calls, questions and subscriptions.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import Raw

from actors.fronts.catalogue_messages import LIST_CHANGED, CatalogueChanged, Listed
from actors.fronts.front_tasks import FrontTasks
from actors.fronts.host import Host, Tree
from actors.fronts.leaving import wake
from actors.fronts.profiles import profile_of
from actors.fronts.session_link import start_session_link
from actors.fronts.sessionless import Sessionless
from actors.links.link_messages import (
    Call,
    Cancel,
    Continue,
    GiveAnswer,
    Hold,
    Join,
    LinkAsked,
    LinkDown,
    LinkOutcome,
    LinkReady,
    LinkTold,
    LinkUnfit,
    LinkWithdrew,
    Notify,
    Release,
)
from actors.links.own_calls import OwnDue
from actors.links.resume import KeptLinks
from actors.links.subscribers import Subscriptions
from actors.protocol import capabilities, errors, session_record, tasks, translate
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol import payload as json
from actors.protocol.link_calls import SET_LEVEL, SUBSCRIBE
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.messages import RequestId
from actors.protocol.table import BackendSpec, Endpoint, Table
from actors.runtime import AtCapacity, Ref, SystemClosed
from actors.services import Services

Waiter = Callable[[LinkOutcome], None]
"""Gets the outcome of a call that the front made, or one that it wants to change before the client sees it."""

NEWS = frozenset(LIST_CHANGED.values())


class Front(ABC):
    """One session's front. `calls` maps the session's calls to the backend that runs each; calls of the front's own
    have negative numbers. `kept`: what is in the record of its links, if there is one."""

    kept: KeptLinks | None = None
    hears_changes = True
    """Whether it wants to hear of changes that nobody subscribed to."""
    merges = False
    """Whether there are several servers behind it, whose things have other names here."""

    def __init__(self, host: Host, endpoint: str, services: Services, tree: Tree) -> None:
        self.host = host
        self.endpoint = endpoint
        self.services = services
        self.tree = tree
        self.links: dict[str, Ref] = {}
        self.hellos: dict[str, Hello] = {}
        self.calls: dict[int, str] = {}
        self.waiters: dict[int, Waiter] = {}
        self.subscriptions = Subscriptions(lambda uris: host.save(session_record.subscriptions(uris)))
        self._questions: dict[tuple[str, RequestId], str] = {}
        self.levels: dict[str, str | None] = {}
        self._ends: Counter[str] = Counter()
        self._own = 0
        self.sessionless = Sessionless(self)
        self.tasks = FrontTasks(self, prefixed=self.merges)

    # What a session asks of it

    @abstractmethod
    def dispatch(self, effect: fx.Dispatch) -> None:
        """A request of the client; `CallEnded` follows, now or later."""

    @abstractmethod
    def told(self, message: LinkTold) -> None:
        """A notification of a backend."""

    @abstractmethod
    def exposed_request(self, message: LinkAsked) -> Raw:
        """The params of a backend's request as the client sees them."""

    @abstractmethod
    def subscriptions_at(self, backend: str) -> tuple[str, ...]:
        """The session's subscriptions that are this backend's, in its own words."""

    @abstractmethod
    def use_level(self, level: str) -> None:
        """The client's log level is in force from here on."""

    def as_is(self, backend: str) -> bool:
        """Whether what this backend says passes as it is, to a client of the same revision."""
        return False

    @property
    def words(self) -> str:
        """The revision of the client, if what it asks passes as it is to a backend of the same one; else ""."""
        return ""

    def listed(self, message: Listed) -> None:  # noqa: B027 - most fronts have nothing to do here
        """The catalogue's answer; only an aggregate asks it."""

    def changed(self, message: CatalogueChanged) -> None:  # noqa: B027 - most fronts have nothing to do here
        """The catalogue heard of a change; only an aggregate watches it."""

    def change_due(self, notification: str) -> None:  # noqa: B027 - most fronts have nothing to do here
        """A coalesced notification is due; only an aggregate coalesces."""

    def gather_due(self, method: str, *, looks: str) -> None:  # noqa: B027 - most fronts have nothing to do here
        """A list deadline has passed; only an aggregate gathers."""

    def recall(self, fields: Mapping[str, bytes]) -> None:  # noqa: B027 - most fronts have nothing to do here
        """The session was rebuilt from a record with these fields; only an aggregate remembers lists."""

    def restored(self, uris: tuple[str, ...]) -> None:
        """The session was rebuilt: its subscriptions are asked for again, on links of this life."""
        self.subscriptions.uris = uris
        for backend in self.served.backends if self.served is not None else ():
            self.resubscribe(backend)

    def go_on(self, effect: fx.Continue) -> None:
        """A call of an earlier life: the rest of its answer is with the backend."""
        self.calls[effect.call] = effect.backend
        for id, method in effect.asked:
            self._questions[effect.backend, id] = method
        link = self.link(effect.backend)
        if link is None or self.shares(effect.backend):  # one that is shared has another session, or none
            text = f"no connection to server {effect.backend!r} can be made"
            error = errors.internal(text, reason="no_link", executed="unknown", backend=effect.backend)
            self.outcome(LinkOutcome(effect.backend, effect.call, False, error.raw))
            return
        asked = tuple(id for id, _ in effect.asked)
        link.reply(Continue(self.host.ctx.ref, effect.call, effect.method, effect.progress, effect.place, asked))

    def shrink(self) -> None:
        """Nobody was heard for a while: what can be had again is let go of."""
        self.hellos = {backend: hello.lasting for backend, hello in self.hellos.items()}

    def resubscribe(self, backend: str) -> None:
        """A link of its own subscribes by itself as soon as it is up; a shared one is told."""
        uris = self.subscriptions_at(backend)
        if uris and not self.shares(backend):
            self.link(backend)
        for uri in uris if self.shares(backend) else ():
            self.subscribe_again(backend, uri)

    def subscribe_again(self, backend: str, uri: str) -> None:
        """Once more, for the session; what it may have missed meanwhile is said when that is done."""
        params = json.dumps({"uri": uri})

        def subscribed(outcome: LinkOutcome) -> None:
            if outcome.ok:
                self.told(LinkTold(self.host.ctx.ref, backend, None, "notifications/resources/updated", params))

        self.own_call(backend, SUBSCRIBE, params, subscribed)

    def cancel(self, call: int, reason: str) -> None:
        """Nobody waits for this call any more."""
        self.waiters.pop(call, None)
        self.subscriptions.forget(call)
        self.tasks.forget(call)
        backend = self.calls.pop(call, None)
        link = self.links.get(backend) if backend is not None else None
        if link is not None:
            link.reply(Cancel(self.host.ctx.ref, call, reason))

    def may_wait(self, call: int) -> bool:
        """Whether a call may not have been sent yet: there is no connection, or it may have to wait for its turn."""
        backend = self.calls.get(call)
        if backend is None or backend in self.sessionless:
            return False
        return backend not in self.hellos or bool(self.bits)

    def hold(self, call: int) -> None:
        """Its request is recorded: if it was not sent yet, it is not to be before the record says so no more."""
        link = self.links.get(self.calls.get(call, ""))
        if link is not None:
            link.reply(Hold(self.host.ctx.ref, call))

    def release(self, call: int) -> None:
        """A call that was held may be sent."""
        link = self.links.get(self.calls.get(call, ""))
        if link is not None:
            link.reply(Release(self.host.ctx.ref, call))

    def pass_on(self, backend: str, message: Call) -> None:
        """A call that one link has given back unsent goes to another."""

        def pass_on() -> None:
            link = self.link(backend) if self.calls.get(message.call) == backend else None
            if link is not None:
                link.reply(message)
                self.host.routed(message.call)
            elif self.calls.pop(message.call, None) is not None:
                self.refuse_linkless(message.call, backend)

        if message.call < 0:
            pass_on()
        else:
            self.host.leave(message.call, pass_on)

    def broadcast(self, method: str, params: Raw) -> None:
        """A notification of the client for every backend that is connected to it alone, or whom it concerns."""
        wake(self)
        if method == tasks.STATUS:
            self.tell(self.tasks.hears_of(params) or "", method, params)
            return
        for backend, link in self.links.items():
            if not self.shares(backend):
                link.reply(Notify(method, params))

    def tell(self, backend: str, method: str, params: Raw) -> None:
        """A notification of the client for one backend."""
        link = self.links.get(backend)
        if link is not None:
            link.reply(Notify(method, params))

    def answer(self, backend: str, id: RequestId, ok: bool, payload: Raw) -> None:
        """The outcome of a backend's request, in the words of its revision."""
        method = self._questions.pop((backend, id), None)
        link, hello = self.links.get(backend), self.hellos.get(backend)
        if link is None:
            return
        version = hello.version if hello is not None else self.kept.version(backend) if self.kept is not None else None
        if ok and method is not None and version is not None and not self.as_is(backend):
            ok, payload = translate.answer(method, ok, payload, version)
        payload = self.tasks.answered(backend, method, payload) if ok else payload
        link.reply(GiveAnswer(id, ok, payload))

    def deadline(self, call: int) -> float:
        """Seconds that a call may take."""
        spec = self.table.backends.get(self.calls.get(call, ""))
        limit = self.services.limits.request_deadline
        return min(limit, spec.timeout) if spec is not None else limit

    # What links say

    def ready(self, message: LinkReady) -> None:
        """A link is up. One that was being made when the client chose its log level is told now."""
        backend = message.backend
        self.hellos[backend] = message.hello
        spec = self.table.backends.get(backend)
        if self.kept is not None and spec is not None and not self.shares(backend):
            self.kept.ready(spec, message.hello, message.kept)
        self._ends.pop(backend, None)
        self.sessionless.ready(backend)
        level = self.host.level
        if level and self.levels.get(backend) != level:
            self.set_level(backend, level)

    def unfit(self, message: LinkUnfit) -> None:
        """A backend is of the other era than it was taken for."""
        self.sessionless.unfit(message)

    def down(self, message: LinkDown) -> None:
        """A link is down; it stays, and comes back with the next call."""
        self._disconnected(message.backend)

    def outcome(self, message: LinkOutcome) -> None:
        """The outcome of a call on a link."""
        self.calls.pop(message.call, None)
        message = self.tasks.outcome(message)
        if message.call < 0:
            self.host.ctx.cancel_timer(("own", message.call))
        self.subscriptions.settle(message.call, message.ok)
        waiter = self.waiters.pop(message.call, None)
        if waiter is not None:
            waiter(message)
        elif message.call > 0:
            self.host.event(ev.CallEnded(message.call, message.ok, message.payload, self.as_is(message.backend)))

    def asked(self, message: LinkAsked) -> None:
        """A request of a backend."""
        refusal = self.tasks.refusal(message)
        if refusal is not None:
            message.link.reply(GiveAnswer(message.id, False, refusal.raw))
            return
        self._questions[message.backend, message.id] = message.method
        backend, call, id, method = message.backend, message.call, message.id, message.method
        params = self.tasks.exposed(backend, method, self.exposed_request(message))
        self.host.event(ev.Asked(backend, call, id, method, params, message.place, self.as_is(backend)))

    def withdrew(self, message: LinkWithdrew) -> None:
        """A backend took a question back."""
        if self._questions.pop((message.backend, message.id), None) is not None:
            self.host.event(ev.AskWithdrawn(message.backend, message.id))

    def link_ended(self, ref: Ref) -> None:
        """A link's actor is gone: its calls are lost. After a crash another one takes over the subscriptions."""
        for backend, link in list(self.links.items()):
            if link is ref:
                self._lose(backend)
                if ref.reason is not None and ref.reason.abnormal:
                    self.resubscribe(backend)

    def _lose(self, backend: str) -> None:
        del self.links[backend]
        self._ends[backend] += 1
        error = errors.internal(
            f"the connection to server {backend!r} ended", reason="link_ended", executed="unknown", backend=backend
        ).raw
        for call in [c for c, b in self.calls.items() if b == backend]:
            self.outcome(LinkOutcome(backend, call, False, error))
        self._disconnected(backend)

    def _disconnected(self, backend: str) -> None:
        """Its questions are void."""
        if self.hellos.pop(backend, None) is not None and self.kept is not None:
            self.kept.lost(backend)
        for question in [q for q in self._questions if q[0] == backend]:
            del self._questions[question]
        self.host.event(ev.BackendLost(backend))

    def heard(self, backend: str, method: str) -> None:
        """A backend has notified over the client's own connection: if a list has changed there, it may have changed for
        everybody, and whoever shows the last one known looks again."""
        if method in NEWS and not self.shares(backend):
            self.tree.changes[backend, method] += 1

    def let_go(self) -> None:
        """Its actor has ended. What it is made of points back at it: it drops everything, so that its memory is free
        at once."""
        vars(self).clear()

    # For the two kinds

    @property
    def table(self) -> Table:
        """The present table; never kept past a message."""
        return self.services.table.value

    @property
    def served(self) -> Endpoint | None:
        """The endpoint as it is configured now."""
        return self.table.endpoints.get(self.endpoint)

    def own_call(self, backend: str, method: str, params: Raw, waiter: Waiter) -> int:
        """A call of the front's own: its number, 0 if there is no link to make it on."""
        self._own -= 1
        call = self._own
        self.waiters[call] = waiter
        if self.call(call, backend, method, params, False):
            self.host.ctx.set_timer(("own", call), self.deadline(call), OwnDue(call))
            return call
        self.waiters.pop(call, None)
        return 0

    def own_due(self, call: int) -> None:
        """A backend that never answers must not be waited for."""
        waiter, backend = self.waiters.get(call), self.calls.get(call, "")
        self.cancel(call, "deadline exceeded")
        if waiter is not None:
            waiter(LinkOutcome(backend, call, False, errors.unanswered(backend or None).raw))

    def set_level(self, backend: str, level: str) -> None:
        """Tells a connected backend the log level, if it has logging."""
        hello = self.hellos.get(backend)
        if hello is None or self.shares(backend) or not capabilities.parse(hello.capabilities).has(("logging",)):
            return
        self.levels[backend] = level

        def told(outcome: LinkOutcome) -> None:
            if not outcome.ok and self.levels.get(backend) == level:
                del self.levels[backend]

        self.own_call(backend, SET_LEVEL, json.dumps({"level": level}), told)

    def call(self, call: int, backend: str, method: str, params: Raw, progress: bool) -> bool:
        """Passes a call to a backend's link, which is opened if there is none."""
        link = self.link(backend)
        if link is None:
            return False
        self.calls[call] = backend
        self.tasks.notes(call, backend, method, params)
        me, client = self.host.ctx.ref, self.sessionless.client(backend)
        link.reply(Call(me, call, method, params, progress, client, version=self.words))
        return True

    def link(self, backend: str) -> Ref | None:
        """The session's link to a backend."""
        link = self.links.get(backend)
        if link is not None:
            if link.alive:
                return link
            self._lose(backend)  # its Down is on the way, and will find another link here
        spec = self.table.backends.get(backend)
        if spec is None:
            return None
        try:
            link = self._start(spec)
        except (AtCapacity, SystemClosed):
            return None
        self.links[backend] = link
        self.host.ctx.monitor(link)
        link.reply(Join(self.host.ctx.ref, self.hears_changes))
        return link

    def _start(self, spec: BackendSpec) -> Ref:
        sessionless = self.sessionless.start(spec)
        if sessionless is not None:
            return sessionless
        return start_session_link(self, spec, self._ends[spec.name])

    @property
    def bits(self) -> capabilities.ClientBits:
        """What the client can be asked, as far as backends hear of it."""
        client = self.host.client
        return capabilities.carried(client.bits) if client is not None else frozenset()

    def shares(self, backend: str) -> bool:
        """Whether the connection to a backend is not the session's own."""
        spec = self.table.backends.get(backend)
        return spec is not None and (spec.sharing == "shared" or backend in self.sessionless)

    def profile(self, spec: BackendSpec, *, own: bool = False) -> Profile:
        """What a backend is told of the client; `own`: over the connection of this session alone."""
        client = None if spec.sharing == "shared" else self.host.client
        version = self.host.version if own else ""
        return profile_of(client, self.bits, self.host.epoch, self.services.identity, version)

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        """Gives a call its outcome."""
        self.waiters.pop(call, None)
        self.subscriptions.forget(call)
        if call > 0:
            self.host.event(ev.CallEnded(call, ok, payload))

    def refuse(self, call: int, error: errors.ProtocolError) -> None:
        """Gives a call an error of ours."""
        self.end(call, False, error.raw)

    def refuse_linkless(self, call: int, backend: str) -> None:
        """No link can be had: at a bound, or while the gateway ends."""
        text = f"no connection to server {backend!r} can be made"
        self.refuse(call, errors.internal(text, reason="no_link", executed="no", backend=backend))
