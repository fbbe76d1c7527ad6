"""The transport to a server without sessions: a POST for each request, and nothing else."""

import json

import pytest
import trio

from actors.machines.upstream import era
from actors.machines.upstream.era import Verdict
from actors.ports import FrameReceived, RequestFailed, TransportClosed
from actors.protocol import payload
from actors.protocol.table import BackendSpec, HttpTarget
from gateway.backends.http_call import HttpLimits
from gateway.backends.http_connector import HttpConnector
from gateway.backends.modern_http import ModernHttpTransport
from tests.support.patience import PATIENCE

HEADERS = (("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "echo"))
LISTEN = (("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "subscriptions/listen"))


def frame(id: str, method: str = "tools/call") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).encode()


@pytest.fixture
async def open_transport(nursery, events, log):
    connectors = []

    def start(url: str, limits: HttpLimits | None = None, emit=events, **headers: str) -> ModernHttpTransport:
        connector = HttpConnector(log, nursery, limits=limits)
        connectors.append(connector)
        spec = BackendSpec("far", HttpTarget(url, tuple(headers.items())))
        transport = connector.connect(spec, emit, True)
        assert isinstance(transport, ModernHttpTransport)
        nursery.start_soon(transport.run)
        return transport

    with trio.fail_after(PATIENCE):
        yield start
    for connector in connectors:
        connector.close()


async def test_a_request_carries_its_own_headers_and_no_session(open_transport, backend, events):
    async def answer(request) -> None:
        await request.result({"ok": 1}, Mcp_Session_Id="stolen")

    backend.handlers = [answer]
    transport = open_transport(backend.url, Authorization="Bearer x", **{"Mcp-Method": "forged"})
    for id in ("a", "b"):
        transport.send(frame(id), id=id, headers=HEADERS)
        received = await events.next()
        assert isinstance(received, FrameReceived)
        assert (received.related, received.status) == (id, None)
    headers = backend.requests[1].headers
    assert headers["MCP-Protocol-Version".lower()] == "2026-07-28"
    assert headers["mcp-method"] == "tools/call"
    assert headers["mcp-name"] == "echo"
    assert headers["accept"] == "application/json, text/event-stream"
    assert headers["authorization"] == "Bearer x"
    assert "mcp-session-id" not in headers
    assert {request.method for request in backend.requests} == {"POST"}


async def test_events_come_one_by_one_and_end_with_the_answer(open_transport, backend, events):
    async def stream(request) -> None:
        await request.events()
        await request.event(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}).encode())
        await request.event(json.dumps({"jsonrpc": "2.0", "id": "a", "result": {}}).encode())
        await request.end()

    backend.handlers = [stream]
    transport = open_transport(backend.url)
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert [(await events.next(FrameReceived)).related for _ in range(2)] == ["a", "a"]


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_an_error_is_an_answer_whatever_its_status(open_transport, backend, events, status):
    async def refuse(request) -> None:
        await request.error(status, -32602, request.id)

    backend.handlers = [refuse]
    open_transport(backend.url).send(frame("a"), id="a", headers=HEADERS)
    received = await events.next()
    assert json.loads(received.frame)["error"]["code"] == -32602
    assert received.status == (None if status == 200 else status)


async def test_to_forget_a_request_is_to_close_its_connection(open_transport, backend, events):
    async def hang(request) -> str:
        await request.events()
        assert await request.stream.receive_some(1) == b""
        return "cut"

    backend.handlers = [hang]
    transport = open_transport(backend.url)
    transport.send(frame("a"), id="a", headers=HEADERS)
    await backend.wait_requests()
    transport.forget("a")
    await backend.wait_closed()
    assert events.all == []


async def test_a_broken_stream_is_not_gone_on_with(open_transport, backend, events):
    async def cut(request) -> str:
        await request.events()
        await request.event(b"", id="5")
        return "cut"

    backend.handlers = [cut]
    open_transport(backend.url).send(frame("a"), id="a", headers=HEADERS)
    failed = await events.next(RequestFailed)
    assert (failed.reason, failed.executed) == ("no_response", "unknown")
    assert len(backend.requests) == 1


async def test_listens_take_no_place_from_calls(open_transport, backend, events):
    async def serve(request) -> None:
        if request.message["method"] == "subscriptions/listen":
            await request.events()
            await trio.sleep_forever()
        await request.result({})

    backend.handlers = [serve]
    transport = open_transport(backend.url, HttpLimits(shared=1))
    await trio.testing.wait_all_tasks_blocked()
    for id in ("l1", "l2"):
        transport.send(frame(id, "subscriptions/listen"), id=id, headers=LISTEN)
    await backend.wait_requests(2)
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert (await events.next(FrameReceived)).related == "a"


async def test_what_finds_no_place_waits_its_turn_and_no_more_than_that_fails(open_transport, backend, events):
    async def hang(request) -> None:
        await trio.sleep_forever()

    backend.handlers = [hang]
    transport = open_transport(backend.url, HttpLimits(shared=1))
    for id in ("a", "b", "c"):
        transport.send(frame(id), id=id, headers=HEADERS)
        await trio.testing.wait_all_tasks_blocked()
    failed = await events.next(RequestFailed)
    assert (failed.id, failed.executed) == ("c", "no")
    await backend.wait_requests()
    transport.forget("a")
    await backend.wait_requests(2)
    assert backend.requests[1].id == "b"


@pytest.mark.parametrize("header", [("Mcp-Method", "x\ny"), ("Mcp-Name", "x\x01"), ("Mcp-Param-A b", "x"), ("", "x")])
async def test_a_request_whose_headers_cannot_be_written_fails_alone_and_unsent(
    open_transport, backend, events, header
):
    going = trio.Event()

    async def answer(request) -> None:
        await going.wait()
        await request.result({"ok": 1})

    backend.handlers = [answer]
    transport = open_transport(backend.url)
    transport.send(frame("a"), id="a", headers=HEADERS)
    await backend.wait_requests()
    transport.send(frame("b"), id="b", headers=(*HEADERS, header))
    failed = await events.next()
    assert (type(failed), failed.id, failed.reason, failed.executed) == (RequestFailed, "b", "not_sent", "no")
    going.set()
    assert (await events.next(FrameReceived)).related == "a"
    assert len(backend.requests) == 1


async def test_a_fault_in_one_exchange_fails_that_one_and_is_logged(open_transport, backend, events, log):
    going = trio.Event()

    async def answer(request) -> None:
        if request.id == "a":
            await going.wait()
        await request.result({"ok": 1})

    def clumsy(event) -> None:
        if isinstance(event, FrameReceived) and event.related == "b":
            raise RuntimeError("a bug")
        events(event)

    backend.handlers = [answer]
    transport = open_transport(backend.url, emit=clumsy)
    transport.send(frame("a"), id="a", headers=HEADERS)
    await backend.wait_requests()
    transport.send(frame("b"), id="b", headers=HEADERS)
    failed = await events.next()
    assert (type(failed), failed.id, failed.executed) == (RequestFailed, "b", "unknown")
    assert len(log.of("backend_exchange_crashed")) == 1
    going.set()
    assert (await events.next(FrameReceived)).related == "a"
    transport.send(frame("c"), id="c", headers=HEADERS)
    assert (await events.next(FrameReceived)).related == "c"


async def test_redirects_are_not_followed(open_transport, backend, events):
    async def move(request) -> None:
        await request.answer(307, Location="http://127.0.0.1:1/")

    backend.handlers = [move]
    open_transport(backend.url).send(frame("a"), id="a", headers=HEADERS)
    failed = await events.next(RequestFailed)
    assert (failed.status, failed.executed) == (307, "no")


async def test_the_end_is_told_once_and_last(open_transport, backend, events):
    transport = open_transport(backend.url)
    await trio.testing.wait_all_tasks_blocked()
    transport.close()
    assert isinstance(await events.next(), TransportClosed)
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert len(events.all) == 1


BEAT = (("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "acme/beat"))


def beat(seq: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "acme/beat", "params": {"seq": seq}}).encode()


def beats(backend) -> list[int]:
    return [r.message["params"]["seq"] for r in backend.requests if r.headers["mcp-method"] == "acme/beat"]


async def test_notifications_are_posts_of_their_own_in_order_and_tell_nothing(open_transport, backend, events, log):
    async def answer(request) -> None:
        if request.id is None:
            await request.error(500, -32603) if request.message["params"]["seq"] == 2 else await request.accepted()
        else:
            await request.result({"ok": 1})

    backend.handlers = [answer]
    transport = open_transport(backend.url, HttpLimits(apart=PATIENCE), Authorization="Bearer x")
    for seq in range(1, 6):
        transport.send(beat(seq), headers=BEAT)
    await backend.wait_requests(5)
    assert beats(backend) == [1, 2, 3, 4, 5]
    headers = backend.requests[0].headers
    assert (headers["mcp-protocol-version"], headers["mcp-method"]) == ("2026-07-28", "acme/beat")
    assert headers["authorization"] == "Bearer x"
    assert "mcp-session-id" not in headers
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert (await events.next()).related == "a"
    assert [line["why"] for line in log.of("backend_post_refused")] == ["HTTP 500"]


async def test_a_notification_that_is_not_accepted_holds_up_neither_the_next_nor_requests(
    open_transport, backend, events, log
):
    async def answer(request) -> None:
        if request.id is not None:
            await request.result({"ok": 1})
        elif request.message["params"]["seq"] == 1:
            await trio.sleep_forever()
        else:
            await request.accepted()

    backend.handlers = [answer]
    transport = open_transport(backend.url, HttpLimits(apart=0.05, accept=0.5))
    for seq in (1, 2):
        transport.send(beat(seq), headers=BEAT)
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert (await events.next()).related == "a"
    await backend.wait_requests(3)
    assert beats(backend) == [1, 2]
    while not log.of("backend_post_refused"):
        await trio.sleep(0.01)
    assert log.of("backend_post_refused")[0]["why"] == "not accepted within 0.5 s"


async def test_notifications_that_wait_are_bounded_and_requests_are_not_held_to_it(
    open_transport, backend, events, log
):
    accepting = trio.Event()

    async def answer(request) -> None:
        if request.id is not None:
            await request.result({"ok": 1})
            return
        await accepting.wait()
        await request.accepted()

    backend.handlers = [answer]
    transport = open_transport(backend.url, HttpLimits(waiting=2, apart=100))
    transport.send(beat(1), headers=BEAT)
    await backend.wait_requests()
    for seq in (2, 3, 4):
        transport.send(beat(seq), headers=BEAT)
    assert len(log.of("backend_message_dropped")) == 1
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert (await events.next()).related == "a"
    accepting.set()
    await backend.wait_requests(4)
    assert beats(backend) == [1, 2, 3]


async def test_a_notification_that_cannot_be_written_harms_nothing_else(open_transport, backend, events, log):
    async def answer(request) -> None:
        await request.result({"ok": 1})

    backend.handlers = [answer]
    transport = open_transport(backend.url)
    transport.send(beat(1), headers=(("Mcp-Method", "x\ny"),))
    transport.send(frame("a"), id="a", headers=HEADERS)
    assert (await events.next()).related == "a"
    assert len(backend.requests) == 1
    assert log.of("backend_post_refused")


async def test_what_was_notified_before_the_end_is_still_sent(open_transport, backend, events):
    async def answer(request) -> None:
        await request.accepted()

    backend.handlers = [answer]
    transport = open_transport(backend.url, HttpLimits(apart=PATIENCE, flush=PATIENCE))
    for seq in (1, 2, 3):
        transport.send(beat(seq), headers=BEAT)
    await trio.testing.wait_all_tasks_blocked()
    transport.close()
    transport.send(beat(4), headers=BEAT)
    assert isinstance(await events.next(), TransportClosed)
    assert beats(backend) == [1, 2, 3]


# Answers to the probe, as real servers give them -------------------------------------------------------------


async def verdict(events) -> Verdict:
    event = await events.next()
    if isinstance(event, RequestFailed):
        return era.PROBE[era.of_failure(event.reason, event.status)]
    message = json.loads(event.frame)
    if "error" in message:
        return era.PROBE[era.of_error(payload.dumps(message["error"]), event.status)]
    return era.PROBE[era.of_versions(message["result"]["supportedVersions"])]


def error(status: int, code: int, **data: object):
    async def answer(request) -> None:
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no", "data": data}}
        await request.answer(status, json.dumps(body).encode())

    return answer


def page(status: int):
    async def answer(request) -> None:
        await request.answer(status, b"<html>", "text/html")

    return answer


async def discover(request) -> None:
    await request.result({"supportedVersions": ["2026-07-28"], "capabilities": {}})


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (discover, Verdict.MODERN),
        (error(404, -32601), Verdict.LEGACY),
        (error(200, -32601), Verdict.LEGACY),
        (error(400, -32602), Verdict.LEGACY),
        (error(400, -32000), Verdict.LEGACY),
        (error(400, -32022, supported=["2025-11-25"]), Verdict.LEGACY),
        (error(400, -32022, supported=["2026-07-28"]), Verdict.MODERN),
        (error(400, -32020), Verdict.MODERN),
        (page(404), Verdict.LEGACY),
        (page(405), Verdict.LEGACY),
        (page(200), Verdict.LEGACY),
        (page(401), Verdict.NONE),
        (error(401, -32600), Verdict.NONE),
        (page(403), Verdict.NONE),
        (page(500), Verdict.NONE),
        (error(503, -32000), Verdict.NONE),
    ],
)
async def test_what_a_server_answers_to_the_probe_has_one_meaning(open_transport, backend, events, handler, expected):
    backend.handlers = [handler]
    open_transport(backend.url).send(frame("p", "server/discover"), id="p", headers=HEADERS)
    assert await verdict(events) is expected


