"""Servers for the client: one in this process, our gateway, and the official SDK's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.client import shop
from tests.support.ports import free_port
from tests.support.processes import ROOT, Programs, accepts, need, programs, shared_programs

__all__ = ["programs", "shared_programs"]

SDK = ROOT / ".venv-sdks" / "py-1.27" / "bin" / "python"
SDK_SHOP = Path(__file__).with_name("sdk_shop.py")
CONFIG = {"mcpServers": {"shop": {"native": "tests.gateway.client.shop:server"}}}


def in_memory(programs: Programs) -> Any:
    return shop.server


def by_gateway(programs: Programs) -> str:
    return programs.gateway(CONFIG).endpoint("shop")


def by_sdk(programs: Programs) -> str:
    need(SDK.exists(), "the official SDK's older version is")
    port = free_port()
    programs.start("sdk", [SDK, SDK_SHOP, str(port)], ready=accepts(port))
    return f"http://127.0.0.1:{port}/mcp"


WAYS: dict[str, Callable[[Programs], Any]] = {"native": in_memory, "gateway": by_gateway, "sdk": by_sdk}


@pytest.fixture(scope="module", params=WAYS)
def target(request: pytest.FixtureRequest, shared_programs: Programs) -> Any:
    """A server to open a client of."""
    return WAYS[request.param](shared_programs)
