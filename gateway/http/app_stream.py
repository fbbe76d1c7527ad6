"""hypercorn's HTTPStream, which speaks ASGI to the app, with a JSON-RPC error where the app crashed without a word."""

from hypercorn.protocol.events import Body, EndBody, Response
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.utils import suppress_body

from gateway.http.response import refusal


class AppStream(HTTPStream):
    """One request and its answer."""

    async def _send_error_response(self, status_code: int) -> None:
        body = refusal(status_code, "Internal error").body
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await self.send(Response(stream_id=self.stream_id, headers=headers, status_code=status_code))
        if not suppress_body(self.scope["method"], status_code):
            await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED
