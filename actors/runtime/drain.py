"""Ending a system gently: everybody finishes what is in hand, dependants before those they depend on."""

from collections.abc import Sequence

import trio

from actors.runtime.cell import Drain
from actors.runtime.exits import SHUTDOWN
from actors.runtime.ref import Ref
from actors.runtime.supervisor import BaseSupervisor


async def drain(refs: Sequence[Ref], until: float) -> None:
    """Tells the actors of one phase to drain, waits until they have ended, at most `until` (trio's clock), and ends the
    rest; after that time nobody is asked any more. A supervisor drains phase by phase before it ends itself."""
    if trio.current_time() < until:
        await _ask(refs, until)
    for ref in refs:
        ref.cell.end(SHUTDOWN)


async def _ask(refs: Sequence[Ref], until: float) -> None:
    supervisors = [ref.cell.actor for ref in refs if isinstance(ref.cell.actor, BaseSupervisor)]
    others = [ref for ref in refs if not isinstance(ref.cell.actor, BaseSupervisor)]
    for ref in others:
        ref.urgent(Drain(until))
    for supervisor in supervisors:
        supervisor.closing = True
        for phase in supervisor.phases():
            await drain(phase, until)
    with trio.move_on_at(until):
        for ref in others:
            await ref.ended()
