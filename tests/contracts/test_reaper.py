"""What a supervisor says in the store of a worker that it has seen end."""

import pytest

from gateway.store.redis.keys import REPLICAS, alive_key
from gateway.store.redis.reaper import end_lease
from tests.support.ports import free_port

pytestmark = pytest.mark.redis


def test_the_lease_of_a_dead_process_is_ended_at_once(start_server):
    server = start_server()
    with server.client() as client:
        client.set(alive_key("dead"), "{}", px=60_000)
        client.set(alive_key("living"), "{}", px=60_000)
        client.zadd(REPLICAS, {"dead": 7, "living": 8})
        assert end_lease(server.url, "dead")
        assert client.zrange(REPLICAS, 0, -1, withscores=True) == [[b"dead", 0.0], [b"living", 8.0]]
        assert not client.exists(alive_key("dead"))
        assert client.exists(alive_key("living"))
        assert end_lease(server.url, "dead"), "once more changes nothing"


def test_a_store_that_can_t_be_reached_is_told():
    assert not end_lease(f"redis://127.0.0.1:{free_port()}/0", "dead")
