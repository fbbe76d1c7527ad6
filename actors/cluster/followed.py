"""Streams for a client's connection that stay with it when the session moves: whoever owns it, and whatever is lost of
the mail, event *n + 1* is written after event *n*.

The rule is the machine's (`machines/cluster/follow.py`); here are its effects. What waits (the log, the search for the
session) is done in the task of the connection, when that asks for more.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, assert_never

import trio

from actors import ports
from actors.cluster.feeds import Feed, News
from actors.cluster.letters import Events, Head, Released
from actors.machines.cluster import follow as fl
from actors.ports import UNAVAILABLE, Failed, Refused, SessionKey
from actors.protocol import codec, errors, sse
from actors.protocol.messages import RequestId
from actors.services import Services
from actors.streams.connection import Connection
from actors.streams.follower import PAGE, Follower, answered_in, with_gap
from actors.streams.recorder import kind_of

PATIENCE = 10.0
"""Seconds in which the session must be found again, or its log be read; then the connection ends."""

Search: TypeAlias = Callable[[str, int, int], Awaitable[Feed | bool]]
"""Finds the session, claims it if need be, and attaches to the stream after (epoch, seq); else whether it may be found
later."""

Todo: TypeAlias = fl.ReadLog | fl.Reattach | fl.StartRetryClock
"""What waits, or takes its time, and is done by the task that reads."""


class Unanswered:
    """The requests of a POST whose outcome its connection has not brought yet."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Iterable[RequestId] = ()) -> None:
        self._ids = dict.fromkeys(ids)

    def brought(self, chunk: bytes) -> None:
        """These events go out. (The outcome of an only request is the last one.)"""
        if len(self._ids) > 1:
            for id in answered_in(chunk):
                self._ids.pop(id, None)

    def words(self, before: Iterable[bytes]) -> bytes:
        """The last events for a client that can't resume, behind these: the owner may have said them itself."""
        for chunk in before:
            for id in answered_in(chunk):
                self._ids.pop(id, None)
        return b"".join(sse.encode_event(codec.encode_error(id, errors.actor_ended()), None) for id in self._ids)


