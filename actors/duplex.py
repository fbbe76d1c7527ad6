"""What edges call that have one channel for everything: serves a client there by way of the door, as if it had posted
each message, and listened on a GET stream.

The legacy session that it opens ends with the channel, and so does everything that is under way. A stream whose
connection the session lets go of (a slow reader, a session that moves) is asked for again after its last event, so that
nothing is missing and nothing comes twice. Nothing waits here but what one message of each stream takes.

While nothing is said there is one task, which waits for the client. It answers what it has read by itself; a second one
reads only when something comes meanwhile, and one brings the session's stream only while there is something to bring.
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final, assert_never

import trio

from actors.cluster.channels import counted
from actors.cluster.followed import HeldStream
from actors.gate import AFFINITY_HEADER, EVENT_HEADER, SESSION_HEADER, VERSION_HEADER
from actors.machines import duplex as dx
from actors.ports import (
    Answer,
    Channel,
    Delete,
    Door,
    EventSource,
    Get,
    HungUp,
    Post,
    Principal,
    Reply,
    Rights,
    Streaming,
    TooLong,
)
from actors.protocol import errors
from actors.protocol.errors import encode_error_body
from actors.protocol.sse import SseDecoder
from actors.protocol.table import Limits
from actors.protocol.versions import LATEST_HANDSHAKE
from actors.runtime.places import Turns

AGAIN: Final = 0.5
"""Seconds before a stream is asked for again that was refused for now."""
END_WITHIN: Final = 3.0
"""Seconds for the end of a session whose channel has ended."""
GONE: Final = 404
"""The status of what is said to a session that is no more."""


class Duplex:
    """Implements the port `Converse`."""

    def __init__(self, door: Door, limits: Limits) -> None:
        self.door = door
        self.limits = limits
        self.stopping = False
        self.held = 0
        """Bytes of large messages that are under way."""
        self._connections: set[_Connection] = set()

    @property
    def open(self) -> int:
        """The clients that are served."""
        return len(self._connections)

    def stop(self) -> None:
        """From here on each client is served until nothing of it is under way."""
        self.stopping = True
        for connection in self._connections:
            connection.end_if_told()

    async def __call__(self, channel: Channel, endpoint: str, principal: Principal) -> None:
        connection = _Connection(self, channel, endpoint, principal)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            with trio.move_on_after(END_WITHIN, shield=True):
                await connection.end()


class _Connection:
    def __init__(self, shared: Duplex, channel: Channel, endpoint: str, principal: Principal) -> None:
        limits = shared.limits
        self._shared, self._door, self._limits = shared, shared.door, limits
        self._channel = channel
        self._endpoint = endpoint
        self._principal = principal
        self._rights = channel.rights
        self._conversation = dx.Conversation(limits.requests_per_session, limits.message_bytes)
        # Where nobody says who he is, the connection is all that is known of the client.
        self._affinity = {AFFINITY_HEADER: secrets.token_hex(8)} if principal.anonymous else {}
        self._scopes: dict[object, trio.CancelScope] = {}
        self._reading = Turns()
        """Whose turn it is to take a message, up to where the next one may be looked at."""
        self._unsettled: dx.Exchange | None = None
        """What is not in its session's mailbox yet: whose order with what comes next is open."""
        self._changed = trio.lowlevel.ParkingLot()
        """An exchange has ended, or is settled."""
        self._listening = False
        self._bringing = False
        """A task brings the session's stream."""
        self._news: EventSource | None = None
        """That stream, and its last event that was brought."""
        self._place: str | None = None
        self._anew = False
        """It is to be asked for with other rights."""
        self._hearing: trio.CancelScope | None = None
        """Around the wait for it."""
        self._nursery: trio.Nursery | None = None
        self._over = False
        """Nothing more is said of what is under way: each of it has an error."""

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.end_if_told()
                self._channel.listen(self._called)
                while await self._next():
                    pass
        finally:
            self._nursery = None
            news, self._news = self._news, None
            if news is not None:
                news.close()

    def _start(self, task: Callable[[], Awaitable[object]]) -> None:
        if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
            self._nursery.start_soon(task)

    def _stop(self) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _has(self, rights: Rights) -> None:
        """Its client comes with these rights: with others than before it listens anew."""
        others = rights != self._rights and rights.digest != self._rights.digest
        self._rights = rights
        if others and self._listening:
            self._anew = True
            if self._hearing is not None:
                self._hearing.cancel()
            self._ready()

    async def end(self) -> None:
        """The session ends with its connection, and so does what is kept for a client whom it alone tells apart."""
        for word in self._affinity.values():
            self._door.client_gone(word)
        if self._conversation.session is not None:
            await self._door.delete(Delete(self._endpoint, self._principal, self._headers(), self._rights))

    def end_if_told(self) -> None:
        """Where all are to end: as soon as nothing is under way."""
        if self._shared.stopping and not self._conversation.running:
            self._stop()

    # What the client says

    def _called(self) -> None:
        """Something came, or may come, and perhaps nobody waits for it."""
        if self._unread:
            self._start(self._follow)

    @property
    def _unread(self) -> bool:
        return self._channel.waiting and not self._reading.taken

    async def _follow(self) -> None:
        while self._unread and await self._next():
            pass

    async def _next(self) -> bool:
        """Takes one message, and does what it says; whether there may be more."""
        try:
            async with self._reading:
                body = await self._channel.receive()
                if self._unsettled is not None:
                    with trio.move_on_after(self._limits.admission):
                        while self._unsettled is not None:
                            await self._changed.park()
                asked = None if body is None else await self._take(body)
        except HungUp:
            self._stop()
            return False
        if body is None:
            await self._finish()
            return False
        if asked is not None:
            self._unsettled = asked
            self._called()  # what came with it, or in the meantime, was announced while this one read
            assert not isinstance(body, TooLong)
            await self._ask(asked, body)
        return True

    async def _finish(self) -> None:
        """The client has said all: what is under way is answered still."""
        with trio.move_on_after(self._limits.drain_deadline) as patience:
            while self._conversation.awaited:
                await self._changed.park()
        if patience.cancelled_caught:
            self._over = True
            with trio.move_on_after(END_WITHIN, shield=True), suppress(HungUp):
                for told in self._conversation.give_up():  # in turn: behind what goes out, which is not cut
                    await self._channel.send(told)
                while self._conversation.saying:
                    await self._changed.park()
        self._stop()

    async def _take(self, body: bytes | TooLong) -> dx.Exchange | None:
        """What is to be asked while others read on; all else is done here."""
        self._has(self._channel.rights)
        if isinstance(body, TooLong):
            await self._send(encode_error_body(errors.too_large(self._limits.message_bytes), body.request))
            return None
        step = self._conversation.take(body)
        match step:
            case dx.Requested(exchange, opens):
                if self._shared.held + counted(body) > self._limits.bodies_bytes:
                    self._conversation.over(exchange)
                    full = errors.overloaded("no room for a message of this size")
                    for told in dx.refused(full, exchange, body).answers:
                        await self._send(told)
                elif opens:  # what follows belongs to its session
                    await self._ask(exchange, body)
                else:
                    return exchange
            case dx.Delivered(answered, confirms):
                answer = await self._post(body)
                if isinstance(answer, Streaming):
                    await self._relay(answer.source)
                else:
                    if answered and answer.body:
                        await self._send(dx.one_line(answer.body))
                    self._look(answer)
                    if confirms and answer.status < 300 and not self._listening:
                        self._listening = self._bringing = True
                        self._start(self._listen)
            case dx.Withdrawn(id):
                if not self._conversation.running[id].saying:  # else as soon as that is out: half of it is no message
                    self._scopes[id].cancel()
            case dx.Refused(answers):
                for told in answers:
                    await self._send(told)
            case _:
                assert_never(step)
        return None

    def _settled(self, exchange: dx.Exchange) -> None:
        """It is in its session's mailbox, or goes nowhere."""
        if self._unsettled is exchange:
            self._unsettled = None
            self._changed.unpark_all()

    async def _ask(self, exchange: dx.Exchange, body: bytes) -> None:
        """A request, or those of a batch, up to the last answer."""
        size = counted(body)
        self._shared.held += size
        try:
            if exchange.modern:  # its cancellation ends it here
                with trio.CancelScope() as scope:
                    self._scopes.update(dict.fromkeys(exchange.ids, scope))
                    await self._answer(exchange, body)
            else:
                await self._answer(exchange, body)
        finally:
            self._settled(exchange)
            self._shared.held -= size
            self._conversation.over(exchange)
            for id in exchange.ids:
                self._scopes.pop(id, None)
            if self._changed:
                self._changed.unpark_all()
            self.end_if_told()

    async def _answer(self, exchange: dx.Exchange, body: bytes) -> None:
        await self._bring(await self._post(body, exchange), exchange)
        for error in exchange.errors_for_pending():
            await self._send(error, exchange)

    async def _post(self, body: bytes, exchange: dx.Exchange | None = None) -> Reply:
        headers = self._affinity | self._headers()
        reply = await self._door.post(
            Post(
                self._endpoint,
                self._principal,
                headers,
                body,
                False,
                self._rights,
                transport="channel",
                peer=self._channel.peer,
                begun=partial(self._settled, exchange) if exchange is not None else None,
                frame=exchange.frame if exchange is not None else None,
            )
        )
        for name, value in reply.headers:
            if name == SESSION_HEADER:
                self._conversation.session = value
        return reply

    def _headers(self) -> dict[str, str]:
        session = self._conversation.session
        return {} if session is None else {SESSION_HEADER: session}

    # What is said to it

    async def _bring(self, reply: Reply, exchange: dx.Exchange) -> None:
        """The answers, however often the connection that brings them has to be made anew."""
        if isinstance(reply, Answer):
            if reply.body:
                refusal = reply.status >= HTTPStatus.BAD_REQUEST
                goes_out = self._conversation.refusing if refusal else self._conversation.whole
                for message in goes_out(exchange, reply.body):
                    await self._send(message, exchange)
            if not exchange.modern:
                self._look(reply)
            return
        place = await self._relay(reply.source, exchange)
        while exchange.pending and place is not None and not exchange.modern:
            await trio.sleep(AGAIN)
            again = await self._get(place)
            if isinstance(again, Streaming):
                place = await self._relay(again.source, exchange) or place
            elif not again.passing:
                return

    def _ready(self) -> None:
        """There is something to bring."""
        if not self._bringing and self._news is not None:
            self._bringing = True
            self._start(self._listen)

    async def _listen(self) -> None:
        """Brings what belongs to no request, as long as the session lasts; a stream that calls when there is something
        is not waited for."""
        while True:
            if self._news is None:
                await self._open_news()
            if self._news is not None and await self._bring_news(self._news):
                self._bringing = False
                return
            await trio.sleep(AGAIN)

    async def _open_news(self) -> None:
        self._anew = False
        reply = await self._get(self._place)
        if isinstance(reply, Streaming):
            self._news = reply.source
        elif not reply.passing:
            self._look(reply)
            self._place = None

    async def _bring_news(self, source: EventSource) -> bool:
        """Brings what is there, up to the end of the stream, or until it rests."""
        decoder = SseDecoder(2 * self._limits.message_bytes)
        while self._anew or not (isinstance(source, HeldStream) and source.rests(self._ready)):
            chunk = await self._hear(source)
            if chunk is None:
                self._news = None
                source.close()
                return False
            for event in decoder.feed(chunk):
                if event.data:
                    await self._send(dx.one_line(event.data))
                self._place = event.id or self._place
        return True

    async def _get(self, place: str | None) -> Reply:
        # The client comes back whatever its own revision says of that.
        headers = self._headers() | {VERSION_HEADER: LATEST_HANDSHAKE}
        if place is not None:
            headers[EVENT_HEADER] = place
        return await self._door.get(Get(self._endpoint, self._principal, headers, self._rights))

    async def _hear(self, source: EventSource) -> bytes | None:
        """More of what belongs to no request; None also where it is to be asked for with other rights."""
        if self._anew:
            return None
        try:
            with trio.CancelScope() as self._hearing:
                return await source.receive()
        finally:
            self._hearing = None
        return None

    async def _relay(self, source: EventSource, exchange: dx.Exchange | None = None) -> str | None:
        """Brings a stream to its end; the id of its last event."""
        decoder = SseDecoder(2 * self._limits.message_bytes)
        place = None
        try:
            while (chunk := await source.receive()) is not None:
                for event in decoder.feed(chunk):
                    if event.data and exchange is not None:
                        for message in self._conversation.outgoing(exchange, event.data):
                            await self._send(message, exchange)
                    elif event.data:
                        await self._send(dx.one_line(event.data))
                    place = event.id or place
        finally:
            source.close()
        return place

    async def _send(self, message: bytes, exchange: dx.Exchange | None = None) -> None:
        if self._over:
            return
        if exchange is not None:
            exchange.saying = True
        try:
            await self._channel.send(message)
        except HungUp:
            self._stop()
            await trio.lowlevel.checkpoint()
        if exchange is not None:
            exchange.saying = False
            if exchange.modern and exchange.withdrawn:
                self._scopes[exchange.ids[0]].cancel()

    def _look(self, answer: Answer) -> None:
        """A session that is no more is the end of its connection."""
        if answer.status == GONE and self._conversation.session is not None:
            self._stop()
