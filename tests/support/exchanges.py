"""Requests that nobody waits for in a task of its own, waited for."""

import trio

from gateway.wire.errors import WireError
from gateway.wire.pool import Exchange, Pool, Response
from gateway.wire.url import parse_url


class Reading(Exchange):
    """Reads its answer whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body: bytes | None = None
        self.error: BaseException | None = None
        self.over = trio.Event()

    async def answered(self, response: Response) -> None:
        with response:
            self.body = await response.read(100)
        self.over.set()

    def broke(self, error: WireError) -> None:
        self.crashed(error)

    def crashed(self, error: BaseException) -> None:
        self.error = error
        self.over.set()


async def answer_to(pool: Pool, url: str, body: bytes) -> bytes | None:
    """The body of the answer to a request by `Pool.start`, which is cancelled with its caller."""
    exchange = Reading()
    pool.start("POST", parse_url(url), b"", body, exchange)
    try:
        await exchange.over.wait()
    finally:
        exchange.cancel()
    assert exchange.error is None
    return exchange.body