async def test_a_port_where_nobody_listens_says_nothing(open_transport, events):
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    open_transport(f"http://127.0.0.1:{port}/mcp").send(frame("p"), id="p", headers=HEADERS)
    assert await verdict(events) is Verdict.NONE


# Each request has one outcome


def outcomes(events) -> list[tuple[str, str, str]]:
    return [(failed.id, failed.reason, failed.executed) for failed in events.of(RequestFailed)]


async def closed_nursery() -> trio.Nursery:
    async with trio.open_nursery() as nursery:
        pass
    return nursery


async def test_what_cannot_be_started_by_a_fault_of_ours_has_its_outcome_too(backend, events, log, nursery):
    connector = HttpConnector(log, await closed_nursery(), limits=HttpLimits(shared=2))
    transport = connector.connect(BackendSpec("far", HttpTarget(backend.url, ())), events, True)
    for id in ("a", "b"):
        transport.send(frame(id), id=id, headers=HEADERS)
    nursery.start_soon(transport.run)
    await trio.testing.wait_all_tasks_blocked()
    transport.send(frame("c"), id="c", headers=HEADERS)
    transport.send(frame("l", "subscriptions/listen"), id="l", headers=LISTEN)
    assert outcomes(events) == [(id, "crashed", "unknown") for id in ("a", "b", "c", "l")]
    assert len(log.of("backend_exchange_crashed")) == 4
    transport.close()
    await events.next(TransportClosed)
    assert len(events.all) == 5


