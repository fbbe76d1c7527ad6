"""A real Redis Cluster for tests: primaries that share the slots, and replicas of the first one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer

SLOTS = 16_384


class RedisCluster:
    """So many primaries, and so many replicas of the first of them, one of which takes its place when it dies."""

    def __init__(self, primaries: int = 3, replicas: int = 0) -> None:
        self.nodes: list[RedisServer] = []
        self.replicas: list[RedisServer] = []
        self._wanted = (primaries, replicas)
        self._buses: list[int] = []

    @property
    def url(self) -> str:
        """The store URL, which names every primary."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> "RedisCluster":
        """Starts the nodes and joins them."""
        primaries, replicas = self._wanted
        self.nodes = [self._node() for _ in range(primaries)]
        self.replicas = [self._node() for _ in range(replicas)]
        everybody = [*self.nodes, *self.replicas]
        for index, node in enumerate(everybody):
            self._tell(node, "CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        share = -(-SLOTS // len(self.nodes))
        for index, node in enumerate(self.nodes):
            last = min(SLOTS, (index + 1) * share) - 1
            self._tell(node, "CLUSTER", "ADDSLOTSRANGE", index * share, last)
        for one, (other, bus) in product(everybody, zip(everybody, self._buses, strict=True)):
            if one is not other:  # all of them: gossip would take seconds
                self._tell(one, "CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        self._wait(lambda: all(self.size(node) == len(everybody) for node in everybody))
        first = self._tell(self.nodes[0], "CLUSTER", "MYID").decode()
        for node in self.replicas:
            # Until they have shaken hands it knows the other by no name, or by one of its own making.
            self._wait(lambda node=node: first.encode() in self._tell(node, "CLUSTER", "NODES"))
            self._tell(node, "CLUSTER", "REPLICATE", first)
        self._wait(lambda: all(self.agrees(node) for node in everybody))
        self._wait(lambda: all(b"master_link_status:up" in self._tell(node, "INFO") for node in self.replicas))
        return self

    def size(self, node: RedisServer) -> int:
        """How many others this one knows, itself included."""
        return len(self._tell(node, "CLUSTER", "NODES").splitlines())

    def agrees(self, node: RedisServer) -> bool:
        """Whether it knows who has which slots, and that all are served."""
        shares = self._tell(node, "CLUSTER", "SLOTS")  # of each: first, last, its primary, its replicas
        return (
            b"cluster_state:ok" in self._tell(node, "CLUSTER", "INFO")
            and len(shares) == len(self.nodes)
            and sum(len(share) - 3 for share in shares) == len(self.replicas)
        )

    @contextmanager
    def moving(self, slot: int) -> Iterator[Callable[[str], None]]:
        """Its slot is on the way from one primary to the next meanwhile, a key after the other, by what is yielded."""
        share = -(-SLOTS // len(self.nodes))
        former = self.nodes[slot // share]
        following = self.nodes[(slot // share + 1) % len(self.nodes)]
        names = [self._tell(node, "CLUSTER", "MYID").decode() for node in (former, following)]
        self._tell(following, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        self._tell(former, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        yield lambda key: self._tell(former, "MIGRATE", "127.0.0.1", following.port, key, 0, 5000)
        for node in (following, *(node for node in self.nodes if node is not following)):
            self._tell(node, "CLUSTER", "SETSLOT", slot, "NODE", names[1])

    def client(self) -> Any:
        """A client of the whole to look and meddle with; close it."""
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port, protocol=3)

    def stop(self) -> None:
        """Ends it and removes its data."""
        for node in [*self.nodes, *self.replicas]:
            node.stop()

    def __enter__(self) -> "RedisCluster":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _node(self) -> RedisServer:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
        for _ in range(3):
            bus = free_port()
            node = RedisServer(*options, "--cluster-port", str(bus))
            with suppress(RuntimeError):  # another process may have taken the port
                node.start()
                self._buses.append(bus)
                return node
        raise RuntimeError("a node did not start")

    def _tell(self, node: RedisServer, *command: str | int) -> Any:
        with redis.Redis(port=node.port, protocol=3, retry=Retry(NoBackoff(), 0)) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def _wait(self, condition: Any, within: float = PATIENCE) -> None:
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, "the nodes don't come together"
            time.sleep(0.02)
