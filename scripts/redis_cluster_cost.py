"""What a cluster asks of Redis: CPU of each command by `INFO commandstats`, on a server of its own, in pipelines of 64.

Run from the root of the tree: python -m scripts.redis_cluster_cost
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from actors.ports import Grant
from actors.protocol.table import Limits
from gateway.store.redis.keys import alive_key, inbox_key, large_key, owned_key, seen_key
from gateway.store.redis.links import Command, DirectLink
from gateway.store.redis.operations import Operations
from gateway.store.redis.scripts import SHA
from gateway.store.redis.targets import parse
from gateway.store.rules import INBOX
from scripts.redis_append_cost import ROUNDS, SESSIONS, SLICE, SLICES, ignore, session
from tests.support.redis_server import RedisServer

OWNER = "o" * 16
LETTER = b"m" * 400
INFO = b"i" * 200
DAY, INBOX_TTL, LEASE = 86_400_000, 600_000, 600_000


def beat(take: int = 0) -> Command:
    keys = (alive_key(OWNER), owned_key(OWNER), inbox_key(OWNER), seen_key(OWNER))
    return ("EVALSHA", SHA["beat"], len(keys), *keys, LEASE, INFO, DAY, INBOX_TTL, take)


def posts() -> Iterator[Command]:
    keys = (alive_key(OWNER), inbox_key(OWNER), seen_key(OWNER), large_key(OWNER))
    for number in itertools.count(1):
        yield ("EVALSHA", SHA["post"], len(keys), *keys, "p" * 16, number, INBOX * 100, INBOX_TTL, LETTER)


def reads(count: int) -> Command:
    return ("XREADGROUP", "GROUP", "g", "g", "COUNT", count, "NOACK", "STREAMS", inbox_key(OWNER), ">")


def measured(client: Any, link: DirectLink, name: str, batches: Sequence[Sequence[Command]]) -> float:
    """Microseconds per command, by Redis' own account."""
    client.config_resetstat()
    for batch in batches:
        for reply in link.exchange(batch):
            assert not isinstance(reply, Exception), reply
            assert not isinstance(reply, list) or reply[0] == b"OK", reply
    return float(client.info("commandstats")[f"cmdstat_{name}"]["usec_per_call"])


def main() -> None:
    """Prints microseconds per command."""
    operations = Operations(Limits())
    with RedisServer() as server, server.client() as client:
        link = DirectLink(parse(server.url).connections())

        def cost(what: str, name: str, commands: Iterable[Command]) -> None:
            endless = iter(commands)
            batches = [list(itertools.islice(endless, SESSIONS)) for _ in range(ROUNDS)]
            least = min(measured(client, link, name, batches[first : first + SLICE]) for first in SLICES)
            sys.stdout.write(f"{what}: {least} µs\n")

        link.exchange([beat(1)])
        cost("beat", "evalsha", itertools.repeat(beat()))
        cost("looking whether one is alive", "exists", itertools.repeat(("EXISTS", alive_key(OWNER))))
        link.exchange([beat(1)])
        cost("post of a letter of 400 bytes", "evalsha", posts())
        client.config_resetstat()
        while link.exchange([reads(64)])[0]:
            pass
        stats = client.info("commandstats")["cmdstat_xreadgroup"]
        sys.stdout.write(f"reading a letter, 64 at a time: {stats['usec'] / (SESSIONS * ROUNDS):.2f} µs\n")
        sessions = [session(link, operations, f"{number:032x}") for number in range(SESSIONS)]
        every: list[tuple[str, Callable[[str, Grant], Command]]] = [
            ("read of a record", lambda k, g: operations.read(k, ignore).command),
            ("touch", lambda k, g: operations.touch(k, g, ignore).command),
        ]
        for what, make in every:
            cost(what, "evalsha", itertools.cycle([make(k, g) for k, g in sessions]))
        moves(client, link, operations, sessions)
        link.close()


def moves(client: Any, link: DirectLink, operations: Operations, sessions: Sequence[tuple[str, Grant]]) -> None:
    """Each session given back and claimed again and again: each time at the epoch that the claim before gave it."""
    epochs = {key: grant.epoch for key, grant in sessions}
    client.config_resetstat()
    for number in range(SLICE):
        link.exchange([operations.release(k, Grant(OWNER, e), ignore).command for k, e in epochs.items()])
        commands = [operations.claim(k, OWNER, (None, e), f"n{number}", ignore).command for k, e in epochs.items()]
        for key, reply in zip(epochs, link.exchange(commands), strict=True):
            epochs[key] = int(reply[1])
    cost = client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
    sys.stdout.write(f"release, claim: {2 * cost} µs together\n")


if __name__ == "__main__":
    main()