async def test_a_header_with_half_a_character_fails_its_request_alone(open_transport, backend, events, log):
    async def answer(request) -> None:
        await request.result({"ok": 1})

    backend.handlers = [answer]
    transport = open_transport(backend.url)
    transport.send(frame("a"), id="a", headers=(*HEADERS, ("Mcp-Param-X", "\ud800")))
    transport.send(frame("b"), id="b", headers=HEADERS)
    assert (await events.next(FrameReceived)).related == "b"
    assert outcomes(events) == [("a", "not_sent", "no")]
    assert log.of("backend_exchange_crashed") == []


async def test_any_number_of_requests_that_wait_may_fail_one_after_the_other(backend, events, log, nursery):
    async def answer(request) -> None:
        await request.result({"ok": 1})

    backend.handlers = [answer]
    connector = HttpConnector(log, nursery, limits=HttpLimits(shared=3000))
    transport = connector.connect(BackendSpec("far", HttpTarget(backend.url, ())), events, True)
    for n in range(2000):
        transport.send(frame(str(n)), id=str(n), headers=(*HEADERS, ("", "x")))
    transport.send(frame("last"), id="last", headers=HEADERS)
    nursery.start_soon(transport.run)
    with trio.fail_after(PATIENCE):
        assert (await events.next(FrameReceived)).related == "last"
    assert outcomes(events) == [(str(n), "not_sent", "no") for n in range(2000)]
    connector.close()


async def test_an_answer_for_what_was_not_asked_is_no_answer(open_transport, backend, events):
    async def other(request) -> None:
        await request.answer(200, json.dumps({"jsonrpc": "2.0", "id": "b", "result": {}}).encode())

    backend.handlers = [other]
    open_transport(backend.url).send(frame("a"), id="a", headers=HEADERS)
    assert (await events.next()).related == "a"
    assert (await events.next(RequestFailed)).reason == "no_response"
