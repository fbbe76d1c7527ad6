"""What a client says of itself, and what it names, is bounded and can't be read in two ways."""

import json

import pytest
import trio

from actors.gate import parse_event_id
from actors.machines.session.machine import CLIENT_BYTES
from actors.ports import ANONYMOUS, Principal
from actors.protocol import codec, errors
from gateway.lifecycle import KEY_BYTES, key_file
from gateway.observability.bounds import LABEL_MAX
from gateway.observability.metrics import Metrics
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "someone", "version": "1"}}
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
        assert {key.principal for key in gateway.actors.tree.server_infos} == {ANONYMOUS.name}
        assert len(gateway.actors.tree.server_infos) == 1


async def test_a_second_member_of_the_same_name_does_not_get_past_a_filter(autojump_clock):
    alpha = Backend("alpha", disabled_tools=("env",))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        doubled = b'{"name":"env","name":"echo","arguments":{}}'
        await client.post(b'{"jsonrpc":"2.0","id":"twice","method":"tools/call","params":%s}' % doubled).end()
        (called,) = [sent.frame for sent in alpha.upstream.transport.sent if b'"tools/call"' in sent.frame]
        assert json.loads(called)["params"]["name"] == "echo"
        assert called.count(b'"name":') == 1


@pytest.mark.parametrize(
    ("who", "limits"),
    [(Principal("ann"), {"sessions_per_principal": 2}), (ANONYMOUS, {"sessions_anonymous": 2})],
    ids=["named", "anonymous"],
)
async def test_a_principal_has_its_share_of_sessions_and_no_more(autojump_clock, who, limits):
    async with open_gateway(Backend("alpha"), **limits) as gateway:
        first = await gateway.connect(principal=who)
        await gateway.connect(principal=who)
        refused = gateway.client("", who).begin("initialize", INITIALIZE)
        assert (await refused.error()).code == -32000
        assert (refused.status, dict(refused.answer.headers)["retry-after"]) == (429, "5")
        assert gateway.telemetry.total("stagedoor_messages_rejected_total", "too_many_sessions") == 1
        await gateway.connect(principal=Principal("bob"))
        await first.delete()
        await gateway.settle()
        await gateway.connect(principal=who)
        assert gateway.actors.quotas.sessions.total == 3


async def test_a_session_that_left_memory_does_not_count_and_counts_again_when_it_is_back(autojump_clock):
    ann = Principal("ann")
    async with open_gateway(Backend("alpha"), sessions_per_principal=1) as gateway:
        client = await gateway.connect(principal=ann)
        await trio.sleep(100)
        assert gateway.actors.quotas.sessions.total == 0
        assert await client.names()
        assert gateway.actors.quotas.sessions.total == 1
        with pytest.raises(RpcError, match="Too many sessions"):
            await gateway.connect(principal=ann)


async def test_sessions_that_came_to_nothing_do_not_count(autojump_clock):
    async with open_gateway(Backend("alpha")) as gateway:
        for odd in ({}, {**INITIALIZE, "clientInfo": 5}):
            assert (await gateway.client("").begin("initialize", odd).error()).code == -32602
        await gateway.settle()
        assert gateway.actors.quotas.sessions.total == 0


def test_a_label_is_cut():
    metrics = Metrics()
    metrics.count("stagedoor_messages_dropped_total", ("x" * 1_000_000,))
    assert set(metrics.numbers()["stagedoor_messages_dropped_total"]) == {("",), ("x" * LABEL_MAX,)}


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
