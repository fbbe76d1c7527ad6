"""What a server does beside answering: once, while there is a session, whichever that is."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.native import Server


async def test_it_runs_once_while_there_is_a_session(connect: Any) -> None:
    server, running, begun = Server("t"), 0, 0

    @server.background
    async def beside() -> None:
        nonlocal running, begun
        running, begun = running + 1, begun + 1
        try:
            await trio.sleep_forever()
        finally:
            running -= 1

    assert running == 0
    first, second = await connect(server), await connect(server)
    await wait_all_tasks_blocked()
    assert (running, begun) == (1, 1)
    first.transport.close()
    await first.until(lambda: bool(first.closed))
    await wait_all_tasks_blocked()
    assert (running, begun) == (1, 2)
    second.transport.close()
    await second.until(lambda: bool(second.closed))
    assert running == 0
    await connect(server)
    await wait_all_tasks_blocked()
    assert (running, begun) == (1, 3)


async def test_what_it_raises_is_logged_and_harms_nothing(connect: Any) -> None:
    server = Server("t")

    @server.background
    async def broken() -> None:
        raise ValueError("no")

    client = await connect(server)
    assert (await client.request("ping")) == {}
    [(event, told)] = client.log.lines
    assert (event, told["method"], str(told["exc_info"])) == ("native_handler_crashed", "background", "no")


async def test_a_session_that_goes_over_to_another_server_runs_what_that_one_does(connect: Any) -> None:
    old, new, running = Server("t"), Server("t"), []

    def add(server: Server, name: str) -> None:
        @server.background
        async def beside() -> None:
            running.append(name)
            try:
                await trio.sleep_forever()
            finally:
                running.remove(name)

    add(old, "old")
    add(new, "new")
    await connect(old)
    await wait_all_tasks_blocked()
    assert running == ["old"]
    old.hand_over(new)
    await wait_all_tasks_blocked()
    assert running == ["new"]
