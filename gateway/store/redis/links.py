"""Connections to Redis, used by one thread each: a batch of commands goes out whole, its replies come back in order.

A link connects when it is first used and again after it broke. Nothing is retried here: a broken batch is LinkDown, and
whoever sent it sends it again. The same for the loop, without a thread for each batch, is in `loop_links.py`.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from hiredis import pack_command
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as Broken

from gateway.store.redis.errors import LinkDown
from gateway.store.redis.scripts import SCRIPTS
from gateway.store.redis.slots import Slots, ask_slots
from gateway.store.redis.targets import Address, Connection, Sentinels, Target, connections_of

Command: TypeAlias = tuple[bytes | str | int | float, ...]
"""A command with its arguments; `key_of` says where the key stands."""

Reply: TypeAlias = Any
"""What Redis answered; an error reply is a ResponseError, as a value."""


class Link(Protocol):
    """One thread's way to Redis: sends commands and waits for their replies."""

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends all and reads a reply to each; LinkDown if the connection breaks, whatever was executed by then."""

    def split(self, commands: Sequence[Command]) -> Iterable[Sequence[int]]:
        """The numbers of those that go to one primary together, or to none. LinkDown."""

    def prepare(self) -> None:
        """Loads the functions again, after an error reply that says they (or the slots) are not where they were."""

    def histories(self, key: str | None = None) -> Mapping[str, "History"]:
        """Of the primaries that this link uses and that answer, by the place of each; or of the one that has this key.
        LinkDown."""

    def renew(self) -> None:
        """The next exchange is on another connection: this one may lead to who was the primary. On any thread."""

    def close(self) -> None:
        """Closes the connection."""


class History(NamedTuple):
    """What a primary calls the data that it holds, and by what name it took it over. One that took over from another,
    or was started anew, has a name of its own, and may lack what was acknowledged before."""

    name: str
    former: str


def anew(before: Mapping[str, History], now: Mapping[str, History]) -> bool:
    """Whether a primary has taken over from one that was known, or was started anew."""
    names = {history.name for history in before.values()}
    return any(
        history.name not in names and (place in before or history.former in names) for place, history in now.items()
    )


# Its annotation says a tuple of one.
_pack: Callable[[Command], bytes] = pack_command  # type: ignore[assignment]


def pack(commands: Sequence[Command]) -> bytes:
    """The commands as they go out. hiredis itself packs one in 2 µs, redis-py's layer above it in 5."""
    return b"".join(map(_pack, commands))


def open_link(target: Target) -> Link:
    """A link for one thread; it connects when it is first used."""
    return ClusterLink(target) if target.kind == "cluster" else direct_link(target)


def direct_link(target: Target) -> "DirectLink":
    """The same where there is one primary."""
    pool = target.pool()
    sentinels = Sentinels(pool)
    return DirectLink(connections_of(pool), sentinels.close, sentinels.agree)


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


def replies_of_each(link: Link, commands: Sequence[Command]) -> list[Reply | None]:
    """The same, and None for what goes to a primary that does not answer. LinkDown if it is not known where they go."""
    replies: list[Reply | None] = [None] * len(commands)
    for indices in link.split(commands) if commands else ():
        with suppress(LinkDown):
            for index, reply in zip(indices, replies_to(link, [commands[i] for i in indices]), strict=True):
                replies[index] = reply
    return replies


def down(error: Exception) -> LinkDown:
    """What an error of redis-py or of a socket means for a link."""
    return LinkDown(str(error) or type(error).__name__)


def lacks_function(reply: Reply) -> bool:
    """Whether the command was not executed because the function is not loaded, or the key has another node; or was
    broken off where it came to a key that has."""
    return isinstance(reply, NoScriptError | AskError | TryAgainError) or (
        isinstance(reply, ResponseError) and "non local key" in str(reply)
    )


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


SLOW: Final = 0.5
"""Seconds after which a reply may be of one that hung, and that another has replaced meanwhile."""


