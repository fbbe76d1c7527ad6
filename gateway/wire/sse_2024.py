"""HTTP+SSE (2024-11-05, basic/transports): a GET opens a stream whose first event names the endpoint for messages. By
that a server is known which refuses `initialize` at the same URL (2025-11-25, basic/transports, "Backwards
Compatibility")."""

from typing import Final
from urllib.parse import urljoin

import trio

from actors.protocol.sse import SseDecoder, SseTooLargeError
from gateway.wire.errors import WireError
from gateway.wire.http_rules import Kind, kind_of
from gateway.wire.pool import Pool
from gateway.wire.url import SOCKET, Origin, Url, parse_url

ON_SOCKET: Final = "/sse"
"""Where the stream is on a Unix domain socket."""
ENDPOINT_BYTES: Final = 8192
"""Of what is named as the endpoint."""
WITHIN: Final = 3.0
"""Seconds for the first event."""
EVENT_BYTES: Final = 65536
"""Of it."""
_NOT_ASKED: Final = frozenset({401, 403, 407, 408, 425, 429})
"""Refusals of whoever asks, or of the moment: they say nothing of the transport."""


def may_be_sse(status: int, *, read: bool) -> bool:
    """Whether the first request was refused as a server refuses it that takes no POST there. With an error of JSON-RPC
    (`read`) it is by one that has read it, unless the status says otherwise."""
    if not 400 <= status < 500 or status in _NOT_ASKED:
        return False
    return not read or status in (404, 405)


async def speaks_sse(streams: Pool, url: Url, headers: bytes) -> bool:
    """Opens a stream and closes it after the first event."""
    try:
        with trio.move_on_after(WITHIN):
            with await streams.request("GET", url, headers) as response:
                if kind_of(response.status, response.header(b"content-type")) is not Kind.EVENTS:
                    return False
                decoder = SseDecoder(EVENT_BYTES)
                while chunk := await response.receive_some():
                    for event in decoder.feed(chunk):
                        return event.event == "endpoint"
    except (WireError, SseTooLargeError):
        pass
    return False


def endpoint_of(base: Url, named: bytes) -> Url:
    """Where messages go. ValueError for anything but a place of the same origin."""
    if len(named) > ENDPOINT_BYTES:
        raise ValueError(f"of more than {ENDPOINT_BYTES} bytes")
    origin = base.origin
    if origin.scheme == SOCKET:  # no other host is there, and it is called so
        origin = Origin("http", origin.authority, 80)
    url = parse_url(urljoin(f"{origin}{base.target}", named.decode().strip()))
    if url.origin != origin:
        raise ValueError("of another origin")
    return Url(base.origin, url.target)
