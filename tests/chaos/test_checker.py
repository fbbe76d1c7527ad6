"""Each rule of the checker can fail: stories of runs in which one thing went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import checker, plan
from tests.chaos.story import Call, End, Exchange, Listening, Loss, Note, SdkCall, Seen, Story

A, B = "127.0.0.1:1", "127.0.0.1:2"
RESULT: dict[str, Any] = {"id": 7, "result": {"content": [{"type": "text", "text": "work ann.7"}]}}
UNKNOWN: dict[str, Any] = {"id": 7, "error": {"code": -32603, "message": "lost", "data": {"executed": "unknown"}}}
DENIED: dict[str, Any] = {"id": 7, "error": {"code": -32603, "message": "not sent", "data": {"executed": "no"}}}


def step(number: int, at: float, key: str = "ann.7", id: str | None = None) -> Seen:
    params = {"progressToken": 7, "progress": number, "message": key}
    return Seen(at, id, {"method": "notifications/progress", "params": params})


def exchange(
    *seen: Seen, holder: str = A, end: End = "left", began: float = 100.0, ended: float = 103.0, **more: Any
) -> Exchange:
    given = {"status": 200, **more}
    return Exchange("POST", began, holder=holder, seen=list(seen), end=end, ended=ended, **given)


def good() -> Story:
    """A call whose replica is killed half-way, and which is resumed at another one."""
    first = exchange(Seen(100.2, "p1:5-1", None), step(1, 101.0, id="p1:5-2"), end="cut", ended=101.5)
    rest = exchange(step(2, 102.0, id="p1:6-3"), Seen(103.0, "p1:6-4", RESULT), holder=B, began=101.7, after="p1:5-2")
    call = Call("ann", "ann.7", 7, "tools/call", 100.0, "work", "ids", 2, 0.2, "s", [first, rest], 103.0)
    updated = {"method": "notifications/resources/updated", "params": {"uri": "ids:///ann"}}
    listening = Listening("ann", "s", [exchange(Seen(100.5, "g1:5-1", None), Seen(101.0, "g1:5-2", updated), holder=B)])
    return Story(
        calls=[call],
        sdk_calls=[SdkCall("sdk", "sdk.1", 100.0, 101.0, "result", [("sdk.1", 1)], "work sdk.1", 1)],
        listenings=[listening],
        losses=[Loss(A, "kill", 101.4, 101.5, 106.0)],
        notes=[Note(100.1, "ids", "executed", key) for key in ("ann.7", "sdk.1")],
    )


def unanswered(*exchanges: Exchange, **more: Any) -> Story:
    """The call has nothing but this."""
    story = good()
    call = story.calls[0]
    call.exchanges = list(exchanges)
    call.ended = exchanges[-1].ended
    for name, value in more.items():
        setattr(call, name, value)
    return story


def with_steps(*numbers: int, answer: dict[str, Any] = RESULT, key: str = "ann.7") -> Story:
    return unanswered(exchange(*(step(n, 101.0, key) for n in numbers), Seen(102.0, None, answer)))


def changed(change: Callable[[Story], Any]) -> Story:
    story = good()
    change(story)
    return story


def lasting(*exchanges: Exchange, losses: list[Loss], stalls: list[tuple[float, float]] | None = None) -> Story:
    """A call whose answer came with the last of these; the tool takes 0.2 s."""
    story = unanswered(*exchanges)
    exchanges[-1].seen.append(Seen(exchanges[-1].ended, None, RESULT))
    story.calls[0].steps = 0
    story.losses, story.stalls = losses, stalls or []
    return story


FINE: dict[str, Story] = {
    "as it should be": good(),
    "broke, for its replica was killed": unanswered(exchange(end="cut", ended=101.6, status=0)),
    "broke, for there was no replica": unanswered(exchange(status=502, ours=False, ended=102.0)),
    "refused while it could not be served": changed(
        lambda s: (
            setattr(s.calls[0], "exchanges", [exchange(status=503, end="whole")]),
            setattr(s, "notes", s.notes[1:]),
        )
    ),
    "an error, after some of its steps": with_steps(1, answer=UNKNOWN),
    "long, but its holder was stopped": lasting(exchange(ended=130.0), losses=[Loss(A, "pause", 101.0, until=121.0)]),
    "long, but another replica was lost": lasting(exchange(ended=118.0), losses=[Loss(B, "kill", 104.0, 104.1, 109.0)]),
    "long, but the machine stood still": lasting(exchange(ended=118.0), losses=[], stalls=[(105.0, 109.0)]),
    "cancelled, and an end without an answer": unanswered(exchange(end="whole"), cancelled=True),
    "no answer in a session that its client ended": changed(
        lambda s: (
            setattr(s.calls[0], "exchanges", [exchange(status=404, end="whole")]),
            s.deleted.update(s=102.0),
            s.notes.clear(),
        )
    ),
    "long on an SDK, but some replica was stopped": changed(
        lambda s: (
            s.sdk_calls.append(SdkCall("sdk", "sdk.2", 200.0, 230.0, "result")),
            s.losses.append(Loss(A, "pause", 201.0, until=221.0)),
        )
    ),
    "an SDK gave up when a replica was lost": changed(
        lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 101.0, 140.0, "timeout"))
    ),
    "a session on an SDK that is not found, whose handshake was broken off": changed(
        lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 200.0, 201.0, "error", lost=True, session=2))
    ),
}

WRONG: dict[str, tuple[str, Story]] = {
    "no answer, long before its client ended the session": (
        "one_answer",
        changed(
            lambda s: (setattr(s.calls[0], "exchanges", [exchange(end="cut", holder=B)]), s.deleted.update(s=200.0))
        ),
    ),
    "a session that is not found, before its client ended it": (
        "sessions",
        changed(lambda s: (setattr(s.calls[0], "exchanges", [exchange(status=404)]), s.deleted.update(s=200.0))),
    ),
    "two answers": (
        "one_answer",
        changed(lambda s: s.calls[0].exchanges[1].seen.append(Seen(103.0, "p1:6-5", RESULT))),
    ),
    "no answer, though there was an id": ("one_answer", unanswered(exchange(Seen(100.2, "p1:5-1", None), end="cut"))),
    "a gap error on resuming": (
        "one_answer",
        unanswered(exchange(Seen(100.2, "p1:5-1", None), end="cut"), exchange(status=400, end="whole")),
    ),
    "broken, though only cancelled": ("one_answer", unanswered(exchange(end="cut", holder=B), cancelled=True)),
    "broken, though its replica lived": ("one_answer", unanswered(exchange(end="cut", holder=B))),
    "broken in the middle of a drain": (
        "one_answer",
        changed(
            lambda s: (
                setattr(s.calls[0], "exchanges", [exchange(end="cut", ended=102.0)]),
                setattr(s, "losses", [Loss(A, "drain", 101.0, 108.0, 110.0)]),
            )
        ),
    ),
    "broken, though its replica was only stopped": (
        "one_answer",
        changed(
            lambda s: (
                setattr(s.calls[0], "exchanges", [exchange(end="cut")]),
                setattr(s, "losses", [Loss(A, "pause", 101.0, until=121.0)]),
            )
        ),
    ),
    "an end without an answer": ("one_answer", unanswered(exchange(end="whole"))),
    "nothing at all": ("one_answer", unanswered(exchange(), given_up=True)),
    "refused as nobody may be": ("one_answer", unanswered(exchange(status=500, end="whole"))),
    "two outcomes on an SDK": ("one_answer", changed(lambda s: s.sdk_calls.append(s.sdk_calls[0]))),
    "nothing on an SDK": (
        "one_answer",
        changed(lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 200.0, 240.0, "timeout"))),
    ),
    "a step is missing": ("streams", with_steps(1, 3)),
    "a step comes twice": ("streams", with_steps(1, 1, 2)),
    "steps out of order": ("streams", with_steps(2, 1)),
    "a result before the last step": ("streams", with_steps(1)),
    "a step is missing before an error": ("streams", with_steps(2, answer=UNKNOWN)),
    "a step is missing on an SDK": (
        "streams",
        changed(lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 1.0, 2.0, "result", [("sdk.2", 2)], "", 2))),
    ),
    "an event is missing": ("streams", changed(lambda s: s.calls[0].exchanges[1].seen.pop(0))),
    "an event comes again": (
        "streams",
        changed(lambda s: s.listenings[0].exchanges[0].seen.append(s.listenings[0].exchanges[0].seen[-1])),
    ),
    "an event of an earlier epoch": (
        "streams",
        changed(lambda s: s.listenings[0].exchanges[0].seen.append(Seen(102.0, "g1:4-3", None))),
    ),
    "another's step": ("isolation", with_steps(1, 2, key="bob.1")),
    "another's result": (
        "isolation",
        with_steps(1, 2, answer={"id": 7, "result": {"content": [{"type": "text", "text": "work bob.1"}]}}),
    ),
    "another's answer": (
        "isolation",
        changed(lambda s: s.calls[0].exchanges[0].seen.append(Seen(101.0, None, {"id": 8, "result": {}}))),
    ),
    "another's resource": ("isolation", changed(lambda s: setattr(s.listenings[0], "who", "bob"))),
    "an answer on a GET stream": (
        "isolation",
        changed(lambda s: s.listenings[0].exchanges[0].seen.append(Seen(102.0, "g1:5-3", RESULT))),
    ),
    "another's result on an SDK": (
        "isolation",
        changed(lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 1.0, 2.0, "result", (), "quick sdk.1"))),
    ),
    "another's form": ("isolation", changed(lambda s: s.notes.append(Note(1.0, "ids", "answered", "ann.7", "bob.1")))),
    "executed twice": ("executions", changed(lambda s: s.notes.append(Note(104.0, "ids", "executed", "ann.7")))),
    "executed, and denied": ("executions", with_steps(answer=DENIED)),
    "executed, and denied on an SDK": (
        "executions",
        changed(lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.1", 1.0, 2.0, "error", executed="no"))),
    ),
    "refused, and executed": ("executions", unanswered(exchange(status=503, end="whole"))),
    "a result of nothing": ("executions", changed(lambda s: s.notes.clear())),
    "too long": ("hangs", lasting(exchange(ended=115.5), losses=[])),
    "too long, another replica being stopped": (
        "hangs",
        lasting(exchange(ended=140.0), losses=[Loss(B, "pause", 101.0, until=121.0)]),
    ),
    "too long after the last loss": (
        "hangs",
        lasting(exchange(ended=125.0), losses=[Loss(B, "kill", 104.0, 104.1, 109.0)]),
    ),
    "too long after its holder was stopped": (
        "hangs",
        lasting(exchange(ended=140.0), losses=[Loss(A, "pause", 101.0, until=121.0)]),
    ),
    "a session that is not found": ("sessions", unanswered(exchange(status=404, end="whole"))),
    "a stream that can't be resumed": (
        "sessions",
        changed(lambda s: s.listenings[0].exchanges.append(exchange(status=400, end="whole"))),
    ),
    "not served any more": ("sessions", changed(lambda s: s.unserved.append("ann"))),
    "a session on an SDK that is not found": (
        "sessions",
        changed(lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 200.0, 201.0, "error", lost=True))),
    ),
    "nobody on an SDK": ("sessions", changed(lambda s: setattr(s, "sdks", ["sdk", "another"]))),
    "too long on an SDK": (
        "hangs",
        changed(lambda s: s.sdk_calls.append(SdkCall("sdk", "sdk.2", 200.0, 216.0, "result"))),
    ),
    "hardly any results": ("enough_results", changed(lambda s: s.calls.extend(with_steps(answer=UNKNOWN).calls))),
}


@pytest.mark.parametrize("name", FINE)
def test_nothing_is_wrong(name: str) -> None:
    wrong = [line for line in checker.judge(FINE[name]) if not line.startswith("enough_results")]
    assert not wrong


def test_a_good_run_is_good() -> None:
    assert checker.judge(good()) == []


@pytest.mark.parametrize("name", WRONG)
def test_the_rule_finds_it(name: str) -> None:
    rule, story = WRONG[name]
    found = {line.partition(":")[0] for line in checker.judge(story)}
    assert rule in found, found


def test_every_rule_can_fail() -> None:
    assert {rule for rule, _ in WRONG.values()} == {rule.__name__ for rule in checker.RULES}


def test_a_seed_is_a_plan() -> None:
    assert plan.short(3) == plan.short(3) != plan.short(4)
    assert plan.long(3, 60) == plan.long(3, 60)
    assert plan.kills(plan.short(5)) >= 20
    assert sum(trouble.what == "kill replica" for trouble in plan.short(5)) >= 8
    assert 550 < sum(trouble.after for trouble in plan.long(5, 600)) < 610
