"""What edges call that have one channel for everything: serves a client there by way of the door, as if it had posted
each message, and listened on a GET stream.

The legacy session that it opens ends with the channel, and so does everything that is under way. A stream whose
connection the session lets go of (a slow reader, a session that moves) is asked for again after its last event, so that
nothing is missing and nothing comes twice. Nothing waits here but what one message of each stream takes.
"""

import secrets
from http import HTTPStatus
from typing import Final, assert_never

import trio

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

AGAIN: Final = 0.5
"""Seconds before a stream is asked for again that was refused for now."""
END_WITHIN: Final = 3.0
"""Seconds for the end of a session whose channel has ended."""
LARGE: Final = 16 * 1024
"""Bytes of a message from which on it counts: nearly every one is smaller, and must not suffer from large ones."""
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
        self._writing = trio.Lock()
        self._changed = trio.lowlevel.ParkingLot()
        """An exchange has ended."""
        self._listening = False
        self._hearing: trio.CancelScope | None = None
        """Around the wait for what belongs to no request."""
        self._scope: trio.CancelScope

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            self.end_if_told()
            try:
                while (body := await self._channel.receive()) is not None:
                    self._has(self._channel.rights)
                    if isinstance(body, TooLong):
                        await self._send(encode_error_body(errors.too_large(self._limits.message_bytes)))
                    else:
                        await self._take(body, nursery)
            except HungUp:
                self._scope.cancel()
            with trio.move_on_after(self._limits.drain_deadline):
                while self._conversation.awaited:
                    await self._changed.park()
            self._scope.cancel()

    def _has(self, rights: Rights) -> None:
        """Its client comes with these rights: with others than before it listens anew."""
        others = rights != self._rights and rights.digest != self._rights.digest
        self._rights = rights
        if others and self._hearing is not None:
            self._hearing.cancel()

    async def end(self) -> None:
        """The session ends with its connection, and so does what is kept for a client whom it alone tells apart."""
        for word in self._affinity.values():
            self._door.client_gone(word)
        if self._conversation.session is not None:
            await self._door.delete(Delete(self._endpoint, self._principal, self._headers(), self._rights))

    def end_if_told(self) -> None:
        """Where all are to end: as soon as nothing is under way."""
        if self._shared.stopping and not self._conversation.running:
            self._scope.cancel()

    # What the client says

    async def _take(self, body: bytes, nursery: trio.Nursery) -> None:
        step = self._conversation.take(body)
        match step:
            case dx.Asked(exchange, opens):
                size = len(body) if len(body) > LARGE else 0
                if self._shared.held + size > self._limits.bodies_bytes:
                    self._conversation.over(exchange)
                    full = errors.overloaded("no room for a message of this size")
                    for told in dx.refused(full, exchange, body).answers:
                        await self._send(told)
                elif opens:  # what follows belongs to its session
                    await self._ask(exchange, body, size, trio.Event())
                else:
                    begun = trio.Event()
                    nursery.start_soon(self._ask, exchange, body, size, begun)
                    with trio.move_on_after(self._limits.admission):
                        await begun.wait()  # it is in the session's mailbox before the next message is looked at
            case dx.Told(answered, confirms):
                answer = await self._post(body)
                if isinstance(answer, Streaming):
                    await self._relay(answer.source)
                else:
                    if answered and answer.body:
                        await self._send(dx.one_line(answer.body))
                    self._look(answer)
                    if confirms and answer.status < 300 and not self._listening:
                        self._listening = True
                        nursery.start_soon(self._listen)
            case dx.Withdrawn(id):
                self._scopes[id].cancel()
            case dx.Refused(answers):
                for told in answers:
                    await self._send(told)
            case _:
                assert_never(step)

    async def _ask(self, exchange: dx.Exchange, body: bytes, size: int, begun: trio.Event) -> None:
        """A request, or those of a batch, up to the last answer."""
        self._shared.held += size
        try:
            with trio.CancelScope() as scope:
                self._scopes.update(dict.fromkeys(exchange.ids, scope))
                await self._bring(await self._post(body, begun), exchange)
                for owed in exchange.owed():
                    await self._send(owed)
        finally:
            begun.set()
            self._shared.held -= size
            self._conversation.over(exchange)
            for id in exchange.ids:
                self._scopes.pop(id, None)
            self._changed.unpark_all()
            self.end_if_told()

    async def _post(self, body: bytes, begun: trio.Event | None = None) -> Reply:
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
                begun=begun.set if begun is not None else None,
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
                await self._send_all(exchange, reply.body, refusal=reply.status >= HTTPStatus.BAD_REQUEST)
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

    async def _listen(self) -> None:
        """Brings what belongs to no request, as long as the session lasts."""
        place: str | None = None
        while True:
            reply = await self._get(place)
            if isinstance(reply, Streaming):
                place = await self._relay(reply.source, listens=True) or place
            elif reply.passing:
                await trio.sleep(AGAIN)
            else:
                self._look(reply)
                place = None
            await trio.sleep(AGAIN)

    async def _get(self, place: str | None) -> Reply:
        # The client comes back whatever its own revision says of that.
        headers = self._headers() | {VERSION_HEADER: LATEST_HANDSHAKE}
        if place is not None:
            headers[EVENT_HEADER] = place
        return await self._door.get(Get(self._endpoint, self._principal, headers, self._rights))

    async def _hear(self, source: EventSource) -> bytes | None:
        """More of what belongs to no request; None also where it is to be asked for with other rights."""
        with trio.CancelScope() as self._hearing:
            return await source.receive()
        return None

    async def _relay(
        self, source: EventSource, exchange: dx.Exchange | None = None, *, listens: bool = False
    ) -> str | None:
        """Brings a stream to its end; the id of its last event."""
        decoder = SseDecoder(2 * self._limits.message_bytes)
        place = None
        try:
            while (chunk := await (self._hear(source) if listens else source.receive())) is not None:
                for event in decoder.feed(chunk):
                    if event.data and exchange is not None:
                        await self._send_all(exchange, event.data)
                    elif event.data:
                        await self._send(dx.one_line(event.data))
                    place = event.id or place
        finally:
            source.close()
        return place

    async def _send_all(self, exchange: dx.Exchange, data: bytes, *, refusal: bool = False) -> None:
        goes_out = self._conversation.refusing if refusal else self._conversation.outgoing
        for message in goes_out(exchange, data):
            await self._send(message)

    async def _send(self, message: bytes) -> None:
        try:
            async with self._writing:
                await self._channel.send(message)
        except HungUp:
            self._scope.cancel()
            await trio.lowlevel.checkpoint()

    def _look(self, answer: Answer) -> None:
        """A session that is no more is the end of its connection."""
        if answer.status == GONE and self._conversation.session is not None:
            self._scope.cancel()