class DirectLink:
    """One connection to one primary.

    A connection that broke may leave commands in Redis' buffers, which would be executed after what is sent on the next
    one: so the next one first ends its predecessor (by id and address, as ids begin anew when Redis does).

    `leads`: whether a connection leads to the primary, as far as anybody knows.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        closed: Callable[[], None] = lambda: None,
        leads: Callable[[Connection], bool] = lambda connection: True,
    ) -> None:
        self._make = make
        self._closed = closed
        self._leads = leads
        self._old = False
        self._connection: Connection | None = None
        self._predecessor: tuple[str, str] | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """See `Link`."""
        try:
            connection, sent = self._connected(), time.monotonic()
            replies = self._exchange(connection, commands)
            if time.monotonic() - sent > SLOW:
                self.confirm()
        except (RedisError, OSError) as error:
            self.close()
            raise down(error) from error
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            self.close()  # the primary is elsewhere: by now the same name may lead there
        return replies

    def split(self, commands: Sequence[Command]) -> Iterable[Sequence[int]]:
        """See `Link`."""
        return [range(len(commands))]

    def connect(self) -> Connection:
        """Its connection, made if there is none, with all functions loaded. LinkDown."""
        try:
            return self._connected()
        except (RedisError, OSError) as error:
            self.close()
            raise down(error) from error

    def prepare(self) -> None:
        """See `Link`. One that is not connected does this when it connects."""
        if self._connection is not None:
            self.exchange(loads())

    def histories(self, key: str | None = None) -> Mapping[str, History]:
        """See `Link`. Of one that leads to no primary any more there is none to tell."""
        [info] = replies_to(self, [("INFO", "replication")])
        try:
            self.confirm()
        except Broken as error:
            self.close()
            raise down(error) from error
        text = info.decode() if isinstance(info, bytes) else str(info)
        found = dict(re.findall(r"(master_replid2?):(\w+)", text))
        name = found.get("master_replid")
        return {"": History(name, found.get("master_replid2", ""))} if name else {}

    def confirm(self) -> None:
        """Its connection leads to the primary still, as far as anybody knows; else redis-py's ConnectionError."""
        if self._connection is not None and not self._leads(self._connection):
            raise Broken("another is the primary by now")

    def renew(self) -> None:
        """See `Link`."""
        self._old = True

    def close(self) -> None:
        """See `Link`."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
        self._closed()

    def _connected(self) -> Connection:
        if self._old:
            self.close()
        if self._connection is None:
            self._old = False
            connection = self._make()
            self._connection = connection
            connection.connect()
            predecessor = self._predecessor
            kill: list[Command] = (
                [("CLIENT", "KILL", "ID", predecessor[0], "ADDR", predecessor[1])] if predecessor else []
            )
            info, *_ = self._exchange(connection, [("CLIENT", "INFO"), *kill, *loads()])
            self._predecessor = _identity(info)
            self.confirm()  # it may have answered long after it was asked
        return self._connection

    def _exchange(self, connection: Connection, commands: Sequence[Command]) -> list[Reply]:
        connection.send_packed_command([pack(commands)], check_health=False)
        return [_reply(connection) for _ in commands]


class Primaries:
    """The primaries of a Redis Cluster, as they were when its slots were last asked for."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._slots: Slots | None = None
        self._asked = target.addresses()
        """Who is asked for the slots; last, who did not answer of late."""

    @property
    def known(self) -> bool:
        """Whether nobody need be asked."""
        return self._slots is not None

    def learn(self) -> Slots:
        """As the first node says that answers, if nobody has said it yet. LinkDown."""
        if self._slots is None:
            self._slots = self._ask()
        return self._slots

    def forget(self) -> None:
        """What was said holds no longer."""
        self._slots = None

    def lost(self, address: Address) -> None:
        """This one can't be reached: a replica may have its slots by now."""
        self._slots = None
        self._ask_last(address)

    def of(self, commands: Sequence[Command]) -> dict[Address, list[int]]:
        """To which primary each of the commands goes. LinkDown."""
        groups: dict[Address, list[int]] = {}
        for address, indices in self.split(commands).items():
            if address is None:
                self._slots = None
                raise LinkDown(f"no node has the slot of {key_of(commands[indices[0]])}")
            groups[address] = indices
        return groups

    def split(self, commands: Sequence[Command]) -> dict[Address | None, list[int]]:
        """The same; under None those of which no primary has the slot. LinkDown."""
        slots = self.learn()
        groups: dict[Address | None, list[int]] = {}
        for index, command in enumerate(commands):
            groups.setdefault(slots.primary_of(key_of(command)), []).append(index)
        return groups

    def link_to(self, address: Address) -> "DirectLink":
        """A link to this one."""
        return DirectLink(lambda: self._target.connection(address))

    def _ask(self) -> Slots:
        for address in list(self._asked):
            try:
                slots = ask_slots(self._target, address)
            except (RedisError, OSError) as error:
                self._ask_last(address)
                failure = error
            else:
                self._asked += [other for other in slots.primaries if other not in self._asked]
                return slots
        raise down(failure) from failure

    def _ask_last(self, address: Address) -> None:
        self._asked = [*(other for other in self._asked if other != address), address]


