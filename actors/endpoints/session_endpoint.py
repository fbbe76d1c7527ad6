"""An endpoint for a client with a session: routes its requests to servers, and what servers say back to it.

The session's rules are here: the handshake, subscriptions, the log level, server requests, and what the session's
record keeps of its connections.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from actors.endpoints.endpoint import Endpoint
from actors.endpoints.host import Host, Tree, profile_of, whose_connection
from actors.endpoints.listing import RESOURCES, TEMPLATES, Source, catalogue_key
from actors.endpoints.merged import EXTENSIONS, Merged, passed_on
from actors.endpoints.single import Single
from actors.endpoints.task_registry import TaskRegistry
from actors.endpoints.upstreams import no_upstream
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.machines.upstream.events import AnswerGiven, Continued, Hold, Notified, Released, ServerInfo, Wanted
from actors.machines.upstream.legacy_state import Profile
from actors.machines.upstream.modern_events import Caller
from actors.protocol import capabilities, codec, tasks, translate
from actors.protocol import payload as json
from actors.protocol.filter import located
from actors.protocol.messages import EMPTY, Notification, RequestId
from actors.protocol.methods import (
    ELICITED,
    LIST_CHANGED,
    METHODS,
    PROGRESS,
    SET_LEVEL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATED,
)
from actors.protocol.policy import Policy, shown_otherwise
from actors.protocol.rights import Rights
from actors.protocol.subjects import CALL
from actors.protocol.table import TOOLS, BackendSpec, Table, replaced
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN, can_use
from actors.runtime import EMPTY_SET, EMPTY_TABLE, ExitKind, Ref, put
from actors.services import Services
from actors.upstreams.legacy import LegacyUpstream
from actors.upstreams.messages import (
    Call,
    UpstreamNotification,
    UpstreamOutcome,
    UpstreamReady,
    UpstreamRequest,
    UpstreamWithdrew,
)
from actors.upstreams.resume import ResumableUpstreams, delete_upstream
from actors.upstreams.start import start_modern_upstream, start_upstream
from actors.upstreams.subscribers import Subscriptions

INITIALIZE = "initialize"
RULED = "ruled"
"""The field of a session's record that says by which rules its client was last heard of."""
LOCAL = frozenset({INITIALIZE, SET_LEVEL, *tasks.ASKING})
"""Requests that need more than to be passed on."""


