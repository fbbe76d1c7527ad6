"""The address of an actor: all that others hold of it, and the names by which addresses are found."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import trio

from actors.runtime.exits import SHUTDOWN, ActorDown, AlreadyStarted, Exit
from actors.runtime.mailbox import MailboxStatistics, Place
from actors.runtime.reply import Reply

if TYPE_CHECKING:
    from actors.runtime.cell import Cell

ADMISSION = 2.0
"""Seconds a call waits to be taken, unless it says otherwise."""


class Ended:
    """What the address of an actor that has ended leads to."""

    __slots__ = ("reason",)
    actor = None
    crowded = False
    name = "one that has ended"

    def __init__(self, reason: Exit) -> None:
        self.reason = reason

    def offer(self, message: Any, place: Place | None = None) -> bool:
        """Nobody is there."""
        return False

    def put(self, message: Any, *place: Place) -> bool:
        """Nobody is there."""
        return False

    def urge(self, message: Any) -> bool:
        """Nobody is there."""
        return False

    def stop(self, reason: Exit) -> bool:
        """It has stopped."""
        return False

    def end(self, reason: Exit) -> None:
        """It has ended."""

    async def wait_ended(self) -> Exit:
        """It has ended."""
        await trio.lowlevel.checkpoint()
        return self.reason

    def statistics(self) -> MailboxStatistics:
        """An empty mailbox."""
        return MailboxStatistics(0, 0, 0, 0, 0)


class Ref:
    """Names one life of one actor; it stays valid, and dead, when that has ended. Hashable, compared by identity.

    Only for the thread in which the system runs; nothing but `call` and `ended` waits.
    """

    __slots__ = ("cell", "name")

    def __init__(self, name: str, cell: "Cell") -> None:
        self.name = name
        self.cell: Cell | Ended = cell
        """The runtime's own."""

    def __repr__(self) -> str:
        return f"<Ref {self.name}: {self.cell.reason or 'alive'}>"

    @property
    def alive(self) -> bool:
        """Whether it still receives messages."""
        return self.cell.reason is None

    @property
    def reason(self) -> Exit | None:
        """Why it ended; None while it is alive."""
        return self.cell.reason

    def cast(self, message: Any) -> bool:
        """Sends new work to an ordinary place: False when the mailbox is full, or the actor dead."""
        return self.cell.offer(message)

    def reply(self, message: Any) -> bool:
        """Sends what the receiver itself caused (answers, acknowledgements, cancels of its own requests) to a reserved
        place: never refused while the actor is alive, False when it is dead."""
        return self.cell.put(message)

    def urgent(self, message: Any) -> bool:
        """Sends by the urgent lane, which is read first, for ending and draining only; False when full or dead."""
        return self.cell.urge(message)

    def stop(self, reason: Exit = SHUTDOWN) -> bool:
        """Tells the actor to end before its next message; False when it is dead."""
        return self.cell.stop(reason)

    async def call(self, make: Callable[[Reply], Any], admission: float = ADMISSION) -> Any:
        """Sends `make(reply)` as new work and waits for the outcome of the reply; for edges, never for actors.

        `admission` (seconds) bounds the wait in the mailbox only; once taken, the call waits as long as it takes.
        Cancelling it revokes a queued message; a taken one goes on, and its reply is marked abandoned.

        Raises MailboxFull or NotTaken (surely not executed), ActorDown (says whether it was taken), or what the actor
        failed the reply with.
        """
        cell = self.cell
        if isinstance(cell, Ended):
            raise ActorDown(self.name, cell.reason)
        reply = Reply(cell)
        return await reply.outcome(make(reply), admission)

    def ask(self, make: Callable[[Reply], Any], admission: float, done: Callable[[Any], object]) -> Reply:
        """As `call`, without a wait: what that would return or raise is given to `done`, once, perhaps before this
        returns. `abandon` of the reply does what cancelling does to a call; nothing is given to `done` after it.

        `done` may run inside anybody's turn, so it should only `reply` to an actor; the crash of one that was made by
        `Context.guard` is that actor's.
        """
        cell = self.cell
        reply = Reply(cast("Cell", cell), done)  # one that is settled at once asks it for its name only
        if isinstance(cell, Ended):
            reply.closed(self.name, cell.reason)
        else:
            reply.ask(make(reply), admission)
        return reply

    async def ended(self) -> Exit:
        """Waits until the actor has ended, its clean-up included."""
        return await self.cell.wait_ended()

    @property
    def crowded(self) -> bool:
        """Whether half of its ordinary places are taken: what may be lost, or told later, is not for it."""
        return self.cell.crowded

    def statistics(self) -> MailboxStatistics:
        """What is in its mailbox."""
        return self.cell.statistics()


class Registry:
    """The names of one system. Every actor has a unique one from its start to its end; nobody else gives it back."""

    def __init__(self) -> None:
        self._refs: dict[str, Ref] = {}

    def __len__(self) -> int:
        return len(self._refs)

    def __iter__(self) -> Iterator[Ref]:
        """The living actors, in the order in which they were started."""
        return iter(self._refs.values())

    def whereis(self, name: str) -> Ref | None:
        """The living actor with this name."""
        return self._refs.get(name)

    def add(self, ref: Ref) -> None:
        """The runtime's own: an actor is being started. Raises AlreadyStarted if its name is taken."""
        if ref.name in self._refs:
            raise AlreadyStarted(ref.name, self._refs[ref.name])
        self._refs[ref.name] = ref

    def forget(self, ref: Ref) -> None:
        """The runtime's own: the actor has ended."""
        del self._refs[ref.name]
