"""One server as it is: the client can't tell the endpoint from the server itself.

Its own names, URIs, cursors, errors and unknown members pass as they are, but for the tools that the configuration
hides: by `enabledTools` and `disabledTools`, and by the rules of the policy.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Raw

from actors.endpoints.catalogue import NAMED_BY
from actors.endpoints.endpoint import Endpoint
from actors.endpoints.guard import shown
from actors.endpoints.listing import TOOLS, catalogue_key
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.aggregate import annotations_of, item_name
from actors.protocol.messages import EMPTY
from actors.protocol.methods import LIST_CHANGED, METHODS
from actors.protocol.steady import Items
from actors.protocol.subjects import LISTED
from actors.protocol.table import LISTS, BackendSpec, Table, same_server
from actors.upstreams.messages import UpstreamOutcome
from actors.upstreams.paging import Page, Paging


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
        backend, kind = self.backend, LISTED.get(effect.method)
        if backend is None:
            self._endpoint.refuse(effect.call, self.unconfigured())
        elif kind is None:
            self._endpoint.judge(effect, backend, effect.params)
        else:
            spec = self._endpoint.services.table.value.backends[backend]
            if self._endpoint.guard.hides(spec, kind):
                self._endpoint.upstreams.wait(effect.call, lambda outcome: self._filter(effect, outcome))
            self._endpoint.send(effect, backend, effect.params)

    def _filter(self, effect: fx.Dispatch, outcome: UpstreamOutcome) -> None:
        """A page of a list, without what its client may not see."""
        ok, payload = outcome.ok, outcome.payload
        guard, member = self._endpoint.guard, METHODS[effect.method].items or ""
        spec = self._endpoint.services.table.value.backends.get(outcome.backend)
        try:
            page = json.members(payload) if ok else {}
            items = page.get(member)
            if items is not None and spec is not None:
                of, kind, named_by = json.elements(items), LISTED[effect.method], NAMED_BY[effect.method]
                cursors = json.members(effect.params).get("cursor"), page.get("nextCursor")
                whole = all(json.text_or_none(cursor) is None for cursor in cursors)
                visible = guard.asking(effect.rights, lambda: [*guard.visible(spec, kind, of, named_by, whole=whole)])
                payload = json.replace_members(payload, {member: json.dumps(visible)})
        except errors.Malformed:
            ok, text = False, "the server's list is malformed"
            payload = errors.internal(text, reason="malformed", executed="yes", backend=outcome.backend).raw
        self._endpoint.end(outcome.call, ok, payload)

    def reconfigured(self, before: Table) -> None:
        """The table was replaced. What other filters show counts from now on; the client is told if that is another
        list of tools. (Of another server it is told when its connection is one to that server.)"""
        backend = self.backend
        was = before.backends.get(backend or "")
        spec = self._endpoint.services.table.value.backends.get(backend or "")
        if was is None or spec is None:
            return
        if was.pins != spec.pins:
            self.changed(sorted(LISTS))
            return
        if _filters(was) == _filters(spec):
            return

        def listed(items: Items | None, error: Raw) -> None:
            names = [item_name(item) or "" for item in items or ()]
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

    def annotations(self, backend: str, tool: str) -> Any:
        """As in `Naming`: of the list that was known last of the server."""
        known = self._endpoint.tree.known.items(catalogue_key(self._endpoint, backend), TOOLS)
        return annotations_of(known or (), tool)

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