class ClusterLink:
    """One connection to each primary of a Redis Cluster; a batch is split by slot."""

    def __init__(self, target: Target) -> None:
        self.primaries = Primaries(target)
        self._links: dict[Address, DirectLink] = {}

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """See `Link`. Redirections come back as error replies and are not followed."""
        replies: list[Reply] = [None] * len(commands)
        for address, indices in self.primaries.of(commands).items():
            if address not in self._links:
                self._links[address] = self.primaries.link_to(address)
            try:
                answers = self._links[address].exchange([commands[i] for i in indices])
            except LinkDown:
                self.primaries.lost(address)
                raise
            for index, reply in zip(indices, answers, strict=True):
                replies[index] = reply
        return replies

    def split(self, commands: Sequence[Command]) -> Iterable[Sequence[int]]:
        """See `Link`."""
        return self.primaries.split(commands).values()

    def prepare(self) -> None:
        """See `Link`."""
        self.primaries.forget()
        for link in self._links.values():
            with suppress(LinkDown):
                link.prepare()

    def histories(self, key: str | None = None) -> Mapping[str, History]:
        """See `Link`. One that is not used would hold up the others if it does not answer."""
        if key is not None:
            [address] = self.primaries.of([("EXISTS", key)])
            return self._histories(address)
        found: dict[str, History] = {}
        for address in self.primaries.learn().primaries if self.primaries.known else []:
            with suppress(LinkDown):
                found |= self._histories(address)
        return found

    def _histories(self, address: Address) -> Mapping[str, History]:
        link = self._links.get(address)
        return {str(address): history for history in link.histories().values()} if link is not None else {}

    def renew(self) -> None:
        """See `Link`. The nodes of a cluster tell each other at once who is a primary, and then refuse."""

    def close(self) -> None:
        """See `Link`."""
        for link in self._links.values():
            link.close()
        self.primaries.forget()


def key_of(command: Command) -> object:
    """The first key of a command, which says where it goes."""
    match command[0]:
        case "EVALSHA":
            return command[3]
        case "XREADGROUP":
            return command[-2]
        case _:
            return command[1]


def _reply(connection: Connection) -> Reply:
    try:
        return connection.read_response()
    except BusyLoadingError:
        raise
    except ResponseError as error:
        return error


def loads() -> list[Command]:
    """What loads the functions."""
    return [("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values()]


def _identity(info: Reply) -> tuple[str, str] | None:
    """The id and the address of this connection, as Redis sees it; None if it may not be asked."""
    text = info.decode() if isinstance(info, bytes) else str(info)
    found = re.search(r"\bid=(\d+) addr=(\S+)", text)
    return (found[1], found[2]) if found else None
