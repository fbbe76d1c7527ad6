"""The two kinds of fronts of clients without sessions: of one backend, as it is, and of several, under one roof."""

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.exchanges.modern_front import ModernFront, ModernHost
from actors.exchanges.modern_listing import ModernListing
from actors.exchanges.tool_mirrors import Mirrors, legal, mirrors_of
from actors.fronts.aggregate import EXTENSIONS, Aggregate
from actors.fronts.catalogue_messages import LIST_CHANGED, Key
from actors.fronts.filters import filtered
from actors.fronts.front import Waiter
from actors.fronts.host import Tree
from actors.fronts.listing import TOOLS
from actors.fronts.transparent import Transparent
from actors.links.link_messages import LinkOutcome, LinkTold, PeerNotified
from actors.links.own_calls import OwnDue
from actors.links.paging import Items, Page, Paging
from actors.protocol import aggregate, capabilities, errors
from actors.protocol import effects as fx
from actors.protocol import payload as json
from actors.protocol.link_events import Hello
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS
from actors.protocol.modern import tasks
from actors.protocol.modern.link_calls import HEADERS, MIRRORS_MAX
from actors.protocol.modern.meta import SERVER_KEY
from actors.protocol.modern.retry import Waiting
from actors.protocol.modern.tool_headers import ANNOTATION, PREFIX, Mirrored
from actors.protocol.table import HttpTarget
from actors.protocol.versions import MODERN, SERVED
from actors.services import Services

MIRROR = PREFIX.lower()
"""How the names of headers begin that repeat arguments."""

FRESH_FOR = 60_000
"""Milliseconds for which a client may take it that an aggregate offers what it does, once all backends are known."""


class ModernTransparent(ModernFront, Transparent):
    """On `/mcp/<backend>`."""

    def __init__(self, host: ModernHost, endpoint: str, services: Services, tree: Tree) -> None:
        super().__init__(host, endpoint, services, tree)
        self._mirrors: Mirrors | None = None
        """Known once the tools were listed, until they change."""
        self._learning: Mirrors | None = None
        """Those of the first pages of a list that has more."""
        self._untold: dict[int, fx.Dispatch | None] = {}
        """Calls that were sent while nothing was known of headers; None: and refused, and sent again."""
        self._looking: list[fx.Dispatch] = []
        """Calls that wait for the list."""

    def dispatch(self, effect: fx.Dispatch) -> None:
        backend = self._backend()
        if backend is not None and effect.method == "tools/call" and self._mirrors is None:
            spec = self.table.backends[backend]
            modern, http = self.host.peers.modern(spec), isinstance(spec.target, HttpTarget)
            if self._repeats(effect) and not (http and modern):
                self._look_first(effect, backend)
                return
            if http and modern is not False:  # it refuses by itself what its tool does not want
                self._untold.setdefault(effect.call, effect)
        if effect.method in tasks.METHODS:
            self.about_task(effect)
            return
        if effect.method not in METHODS and backend is not None and not self.modern(backend):
            self.refuse(effect.call, errors.method_not_found(effect.method))  # between the eras only what is known
            return
        if effect.method != "server/discover" or backend is None:
            super().dispatch(effect)
            return

        def ready(hello: Hello | None, error: Raw) -> None:
            self.end(effect.call, hello is not None, _welcome(hello) if hello is not None else error)

        self.when_ready(backend, ready)

    def inform(self, method: str, params: Raw) -> None:
        backend = self._backend()
        # Between the eras only what is known, and the mailbox is everybody's.
        link = self.link(backend) if backend is not None and self.modern(backend) else None
        if link is None or not link.cast(PeerNotified(method, params)):
            super().inform(method, params)

    def as_is(self, backend: str) -> bool:
        known = self._known.get(backend)
        return known is not None and known.version == MODERN

    def _repeats(self, effect: fx.Dispatch) -> bool:
        """Whether headers repeat arguments of this call: they may be wrong."""
        request = self.host.request(effect.call)
        return request is not None and any(name.startswith(MIRROR) for name in request.headers)

    def untold(self, call: int) -> bool:
        return call in self._untold

    def _look_first(self, effect: fx.Dispatch, backend: str) -> None:
        """Which arguments of its tools headers repeat, a backend says in its list; where it says nothing in time,
        nothing is checked."""
        self._looking.append(effect)
        if len(self._looking) > 1:
            return

        def done(items: Items | None, error: Raw) -> None:
            self._mirrors = mirrors_of(items or ())
            waiting, self._looking = self._looking, []
            for call in waiting:
                if self.host.request(call.call) is not None:
                    self.dispatch(call)

        def ask(params: Raw, page: Page) -> None:
            call = self.own_call(backend, TOOLS, params, lambda out: page(out.ok, out.payload))
            if call:
                self.host.ctx.set_timer(("own", call), self.services.limits.list_deadline, OwnDue(call))
            else:
                done(None, EMPTY)

        Paging(METHODS[TOOLS].items or "", ask, done).start()

    def _learn(self, asked: Raw, page: Raw) -> None:
        """A page of the list of tools, on its way to a client; after the last one it is known which arguments headers
        repeat."""
        try:
            present = json.members(page)
            if json.text_or_none(json.members(asked).get("cursor")) is None:
                self._learning = {}
            if self._learning is None:
                return
            if json.mentions(page, ANNOTATION.encode()) and len(self._learning) < MIRRORS_MAX:
                self._learning |= mirrors_of(json.elements(present.get("tools", Raw(b"[]"))))
            if json.text_or_none(present.get("nextCursor")) is None:
                self._mirrors, self._learning = self._learning, None
        except errors.Malformed:
            self._learning = None

    def _forget_mirrors(self) -> None:
        self._mirrors = self._learning = None

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        self._untold.pop(call, None)
        super().end(call, ok, payload)

    def cancel(self, call: int, reason: str) -> None:
        self._untold.pop(call, None)
        super().cancel(call, reason)

    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        return self._mirrors.get(tool, ()) if self._mirrors is not None else ()

    def outcome(self, message: LinkOutcome) -> None:
        untold = self._untold.pop(message.call, None)
        if untold is not None and not (message.ok or message.theirs) and _disagrees(message.payload):
            self.calls.pop(message.call, None)
            self._untold[message.call] = None
            self._look_first(untold, message.backend)
            return
        request = self.host.request(message.call)
        if message.ok and request is not None and request.exchange.method == TOOLS:
            self._learn(request.exchange.params, message.payload)
            message = LinkOutcome(message.backend, message.call, True, self._legal(message.payload))
        spec = self.table.backends.get(message.backend)
        # What the gateway filtered is no longer what the backend said that everybody may see.
        if message.ok and message.call in self.waiters and spec is not None and filtered(spec):
            private = json.replace_members(message.payload, {"cacheScope": json.dumps("private")})
            message = LinkOutcome(message.backend, message.call, True, private)
        super().outcome(message)

    def _legal(self, payload: Raw) -> Raw:
        """Without the tools that no client on HTTP could call."""
        if not json.mentions(payload, ANNOTATION.encode()):
            return payload
        try:
            tools = json.elements(json.members(payload).get("tools", Raw(b"[]")))
            return json.replace_members(payload, {"tools": json.dumps([tool for tool in tools if legal(tool)])})
        except errors.Malformed:
            return payload

    def told_client(self, message: LinkTold) -> None:
        if message.method == LIST_CHANGED[TOOLS]:
            self._forget_mirrors()
        Transparent.told(self, message)

    def owner(self, uri: str) -> tuple[str, str] | None:
        backend = self._backend()
        return (backend, uri) if backend is not None else None


