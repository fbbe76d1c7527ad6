"""Any replica serves any request of any session: what comes to one that does not own it goes to its owner by mail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from actors.cluster import holder as holder_side
from actors.cluster import letters
from actors.cluster import owner as owner_side
from actors.cluster.mailer import DrainDue, Postman
from actors.ports import Principal
from tests.support.calls import reached
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_replicas
from tests.support.mcp_backend import Backend

ANN, BOB = Principal("ann"), Principal("bob")


@asynccontextmanager
async def pair(backend: Backend, count: int = 2, **options: Any) -> AsyncIterator[list[Gateway]]:
    """Replicas in front of one backend."""
    async with open_replicas(count, backend, **options) as replicas:
        yield replicas


def http(**more: Any) -> Backend:
    return Backend("alpha", kind="http", **more)


async def elsewhere(owner: Gateway, holder: Gateway, **more: Any) -> Client:
    """A client whose session the one owns, and whose requests come to the other."""
    client = await owner.connect("alpha", **more)
    client.to(holder)
    return client


def sent(gateway: Gateway, kind: str) -> int:
    return gateway.telemetry.total("stagedoor_letters_sent_total", kind)


def owners(*replicas: Gateway) -> list[int]:
    """How many sessions each has in memory."""
    return [len(replica.actors.sessions.table) for replica in replicas]


def numbers(pending: Pending) -> list[int]:
    """Of the events of a stream, as their ids say."""
    return [int(event.id.rpartition("-")[2]) for event in pending.events if event.id is not None]


async def test_an_answer_comes_as_json_and_the_session_stays_where_it_is(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        assert await client.tool("echo", text="hi") == "alpha: hi"
        call = client.begin("tools/call", {"name": "nope"})
        assert (await call.error()).code == -32602
        assert call.status == 200
        assert not call.streaming
        assert owners(one, two) == [1, 0]
        assert sent(two, "deliver") == sent(one, "answer") == 2


async def test_what_an_owner_refuses_is_counted_once(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        again = client.begin("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})
        assert (await again.error()).code == -32600
        counts = [replica.telemetry.total("stagedoor_messages_rejected_total") for replica in (one, two)]
        assert counts == [1, 0]


async def test_the_record_is_read_for_the_first_request_only(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        reads: list[str] = []
        read = two.store.read
        two.store.read = lambda key, done: (reads.append(key), read(key, done))  # type: ignore[method-assign]
        for _ in range(3):
            await client.tool("echo")
        assert len(reads) == 1


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_progress_and_the_answer_come_as_a_stream(autojump_clock, version):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two, version=version)
        call, request = await reached(client, alpha, progress="t")
        for step in range(5):
            request.progress(step)
            await two.settle()
        request.text("done")
        assert (await call.result())["content"][0]["text"] == "done"
        await call.end()
        assert [m["params"]["progress"] for m in call.seen("notifications/progress")] == [0, 1, 2, 3, 4]
        assert numbers(call) == list(range(1, len(numbers(call)) + 1))
        assert call.streaming
        await trio.sleep(1)
        assert one.left()["streams"] == two.left()["streams"] == 0


async def test_a_slow_answer_without_a_word_before_it_comes_as_a_stream_too(autojump_clock):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha)
        await trio.sleep(60)
        assert call.streaming
        request.text("done")
        await call.result()
        await call.end()


async def test_a_get_stream_brings_what_belongs_to_no_request(autojump_clock):
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        stream = client.listen()
        assert await stream.head() == 200
        alpha.upstream.notify("notifications/tools/list_changed")
        await stream.next("notifications/tools/list_changed")
        alpha.upstream.notify("notifications/resources/list_changed")
        await stream.next("notifications/resources/list_changed")
        stream.drop()
        await trio.sleep(1)
        assert one.left()["streams"] == 0
        assert sent(two, "detach") == 1


@pytest.mark.parametrize("resume_at", [0, 1])
async def test_a_session_that_ends_as_its_stream_is_resumed_is_not_found(autojump_clock, resume_at):
    """And not a stream that is no longer kept: whoever hears that begins anew."""
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha) as replicas:
        client = await replicas[0].connect("alpha")
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await call.next()
        call.drop()
        client.to(replicas[resume_at])
        store = replicas[resume_at].store
        replay = store.replay

        async def late(*args: Any) -> Any:
            assert await client.delete() == 200
            store.replay = replay  # type: ignore[method-assign]
            return await replay(*args)

        store.replay = late  # type: ignore[method-assign]
        assert await client.listen(call.events[-1].id).head() == 404
        assert await client.listen(call.events[-1].id).head() == 404


@pytest.mark.parametrize("resume_at", [0, 1, 2])
async def test_a_stream_is_resumed_on_any_replica_without_a_hole_or_a_double(autojump_clock, resume_at):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha, 3) as replicas:
        client = await elsewhere(replicas[0], replicas[1])
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        request.progress(2)
        await replicas[1].settle()
        seen = numbers(call)
        call.drop()
        await trio.sleep(1)
        request.progress(3)
        client.to(replicas[resume_at])
        rest = client.listen(call.events[-1].id)
        assert await rest.head() == 200
        await replicas[0].settle()
        request.progress(4)
        request.text("done")
        await rest.end()
        assert [m["params"]["progress"] for m in rest.seen("notifications/progress")] == [3, 4]
        assert seen + numbers(rest) == list(range(1, len(seen + numbers(rest)) + 1))
        assert rest.messages[-1]["id"] == call.id


async def test_a_finished_stream_is_replayed_on_another_replica(autojump_clock):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        request.text("done")
        await call.end()
        rest = client.listen(call.events[0].id)
        await rest.end()
        assert numbers(rest) == numbers(call)[1:]


async def test_nothing_is_kept_of_a_finished_stream_that_was_replayed(autojump_clock):
    """A process that drains waits for streams that come by mail."""
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        request.text("done")
        await call.end()
        await client.listen(call.events[0].id).end()
        await trio.sleep(1)
        began = trio.current_time()
        await two.system.drain(60.0)
        assert trio.current_time() - began < 5


@pytest.mark.parametrize("cursor", ["p99:1-1", "p1:1-1"])
async def test_a_cursor_of_no_event_gets_the_same_answer_by_mail_as_at_home(autojump_clock, cursor):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        away = client.listen(cursor)
        await away.end()
        client.to(one)
        home = client.listen(cursor)
        await home.end()
        assert away.answer == home.answer
        assert away.status == 400


async def test_the_newest_attach_wins_wherever_it_comes(autojump_clock):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha, 3) as replicas:
        client = await elsewhere(replicas[0], replicas[1])
        call, request = await reached(client, alpha, progress="t")
        request.progress(1)
        await replicas[1].settle()
        client.to(replicas[2])
        rest = client.listen(call.events[-1].id)
        assert await rest.head() == 200
        await call.end()
        request.text("done")
        await rest.end()
        assert rest.messages[-1]["id"] == call.id
        assert not call.messages or call.messages[-1].get("id") != call.id


# What the client says besides requests ------------------------------------------------------------------------


async def test_a_call_is_cancelled_by_a_notification_at_another_replica(autojump_clock):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha, 3) as replicas:
        client = await elsewhere(replicas[0], replicas[1])
        call, request = await reached(client, alpha)
        client.to(replicas[2])
        await client.cancel(call)
        with trio.fail_after(50):
            await request.cancelled.wait()
        await call.end()


async def test_a_call_whose_connection_broke_before_it_had_an_id_goes_on_as_at_home(autojump_clock):
    """What its client does not want it cancels; its answer is dropped, and counted."""
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        call, request = await reached(client, alpha)
        call.drop()
        await trio.sleep(1)
        assert not request.cancelled.is_set()
        assert sent(two, "detach") == 1
        request.text("too late")
        await trio.sleep(1)
        assert one.telemetry.total("stagedoor_messages_dropped_total", "answer_without_connection") == 1
        assert one.left()["requests"] == 0


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("sampling/createMessage", {"messages": [], "maxTokens": 1}, {"role": "assistant", "model": "m"}),
        ("elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}}, {"action": "decline"}),
        ("roots/list", {}, {"roots": []}),
    ],
)
async def test_a_question_is_asked_and_answered_by_mail(autojump_clock, method, params, answer):
    alpha = http(tools=("slow",), held={"slow"})
    async with pair(alpha, 3) as replicas:
        capabilities = {"sampling": {}, "elicitation": {}, "roots": {}}
        client = await elsewhere(replicas[0], replicas[1], capabilities=capabilities)
        call, request = await reached(client, alpha)
        asked = request.ask(method, params)
        question = await call.next(method)
        client.to(replicas[2])
        await client.respond(question, answer)
        assert (await asked.outcome())["result"] == answer
        request.text("done")
        await call.result()


async def test_a_session_is_ended_from_another_replica(autojump_clock):
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        stream = client.listen()
        await stream.head()
        assert await client.delete() == 200
        await stream.end()
        await trio.sleep(1)
        assert owners(one, two) == [0, 0]
        assert await client.begin("tools/list").head() == 404
        assert alpha.upstream.transport.closed


async def test_a_batch_is_answered_as_one(autojump_clock):
    async with pair(http(version="2025-03-26")) as (one, two):
        client = await elsewhere(one, two, version="2025-03-26")
        batch = client.post(
            [{"id": 7, "method": "ping"}, {"id": 8, "method": "tools/call", "params": {"name": "echo"}}, {"id": []}]
        )
        await batch.end()
        assert sorted(str(m.get("id")) for m in batch.messages) == ["7", "8", "None"]


# Who may --------------------------------------------------------------------------------------------------------


async def test_a_foreign_principal_finds_nothing_by_mail_either(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two, principal=ANN)
        await client.tool("echo")  # the way there is known now
        other = two.client("alpha", BOB)
        other.session = client.session
        assert await other.begin("tools/list").head() == 404
        assert await other.listen().head() == 404
        assert await other.delete() == 404
        wrong = two.client("", ANN)
        wrong.session = client.session
        assert await wrong.begin("tools/list").head() == 404
        assert await client.tool("echo") == "alpha: echo"


async def test_an_id_that_nobody_knows_gets_404_and_no_letter(autojump_clock):
    async with pair(http()) as (_, two):
        client = two.client("alpha")
        client.session = "invented"
        assert await client.begin("tools/list").head() == 404
        assert sent(two, "deliver") == 0


# Bounds ---------------------------------------------------------------------------------------------------------


async def test_a_full_mailbox_of_a_session_is_said_at_once(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        (alive,) = one.actors.sessions.table.values()
        alive.ref.cell.mailbox.size = 0  # type: ignore[union-attr]
        start = trio.current_time()
        call = client.begin("tools/call", {"name": "echo"})
        await call.end()
        assert call.status == 503
        assert dict(call.answer.headers)["retry-after"]
        assert trio.current_time() - start < 1


async def test_a_full_inbox_is_said_at_once(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        await client.tool("echo")
        await one.pause()
        fill = [two.services.cluster.post(one.services.cluster.incarnation, b"", lambda _: None) for _ in range(5000)]
        assert fill
        start = trio.current_time()
        call = client.begin("tools/call", {"name": "echo"})
        await call.end()
        assert (call.status, trio.current_time() - start < 0.5) == (503, True)
        await one.resume()


async def test_more_letters_than_one_session_may_have_under_way_are_refused_at_once(autojump_clock):
    async with pair(http(tools=("slow",), held={"slow"})) as (one, two):
        client = await elsewhere(one, two)
        await client.call("ping")
        await one.pause()
        calls = [client.begin("ping") for _ in range(520)]
        await two.settle()
        assert [call.status for call in calls].count(503) == 8
        await one.resume()
        for call in calls:
            await call.end()


async def test_more_letters_than_a_process_may_have_under_way_are_refused_at_once(autojump_clock, monkeypatch):
    monkeypatch.setattr(holder_side, "MOST", 10)
    async with pair(http()) as (one, two):
        clients = [await elsewhere(one, two) for _ in range(4)]
        await one.pause()
        calls = [client.begin("ping") for client in clients for _ in range(3)]
        await two.settle()
        assert [call.status for call in calls].count(503) == 2
        await one.resume()
        for call in calls:
            await call.end()


# Mail that is no letter -------------------------------------------------------------------------------------------


async def test_bytes_that_are_no_letter_are_counted_and_do_no_harm(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        for junk in (b"", b"\x91" * 5000, b"\xff\xfe", b"{}"):
            two.services.cluster.post(one.services.cluster.incarnation, junk, lambda _: None)
        await two.settle()
        assert one.telemetry.total("stagedoor_letters_refused_total", letters.UNKNOWN, letters.BAD) == 4
        assert await client.tool("echo") == "alpha: echo"


async def test_a_letter_of_a_kind_that_is_not_known_is_refused_as_unsupported(autojump_clock):
    async with pair(http()) as (one, two):
        client = await elsewhere(one, two)
        encode, letters.encode = letters.encode, lambda letter: encode(letter).replace(b"deliver", b"delivex")
        try:
            call = client.begin("ping")
            await call.end()
        finally:
            letters.encode = encode
        assert call.status == 503
        assert one.telemetry.total("stagedoor_letters_refused_total", letters.UNKNOWN, letters.UNSUPPORTED) == 1
        assert await client.call("ping") == {}


async def test_a_handshake_is_finished_on_any_replica(autojump_clock):
    async with pair(http()) as (one, two):
        client = one.client("alpha")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opened = client.begin("initialize", params)
        await opened.result()
        client.session = opened.headers["mcp-session-id"]
        client.to(two)
        await client.notify("notifications/initialized")
        assert await client.tool("echo") == "alpha: echo"
        assert len(one.actors.sessions.table) == 1
        assert not two.actors.sessions.table


@pytest.mark.parametrize("over", [False, True])
async def test_what_comes_to_a_process_that_drains_goes_to_the_next_owner(autojump_clock, over):
    """`over`: its actors have ended, and the process not yet."""
    alpha = http(tools=("echo", "slow"), held={"slow"})
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        assert await client.tool("echo") == "alpha: echo"
        if not over:
            (await one.connect("alpha")).begin("tools/call", {"name": "slow"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.system.drain, 8.0)
            await trio.sleep(0.1)
            assert (one.system.registry.whereis("mailer") is None) is over
            assert list(two.actors.sessions.elsewhere.values()) == [one.services.cluster.incarnation]
            assert await client.tool("echo") == "alpha: echo"
            assert len(two.actors.sessions.table) == 1
        one.kill(at_once=True)


def losing(gateway: Gateway, *kinds: str) -> list[str]:
    """The first letter of each of these kinds is lost on its way; what was lost."""
    left, lost = [*kinds], []

    def deliver(to: str, letter: bytes) -> tuple[float, ...]:
        kind = letters.decode(letter).kind
        if kind not in left:
            return (0.0,)
        left.remove(kind)
        lost.append(kind)
        return ()

    gateway.store.replica.post_office = deliver  # type: ignore[attr-defined]
    return lost


@pytest.mark.parametrize("lost", [1, 2])
async def test_an_answer_whose_letter_was_lost_is_given_again(autojump_clock, lost):
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        gone = losing(one, *["answer"] * lost)
        call = client.begin("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
        with trio.fail_after(15):
            assert (await call.result())["content"][0]["text"] == "alpha: hi"
        assert gone == ["answer"] * lost
        assert len(alpha.asked_for("tools/call")) == 1


async def test_answers_are_kept_for_a_while_and_within_bounds(autojump_clock, monkeypatch):
    monkeypatch.setattr(owner_side, "SAID_BYTES", 3000)
    alpha = http()
    async with pair(alpha) as (one, two):
        client = await elsewhere(one, two)
        losing(one, "answer")
        call = client.begin("tools/call", {"name": "echo"})
        await trio.sleep(1)
        for _ in range(3):
            await client.tool("echo", text="x" * 1000)
        await client.tool("echo", text="x" * 5000)
        with trio.fail_after(15):
            assert (await call.error()).data["executed"] == "unknown"
        assert len(alpha.asked_for("tools/call")) == 5


async def test_what_is_read_at_the_end_of_a_drain_goes_to_the_next_owner(autojump_clock, monkeypatch):
    """The time is over in the very moment in which the letter comes."""
    alpha = http(tools=("echo", "slow"), held={"slow"})
    async with pair(alpha) as (one, two):
        client, other = await elsewhere(one, two), await elsewhere(two, one)
        assert await client.tool("echo") == "alpha: echo"
        await alpha.next()
        call = other.begin("tools/call", {"name": "slow"}, progress="mine")
        (await alpha.next()).progress(1)
        await call.next("notifications/progress")  # by mail, so that this process waits for its end
        on_mail = Postman.on_mail

        def too_late(self: Postman, letters: Sequence[bytes]) -> None:
            mailer = one.system.registry.whereis("mailer")
            if self._cluster is one.services.cluster and mailer is not None:
                mailer.reply(DrainDue())
            on_mail(self, letters)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.system.drain, 8.0)
            await trio.sleep(0.1)
            assert one.system.registry.whereis("mailer") is not None
            assert one.services.cluster.incarnation in two.actors.sessions.elsewhere.values()
            monkeypatch.setattr(Postman, "on_mail", too_late)
            began = trio.current_time()
            assert await client.tool("echo") == "alpha: echo"
            assert trio.current_time() - began < 1
        one.kill(at_once=True)