class SessionHost(Host, Protocol):
    """What it needs besides of the actor of a session."""

    def event(self, event: ev.SessionEvent) -> None:
        """Steps the session's machine."""

    @property
    def epoch(self) -> int:
        """Of the session's present life."""

    @property
    def level(self) -> str | None:
        """The log level that the client chose, as in `Session`."""

    @property
    def listening(self) -> Rights | None:
        """Of the token by which the stream was opened on which goes out what belongs to no request; None: there is no
        such stream, or it is not known."""

    @property
    def unread(self) -> bool:
        """Whether nobody reads such a stream."""

    def brought_with(self, call: int) -> Rights | None:
        """Of the token by which the stream was asked for again that brings the outcome of this call."""

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Changes the session's record."""

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as no record says of this call that it was not sent."""


class SessionEndpoint(Endpoint):
    """The endpoint of one session. `kept`: what is in the record of its connections, if there is one."""

    era = "legacy"
    host: SessionHost
    kept: ResumableUpstreams | None = None

    def __init__(self, host: SessionHost, name: str, services: Services, tree: Tree, *, merged: bool) -> None:
        self.levels: dict[str, str] = EMPTY_TABLE
        """By server: the log level that it was told, if it was told any."""
        self.dialer = SessionDialer(self)
        super().__init__(host, name, services, tree, self.dialer)
        self._single: Single | None = None
        if merged:
            self.merged = self.naming = Merged(self, Source(self))
        else:
            self._single = self.naming = Single(self)
        self.former: frozenset[str] = EMPTY_SET
        """Servers that are configured otherwise by now than when their connection was made."""
        self.tasks = TaskRegistry(self)
        self.subscriptions = Subscriptions(self._save_subscriptions)
        self._questions: dict[tuple[str, RequestId], str] = EMPTY_TABLE
        self._ruled: str | None = "" if services.table.value.policy is None else None
        """By which rules the client was last heard of; None: it was not."""
        self._by: tuple[Policy | None, Rights] | None = None
        """What those follow from."""
        self._kept_back: tuple[str, ...] | None = None
        """What it is subscribed to, until it is known what it may see: the session was rebuilt, its rights were not."""

    def statistics(self) -> dict[str, int]:
        """As in `Endpoint`."""
        own = {"questions": len(self._questions), "subscribing": self.subscriptions.pending}
        return super().statistics() | own

    def _save_subscriptions(self, uris: tuple[str, ...]) -> None:
        self.host.save(session_record.subscriptions(uris))

    # What the client is

    @property
    def bits(self) -> capabilities.ClientBits:
        """As in `Endpoint`."""
        client = self.host.client
        bits = capabilities.carried(client.bits) if client is not None else frozenset()
        return passed_on(bits) if self.naming.merges else bits

    def profile(self, spec: BackendSpec, *, own: bool = False) -> Profile:
        """What a server is told of the client; `own`: over the connection of this session alone. A single server is
        told word by word what the client said of itself, if that speaks the revision that the server is offered."""
        client, whose = None if spec.common else self.host.client, whose_connection(spec, self.host.principal)
        version = self.host.version if own else ""
        profile = profile_of(client, self.bits, self.host.epoch, self.services.identity, version, whose)
        if self.naming.merges or client is None or not own:
            return profile
        as_is = self.host.version == LATEST_HANDSHAKE
        declared = capabilities.transparent_client(client.capabilities, profile.capabilities, as_is=as_is)
        return replace(profile, capabilities=declared)

    def server_info(self, backend: str) -> ServerInfo | None:
        """What a server said of itself, to this session or to the catalogue."""
        return self.upstreams.server_infos.get(backend) or self.tree.server_info(catalogue_key(self, backend))

    def lists_itself(self, backend: str) -> bool:
        """Whether the session has a connection of its own, over which it may see other things than others; or one to
        the server as it was configured before, whose tools are those that it can call."""
        up = backend in self.upstreams.server_infos
        return up and (backend in self.former or not self.upstreams.shares(backend))

    def as_is(self, backend: str) -> bool:
        """As in `Endpoint`: to a client of the same revision."""
        if self.naming.merges:
            return False
        server_info = self.upstreams.server_infos.get(backend)
        return server_info is not None and server_info.version == self.host.version

    @property
    def words(self) -> str:
        """As in `Endpoint`."""
        return self.host.version if self.merged is None else ""

    def save(self, fields: dict[str, bytes | None]) -> None:
        """As in `Endpoint`."""
        self.host.save(fields)

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """As in `Endpoint`."""
        self.host.leave(call, act)

    # Accounts

    def client_info(self, call: int) -> Raw:
        """As in `Endpoint`."""
        client = self.host.client
        return client.info if client is not None else EMPTY

    def ask(self, call: int, id: str, params: Raw) -> None:
        """As in `Endpoint`: a server request like any other, of nobody's."""
        self.host.event(ev.ServerRequested("", call, id, "elicitation/create", params, None, False))

    def complete(self, params: Raw) -> None:
        """As in `Endpoint`."""
        if "elicit.url" in self.bits and can_use(self.host.version, "elicitation_modes"):
            self.host.event(ev.CallProgressed("", None, ELICITED, params, self.host.ctx.now()))

    # Requests of the client

    def dispatch(self, effect: fx.Dispatch) -> None:
        """A request of the client; `CallEnded` follows, now or later."""
        method = effect.method
        if method not in LOCAL:
            self.naming.route(effect)
        elif not self.naming.configured:
            self.refuse(effect.call, self.naming.unconfigured())
        elif method == INITIALIZE:
            self._initialize(effect)
        elif method in tasks.ASKING:
            self.tasks.dispatch(effect)
        elif self.naming.merges:
            # The level is the gateway's own to accept: it leaves out what is below, whatever servers make of it.
            self.end(effect.call, True, Raw(b"{}"))
        else:
            self.naming.route(effect)

    def send(self, effect: fx.Dispatch, backend: str, params: Raw, *, waited: bool = False) -> None:
        """As in `Endpoint`."""
        call, method = effect.call, effect.method
        if effect.as_task and self.tasks.runs_none(backend):
            self.refuse(call, tasks.no_task_of(method))
            return
        spec = self.services.table.value.backends.get(backend)
        if spec is not None and spec.auth is not None and spec.connectable and self.connects(effect, backend, params):
            return
        if method in (SUBSCRIBE, UNSUBSCRIBE):
            refusal = self.subscriptions.note(call, method, effect.params)
            if refusal is not None:
                self.refuse(call, refusal)
                return
            self.upstreams.wait(call, self._subscribed)
        elif method in tasks.ASKING or effect.as_task:
            ruled = method == CALL and self.services.table.value.policy is not None
            tool = json.text_member(params, "name") or "" if ruled else ""
            token = json.progress_token(effect.params) if effect.as_task else None
            registry = self.tasks
            self.upstreams.wait(call, lambda out: self.pass_outcome(registry.outcome(method, out, tool, token)))
        version = self.host.version if self.merged is None else ""
        if self.services.observer is not None:
            self.host.sent(call, backend)
        if not self.upstreams.call(
            call, backend, method, params, effect.progress, version=version, rights=effect.rights
        ):
            self.refuse(call, no_upstream(backend))
        elif waited:
            self.host.routed(call)

    def go_on(self, effect: fx.Continue) -> None:
        """A call of an earlier life: the rest of its answer is with the server."""
        call, backend = effect.call, effect.backend
        self.upstreams.runs(call, backend)
        if self.merged is not None:
            self.merged.exposes(call, effect.method)
        for id, method in effect.asked:
            self._questions = put(self._questions, (backend, id), method)
        upstream = self.upstreams.connection(backend)
        if upstream is None or self.upstreams.shares(backend):  # one that is shared has another session, or none
            self.outcome(UpstreamOutcome(backend, call, False, no_upstream(backend, "unknown").raw))
            return
        asked = tuple(id for id, _ in effect.asked)
        upstream.reply(Continued((self.host.ctx.ref, call), effect.method, effect.progress, effect.place, asked))

    def forget(self, call: int) -> None:
        """As in `Endpoint`."""
        super().forget(call)
        self.subscriptions.forget(call)

    # Calls whose request is in the record, and which must not be sent before it says so

    def may_wait(self, call: int) -> bool:
        """Whether a call may not have been sent yet: there is no connection, or it may have to wait for its turn."""
        if self._waits(call):
            return True
        backend = self.calls.get(call)
        if backend is None or backend in self.dialer.told:
            return False
        return backend not in self.upstreams.server_infos or bool(self.bits)

    def hold(self, call: int) -> None:
        """Its request is recorded: if it was not sent yet, it is not to be before the record says so no more."""
        if self._waits(call):
            self.host.event(ev.CallHeld(call))
            return
        upstream = self.upstreams.connections.get(self.calls.get(call, ""))
        if upstream is not None:
            upstream.reply(Hold((self.host.ctx.ref, call)))

    def _waits(self, call: int) -> bool:
        """Whether it is kept back here: until lists are known, its user has an account, definitions were looked at, or
        its limits were asked."""
        if call in self.connecting.held or call in self.limiting.waiting:
            return True
        naming, pinning = self.merged, self.pinning
        return (naming is not None and naming.waits(call)) or (pinning is not None and pinning.holds(call))

    def release(self, call: int) -> None:
        """A call that was held may be sent."""
        upstream = self.upstreams.connections.get(self.calls.get(call, ""))
        if upstream is not None:
            upstream.reply(Released((self.host.ctx.ref, call)))

    # The handshake

    def _initialize(self, effect: fx.Dispatch) -> None:
        """A single server answers itself. For several the gateway does, and waits for none of them."""
        call = effect.call
        if self.merged is not None:
            self.end(call, True, self._superset(self.merged))
            return
        served = self.upstreams.served
        assert served is not None  # it is configured
        backend = served.backends[0]

        def ready(server_info: ServerInfo | None, error: Raw) -> None:
            if server_info is None:
                # Who has no account at the server hears where to connect it: he can be asked nothing yet.
                self.connecting.note(effect, backend)
                if not self.connecting.takes(UpstreamOutcome(backend, call, False, error)):
                    self.end(call, False, error)
            else:
                offers = self.tasks.offers(backend, server_info)
                said = initialize_result(server_info, self.host.version, with_tasks=offers)
                self.end(call, True, self.guard.introducing(backend, server_info.instructions, said))

        self.upstreams.when_ready(backend, ready)

    def _superset(self, merged: Merged) -> Raw:
        """What all servers have: a session's capabilities can't grow later. What a server said to nobody in particular
        is not all that it may say to this client."""
        tree, backends = self.tree, merged.listing.backends
        keys = {b: catalogue_key(self, b) for b in backends}
        said = {b: h for b in backends if (h := tree.server_info(keys[b])) is not None}
        known = {b: h for b, h in said.items() if tree.surely(keys[b])}
        # Those of which the client sees nothing now count as not known: its rights may be others later.
        all_known = len(known) == merged.listing.served
        declared = capabilities.merge_server(
            [h.capabilities for h in known.values()], pending=not all_known, extensions=EXTENSIONS
        )
        if can_use(self.host.version, "tasks"):
            shown = [h.capabilities for b, h in known.items() if self.tasks.offers(b, h)]
            pending = any(b not in known and not self.upstreams.shares(b) for b in backends)
            declared = json.replace_members(declared, {"tasks": tasks.merged(shown, pending=pending)})
        result = {
            "protocolVersion": self.host.version,
            "capabilities": declared,
            "serverInfo": Raw(self.services.identity),
        }
        return json.dumps(result | self.instructions(said))

    # Notifications and answers of the client

    def broadcast(self, method: str, params: Raw) -> None:
        """A notification of the client for every server that is connected to it alone, or whom it concerns."""
        if self.merged is None and method not in METHODS:
            self._pass_to_peer(method, params)
            return
        for backend in self.kept.reachable if self.kept is not None else ():
            upstream = self.upstreams.connection(backend)  # its session waits for this one
            if upstream is not None:
                upstream.reply(Wanted())
        if method == tasks.STATUS:
            self.tell(self.tasks.hears_of(params) or "", method, params)
            return
        for backend, upstream in self.upstreams.connections.items():
            if not self.upstreams.shares(backend):
                upstream.reply(Notified(method, params))

    def _pass_to_peer(self, method: str, params: Raw) -> None:
        """What only the client and its one server know brings their connection up. Over one that others use too it
        could be anybody's."""
        served = self.upstreams.served
        backend = served.backends[0] if served is not None else ""
        upstream = self.upstreams.connection(backend) if self.guard.shows(backend, "tool", method) else None
        if upstream is None or self.upstreams.shares(backend):
            self.services.telemetry.count("stagedoor_messages_dropped_total", ("unknown_notification",))
        else:
            upstream.reply(Notified(method, params))

    def tell(self, backend: str, method: str, params: Raw) -> None:
        """A notification of the client for one server."""
        upstream = self.upstreams.connections.get(backend)
        if upstream is not None:
            upstream.reply(Notified(method, params))

    def answer(self, backend: str, id: RequestId, ok: bool, payload: Raw, unheard: bool = False) -> None:
        """The outcome of a server's request, in the words of its revision; or of ours."""
        if isinstance(id, str) and self.connecting.answered(id, ok, payload):
            return
        method = self._questions.pop((backend, id), None)
        upstream, server_info = self.upstreams.connections.get(backend), self.upstreams.server_infos.get(backend)
        if upstream is None:
            return
        version = (
            server_info.version
            if server_info is not None
            else self.kept.version(backend)
            if self.kept is not None
            else None
        )
        if ok and method is not None and version is not None and not self.as_is(backend):
            ok, payload = translate.answer(method, ok, payload, version)
        payload = self.tasks.answered(backend, method, payload) if ok else payload
        upstream.reply(AnswerGiven(id, ok, payload, unheard))

    # The log level

    def use_level(self, level: str) -> None:
        """The client's log level is in force. Servers that are connected are told; others hear it when they are."""
        for backend in list(self.upstreams.connections):
            if self.naming.merges:
                self._set_level(backend, level)
            else:
                # It has said so, and the connection says it again after a loss.
                self.levels = put(self.levels, backend, level)

    def _set_level(self, backend: str, level: str) -> None:
        """Tells a connected server the log level, if it has logging."""
        server_info = self.upstreams.server_infos.get(backend)
        if server_info is None or self.upstreams.shares(backend):
            return
        if not capabilities.parse(server_info.capabilities).has(("logging",)):
            return
        self.levels = put(self.levels, backend, level)

        def told(outcome: UpstreamOutcome) -> None:
            if not outcome.ok and self.levels.get(backend) == level:
                del self.levels[backend]

        self.upstreams.own_call(backend, SET_LEVEL, json.dumps({"level": level}), told)

    # Subscriptions

    def subscriptions_at(self, backend: str) -> tuple[str, ...]:
        """The session's subscriptions that are this server's, in its own words."""
        owners = [self.naming.owner(uri) for uri in self.subscriptions.uris]
        uris = tuple(owner[1] for owner in owners if owner is not None and owner[0] == backend)
        return tuple(uri for uri in uris if self.guard.shows(backend, "resource", uri))

    def resubscribe(self, backend: str) -> None:
        """A connection of its own subscribes by itself as soon as it is up; a shared one is told."""
        uris = self.subscriptions_at(backend)
        if uris and not self.upstreams.shares(backend):
            self.upstreams.connection(backend)
        for uri in uris if self.upstreams.shares(backend) else ():
            self._subscribe(backend, uri)

    def _subscribe(self, backend: str, uri: str) -> None:
        """Once more, for the session; what it may have missed meanwhile is said when that is done."""
        params = json.dumps({"uri": uri})

        def subscribed(outcome: UpstreamOutcome) -> None:
            if outcome.ok:
                self.told(
                    UpstreamNotification(self.host.ctx.ref, backend, None, "notifications/resources/updated", params)
                )

        self.upstreams.own_call(backend, SUBSCRIBE, params, subscribed)

    def _subscribed(self, outcome: UpstreamOutcome) -> None:
        """The outcome of what the client asked for."""
        self.subscriptions.settle(outcome.call, outcome.ok)
        self.pass_outcome(outcome)

    # What connections say

    def told(self, message: UpstreamNotification) -> None:
        """A notification of a server."""
        backend, method, params = message.backend, message.method, message.params
        if self.news(backend, method) or (method == tasks.STATUS and not self.tasks.knows(backend, params)):
            return
        of_task = method == PROGRESS and message.call is None
        if of_task and (progress := self.tasks.progress(backend, params)) is not None:
            params = progress
        elif of_task:
            return
        if (of_task or method in (UPDATED, tasks.STATUS)) and not self._may_hear(message):
            return
        if self.merged is not None:
            params = self.tasks.exposed(backend, method, self.merged.notification(backend, method, params))
        now, as_is = self.host.ctx.now(), self.as_is(backend)
        self.host.event(ev.CallProgressed(backend, message.call, method, params, now, message.place, as_is))

    def rights_of(self, call: int) -> Rights | None:
        """As in `Endpoint`; of a call of an earlier life those with which its stream was asked for again."""
        return super().rights_of(call) or self.host.brought_with(call)

    def _may_hear(self, message: UpstreamNotification) -> bool:
        """Whether whoever reads the stream that it goes out on, that of its call or another one, may know of this
        resource, or of the tool whose task it is."""
        call, backend, params = message.call, message.backend, message.params
        if call is None and self.host.unread:
            return True  # it waits for a reader, and then this is asked (`may_have`)
        rights = self.host.listening if call is None else self.rights_of(call)
        shows = self.guard.shows_update if message.method == UPDATED else self.tasks.shows
        return self.guard.asking(rights, lambda: shows(backend, params))

    def may_have(self, rights: Rights, frame: bytes) -> bool:
        """The same of a message that has waited, in the client's words. What can't be told is not shown."""
        if self.services.table.value.policy is None:
            return True
        message = codec.decode_message(frame)
        if not isinstance(message, Notification):
            return True
        if message.method in (tasks.STATUS, PROGRESS):
            return self.guard.asking(rights, lambda: self.tasks.shows_mine(message.params))
        return message.method != UPDATED or self._may_hear_of(rights, located(message.params) or "")

    def _may_hear_of(self, rights: Rights | None, uri: str) -> bool:
        """Whether a client may hear that a resource of this name of the client's has changed."""
        owner = self.naming.owner(uri)
        if owner is None:
            return self.guard.asking(rights, lambda: self.guard.ruleset) is None
        backend, own = owner
        return self.guard.asking(rights, lambda: self.guard.shows_update(backend, json.dumps({"uri": own})))

    def sees_otherwise(self, before: Rights | None, rights: Rights) -> bool:
        """Whether tokens with these rights see other things; None: the one that was heard last."""
        keys = [self._ruled or ""] if before is None else [self.guard.asking(before, lambda: self.guard.key)]
        return self.guard.asking(rights, lambda: self.guard.key) not in keys

    def asked(self, message: UpstreamRequest) -> None:
        """A request of a server."""
        refusal = self.tasks.refusal(message)
        if refusal is not None:
            message.upstream.reply(AnswerGiven(message.id, False, refusal.raw))
            return
        self._questions = put(self._questions, (message.backend, message.id), message.method)
        backend, call, id, method = message.backend, message.call, message.id, message.method
        params = self.tasks.exposed(backend, method, self.naming.question(backend, method, message.params))
        place, outlasts = message.place, message.outlasts
        self.host.event(ev.ServerRequested(backend, call, id, method, params, place, self.as_is(backend), outlasts))

    def withdrew(self, message: UpstreamWithdrew) -> None:
        """A server took a server request back."""
        if self._questions.pop((message.backend, message.id), None) is not None:
            self.host.event(ev.ServerRequestWithdrawn(message.backend, message.id))

    def ready(self, message: UpstreamReady) -> None:
        """A connection is up. One that was being made when the client chose its log level is told now."""
        backend, server_info = message.backend, message.server_info
        self.upstreams.ready(message)
        spec = self.services.table.value.backends.get(backend)
        if self.kept is not None and spec is not None and not self.upstreams.shares(backend):
            self.kept.ready(spec, server_info, message.kept)
        level = self.host.level
        if level and self.levels.get(backend) != level:
            self._set_level(backend, level)
        self.connected(backend, server_info)

    def redirect(self, backend: str, upstream: Ref, calls: list[Call]) -> None:
        """As in `Endpoint`: subscriptions go there too."""
        for call in calls:
            caller = self.dialer.caller(backend, call.call) if backend in self.dialer.told else None
            self._pass_on(backend, replace(call, client=caller, version=self.words))
        upstream.reply(Wanted())
        self.resubscribe(backend)

    def _pass_on(self, backend: str, message: Call) -> None:
        def pass_on() -> None:
            upstream = self.upstreams.connection(backend) if self.calls.get(message.call) == backend else None
            if upstream is not None:
                upstream.reply(message)
                self.host.routed(message.call)
            elif self.upstreams.over(message.call) is not None:
                self.refuse(message.call, no_upstream(backend))

        if message.call < 0:
            pass_on()
        else:
            self.host.leave(message.call, pass_on)

    def upstream_ended(self, ref: Ref) -> None:
        """A connection's actor is gone. After a crash, and where the server has another configuration, another one
        takes over the subscriptions."""
        for backend in self.upstreams.ended(ref):
            if ref.reason is not None and ref.reason.kind is not ExitKind.SHUTDOWN:
                self.resubscribe(backend)

    def disconnected(self, backend: str, was_up: bool) -> None:
        """As in `Endpoint`: its server requests are void."""
        if was_up and self.kept is not None:
            self.kept.lost(backend)
        for question in [q for q in self._questions if q[0] == backend]:
            del self._questions[question]
        self.host.event(ev.BackendLost(backend))
        if backend in self.former:
            self.former -= {backend}
            self._renewed(backend)

    def _renewed(self, backend: str) -> None:
        """The next connection is one to the server that is configured."""
        if self.merged is not None:
            self.merged.renewed(backend)
        elif self._single is not None and self._single.configured:
            self._single.changed(LIST_CHANGED)

    @property
    def bound(self) -> bool:
        """Whether a connection lives and dies with this process, or can't be made again as it is."""
        return bool(self.former) or self.upstreams.bound

    # The session's life

    def recall(self, fields: Mapping[str, bytes]) -> None:
        """The session was rebuilt from a record with these fields."""
        self._ruled = fields.get(RULED, b"").decode()
        self.tasks.load(fields)
        if self.merged is not None:
            self.merged.changes.recall(fields)

    def rebuilt(self, uris: tuple[str, ...]) -> None:
        """The session was rebuilt. With rules, nothing is asked for it before its client is heard of."""
        self.subscriptions.uris = uris
        if self.services.table.value.policy is None:
            self.restored(uris)
        else:
            self._kept_back = uris

    def restored(self, uris: tuple[str, ...]) -> None:
        """The subscriptions of a session that was rebuilt are asked for again, on connections of this life."""
        served = self.upstreams.served
        for backend in served.backends if served is not None else ():
            self.resubscribe(backend)
        merged = self.merged
        web = [uri for uri in uris if merged.owner(uri) is None] if merged is not None else []
        if merged is None or not web:
            return

        def looked() -> None:
            for owner in [merged.owner(uri) for uri in web]:
                if owner is not None:
                    self._subscribe(*owner)

        merged.look((RESOURCES, TEMPLATES), looked)  # such an address is found once the lists are known

    def reconfigured(self, before: Table) -> None:
        """The table was replaced. A server that is configured nowhere ends its connections itself; those to one that is
        another now stay for a while."""
        table = self.services.table.value
        self.former |= replaced(before, table) & self.upstreams.connections.keys() & table.backends.keys()
        if shown_otherwise(before.policy, table.policy) and not self.unheard:
            self._rule()
        if self._single is not None:
            self._single.reconfigured(before)
        if self.merged is None:
            return
        self.merged.reconfigured(before)
        if self.unheard:
            return  # what its client may see is not known: calls of an earlier life go on
        backends = self.merged.listing.backends
        for backend in [b for b in self.upstreams.connections if b not in backends and b in table.backends]:
            self.upstreams.drop(backend)

    def recorded_under_another(self) -> None:
        """The configuration is another one than that under which the client was shown what it knows."""
        if self.merged is not None:
            self.merged.changes.announce_all()
        elif self._single is not None:
            self._single.changed(TOOLS)

    @property
    def unheard(self) -> bool:
        """As in `Endpoint`."""
        return self._kept_back is not None and self.services.table.value.policy is not None

    def heard(self) -> None:
        """The client has said something, with rights that may be others than before."""
        if self._kept_back is not None:
            uris, self._kept_back = self._kept_back, None
            self.restored(uris)
            if self.merged is not None:
                self.merged.changes.heard()
        self._rule()

    def _rule(self) -> None:
        """Looks whether the client sees other things than when it was heard of last, be it in an earlier life of the
        session: by its rights, or by the rules."""
        policy, rights, by = self.services.table.value.policy, self.host.rights, self._by
        if by is not None and by[0] is policy and by[1] is rights:
            return  # nearly always
        self._by = policy, rights
        key = self.guard.key
        if key != self._ruled:
            before, self._ruled = self._ruled, key
            self.host.save({RULED: key.encode()})
            if before is not None:
                self.others()

    def others(self) -> None:
        """The client may see other things than before. It hears of lists that are different; connections to servers of
        which it sees nothing any more end, and what it is subscribed to is subscribed to as far as it may be read."""
        served = self.upstreams.served
        for backend in [b for b in self.upstreams.connections if not self.guard.sees(b)]:
            self.upstreams.drop(backend)
        if self.merged is not None:
            self.merged.changes.announce_had()
        elif self._single is not None and served is not None:
            self._single.changed(self._lists_of(served.backends[0]))  # they are not compared: nobody keeps them
        for backend in served.backends if served is not None and self.subscriptions.uris else ():
            if backend not in self.upstreams.connections:
                self.resubscribe(backend)
            else:
                for uri in self.subscriptions_at(backend):
                    self._subscribe(backend, uri)

    def _lists_of(self, backend: str) -> list[str]:
        """The kinds of lists that a server has."""
        server_info = self.server_info(backend)
        declared = capabilities.parse(server_info.capabilities if server_info is not None else Raw(b"{}"))
        return [kind for kind in LIST_CHANGED if declared.has((kind,))]

    def announce_all(self) -> None:
        """Nobody knows what the client was told: every list may have changed, and whatever it is subscribed to."""
        now, policy = self.host.ctx.now(), self.services.table.value.policy
        for method in LIST_CHANGED.values():
            self.host.event(ev.CallProgressed("", None, method, EMPTY, now))
        everything = policy is None or self.host.unread  # else it is judged when it is read
        for uri in self.subscriptions.uris:
            if everything or self._may_hear_of(self.host.listening, uri):
                self.host.event(ev.CallProgressed("", None, UPDATED, json.dumps({"uri": uri}), now))

    def shrink(self) -> None:
        """Nobody was heard for a while: what can be had again is let go of."""
        self.upstreams.shrink()
        if self.merged is not None:
            self.merged.shrink()

    def delete_upstreams(self) -> None:
        """The session ends, and with it those sessions of its servers that no connection knows of. (Connections end
        with it.)"""
        for spec, kept in self.kept.unopened(self.services.table.value) if self.kept is not None else ():
            delete_upstream(self.services, self.tree.upstreams, spec.of(self.host.principal.name), kept)


