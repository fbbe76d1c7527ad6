"""Connections to Redis, used by one thread each: a batch of commands goes out whole, its replies come back in order.

A link connects when it is first used and again after it broke. Nothing is retried here: a broken batch is LinkDown, and
whoever sent it sends it again.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

from hiredis import pack_command
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from gateway.store.redis.errors import LinkDown
from gateway.store.redis.scripts import SCRIPTS
from gateway.store.redis.targets import Connection, Target, close_sentinels, connections_of

Command: TypeAlias = tuple[bytes | str | int | float, ...]
"""A command with its arguments; `_key_of` says where the key stands."""

Reply: TypeAlias = Any
"""What Redis answered; an error reply is a ResponseError, as a value."""


class Link(Protocol):
    """One thread's way to Redis."""

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends all and reads a reply to each; LinkDown if the connection breaks, whatever was executed by then."""

    def prepare(self) -> None:
        """Loads the functions again, after an error reply that says they (or the slots) are not where they were."""

    def close(self) -> None:
        """Closes the connection."""


# Its annotation says a tuple of one.
_pack: Callable[[Command], bytes] = pack_command  # type: ignore[assignment]


def open_link(target: Target) -> Link:
    """A link for one thread; it connects when it is first used."""
    if target.kind == "cluster":
        return ClusterLink(target)
    pool = target.pool()
    return DirectLink(connections_of(pool), partial(close_sentinels, pool))


def replies_to(link: Link, commands: Sequence[Command]) -> list[Reply]:
    """Replies, none of which is an error; else LinkDown. For commands that may be executed twice."""
    replies = link.exchange(commands) if commands else []
    if any(lacks_function(reply) for reply in replies):
        link.prepare()
        replies = link.exchange(commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise LinkDown(str(reply)) from reply
    return replies


def lacks_function(reply: Reply) -> bool:
    """Whether the command was not executed because the function is not loaded, or the key has another node."""
    return isinstance(reply, NoScriptError | AskError | TryAgainError)


def is_full(reply: Reply) -> bool:
    """Whether the command was not executed for want of memory."""
    return isinstance(reply, OutOfMemoryError)


def is_denied(reply: Reply) -> bool:
    """Whether the user may not run it, or a function what it calls (as Redis 7.2 and later say it, and 7.0)."""
    return isinstance(reply, NoPermissionError) or (
        isinstance(reply, ResponseError)
        and any(said in str(reply) for said in ("ACL failure", "can't run this command"))
    )


_STUCK = ("MISCONF", "NOREPLICAS", "BUSY ", "UNBLOCKED")


def is_stuck(reply: Reply) -> bool:
    """Whether the command was not executed for a reason that may pass: read-only, no quorum, no disk, a busy script."""
    return isinstance(reply, ReadOnlyError | ClusterDownError) or (
        isinstance(reply, ResponseError) and str(reply).startswith(_STUCK)
    )


class DirectLink:
    """One connection to one primary.

    A connection that broke may leave commands in Redis' buffers, which would be executed after what is sent on the next
    one: so the next one first ends its predecessor (by id and address, as ids begin anew when Redis does).
    """

    def __init__(self, make: Callable[[], Connection], closed: Callable[[], None] = lambda: None) -> None:
        self._make = make
        self._closed = closed
        self._connection: Connection | None = None
        self._predecessor: tuple[str, str] | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """See `Link`."""
        try:
            replies = self._exchange(self._connected(), commands)
        except (RedisError, OSError) as error:
            self.close()
            raise LinkDown(str(error) or type(error).__name__) from error
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            self.close()  # the primary is elsewhere: by now the same name may lead there
        return replies

    def prepare(self) -> None:
        """See `Link`."""
        self.exchange(_loads())

    def close(self) -> None:
        """See `Link`."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
        self._closed()

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._make()
            self._connection = connection
            connection.connect()
            predecessor = self._predecessor
            kill: list[Command] = (
                [("CLIENT", "KILL", "ID", predecessor[0], "ADDR", predecessor[1])] if predecessor else []
            )
            info, *_ = self._exchange(connection, [("CLIENT", "INFO"), *kill, *_loads()])
            self._predecessor = _identity(info)
        return self._connection

    def _exchange(self, connection: Connection, commands: Sequence[Command]) -> list[Reply]:
        # hiredis itself packs a command in 2 µs, redis-py's layer above it in 5.
        connection.send_packed_command([b"".join(map(_pack, commands))], check_health=False)
        return [_reply(connection) for _ in commands]


class ClusterLink:
    """One connection to each primary of a Redis Cluster; a batch is split by slot."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cluster: RedisCluster | None = None
        self._nodes: dict[str, DirectLink] = {}

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """See `Link`. Redirections come back as error replies and are not followed."""
        replies: list[Reply] = [None] * len(commands)
        try:
            for node, indices in self._by_node(commands).items():
                for index, reply in zip(indices, node.exchange([commands[i] for i in indices]), strict=True):
                    replies[index] = reply
        except LinkDown:
            self._forget_slots()  # a replica may have them by now
            raise
        return replies

    def prepare(self) -> None:
        """See `Link`."""
        self._forget_slots()
        for node in self._nodes.values():
            # One that is no more has nothing to prepare; any other does this when it connects.
            with suppress(LinkDown):
                node.prepare()

    def close(self) -> None:
        """See `Link`."""
        for node in self._nodes.values():
            node.close()
        self._forget_slots()

    def _forget_slots(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _by_node(self, commands: Sequence[Command]) -> dict[DirectLink, list[int]]:
        try:
            if self._cluster is None:
                self._cluster = self._target.cluster()
            groups: dict[DirectLink, list[int]] = {}
            for index, command in enumerate(commands):
                slot = _keyslot(self._cluster, _key_of(command))
                groups.setdefault(self._node(self._cluster, slot), []).append(index)
        except (RedisError, RedisClusterException, OSError) as error:
            raise LinkDown(str(error)) from error
        return groups

    def _node(self, cluster: RedisCluster, slot: int) -> DirectLink:
        node = cluster.nodes_manager.get_node_from_slot(slot)
        if node.name not in self._nodes:
            self._nodes[node.name] = DirectLink(connections_of(cluster.get_redis_connection(node).connection_pool))
        return self._nodes[node.name]


def _key_of(command: Command) -> object:
    match command[0]:
        case "EVALSHA":
            return command[3]
        case "XREADGROUP":
            return command[-2]
        case _:
            return command[1]


def _keyslot(cluster: Any, key: object) -> int:
    return int(cluster.keyslot(key))


def _reply(connection: Connection) -> Reply:
    try:
        return connection.read_response()
    except BusyLoadingError:
        raise
    except ResponseError as error:
        return error


def _loads() -> list[Command]:
    return [("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values()]


def _identity(info: Reply) -> tuple[str, str] | None:
    """The id and the address of this connection, as Redis sees it; None if it may not be asked."""
    text = info.decode() if isinstance(info, bytes) else str(info)
    found = re.search(r"\bid=(\d+) addr=(\S+)", text)
    return (found[1], found[2]) if found else None
