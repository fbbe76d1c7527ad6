"""What a fenced append costs Redis: CPU by `INFO commandstats`, on a server of its own, in pipelines of 64.

Run from the root of the tree: python -m scripts.redis_append_cost
"""

import sys
from dataclasses import replace
from typing import Any

from actors.ports import NO_DELTAS, Grant
from actors.protocol.table import Limits
from gateway.store.redis.links import Command, DirectLink
from gateway.store.redis.operations import Operations, log_key
from gateway.store.redis.targets import parse
from tests.support.redis_server import RedisServer

SESSIONS = 64
ROUNDS, SLICE = 500, 100
SLICES = range(0, ROUNDS, SLICE)
"""The least of some measurements is the one that was disturbed the least."""
EVENT = b"d" * 200


def ignore(outcome: object) -> None:
    """Nobody waits."""


def main() -> None:
    """Prints microseconds per command."""
    operations = Operations(replace(Limits(), log_events=10**7, log_bytes=10**10))
    with RedisServer() as server, server.client() as client:
        link = DirectLink(parse(server.url).connections())
        sessions = [session(link, operations, f"{number:032x}") for number in range(SESSIONS)]

        def cost(name: str, batches: list[list[Command]]) -> None:
            least = min(measured(client, link, name, batches[first : first + SLICE]) for first in SLICES)
            sys.stdout.write(f"{name}: {least} µs\n")

        appends = [
            [
                operations.append(k, g, "p1", n, [EVENT], ignore, finish=False, deltas=NO_DELTAS).command
                for k, g in sessions
            ]
            for n in range(2, 2 + ROUNDS)
        ]
        cost("evalsha", appends)
        cost(
            "xadd",
            [[("XADD", log_key(k, "x"), f"1-{n}", "d", EVENT) for k, _ in sessions] for n in range(2, 2 + ROUNDS)],
        )
        link.close()


def measured(client: Any, link: DirectLink, name: str, batches: list[list[Command]]) -> float:
    """Microseconds per command, by Redis' own account."""
    client.config_resetstat()
    for batch in batches:
        replies = link.exchange(batch)
        assert not any(isinstance(reply, Exception | list) for reply in replies), replies
    return float(client.info("commandstats")[f"cmdstat_{name}"]["usec_per_call"])


def session(link: DirectLink, operations: Operations, key: str) -> tuple[str, Grant]:
    """A session with a stream."""
    (reply,) = link.exchange([operations.create(key, "o" * 16, "n", {"state": b"x" * 300}, ignore).command])
    grant = Grant("o" * 16, int(reply[1]))
    more = (
        operations.save(key, grant, 1, NO_DELTAS, ignore),
        operations.open(key, grant, "p1", {"r": b"q" * 100}, EVENT, ignore),
    )
    link.exchange([operation.command for operation in more])
    return key, grant


if __name__ == "__main__":
    main()
