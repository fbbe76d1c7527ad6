"""A client may be cancelled wherever it waits, and so may what it does for its server."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import trio
import trio.testing

from gateway.client import McpError
from stagedoor import open_client
from tests.gateway.client import shop
from tests.gateway.client.hostile import LEGACY, Hostile, Message, Say


class After(trio.abc.Instrument):
    """Cancels a scope before so many steps of the task that made it."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self.left = steps
        self._scope = scope
        self._task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self.left -= 1
            if self.left == 0:
                self._scope.cancel()


async def use_it() -> None:
    async with open_client(shop.server, LEGACY, sampling=lambda params: "a hat", log=lambda params: None) as client:
        await client.list_tools()
        await client.call_tool("steps", {"count": 2}, progress=lambda *step: None)
        await client.call_tool("sampled")
        async with client.subscribe("shop://price"):
            await client.read_resource("shop://price")


async def test_a_client_that_is_cancelled_anywhere_leaves_nothing() -> None:
    await use_it()
    before = trio.lowlevel.current_statistics().tasks_living
    for steps in range(1, 1000):
        with trio.CancelScope() as scope:
            after = After(steps, scope)
            trio.lowlevel.add_instrument(after)
            try:
                await use_it()
            finally:
                trio.lowlevel.remove_instrument(after)
        assert trio.lowlevel.current_statistics().tasks_living == before, steps
        if after.left > 0:
            break
    else:
        pytest.fail("it never got through")
    assert steps > 20
    gc.collect()  # what was never awaited says so


async def test_a_question_that_the_server_withdraws_ends_its_handler_and_gets_no_answer() -> None:
    server, ended = Hostile(), trio.Event()

    async def never(params: dict[str, Any]) -> dict[str, Any]:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_client(server, LEGACY, sampling=never) as client:
        server.say({"id": "q", "method": "sampling/createMessage", "params": {}})
        await trio.testing.wait_all_tasks_blocked()
        server.tell("notifications/cancelled", {"requestId": "q"})
        await ended.wait()
        await client.ping()
    assert not [message for message in server.heard if message.get("id") == "q"]


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyError("secret"), -32603), (McpError(-1, "the user said no"), -1), (None, -32601)]
)
async def test_what_a_handler_raises_is_the_answer_and_the_client_goes_on(raised: Exception | None, code: int) -> None:
    def refuse(params: dict[str, Any]) -> dict[str, Any]:
        assert raised is not None
        raise raised

    def answer(asked: Message, say: Say) -> Message:
        say({"id": asked["id"], "method": "elicitation/create", "params": {}})
        return {}

    server = Hostile(answer)
    async with open_client(server, LEGACY, elicitation=refuse if raised is not None else None) as client:
        await client.ping()
        await trio.testing.wait_all_tasks_blocked()
        (refused,) = [message["error"] for message in server.heard if "error" in message]
        await client.ping()
    assert refused["code"] == code
    assert "secret" not in str(refused)


async def test_calls_that_are_under_way_end_with_the_client() -> None:
    server = Hostile(lambda asked, say: None)
    ends: list[str] = []

    async def call(client: Any) -> None:
        try:
            await client.call_tool("any")
        finally:
            ends.append("cancelled")

    with trio.CancelScope() as scope:
        async with open_client(server, LEGACY) as client, trio.open_nursery() as calls:
            for _ in range(3):
                calls.start_soon(call, client)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert ends == ["cancelled"] * 3
    assert server.methods().count("notifications/cancelled") == 3
