"""What mail says comes out as it went in, and no bytes do more harm than to be refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.cluster import letters
from actors.cluster.letters import Letter, UnreadableError
from actors.ports import ANONYMOUS, Principal
from actors.protocol.messages import Error, Notification, Request, Result
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.sessions import messages as sm

REPLY: Any = object()
BODIES: list[letters.Body] = [
    letters.Deliver((b'{"a":1}', b"{}"), True, "2025-03-26", (b"{}",)),
    letters.Note((b'{"a":1}',)),
    letters.Attach("p1", 2**63, 2**64 - 1),
    letters.Attach(),
    letters.Recover(b'[1,"1"]'),
    letters.End(),
    letters.Move(),
    letters.Take(),
    letters.Detach(7),
    letters.Written(9),
    letters.Held((1, 2**47)),
    letters.Whole(200, b"\xff\x00", (("retry-after", "1"),)),
    letters.Opened("p1"),
    letters.Opened("p1", recorded=False),
    letters.Attached("g2", 5, 6, 7, live=True),
    letters.Attached("p2", 5, 6, 7, live=False, marks=("-", "00-" + "1" * 32 + "-" + "2" * 16 + "-01")),
    letters.Unrecorded(),
    letters.Events(1, 5, 6, 7, b"id: p1:5-6\ndata: {}\n\n", ended=True, finished=True),
    letters.Head(2, 7),
    letters.Released(),
    letters.Refused(letters.FULL),
    letters.Moved("there"),
    letters.Moved(),
    letters.ToPool(1, 0, b"\x90"),
    letters.FromPool(0, 2**40, b""),
    letters.Said("c", b"{}"),
    letters.Heard(202),
    letters.Came(),
]


def letter(body: letters.Body, principal: Principal = ANONYMOUS) -> Letter:
    return Letter("0f" * 16, ("me", 42), body, principal, "alpha", 3)


def test_every_body_has_a_kind() -> None:
    assert set(letters.KINDS) == set(get_args(letters.Body))
    assert {type(body) for body in BODIES} == set(letters.KINDS)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: letters.KINDS[type(body)])
def test_a_letter_comes_out_as_it_went_in(body: letters.Body) -> None:
    for principal in (ANONYMOUS, Principal("ann")):
        assert letters.decode(letters.encode(letter(body, principal))) == letter(body, principal)


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_unreadable(data: bytes) -> None:
    with suppress(UnreadableError):
        letters.decode(data)


@given(st.sampled_from(BODIES), st.data())
def test_so_is_a_letter_of_which_some_bytes_were_changed(body: letters.Body, data: st.DataObject) -> None:
    spelled = bytearray(letters.encode(letter(body)))
    for _ in range(data.draw(st.integers(1, 3))):
        spelled[data.draw(st.integers(0, len(spelled) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(spelled)))
    for changed in (bytes(spelled), bytes(spelled[:cut])):
        with suppress(UnreadableError):
            read = letters.decode(changed)
            if isinstance(read.body, get_args(letters.Ask)):
                letters.asked(read.body)


def test_nesting_too_deep_is_refused() -> None:
    with pytest.raises(UnreadableError):
        letters.decode(b"\x91" * 100_000)


def changed(**members: Any) -> bytes:
    """A letter, with other members in its envelope; None: without."""
    envelope = msgspec.msgpack.decode(letters.encode(letter(letters.End()))) | members
    return msgspec.msgpack.encode({name: value for name, value in envelope.items() if value is not None})


def test_a_kind_that_is_not_known_is_unsupported_and_says_whom_to_tell() -> None:
    for other in (changed(kind="invent"), changed(v=2)):
        with pytest.raises(UnreadableError) as unreadable:
            letters.decode(other)
        assert (unreadable.value.reason, unreadable.value.reply) == (letters.UNSUPPORTED, ("me", 42))


def test_a_body_that_is_not_of_its_kind_is_bad_and_says_whom_to_tell() -> None:
    with pytest.raises(UnreadableError) as unreadable:
        letters.decode(changed(kind="deliver"))
    assert (unreadable.value.reason, unreadable.value.reply) == (letters.BAD, ("me", 42))


def test_members_that_a_later_version_adds_are_passed_over() -> None:
    assert letters.decode(changed(hops=3)) == letter(letters.End())


def test_a_letter_of_a_replica_that_knows_nothing_of_rights_gives_none() -> None:
    old = msgspec.msgpack.decode(letters.encode(letter(letters.End())))
    del old["rights"]
    assert letters.decode(msgspec.msgpack.encode(old)).rights == NO_RIGHTS


def test_replicas_that_know_of_marks_and_those_that_do_not_read_each_others_letters() -> None:
    class Earlier(msgspec.Struct, frozen=True):
        """As replicas of before had it."""

        stream: str
        epoch: int
        seq: int
        head: int
        live: bool

    earlier = msgspec.msgpack.decode(
        msgspec.msgpack.encode(letters.Attached("p1", 1, 2, 3, True, ("-",))), type=Earlier
    )
    assert earlier == Earlier("p1", 1, 2, 3, live=True)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(earlier), type=letters.Attached)
    assert read == letters.Attached("p1", 1, 2, 3, live=True)


RIGHTS = Rights("https://idp.test", "ann", "app", frozenset({"dev"}), frozenset({"a", "b"}), 1e9, (("d", "1"),))
ID = 10**30
"""No number of MessagePack."""
MESSAGES = (
    Request(ID, "tools/call", Raw(b'{"name":"x"}')),
    Request("1", "ping"),
    Notification("notifications/cancelled", Raw(b'{"requestId":1}')),
    Result("s-1", Raw(b'{"action":"accept"}')),
    Error(None, Raw(b'{"code":-1,"message":"no"}')),
)
ASKS: list[Any] = [
    sm.PostMessages(MESSAGES, True, "2025-03-26", ((None, Raw(b'{"code":-32600,"message":"?"}')),), REPLY),
    sm.PostMessages(MESSAGES[2:], False, None, (), REPLY),
    sm.PostMessages(MESSAGES, False, None, (), REPLY, RIGHTS),
    sm.GetEvents(None, 0, 0, REPLY),
    sm.GetEvents("p3", 7, 10, REPLY, rights=RIGHTS),
    sm.GetEvents("p3", 7, 10, REPLY),
    sm.GetEvents("p3", 7, 10, REPLY, reader=5, again=True),
    sm.Recover((ID, "1", 1), REPLY),
    sm.EndSession(REPLY),
]


def plain(value: Any) -> Any:
    """Raw JSON as bytes, with what a request is written with that has no params."""
    if isinstance(value, Raw):
        return bytes(value) or b"{}"
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if isinstance(value, msgspec.Struct):
        return type(value), {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


@pytest.mark.parametrize("message", ASKS, ids=lambda message: type(message).__name__)
def test_what_a_session_is_told_comes_out_as_it_went_in(message: Any) -> None:
    sent = msgspec.structs.replace(letter(letters.ask_of(message)), rights=letters.rights_of(message))
    read = letters.decode(letters.encode(sent))
    assert isinstance(read.body, get_args(letters.Ask))
    assert plain(letters.asked(read.body, read.rights)(REPLY)) == plain(message)


def test_a_post_with_a_request_is_a_delivery_and_any_other_a_note() -> None:
    assert type(letters.ask_of(ASKS[0])) is letters.Deliver
    assert type(letters.ask_of(ASKS[1])) is letters.Note


@pytest.mark.parametrize(
    "ask",
    [letters.Deliver((b"[]",)), letters.Note((b"\xff",)), letters.Recover(b"{}"), letters.Recover(b"[1.5]")],
)
def test_json_that_is_no_message_is_bad(ask: letters.Ask) -> None:
    with pytest.raises(UnreadableError):
        letters.asked(ask)
