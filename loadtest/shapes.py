"""Shapes of load: steady, bursty, beside clients that stop reading, reconnecting, opening sessions.

Each call is timed from sending to the checked answer. A wrong or missing answer counts as an error, never as a call.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import trio

from loadtest.client import ANSWER_WITHIN, BROKEN, Client, Session, WrongAnswerError


@dataclass
class Count:
    """What a load has seen: seconds of each call, and errors by their text."""

    seconds: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return len(self.seconds)

    def wrong(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"[:200]
        self.errors[text] = self.errors.get(text, 0) + 1

    def percentile(self, share: float) -> float:
        """The latency in seconds under which that share of the calls stayed; 0 without calls."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def _timed(client: Client, tool: str, tally: Count) -> None:
    began = time.perf_counter()
    try:
        with trio.fail_after(ANSWER_WITHIN):
            await client.call(tool)
    except (WrongAnswerError, *BROKEN) as error:
        tally.wrong(error)
        client.close()
        with trio.move_on_after(ANSWER_WITHIN):
            await client.open()
        return
    tally.seconds.append(time.perf_counter() - began)


async def steady(clients: list[Client], tool: str, seconds: float) -> Count:
    """Every client calls again as soon as it has its answer; each calls once, however short the time."""
    tally, end = Count(), time.perf_counter() + seconds

    async def caller(client: Client) -> None:
        await _timed(client, tool, tally)
        while time.perf_counter() < end:
            await _timed(client, tool, tally)

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(caller, client)
    return tally


async def bursty(clients: list[Client], tool: str, seconds: float, every: float = 0.1) -> Count:
    """All clients call in the same moment, again and again."""
    tally, end = Count(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(_timed, client, tool, tally)
        await trio.sleep_until(began + every)
    return tally


async def stalled(clients: list[Client], tool: str, seconds: float, stuck: int = 8) -> Count:
    """Some clients have calls and streams that they do not read; the tally is of the others."""
    streams = []
    for client in clients[:stuck]:
        streams.append(await client.listen())
        await client.call_and_stall()
    tally = await steady(clients[stuck:], tool, seconds)
    for stream in streams:
        stream.close()
    return tally


async def reconnecting(clients: list[Client], _tool: str, seconds: float, wait: float = 0.3) -> Count:
    """Every session starts a slow call, loses its connection, and resumes; a lost answer is an error."""
    tally, end = Count(), time.perf_counter() + seconds

    async def caller(session: Session) -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            try:
                with trio.fail_after(ANSWER_WITHIN):
                    await session.call_cut_and_resume(wait)
            except (WrongAnswerError, *BROKEN) as error:
                tally.wrong(error)
                return
            tally.seconds.append(time.perf_counter() - began)

    async with trio.open_nursery() as nursery:
        for client in clients:
            if isinstance(client, Session):
                nursery.start_soon(caller, client)
    return tally


async def opening(clients: list[Client], _tool: str, seconds: float) -> Count:
    """Every client ends its session and opens another; the tally is of these."""
    tally, end = Count(), time.perf_counter() + seconds

    async def opener(client: Client) -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            try:
                with trio.fail_after(ANSWER_WITHIN):
                    await client.end()
                    await client.open()
            except (WrongAnswerError, *BROKEN) as error:
                tally.wrong(error)
                return
            tally.seconds.append(time.perf_counter() - began)

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(opener, client)
    return tally
