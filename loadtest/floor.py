"""The floor: the barest proxy that could be called one, and so the unit in which the gateway's cost is stated.

It parses HTTP, decodes the JSON-RPC envelope, gives the request an id of its own, sends it to the backend on a kept
connection, and puts the client's id back into the answer. No sessions of its own, no streams that survive, no limits,
no metrics. `python -m loadtest.floor --port PORT --backend PORT`

With `--bytes` it is less than that: a forwarder of bytes, which looks at nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools

import msgspec
import trio

from loadtest.wire import READ, Address, ClientConnection, Pool, Request, ServerConnection, serve

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
            rest = b""
            while data := await upstream.piece():
                *whole, rest = (rest + data).split(b"\n\n")
                for event in whole:
                    await connection.piece(b"data: %b\n\n" % with_id(event[6:], client_id))
            await connection.piece(b"")
            return
        answer = await upstream.body()
        await connection.answer(b"%d OK" % status, with_id(answer, client_id) if answer else answer, extra)


class Forwarder:
    """For each connection another one to the backend, and bytes from one to the other until either ends."""

    def __init__(self, backend: Address) -> None:
        self._port = backend.port

    async def handle(self, connection: ServerConnection) -> None:
        upstream = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, connection.stream, upstream, nursery.cancel_scope)
            nursery.start_soon(self._copy, upstream, connection.stream, nursery.cancel_scope)
        upstream.socket.close()

    @staticmethod
    async def _copy(source: trio.SocketStream, to: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(READ):
                await to.send_all(data)
        except (OSError, trio.BrokenResourceError):
            pass  # whoever it was broke off
        scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", action="store_true", help="forward bytes and look at nothing")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", type=int, required=True, help="port of the backend")
    options = parser.parse_args()
    gc.set_threshold(200_000, 50, 1000)
    proxy = Forwarder if options.bytes else Floor
    trio.run(serve, options.port, proxy(Address(options.backend)).handle)


if __name__ == "__main__":
    main()
