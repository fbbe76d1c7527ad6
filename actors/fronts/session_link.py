"""How a session comes to a connection of its own to a backend with sessions, or to one that is shared."""

from typing import TYPE_CHECKING

from actors.links.link import LinkActor
from actors.links.links import start_link
from actors.protocol.table import BackendSpec
from actors.runtime import Ref

if TYPE_CHECKING:
    from actors.fronts.front import Front


def start_session_link(front: "Front", spec: BackendSpec, attempt: int) -> Ref:
    """A link for the session of this front; `attempt`: as many in a row have ended. Raises AtCapacity, SystemClosed."""
    shared = spec.sharing == "shared"
    resume = front.kept.take(spec) if front.kept is not None and not shared else None
    level = None if shared else front.host.level or None
    # The handshake of a link sets the level; where there is none, the backend may know another one.
    front.levels[spec.name] = None if resume is not None and resume.kept is not None else level

    def make() -> LinkActor:
        return LinkActor(
            spec,
            front.profile(spec, own=True),
            front.services,
            front.tree.backends,
            level=level,
            subscriptions=() if shared else front.subscriptions_at(spec.name),
            attempt=max(1, attempt),
            resume=resume,
            eras=front.tree.eras,
        )

    return start_link(spec, front.host.ctx.system.registry, front.tree.links, make)
