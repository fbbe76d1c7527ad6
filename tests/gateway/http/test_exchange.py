"""Requests over real sockets: the plain ways of POST, GET, DELETE."""

from actors.ports import ANONYMOUS, Answer, Delete, Get, Post

POST = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: application/json, text/event-stream\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)
GET = b"GET /mcp/files HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: s1\r\n\r\n"


async def test_a_post_reaches_the_door_and_its_answer_the_client(door, make_app, running, read):
    door.reply(Answer(200, b'{"ok":true}', (("Mcp-Session-Id", "s1"),)))
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(POST)
        answer = await read.until(stream, b'{"ok":true}')
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"mcp-session-id: s1\r\n" in answer
    assert b"content-type: application/json\r\ncontent-length: 11\r\n" in answer
    [asked] = door.asked
    assert isinstance(asked, Post)
    assert (asked.endpoint, asked.principal, asked.body) == ("", ANONYMOUS, b"{}")
    assert asked.headers["content-type"] == "application/json"


async def test_an_accepted_notification_gets_202_and_no_body(door, make_app, running, read):
    door.reply(Answer(202))
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(POST)
        answer = await read.until(stream, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 202 Accepted\r\n")
    assert b"content-length: 0" in answer
    assert b"content-type" not in answer


async def test_a_stream_is_written_event_by_event_and_ended(door, make_app, running, read):
    source = door.stream(b"id: 1\ndata: {}\n\n", headers=(("Mcp-Session-Id", "s1"),))
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(GET)
        begun = await read.until(stream, b"data: {}\n\n\r\n")
        source.push(b"data: 2\n\n")
        more = await read.until(stream, b"data: 2")
        source.push(None)
        end = await read.until(stream, b"0\r\n\r\n")
        await stream.send_all(POST)  # the connection goes on
        await read.until(stream, b"HTTP/1.1 200")
    assert b"content-type: text/event-stream\r\n" in begun
    assert b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\nmcp-session-id: s1\r\n" in begun
    assert b"transfer-encoding: chunked\r\n" in begun
    assert more == b"9\r\ndata: 2\n\n\r\n"
    assert end == b"0\r\n\r\n"
    assert source.closed.is_set()
    asked = door.asked[0]
    assert isinstance(asked, Get)
    assert (asked.endpoint, asked.headers["mcp-session-id"]) == ("files", "s1")


async def test_a_delete_reaches_the_door(door, make_app, running, read):
    door.reply(Answer(204))
    async with running(make_app()) as server, await server.connect() as stream:
        await stream.send_all(b"DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: s1\r\n\r\n")
        answer = await read.until(stream, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-length" not in answer
    assert isinstance(door.asked[0], Delete)
