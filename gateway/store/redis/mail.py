"""The sender's side of mail: what goes into other replicas' inboxes, with the writer's group commit."""

from functools import lru_cache
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from actors.ports import Done, Failed, Incarnation, Refused
from gateway.store.redis.clock import boottime
from gateway.store.redis.keys import alive_key, inbox_key, large_key, seen_key, withdrawn_key
from gateway.store.redis.operations import OVERHEAD, Operation, Submits
from gateway.store.redis.scripts import SHA
from gateway.store.rules import INBOX

LARGE: Final = 64 * 1024
"""Bytes of a letter above which it lies beside the inbox."""

LARGE_MOST: Final = 64
"""Large letters for one inbox: at 4 MiB each as much as 4,096 of the others."""

LARGE_TTL: Final = 60_000
SEEN_TTL: Final = 120_000
WITHDRAWN_TTL: Final = 60_000
"""Milliseconds for which a large letter waits to be read, the last letter of a sender is known (without a heartbeat),
and it is known what was withdrawn."""

UNSENT: Final = (Refused.AWAY, Refused.FULL, Refused.STORE_FULL)

LATE: Final = SEEN_TTL / 2000
"""Seconds after which Redis may have forgotten that it has seen a letter: an inbox that refuses it then says nothing of
an earlier try. (So long a process may have been stopped.)"""


class Mail:
    """Posts and withdraws. Letters to one receiver keep their order, and are numbered: a number that Redis has seen is
    not put into an inbox again, so a batch can be sent twice."""

    def __init__(self, writer: Submits, sender: Incarnation) -> None:
        self._writer = writer
        self._sender = sender
        # One count for all receivers and all names of this process: none ever sees a number twice.
        self._numbers = count(1)

    def post(self, to: Incarnation, letter: bytes, done: Done) -> None:
        """See `Cluster.post`."""
        keys = _keys_of(to)
        args = (self._sender, next(self._numbers), INBOX, SEEN_TTL, letter)
        more = (LARGE_MOST, LARGE_TTL) if len(letter) > LARGE else ()
        began = boottime()

        def posted(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                if outcome.reason in UNSENT and not operation.tried:
                    outcome = replace(outcome, reason=Refused.INBOX_FULL)
                elif outcome.reason not in UNSENT and boottime() - began > LATE:
                    outcome = replace(outcome, reason=Refused.AWAY)
            done(outcome)

        command = ("EVALSHA", SHA["post"], len(keys), *keys, *args, *more)
        operation = Operation(to, command, posted, _entry, OVERHEAD + len(letter), optional=True, hint=True)
        self._writer.submit(operation)

    def withdraw(self, to: Incarnation, entry: str, done: Done) -> None:
        """See `Cluster.withdraw`."""
        keys = (inbox_key(to), large_key(to), withdrawn_key(to))
        command = ("EVALSHA", SHA["withdraw"], len(keys), *keys, entry, WITHDRAWN_TTL)
        self._writer.submit(Operation(to, command, done, _unread, when_full=True))


@lru_cache(maxsize=256)
def _keys_of(to: Incarnation) -> tuple[str, str, str, str]:
    """What a post to a replica needs."""
    return alive_key(to), inbox_key(to), seen_key(to), large_key(to)


def _entry(reply: list[Any]) -> str:
    return str(reply[1].decode())


def _unread(reply: list[Any]) -> bool:
    return bool(reply[1])
