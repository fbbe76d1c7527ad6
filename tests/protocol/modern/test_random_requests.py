"""Many exchanges with the same ids at once, through anything that clients, backends and clocks may do."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.machines.modern import request as ev
from actors.machines.modern.request import ModernRequest, Phase, step


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


IDS = st.sampled_from([1, "1", 2])
RESULTS = st.sampled_from(
    [
        {"content": []},
        {"resultType": "complete"},
        {"resultType": "task"},
        {"resultType": "input_required", "inputRequests": {"k": {"method": "roots/list", "params": {}}}},
    ]
)


@st.composite
def exchanges(draw: st.DrawFn) -> ModernRequest:
    """Any exchange."""
    return ModernRequest(
        id=draw(IDS),
        method=draw(st.sampled_from(["tools/call", "tools/list"])),
        params=raw({}),
        level=draw(st.sampled_from([None, "debug", "error"])),
        token=draw(st.sampled_from([None, 1, "1"])),
        bits=draw(st.sampled_from([frozenset(), frozenset({"roots"})])),
    )


def events(mark: int) -> st.SearchStrategy[Any]:
    """Any event, marked as that of the exchange it is for."""
    log = st.sampled_from(["debug", "error"]).map(lambda level: {"level": level, "data": mark})
    progress = st.integers(0, 5).map(lambda value: {"progress": value, "message": str(mark)})
    return st.one_of(
        st.just(ev.Begun(1.0)),
        log.map(lambda params: ev.Notified("notifications/message", raw(params), 1.0)),
        progress.map(lambda params: ev.Notified("notifications/progress", raw(params), 1.0)),
        st.just(ev.Notified("notifications/tools/list_changed", raw({}), 1.0)),
        RESULTS.map(lambda result: ev.Ended(True, raw({**result, "mark": mark}))),
        st.just(ev.Ended(False, raw({"code": -32602, "message": str(mark)}))),
        st.sampled_from([ev.HeadDue(), ev.DeadlineDue(), ev.DrainOverdue(), ev.Disconnected()]),
    )


class Witness:
    """What an exchange may say, kept apart from its machine."""

    def __init__(self, exchange: ModernRequest) -> None:
        self.exchange = exchange
        self.head = False
        self.over = False
        self.answered = 0
        self.clocks: set[str] = set()
        self.out = False
        self.progress: list[float] = []

    def on(self, event: Any, mark: int) -> None:
        self.exchange, effects = step(self.exchange, event)
        for effect in effects:
            self.check(effect, mark)
        ended = self.exchange.phase in (Phase.DONE, Phase.ABANDONED)
        if ended:
            self.over = True
            assert self.clocks == set()
            assert not self.out, "the backend was neither answered for nor told"
            assert self.answered == (self.exchange.phase is Phase.DONE)
        if isinstance(event, ev.Ended):
            self.out = False

    def check(self, effect: Any, mark: int) -> None:
        match effect:
            case ev.Count():
                return
            case ev.Answer(_, body):
                assert not self.head
                self.response(json.loads(body), mark)
            case ev.OpenStream():
                assert not self.head
                self.head = True
            case ev.Write(frame, last):
                assert self.head
                message = json.loads(frame)
                assert last == ("method" not in message)
                if last:
                    self.response(message, mark)
                else:
                    self.notification(message, mark)
            case ev.Dispatch():
                self.out = True
            case ev.Cancel():
                assert self.out
                self.out = False
            case ev.StartHeadClock():
                self.clocks.add("head")
            case ev.StopHeadClock():
                self.clocks.discard("head")
            case ev.StartDeadline():
                self.clocks.add("deadline")
            case ev.StopDeadline():
                self.clocks.discard("deadline")
        assert not self.over, "something came after the end"

    def response(self, message: Any, mark: int) -> None:
        assert (message["id"], type(message["id"])) == (self.exchange.id, type(self.exchange.id))
        assert self.answered == 0
        self.answered += 1
        self.out = False
        if "result" in message:
            result = message["result"]
            assert result["mark"] == mark
            assert result["resultType"] in ("complete", "input_required")
            if result["resultType"] == "input_required":
                assert self.exchange.method == "tools/call"
                assert "roots" in self.exchange.bits
        elif message["error"]["code"] == -32602:
            assert message["error"]["message"] == str(mark)

    def notification(self, message: Any, mark: int) -> None:
        assert self.answered == 0
        params = message["params"]
        if message["method"] == "notifications/progress":
            assert params["message"] == str(mark)
            token = params["progressToken"]
            assert (token, type(token)) == (self.exchange.token, type(self.exchange.token))
            assert not self.progress or params["progress"] > self.progress[-1]
            self.progress.append(params["progress"])
        else:
            assert message["method"] == "notifications/message"
            assert params["data"] == mark
            assert self.exchange.level == "debug" or (self.exchange.level, params["level"]) == ("error", "error")


@given(st.data())
def test_each_exchange_has_one_outcome_and_nothing_of_another_whatever_happens(data: st.DataObject) -> None:
    witnesses = [Witness(data.draw(exchanges())) for _ in range(3)]
    for witness in witnesses:
        if data.draw(st.booleans()):
            witness.on(ev.Begun(1.0), witnesses.index(witness))
    for _ in range(data.draw(st.integers(0, 15))):
        mark = data.draw(st.integers(0, 2))
        event = data.draw(events(mark))
        if isinstance(event, ev.HeadDue) and "head" in witnesses[mark].clocks:
            witnesses[mark].clocks.discard("head")  # it has just run down
        if isinstance(event, ev.DeadlineDue):
            witnesses[mark].clocks.discard("deadline")
        witnesses[mark].on(event, mark)
