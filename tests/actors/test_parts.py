"""The small parts by themselves."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.endpoints.host import MEMO_SIZE, Memo
from actors.endpoints.upstreams import Upstreams
from actors.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from actors.protocol.payload import dumps
from actors.protocol.table import BackendSpec, HttpTarget, Table
from actors.runtime import Actor, AtCapacity, Ref, open_system
from actors.services import TableCell
from actors.upstreams.messages import UpstreamNotification
from actors.upstreams.paging import MAX_ITEMS, MAX_PAGES, Paging
from actors.upstreams.subscribers import MAX_PENDING_REPLIES, Subscribers, Subscriptions


def items(*values: object) -> tuple[Raw, ...]:
    return tuple(dumps(value) for value in values)


# Memo ---------------------------------------------------------------------------------------------------------


def test_equal_lists_have_one_number_and_no_two_contents_ever_have_the_same():
    memo = Memo()
    seen: dict[int, object] = {}
    for n in range(20 * MEMO_SIZE):
        number = memo.version(items(n))
        assert number not in seen
        seen[number] = n
        assert memo.version(items(n)) == number
    assert len(memo.versions) <= 4 * MEMO_SIZE


def test_where_an_item_ends_makes_a_difference():
    memo = Memo()
    assert memo.version((Raw(b"1"), Raw(b"23"))) != memo.version((Raw(b"12"), Raw(b"3")))
    assert memo.version(()) != memo.version((Raw(b""),))


def test_what_is_used_stays_and_what_is_not_goes():
    memo, made = Memo(), []

    def value(n: int) -> object:
        return memo.get((n,), lambda: made.append(n) or object())

    kept = value(0)
    for n in range(1, 3 * MEMO_SIZE):
        value(n)
        assert value(0) is kept
    assert made.count(0) == 1
    value(1)
    assert made.count(1) == 2
    assert len(memo.values) == MEMO_SIZE


# Paging -------------------------------------------------------------------------------------------------------


def run_paging(pages: Sequence[tuple[bool, Any]]) -> tuple[Any, Raw, list[Any]]:
    outcome: list[Any] = []
    asked: list[Any] = []
    paging = Paging(
        "tools", lambda params, page: asked.append(params), lambda found, error: outcome.append((found, error))
    )
    paging.start()
    for ok, page in pages:
        if outcome:
            break
        paging.outcome(ok, dumps(page))
    [(found, error)] = outcome
    return found, error, asked


@given(st.lists(st.tuples(st.booleans(), st.recursive(st.none() | st.integers() | st.text(), st.lists)), max_size=5))
def test_whatever_a_backend_answers_a_fetch_ends_once(pages):
    found, _, _ = run_paging([*pages, (False, {"code": 1, "message": "end"})])
    assert found is None or isinstance(found, tuple)


@given(st.lists(st.lists(st.integers(), max_size=5), min_size=1, max_size=10))
def test_pages_are_joined_in_their_order(pages):
    answers = [
        (True, {"tools": page} | ({"nextCursor": str(n)} if n + 1 < len(pages) else {})) for n, page in enumerate(pages)
    ]
    found, error, asked = run_paging(answers)
    assert found == items(*(value for page in pages for value in page))
    assert not error
    assert asked == [Raw(b""), *(dumps({"cursor": str(n)}) for n in range(len(pages) - 1))]


def test_a_cursor_that_comes_again_ends_the_list():
    found, error, asked = run_paging([(True, {"tools": [n], "nextCursor": "same"}) for n in range(5)])
    assert (found, bytes(error), len(asked)) == (items(0, 1), b"", 2)


def test_pages_items_and_bytes_are_bounded():
    endless = ((True, {"tools": [], "nextCursor": str(n)}) for n in range(10**9))
    assert len(run_paging(endless)[2]) == MAX_PAGES
    many = [(True, {"tools": list(range(MAX_ITEMS + 5)), "nextCursor": "x"})]
    assert len(run_paging(many)[0]) == MAX_ITEMS
    large = ((True, {"tools": ["x" * 2**22], "nextCursor": str(n)}) for n in range(10**9))
    assert len(run_paging(large)[0]) == 4


def test_what_came_before_an_error_is_given_with_it():
    found, error, _ = run_paging([(True, {"tools": [1], "nextCursor": "a"}), (False, {"code": 5, "message": "x"})])
    assert found == items(1)
    assert error == dumps({"code": 5, "message": "x"})


# Subscriptions ------------------------------------------------------------------------------------------------


def test_a_subscription_counts_when_its_call_has_succeeded():
    saved: list[tuple[str, ...]] = []
    subscriptions = Subscriptions(saved.append)
    for call, (method, uri, ok) in enumerate(
        [(SUBSCRIBE, "a", True), (SUBSCRIBE, "b", False), (SUBSCRIBE, "c", True), (UNSUBSCRIBE, "a", True)]
    ):
        assert subscriptions.note(call, method, dumps({"uri": uri})) is None
        subscriptions.settle(call, ok)
    assert saved == [("a",), ("a", "c"), ("c",)]
    assert subscriptions.note(9, SUBSCRIBE, dumps({"uri": 5})) is None
    subscriptions.settle(9, True)
    assert subscriptions.uris == ("c",)


# Subscribers --------------------------------------------------------------------------------------------------


class Deaf(Actor):
    """Takes nothing until it is told to."""

    mailbox_size = 8

    def __init__(self) -> None:
        self.heard: list[UpstreamNotification] = []

    def receive(self, message: Any) -> None:
        self.heard.append(message)


async def test_what_has_no_room_is_told_later_once_for_each_thing_and_chatter_is_lost(autojump_clock):
    dropped: list[str] = []
    async with open_system() as system:
        deaf = Deaf()
        ref = system.spawn(deaf)
        audience = Subscribers(False, dropped.append, lambda: None)
        audience.members[ref] = None
        told = [
            UpstreamNotification(ref, "alpha", None, method, dumps({"n": n}))
            for n in range(3)
            for method in ("notifications/x", "notifications/message")
        ]
        for one in told * 10:
            audience.tell(one, None)
        assert audience.backlog
        assert set(dropped) == {"notification_refused"}
        for _ in range(10):
            await system_settled()
            audience.settle()
        await system_settled()
        assert not audience.backlog
        assert {bytes(t.params) for t in deaf.heard if t.method == "notifications/x"} == {
            bytes(dumps({"n": n})) for n in range(3)
        }


async def test_what_is_owed_is_bounded_and_goes_with_its_member(autojump_clock):
    dropped: list[str] = []
    async with open_system() as system:
        ref = system.spawn(Deaf())
        audience = Subscribers(False, dropped.append, lambda: None)
        audience.members[ref] = None
        for n in range(2 * MAX_PENDING_REPLIES):
            audience.tell(UpstreamNotification(ref, "alpha", None, "notifications/x", dumps({"n": n})), None)
        audience.tell(UpstreamNotification(ref, "alpha", None, "notifications/x", dumps({"n": "x" * 5000})), None)
        assert audience.backlog == MAX_PENDING_REPLIES
        audience.leave(ref)
        assert not audience.backlog
        assert audience.only() is None


async def system_settled() -> None:
    from trio.testing import wait_all_tasks_blocked

    await wait_all_tasks_blocked()


@pytest.mark.parametrize("uri", ["test:///a", "test:///a/part"])
async def test_a_shared_connections_members_have_interests_of_their_own(autojump_clock, uri):
    async with open_system() as system:
        ann, bob = Deaf(), Deaf()
        refs = [system.spawn(actor) for actor in (ann, bob)]
        audience = Subscribers(True, lambda what: None, lambda: None)
        for ref in refs:
            audience.members[ref] = None
        audience.take_interest(refs[0], "test:///a")
        audience.tell(
            UpstreamNotification(refs[0], "alpha", None, "notifications/resources/updated", dumps({"uri": uri})), None
        )
        audience.tell(UpstreamNotification(refs[0], "alpha", 1, "notifications/message", dumps({})), refs[0])
        audience.tell(UpstreamNotification(refs[0], "alpha", None, "notifications/unknown", dumps({})), None)
        await system_settled()
        assert (len(ann.heard), len(bob.heard)) == (1, 0)
        assert audience.leave(refs[0]) == ["test:///a"]


# Connections of an endpoint -----------------------------------------------------------------------------------


async def test_whoever_waits_for_a_connection_is_told_when_it_ended_and_no_other_can_be_had(autojump_clock):
    class Ends(Actor):
        def receive(self, message: object) -> None:
            pass

    class Asks(Actor):
        """Waits for a connection, which ends; then a call wants it."""

        def __init__(self) -> None:
            self.told: list[object] = []

        def started(self) -> None:
            spec = BackendSpec("alpha", HttpTarget("http://alpha"))
            services = SimpleNamespace(table=TableCell(Table({"alpha": spec}, {})))
            host, owner = SimpleNamespace(ctx=self.ctx), SimpleNamespace(disconnected=lambda backend, was_up: None)
            dialer = SimpleNamespace(dial=lambda spec, attempt: self.dials.pop()(), changes=False)
            self.upstreams = Upstreams(host, "alpha", services, None, dialer, owner)  # type: ignore[arg-type]

        def receive(self, message: object) -> None:
            if message == "wait":
                self.upstreams.when_ready("alpha", lambda server_info, error: self.told.append((server_info, error)))
            elif message == "call":
                assert self.upstreams.connection("alpha") is None

    def refuses() -> Ref:
        raise AtCapacity("no room")

    async with open_system() as system:
        asks, ends = Asks(), system.spawn(Ends(), "link")
        asks.dials = [refuses, lambda: ends]
        ref = system.spawn(asks, "asks")
        ref.reply("wait")
        await system_settled()
        ends.stop()
        while ends.alive:
            await trio.lowlevel.checkpoint()
        asks.receive("call")  # before the actor has heard that the connection is gone
        assert [server_info for server_info, _ in asks.told] == [None]
        assert b"no_link" in bytes(asks.told[0][1])
