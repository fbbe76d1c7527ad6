"""Two gateways on a real Redis Cluster, whose nodes and whose replicas die."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import MISSING, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """Three primaries, of which the first has a replica."""
    if not installed():
        pytest.skip(MISSING)
    with RedisCluster(3, replicas=1) as running:
        yield running


def test_sessions_go_on_while_nodes_and_replicas_die(cluster: RedisCluster, open_door: Any) -> None:
    one, two = open_door(cluster.url), open_door(cluster.url)
    sessions = [one.session() for _ in range(6)]  # on all of the nodes
    streams = [one.steps(session) for session in sessions]
    for session, (stream, call) in zip(sessions, streams, strict=True):
        call.say("1")
        stream.wait("1")
        session.go_to(two.gateway.endpoint("alpha"))
        two.quick(session)  # by mail

    cluster.nodes[0].kill()
    for _, call in streams:
        call.say("2")
    for session, (stream, call) in zip(sessions, streams, strict=True):
        stream.wait("1", "2")
        after = stream.ids[0]
        two.eventually(lambda session=session, after=after: two.status(session, after)[0] == 200)  # till it is found
        resumed = two.resume(session, stream.ids[0])
        resumed.wait("1", "2")
        assert None not in resumed.ids
        call.say("3")
        resumed.wait("1", "2", "3")
    two.eventually(lambda: not two.degraded())

    one.gateway.program.send(signal.SIGKILL)
    for session, (stream, _) in zip(sessions, streams, strict=True):
        rest = two.resume(session, stream.ids[0])
        rest.wait_over()
        *said, error = rest.said
        assert said == ["1", "2", "3"]
        assert error["data"]["executed"] == "unknown"
        two.quick(session)
        assert session.end() == 200
    assert len(one.backend.executions) == 3 * len(sessions)


def test_a_session_goes_on_while_its_slot_moves(cluster: RedisCluster, open_door: Any) -> None:
    """What needs the store waits: its keys are in two places for a moment."""
    one, two = open_door(cluster.url), open_door(cluster.url)
    session = one.session()
    stream, call = _recorded(one, session)
    [record] = _records(cluster)
    log = f"{record.removesuffix('s')}l:{stream.ids[0].partition(':')[0]}"
    with cluster.moving(key_slot(record.encode())) as move:
        move(log)
        call.say("2")
        one.quick(session)
        move(record)
        call.say("3")
        one.quick(session)
        assert stream.said == ["1"], "nothing is shown that is not in the log"
    stream.wait("1", "2", "3")
    call.finish()
    stream.wait_over()
    rest = two.resume(session, stream.ids[0])
    rest.wait_over()
    assert rest.ids == stream.ids[1:]
    assert rest.said == ["1", "2", "3", f"done {one.last_stream}"]
    assert len(one.backend.executions) == len(set(one.backend.executions)), "none was made twice"
    session.go_to(two.gateway.endpoint("alpha"))
    two.quick(session)


def _records(cluster: RedisCluster) -> list[str]:
    found: list[str] = []
    for node in cluster.nodes:
        with node.client() as client:
            found += [key.decode() for key in client.keys("sd:*:s")]
    return found


def _recorded(door: Any, session: Any) -> tuple[Any, Any]:
    """A call whose stream is in the log: where Redis is slow for a moment, one goes on without."""
    for _ in range(10):
        stream, call = door.steps(session)
        call.say("1")
        stream.wait("1")
        if stream.ids[0] is not None:
            return stream, call
        call.finish()
    raise AssertionError("no stream was recorded")
