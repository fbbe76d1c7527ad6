"""`Shelf` in Redis: one hash for each value, changed by one function, so that what is decided there is decided once."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import trio

from actors.ports import Done, Failed, Shelved
from gateway.store.redis.links import Command, Reply
from gateway.store.redis.operations import OVERHEAD, Operation, Query, Submits, ms
from gateway.store.redis.scripts import SHA

NAMES: Final = "sd:names"
"""A hash whose fields are the names."""

Value = TypeVar("Value")


class RedisShelf:
    """See `Shelf`. What waits for Redis is given up with whoever waits for it; a value that was to be put there may
    still be."""

    def __init__(self, writer: Submits) -> None:
        self._writer = writer

    async def read(self, key: str, *, keep: float = 0.0) -> Shelved | Failed | None:
        return await self._ask(key, _shelved, "read", *((ms(keep),) if keep else ()))

    async def put(self, key: str, value: bytes, seconds: float, *, instead: str | None = None) -> str | Failed:
        tag = secrets.token_hex(8)
        expected = ("any", "") if instead is None else ("tag", instead)
        args = (value, tag, ms(seconds), *expected)
        outcome = await self._ask(key, lambda _: tag, "put", *args, size=OVERHEAD + len(value))
        if isinstance(outcome, Failed) and instead is not None:
            # It may be the second attempt of one that was made: then it is our own tag that stands there.
            there = await self.read(key)
            if isinstance(there, Shelved) and there.tag == tag:
                return tag
        return outcome

    async def take(self, key: str) -> Shelved | Failed | None:
        return await self._ask(key, _shelved, "take")

    async def lock(self, key: str, who: str, seconds: float) -> bool | Failed:
        outcome = await self._ask(key, lambda _: True, "lock", who, ms(seconds))
        return False if isinstance(outcome, Failed) and outcome.reason.value == "fenced" else outcome

    async def unlock(self, key: str, who: str) -> None:
        await self._ask(key, lambda _: None, "unlock", who)

    async def names(self) -> Sequence[str] | Failed:
        def read(reply: list[Any]) -> Sequence[str]:
            return [name.decode() for name in reply]

        found: Sequence[str] | Failed = await self._wait(
            lambda done: Query(NAMES, ("HKEYS", NAMES), done, read, waits=False, when_full=True)
        )
        return found

    async def name(self, name: str, *, there: bool) -> None:
        command: Command = ("HSET", NAMES, name, "") if there else ("HDEL", NAMES, name)
        await self._wait(lambda done: _Plain(NAMES, command, done, when_full=not there))

    async def _ask(
        self, key: str, decode: Callable[[list[Any]], Value], what: str, *args: bytes | str | int, size: int = OVERHEAD
    ) -> Value | Failed:
        command: Command = ("EVALSHA", SHA["shelf"], 1, f"sd:s:{key}", what, *args)
        full = what not in ("put", "lock")
        outcome: Value | Failed = await self._wait(
            lambda done: Operation(key, command, done, decode, size, when_full=full)
        )
        return outcome

    async def _wait(self, make: Callable[[Done], Operation]) -> Any:
        answered = trio.Event()
        outcomes: list[Any] = []

        def done(outcome: Any) -> None:
            outcomes.append(outcome)
            answered.set()

        self._writer.submit(make(done))
        await answered.wait()
        return outcomes[0]


class _Plain(Operation):
    """A command whose reply says nothing."""

    def outcome(self, reply: Reply) -> Any:
        return super().outcome(reply if isinstance(reply, Exception) else [b"OK"])


def _shelved(reply: list[Any]) -> Shelved | None:
    return Shelved(reply[1], reply[2].decode()) if len(reply) > 1 else None
