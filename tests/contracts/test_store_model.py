"""Both stores against one naive model: any order of any calls, stale grants and repeats included."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from actors.ports import Deltas, Failed, Grant, Record, Refused, Replay, StreamHead
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from gateway.store.redis import open_redis_store
from tests.support.store_calls import Lines, ask

LIMITS = replace(Limits(), log_events=6, log_bytes=20_000)
KEYS, STREAMS, NAMES = ("a", "b", "c"), ("p1", "g1"), ("x", "y")


@dataclass
class Log:
    opened: tuple[int, dict[str, bytes], bytes | None] | None
    """None: it was mended or restored."""
    events: list[tuple[int, bytes] | None] = field(default_factory=list)
    """None: it is missing."""
    finished: bool = False
    written: bool = False
    floor: int = 0

    @property
    def count(self) -> int:
        """Events that count."""
        return len(self.events) - self.floor

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(len(event[1]) for event in self.events if event)

    @property
    def opener(self) -> int:
        """The epoch at which it was opened; 0: that is not said."""
        return self.opened[0] if self.opened is not None else 0

    def has(self, epoch: int, seq: int) -> bool:
        """Whether this may be one of its events, or the place before them: else it is another one by its name."""
        return not self.opener or (epoch == self.opener if seq == 0 else epoch >= self.opener)

    def trim(self, floor: int) -> None:
        if floor > self.floor:
            self.floor, self.events[:floor] = floor, [None] * floor

    def lose(self, head: int) -> None:
        if head > len(self.events):
            self.floor, self.events = head, [*self.events, *[None] * (head - len(self.events))]


@dataclass
class Session:
    """What the contract says of one session, in the plainest terms."""

    owner: str | None
    epoch: int
    fields: dict[str, bytes]
    rev: int = 0
    tries: int = 0
    nonce: str = ""
    requests: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, bytes] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    ended: bool = False

    def fits(self, fresh: list[bytes], *, unfinished: bool = False) -> bool:
        """Beside all logs, or only beside those that are not finished."""
        logs = [log for log in self.logs.values() if not (unfinished and log.finished)]
        events, size = sum(log.count for log in logs) + len(fresh), sum(log.size for log in logs) + sum(map(len, fresh))
        return events <= LIMITS.log_events and size <= LIMITS.log_bytes

    def lose(self, gone: set[str], fresh: list[bytes]) -> None:
        """Logs that made room: they were in the way, finished, and those that were written whole went first."""
        assert not gone or not self.fits(fresh)
        assert all(self.logs[name].finished for name in gone)
        if not all(self.logs[name].written for name in gone):
            assert gone >= {name for name, log in self.logs.items() if log.written}
        for name in gone:
            del self.logs[name]

    def change(self, deltas: Deltas) -> None:
        for mine, changes in (
            (self.fields, deltas.fields), (self.requests, deltas.requests), (self.asked, deltas.asked)
        ):  # fmt: skip
            for name, value in changes.items():
                mine.pop(name, None)
                if value is not None:
                    mine[name] = value

    def record(self) -> Record:
        heads = {
            name: StreamHead(len(log.events), log.finished, log.floor, log.written) for name, log in self.logs.items()
        }
        return Record(self.owner, self.epoch, self.rev, self.tries, self.fields, self.requests, self.asked, heads)


values = st.sampled_from([b"", b"1", b"22"])
events = st.lists(st.sampled_from([b"", b"e", b"f" * 3_000, b"g" * 17_000]), max_size=4)
changes = st.dictionaries(st.sampled_from(NAMES), st.none() | values, max_size=2)
deltas = st.builds(Deltas, fields=changes, requests=changes, asked=changes)
keys, streams, numbers = st.sampled_from("aaaaaabc"), st.sampled_from(STREAMS), st.integers(0, 8)
backs = st.sampled_from([0, 0, 0, 0, 0, 1])
"""Which grant is used: mostly the last one given."""
seldom = st.sampled_from([False] * 7 + [True])


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and the model alike. `ask` gives the outcome of a call, `replay` that of a replay."""

    store: Any
    ask: Callable[..., Any]
    replay: Callable[..., Any]

    @initialize()
    def begin(self) -> None:
        prefix = secrets.token_hex(12)
        self.names = {key: prefix + key * 8 for key in KEYS}
        self.model: dict[str, Session] = {}
        self.grants: dict[str, list[Grant]] = {key: [Grant(self.store.owner, 1)] for key in KEYS}
        self.create("a", {})
        self.create("b", {"x": b"1"})
        self.open("a", 0, "p1", b"", {})

    def refusal(self, key: str, grant: Grant) -> Refused | None:
        session = self.model.get(key)
        if session is None:
            return Refused.GONE
        if session.ended:
            return Refused.ENDED
        return None if (session.owner, session.epoch) == (grant.owner, grant.epoch) else Refused.FENCED

    def grant(self, key: str, back: int) -> Grant:
        return self.grants[key][max(0, len(self.grants[key]) - 1 - back)]

    def agree(self, outcome: Any, expected: Refused | None, head: int | None = None) -> bool:
        assert (outcome.reason if isinstance(outcome, Failed) else outcome) == expected
        assert head is None or outcome.head == head
        return expected is None

    @rule(key=st.sampled_from("ccccb"), fields=st.dictionaries(st.sampled_from(NAMES), values, max_size=2))
    def create(self, key: str, fields: dict[str, bytes]) -> None:
        outcome = self.ask(self.store.create, self.names[key], fields)
        if key in self.model:
            self.agree(outcome, Refused.EXISTS)
        else:
            self.model[key] = Session(outcome.owner, outcome.epoch, dict(fields))
            self.grants[key].append(outcome)

    @rule(key=keys, back=backs, nonce=st.integers(1, 20).map(str), wrong=seldom, lives=st.booleans())
    def claim(self, key: str, back: int, nonce: str, wrong: bool, lives: bool) -> None:
        expect, session = self.grant(key, back), self.model.get(key)
        owner = session.owner if session and not wrong else None
        outcome = self.ask(self.store.claim, self.names[key], owner, expect.epoch, nonce, lives=lives)
        if session is None or session.ended:
            self.agree(outcome, Refused.ENDED if session else Refused.GONE)
        elif session.nonce == nonce and session.owner is not None:
            assert outcome == (Grant(self.store.owner, session.epoch), session.record())
        elif (session.owner, session.epoch) != (owner, expect.epoch):
            self.agree(outcome, Refused.FENCED)
        else:
            grant, record = outcome
            assert grant.epoch > session.epoch
            session.owner, session.epoch, session.nonce = grant.owner, grant.epoch, nonce
            session.tries += not lives
            self.grants[key].append(grant)
            assert record == session.record()

    @rule(key=keys, back=backs, step=st.sampled_from([0, 1, 1, 1, 2, -1]), deltas=deltas)
    def save(self, key: str, back: int, step: int, deltas: Deltas) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        rev = (session.rev if session else 0) + step
        outcome = self.ask(self.store.save, self.names[key], grant, rev, deltas)
        expected = self.refusal(key, grant)
        if expected is None and step not in (0, 1):
            assert session is not None
            self.agree(outcome, Refused.SEQ, session.rev)
        elif self.agree(outcome, expected):
            assert session is not None
            session.rev, session.tries = rev, 0
            session.change(deltas)

    @rule(
        key=keys, back=backs, stream=streams, first=st.none() | st.sampled_from([b"", b"e"]),
        requests=st.dictionaries(st.sampled_from(NAMES), values, max_size=1),
    )  # fmt: skip
    def open(self, key: str, back: int, stream: str, first: bytes | None, requests: dict[str, bytes]) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        outcome = self.ask(self.store.open, self.names[key], grant, stream, requests, first)
        expected, opened = self.refusal(key, grant), (grant.epoch, requests, first)
        if expected is None:
            assert session is not None
            log = session.logs.get(stream)
            if log is not None and log.opened != opened:
                expected = Refused.EXISTS
            elif log is None and not session.fits([first or b""], unfinished=True):
                expected = Refused.FULL
        if self.agree(outcome, expected):
            assert session is not None
            if stream not in session.logs:
                session.lose(self.gone(key), [first or b""])
                session.logs[stream] = Log(opened, [] if first is None else [(grant.epoch, first)])
            session.requests.update(requests)

    @rule(
        key=keys, back=backs, stream=streams, step=st.sampled_from([0, 0, 0, 0, 1, -1, -2]), data=events,
        finish=st.booleans(), deltas=deltas,
    )  # fmt: skip
    def append(
        self, key: str, back: int, stream: str, step: int, data: list[bytes], finish: bool, deltas: Deltas
    ) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        log = session.logs.get(stream) if session else None
        head = len(log.events) if log else 0
        seq = max(1, head + 1 + step)
        outcome = self.ask(self.store.append, self.names[key], grant, stream, seq, data, finish=finish, deltas=deltas)
        expected = self.refusal(key, grant)
        if expected is not None or log is None or session is None:
            self.agree(outcome, expected or Refused.GONE)
            return
        fresh = data[head + 1 - seq :] if seq <= head + 1 else []
        last = seq + len(data) - 1
        if seq > head + 1 or (finish and not log.finished and last < head):
            self.agree(outcome, Refused.SEQ, head)
            return
        if fresh and log.finished:
            expected = Refused.FINISHED
        elif fresh and not session.fits(fresh, unfinished=True) and not (finish and sum(map(len, fresh)) <= 16_384):
            expected = Refused.FULL
        if self.agree(outcome, expected):
            session.lose(self.gone(key), fresh)
            log.events += [(grant.epoch, event) for event in fresh]
            log.finished = log.finished or finish
            session.change(deltas)

    @rule(key=keys, back=backs, stream=streams)
    def drop(self, key: str, back: int, stream: str) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        outcome = self.ask(self.store.drop, self.names[key], grant, stream)
        expected = self.refusal(key, grant)
        log = session.logs.get(stream) if session else None
        if expected is None and log is not None and not log.finished:
            self.agree(outcome, Refused.SEQ, len(log.events))
        elif self.agree(outcome, expected) and session is not None:
            session.logs.pop(stream, None)

    @rule(key=keys, back=backs, stream=streams, seq=numbers)
    def trim(self, key: str, back: int, stream: str, seq: int) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        outcome = self.ask(self.store.trim, self.names[key], grant, stream, seq)
        expected = self.refusal(key, grant)
        log = session.logs.get(stream) if session else None
        if expected is None and log is not None and not log.finished and seq > len(log.events):
            self.agree(outcome, Refused.SEQ, len(log.events))
        elif self.agree(outcome, expected) and log is not None and not log.finished:
            log.trim(seq - 1)

    @rule(key=keys, back=backs, stream=streams, ahead=st.sampled_from([1, 2, 0, -1]), really=seldom)
    def mend(self, key: str, back: int, stream: str, ahead: int, really: bool) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        log = session.logs.get(stream) if session else None
        if log is None and not really:
            return
        head = max(0, (len(log.events) if log else 0) + ahead)
        outcome = self.ask(self.store.mend, self.names[key], grant, stream, head)
        expected = self.refusal(key, grant)
        if expected is None and log is not None and log.finished and head > len(log.events):
            self.agree(outcome, Refused.FINISHED, len(log.events))
        elif self.agree(outcome, expected) and session is not None:
            session.logs.setdefault(stream, Log(None)).lose(head)

    @rule(
        key=st.sampled_from("aaac"), back=backs, later=st.booleans(), step=st.sampled_from([1, 1, 0, 3]),
        changed=deltas, heads=st.dictionaries(streams, st.tuples(st.integers(0, 3), st.booleans())), really=seldom,
    )  # fmt: skip
    def restore(
        self,
        key: str,
        back: int,
        later: bool,
        step: int,
        changed: Deltas,
        heads: dict[str, tuple[int, bool]],
        really: bool,
    ) -> None:
        grant, session = self.grant(key, back), self.model.get(key)
        if session is not None and not really:
            return
        grant = Grant(grant.owner, grant.epoch + 1_000) if later else grant
        mine = Session(grant.owner, grant.epoch, {}, (session.rev if session else 0) + step)
        mine.change(changed)
        mine.logs = {name: Log(None, finished=finished) for name, (_, finished) in heads.items()}
        for name, log in mine.logs.items():
            log.lose(heads[name][0])
        outcome = self.ask(self.store.restore, self.names[key], grant, mine.rev, mine.record())
        own = session is not None and (session.owner, session.epoch) == (grant.owner, grant.epoch)
        if session is not None and (session.ended or (not own and session.epoch >= grant.epoch)):
            self.agree(outcome, Refused.ENDED if session.ended else Refused.FENCED)
            return
        self.agree(outcome, None)
        if session is not None and own:
            if session.rev >= mine.rev:
                return
            mine.logs, mine.nonce = {**mine.logs, **session.logs}, session.nonce
            mine.requests, mine.asked = session.requests | mine.requests, session.asked | mine.asked
        self.model[key] = mine
        self.grants[key].append(grant)

    @rule(key=keys, back=backs, stream=streams)
    def touch_and_written(self, key: str, back: int, stream: str) -> None:
        grant = self.grant(key, back)
        self.tell(self.store.written, self.names[key], grant, stream)
        session = self.model.get(key)
        if self.agree(self.ask(self.store.touch, self.names[key], grant), self.refusal(key, grant)):
            log = session.logs.get(stream) if session else None
            if log is not None and log.finished:
                log.written = True

    def gone(self, key: str) -> set[str]:
        """The logs that the store has no more."""
        outcome = self.ask(self.store.read, self.names[key])
        assert isinstance(outcome, Record)
        return self.model[key].logs.keys() - outcome.streams.keys()

    @rule(key=keys, back=backs, really=seldom)
    def release(self, key: str, back: int, really: bool) -> None:
        if not really:
            return
        grant, session = self.grant(key, back), self.model.get(key)
        outcome = self.ask(self.store.release, self.names[key], grant)
        if session and not session.ended and session.owner is None and session.epoch == grant.epoch:
            self.agree(outcome, None)
        elif self.agree(outcome, self.refusal(key, grant)) and session is not None:
            session.owner = None

    @rule(key=keys, back=backs, really=seldom)
    def end(self, key: str, back: int, really: bool) -> None:
        if not really:
            return
        grant, session = self.grant(key, back), self.model.get(key)
        outcome = self.ask(self.store.end, self.names[key], grant, "why")
        if session and session.ended and (session.owner, session.epoch) == (grant.owner, grant.epoch):
            self.agree(outcome, None)
        elif self.agree(outcome, self.refusal(key, grant)) and session is not None:
            session.ended = True

    @rule(key=keys, back=backs, really=seldom)
    def delete(self, key: str, back: int, really: bool) -> None:
        if not really:
            return
        grant, refusal = self.grant(key, back), self.refusal(key, self.grant(key, back))
        outcome = self.ask(self.store.delete, self.names[key], grant)
        if self.agree(outcome, None if refusal is Refused.GONE else refusal):
            self.model.pop(key, None)

    @rule(key=keys, stream=streams, back=backs, seq=numbers, limit=st.integers(1, 4))
    def replayed(self, key: str, stream: str, back: int, seq: int, limit: int) -> None:
        epoch, session = self.grant(key, back).epoch, self.model.get(key)
        outcome = self.replay(self.names[key], stream, epoch, seq, limit)
        log = session.logs.get(stream) if session and not session.ended else None
        there = [(event[0], number, event[1]) for number, event in enumerate(log.events, 1) if event] if log else []
        known = any((epoch, seq) == entry[:2] for entry in there)
        if log is None or not log.has(epoch, seq) or seq > len(log.events) or not (known or seq <= log.floor):
            self.agree(outcome, Refused.GONE)
            return
        after = [entry for entry in there if not seq or entry[:2] > (epoch, seq)]
        resumed = after[0][1] if after else len(log.events) + 1
        hole = resumed != seq + 1 or (seq and not known)
        if hole and resumed - 1 > log.floor:
            self.agree(outcome, Refused.SEQ, len(log.events))
            return
        assert isinstance(outcome, Replay)
        expected = [entry for index, entry in enumerate(after[:limit]) if entry[1] == resumed + index]
        assert [(entry.epoch, entry.seq, entry.data) for entry in outcome.entries] == expected
        lost = (seq, resumed) if hole else None
        assert (outcome.head, outcome.finished, outcome.lost) == (len(log.events), log.finished, lost)

    @invariant()
    def records_agree(self) -> None:
        for key, session in getattr(self, "model", {}).items():
            outcome = self.ask(self.store.read, self.names[key])
            if session.ended:
                self.agree(outcome, Refused.ENDED)
            else:
                assert outcome == session.record()


class MemoryMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(LIMITS, lambda: 1_000.0)

    def ask(self, method: Callable[..., None], *args: Any, **options: Any) -> Any:
        outcomes: list[Any] = []
        method(*args, outcomes.append, **options)
        (outcome,) = outcomes
        return outcome

    def tell(self, method: Callable[..., None], *args: Any) -> None:
        method(*args)

    def replay(self, *args: Any) -> Any:
        return trio.run(self.store.replay, *args)


@pytest.mark.hypothesis
def test_the_store_in_memory_does_what_the_model_does():
    run_state_machine_as_test(MemoryMachine)


@pytest.fixture
def redis_thread(server):
    """(store, run): a Redis store in a loop of its own, and how to call into it."""
    ready, finish = threading.Event(), trio.Event()
    held: list[Any] = []

    async def main() -> None:
        async with open_redis_store(server.url, LIMITS, log=Lines(), on_lost=pytest.fail) as store:
            held.extend((store, trio.lowlevel.current_trio_token()))
            ready.set()
            await finish.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(10)
    store, token = held

    def run(method: Callable[..., Any], *args: Any) -> Any:
        return trio.from_thread.run(method, *args, trio_token=token)

    yield store, run
    trio.from_thread.run_sync(finish.set, trio_token=token)
    thread.join()


@pytest.mark.hypothesis
@pytest.mark.redis
def test_the_store_in_redis_does_what_the_model_does(redis_thread):
    shared, run = redis_thread

    class RedisMachine(StoreMachine):
        store = shared

        def ask(self, method: Callable[..., None], *args: Any, **options: Any) -> Any:
            async def asked() -> Any:
                return await ask(method, *args, **options)

            return run(asked)

        def tell(self, method: Callable[..., None], *args: Any) -> None:
            async def told() -> None:
                method(*args)

            run(told)

        def replay(self, *args: Any) -> Any:
            return run(shared.replay, *args)

    run_state_machine_as_test(
        RedisMachine,
        settings=settings(stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate]),
    )
