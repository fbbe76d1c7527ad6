"""The GET stream of one session with a backend (2025-11-25, basic/transports), kept open over breaks.

Such streams are as many as sessions, and hardly anything is said on most of them: there is a task while something comes
or is awaited, and none while the stream rests.
"""

from collections.abc import Callable
from typing import Final

import trio

from actors.ports import EventsMissed, FrameReceived, Listening, Log, Positioned, SessionLost, TransportEvent
from actors.protocol.sse import SseDecoder
from actors.runtime.boundary import Boundary
from gateway.backends.http_call import Endpoint
from gateway.wire.errors import PeerError, SizeError, WireError
from gateway.wire.http_events import STEADY, EventTrail, take_events
from gateway.wire.http_rules import PASSING, Kind, kind_of
from gateway.wire.http_session import HttpSession
from gateway.wire.pool import Response

QUIET: Final = 1.0
"""Seconds without a word after which a stream rests: to be woken costs more than to wait."""


class Listener:
    """`run` is started whenever it is `due`, which is cleared then, and which `wake` tells."""

    __slots__ = (
        "_began",
        "_decoder",
        "_end",
        "_heard",
        "_log",
        "_opened",
        "_response",
        "_scope",
        "_session",
        "_stopped",
        "_trail",
        "_wake",
        "due",
    )

    def __init__(
        self, end: Endpoint, session: HttpSession, trail: EventTrail, log: Log, wake: Callable[[], object]
    ) -> None:
        self._end = end
        self._session = session
        self._trail = trail
        self._log = log
        self._wake = wake
        self._scope: trio.CancelScope | None = None
        """Of `run`."""
        self._response: Response | None = None
        """The stream, while it is open."""
        self._decoder: SseDecoder | None = None
        self._began = 0.0
        """When it was opened."""
        self._heard = False
        """Whether it was said that the stream is open, or is not to be had."""
        self._opened = False
        """Whether it was ever open."""
        self._stopped = False
        self.due = True

    def stop(self) -> None:
        """Gives the stream up. Nothing more is said of it."""
        self._stopped, self.due = True, False
        if self._scope is not None:
            self._scope.cancel()
        else:
            self._close()

    async def run(self) -> None:
        """Listens until nothing more comes for now, or there is no stream to be had."""
        try:
            with trio.CancelScope() as self._scope:
                again = not self._stopped
                while again:
                    again = await self._listen()
        finally:
            self._scope = None
            if self._stopped:
                self._close()

    def _close(self) -> None:
        response, self._response = self._response, None
        self._decoder = None
        if response is not None:
            response.close()

    def _emit(self, event: TransportEvent) -> None:
        if not self._stopped:
            self._end.emit(event)

    async def _listen(self) -> bool:
        """Whether to go on, the wait before which is over then."""
        again = True
        with Boundary() as inside:
            if self._response is None:
                again = await self._open()
            if self._response is not None and await self._read(self._response):
                return False
        error = inside.exit.error
        if error is not None:
            self._log.error("backend_exchange_crashed", backend=self._end.name, what="stream", exc_info=error)
            self._miss()
        self._close()
        if again:
            await trio.sleep(self._trail.wait())
        return again

    async def _open(self) -> bool:
        """Asks for the stream; whether one is to be had, now or later."""
        end = self._end
        # The connection of the handshake is there already, and calls wait for this stream.
        end.streams.take_idle_of(end.calls, end.url)
        try:
            response = await end.ask("GET", self._session.get_headers(self._trail.last_id), stream=True)
        except WireError as error:
            self._log.debug("backend_stream_failed", backend=end.name, why=error.detail)
            self._hears()
            return True
        if kind_of(response.status, response.header(b"content-type")) is not Kind.EVENTS:
            with response:
                again = self._refused(response.status)
            end.calls.take_idle_of(end.streams, end.url)  # calls have use for it
            return again
        self._response, self._decoder = response, SseDecoder(end.limits.message_bytes)
        self._began = trio.current_time()
        if self._heard and not self._opened and self._trail.last_id is None:
            self._miss()  # calls did not wait for it to be there after all
        self._opened = True
        self._hears()
        return True

    def _refused(self, status: int) -> bool:
        if status == 404 and self._session.id is not None:
            self._emit(SessionLost(None))
            return False
        if self._trail.last_id is not None and 400 <= status < 500 and status not in PASSING:
            self._miss()  # it no longer has that event
            return True  # what is said from here on comes on the next one
        self._hears()
        again = status in PASSING or (status >= 500 and status != 501)
        level = self._log.debug if again or status == 405 else self._log.warning
        level("backend_stream_refused", backend=self._end.name, status=status, again=again)
        return again

    def _hears(self) -> None:
        if not self._heard:
            self._heard = True
            self._emit(Listening())

    async def _read(self, response: Response) -> bool:
        """Takes what comes until nothing does for a while; whether the stream rests then, else it has ended."""
        assert self._decoder is not None
        try:
            while True:
                with trio.move_on_after(QUIET) as waited:
                    chunk = await response.receive_some()
                if waited.cancelled_caught:
                    if response.rest(self._woken):
                        return True
                elif chunk:
                    await take_events(chunk, self._decoder, self._trail, self._take, self._moved)
                else:
                    break
        except PeerError:
            pass
        except SizeError as error:
            # To go on after it would be to meet it again.
            self._miss()
            self._log.warning("backend_stream_failed", backend=self._end.name, why=str(error))
            return False
        if trio.current_time() - self._began >= STEADY:
            self._trail.failures = 0
        return False

    def _woken(self) -> None:
        self.due = True
        self._wake()

    def _take(self, frame: bytes) -> bool:
        self._emit(FrameReceived(frame, None, self._trail.last_id))
        return False

    def _moved(self) -> None:
        self._emit(Positioned(None, self._trail.last_id))

    def _miss(self) -> None:
        """What comes from now on is heard again; of what came meanwhile nobody knows."""
        self._trail.last_id = None
        self._emit(EventsMissed())
