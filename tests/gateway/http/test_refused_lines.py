"""What is refused before it could be read as a request has one line of `log.requests`, and one of the access log."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.ports import Answer
from gateway.app import Gateway
from gateway.config import load
from gateway.http.access import Recorded
from gateway.observability.lag import Lag
from gateway.roles import Alone
from tests.gateway.http.test_hostile import POST_HEAD, post
from tests.support.harness import RecordingLog

BODY = POST_HEAD + b"Content-Length: 9\r\n\r\n{"
HALF = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


class Lines:
    """What the composition writes of requests and accesses."""

    def __init__(self, folder: Path) -> None:
        file = folder / "c.json"
        file.write_text(json.dumps({"gateway": {"log": {"requests": True, "access": "{method} {path} {status}"}}}))
        settings = load(file).settings
        self.log, self.accesses = RecordingLog(), list[str]()
        self.gateway = Gateway(settings, self.log, Lag(), Alone(settings, lambda settings: None))
        self.gateway.access = self  # type: ignore[assignment]

    def put(self, line: str) -> None:
        self.accesses.append(line)

    def over(self, app: Any) -> Recorded:
        return Recorded(app, self.gateway.record, lambda session: session)

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        return [(line["method"], line["outcome"], line["status"]) for line in self.log.events("request")]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path)


@pytest.mark.parametrize(
    ("begun", "rest", "limit", "status", "access"),
    [
        (b"POST /mcp HT", b"", {"head": 0.1}, 408, "- - 408"),
        (BODY, b"", {"body": 0.1}, 408, "POST /mcp 408"),
        (b"\x00\x01\x02\r\n\r\n", b"", {}, 400, "- - 400"),
        (HALF, b"zz\r\n", {}, 400, "POST /mcp 400"),
    ],
    ids=["head too slow", "body too slow", "garbage", "a bad chunk"],
)
async def test_what_the_connection_refuses_has_one_line_of_each(
    begun, rest, limit, status, access, lines, door, make_app, running, read
):
    async with running(lines.over(make_app()), linger=0.1, **limit) as server:
        server.connections.on_refused = lines.gateway.public.on_refused
        async with await server.connect() as stream:
            await stream.send_all(begun)
            if rest:
                await trio.testing.wait_all_tasks_blocked(0.01)
                await stream.send_all(rest)
            assert (await read.all(stream)).startswith(b"HTTP/1.1 %d" % status)
    assert lines.requests == [("", "refused", status)]
    assert lines.accesses == [access]
    assert door.asked == []


async def test_a_connection_too_many_has_one_line_of_each(lines, make_app, running, read):
    async with running(lines.over(make_app()), connections=1) as server:
        server.connections.on_refused = lines.gateway.public.on_refused
        first = await server.connect()
        await first.send_all(b"POST /mcp HT")
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with await server.connect() as second:
            assert (await read.all(second)).startswith(b"HTTP/1.1 503")
    assert lines.requests[0] == ("", "refused", 503)
    assert lines.accesses[0] == "- - 503"


async def test_a_gateway_that_is_overloaded_says_so_in_one_line_of_each(lines, make_app, running):
    async with running(lines.over(make_app(overloaded=lambda: True))) as server:
        assert (await server.ask(post())).startswith(b"HTTP/1.1 503")
    assert lines.requests == [("", "refused", 503)]
    assert lines.accesses == ["POST /mcp 503"]


async def test_what_the_door_was_asked_is_the_doors_to_tell(lines, door, make_app, running):
    door.reply(Answer(503, b"{}"))
    async with running(lines.over(make_app())) as server:
        assert (await server.ask(post())).startswith(b"HTTP/1.1 503")
    assert lines.requests == []
    assert lines.accesses == ["POST /mcp 503"]
