"""Which arguments of which tools the headers of a request repeat, as the lists of a server say it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from actors.exchanges.exchange_running import Running
from actors.fronts.catalogue_messages import LIST_CHANGED
from actors.fronts.listing import TOOLS
from actors.fronts.single import Single, filtered
from actors.links.link_messages import LinkOutcome
from actors.links.paging import Items, Page, Paging
from actors.protocol import effects as fx
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.aggregate import item_name
from actors.protocol.errors import Malformed
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS
from actors.protocol.modern.headers import ANNOTATION, PARAM_PREFIX, IllegalAnnotation, Mirrored, of_tool
from actors.protocol.modern.link_calls import HEADERS, MIRRORS_MAX
from actors.protocol.table import HttpTarget

if TYPE_CHECKING:
    from actors.exchanges.modern_endpoint import ModernEndpoint

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


class LearnedHeaders:
    """Of a single server, whose lists pass as they are: learned from them, or asked for where headers may be wrong."""

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
        modern, http = self._endpoint.host.peers.modern(spec), isinstance(spec.target, HttpTarget)
        if self._repeats(effect) and not (http and modern):
            self._look_first(effect, backend)
            return True
        if http and modern is not False:  # it refuses by itself what its tool does not want
            self._untold.setdefault(effect.call, effect)
        return False

    def _repeats(self, effect: fx.Dispatch) -> bool:
        """Whether headers repeat arguments of this call: they may be wrong."""
        request = self._endpoint.host.running.get(effect.call)
        return request is not None and any(name.startswith(MIRROR) for name in request.headers)

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

    def outcome(self, message: LinkOutcome, request: Running | None) -> LinkOutcome | None:
        """The outcome of a call, as the client may have it; None: it is made once more. A page of the list of tools, on
        its way to a client, says which arguments headers repeat."""
        untold = self._untold.pop(message.call, None)
        if not message.ok:
            if untold is not None and not message.theirs and _disagrees(message.payload):
                self._endpoint.calls.pop(message.call, None)
                self._untold[message.call] = None
                self._look_first(untold, message.backend)
                return None
            return message
        payload = message.payload
        if request is not None and request.exchange.method == TOOLS:
            self._learn(request.exchange.params, payload)
            payload = self._legal(payload)
        if message.call in self._endpoint.upstreams.waiters:
            spec = self._endpoint.services.table.value.backends.get(message.backend)
            # What the gateway filtered is no longer what the server said that everybody may see.
            if spec is not None and filtered(spec):
                payload = json.replace_members(payload, {"cacheScope": json.dumps("private")})
        if payload is message.payload:
            return message
        return LinkOutcome(message.backend, message.call, True, payload)

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
        if method == LIST_CHANGED[TOOLS]:
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
