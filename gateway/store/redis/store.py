"""`Store` in Redis: the port's calls on the loop's side, and the life of the threads behind them."""

import os
import secrets
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from actors.machines.session.record import READS
from actors.ports import (
    NO_DELTAS,
    ClusterListener,
    Deltas,
    Done,
    Failed,
    Grant,
    Head,
    Incarnation,
    Log,
    Record,
    Refused,
    Replay,
    SessionKey,
)
from actors.protocol.table import Limits
from actors.runtime.boundary import boundary, thread_boundary
from actors.runtime.exits import Exit
from gateway.store.redis.buckets import RedisBuckets
from gateway.store.redis.checks import check, explain
from gateway.store.redis.clock import boottime
from gateway.store.redis.directory import Directory, Post
from gateway.store.redis.errors import LinkDown, StoreKeysDiffer, StoreLoading
from gateway.store.redis.inbox import Inbox
from gateway.store.redis.keys import owned_key
from gateway.store.redis.links import ClusterLink, Link, open_link
from gateway.store.redis.lists import RedisLists
from gateway.store.redis.lists import read as read_lists
from gateway.store.redis.loop_links import open_loop_link
from gateway.store.redis.mail import Mail
from gateway.store.redis.operations import Operation, Operations, due, due_at, record_key
from gateway.store.redis.reader import Reader
from gateway.store.redis.shelf import RedisShelf
from gateway.store.redis.targets import Target, parse
from gateway.store.redis.writer import State, Writer
from gateway.store.redis.writers import Shards, Writers

CLOSE_WITHIN = 2.0
"""Seconds in which what is queued is still written when the store is closed."""

LOADS_WITHIN = 60.0
"""Seconds that a start waits for a Redis that reads its file."""

LOADS_LOOK = 0.2
"""Seconds between two attempts meanwhile."""

DOWN = 100
"""Dead replicas of which those hear that ask later; the last ones."""

TICK = 0.5
"""Seconds between two signs of life of the loop."""


