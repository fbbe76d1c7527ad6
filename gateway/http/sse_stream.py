"""The one writer of an event stream: takes events from their source, keeps the connection alive, closes the source.

It waits in two places. In the source, up to the next keep-alive comment; a wait that is given up there loses no event.
And in `send`, which the connection bounds (a client that reads nothing for `write` seconds is cut). The end of the
connection cancels it, wherever it waits.
"""

import trio

from actors.ports import Streaming
from gateway.http.response import Header, Send, encoded

COMMENT = b":\n\n"
"""A comment: no event to a parser, but bytes to a proxy and to the kernel."""

FIRST_EVENT = 0.01
"""An event that comes within these seconds leaves together with the head; else a comment takes the head out."""

EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
"""The headers of every event stream."""


async def send_stream(send: Send, reply: Streaming, keep_alive: float, extra: tuple[Header, ...] = ()) -> None:
    """Writes the stream to its end. `keep_alive` is in seconds."""
    source = reply.source
    try:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *encoded(reply.headers), *extra]}
        )
        patience = FIRST_EVENT
        while True:
            data: bytes | None = COMMENT
            with trio.move_on_after(patience):
                data = await source.receive()
            patience = keep_alive
            if data is None:
                break
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        source.close()
