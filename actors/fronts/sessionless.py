"""A session's way to backends without sessions: who they are, on whose behalf they are called, and what happens when a
backend turns out to be of the other era than it was taken for."""

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Raw
from msgspec.structs import replace

from actors.links.eras import ERA_ATTEMPTS
from actors.links.link_messages import Leave, LinkDown, LinkOutcome, LinkUnfit, Warm
from actors.links.links import start_modern_link
from actors.protocol import capabilities, errors
from actors.protocol.modern.caller import Caller
from actors.protocol.table import BackendSpec
from actors.runtime import Ref

if TYPE_CHECKING:
    from actors.fronts.front import Front


class Sessionless:
    """Of one session's front."""

    def __init__(self, front: "Front") -> None:
        self._front = front
        self._at: set[str] = set()
        self._unfit: Counter[str] = Counter()
        principal = front.host.principal
        # Of a client that nobody knows the session is all there is: it shares nothing with another one.
        self._principal = f"anonymous {secrets.token_hex(8)}" if principal.anonymous else principal.name

    def __contains__(self, backend: str) -> bool:
        return backend in self._at

    def start(self, spec: BackendSpec) -> Ref | None:
        """The link that everybody shares, if the backend is known to have no sessions. Raises AtCapacity,
        SystemClosed."""
        front = self._front
        if front.tree.eras.legacy(spec) is not False:
            self._at.discard(spec.name)
            return None
        self._at.add(spec.name)
        registry, tree = front.host.ctx.system.registry, front.tree
        return start_modern_link(spec, front.services, tree.backends, tree.eras, registry, tree.links)

    def client(self, backend: str) -> Caller | None:
        """On whose behalf this backend is called, if it has no sessions."""
        if backend not in self._at:
            return None
        front, client = self._front, self._front.host.client
        declared = capabilities.declare(front.bits)
        info = client.info if client is not None else Raw(front.services.identity)
        level = front.host.level
        if level is not None and level not in capabilities.LEVELS:
            level = capabilities.LEVELS[0]  # a server of the other era has agreed on it, and left nothing out
        return Caller(self._principal, declared, info, level, True)

    def ready(self, backend: str) -> None:
        """It is what it was taken for."""
        self._unfit.pop(backend, None)

    def unfit(self, message: LinkUnfit) -> None:
        """The calls that were not sent go to the other kind of link, under the same numbers; subscriptions too."""
        front, backend = self._front, message.backend
        me = front.host.ctx.ref
        if front.links.get(backend) is message.link:
            del front.links[backend]
            front.hellos.pop(backend, None)
            front.host.ctx.demonitor(message.link)
            message.link.reply(Leave(me))
            self._unfit[backend] += 1
        link = front.link(backend) if self._unfit[backend] <= ERA_ATTEMPTS else None
        calls = [call for call in message.calls if front.calls.get(call.call) == backend]
        if link is None:
            self._give_up(message)
            return
        for call in calls:
            front.pass_on(backend, replace(call, client=self.client(backend), version=front.words))
        link.reply(Warm())
        front.resubscribe(backend)

    def _give_up(self, message: LinkUnfit) -> None:
        """It speaks neither era, or another one each time."""
        front, backend = self._front, message.backend
        del self._unfit[backend]
        failure = front.tree.eras.neither(backend, front.table.backends.get(backend))
        front.tree.backends.reply(failure)
        error = errors.internal(failure.message, reason=failure.reason, executed="no", backend=backend).raw
        for call in message.calls:
            if front.calls.get(call.call) == backend:
                front.outcome(LinkOutcome(backend, call.call, False, error))
        front.down(LinkDown(message.link, backend, failure.message, error))
