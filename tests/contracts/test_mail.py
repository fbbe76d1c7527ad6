"""Mail between replicas in Redis: put in once, read once or taken back, in the order of each sender."""

import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
from redis.exceptions import NoPermissionError, NoScriptError, OutOfMemoryError

from actors.ports import Failed, Refused
from gateway.store.redis import mail
from gateway.store.redis.clock import boottime
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.inbox import BATCH, Inbox
from gateway.store.redis.keys import alive_key, inbox_key, large_key, seen_key, withdrawn_key
from gateway.store.redis.loop_links import open_loop_link
from gateway.store.redis.mail import LARGE, Mail
from gateway.store.redis.targets import parse
from gateway.store.redis.writer import Writer
from tests.support.store_calls import Outcomes, eventually, refused

pytestmark = pytest.mark.redis


class Leaky:
    """A slow link of which some replies are lost, after Redis has done what was asked."""

    def __init__(self, url: str) -> None:
        self._inner = open_loop_link(parse(url))
        self.delay = 0.0
        self.cut = False
        self.refuses: Exception | None = None
        """What becomes of the first of several commands, which does not reach Redis."""
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens after a reply is lost."""
        self.losses = 0
        self.lost = 0

    async def exchange(self, commands: Any) -> Any:
        if self.cut:
            raise LinkDown("cut")
        await trio.sleep(self.delay)
        if self.refuses is not None and len(commands) > 1:
            refusal, self.refuses = self.refuses, None
            return [refusal, *await self._inner.exchange(commands[1:])]
        replies = await self._inner.exchange(commands)
        if self.losses and any(command[0] in ("XREADGROUP", "EVALSHA") for command in commands):
            self.losses -= 1
            self.lost += 1
            self._inner.close()
            self.meanwhile()
            raise LinkDown("the reply is lost")
        return replies

    async def prepare(self) -> None:
        await self._inner.prepare()

    def close(self) -> None:
        self._inner.close()


@dataclass
class Desk:
    """One replica, as far as mail goes."""

    client: Any
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    letters: list[bytes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    mail: Mail = field(init=False)
    inbox: Inbox = field(init=False)
    sending: Any = None
    reading: Any = None

    def enter(self) -> None:
        """Its lease, and its inbox."""
        self.client.xgroup_create(inbox_key(self.name), "g", "0", mkstream=True)
        self.client.set(alive_key(self.name), "{}")

    def take(self, letters: list[bytes]) -> None:
        self.letters += letters

    @property
    def waiting(self) -> int:
        return int(self.client.xlen(inbox_key(self.name)))


@pytest.fixture
def desk() -> Callable[..., Any]:
    """Opens a desk; `reads`: its inbox is read from the beginning."""

    @asynccontextmanager
    async def opening(server: Any, *, reads: bool = True, hold: float = 10.0) -> AsyncIterator[Desk]:
        with server.client() as client:
            desk = Desk(client)
            desk.enter()
            desk.sending, desk.reading = Leaky(server.url), Leaky(server.url)
            options: dict[str, Any] = {"on_batch": lambda *_: None, "on_error": desk.errors.append}
            writer = Writer(desk.sending, hold=hold, queue_bytes=64 * 1024 * 1024, **options)
            desk.mail = Mail(writer, desk.name)
            desk.inbox = Inbox(desk.reading, lambda: desk.name)
            desk.inbox.on_letters = desk.take
            if reads:
                desk.inbox.open()
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(writer.run)
                    nursery.start_soon(desk.inbox.run)
                    try:
                        yield desk
                    finally:
                        desk.inbox.stop()
                        writer.close(0.5)
            assert desk.errors == [], "an error reply that nobody expected"

    return opening


@pytest.fixture(params=["server", "cluster"])
def anywhere(request: pytest.FixtureRequest) -> Any:
    """One primary, and three that share the inboxes."""
    return request.getfixturevalue(request.param)


async def sent(desk: Desk, to: Desk, *letters: bytes) -> list[Any]:
    """Posts them; what comes of it."""
    done = Outcomes()
    for letter in letters:
        desk.mail.post(to.name, letter, done)
    return await done.wait(len(letters))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Posting


async def test_letters_come_in_the_order_in_which_they_were_posted_and_leave_nothing(anywhere, desk):
    async with desk(anywhere) as one, desk(anywhere) as two:
        letters = numbered(1_000)
        entries = await sent(one, two, *letters)
        assert len(set(entries)) == 1_000
        await eventually(lambda: len(two.letters) == 1_000 and not two.waiting)
        assert two.letters == letters
        assert one.letters == []


async def test_a_letter_to_the_dead_is_refused_and_makes_nothing(server, desk, ask):
    async with desk(server) as one:
        name = secrets.token_hex(8)
        assert refused(await ask(one.mail.post, name, b"x")) is Refused.DEAD
        one.client.set(alive_key(name), "{}")
        assert refused(await ask(one.mail.post, name, b"x")) is Refused.DEAD
        assert one.client.keys(f"sd:r:{{{name}}}:*") == [alive_key(name).encode()]
        one.client.delete(alive_key(name))


async def test_a_full_inbox_refuses_and_takes_again_when_it_was_read(server, desk, ask, monkeypatch):
    monkeypatch.setattr(mail, "INBOX", 3)
    async with desk(server) as one, desk(server, reads=False) as two:
        entries = await sent(one, two, *numbered(3))
        assert refused(await ask(one.mail.post, two.name, b"more")) is Refused.INBOX_FULL
        assert await ask(one.mail.withdraw, two.name, entries[1]) is True
        assert isinstance(await ask(one.mail.post, two.name, b"3"), str)
        assert refused(await ask(one.mail.post, two.name, b"more")) is Refused.INBOX_FULL
        two.inbox.open()
        await eventually(lambda: not two.waiting)
        assert isinstance(await ask(one.mail.post, two.name, b"4"), str)
        await eventually(lambda: two.letters == [b"0", b"2", b"3", b"4"])


async def test_a_batch_that_is_sent_again_delivers_once(anywhere, desk):
    async with desk(anywhere) as one, desk(anywhere) as two:
        one.sending.losses = 3
        outcomes = await sent(one, two, *numbered(300))
        assert one.sending.lost == 3
        assert all(isinstance(outcome, str) for outcome in outcomes)
        await eventually(lambda: len(two.letters) >= 300)
        await sent(one, two, b"last")
        await eventually(lambda: two.letters[-1:] == [b"last"])
        assert two.letters == [*numbered(300), b"last"]


async def test_what_was_sent_again_counts_as_taken_but_the_last(server, desk, ask):
    async with desk(server) as one, desk(server, reads=False) as two:
        one.sending.losses = 1
        first, second = await sent(one, two, b"1", b"2")
        assert one.sending.lost == 1
        assert await ask(one.mail.withdraw, two.name, first) is False
        assert await ask(one.mail.withdraw, two.name, second) is True
        two.inbox.open()
        await eventually(lambda: two.letters == [b"1"])


async def test_what_surely_was_not_sent_is_refused_as_such(start_server, desk, ask):
    server = start_server()
    async with desk(server, hold=1.0) as one, desk(server, reads=False) as two:
        server.kill()
        one.sending.close()
        done = Outcomes()
        one.mail.post(two.name, b"tried", done)
        assert refused((await done.wait(1))[0]) is Refused.AWAY
        one.mail.post(two.name, b"not tried", done)
        assert refused(done.all[1]) is Refused.INBOX_FULL


async def test_a_full_redis_takes_no_letters_and_gives_them_back(start_server, desk, ask):
    server = start_server()
    async with desk(server) as one, desk(server, reads=False) as two:
        [entry] = await sent(one, two, b"x")
        one.client.config_set("maxmemory", "1")
        assert refused(await ask(one.mail.post, two.name, b"x")) is Refused.INBOX_FULL
        assert await ask(one.mail.withdraw, two.name, entry) is True
        one.client.config_set("maxmemory", "0")
        await eventually(lambda: one.client.ping())


class Hovering:
    """A Redis whose memory is full for the first command of a batch, and not for the second; then it is away."""

    def __init__(self) -> None:
        self.batches = 0

    async def exchange(self, commands: Any) -> Any:
        if any(command[0] == "SET" for command in commands):
            raise LinkDown("away")
        self.batches += 1
        if self.batches > 1:
            raise LinkDown("away")
        return [OutOfMemoryError("OOM"), *([b"OK", b"1-1"] for _ in commands[1:])]

    async def prepare(self) -> None:
        pass

    def close(self) -> None:
        pass


async def test_a_letter_behind_one_that_had_no_room_is_there_if_redis_says_so():
    writer = Writer(Hovering(), hold=1.0, queue_bytes=1_000_000, on_batch=lambda *_: None, on_error=pytest.fail)
    office, done = Mail(writer, "one"), [Outcomes(), Outcomes()]
    for outcomes in done:
        office.post("two", b"x", outcomes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        assert refused((await done[0].wait(1))[0]) is Refused.INBOX_FULL
        assert await done[1].wait(1) == ["1-1"]
        writer.close(0.0)


@pytest.mark.parametrize("refusal", [OutOfMemoryError("OOM"), NoPermissionError("NOPERM"), NoScriptError("NOSCRIPT")])
async def test_a_letter_that_was_put_in_behind_one_that_was_refused_is_not_refused(server, desk, refusal):
    """Whoever is told so gives it to another."""
    async with desk(server) as one, desk(server) as two:
        one.sending.delay, one.sending.refuses = 0.1, refusal
        outcomes = await sent(one, two, *numbered(5))
        assert one.sending.refuses is None
        one.errors.clear()
        await eventually(lambda: {b"2", b"3", b"4"} <= set(two.letters))
        assert all(isinstance(outcomes[int(letter)], str) for letter in two.letters)


async def test_after_a_long_stop_nobody_says_that_a_letter_was_not_put_in(start_server, desk, monkeypatch):
    """It may have been, and read: neither the inbox nor who wrote to it is known any more."""
    server = start_server()
    async with desk(server) as one, desk(server, reads=False) as two:

        def three_minutes() -> None:
            two.client.delete(alive_key(two.name), seen_key(two.name), inbox_key(two.name))
            monkeypatch.setattr(mail, "boottime", lambda: boottime() + 180)

        one.sending.losses, one.sending.meanwhile = 1, three_minutes
        [outcome] = await sent(one, two, b"x")
        assert one.sending.lost == 1
        assert refused(outcome) is Refused.AWAY


async def test_mail_leaves_half_of_the_queue_to_what_must_be_written(start_server, opened, session):
    server = start_server()
    async with opened(server.url, queue_bytes=20_000) as store:
        key, grant = await session(store)
        server.pause()
        done, refusals = Outcomes(), Outcomes()
        store.post(store.incarnation, b"x" * 9_000, done)
        store.post(store.incarnation, b"x" * 9_000, refusals)
        assert refused(refusals.all[0]) is Refused.INBOX_FULL
        store.append(key, grant, "p1", 2, [b"x" * 9_000], done)
        server.go_on()
        outcomes = await done.wait(2)
        assert None in outcomes
        assert not any(isinstance(outcome, Failed) for outcome in outcomes)


async def test_a_letter_that_waits_for_redis_comes_when_it_is_back(start_server, desk):
    server = start_server(aof=True)
    async with desk(server) as one, desk(server) as two:
        await sent(one, two, *numbered(10))
        server.kill()
        done = Outcomes()
        for letter in numbered(20)[10:]:
            one.mail.post(two.name, letter, done)
        await trio.sleep(0.3)
        server.start()
        await done.wait(10)
        await eventually(lambda: len(two.letters) >= 20)
        assert two.letters == numbered(20)
        assert all(isinstance(outcome, str) for outcome in done.all)


async def test_senders_that_were_not_heard_of_for_long_are_forgotten(server, desk):
    async with desk(server) as one, desk(server) as two:
        seen = seen_key(two.name)
        two.client.hset(seen, mapping={f"old{i}": f"1 {i}-0" for i in range(1_000)})
        await sent(one, two, b"x")
        assert list(two.client.hgetall(seen)) == [one.name.encode()]
        assert 110_000 < two.client.pttl(seen) <= 120_000


# Withdrawing


async def test_a_letter_is_withdrawn_until_it_is_read(anywhere, desk, ask):
    async with desk(anywhere) as one, desk(anywhere, reads=False) as two:
        unread, read = await sent(one, two, b"unread", b"read")
        assert await ask(one.mail.withdraw, two.name, unread) is True
        assert await ask(one.mail.withdraw, two.name, unread) is True
        two.inbox.open()
        await eventually(lambda: two.letters == [b"read"])
        assert await ask(one.mail.withdraw, two.name, read) is False
        assert await ask(one.mail.withdraw, two.name, unread) is True
        assert await ask(one.mail.withdraw, secrets.token_hex(8), unread) is False


async def test_what_redis_has_lost_was_perhaps_taken(server, desk, ask):
    async with desk(server) as one, desk(server, reads=False) as two:
        [entry] = await sent(one, two, b"x")
        two.client.xdel(inbox_key(two.name), entry)
        assert await ask(one.mail.withdraw, two.name, entry) is False


@pytest.mark.parametrize("leaks", [False, True])
async def test_every_letter_is_either_read_or_withdrawn(anywhere, desk, leaks):
    async with desk(anywhere) as one, desk(anywhere) as two, trio.open_nursery() as nursery:
        dice = random.Random(7)
        two.reading.delay = 0.005
        letters, back, told = numbered(1_000), dict[bytes, bool](), Outcomes()

        def withdrawn(letter: bytes, outcome: Any) -> None:
            back[letter] = outcome
            told(outcome)

        def posted(letter: bytes, entry: Any) -> None:
            assert isinstance(entry, str), entry
            one.mail.withdraw(two.name, entry, partial(withdrawn, letter))

        async def leak() -> None:
            for _ in range(10):
                await trio.sleep(0.05)
                one.sending.losses = two.reading.losses = 1

        if leaks:
            nursery.start_soon(leak)
        for letter in letters:
            one.mail.post(two.name, letter, partial(posted, letter))
            if dice.random() < 0.05:
                await trio.sleep(0.003)
        await told.wait(1_000)
        await eventually(lambda: not two.waiting)
        nursery.cancel_scope.cancel()
    assert set(back.values()) == {True, False}
    assert len(two.letters) == len(set(two.letters))
    read, withdrawn_ = set(two.letters), {letter for letter, unread in back.items() if unread}
    assert not read & withdrawn_
    assert read | withdrawn_ == set(letters)


# Reading


async def test_no_more_is_read_than_was_taken(server, desk):
    """What is behind it can still be taken back."""
    async with desk(server) as one, desk(server, reads=False) as two:
        await sent(one, two, *numbered(3 * BATCH))
        batches: list[list[bytes]] = []
        left: list[tuple[int, int]] = []

        def take(letters: list[bytes]) -> None:
            batches.append(letters)
            left.append((two.client.xinfo_groups(inbox_key(two.name))[0]["lag"], two.inbox.depth))

        two.inbox.on_letters = take
        two.inbox.open()
        await eventually(lambda: len(left) == 3)
        assert left == [(2 * BATCH, 2 * BATCH), (BATCH, BATCH), (0, 0)]
        assert [letter for batch in batches for letter in batch] == numbered(3 * BATCH)


async def test_a_reply_that_is_lost_costs_no_letter(server, desk):
    async with desk(server) as one, desk(server) as two:
        for number in range(20):
            two.reading.losses = 1
            await sent(one, two, b"%d" % number)
        await eventually(lambda: len(two.letters) >= 20)
        assert two.reading.lost
        assert two.letters == numbered(20)


async def test_what_redis_has_forgotten_is_not_delivered_again(server, desk):
    """As after a failover to a replica that was behind: the mark is older, and a letter is posted a second time."""
    async with desk(server) as one, desk(server) as two:
        await sent(one, two, b"1", b"2")
        await eventually(lambda: len(two.letters) == 2 and not two.waiting)
        key = inbox_key(two.name)
        two.client.xadd(key, {"s": one.name, "n": 2, "d": b"2"})
        two.client.xgroup_setid(key, "g", "0")
        await sent(one, two, b"3")
        await eventually(lambda: two.letters[-1:] == [b"3"])
        assert two.letters == [b"1", b"2", b"3"]


async def test_a_reader_that_comes_back_sets_the_mark_anew(server, desk, ask):
    """So what it has handed over can't be withdrawn, though Redis has forgotten that it was read."""
    async with desk(server) as one, desk(server) as two:
        [entry] = await sent(one, two, b"1")
        await eventually(lambda: len(two.letters) == 1 and not two.waiting)
        async with forgotten(two):
            two.client.xadd(inbox_key(two.name), {"s": one.name, "n": 1, "d": b"1"}, id=entry)
        assert await ask(one.mail.withdraw, two.name, entry) is False
        assert two.letters == [b"1"]


