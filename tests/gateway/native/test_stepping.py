"""The time between two awaits of a handler: passed through as it is, and told where it is too long."""

import time
from typing import Any

import pytest
import trio

from gateway.native import Context, Server
from gateway.native.stepping import SLOW, Stepped


async def test_what_goes_through_is_unchanged(autojump_clock: Any) -> None:
    told: list[float] = []

    async def fine(value: int) -> int:
        await trio.sleep(1)
        try:
            raise KeyError(value)
        except KeyError:
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
        return value

    async def fails() -> None:
        await trio.sleep(1)
        raise ValueError("x")

    assert await Stepped(fine(3), told.append) == 3
    with pytest.raises(ValueError, match="x"):
        await Stepped(fails(), told.append)
    with trio.move_on_after(1) as scope:
        await Stepped(trio.sleep(100), told.append)
    assert scope.cancelled_caught
    assert told == []


async def test_a_cancelled_coroutine_may_clean_up() -> None:
    cleaned = []

    async def careful() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cleaned.append(1)
            raise
        return ""

    with trio.CancelScope() as scope:
        scope.cancel()
        await Stepped(careful(), cleaned.append)  # type: ignore[arg-type]
    assert cleaned == [1]


async def test_a_handler_that_blocks_is_named_and_answers(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def blocks(ctx: Context) -> str:
        await ctx.progress(1)
        time.sleep(SLOW * 1.2)
        await ctx.progress(2)
        return "done"

    @server.tool
    def in_a_thread() -> str:
        time.sleep(SLOW * 1.2)
        return "done"

    @server.resource("t://x")
    async def read() -> str:
        time.sleep(SLOW * 1.2)
        return "x"

    client = await connect(server)
    assert await client.text("in_a_thread") == "done"
    assert await client.text("blocks") == "done"
    await client.request("resources/read", {"uri": "t://x"})
    slow = [values for event, values in client.log.lines if event == "native_handler_blocks_the_loop"]
    assert [(told["method"], told["name"]) for told in slow] == [("tools/call", "blocks"), ("resources/read", "")]
    assert all(told["seconds"] >= SLOW for told in slow)
    assert len(client.log.lines) == 2
