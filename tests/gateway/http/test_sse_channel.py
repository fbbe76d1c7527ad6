"""HTTP+SSE of 2024-11-05 on real sockets: the stream, the POSTs, and what each gets that does not belong."""

import json
import re

import pytest
import trio

from actors.duplex import Duplex
from actors.ports import Answer
from actors.protocol.table import Limits
from gateway.http.security import Security
from tests.gateway.http.conftest import read_all
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend
from tests.support.patience import PATIENCE

CLIENT = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def get(path: str = "/sse", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{more}\r\n".encode()


def post(place: str, body: bytes, more: str = "Content-Type: application/json\r\n") -> bytes:
    head = f"POST {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    def __init__(self, server, stream) -> None:
        self.server, self.stream, self.text, self.place = server, stream, "", ""

    async def until(self, pattern: str) -> str:
        with trio.fail_after(PATIENCE):
            while not (found := re.search(pattern, self.text)):
                data = await self.stream.receive_some()
                assert data, self.text
                self.text += data.decode()
        return found[1]

    async def say(self, message: dict | bytes) -> bytes:
        body = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        return await self.server.ask(post(self.place, body))


async def open_sse(server, path="/sse", more="") -> Client:
    client = Client(server, await server.connect())
    await client.stream.send_all(get(path, more))
    client.place = await client.until(r"event: endpoint\r?\ndata: (\S+)\r?\n")
    return client


@pytest.fixture
def serving(make_app, running):
    """`async with serving() as (gateway, server)`."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def serve(security=None, **limits):
        async with open_gateway(Backend("alpha", tools=("work",), held={"work"})) as gateway:
            bounds = Limits(**limits)
            app = make_app(
                converse=Duplex(gateway.door, bounds),
                post=gateway.actors.channels,
                limits=bounds,
                security=security or Security("127.0.0.1"),
                known=lambda name: name in {"", "alpha"},
            )
            async with running(app) as server:
                yield gateway, server

    return serve


async def test_everything_comes_on_the_stream_and_posts_are_accepted(serving):
    async with serving() as (gateway, server):
        client = await open_sse(server)
        assert (await client.say({"id": 0, "method": "initialize", "params": CLIENT})).startswith(b"HTTP/1.1 202 ")
        assert json.loads(await client.until(r"event: message\r?\ndata: (.*)\r?\n"))["id"] == 0
        await client.say({"method": "notifications/initialized"})
        await client.say({"id": 1, "method": "tools/call", "params": {"name": "alpha__work"}})
        (await gateway.backends["alpha"].next()).text("done")
        assert json.loads(await client.until(r"data: (\S*\"id\":1,.*)\r?\n"))["result"]["content"][0]["text"] == "done"
        await client.say(b"no JSON")
        assert "-32700" in await client.until(r"data: (.*-32700.*)\r?\n")


async def test_a_cut_stream_ends_its_session_and_cancels_its_calls(serving):
    async with serving() as (gateway, server):
        client = await open_sse(server)
        await client.say({"id": 0, "method": "initialize", "params": CLIENT})
        await client.until(r"(\"id\":0)")
        await client.say({"method": "notifications/initialized"})
        await client.say({"id": 1, "method": "tools/call", "params": {"name": "alpha__work"}})
        request = await gateway.backends["alpha"].next()
        await client.stream.aclose()
        with trio.fail_after(PATIENCE):
            await request.cancelled.wait()
            while gateway.actors.sessions.table or len(gateway.actors.channels):
                await trio.sleep(0.01)
        assert (await client.say({"id": 2, "method": "ping"})).startswith(b"HTTP/1.1 404 ")


async def test_only_the_principal_of_a_stream_may_speak_there(serving):
    security = Security("127.0.0.1", tokens={"ann": "a", "bob": "b"})
    async with serving(security) as (_, server):
        assert (await server.ask(get())).startswith(b"HTTP/1.1 401 ")
        client = await open_sse(server, more="Authorization: Bearer a\r\n")
        sent = "Content-Type: application/json\r\nAuthorization: Bearer {}\r\n"
        ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        for token, status in (("b", 404), ("a", 202), ("x", 401)):
            answer = await server.ask(post(client.place, ping, sent.format(token)))
            assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("many", [1, 300])
async def test_posts_that_come_together_are_all_taken_however_many(serving, many):
    async with serving() as (_, server):
        client = await open_sse(server)
        await client.say({"id": 0, "method": "initialize", "params": CLIENT})
        await client.until(r"(\"id\":0)")
        ping = post(client.place, b'{"jsonrpc": "2.0", "method": "notifications/x"}')
        kept = ping.replace(b"Connection: close\r\n", b"")
        async with await server.connect() as stream:  # whose side stays open: who ends his is mostly gone
            await stream.send_all(kept * (many - 1) + ping)
            answers = await read_all(stream)
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"202"] * many


JSON = "Content-Type: application/json\r\n"
BAD = {
    "an unknown session": (post("/messages?sessionId=nobody", b"{}"), 404),
    "no session": (post("/messages", b"{}"), 404),
    "a query without end": (post("/messages?" + "a=b&" * 500, b"{}"), 404),
    "another type": (post("/messages?sessionId=x", b"{}", "Content-Type: text/plain\r\n"), 415),
    "too large": (post("/messages?sessionId=x", b"x" * 2000), 413),
    "a foreign Origin": (post("/messages?sessionId=x", b"{}", JSON + "Origin: https://evil.example\r\n"), 403),
    "a GET of messages": (get("/messages?sessionId=x"), 405),
    "a POST to the stream": (post("/sse", b"{}"), 405),
    "an unknown endpoint": (get("/sse/nobody"), 404),
    "a foreign Origin at the stream": (get("/sse", "Origin: null\r\n"), 403),
    "another host": (get("/sse").replace(b"localhost", b"evil.example"), 403),
}


@pytest.mark.parametrize(("said", "status"), BAD.values(), ids=BAD)
async def test_what_does_not_belong_is_refused(serving, said, status):
    async with serving(message_bytes=1000) as (_, server):
        other = await open_sse(server, "/sse/alpha")
        assert (await server.ask(said)).startswith(b"HTTP/1.1 %d " % status)
        await other.say({"id": 0, "method": "initialize", "params": CLIENT})
        await other.until(r"(\"id\":0)")


async def test_a_silent_stream_is_kept_alive(serving):
    async with serving(keep_alive=0.05) as (_, server):
        await (await open_sse(server)).until(r"\n(:)\n")


def test_the_answer_of_a_post_has_no_body():
    from gateway.http.sse_channel import said

    assert said(202) == Answer(202)


def test_what_may_have_been_delivered_is_not_called_refused():
    from gateway.http.sse_channel import said

    answer = said(504)
    assert answer.status == 504
    assert json.loads(answer.body)["error"]["data"]["executed"] == "unknown"