async def test_by_a_clock_that_is_behind_no_letter_is_named_before_the_mark(server, desk, ask):
    async with desk(server) as one, desk(server) as two:
        [entry] = await sent(one, two, b"1")
        ahead = f"{int(entry.split('-')[0]) + 60_000}-7"
        two.client.xadd(inbox_key(two.name), {"s": "x", "n": 1, "d": b"2"}, id=ahead)
        await eventually(lambda: two.letters == [b"1", b"2"] and not two.waiting)
        async with forgotten(two):
            pass
        await sent(one, two, b"3")
        await eventually(lambda: two.letters == [b"1", b"2", b"3"])


@asynccontextmanager
async def forgotten(desk: Desk) -> AsyncIterator[None]:
    """While the reader is cut off, Redis forgets the inbox; when it is back, the block has run."""
    key = inbox_key(desk.name)
    desk.reading.cut = True
    await trio.sleep(0.3)
    desk.client.delete(key)
    desk.client.xgroup_create(key, "g", "0", mkstream=True)
    yield
    desk.reading.cut = False
    await eventually(lambda: desk.client.xinfo_groups(key)[0]["last-delivered-id"] != b"0-0")


async def test_after_a_lapse_what_is_left_in_the_former_inbox_is_read_first(anywhere, desk, ask):
    async with desk(anywhere) as one, desk(anywhere, reads=False) as two:
        former = two.name
        entries = await sent(one, two, *numbered(BATCH + 10))
        assert await ask(one.mail.withdraw, former, entries[0]) is True
        two.client.delete(alive_key(former))
        two.name = secrets.token_hex(8)
        two.enter()
        await sent(one, two, b"new")
        two.inbox.open()
        await eventually(lambda: two.letters[-1:] == [b"new"])
        assert two.letters == [*numbered(BATCH + 10)[1:], b"new"]
        assert refused(await ask(one.mail.post, former, b"x")) is Refused.DEAD


async def test_an_inbox_that_redis_has_lost_is_waited_for(start_server, desk, ask):
    server = start_server()
    async with desk(server) as one, desk(server) as two:
        await sent(one, two, b"1")
        await eventually(lambda: two.letters == [b"1"])
        two.client.flushall()
        assert refused(await ask(one.mail.post, two.name, b"x")) is Refused.DEAD
        await trio.sleep(0.2)
        two.name = secrets.token_hex(8)
        two.enter()
        await sent(one, two, b"2")
        await eventually(lambda: two.letters == [b"1", b"2"])


async def test_what_no_replica_wrote_is_a_letter_that_says_nothing(server, desk):
    async with desk(server) as one, desk(server) as two:
        for fields in ({"a": "b"}, {"s": "x", "n": "many", "d": "x"}):
            two.client.xadd(inbox_key(two.name), fields)
        await sent(one, two, b"x")
        await eventually(lambda: two.letters == [b"", b"", b"x"])


# Large letters


async def test_large_letters_lie_beside_the_inbox_and_keep_their_place(anywhere, desk):
    async with desk(anywhere) as one, desk(anywhere, reads=False) as two:
        letters = [b"1", b"a" * (LARGE + 1), b"2", b"b" * 3_000_000, b"c" * LARGE, b"3"]
        entries = await sent(one, two, *letters)
        beside = large_key(two.name)
        assert set(two.client.hkeys(beside)) == {entries[1].encode(), entries[3].encode()}
        assert 50_000 < two.client.pttl(beside) <= 60_000
        two.inbox.open()
        await eventually(lambda: len(two.letters) == 6 and not two.client.exists(beside))
        assert two.letters == letters


async def test_a_large_letter_whose_text_is_gone_is_delivered_empty(server, desk):
    async with desk(server) as one, desk(server, reads=False) as two:
        await sent(one, two, b"1", b"a" * (LARGE + 1), b"2")
        two.client.delete(large_key(two.name))
        two.inbox.open()
        await eventually(lambda: two.letters == [b"1", b"", b"2"])


async def test_a_withdrawn_large_letter_leaves_nothing_that_lasts(server, desk, ask):
    async with desk(server) as one, desk(server, reads=False) as two:
        [entry] = await sent(one, two, b"a" * (LARGE + 1))
        assert await ask(one.mail.withdraw, two.name, entry) is True
        assert not two.client.exists(large_key(two.name))
        assert two.client.pttl(withdrawn_key(two.name)) > 0


async def test_few_large_letters_fill_an_inbox(server, desk, ask, monkeypatch):
    monkeypatch.setattr(mail, "LARGE_MOST", 2)
    async with desk(server) as one, desk(server, reads=False) as two:
        await sent(one, two, *[b"a" * (LARGE + 1)] * 2)
        assert refused(await ask(one.mail.post, two.name, b"a" * (LARGE + 1))) is Refused.INBOX_FULL
        assert isinstance(await ask(one.mail.post, two.name, b"small"), str)


async def test_a_connection_that_breaks_costs_no_large_letter(server, desk):
    async with desk(server) as one, desk(server, reads=False) as two:
        letters = [part for number in range(8) for part in (b"%d" % number, b"%d" % number * (LARGE + 1))]
        await sent(one, two, *letters)
        two.reading.losses = 2
        two.inbox.open()
        await eventually(lambda: len(two.letters) >= 16)
        assert two.letters == letters
