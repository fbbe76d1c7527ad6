"""How the links of a session are left: put down when it leaves the process, and at its end all that there are. And how
it comes back to what it left."""

from typing import TYPE_CHECKING

from actors.links.link_messages import PutDown, Warm
from actors.links.resume import farewell, movable

if TYPE_CHECKING:
    from actors.fronts.front import Front


def is_bound(front: "Front") -> bool:
    """Whether a link lives and dies with this process."""
    backends = front.table.backends
    return any((spec := backends.get(name)) is None or not movable(spec) for name in front.links)


def put_down(front: "Front") -> None:
    """The session leaves this process; the sessions of its backends wait for it."""
    for link in front.links.values():
        link.reply(PutDown(front.host.ctx.ref))


def say_farewell(front: "Front") -> None:
    """The session ends, and with it those sessions of its backends that no link knows of. (Links end with it.)"""
    for spec, kept in front.kept.unopened(front.table) if front.kept is not None else ():
        farewell(front.services, front.tree.links, spec, kept)


def wake(front: "Front") -> None:
    """Connects to the backends whose sessions wait for this one."""
    for backend in front.kept.reachable if front.kept is not None else ():
        link = front.link(backend)
        if link is not None:
            link.reply(Warm())
