"""What lists tell modern requests: merged lists and where they come from, and which arguments of tools the headers of a
request repeat.

A modern server is asked for its lists over the connection that everybody shares, which keeps what may be kept; a legacy
one through the catalogue. A merged list is fresh as long as each of its parts.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.endpoints.last_known import Key
from actors.endpoints.listing import TOOLS, Listing, Source, View, catalogue_key
from actors.endpoints.single import Single
from actors.machines.session import effects as fx
from actors.machines.upstream.modern_calls import HEADERS, MIRRORS_MAX
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.aggregate import item_name
from actors.protocol.errors import Malformed
from actors.protocol.headers import ANNOTATION, PARAM_PREFIX, IllegalAnnotation, Mirrored, of_tool
from actors.protocol.messages import EMPTY
from actors.protocol.methods import CHANGED, METHODS
from actors.protocol.outcomes import ttl
from actors.protocol.steady import Items
from actors.protocol.table import HttpTarget
from actors.protocol.translate import without_execution
from actors.protocol.versions import MODERN
from actors.upstreams.messages import UpstreamOutcome
from actors.upstreams.paging import Page, Paging

if TYPE_CHECKING:
    from actors.modern.endpoint import ModernEndpoint, Running


class ModernSource(Source):
    """Gets the lists of servers for one kind of modern client."""

    _endpoint: "ModernEndpoint"

    def __init__(self, endpoint: "ModernEndpoint") -> None:
        super().__init__(endpoint)
        self._fresh: dict[tuple[str, str], int] = {}
        """Method and backend → milliseconds."""

    @property
    def eager(self) -> bool:
        """What a legacy connection lists is asked for when it is wanted, or told of."""
        return bool(self._endpoint.host.listens.open)

    def modern(self, backend: str) -> bool:
        """As in `Source`."""
        return self._endpoint.modern(backend)

    def connected(self, backend: str) -> bool:
        """As in `Source`: to a legacy server, for whichever endpoint."""
        spec = self._endpoint.services.table.value.backends.get(backend)
        return spec is not None and not spec.common and self._endpoint.host.resolver.connected(spec)

    def last_known(self, method: str, backend: str) -> Items | None:
        """As in `Source`."""
        known, key = self._endpoint.tree.known, catalogue_key(self._endpoint, backend)
        items = known.items(_in_this_era(key), method)
        return items if items is not None else known.items(key, method)

    def fetching(self, method: str, backend: str) -> None:
        """As in `Source`."""
        self._fresh.pop((method, backend), None)

    def page(self, method: str, outcome: UpstreamOutcome) -> None:
        """As in `Source`: all of a list is as fresh as its stalest page."""
        key = (method, outcome.backend)
        try:
            said = ttl(json.members(outcome.payload)) if outcome.ok else None
        except Malformed:
            said = None
        self._fresh[key] = min(self._fresh.get(key, said or 0), said or 0)

    def learned(self, method: str, backend: str, items: Items) -> None:
        """As in `Source`."""
        if self.modern(backend):
            key = _in_this_era(catalogue_key(self._endpoint, backend))
            self._endpoint.tree.known.keep(key, method, items)

    def visible(self, backend: str, tools: Iterable[Raw], listed: Items) -> Iterable[Raw]:
        """As in `Source`: no tool that no client on HTTP could call."""
        if any(json.mentions(tool, ANNOTATION.encode()) for tool in listed):
            tools = (tool for tool in tools if legal(tool))
        return tools if self._surely(backend) else map(without_execution, tools)

    def form(self, backends: Iterable[str]) -> tuple[object, ...]:
        """As in `Source`."""
        return ("modern", *map(self._surely, backends))

    def hints(self, method: str, backends: Iterable[str]) -> dict[str, object]:
        """How many milliseconds it is fresh: 0 as soon as one part says nothing, or is missing."""
        fresh = min((self._fresh.get((method, backend), 0) for backend in backends), default=0)
        return {"ttlMs": fresh, "cacheScope": "private"}

    def _surely(self, backend: str) -> bool:
        """Whether its lists are of this era: those that were known last may be of the other one."""
        return backend in self._endpoint.upstreams.server_infos and self.modern(backend)


def _in_this_era(key: Key) -> Key:
    """Lists have another form in this era, so they are kept apart."""
    return Key(key.principal, f"{MODERN} {key.bits}", key.backend)


# Headers that repeat arguments --------------------------------------------------------------------------------

MIRROR = PARAM_PREFIX.lower()
"""How the names of headers begin that repeat arguments."""

Mirrors = dict[str, tuple[Mirrored, ...]]
"""By tool; those that repeat nothing are not in it."""


def mirrors_of(tools: Iterable[Raw]) -> Mirrors:
    """Of a list's items; of those that break the rules: nothing."""
    found: Mirrors = {}
    for tool in tools:
        mirrored = _mirrored(tool)
        name = item_name(tool) if mirrored else None
        if mirrored and name is not None:
            found[name] = mirrored
    return found


def legal(tool: Raw) -> bool:
    """Whether a client on HTTP may be shown this tool (2026-07-28, streamable-http, "Schema Extension")."""
    return _mirrored(tool) is not None


def _mirrored(tool: Raw) -> tuple[Mirrored, ...] | None:
    try:
        return of_tool(tool)
    except (IllegalAnnotation, Malformed):
        return None


class _Mirrored(Struct, frozen=True):
    """A value to be kept also where it is empty."""

    by_tool: Mirrors


