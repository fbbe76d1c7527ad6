"""What a store does wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actors.ports import Refused
from tests.faults.play import Plan
from tests.faults.store import Rule
from tests.faults.world import World

EVERY = 10_000
"""Times."""

WRITES = frozenset({"open", "append", "save", "touch", "drop"})
ALL = WRITES | {"create", "read", "claim", "release", "end", "delete", "replay"}


def rule(*methods: str, **rule: Any) -> Callable[[World], None]:
    return lambda world: world.store.rules.append(Rule(frozenset(methods), **rule))


def _plan(name: str, install: Callable[[World], None], *needs: str, **more: Any) -> Plan:
    return Plan(f"store: {name}", install, frozenset(needs), **more)


LOSES = frozenset({"lost", "gone"})
LOST: Mapping[Refused, frozenset[str]] = {
    Refused.AWAY: frozenset(),
    Refused.FULL: frozenset(),
    Refused.FENCED: LOSES,
    Refused.GONE: LOSES,
}
"""The outcomes that a refusal excuses: only a session that is gone, or another's, may lose an answer."""

NUMBERS = {1: "first", 2: "second", 4: "fourth"}

APPENDS = tuple(
    _plan(
        f"the {word} append is refused, {reason.value}",
        rule("append", reason=reason, first=number),
        "opens",
        *(("report",) if number == 4 else ()),
        allowed=allowed,
    )
    for reason, allowed in LOST.items()
    for number, word in NUMBERS.items()
)

OPENS = tuple(
    _plan(
        f"the first stream can't be opened, {reason.value}",
        rule("open", reason=reason),
        "opens",
        allowed=allowed | {"broken"},
    )
    for reason, allowed in LOST.items()
)

SAVES = tuple(
    _plan(f"a save is refused, {reason.value}", rule("save", reason=reason), "saves", allowed=allowed)
    for reason, allowed in LOST.items()
    if reason is not Refused.FULL
)

HELD = {"effect": "hold", "times": EVERY}
AWAY = (
    _plan(
        "acknowledged events are lost",
        rule("append", reason=Refused.SEQ, first=2),
        "opens",
        allowed=frozenset({"lost"}),
    ),
    _plan(
        "a stream of that name is there", rule("open", reason=Refused.EXISTS), "opens", allowed=frozenset({"broken"})
    ),
    _plan("create is refused", rule("create"), "new"),
    _plan("read is refused", rule("read"), "back"),
    _plan("claim is refused", rule("claim"), "back"),
    _plan("claim is refused, another was faster", rule("claim", reason=Refused.FENCED), "back"),
    _plan("claim is refused as calls go on", rule("claim"), "goes on"),
    _plan("claim is done, but not said", rule("claim", effect="lost"), "back"),
    _plan("claim is done, but not said, as calls go on", rule("claim", effect="lost"), "goes on"),
    _plan("release is refused", rule("release"), "back"),
    _plan("release is done, but not said", rule("release", effect="lost"), "back", harmless=True),
    _plan("a save is refused as calls go on", rule("save", times=3), "goes on"),
    _plan("end is refused", rule("end"), "delete"),
    _plan("replay is refused", rule("replay"), "resume", harmless=True),
    _plan(
        "the log is gone at the replay",
        rule("replay", reason=Refused.GONE),
        "resume",
        allowed=LOSES,
    ),
    _plan("an append is done, but not said", rule("append", effect="lost", first=2), "opens"),
    _plan("a save is done, but not said", rule("save", effect="lost"), "saves"),
    _plan("away for five seconds", rule(*ALL, seconds=5.0, **HELD), "opens"),
    _plan("away for half a minute", rule(*ALL, seconds=30.0, **HELD), "opens"),
    _plan(
        "away for half a minute, from the second append on",
        rule("append", seconds=30.0, first=2, **HELD),
        "opens",
        within=40.0,
    ),
)

LATE = (
    _plan(
        "acknowledges late",
        rule(*WRITES, effect="late", seconds=0.3, times=EVERY),
        "opens",
        complete=True,
    ),
    _plan(
        "acknowledges very late",
        rule(*WRITES, effect="late", seconds=9.0, times=EVERY),
        "opens",
        harmless=True,
        within=30.0,
    ),
    _plan(
        "one acknowledgement is late",
        rule("append", effect="late", seconds=2.0),
        "opens",
        complete=True,
    ),
)

PLANS = (*APPENDS, *OPENS, *SAVES, *AWAY, *LATE)
