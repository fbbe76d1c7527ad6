"""What a client says of itself, and what it names, is bounded and can't be read in two ways."""

import json

import pytest

from actors.door import parse_event_id
from actors.ports import ANONYMOUS
from actors.protocol import codec, errors
from actors.protocol.session_machine import CLIENT_BYTES
from gateway.lifecycle import KEY_BYTES, key_file
from gateway.observability.metrics import LABEL_MAX, Metrics
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

SURROGATE = rb"\ud800"


def test_a_body_is_mended_in_one_pass_or_refused():
    few = b'{"jsonrpc":"2.0","id":1,"method":"%s"}' % (SURROGATE * 1000)
    assert codec.decode_frame(few).method == "\ufffd" * 1000
    many = b'{"jsonrpc":"2.0","id":1,"method":"%s"}' % (SURROGATE * 30_000)
    with pytest.raises(errors.Malformed) as refused:
        codec.decode_frame(many)
    assert refused.value.code == errors.PARSE_ERROR


@pytest.mark.parametrize(
    "text", ["p01:5-1", "p1:05-1", "p1:5-01", "p1:5-0", "p0:5-1", "p1:-5-1", "x1:5-1", "p1:5", "p1"]
)
def test_an_event_id_has_one_spelling(text):
    assert parse_event_id(text) is None
    assert parse_event_id("p1:5-1") == ("p1", 5, 1)


async def test_a_client_that_says_too_much_of_itself_is_refused(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway:
        with pytest.raises(RpcError, match="too large"):
            await gateway.connect(info={"name": "x" * CLIENT_BYTES, "version": "1"})
        assert await gateway.connect(info={"name": "x" * 100, "version": "1"})


async def test_made_up_extensions_do_not_make_views_of_their_own(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        for n in range(5):
            client = await gateway.connect(capabilities={"extensions": {f"made.up/{n}": {"n": n}}})
            assert await client.names()
        assert {key.principal for key in gateway.actors.tree.hellos} == {ANONYMOUS.name}
        assert len(gateway.actors.tree.hellos) == 1


async def test_a_second_member_of_the_same_name_does_not_get_past_a_filter(autojump_clock):
    alpha = Backend("alpha", disabled_tools=("env",))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        doubled = b'{"name":"env","name":"echo","arguments":{}}'
        await client.post(b'{"jsonrpc":"2.0","id":"twice","method":"tools/call","params":%s}' % doubled).end()
        (called,) = [sent.frame for sent in alpha.link.transport.sent if b'"tools/call"' in sent.frame]
        assert json.loads(called)["params"]["name"] == "echo"
        assert called.count(b'"name":') == 1


def test_a_label_is_cut():
    metrics = Metrics()
    metrics.count("stagedoor_messages_dropped_total", ("x" * 1_000_000,))
    (series,) = metrics.numbers()["stagedoor_messages_dropped_total"]
    assert series == ("x" * LABEL_MAX,)


def test_a_key_file_is_whole_and_for_nobody_else(tmp_path):
    path = tmp_path / "state" / "sealing.key"
    key = key_file(path)
    assert len(key) == KEY_BYTES
    assert key_file(path) == key
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["sealing.key"]
    path.write_bytes(b"")
    with pytest.raises(OSError, match="does not hold a key"):
        key_file(path)
