"""The transparent front: one backend, and the client can't tell it from the backend itself.

Its own capabilities, instructions, names, URIs, cursors, errors and unknown members pass as they are. The gateway adds
what makes it a gateway (sessions that survive, filters), and leaves out what it does not carry: tasks.
"""

from fnmatch import fnmatchcase

import msgspec
from msgspec import Raw

from actors.front import Front
from actors.link import LinkAsked, LinkDown, LinkOutcome, LinkReady, LinkTold, Warm
from actors.protocol import capabilities, errors
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol import payload as json
from actors.protocol.link_events import Hello
from actors.protocol.messages import EMPTY
from actors.protocol.table import BackendSpec


class Transparent(Front):
    """One session on `/mcp/<backend>`."""

    _initialize: int | None = None

    def dispatch(self, effect: fx.Dispatch) -> None:
        backend = self._backend()
        if backend is None:
            self.refuse(effect.call, errors.internal("this server is no longer configured", reason="unconfigured"))
            return
        if effect.method == "initialize":
            self._begin(effect.call, backend)
            return
        spec = self.table.backends[backend]
        if _filtered(spec):
            if effect.method == "tools/call" and not _named_is_shown(spec, effect.params):
                self.refuse(effect.call, errors.invalid_params("Unknown tool"))
                return
            if effect.method == "tools/list":
                self.waiters[effect.call] = lambda outcome: self._filter(spec, outcome)
        self.note(effect.call, effect.method, effect.params)
        if not self.call(effect.call, backend, effect.method, effect.params, effect.progress):
            self.waiters.pop(effect.call, None)
            self.refuse(effect.call, errors.internal("no connection to the server can be made", reason="no_link"))

    def _backend(self) -> str | None:
        served = self.served
        if served is None or served.backends[0] not in self.table.backends:
            return None
        return served.backends[0]

    # The handshake: the answer is the backend's own

    def _begin(self, call: int, backend: str) -> None:
        link = self.link(backend)
        if link is None:
            self.refuse(call, errors.internal("no connection to the server can be made", reason="no_link"))
            return
        self._initialize = call
        link.reply(Warm())

    def ready(self, message: LinkReady) -> None:
        super().ready(message)
        if self._initialize is not None:
            call, self._initialize = self._initialize, None
            self.end(call, True, _welcome(message.hello, self.host.version))

    def down(self, message: LinkDown) -> None:
        super().down(message)
        if self._initialize is not None:
            call, self._initialize = self._initialize, None
            self.end(call, False, message.payload)

    # Messages of the backend

    def told(self, message: LinkTold) -> None:
        self.host.event(
            ev.CallProgressed(message.backend, message.call, message.method, message.params, self.host.ctx.now())
        )

    def asked(self, message: LinkAsked) -> None:
        self.host.event(ev.Asked(message.backend, message.call, message.id, message.method, message.params))

    def _filter(self, spec: BackendSpec, outcome: LinkOutcome) -> None:
        payload = outcome.payload
        if outcome.ok:
            try:
                tools = [t for t in json.elements(json.members(payload).get("tools", EMPTY)) if shown(spec, _name(t))]
                payload = json.replace_members(payload, {"tools": json.dumps(tools)})
            except errors.Malformed as malformed:
                self.end(outcome.call, False, malformed.error.raw)
                return
        self.end(outcome.call, outcome.ok, payload)


def _welcome(hello: Hello, version: str) -> Raw:
    """The backend's InitializeResult, in the revision that the client negotiated."""
    declared = capabilities.transparent_server(hello.capabilities)
    return json.replace_members(hello.result, {"protocolVersion": json.dumps(version), "capabilities": declared})


def _filtered(spec: BackendSpec) -> bool:
    return spec.enabled_tools is not None or bool(spec.disabled_tools)


def shown(spec: BackendSpec, name: str) -> bool:
    """Whether the configuration lets this tool be seen and called."""
    if any(fnmatchcase(name, pattern) for pattern in spec.disabled_tools):
        return False
    return spec.enabled_tools is None or any(fnmatchcase(name, pattern) for pattern in spec.enabled_tools)


class _Named(msgspec.Struct):
    name: str


def _name(item: Raw) -> str:
    try:
        return msgspec.json.decode(item, type=_Named).name
    except (msgspec.DecodeError, RecursionError):
        return ""


def _named_is_shown(spec: BackendSpec, params: Raw) -> bool:
    return shown(spec, _name(params))
