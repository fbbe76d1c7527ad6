"""What brings the events of one stream to the process that holds its client's connection: mail, or an outbox here.

Both say the same, in letters: who listens need not know where the session is.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from actors import ports
from actors.cluster.letters import Attached, Events, Head, Opened, Released
from actors.ports import Incarnation, SessionKey
from actors.streams.connection import Connection
from actors.streams.follower import Follower

News: TypeAlias = Events | Head | Released

MUCH = 256
"""Events written that the owner is told of at once: it may need their room in the log."""
EARLY = 64
"""Letters that wait for who listens; what is lost of them is in the log."""


class Listener(Protocol):
    """Who listens to a feed. Nothing here waits, or raises: it may run inside anybody's turn."""

    def told(self, news: News) -> None:
        """News of the stream, each once, in the order of the mail."""

    def check(self) -> bool:
        """It is called every 10 s. Whether the head is to be asked for."""

    def head_said(self, head: ports.Head) -> None:
        """How far the stream is, by the store."""

    def let_go(self, retry: int) -> None:
        """This process ends soon: a client that can come back elsewhere is asked to, in so many milliseconds."""


def told_of(connection: Connection, index: int) -> list[News]:
    """What is in an outbox, as letters from number `index` on."""
    taken = connection.take()
    news: list[News] = []
    if taken.data or (taken.ended and not taken.finished and not connection.lost):
        news.append(Events(index, taken.epoch, taken.first, taken.last, taken.data, taken.ended, taken.finished))
    elif taken.finished:
        news.append(Head(index, taken.last, finished=True))
    if connection.lost:
        # Not said in the events: what is in them is good, and the reader goes on.
        news = [Events(n.index, n.epoch, n.first, n.last, n.data) for n in news if isinstance(n, Events)]
        news.append(Released())
    return news


class MailFeed:
    """A stream of a session that another process owns. Made by the mailer, which tells it what comes; `closed` is
    called when nobody listens any more, and `wrote` when much was written."""

    def __init__(
        self,
        key: SessionKey,
        owner: Incarnation,
        answer: Opened | Attached,
        closed: Callable[[int], object],
        wrote: Callable[[], object],
    ) -> None:
        self.key = key
        self.owner = owner
        self.stream = answer.stream
        self.recorded = answer.recorded if isinstance(answer, Opened) else True
        self.cursor = (answer.epoch, 0) if isinstance(answer, Opened) else (answer.epoch, answer.seq)
        self.head = 0 if isinstance(answer, Opened) else answer.head
        self.live = isinstance(answer, Opened) or answer.live
        self.marks = () if isinstance(answer, Opened) else answer.marks
        """As in `Streaming`."""
        self.listener: Listener | None = None
        self.seq = self.reported = 0
        """Up to which event everything was written, and the owner knows of it."""
        self._closed = closed
        self._wrote = wrote
        self._early: list[News] = []
        self._index = 0

    def listen(self, listener: Listener) -> None:
        """From now on; what came before is told at once."""
        self.listener = listener
        early, self._early = self._early, []
        for news in early:
            listener.told(news)

    def tell(self, news: News) -> None:
        """News of the stream; what is doubled, or came too late, is dropped."""
        if not isinstance(news, Released):
            if news.index <= self._index:
                return
            self._index = news.index
        if self.listener is not None:
            self.listener.told(news)
        elif len(self._early) < EARLY or isinstance(news, Released):
            self._early.append(news)

    def written(self, seq: int) -> None:
        """Everything up to this event was written."""
        self.seq = seq
        if seq - self.reported >= MUCH:
            self._wrote()

    def close(self, seq: int) -> None:
        """Nobody listens any more; everything up to this event was written."""
        self.listener = None
        self._closed(seq)


class OutboxFeed:
    """A stream of a session in this process, after the cursor that it was attached with."""

    def __init__(self, follower: Follower, cursor: tuple[int, int]) -> None:
        self.stream = follower.stream
        self.recorded = True
        self.cursor = cursor
        self.head = follower.head
        self.live = follower.connection is not None
        self._connection = follower.connection
        self._index = 0

    def listen(self, listener: Listener) -> None:
        """From now on; what came before is told at once."""
        connection = self._connection
        if connection is None:
            return
        connection.written = max(connection.written, self.cursor[1])

        def ready() -> None:
            self._index += 1
            for news in told_of(connection, self._index):
                listener.told(news)

        connection.listen(ready)

    def written(self, seq: int) -> None:
        """Everything up to this event was written."""
        if self._connection is not None and seq > self._connection.written:
            self._connection.written = seq

    def close(self, seq: int) -> None:
        """Nobody listens any more; everything up to this event was written."""
        if self._connection is not None:
            self.written(seq)
            self._connection.close(whole=seq >= self._connection.take().last)


Feed: TypeAlias = MailFeed | OutboxFeed
