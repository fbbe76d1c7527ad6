"""What clients of 2025-03-26 find at our own address: the metadata of the issuer, and of no other one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from gateway.http.authorization import Authorization
from gateway.http.security import Security, SecurityChecks
from gateway.oauth.mirror import FRESH, Mirror
from tests.support.issuer import FakeIssuer


async def test_it_is_fetched_once_in_a_while_for_all(autojump_clock: Any) -> None:
    idp = FakeIssuer(slow=1.0)
    mirror = Mirror(idp.issuer, idp)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(mirror)
    assert b"jwks_uri" in (await mirror() or b"")
    assert len(idp.asked) == 1
    await trio.sleep(FRESH)
    idp.away = True
    assert await mirror() is None


async def test_metadata_of_another_issuer_is_not_passed_on(autojump_clock: Any) -> None:
    idp = FakeIssuer()
    liar = FakeIssuer("https://idp.test/x")

    async def http(method: str, url: str, **more: Any) -> Any:
        return await idp(method, f"{idp.issuer}/.well-known/oauth-authorization-server", **more)

    assert await Mirror(liar.issuer, http)() is None


@pytest.mark.parametrize("there", [True, False])
async def test_the_edge_answers_with_it_only_where_it_is_asked_to(autojump_clock: Any, there: bool) -> None:
    idp = FakeIssuer()
    make = partial(Authorization, mirror=Mirror(idp.issuer, idp)) if there else Authorization
    answer = await make(SecurityChecks(Security("127.0.0.1"))).issuer_metadata()
    assert (answer is not None and answer.status == 200) is there
