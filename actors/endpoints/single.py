"""One server as it is: the client can't tell the endpoint from the server itself.

Its own names, URIs, cursors, errors and unknown members pass as they are, but for the tools that the configuration
hides: `enabledTools` and `disabledTools`.
"""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

import msgspec
from msgspec import Raw

from actors.endpoints.endpoint import Endpoint
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.messages import EMPTY
from actors.protocol.methods import LIST_CHANGED
from actors.protocol.table import BackendSpec, Table, same_server
from actors.upstreams.messages import UpstreamOutcome
from actors.upstreams.paging import Items, Page, Paging


def filtered(spec: BackendSpec) -> bool:
    """Whether there is anything to filter."""
    return spec.enabled_tools is not None or bool(spec.disabled_tools)


def shown(spec: BackendSpec, name: str) -> bool:
    """Whether this tool may be seen and called, by the backend's own name for it."""
    if any(fnmatchcase(name, pattern) for pattern in spec.disabled_tools):
        return False
    return spec.enabled_tools is None or any(fnmatchcase(name, pattern) for pattern in spec.enabled_tools)


class Single:
    """The naming of `/mcp/<server>`."""

    __slots__ = ("_endpoint",)

    merges = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def backend(self) -> str | None:
        """The server, as long as it is configured."""
        table = self._endpoint.services.table.value
        served = table.endpoints.get(self._endpoint.name)
        return served.backends[0] if served is not None and served.backends[0] in table.backends else None

    @property
    def configured(self) -> bool:
        """As in `Naming`."""
        return self.backend is not None

    def unconfigured(self) -> errors.ProtocolError:
        """As in `Naming`."""
        name = self._endpoint.name
        text = f"server {name!r} is no longer configured"
        return errors.internal(text, reason="unconfigured", executed="no", backend=name)

    def route(self, effect: fx.Dispatch) -> None:
        """As in `Naming`."""
        backend, params = self.backend, effect.params
        if backend is None:
            self._endpoint.refuse(effect.call, self.unconfigured())
            return
        if effect.method in ("tools/list", "tools/call"):
            spec = self._endpoint.services.table.value.backends[backend]
            if filtered(spec):
                try:
                    params = self._checked(spec, effect)
                except errors.Malformed as malformed:
                    self._endpoint.refuse(effect.call, malformed.error)
                    return
                except errors.Refusal as refused:
                    self._endpoint.refuse(effect.call, refused.error)
                    return
        self._endpoint.send(effect, backend, params)

    def _checked(self, spec: BackendSpec, effect: fx.Dispatch) -> Raw:
        """The params of a request for a server of which something is hidden. What is hidden can't be called either:
        Refusal. Raises Malformed."""
        if effect.method == "tools/list":
            self._endpoint.upstreams.wait(effect.call, lambda outcome: self._filter(spec, outcome))
            return effect.params
        # Written anew: of two members of one name we check the last, and a server may read the first.
        params = json.replace_members(effect.params, {})
        if not shown(spec, _name(params)):
            raise errors.Refusal(errors.invalid_params(f"Unknown tool: {_name(params)[:200]}"))
        return params

    def _filter(self, spec: BackendSpec, outcome: UpstreamOutcome) -> None:
        ok, payload = outcome.ok, outcome.payload
        try:
            tools = json.members(payload).get("tools") if ok else None
            if tools is not None:
                visible = [tool for tool in json.elements(tools) if shown(spec, _name(tool))]
                payload = json.replace_members(payload, {"tools": json.dumps(visible)})
        except errors.Malformed:
            ok, text = False, "the server's list is malformed"
            payload = errors.internal(text, reason="malformed", executed="yes", backend=spec.name).raw
        self._endpoint.end(outcome.call, ok, payload)

    def reconfigured(self, before: Table) -> None:
        """The table was replaced. What other filters show counts from now on; the client is told if that is another
        list of tools. (Of another server it is told when its connection is one to that server.)"""
        backend = self.backend
        was = before.backends.get(backend or "")
        spec = self._endpoint.services.table.value.backends.get(backend or "")
        if was is None or spec is None or _filters(was) == _filters(spec):
            return

        def listed(items: Items | None, error: Raw) -> None:
            names = [_name(item) for item in items or ()]
            if items is None or error or _shown(was, names) != _shown(spec, names):
                self.changed(("tools",))

        def ask(params: Raw, page: Page) -> None:
            def came(outcome: UpstreamOutcome) -> None:
                page(outcome.ok, outcome.payload)

            if not self._endpoint.upstreams.own_call(spec.name, "tools/list", params, came):
                page(False, EMPTY)

        if same_server(was, spec) or spec.name in self._endpoint.upstreams.connections:
            Paging("tools", ask, listed).start()

    def changed(self, kinds: Iterable[str]) -> None:
        """Tells the client that these lists may be others now."""
        host = self._endpoint.host
        for kind in kinds:
            host.event(ev.CallProgressed("", None, LIST_CHANGED[kind], EMPTY, host.ctx.now()))

    def question(self, backend: str, method: str, params: Raw) -> Raw:
        """As in `Naming`: what the server says passes as it is."""
        return params

    def owner(self, uri: str) -> tuple[str, str] | None:
        """As in `Naming`."""
        backend = self.backend
        return (backend, uri) if backend is not None else None

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        """As in `Naming`."""
        then()


def _filters(spec: BackendSpec) -> object:
    return spec.enabled_tools, spec.disabled_tools


def _shown(spec: BackendSpec, names: list[str]) -> list[str]:
    return [name for name in names if shown(spec, name)]


class _Named(msgspec.Struct):
    name: str


def _name(item: Raw) -> str:
    try:
        return msgspec.json.decode(item, type=_Named).name
    except (msgspec.DecodeError, RecursionError):
        return ""