class RedisStore:
    """See `Store`. Made by `open_redis_store`."""

    durable = True

    def __init__(
        self,
        writer: Writers,
        readers: Sequence[Reader],
        directory: Directory,
        inbox: Inbox,
        limits: Limits,
        lists: RedisLists,
    ) -> None:
        self.lists = lists
        self.shelf = RedisShelf(writer)
        self.buckets = RedisBuckets(writer)
        self.owner = self.incarnation = directory.lease.incarnation
        self._writer = writer
        self._readers = readers
        self.directory = directory
        self._operations = Operations(limits, lambda: self.schema)
        self._mail = Mail(writer, self.owner)
        self._inbox = inbox
        self._listeners: list[ClusterListener] = []
        self._down: dict[Incarnation, None] = {}
        self.term = 0
        """See `Cluster`."""
        directory.on_renamed = self._renamed
        directory.on_doubt = writer.doubt
        directory.on_certain = self._certain
        directory.on_loss = self._lost
        directory.on_down = self._found_down
        inbox.on_letters = self._received

    @property
    def state(self) -> State:
        """Whether Redis does its work, is away, or is full."""
        return self._writer.state

    @property
    def queued(self) -> int:
        """Bytes that wait for Redis."""
        return self._writer.queued

    def inbox_depth(self) -> int:
        """Letters of other replicas that wait to be read."""
        return self._inbox.depth

    def lease_age(self) -> float:
        """Seconds since the lease was last renewed."""
        return self.directory.lease.age()

    # The other replicas

    @property
    def doubtful(self) -> bool:
        return self.directory.lease.doubtful

    @property
    def schema(self) -> int:
        return self.directory.schema

    def now(self) -> float:
        return self.directory.lease.now()

    def subscribe(self, listener: ClusterListener) -> None:
        self._listeners.append(listener)
        for incarnation in self._down:
            listener.on_down(incarnation)
        self._inbox.open()

    def post(self, to: Incarnation, letter: bytes, done: Done) -> None:
        self._mail.post(to, letter, done)

    def withdraw(self, to: Incarnation, entry: str, done: Done) -> None:
        self._mail.withdraw(to, entry, done)

    def alive(self, incarnation: Incarnation, done: Done) -> None:
        if incarnation == self.incarnation:
            done(True)
        elif self.directory.mine(incarnation):
            done(False)
        else:
            self.directory.ask(incarnation, lambda alive: done(Failed(Refused.AWAY) if alive is None else alive))

    def replicas(self, done: Done) -> None:
        self.directory.replicas(done)

    def owned(self, incarnation: Incarnation, cursor: int, done: Done) -> None:
        self.directory.owned(incarnation, cursor, done)

    def disown(self, incarnation: Incarnation, keys: Sequence[SessionKey]) -> None:
        self.directory.disown(incarnation, keys)

    # Records

    def create(self, key: SessionKey, fields: Mapping[str, bytes], done: Done) -> None:
        creation = self._operations.create(
            key, self.owner, secrets.token_hex(8), fields, partial(_created, self.term, done)
        )
        self._writer.submit_after(self._owned_by(self.owner, "SADD", key), creation)

    def read(self, key: SessionKey, done: Done) -> None:
        self._writer.submit(self._operations.read(key, done))

    def claim(
        self,
        key: SessionKey,
        expect_owner: str | None,
        expect_epoch: int,
        nonce: str,
        done: Done,
        *,
        lives: bool = False,
    ) -> None:
        def judged(alive: bool | None) -> None:
            if alive is None:
                done(Failed(Refused.AWAY, "whether the owner lives can't be asked"))
            elif alive:
                done(Failed(Refused.FENCED, "the owner is alive"))
            else:
                expected, claimed = (expect_owner, expect_epoch), partial(self._claimed, key, self.term, done)
                claim = self._operations.claim(key, self.owner, expected, nonce, claimed, lives=lives)
                self._writer.submit_after(self._owned_by(self.owner, "SADD", key), claim)

        if expect_owner is None or self.directory.mine(expect_owner):
            judged(False)
        else:
            self.directory.ask(expect_owner, judged, to_claim=True)

    def save(self, key: SessionKey, grant: Grant, rev: int, deltas: Deltas, done: Done) -> None:
        self._writer.submit(self._operations.save(key, grant, rev, deltas, done))

    def touch(self, key: SessionKey, grant: Grant, done: Done) -> None:
        self._writer.submit(self._operations.touch(key, grant, done))

    def release(self, key: SessionKey, grant: Grant, done: Done, *, work: bool = False) -> None:
        # With work it stays among what this incarnation owns: that is where the others look for it.
        released = done if work else partial(self._given_up, key, done)
        self._writer.submit(self._operations.release(key, grant, released))

    def end(self, key: SessionKey, grant: Grant, reason: str, done: Done) -> None:
        self._writer.submit(self._operations.end(key, grant, reason, partial(self._given_up, key, done)))

    def delete(self, key: SessionKey, grant: Grant, done: Done) -> None:
        self._writer.submit(self._operations.delete(key, grant, partial(self._given_up, key, done)))

    # Logs

    def open(
        self, key: SessionKey, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None, done: Done
    ) -> None:
        self._writer.submit(self._operations.open(key, grant, stream, requests, first, done))

    def append(
        self,
        key: SessionKey,
        grant: Grant,
        stream: str,
        seq: int,
        data: Sequence[bytes],
        done: Done,
        *,
        finish: bool = False,
        deltas: Deltas = NO_DELTAS,
    ) -> None:
        operation = self._operations.append(key, grant, stream, seq, data, done, finish=finish, deltas=deltas)
        self._writer.submit(operation)

    def written(self, key: SessionKey, grant: Grant, stream: str) -> None:
        self._writer.submit(self._operations.written(key, grant, stream, _ignore))

    def trim(self, key: SessionKey, grant: Grant, stream: str, seq: int, done: Done) -> None:
        self._writer.submit(self._operations.trim(key, grant, stream, seq, done))

    def drop(self, key: SessionKey, grant: Grant, stream: str, done: Done) -> None:
        self._writer.submit(self._operations.drop(key, grant, stream, done))

    # After a loss

    def restore(self, key: SessionKey, grant: Grant, rev: int, record: Record, done: Done) -> None:
        self._note_owned("SADD", key)
        self._writer.submit(self._operations.restore(key, grant, rev, record, done))

    def mend(self, key: SessionKey, grant: Grant, stream: str, head: int, done: Done, *, opener: int = 0) -> None:
        self._writer.submit(self._operations.mend(key, grant, stream, head, opener, done))

    def heads(self, streams: Sequence[tuple[SessionKey, str]], done: Done) -> None:
        outcomes: dict[int, Head | Failed | None] = {}

        def came(place: int, outcome: Head | Failed | None) -> None:
            outcomes[place] = outcome
            if len(outcomes) == len(streams):
                done([outcomes[n] for n in range(len(streams))])

        for place, (key, stream) in enumerate(streams):
            self._writer.submit(self._operations.head(key, stream, partial(came, place)))
        if not streams:
            done([])

    async def replay(
        self, key: SessionKey, stream: str, after_epoch: int, after_seq: int, limit: int
    ) -> Replay | Failed:
        reader = self._readers[self._writer.shards.of(record_key(key))]
        return await reader.replay(key, stream, after_epoch, after_seq, limit)

    # Sessions that nobody has in memory

    def due_at(self, key: SessionKey, time: float | None) -> None:
        self._writer.submit(due_at(key, time))

    def due(self, part: int, before: float, done: Done) -> None:
        self._writer.submit(due(part, before, done))

    def _note_owned(self, command: str, key: SessionKey) -> None:
        self._writer.submit(self._owned_by(self.owner, command, key))

    @staticmethod
    def _owned_by(owner: Incarnation, command: str, key: SessionKey) -> Operation:
        # Before a create or claim, after a release, end or delete: the set may name too many sessions, never too few.
        return Operation(key, (command, owned_key(owner), key), _ignore, when_full=command == "SREM")

    def _claimed(self, key: SessionKey, term: int, done: Done, outcome: Any) -> None:
        if _is_nobodys(outcome):
            self._note_owned("SREM", key)
        done(outcome if isinstance(outcome, Failed) else (replace(outcome[0], term=term), outcome[1]))

    def _given_up(self, key: SessionKey, done: Done, outcome: Any) -> None:
        # A record that was never saved is forgotten by Redis in the very minute in which its session ends.
        if outcome is None or _is_nobodys(outcome):
            self._note_owned("SREM", key)
        done(outcome)

    def _renamed(self, former: Incarnation, now: Incarnation) -> None:
        self.owner = self.incarnation = now
        self.term += 1
        self._renew()
        for listener in self._listeners:
            listener.on_renamed(former, now)

    def _received(self, letters: Sequence[bytes]) -> None:
        for listener in self._listeners:
            listener.on_mail(letters)

    def _lost(self) -> None:
        self.term += 1
        self._renew()
        for listener in self._listeners:
            listener.on_loss()

    def _renew(self) -> None:
        """Another may be the primary by now."""
        self._writer.renew()
        self._inbox.renew()
        for reader in self._readers:
            reader.renew()

    def _certain(self) -> None:
        for listener in self._listeners:
            listener.on_certain()

    def _found_down(self, incarnation: Incarnation) -> None:
        self._down[incarnation] = None
        if len(self._down) > DOWN:
            del self._down[next(iter(self._down))]
        for listener in self._listeners:
            listener.on_down(incarnation)


def _created(term: int, done: Done, outcome: Grant | Failed) -> None:
    done(outcome if isinstance(outcome, Failed) else replace(outcome, term=term))


def _ignore(outcome: Any) -> None:
    pass


def _is_nobodys(outcome: Any) -> bool:
    """Whether the session has no owner any more, this process included."""
    return isinstance(outcome, Failed) and outcome.reason in (Refused.GONE, Refused.ENDED)


@asynccontextmanager
async def open_redis_store(
    url: str,
    limits: Limits,
    *,
    log: Log,
    on_lost: Callable[[str], None],
    hold: float = 10.0,
    queue_bytes: int = 64 * 1024 * 1024,
    info: Mapping[str, Any] | None = None,
    seals: Sequence[str] = (),
    on_batch: Callable[[int, float], None] = lambda operations, seconds: None,
) -> AsyncGenerator[RedisStore, None]:
    """The store at this URL (`targets`), checked; this process is one of its replicas until the block ends.

    `hold`: seconds for which writes wait while Redis is away. `queue_bytes`: the most that waits. `info`: what the
    other replicas are told of this one, beside host and process. `seals`: the fingerprints of the sealing keys, the one
    that seals first; all replicas must have the one that another seals with. `on_lost(reason)`: a thread crashed, and
    this process must end. `on_batch(operations, seconds)`: of each group commit. Raises StoreError for the operator.
    """
    target = parse(url)
    token = trio.lowlevel.current_trio_token()

    def post(fn: Callable[[], object]) -> None:
        # After the loop nobody waits any more.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(fn)

    with closing(open_link(target)) as link, closing(open_link(target)) as beats:
        await _loaded(target, log, partial(trio.to_thread.run_sync, check, target, link, log, abandon_on_cancel=True))
        told = {"schema": READS, "host": socket.gethostname(), "pid": os.getpid(), **(info or {})}
        directory = Directory(link, beats, post, told)
        await _loaded(target, log, partial(trio.to_thread.run_sync, _begin, directory, seals, target, log))
        known = await trio.to_thread.run_sync(read_lists, link, abandon_on_cancel=True)
        shards = await trio.to_thread.run_sync(_shards, target, link, abandon_on_cancel=True)

        def tell_state(state: State, why: str, seconds: float) -> None:
            if state == "ok":
                log.info("store_back", store=target.shown, seconds=round(seconds, 1))
            else:
                log.error("store_away", store=target.shown, state=state, error=why)

        def writer(probe: str, room: int) -> Writer:
            return Writer(
                open_loop_link(target),
                hold=hold,
                queue_bytes=room,
                on_batch=on_batch,
                on_error=lambda text: log.error("store_error", store=target.shown, error=text),
                on_state=tell_state,
                probe=probe,
            )

        writers = Writers(shards, queue_bytes, writer)
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(Reader(open_link(target)))) for _ in writers.all]
            inbox = Inbox(open_loop_link(target), lambda: directory.lease.incarnation)
            async with _running(writers, directory, inbox, post, on_lost):
                yield RedisStore(writers, readers, directory, inbox, limits, RedisLists(writers, known))