class SessionDialer:
    """How a session comes to its servers: over a connection of its own, over one that is shared, or over the one that
    everybody has to a modern server."""

    __slots__ = ("_endpoint", "_name", "told")

    changes = True

    def __init__(self, endpoint: SessionEndpoint) -> None:
        self.told: dict[str, None] = EMPTY_TABLE
        """Modern ones: their connections are everybody's."""
        self._endpoint = endpoint
        self._name: str | None = None

    def dial(self, spec: BackendSpec, attempt: int) -> Ref:
        """As in `Dialer`."""
        endpoint = self._endpoint
        spec = spec.of(endpoint.host.principal.name)
        tree, registry = endpoint.tree, endpoint.host.ctx.system.registry
        if tree.eras.legacy(spec) is False:
            self.told = put(self.told, spec.name, None)
            return start_modern_upstream(spec, endpoint.services, tree.backends, tree.eras, registry, tree.upstreams)
        self.told.pop(spec.name, None)
        shared = spec.common
        resume = endpoint.kept.take(spec) if endpoint.kept is not None and not shared else None
        level = None if shared else endpoint.host.level or None
        # The handshake of a connection sets the level; where there is none, the server may know another one.
        if level is None or (resume is not None and resume.kept is not None):
            endpoint.levels.pop(spec.name, None)
        else:
            endpoint.levels = put(endpoint.levels, spec.name, level)

        def make() -> LegacyUpstream:
            return LegacyUpstream(
                spec,
                endpoint.profile(spec, own=True),
                endpoint.services,
                tree.backends,
                level=level,
                subscriptions=() if shared else endpoint.subscriptions_at(spec.name),
                attempt=max(1, attempt),
                resume=resume,
                eras=tree.eras,
            )

        return start_upstream(spec, registry, tree.upstreams, make, endpoint.host.principal.name)

    def caller(self, backend: str, call: int) -> Caller:
        """As in `Dialer`."""
        endpoint, client = self._endpoint, self._endpoint.host.client
        declared = capabilities.declare(endpoint.bits)
        info = client.info if client is not None else Raw(endpoint.services.identity)
        level = endpoint.host.level
        if level is not None and level not in capabilities.LEVELS:
            level = capabilities.LEVELS[0]  # a server of the other era has agreed on it, and left nothing out
        if self._name is None:
            principal = endpoint.host.principal
            # Of a client that nobody knows the session is all there is: it shares nothing with another one.
            self._name = f"anonymous {secrets.token_hex(8)}" if principal.anonymous else principal.name
        return Caller(self._name, declared, info, level, True)

    def shares(self, spec: BackendSpec) -> bool:
        """As in `Dialer`."""
        return spec.common or spec.name in self.told


def initialize_result(server_info: ServerInfo, version: str, *, with_tasks: bool) -> Raw:
    """The server's InitializeResult, in the revision that the client negotiated; `with_tasks`: also what it says of
    tasks."""
    declared = capabilities.transparent_server(server_info.capabilities)
    own = capabilities.parse(tasks.offered(server_info.capabilities)).tree.get("tasks") if with_tasks else None
    if own is not None:
        declared = json.replace_members(declared, {"tasks": json.dumps(own)})
    said = server_info.result
    if server_info.version == MODERN:  # of the other era's answer only what means the same here
        said = json.dumps({"serverInfo": server_info.implementation})
        if server_info.instructions is not None:
            said = json.replace_members(said, {"instructions": json.dumps(server_info.instructions)})
    return json.replace_members(said, {"protocolVersion": json.dumps(version), "capabilities": declared})