class FollowedStream:
    """An `EventSource` of one stream of a session that another process owns, or may own next."""

    lost = False

    def __init__(
        self,
        services: Services,
        key: SessionKey,
        stream: str,
        search: Search,
        unanswered: Unanswered,
        begun: fl.Step,
        feed: Feed | None = None,
    ) -> None:
        self.stream = stream
        self.gap: dict[str, Any] | None = None
        """What answers say is missing."""
        self.replayed = 0
        """Events that came from the log so far."""
        self.comes_back = False
        """Its client comes back when it is let go."""
        self._services = services
        self._key = key
        self._search = search
        self._unanswered = unanswered
        self._feed: Feed | None = None
        self._frames: list[bytes] = []
        self._bytes = 0
        self._todo: Todo | None = None
        self._trouble: float | None = None
        """Since when what is to be done fails."""
        self._setback: Failed | None = None
        """Why it failed last."""
        self._failed: Failed | None = None
        """Why nothing more can be had."""
        self._unwritten = False
        """Nobody will write what is not in the log."""
        self._wants_head = False
        self._over = False
        self._given = self._written = begun[0].seq
        """Up to which event the reader was given them, and has written them."""
        self._numbered = begun[0].seq > 0
        self._waiter: trio.lowlevel.Task | None = None
        self._follow, effects = begun
        self._run(effects)
        if feed is not None:
            self._use(feed)

    @classmethod
    def of(
        cls, feed: Feed, services: Services, key: SessionKey, search: Search, unanswered: Unanswered
    ) -> "FollowedStream":
        """Follows what a feed brings."""
        begun = fl.begin(*feed.cursor, recorded=feed.recorded, head=feed.head)
        return cls(services, key, feed.stream, search, unanswered, begun, feed)

    @classmethod
    def after(
        cls, source: Connection | Follower, services: Services, key: SessionKey, search: Search, unanswered: Unanswered
    ) -> "FollowedStream":
        """What follows the last event of a source whose owner was lost."""
        recorded = isinstance(source, Follower) or source.recorded
        beginning = (0, 0) if isinstance(source, Follower) else (source.opener, 0)
        follow, effects = fl.begin(*(source.position or beginning), recorded=recorded)
        follow, more = fl.step(follow, fl.OwnerLost())
        return cls(services, key, source.stream, search, unanswered, (follow, [*effects, *more]))

    async def begin(self) -> Failed | None:
        """Reads what the log has; a failure means that nothing can be delivered."""
        while self._todo is not None and not self._frames and not self._pauses:
            await self._do(self._todo)
        failed = self._setback if self._pauses else self._failed
        if failed is not None:
            self.close()
        return failed

    # The reader's side

    async def receive(self) -> bytes | None:
        """The next events; None at the end."""
        if self._given > self._written:
            self._written = self._given
            if self._feed is not None:
                self._feed.written(self._written)
        while True:
            if self._frames:
                return self._take()
            if self._over:
                return None
            if self._todo is not None:
                await self._do(self._todo)
            else:
                self._waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)

    def close(self) -> None:
        """The connection is gone, or it ends."""
        if self._feed is not None:
            feed, self._feed = self._feed, None
            feed.close(self._written)
        self._step(fl.Closed())
        self._over, self._todo = True, None
        self._wake()

    def _take(self) -> bytes:
        chunk = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        self._given = self._follow.seq
        self._unanswered.brought(chunk)
        return chunk if self.gap is None else with_gap(chunk, self.gap)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._waiter is not None:
            task, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(task)

    @property
    def _pauses(self) -> bool:
        return isinstance(self._todo, fl.StartRetryClock)

    async def _do(self, todo: Todo) -> None:
        """One try of what waits. A reader that gives up meanwhile tries it again when it comes back."""
        if isinstance(todo, fl.StartRetryClock):
            await trio.sleep(fl.RETRY)
            if self._todo is todo:
                self._todo = None
                self._step(fl.RetryDue())
        elif isinstance(todo, fl.ReadLog):
            outcome = await self._services.store.replay(self._key, self.stream, todo.epoch, todo.seq, PAGE)
            if self._todo is todo:
                self._todo = None
                self._step(self._page_of(outcome))
        else:
            found = await self._attach(todo)
            if self._todo is todo:
                self._todo = None
                if isinstance(found, bool):
                    self._step(fl.NotAttached(passing=found and self._patient()))
                else:
                    self._trouble = None
                    self._step(fl.Attached(found.head))
                    self._use(found)
            elif not isinstance(found, bool):
                found.close(0)

    async def _attach(self, todo: fl.Reattach) -> Feed | bool:
        left = PATIENCE if self._trouble is None else self._trouble + PATIENCE - trio.current_time()
        with trio.move_on_after(max(left, 0.0)):
            return await self._search(self.stream, todo.epoch, todo.seq)
        return self._patient()

    def _page_of(self, outcome: Any) -> fl.Page | fl.NoPage:
        if isinstance(outcome, Failed):
            self._setback = outcome
            passing = outcome.reason in UNAVAILABLE and self._patient()
            if not passing:
                self._failed = outcome
            return fl.NoPage(passing)
        self._trouble = None
        entries = tuple(fl.Entry(e.epoch, e.seq, e.data) for e in outcome.entries)
        return fl.Page(entries, outcome.head, outcome.finished, outcome.lost)

    def _patient(self) -> bool:
        """Whether what fails may be tried again."""
        if self._trouble is None:
            self._trouble = trio.current_time()
        return trio.current_time() - self._trouble < PATIENCE

    # What comes

    def _use(self, feed: Feed) -> None:
        if feed.live:
            self._feed = feed
            feed.listen(self)
        else:
            self._unwritten = True
            self._step(fl.OwnerLost())

    def told(self, news: News) -> None:
        """News of the stream, by mail or from an outbox here."""
        match news:
            case Events():
                self._events(news)
            case Head(_, last, finished):
                self._step(fl.HeadSaid(0, last, finished))
            case Released():
                self._lose()
            case _:
                assert_never(news)

    def _events(self, news: Events) -> None:
        if not self._follow.recorded:
            if news.data:
                self._step(fl.Frames(0, news.index, news.index, news.data, news.finished))
        elif news.first:
            self._step(fl.Frames(news.epoch, news.first, news.last, news.data, news.finished))
        elif self._follow.phase is fl.Phase.LIVE and not self._over:
            self._put(news.data)  # when to come back, or last words
        if news.ended and not news.finished:
            self._step(fl.Superseded())

    def _lose(self) -> None:
        """The owner is lost."""
        feed, self._feed = self._feed, None
        self._step(fl.OwnerLost())
        if feed is not None:
            feed.close(self._written)

    def check(self) -> bool:
        """Time to look at the head; whether it is to be asked for."""
        self._wants_head = False
        self._step(fl.CheckDue())
        return self._wants_head

    def head_said(self, head: ports.Head) -> None:
        """How far the stream is, by the store."""
        self._step(fl.HeadSaid(head.epoch, head.seq, head.finished, head.floor))

    def let_go(self, retry: int) -> None:
        """This process ends soon: a client that can come back elsewhere is asked to, in so many milliseconds."""
        if self.comes_back and self._numbered and not self._over:
            self._put(sse.encode_retry(retry))
            self._step(fl.Superseded())

    # The machine

    def _step(self, event: fl.FollowEvent) -> None:
        self._follow, effects = fl.step(self._follow, event)
        self._run(effects)

    def _run(self, effects: fl.Effects) -> None:
        for effect in effects:
            match effect:
                case fl.Write(data):
                    self._put(data, counted=True)
                case fl.WriteEntries(entries):
                    self.replayed += len(entries)
                    for entry in entries:
                        self._put(sse.encode_event(entry.data, f"{self.stream}:{entry.epoch}-{entry.seq}"))
                    self._numbered = True
                case fl.Reattach() if self._unwritten:
                    self._step(fl.NotAttached(passing=False))
                case fl.ReadLog() | fl.Reattach() | fl.StartRetryClock():
                    self._todo = effect
                    self._wake()
                case fl.AskHead():
                    self._wants_head = True
                case fl.Gap(after, resumed, known):
                    self._miss(after, resumed, "trimmed" if known else "lost")
                case fl.Finish(whole):
                    self._finish(whole=whole)
                case fl.Detach():
                    self._leave()
                case fl.StartCheckClock() | fl.StopClocks():
                    pass  # whoever made the feed asks it now and then
                case _:
                    assert_never(effect)

    def _put(self, data: bytes, *, counted: bool = False) -> None:
        """Into the outbox. What comes live must find room there; a page of the log is only read for an empty one."""
        limits = self._services.limits
        if counted and self._frames and self._bytes + len(data) > limits.outbox_bytes:
            self._services.telemetry.count("stagedoor_slow_consumers_total", (kind_of(self.stream),))
            self._step(fl.Closed())
            self._over = True
            return
        self._numbered = self._numbered or (counted and self._follow.recorded)
        self._frames.append(data)
        self._bytes += len(data)
        self._wake()

    def _miss(self, after: int, resumed: int | None, reason: str) -> None:
        if resumed is None:
            self._failed = self._failed or Failed(Refused.SEQ, "the stream was lost before its end", after)
        elif self.stream.startswith("p"):
            self.gap = self.gap or {"after": after, "resumed": resumed, "reason": reason}
        elif self._unwritten:
            self._failed = Failed(Refused.GONE, "events were lost, and nobody is left to say so", resumed)
            self._step(fl.Superseded())

    def _finish(self, *, whole: bool) -> None:
        """A client that has an id comes back for what is missing; any other can't, and is told so."""
        if not whole and not self._numbered:
            self._frames.append(self._unanswered.words(self._frames))
        self._over = True
        self._todo = None
        self._wake()

    def _leave(self) -> None:
        if self._feed is not None:
            feed, self._feed = self._feed, None
            feed.close(self._written)