async def _loaded(target: Target, log: Log, attempt: Callable[[], Awaitable[None]]) -> None:
    """Tries it until Redis has read its file; StoreLoading if that takes too long."""
    until, told = trio.current_time() + LOADS_WITHIN, False
    while True:
        try:
            return await attempt()
        except StoreLoading as loading:
            if trio.current_time() >= until:
                raise
            if not told:
                log.warning("store_loading", store=target.shown, reason=str(loading), waits=LOADS_WITHIN)
                told = True
        await trio.sleep(LOADS_LOOK)


@asynccontextmanager
async def _running(
    writers: Writers, directory: Directory, inbox: Inbox, post: Post, on_lost: Callable[[str], None]
) -> AsyncGenerator[None, None]:
    """Runs what serves the store; at the end what came is handed over and what is queued is written, then the lease is
    given up. What comes later stays in the inbox, where its senders can withdraw it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tick, directory)
        writing = [_Task("writer", writer.run, on_lost) for writer in writers.all]
        reading = _Task("inbox", inbox.run, on_lost)
        looking = _thread("directory", directory.run, post, on_lost)
        leasing = _thread("lease", directory.lease.run, post, on_lost)
        try:
            yield
        finally:
            inbox.stop()
            with trio.move_on_after(CLOSE_WITHIN, shield=True):
                await reading.ended.wait()  # what came last is answered
            reading.scope.cancel()
            writers.close(CLOSE_WITHIN)
            with trio.move_on_after(2 * CLOSE_WITHIN, shield=True):
                for task in writing:
                    await task.ended.wait()
                directory.stop()
                await looking.wait()
                directory.lease.stop()
                await leasing.wait()
            directory.stop()
            directory.lease.stop()
            for task in writing:
                task.scope.cancel()
            nursery.cancel_scope.cancel()


class _Task:
    """A task that no cancellation reaches but that of its own scope: what those say who are cancelled is written, and
    what they are told they hear. Its crash is told, since nothing can go on without it."""

    def __init__(self, name: str, body: Callable[[], Awaitable[None]], on_lost: Callable[[str], None]) -> None:
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self._name = name
        self._body = body
        self._on_lost = on_lost
        trio.lowlevel.spawn_system_task(self._run)

    async def _run(self) -> None:
        with self.scope:
            await boundary(self._body, on_exit=self._over)

    def _over(self, reason: Exit) -> None:
        self.ended.set()
        if reason.abnormal:
            self._on_lost(f"the store's {self._name} task crashed: {reason}")


def _thread(name: str, body: Callable[[], None], post: Post, on_lost: Callable[[str], None]) -> trio.Event:
    """Starts a thread; the event says that it is over. Its crash is told, since nothing can go on without it."""
    ended = trio.Event()

    def over(reason: Exit) -> None:
        ended.set()
        if reason.abnormal:
            on_lost(f"the store's {name} thread crashed: {reason}")

    # A daemon: a name lookup or a connection that hangs must not keep the process from ending.
    threading.Thread(
        target=thread_boundary,
        args=(body,),
        kwargs={"on_exit": lambda reason: post(lambda: over(reason))},
        name=f"store-{name}",
        daemon=True,
    ).start()
    return ended


def _shards(target: Target, link: Link) -> Shards:
    """How its primaries share the keys."""
    try:
        return Shards(link.primaries.learn()) if isinstance(link, ClusterLink) else Shards()
    except LinkDown as error:
        raise explain(target, error) from error


def _begin(directory: Directory, seals: Sequence[str], target: Target, log: Log) -> None:
    """Joins the others."""
    try:
        if not directory.begin(seals):
            log.warning("sealing_keys_changed", store=target.shown, lost="what was sealed before can't be opened")
    except LinkDown as error:
        raise explain(target, error) from error
    except StoreKeysDiffer as other:
        raise StoreKeysDiffer(
            f"{target.shown}: another replica seals with other keys than this one: {other}. Give all replicas the same "
            "gateway.keys; to change them, first add the new key as second everywhere, then make it the first."
        ) from other


async def _tick(directory: Directory) -> None:
    """Shows that the loop runs; the lease is renewed for as long as it does."""
    while True:
        directory.lease.ticked = boottime()
        await trio.sleep(TICK)
