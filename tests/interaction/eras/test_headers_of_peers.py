"""What clients and servers say reaches no header but in a form that headers have, and harms nobody else."""

from __future__ import annotations

import pytest
import trio

from tests.interaction.backend import Request, text
from tests.interaction.stage import TRANSPARENT, Cell, Stage
from tests.support.schemas import NEWEST
from tests.support.wire_client import Message

TO_MODERN_HTTP = pytest.mark.cells((Cell(NEWEST, "memory", "http", "modern"),))
UNWRITABLE = ("x\x01y", "x\ny", "x\r\nMcp-Name: forged", "\x7f", "\x00", " edge", "z\u00fcrich")
"""Methods that no header carries: this one is never encoded (streamable-http, "Value Encoding")."""


@TO_MODERN_HTTP
@pytest.mark.requirement("isolation")
async def test_a_method_that_no_header_carries_is_refused_and_everybody_elses_calls_go_on(stage: Stage) -> None:
    backend = await stage.modern_backend()
    backend.trusting = True
    going, began = trio.Event(), trio.Event()

    @backend.tool("held")
    async def held(request: Request) -> Message:
        began.set()
        await going.wait()
        return text("done")

    other = await stage.connect(TRANSPARENT.path)
    call = other.start_call("held")
    await began.wait()
    client = await stage.connect(TRANSPARENT.path)
    client.trusting = True
    for method in UNWRITABLE:
        error = await client.refused(method)
        assert error.code == -32601, method
    going.set()
    assert (await call.result())["content"] == text("done")["content"]
    assert (await client.call("held"))["content"] == text("done")["content"]
    assert not {"forged"} & {headers.get("mcp-name") for headers in backend.headers}
