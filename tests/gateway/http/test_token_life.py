"""What was begun with a token ends with it, cleanly; and with the access of its bearer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio

from actors.ports import Asker, Principal, Rights
from actors.protocol.rights import SKEW
from gateway.http.authorization import Authorization, Resource
from gateway.http.security import Security
from gateway.http.token_life import LimitedSource, TokenLife
from tests.gateway.http.conftest import FakeSource

NOW = 1_800_000_000.0


@dataclass
class Revoking:
    everybody: bool = False

    def revoked(self, asker: Asker) -> bool:
        return self.everybody


def token_life(left: float | None = 10.0, revocations: Revoking | None = None) -> TokenLife:
    start = trio.current_time()
    expiry = None if left is None else NOW + left - SKEW
    asker = Asker(Principal("ann"), Rights("https://idp.test", "ann", expiry=expiry))
    return TokenLife(asker, (revocations or Revoking()).revoked, lambda: NOW + trio.current_time() - start)


async def test_a_stream_ends_with_its_token_and_loses_nothing_before(autojump_clock: Any) -> None:
    source = FakeSource().push(b"1", b"2")
    limited = LimitedSource(source, token_life(), expires=True)
    start = trio.current_time()
    assert [await limited.receive() for _ in range(2)] == [b"1", b"2"]
    assert await limited.receive() is None
    assert trio.current_time() - start == 10.0
    source.push(b"3")
    assert await limited.receive() is None
    limited.close()
    assert source.closed.is_set()


async def test_the_answer_to_a_request_may_come_later(autojump_clock: Any) -> None:
    source = FakeSource()
    limited = LimitedSource(source, token_life(), expires=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 100)
        await trio.sleep(50)
        source.push(b"answer")
        assert await limited.receive() == b"answer"


@pytest.mark.parametrize("expires", [True, False])
async def test_nothing_more_goes_to_whom_the_access_was_taken_from(autojump_clock: Any, expires: bool) -> None:
    revoking = Revoking()
    limited = LimitedSource(FakeSource().push(b"1", b"2"), token_life(None, revoking), expires=expires)
    assert await limited.receive() == b"1"
    revoking.everybody = True
    assert await limited.receive() is None


async def test_a_fresh_token_lengthens_what_goes_on_by_messages(autojump_clock: Any) -> None:
    found = token_life(10.0)
    found.renewed(Rights("https://idp.test", "ann", expiry=NOW + 100 - SKEW))
    await trio.sleep(50)
    assert not found.over
    found.renewed(Rights("https://idp.test", "ann", expiry=NOW + 20 - SKEW))  # an older one takes nothing away
    await trio.sleep(49)
    assert not found.over
    await trio.sleep(1)
    assert found.over


@pytest.mark.parametrize(("method", "ends"), [("GET", True), ("POST", False)])
async def test_the_edge_ends_gets_and_lets_answers_come(
    ask: Any, make_app: Any, door: Any, method: str, ends: bool
) -> None:
    class Knows:
        def known(self, token: str, resources: Any) -> None:
            """Nothing is remembered."""

        async def verify(self, token: str, resources: Any) -> Asker:
            await trio.lowlevel.checkpoint()
            return Asker(Principal("ann"), Rights("https://idp.test", "ann", expiry=1.0))  # long ago

    resource = Resource("https://mcp.test", ("https://idp.test",))
    app = make_app(
        authorize=partial(Authorization, resource=resource, verifier=Knows()), security=Security("127.0.0.1")
    )
    door.stream(b"data: x\n\n", None)
    both = "application/json, text/event-stream"
    headers = {"accept": both, "content-type": "application/json", "authorization": "Bearer x"}
    heard = await ask(method, "/mcp", headers, b"{}", app=app)
    assert heard.status == 200
    assert (b"data: x" in heard.body) is not ends
    assert heard.ended