class ListedHeaders:
    """Which arguments of tools the headers of a request repeat, as the lists say that the endpoint has anyway."""

    def __init__(self, endpoint: "ModernEndpoint", listing: Listing) -> None:
        self._memo = endpoint.tree.memo
        self._listing = listing
        self._found: dict[str, tuple[View, Mirrors]] = {}

    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        """Of one tool of a server."""
        view, found = self._listing.views.get(TOOLS, {}).get(backend), self._found.get(backend)
        if view is None:
            return ()
        if found is None or found[0] is not view:
            made = self._memo.get(("mirrors", view.version), lambda: _Mirrored(mirrors_of(view.items)), [view.items])
            assert isinstance(made, _Mirrored)
            found = self._found[backend] = (view, made.by_tool)
        return found[1].get(tool, ())


class LearnedHeaders:
    """Which arguments of a single server's tools headers repeat. Its lists pass as they are: it is learned from them,
    or asked for where headers may be wrong."""

    def __init__(self, endpoint: "ModernEndpoint", single: Single) -> None:
        self._endpoint = endpoint
        self._single = single
        self._mirrors: Mirrors | None = None
        """Known once the tools were listed, until they change."""
        self._learning: Mirrors | None = None
        """Those of the first pages of a list that has more."""
        self._untold: dict[int, fx.Dispatch | None] = {}
        """Calls that were sent while nothing was known of headers; None: and refused, and sent again."""
        self._looking: list[fx.Dispatch] = []
        """Calls that wait for the list."""

    @property
    def pending(self) -> int:
        """Calls of which something is remembered."""
        return len(self._untold) + len(self._looking)

    def mirrored(self, backend: str, tool: str) -> tuple[Mirrored, ...]:
        """Of one tool of the server."""
        return self._mirrors.get(tool, ()) if self._mirrors is not None else ()

    def holds(self, effect: fx.Dispatch) -> bool:
        """A tool call is about to be sent; whether it has to wait for the list."""
        backend = self._single.backend if self._mirrors is None else None
        if backend is None:
            return False
        spec = self._endpoint.services.table.value.backends[backend]
        modern, http = self._endpoint.host.resolver.modern(spec), isinstance(spec.target, HttpTarget)
        if self._repeats(effect) and not (http and modern):
            self._look_first(effect, backend)
            return True
        if http and modern is not False:  # it refuses by itself what its tool does not want
            self._untold.setdefault(effect.call, effect)
        return False

    def _repeats(self, effect: fx.Dispatch) -> bool:
        """Whether headers repeat arguments of this call: they may be wrong."""
        request = self._endpoint.host.running.get(effect.call)
        return request is not None and any(name.startswith(MIRROR) for name in request.headers or ())

    def untold(self, call: int) -> bool:
        """Whether this is a tool call of a client, and nobody has said yet which arguments its headers repeat."""
        return call in self._untold

    def _look_first(self, effect: fx.Dispatch, backend: str) -> None:
        """Which arguments of its tools headers repeat, a server says in its list; where it says nothing in time,
        nothing is checked."""
        self._looking.append(effect)
        if len(self._looking) > 1:
            return
        endpoint = self._endpoint

        def done(items: Items | None, error: Raw) -> None:
            self._mirrors = mirrors_of(items or ())
            waiting, self._looking = self._looking, []
            for call in waiting:
                if call.call in endpoint.host.running:
                    endpoint.dispatch(call)

        def ask(params: Raw, page: Page) -> None:
            seconds, upstreams = endpoint.services.limits.list_deadline, endpoint.upstreams
            if not upstreams.own_call(backend, TOOLS, params, lambda out: page(out.ok, out.payload), seconds):
                done(None, EMPTY)

        Paging(METHODS[TOOLS].items or "", ask, done).start()

    def outcome(self, message: UpstreamOutcome, request: "Running | None") -> UpstreamOutcome | None:
        """The outcome of a call, as the client may have it; None: it is made once more. A page of the list of tools, on
        its way to a client, says which arguments headers repeat."""
        untold = self._untold.pop(message.call, None)
        if not message.ok:
            if untold is not None and not message.theirs and _disagrees(message.payload):
                self._endpoint.upstreams.over(message.call)
                self._untold[message.call] = None
                self._look_first(replace(untold, paid=True), message.backend)  # it was let through before
                return None
            return message
        payload = message.payload
        if request is not None and request.state.method == TOOLS:
            self._learn(request.state.params, payload)
            payload = self._legal(payload)
        if message.call in self._endpoint.upstreams.waiters:
            spec = self._endpoint.services.table.value.backends.get(message.backend)
            # What the gateway filtered is no longer what the server said that everybody may see.
            if spec is not None and self._endpoint.guard.hides(spec, "tool"):
                payload = json.replace_members(payload, {"cacheScope": json.dumps("private")})
        if payload is message.payload:
            return message
        return UpstreamOutcome(message.backend, message.call, True, payload)

    def _learn(self, asked: Raw, page: Raw) -> None:
        """After the last page it is known."""
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

    def _legal(self, payload: Raw) -> Raw:
        """Without the tools that no client on HTTP could call."""
        if not json.mentions(payload, ANNOTATION.encode()):
            return payload
        try:
            tools = json.elements(json.members(payload).get("tools", Raw(b"[]")))
            return json.replace_members(payload, {"tools": json.dumps([tool for tool in tools if legal(tool)])})
        except errors.Malformed:
            return payload

    def told(self, method: str) -> None:
        """A notification of the server."""
        if method == CHANGED[TOOLS]:
            self._mirrors = self._learning = None

    def forget(self, call: int) -> None:
        """Nobody waits for this call any more."""
        self._untold.pop(call, None)


class _Reason(Struct):
    reason: str = ""


def _disagrees(error: Raw) -> bool:
    """Whether this error of ours says that the server has refused the headers of a call."""
    try:
        return msgspec.json.decode(errors.parse_error_member(error).data, type=_Reason).reason == HEADERS
    except (ValueError, msgspec.DecodeError):
        return False