class ModernAggregate(ModernFront, Aggregate):
    """On `/mcp` or `/mcp/<group>`."""

    merges = True

    def __init__(self, host: ModernHost, endpoint: str, services: Services, tree: Tree) -> None:
        super().__init__(host, endpoint, services, tree)
        self.listing: ModernListing = ModernListing(self, tree.memo)
        self._listed: dict[int, str] = {}

    def dispatch(self, effect: fx.Dispatch) -> None:
        if effect.method in tasks.METHODS:
            self.about_task(effect)
            return
        row = METHODS.get(effect.method)
        if effect.method == "server/discover":
            self.end(effect.call, True, self._discovered())
            return
        offered, _ = self._offered()
        if row is not None and row.server_capability and not capabilities.parse(offered).has(row.server_capability):
            self.refuse(effect.call, errors.method_not_found(effect.method))
            return
        if row is not None and row.items is not None:
            self._listed[effect.call] = effect.method
        super().dispatch(effect)

    def lists_itself(self, backend: str) -> bool:
        """A backend without sessions shows the same to every connection. One with sessions may show other things to the
        connection of this client, which is the same for all its requests; as long as it has none, what is shown is
        what the catalogue knows."""
        return backend in self.hellos and (self.modern(backend) or not self.shares(backend))

    def _list(self, effect: fx.Dispatch) -> None:
        """What one client is given, others who listen may not have."""
        method = effect.method
        before = self._shown.get(method)
        super()._list(effect)
        if before is not None and before != self._shown.get(method):
            self._tell(LIST_CHANGED[method])

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        method = self._listed.pop(call, None)
        if method is not None and ok:
            ttl = self.listing.ttl(method)
            payload = json.replace_members(payload, {"ttlMs": json.dumps(ttl), "cacheScope": json.dumps("private")})
        super().end(call, ok, payload)

    def own_call(self, backend: str, method: str, params: Raw, waiter: Waiter) -> int:
        if METHODS[method].items is None:
            return super().own_call(backend, method, params, waiter)

        def noted(outcome: LinkOutcome) -> None:
            self.listing.noted(method, outcome)
            waiter(outcome)

        return super().own_call(backend, method, params, noted)

    def cancel(self, call: int, reason: str) -> None:
        self._listed.pop(call, None)
        super().cancel(call, reason)

    def resume(self, call: int, method: str, waiting: Waiting, *, progress: bool, level: str | None) -> None:
        self._methods[call] = method
        super().resume(call, method, waiting, progress=progress, level=level)

    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        return self.listing.mirrored(backend, tool)

    def _hello(self, backend: str) -> Hello | None:
        return self.hellos.get(backend) or self.tree.hello(Key("", MODERN, backend)) or super()._hello(backend)

    def _offered(self) -> tuple[Raw, bool]:
        """The capabilities of the endpoint, and whether they are all that there can be: a backend that nobody has asked
        yet counts as having everything."""
        known = [hello for b in self.backends if (hello := self._hello(b)) is not None]
        complete = len(known) == len(self.backends)
        # Only those without sessions have tasks of this era, whatever others may say.
        declared = [capabilities.transparent_server(h.capabilities, modern=h.version == MODERN) for h in known]
        extensions = (*EXTENSIONS, tasks.EXTENSION)
        return capabilities.merge_server(declared, pending=not complete, extensions=extensions), complete

    def _discovered(self) -> Raw:
        """Never waits for a backend; one that is not known is connected to, so that it is the next time."""
        offered, complete = self._offered()
        known = [(b, hello) for b in self.backends if (hello := self._hello(b)) is not None]
        parts = [(b, hello.instructions) for b, hello in known if hello.instructions]
        instructions = aggregate.merge_instructions(parts, self.table.separator, backends=self.table.backends)
        for backend in self.backends:
            if self._hello(backend) is None:
                self.when_ready(backend, lambda hello, error: None)
        said = {"instructions": instructions} if instructions is not None else {}
        hints = {"ttlMs": FRESH_FOR if complete else 0, "cacheScope": "private"}
        return json.dumps(
            {"resultType": "complete", "supportedVersions": SERVED, "capabilities": offered, **said, **hints}
        )

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        if all(self.owner(uri) is not None for uri in uris):
            then()
        else:
            self._look(("resources/list", "resources/templates/list"), then)

    def told_client(self, message: LinkTold) -> None:
        if message.method == tasks.NOTIFICATION:
            message = replace(message, params=self._task(message.backend, message.params))
        Aggregate.told(self, message)

    def outcome(self, message: LinkOutcome) -> None:
        request = self.host.request(message.call)
        if message.ok and request is not None and request.exchange.method == "tasks/get":
            message = replace(message, payload=self._task(message.backend, message.payload))
        super().outcome(message)

    def _task(self, backend: str, task: Raw) -> Raw:
        """A task with the result of its tool, whose URIs are others here."""
        naming = self.listing.naming
        try:
            result = json.members(task).get("result", EMPTY)
            if not json.is_object(result):
                return task
            exposed = aggregate.expose_result("tools/call", backend, result, naming)
            return task if exposed is result else json.replace_members(task, {"result": exposed})
        except errors.Malformed:
            return task

    def owner(self, uri: str) -> tuple[str, str] | None:
        owner = self.listing.naming.uris.resolve(uri)
        return (owner.backend, owner.name) if owner is not None else None


class _Reason(Struct):
    reason: str = ""


def _disagrees(error: Raw) -> bool:
    """Whether this error of ours says that the server has refused the headers of a call."""
    try:
        return msgspec.json.decode(errors.parse_error_member(error).data, type=_Reason).reason == HEADERS
    except (ValueError, msgspec.DecodeError):
        return False


def _welcome(hello: Hello) -> Raw:
    """What a backend says of itself, with the revisions in which it can be had here. One of this era says it in its own
    words."""
    modern = hello.version == MODERN
    result: dict[str, object] = {**json.members(hello.result)} if modern else {}
    if hello.instructions is not None:
        result["instructions"] = hello.instructions
    meta = json.members(json.meta_of(hello.result)) if modern else {}
    return json.dumps(
        {
            **result,
            "resultType": "complete",
            "supportedVersions": SERVED,
            "capabilities": capabilities.transparent_server(hello.capabilities, modern=modern),
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {**meta, SERVER_KEY: hello.server_info},
        }
    )
