"""The floor: the barest proxy that could be called one, and so the unit in which the gateway's cost is stated.

It parses HTTP, decodes the JSON-RPC envelope, gives the request an id of its own, sends it to the backend on a kept
connection, and puts the client's id back into the answer. No sessions of its own, no streams that survive, no limits,
no metrics. `python -m loadtest.floor --port PORT --backend PORT`
"""

from __future__ import annotations

import argparse
import gc
import itertools

import msgspec
import trio

from loadtest.wire import Address, ClientConnection, Pool, Request, ServerConnection, serve

FORWARDED = (
    b"content-type",
    b"accept",
    b"mcp-session-id",
    b"mcp-protocol-version",
    b"last-event-id",
    b"mcp-method",
    b"mcp-name",
)
RETURNED = (b"content-type", b"mcp-session-id")
NOTHING = msgspec.Raw(b"")


class Envelope(msgspec.Struct, omit_defaults=True):
    """A JSON-RPC message of which only the id is looked at."""

    jsonrpc: str
    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


decode = msgspec.json.Decoder(Envelope).decode
encode = msgspec.json.Encoder().encode


def lines(headers: dict[bytes, bytes], names: tuple[bytes, ...]) -> bytes:
    return b"".join([b"%b: %b\r\n" % (name, headers[name]) for name in names if name in headers])


def with_id(answer: bytes, client_id: int | str | None) -> bytes:
    """The answer under the client's id; a notification or request of the server stays as it is."""
    envelope = decode(answer)
    if envelope.id is None or envelope.method is not None:
        return answer
    envelope.id = client_id
    return encode(envelope)


class Floor:
    """The proxy, with its connections to one backend."""

    def __init__(self, backend: Address) -> None:
        self._backend = backend
        self._pool = Pool(backend)
        self._ids = itertools.count(1)

    async def handle(self, connection: ServerConnection) -> None:
        while (request := await connection.next_request()) is not None:
            upstream = await self._pool.take()
            await self._forward(request, connection, upstream)
            self._pool.put(upstream)

    async def _forward(self, request: Request, connection: ServerConnection, upstream: ClientConnection) -> None:
        client_id, body = None, request.body
        if body:
            envelope = decode(body)
            client_id = envelope.id
            if client_id is not None and envelope.method is not None:
                envelope.id = next(self._ids)
                body = encode(envelope)
        status = await upstream.request(request.method, self._backend.path, lines(request.headers, FORWARDED), body)
        extra = lines(upstream.headers, RETURNED)
        if upstream.headers.get(b"content-type") == b"text/event-stream":
            await connection.start_events()
            while data := await upstream.piece():
                await connection.piece(
                    b"data: %b\n\n" % with_id(data[6:], client_id)
                )  # the backend's pieces are events
            await connection.piece(b"")
            return
        answer = await upstream.body()
        await connection.answer(b"%d OK" % status, with_id(answer, client_id) if answer else answer, extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", type=int, required=True, help="port of the backend")
    options = parser.parse_args()
    gc.set_threshold(200_000, 50, 1000)
    trio.run(serve, options.port, Floor(Address(options.backend)).handle)


if __name__ == "__main__":
    main()
