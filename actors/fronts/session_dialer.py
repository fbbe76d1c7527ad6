"""How a session comes to its servers: over a connection of its own, over one that is shared, or over the one that
everybody has to a modern server."""

import secrets
from typing import TYPE_CHECKING

from msgspec import Raw

from actors.links.link import LinkActor
from actors.links.links import start_link, start_modern_link
from actors.protocol import capabilities
from actors.protocol.modern.link_events import Caller
from actors.protocol.table import BackendSpec
from actors.runtime import Ref

if TYPE_CHECKING:
    from actors.fronts.session_endpoint import SessionEndpoint


class SessionDialer:
    """Of one session."""

    changes = True

    def __init__(self, endpoint: "SessionEndpoint") -> None:
        self.told: set[str] = set()
        """Modern ones: their connections are everybody's."""
        self._endpoint = endpoint
        self._name: str | None = None

    def dial(self, spec: BackendSpec, attempt: int) -> Ref:
        """As in `Dialer`."""
        endpoint = self._endpoint
        tree, registry = endpoint.tree, endpoint.host.ctx.system.registry
        if tree.eras.legacy(spec) is False:
            self.told.add(spec.name)
            return start_modern_link(spec, endpoint.services, tree.backends, tree.eras, registry, tree.links)
        self.told.discard(spec.name)
        shared = spec.sharing == "shared"
        resume = endpoint.kept.take(spec) if endpoint.kept is not None and not shared else None
        level = None if shared else endpoint.host.level or None
        # The handshake of a connection sets the level; where there is none, the server may know another one.
        endpoint.levels[spec.name] = None if resume is not None and resume.kept is not None else level

        def make() -> LinkActor:
            return LinkActor(
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

        return start_link(spec, registry, tree.links, make)

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
        return spec.sharing == "shared" or spec.name in self.told
