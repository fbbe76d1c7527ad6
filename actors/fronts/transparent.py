"""The transparent front: one backend, and the client can't tell it from the backend itself.

Its own capabilities, instructions, names, URIs, cursors, errors and unknown members pass as they are. The gateway adds
what makes it a gateway (sessions that survive, filters).
"""

import msgspec
from msgspec import Raw

from actors.fronts.filters import filtered, shown
from actors.fronts.front import Front
from actors.links.link_messages import LinkAsked, LinkDown, LinkOutcome, LinkReady, LinkTold, Warm
from actors.protocol import capabilities, errors, tasks
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol import payload as json
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.table import BackendSpec
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.runtime import Ref


class Transparent(Front):
    """One session on `/mcp/<backend>`."""

    _initialize: int | None = None

    def dispatch(self, effect: fx.Dispatch) -> None:
        backend = self._backend()
        if backend is None:
            text = f"server {self.endpoint!r} is no longer configured"
            error = errors.internal(text, reason="unconfigured", executed="no", backend=self.endpoint)
            self.refuse(effect.call, error)
            return
        if effect.method == "initialize":
            self._begin(effect.call, backend)
            return
        if effect.method in tasks.ASKING:
            self.tasks.dispatch(effect)
            return
        params = effect.params
        if effect.method == "tools/call" and filtered(self.table.backends[backend]):
            try:
                # Written anew: of two members of one name we check the last, and a backend may read the first.
                params = json.replace_members(params, {})
            except errors.Malformed as malformed:
                self.refuse(effect.call, malformed.error)
                return
        refusal = self._checked(backend, effect) or self.subscriptions.note(effect.call, effect.method, effect.params)
        if refusal is not None:
            self.refuse(effect.call, refusal)
        elif not self.call(effect.call, backend, effect.method, params, effect.progress):
            self.refuse_linkless(effect.call, backend)

    def _checked(self, backend: str, effect: fx.Dispatch) -> errors.ProtocolError | None:
        """What the configuration hides can't be called either."""
        spec = self.table.backends[backend]
        if not filtered(spec):
            return None
        if effect.method == "tools/list":
            self.waiters[effect.call] = lambda outcome: self._filter(spec, outcome)
        elif effect.method == "tools/call" and not shown(spec, _name(effect.params)):
            return errors.invalid_params(f"Unknown tool: {_name(effect.params)[:200]}")
        return None

    def as_is(self, backend: str) -> bool:
        hello = self.hellos.get(backend)
        return hello is not None and hello.version == self.host.version

    @property
    def words(self) -> str:
        return self.host.version

    def profile(self, spec: BackendSpec, *, own: bool = False) -> Profile:
        """What the client said of itself: word by word, if it speaks the revision that a backend is offered."""
        profile, client = super().profile(spec, own=own), self.host.client
        if spec.sharing == "shared" or client is None or not own:
            return profile
        as_is = self.host.version == LATEST_HANDSHAKE
        declared = capabilities.transparent_client(client.capabilities, profile.capabilities, as_is=as_is)
        return msgspec.structs.replace(profile, capabilities=declared)

    def use_level(self, level: str) -> None:
        backend = self._backend()
        if backend is not None:
            self.levels[backend] = level  # it has said so, and the link says it again after a loss

    def subscriptions_at(self, backend: str) -> tuple[str, ...]:
        return self.subscriptions.uris

    def _backend(self) -> str | None:
        served = self.served
        if served is None or served.backends[0] not in self.table.backends:
            return None
        return served.backends[0]

    # The handshake: the answer is the backend's own

    def _begin(self, call: int, backend: str) -> None:
        link = self.link(backend)
        if link is None:
            self.refuse_linkless(call, backend)
            return
        self._initialize = call
        link.reply(Warm())

    def ready(self, message: LinkReady) -> None:
        super().ready(message)
        offers = self.tasks.offers(message.backend, message.hello)
        self._settle_initialize(True, _welcome(message.hello, self.host.version, with_tasks=offers))

    def down(self, message: LinkDown) -> None:
        super().down(message)
        self._settle_initialize(False, message.payload)

    def link_ended(self, ref: Ref) -> None:
        super().link_ended(ref)
        if not self.links:
            text = f"the connection to server {self.endpoint!r} ended"
            error = errors.internal(text, reason="link_ended", executed="no", backend=self.endpoint)
            self._settle_initialize(False, error.raw)

    def _settle_initialize(self, ok: bool, payload: Raw) -> None:
        if self._initialize is not None:
            call, self._initialize = self._initialize, None
            self.end(call, ok, payload)

    # Messages of the backend

    def told(self, message: LinkTold) -> None:
        self.heard(message.backend, message.method)
        backend, call, method, params = message.backend, message.call, message.method, message.params
        now, as_is = self.host.ctx.now(), self.as_is(backend)
        self.host.event(ev.CallProgressed(backend, call, method, params, now, message.place, as_is))

    def exposed_request(self, message: LinkAsked) -> Raw:
        return message.params

    def _filter(self, spec: BackendSpec, outcome: LinkOutcome) -> None:
        ok, payload = outcome.ok, outcome.payload
        try:
            tools = json.members(payload).get("tools") if ok else None
            if tools is not None:
                visible = [tool for tool in json.elements(tools) if shown(spec, _name(tool))]
                payload = json.replace_members(payload, {"tools": json.dumps(visible)})
        except errors.Malformed:
            ok, text = False, "the server's list is malformed"
            payload = errors.internal(text, reason="malformed", executed="yes", backend=spec.name).raw
        self.end(outcome.call, ok, payload)


def _welcome(hello: Hello, version: str, *, with_tasks: bool) -> Raw:
    """The backend's InitializeResult, in the revision that the client negotiated; `with_tasks`: also what it says of
    tasks."""
    declared = capabilities.transparent_server(hello.capabilities)
    own = capabilities.parse(tasks.offered(hello.capabilities)).tree.get("tasks") if with_tasks else None
    if own is not None:
        declared = json.replace_members(declared, {"tasks": json.dumps(own)})
    said = hello.result
    if hello.version == MODERN:  # of the other era's answer only what means the same here
        said = json.dumps({"serverInfo": hello.server_info})
        if hello.instructions is not None:
            said = json.replace_members(said, {"instructions": json.dumps(hello.instructions)})
    return json.replace_members(said, {"protocolVersion": json.dumps(version), "capabilities": declared})


class _Named(msgspec.Struct):
    name: str


def _name(item: Raw) -> str:
    try:
        return msgspec.json.decode(item, type=_Named).name
    except (msgspec.DecodeError, RecursionError):
        return ""
