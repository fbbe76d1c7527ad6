"""Retries, disconnects, expiries and dying backends in any order: what `World` checks at each step holds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from actors.machines.modern import suspended_calls as ev
from actors.machines.modern.suspended_calls import Phase
from actors.protocol.payload import dumps
from tests.protocol.bridge.world import ANSWERS, ELICIT, ROOTS, SAMPLE, World


class Interleavings(RuleBasedStateMachine):
    """One pool, any number of modern requests."""

    world: World

    @initialize(
        serialized=st.booleans(), lines=st.integers(1, 3), waiting=st.integers(0, 4), room=st.sampled_from((0, 1, 4, 4))
    )
    def start(self, **how: Any) -> None:
        self.world = World(**how)

    def _one(self, data: st.DataObject, of: Any) -> Any:
        return data.draw(st.sampled_from(sorted(of)))

    @rule(may_ask_back=st.booleans())
    def begin(self, may_ask_back: bool) -> None:
        self.world.begin(may_ask_back)

    @precondition(lambda self: self.world.may_ask_back & self.world.live.keys())
    @rule(data=st.data(), method=st.sampled_from((ELICIT, SAMPLE, ROOTS)))
    def ask(self, data: st.DataObject, method: str) -> None:
        self.world.ask(self._one(data, self.world.may_ask_back & self.world.live.keys()), method)

    @precondition(lambda self: self.world.may_ask_back & self.world.live.keys())
    @rule(data=st.data(), methods=st.lists(st.sampled_from((ELICIT, SAMPLE, ROOTS)), min_size=1, max_size=3))
    def ask_and_park(self, data: st.DataObject, methods: list[str]) -> None:
        call = self._one(data, self.world.may_ask_back & self.world.live.keys())
        for method in methods:
            self.world.ask(call, method)
        if call in self.world.gathering:
            self.world.suspend(call)

    @precondition(lambda self: self.world.asking)
    @rule(data=st.data())
    def answer_all(self, data: st.DataObject) -> None:
        self.world.resume(self._one(data, self.world.asking))

    @precondition(lambda self: self.world.asking.keys() & self.world.live.keys())
    @rule(data=st.data(), ok=st.booleans())
    def end_while_suspended(self, data: st.DataObject, ok: bool) -> None:
        self.world.end(self._one(data, self.world.asking.keys() & self.world.live.keys()), ok)

    @precondition(lambda self: self.world.settling)
    @rule(data=st.data())
    def ask_for_what_was_given_up(self, data: st.DataObject) -> None:
        self.world.ask(self._one(data, self.world.settling))

    @precondition(lambda self: self.world.questions)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        line, id = self._one(data, self.world.questions)
        del self.world.questions[line, id]
        self.world.do(ev.Withdrawn(line, id))

    @precondition(lambda self: self.world.gathering)
    @rule(data=st.data())
    def siblings_over(self, data: st.DataObject) -> None:
        self.world.suspend(self._one(data, self.world.gathering))

    @precondition(lambda self: self.world.asking)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        call = self._one(data, self.world.asking)
        asked = self.world.asking[call].questions
        some = data.draw(st.lists(st.sampled_from([q.key for q in asked]), unique=True)) if asked else []
        answers = {q.key: ANSWERS[q.method] for q in asked if q.key in some}
        self.world.resume(call, answers | data.draw(st.sampled_from([{}, {"x": dumps(1)}])))

    @precondition(lambda self: self.world.asking)
    @rule(data=st.data())
    def resume_badly(self, data: st.DataObject) -> None:
        call = self._one(data, self.world.asking)
        asked = self.world.asking[call].questions
        before = len(self.world.answers)
        self.world.resume(call, {q.key: dumps({"action": 1}) for q in asked})
        still = {q.id for q in self.world.calls.held[call].open.values()} if call in self.world.calls.held else set()
        assert not still or len(self.world.answers) == before

    @rule(data=st.data(), round=st.integers(0, 4))
    def replay(self, data: st.DataObject, round: int) -> None:
        """Any round of any call, also of one that is long over."""
        call = data.draw(st.integers(1, 12))
        if call not in self.world.asking or self.world.asking[call].round != round:
            owner = self.world.resume(call, {}, round)
            assert self.world.outcomes[owner][1]["code"] == -32602

    @precondition(lambda self: "open" in self.world.exchanges.values())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.leave(self._one(data, [o for o, state in self.world.exchanges.items() if state == "open"]))

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), ok=st.booleans())
    def end(self, data: st.DataObject, ok: bool) -> None:
        self.world.end(self._one(data, self.world.live), ok)

    @precondition(lambda self: self.world.suspended)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.world.do(ev.Expired(self._one(data, self.world.suspended)))

    @precondition(lambda self: self.world.settling)
    @rule(data=st.data(), listens=st.booleans())
    def settle(self, data: st.DataObject, listens: bool) -> None:
        call = self._one(data, self.world.settling)
        if listens:
            self.world.settle(call)
        else:
            self.world.do(ev.GraceOver(call))

    @precondition(lambda self: self.world.settling)
    @rule(data=st.data())
    def end_what_was_given_up(self, data: st.DataObject) -> None:
        """The outcome was on its way."""
        self.world.end(self._one(data, self.world.settling))

    @precondition(lambda self: self.world.calls.waiting)
    @rule(data=st.data())
    def wait_over(self, data: st.DataObject) -> None:
        waits = self._one(data, self.world.calls.waiting)
        patient = data.draw(st.permutations(sorted(self.world.suspended)))
        self.world.do(ev.WaitOver(waits, tuple(patient[: data.draw(st.integers(0, 2))])))

    @precondition(lambda self: self.world.calls.lines)
    @rule(data=st.data(), for_good=st.booleans())
    def lose(self, data: st.DataObject, for_good: bool) -> None:
        self.world.lose(self._one(data, self.world.calls.lines), for_good=for_good)

    @rule(call=st.integers(1, 12), late=st.sampled_from((ev.GatherOver, ev.Expired, ev.Settled, ev.GraceOver)))
    def late_clock(self, call: int, late: Any) -> None:
        """A clock that has nothing to end any more changes nothing."""
        held = self.world.calls.held.get(call)
        if held is None or held.phase is Phase.RUNNING:
            before = self.world.calls
            self.world.do(late(call, True) if late is ev.GatherOver else late(call))
            assert self.world.calls is before

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestInterleavings = Interleavings.TestCase
