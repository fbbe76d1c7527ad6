"""The mailbox as a data structure, against a naive model."""

import gc
from collections import deque
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.runtime import SHUTDOWN, Exit
from actors.runtime.mailbox import URGENT_PLACES, Mailbox, Place

SIZE = 4


class Ticket(Place):
    """A place that counts what becomes of it."""

    __slots__ = ("outcomes", "reserved")

    def __init__(self, reserved: bool) -> None:
        self.reserved = reserved
        self.outcomes: list[str] = []

    def taken(self) -> None:
        self.outcomes.append("taken")

    def closed(self, name: str, reason: Exit) -> None:
        self.outcomes.append("closed")


class MailboxMachine(RuleBasedStateMachine):
    """Messages are numbers in the order of sending; the model is a list of (message, ticket, reserved)."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox(SIZE)
        self.fifo: list[tuple[int, Ticket | None, bool]] = []
        self.urgent: list[int] = []
        self.number = 0
        self.refused = 0
        self.tickets: list[Ticket] = []
        self.closed = False

    def next(self) -> int:
        self.number += 1
        return self.number

    def ordinary(self) -> int:
        return sum(not reserved for _, _, reserved in self.fifo)

    @rule(with_ticket=st.booleans())
    def offer(self, with_ticket: bool) -> None:
        ticket = Ticket(reserved=False) if with_ticket else None
        accepted = not self.closed and self.ordinary() < SIZE
        number = self.next()
        assert self.mailbox.offer(number, ticket) is accepted
        if accepted:
            self.fifo.append((number, ticket, False))
            if ticket:
                self.tickets.append(ticket)
        else:
            self.refused += 1

    @rule(with_ticket=st.booleans())
    def put(self, with_ticket: bool) -> None:
        ticket = Ticket(reserved=True) if with_ticket else None
        number = self.next()
        assert self.mailbox.put(number, *([ticket] if ticket else [])) is not self.closed
        if not self.closed:
            self.fifo.append((number, ticket, True))
            if ticket:
                self.tickets.append(ticket)

    @rule()
    def urge(self) -> None:
        accepted = not self.closed and len(self.urgent) < URGENT_PLACES
        number = self.next()
        assert self.mailbox.urge(number) is accepted
        if accepted:
            self.urgent.append(number)

    @precondition(lambda self: self.fifo or self.urgent)
    @rule()
    def take(self) -> None:
        if self.urgent:
            assert self.mailbox.urgent
            assert self.mailbox.take_urgent() == self.urgent.pop(0)
            return
        message, ticket, _ = self.fifo.pop(0)
        assert self.mailbox.take() == message
        assert ticket is None or ticket.outcomes == ["taken"]

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def revoke(self, data: Any) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        queued = [entry for entry in self.fifo if entry[1] is ticket]
        assert self.mailbox.revoke(ticket) is bool(queued)
        if queued:
            self.fifo.remove(queued[0])

    @precondition(lambda self: not self.mailbox)
    @rule()
    def rest(self) -> None:
        self.mailbox.rest()

    @precondition(lambda self: self.number > 12)
    @rule()
    def close(self) -> None:
        places = self.mailbox.close()
        assert places == [ticket for _, ticket, _ in self.fifo if ticket] or any(reserved for *_, reserved in self.fifo)
        for place in places:
            place.closed("name", SHUTDOWN)
        for _, ticket, _ in self.fifo:
            assert ticket is None or ticket.outcomes == ["closed"]
        self.closed = True
        self.fifo, self.urgent = [], []

    @invariant()
    def counts_agree(self) -> None:
        statistics = self.mailbox.statistics()
        assert statistics.ordinary == self.ordinary() <= SIZE
        assert statistics.reserved == len(self.fifo) - self.ordinary()
        assert statistics.urgent == len(self.urgent)
        assert statistics.refused == self.refused
        assert bool(self.mailbox) is bool(self.fifo or self.urgent)

    @invariant()
    def one_outcome_at_most(self) -> None:
        assert all(len(ticket.outcomes) <= 1 for ticket in self.tickets)


TestMailboxAgainstAModel = MailboxMachine.TestCase


def test_an_idle_mailbox_holds_no_queue() -> None:
    """Most actors are idle, and a queue weighs more than the rest of an actor."""
    mailbox = Mailbox(8)
    mailbox.offer("work")
    mailbox.take()
    mailbox.rest()
    assert not [part for part in gc.get_referents(mailbox) if isinstance(part, deque)]


def test_revoking_compares_places_by_identity() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    mailbox, ticket = Mailbox(8), Ticket(reserved=False)
    mailbox.offer(Equal())
    mailbox.offer("mine", ticket)
    assert mailbox.revoke(ticket)
    assert isinstance(mailbox.take(), Equal)
