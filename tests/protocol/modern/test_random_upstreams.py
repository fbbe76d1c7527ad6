"""A modern upstream connection, driven through anything that callers, clocks and a server may do, in any order."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream.modern import TABLE
from actors.machines.upstream.modern_events import Called
from actors.machines.upstream.modern_state import TRANSITIONS, Listen, Phase
from tests.support.modern_upstream import DISCOVERED, Drive, client

METHODS = (
    "tools/call",
    "tools/list",
    "resources/read",
    "prompts/get",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "ping",
)
QUESTION = {"method": "elicitation/create", "params": {"message": "?"}}
URL = {"method": "elicitation/create", "params": {"mode": "url", "url": "https://a.test", "message": "?"}}
RESULTS: tuple[dict[str, Any], ...] = (
    {"resultType": "complete", "content": []},
    {"tools": [{"name": "t"}], "nextCursor": "2"},
    {"resultType": "input_required", "requestState": "s"},
    {"resultType": "input_required", "inputRequests": {"a": QUESTION, "b": {"method": "roots/list"}}},
    {"resultType": "input_required", "inputRequests": {"u": URL}, "requestState": "s"},
    {"resultType": "odd"},
    DISCOVERED,
    DISCOVERED | {"supportedVersions": ["2025-11-25"]},
)
CODES = (-32601, -32602, -32603, -32020, -32021, -32022, -32000)

pick = st.integers(0, 10)
actions = st.one_of(
    st.tuples(st.just("call"), st.sampled_from(METHODS), st.sampled_from(["s1", "s2", "m1"]), st.sampled_from("abc")),
    st.tuples(st.just("abandon"), pick),
    st.tuples(st.just("join"), st.sampled_from(["s1", "s2"])),
    st.tuples(st.just("leave"), st.sampled_from(["s1", "s2"])),
    st.tuples(st.just("answer"), pick, st.booleans()),
    st.tuples(st.just("result"), pick, st.sampled_from(RESULTS)),
    st.tuples(st.just("error"), pick, st.sampled_from(CODES), st.sampled_from([200, 400, 404, 500])),
    st.tuples(st.just("fail"), pick, st.sampled_from(["connection_lost", "http_status", "protocol"])),
    st.tuples(st.just("acknowledge"), pick),
    st.tuples(st.just("update"), pick, st.sampled_from("abc")),
    st.tuples(st.just("due"), pick),
    st.tuples(st.just("welcome")),
    st.tuples(st.just("welcome")),
    st.tuples(st.just("acknowledge"), pick),
    st.tuples(st.just("close")),
    st.tuples(st.just("retry")),
    st.tuples(st.just("expire")),
    st.tuples(st.just("reconsider")),
    st.tuples(st.just("want")),
    st.tuples(st.just("speak")),
    st.tuples(st.just("doubt"), pick),
)


class Play:
    """An upstream connection and a witness that knows who waits for what."""

    def __init__(self, related: bool, warm: bool = False, settled: bool = False) -> None:
        """Its transports; only of a process can more be said."""
        started = ev.Started(related, warm=warm and not related, starts=not (warm or related), settled=settled)
        self.drive = Drive(related, started)
        self.calls: dict[int, str] = {}
        self.gone: set[int] = set()

    def act(self, action: tuple[Any, ...]) -> None:
        drive, before = self.drive, self.drive.upstream.phase
        getattr(self, f"_{action[0]}")(*action[1:])
        after = drive.upstream.phase
        assert after is before or any(row[0] is before for row in TRANSITIONS)
        self.check()

    def check(self) -> None:
        """Everything that waits is somewhere, once."""
        upstream = self.drive.upstream
        held = [w.call if isinstance(w, Called) else w.called.call for w in (*upstream.waiting, *upstream.rebuilding)]
        held += [*upstream.asking, *upstream.pausing]
        for pending in (*upstream.pending.values(), *upstream.lost.values()):
            called = getattr(pending, "called", None)
            held += [] if called is None else [called.call]
        for wish in upstream.wishes.values():
            held += [change.called.call for change in (*wish.taking, *wish.waiting)]
        returned = [called.call for called in self.drive.returned]
        assert sorted(held) == sorted(set(self.calls) - set(self.drive.outcomes) - set(returned) - self.gone)
        assert len(returned) == len(set(returned))
        assert not set(returned) & set(self.drive.outcomes)
        for id, pending in upstream.pending.items():
            if isinstance(pending, Listen) and pending.owner is not None and not pending.fading:
                wish = upstream.wishes[pending.owner]
                assert id in (wish.current, wish.opening)

    def _call(self, method: str, caller: str, name: str) -> None:
        call = len(self.calls) + 1
        self.calls[call] = caller
        by = client(drives=caller != "m1", principal=caller)
        self.drive.call(
            call, method, by=by, caller=caller, uri=name, name=name, notifications={"toolsListChanged": True}
        )

    def _abandon(self, n: int) -> None:
        open = [c for c in self.calls if c not in self.drive.outcomes and c not in self.gone]
        if n < len(open) and open[n] not in {called.call for called in self.drive.returned}:
            self.gone.add(open[n])
            self.drive.step(ev.Abandoned(open[n], "enough"))
            # A change of subscriptions goes on, and whoever gave it up hears of its end.
            self.gone -= {c.called.call for w in self.drive.upstream.wishes.values() for c in (*w.taking, *w.waiting)}

    def _join(self, caller: str) -> None:
        self.drive.step(mv.Joined(caller))

    def _leave(self, caller: str) -> None:
        for call, of in self.calls.items():
            if of == caller and call not in self.drive.outcomes:
                self.drive.step(ev.Abandoned(call, "left"))
                self.gone.add(call)
        self.gone -= {called.call for called in self.drive.returned}
        self.drive.step(mv.Left(caller))
        self.gone -= set(self.drive.outcomes)

    def _answer(self, n: int, ok: bool) -> None:
        if n < len(self.drive.asks):
            ask = self.drive.asks[n]
            result = {"roots": []} if ask.method == "roots/list" else {"action": "accept"}
            self.drive.answer(ask, result if ok else None)

    def _id(self, n: int) -> str:
        """Mostly of a request that is out."""
        out = [str(id) for id in self.drive.upstream.pending]
        if out and n < 10:
            return out[-1 - n % len(out)]
        return self.drive.sent[-1].id if self.drive.sent else "none"

    def _result(self, n: int, result: dict[str, Any]) -> None:
        self.drive.result(self._id(n), result)

    def _error(self, n: int, code: int, status: int) -> None:
        self.drive.error(self._id(n), code, status)

    def _doubt(self, n: int) -> None:
        """What was known of the server is in doubt: its revision was refused."""
        self._error(n, -32022, 400)

    def _fail(self, n: int, reason: str) -> None:
        self.drive.fail(self._id(n), reason, status=500 if reason == "http_status" else None)

    def _acknowledge(self, n: int) -> None:
        pending = self.drive.upstream.pending
        listens = [str(id) for id, p in pending.items() if isinstance(p, Listen) and not p.acked]
        if listens:
            self.drive.acknowledge(listens[-1 - n % len(listens)])

    def _update(self, n: int, uri: str) -> None:
        self.drive.notify("notifications/resources/updated", subscription=self._id(n), uri=uri)

    def _due(self, n: int) -> None:
        timers = list(self.drive.timers)
        if timers:
            self.drive.due(*timers[n % len(timers)])

    def _welcome(self) -> None:
        """The server is there, and of this era."""
        self._reconsider()
        self._want()
        if self.drive.upstream.phase is Phase.PROBING:
            self.drive.discovered()

    def _close(self) -> None:
        self.drive.step(ev.Closed("exited", "gone"))

    def _retry(self) -> None:
        self.drive.step(ev.RetryDue())

    def _expire(self) -> None:
        self.drive.step(ev.ConnectExpired())

    def _reconsider(self) -> None:
        self.drive.step(mv.Reconsidered())

    def _speak(self) -> None:
        self.drive.step(mv.Spoke())

    def _want(self) -> None:
        self.drive.step(ev.Wanted())


@given(
    related=st.booleans(),
    warm=st.booleans(),
    settled=st.booleans(),
    ready=st.booleans(),
    script=st.lists(actions, min_size=20, max_size=80),
)
def test_every_call_has_one_outcome_or_goes_back_unsent(related, warm, settled, ready, script):
    play = Play(related, warm, settled)
    if ready:
        play.drive.ready()
    for action in script:
        play.act(action)
    play.drive.step(ev.Shut())
    play.check()
    upstream = play.drive.upstream
    assert not upstream.pending
    assert not upstream.waiting
    assert not upstream.asking
    assert not upstream.pausing
    assert not upstream.lost
    assert not upstream.wishes
    tools = [sent for sent in play.drive.sent if sent.method == "tools/call"]
    assert len({sent.id for sent in play.drive.sent}) == len(play.drive.sent)
    assert len(tools) <= len(play.drive.sent)


def test_every_event_is_served_or_refused_in_every_phase():
    events = {event for _, event in TABLE}
    for phase in Phase:
        for event in events:
            assert callable(TABLE.get((phase, event), print))
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.CLOSED}
