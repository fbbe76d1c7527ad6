"""From accept to the end of a connection that is idle."""

import errno
import os

import pytest
import trio
import trio.testing

from gateway.http.requests import Inbox, Requests
from tests.support.patience import PATIENCE

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS], ids=errno.errorcode.get)
async def test_a_system_that_has_no_more_to_give_is_asked_again(make_app, running, read, monkeypatch, number):
    accept, scarce = trio.SocketListener.accept, [True, True, False, True]

    async def at_last(listener):
        if scarce and scarce.pop(0):
            raise OSError(number, os.strerror(number))
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", at_last)
    async with running(make_app()) as server:
        with trio.fail_after(PATIENCE):
            for _ in range(2):
                stream = await server.connect()
                await stream.send_all(HEALTH)
                await read.until(stream, b"}")
        assert server.log.names.count("accept_failed") == 2  # of three: said once, until one is accepted
    assert not scarce


async def test_an_idle_connection_ends_without_being_cancelled(nursery):
    answered = []

    async def app(scope, receive, send, *_):
        answered.append(scope)

    async def send(message):
        pass

    requests = Requests(nursery, answered.append)
    requests.run(app, {"type": "http"}, Inbox(), send)
    await trio.testing.wait_all_tasks_blocked()
    assert len(nursery.child_tasks) == 1
    assert requests.end()
    await trio.testing.wait_all_tasks_blocked()
    assert answered == [{"type": "http"}]
    assert not nursery.child_tasks


async def test_a_connection_that_had_no_request_has_nothing_to_end(nursery):
    assert Requests(nursery, lambda exit: None).end()


async def test_a_request_that_is_being_answered_is_cancelled_with_its_connection(nursery):
    cancelled = []

    async def app(*_):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(True)
            raise

    async def send(message):
        pass

    requests = Requests(nursery, cancelled.append)
    requests.run(app, {"type": "http"}, Inbox(), send)
    await trio.testing.wait_all_tasks_blocked()
    assert not requests.end()
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    assert cancelled == [True]
