"""Cursors of merged lists: only what was given out for this use is taken back."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.protocol.cursors import Cursor, pack, unpack
from actors.protocol.errors import Refusal


class PlainSealer:
    """Seals by a copy of the context: enough to see that the same one is asked for."""

    def seal(self, plain, context):
        return base64.urlsafe_b64encode(len(context).to_bytes(2) + context + plain).decode()

    def unseal(self, token, context):
        try:
            data = base64.b64decode(token, altchars=b"-_", validate=True)
        except ValueError:
            return None
        mark = len(context).to_bytes(2) + context
        return data.removeprefix(mark) if data.startswith(mark) else None


SEALER = PlainSealer()
CURSOR = Cursor("tools/list", "alice", "d1", 1000)


def taken_back(token, method="tools/list", principal="alice", digest="d1"):
    return unpack(token, SEALER, method=method, principal=principal, digest=digest)


@given(st.builds(Cursor, st.text(), st.text(), st.text(), st.integers(0, 2**63)))
def test_a_cursor_comes_back_as_it_was(cursor):
    token = pack(cursor, SEALER)
    assert taken_back(token, cursor.method, cursor.principal, cursor.digest) == cursor


@pytest.mark.parametrize("expected", [{"method": "prompts/list"}, {"principal": "bob"}, {"digest": "d2"}])
def test_a_cursor_for_another_use_is_refused(expected):
    with pytest.raises(Refusal) as caught:
        taken_back(pack(CURSOR, SEALER), **expected)
    assert caught.value.error.code == -32602


@pytest.mark.parametrize("token", ["", "x", "!!", "page 2", pack(CURSOR, SEALER)[:-4], pack(CURSOR, SEALER) + "AAAA"])
def test_a_forged_cursor_is_refused(token):
    with pytest.raises(Refusal) as caught:
        taken_back(token)
    assert (caught.value.error.code, caught.value.error.message) == (-32602, "Invalid params: Invalid cursor")


def test_a_cursor_of_another_layout_is_refused():
    context = msgspec.msgpack.encode(("cursor", "tools/list", "alice"))
    future = msgspec.structs.replace(CURSOR, version=3)
    for plain in (b"", b"\xff", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode(future)):
        with pytest.raises(Refusal):
            taken_back(SEALER.seal(plain, context))


def test_what_is_inside_must_agree_with_the_context():
    context = msgspec.msgpack.encode(("cursor", "tools/list", "alice"))
    foreign = msgspec.structs.replace(CURSOR, principal="bob")
    with pytest.raises(Refusal):
        taken_back(SEALER.seal(msgspec.msgpack.encode(foreign), context))