class HeldStream:
    """An `EventSource` of a stream of a session in this process, which follows the session when that moves on."""

    __slots__ = ("_follow", "_several", "_source", "_unanswered")

    def __init__(
        self,
        source: Connection | Follower,
        follow: Callable[[Connection | Follower, Unanswered], FollowedStream],
        unanswered: Sequence[RequestId] = (),
    ) -> None:
        self._source: Connection | Follower | FollowedStream = source
        self._follow = follow
        self._unanswered = Unanswered(unanswered)
        self._several = len(unanswered) > 1

    async def receive(self) -> bytes | None:
        """The next events; None at the end."""
        chunk = await self._source.receive()
        if chunk is None:
            return await self._go_on() if self._source.lost else None
        if self._several:
            self._unanswered.brought(chunk)
        return chunk

    def rests(self, on_ready: Callable[[], object]) -> bool:
        """Whether nothing is there, and nobody need wait for it: this is called when there is something to receive, in
        anybody's turn. (What is read from the log, or comes from another process, needs a reader that waits.)"""
        return type(self._source) is Connection and self._source.rests(on_ready)

    async def _go_on(self) -> bytes | None:
        """The owner was lost."""
        source, self._several = self._source, False
        assert not isinstance(source, FollowedStream)
        self._source = self._follow(source, self._unanswered)
        source.close()
        return await self._source.receive()

    def close(self) -> None:
        """The connection is gone."""
        self._source.close()
