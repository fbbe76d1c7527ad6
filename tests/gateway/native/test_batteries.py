"""The servers that come with it, behind the gateway and for clients of both eras."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from stagedoor import open_client
from tests.support.processes import Gateway, Programs, shared_programs

__all__ = ["shared_programs"]
pytestmark = pytest.mark.e2e

ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28"}


@pytest.fixture(scope="module")
def gateway(shared_programs: Programs) -> Gateway:
    return shared_programs.gateway({"mcpServers": {"calculate": {"native": "gateway.native.calculate"}}})


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(gateway: Gateway, era: str) -> Any:
    return lambda name: partial(open_client, gateway.endpoint(name), ERAS[era])()


async def test_calculate(opened: Any) -> None:
    async with opened("calculate") as client:
        result = await client.call_tool("calculate", {"expression": "2 ** 1000"})
        assert result.structured_content == {"expression": "2 ** 1000", "result": 2**1000}
        result = await client.call_tool("calculate", {"expression": "9 ** 9 ** 9"})
        assert result.is_error
        assert "Too large" in result.text
