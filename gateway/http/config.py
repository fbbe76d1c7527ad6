"""Every bound of the HTTP listeners, in one frozen value."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypercorn.config import Config

from actors.protocol.table import Limits
from gateway.wire.http1_server import RequestLimits


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Times in seconds, sizes in bytes."""

    tls: ssl.SSLContext | None = None
    """By `sockets.tls_context`; None serves plain HTTP."""
    handshake: float = 10.0
    """A TLS handshake that takes longer is given up."""
    head: float = 10.0
    """From the first byte of a request to the end of its head; then 408."""
    body: float = 60.0
    """From the end of the head to the end of the body; then 408."""
    keep_alive: float = 75.0
    """A connection without a request for this long is closed."""
    write: float = 30.0
    """A client that takes nothing for this long is cut, or less than 64 KiB while more waits for it."""
    half_close: float = 0.25
    """A client that ends its side while we work may still get an answer that is ready within this time."""
    linger: float = 2.0
    """After a last response, how long to go on reading, so that a client which still sends can read the answer."""
    lingered: int = 16 * 1024 * 1024
    """And how much of it to drop."""
    idle_grace: Callable[[], float] = float
    """Says from `stop` on for how long connections without a request stay open: each gets the answer to a request that
    is on its way, and is told to close with it."""
    stop: float = 8.0
    """From then to the end of the last connection, whatever it does."""
    connections: int = 25_000
    """Open connections; a further one gets 503."""
    requests_per_connection: int = 100_000
    """Then the connection closes, so that load balancers can spread the clients anew."""
    pipelined: int = 64 * 1024
    """Bytes kept of later requests while one is being answered; then the connection is not read."""
    discarded: int = 256 * 1024
    """The largest rest of a body that is read and dropped when it was answered early; else the connection closes."""
    whole: bool = True
    """Whether a POST that came in one read goes to the app by the short way."""
    message: int = 4 * 1024 * 1024
    """A message on a WebSocket."""
    request: RequestLimits = field(default_factory=RequestLimits)

    @classmethod
    def within(cls, limits: Limits, tls: ssl.SSLContext | None = None, connections: int = 25_000) -> "ServeConfig":
        """The bounds that follow from the gateway's. (Chunked framing may double a message.)"""
        request = RequestLimits(body=2 * limits.message_bytes + 64 * 1024)
        stop = limits.drain_deadline
        message = limits.message_bytes
        return cls(message=message, tls=tls, write=limits.write, stop=stop, connections=connections, request=request)


class _Silent:
    """hypercorn's access log, off: it costs a quarter of a request even when it writes nowhere."""

    async def access(self, request: Any, response: Any, request_time: float) -> None:
        return


class EdgeConfig(Config):
    """The part of our settings that hypercorn's own classes read."""

    def __init__(self, serve: ServeConfig) -> None:
        self.serve = serve
        self.silent = _Silent()

    @property
    def log(self) -> Any:
        return self.silent
