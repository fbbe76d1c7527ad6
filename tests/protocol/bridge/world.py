"""A pool's calls with a client and a backend around them that check what is said to them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Raw

from actors.machines.modern import suspended_calls as ev
from actors.machines.modern.suspended_calls import Calls, Phase, Rules, step
from actors.protocol.payload import dumps, loads

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
ANSWERS = {
    ELICIT: dumps({"action": "accept", "content": {"yes": True}}),
    SAMPLE: dumps({"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}}),
    ROOTS: dumps({"roots": []}),
}
DONE = dumps({"content": []})
FAILED = dumps({"code": -32603, "message": "lost"})


class World:
    """Both ends, and the clocks. `said` holds the effects of the last step."""

    def __init__(self, *, serialized: bool = True, lines: int = 2, waiting: int = 256, room: int = 100) -> None:
        self.calls = Calls(Rules(serialized, lines, waiting, server="alpha"))
        self.room = room
        self.said: ev.Effects = []
        self.exchanges: dict[str, str] = {}
        """open | answered | cancelled"""
        self.outcomes: dict[str, tuple[bool, Any]] = {}
        self.asking: dict[int, ev.Suspend] = {}
        """By call: what its client was asked last and may still answer."""
        self.suspended: set[int] = set()
        self.sent: Counter[int] = Counter()
        self.live: dict[int, int] = {}
        """What the backend works on: call → line."""
        self.may_ask_back: set[int] = set()
        self.questions: dict[tuple[int, int], int] = {}
        """What the backend asked and has no answer to: (line, id) → call."""
        self.answers: list[ev.Answer] = []
        self.cancelled: list[int] = []
        self.settling: dict[int, int] = {}
        """What was given up and may still be worked on: call → line."""
        self.gathering: set[int] = set()
        self.clocks: set[int] = set()
        """Calls that wait for a line, with a clock."""
        self.closed: set[int] = set()
        self.forgotten: set[int] = set()
        self._number = 0
        self._question = 0

    # What happens

    def do(self, event: ev.SuspensionEvent) -> ev.Effects:
        """One step; everything that it says is checked."""
        self.calls, self.said = step(self.calls, event)
        for effect in self.said:
            getattr(self, f"_{type(effect).__name__.lower()}", self._ignore)(effect)
        self.check()
        return self.said

    def begin(self, may_ask_back: bool = True) -> int:
        """A new exchange; the number of its call, which is the name of its owner too."""
        self._number += 1
        call = self._number
        self.exchanges[str(call)] = "open"
        if may_ask_back:
            self.may_ask_back.add(call)
        self.do(ev.Begun(call, str(call), may_ask_back))
        return call

    def ask(self, call: int, method: str = ELICIT, key: str = "") -> int:
        """The backend asks, by a key of its own if it has one; the id of the question."""
        self._question += 1
        self.questions[self.live.get(call, self.settling.get(call, 0)), self._question] = call
        self.do(ev.ServerRequested(call, self._question, method, dumps({"n": self._question}), key))
        return self._question

    def suspend(self, *calls: int) -> None:
        """The questions that have come are given to the client."""
        for call in calls or tuple(self.gathering):
            self.gathering.discard(call)
            self.do(ev.GatherOver(call, len(self.suspended) < self.room))

    def resume(self, call: int, answers: dict[str, Raw] | None = None, round: int | None = None) -> str:
        """A client comes with answers, by default with all of the last round's; the owner of the new exchange."""
        self._number += 1
        owner = f"{call}.{self._number}"
        self.exchanges[owner] = "open"
        suspend = self.asking.get(call)
        if answers is None:
            answers = {q.key: ANSWERS[q.method] for q in suspend.questions} if suspend else {}
        self.do(ev.Resumed(call, owner, round if round is not None else (suspend.round if suspend else 1), answers))
        return owner

    def end(self, call: int, ok: bool = True) -> None:
        """The backend has done it. (The upstream connection answers what it still asked.)"""
        self._ended_upstream(call)
        self.do(ev.Ended(call, ok, DONE if ok else FAILED))

    def leave(self, owner: str) -> None:
        """The client closes the connection of an exchange."""
        for call, held in self.calls.held.items():
            if held.owner == owner:
                self.exchanges[owner] = "cancelled"
                self.do(ev.Cancelled(call, "disconnected"))
                return

    def settle(self, call: int) -> None:
        """The backend shows that it listens."""
        self.settling.pop(call, None)
        self.do(ev.Settled(call))

    def lose(self, line: int, *, for_good: bool) -> None:
        """The connection breaks and has said so to every call; or its actor ends, which says nothing."""
        for call in [c for c, on in (*self.live.items(), *self.settling.items()) if on == line]:
            pending = call in self.live
            if for_good or pending:
                self._ended_upstream(call)
            if pending and not for_good:
                self.do(ev.Ended(call, False, FAILED))
        if for_good:
            self.closed.add(line)
        self.do(ev.ConnectionGone(line) if for_good else ev.ConnectionLost(line))

    def _ended_upstream(self, call: int) -> None:
        self.live.pop(call, None)
        self.settling.pop(call, None)
        self.questions = {question: of for question, of in self.questions.items() if of != call}

    # What is said

    def _ignore(self, effect: Any) -> None:
        pass

    def _dispatch(self, effect: ev.Dispatch) -> None:
        self.sent[effect.call] += 1
        assert self.sent[effect.call] == 1, "executed twice"
        assert effect.line not in self.closed
        if self.calls.rules.serialized and effect.call in self.may_ask_back:
            on_it = {c for c, line in (*self.live.items(), *self.settling.items()) if line == effect.line}
            assert not on_it & self.may_ask_back, "two calls that may both ask on one line"
        self.live[effect.call] = effect.line

    def _outcome(self, effect: ev.Outcome) -> None:
        owner = str(effect.owner)
        assert self.exchanges[owner] == "open", f"{owner} is {self.exchanges[owner]}"
        self.exchanges[owner] = "answered"
        outcome = loads(effect.payload)
        self.outcomes[owner] = (effect.ok, outcome)
        said = outcome.get("data", {})
        if not effect.ok and "reason" in said:  # of our own making
            assert said["backend"] == "alpha"
            assert said["executed"] in ("no", "unknown", "yes")

    def _suspend(self, effect: ev.Suspend) -> None:
        owner = str(effect.owner)
        assert self.exchanges[owner] == "open"
        self.exchanges[owner] = "answered"
        assert effect.call not in self.suspended
        self.suspended.add(effect.call)
        self.asking[effect.call] = effect

    def _unsuspend(self, effect: ev.Unsuspend) -> None:
        self.suspended.remove(effect.call)
        self.asking.pop(effect.call)

    def _answer(self, effect: ev.Answer) -> None:
        assert isinstance(effect.id, int)
        del self.questions[effect.line, effect.id]  # asked, and not answered before
        self.answers.append(effect)

    def _cancel(self, effect: ev.Cancel) -> None:
        assert self.live.pop(effect.call) == effect.line
        assert effect.call not in self.questions.values(), "cancelled with a question left"
        self.cancelled.append(effect.call)

    def _startgrace(self, effect: ev.StartGrace) -> None:
        self.settling[effect.call] = effect.line

    def _startgather(self, effect: ev.StartGather) -> None:
        self.gathering.add(effect.call)

    def _startwait(self, effect: ev.StartWait) -> None:
        self.clocks.add(effect.call)

    def _stopgrace(self, effect: ev.StopGrace) -> None:
        self.settling.pop(effect.call, None)

    def _stopwait(self, effect: ev.StopWait) -> None:
        self.clocks.remove(effect.call)

    def _discard(self, effect: ev.Discard) -> None:
        self.closed.add(effect.line)
        for call in [c for c, line in (*self.live.items(), *self.settling.items()) if line == effect.line]:
            self._ended_upstream(call)

    def _forget(self, effect: ev.Forget) -> None:
        assert effect.call not in self.forgotten
        self.forgotten.add(effect.call)

    # What holds at any time

    def check(self) -> None:
        """Nobody waits in vain."""
        held = self.calls.held
        for owner, state in self.exchanges.items():
            assert (state == "open") == any(h.owner == owner for h in held.values()), f"nobody serves {owner}"
        assert not self.forgotten & held.keys()
        for call, holding in held.items():
            phase = holding.phase
            assert (phase is Phase.WAITING) == (call in self.calls.waiting)
            assert phase is not Phase.WAITING or call in self.clocks
            assert phase is not Phase.GATHERING or call in self.gathering
            assert (phase in (Phase.SUSPENDED, Phase.KEPT)) == (call in self.suspended)
            assert phase is not Phase.SETTLING or call in self.settling
            open_upstream = {id for (_, id), of in self.questions.items() if of == call}
            assert {q.id for q in holding.open.values()} == open_upstream
        assert not self.calls.waiting or None not in self.calls.lines.values(), "a line is free, and calls wait"
        for line, holder in self.calls.lines.items():
            assert holder is None or held[holder].line == line
        assert len(self.calls.lines) <= max(1, self.calls.rules.lines)

    def finish(self) -> None:
        """Everybody leaves, every clock runs out: nothing is left anywhere."""
        for owner in [owner for owner, state in self.exchanges.items() if state == "open"]:
            self.leave(owner)
        for call in list(self.suspended):
            self.do(ev.Expired(call))
        for call in list(self.settling):
            self.do(ev.GraceOver(call))
        assert not self.calls.held
        assert not self.calls.waiting
        assert not self.questions
        assert not self.live
        assert not self.suspended
        assert set(self.calls.lines.values()) <= {None}
        assert "open" not in self.exchanges.values()
