"""Errors by type and by code: what a handler raises, and what the client is told."""

from typing import Any

import pytest

from gateway.native import (
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    NotFoundError,
    ParseError,
    PromptNotFoundError,
    RpcError,
    Server,
    ToolError,
    error_of,
)

CODES = {
    ParseError: -32700,
    InvalidRequestError: -32600,
    MethodNotFoundError: -32601,
    InvalidParamsError: -32602,
    InternalError: -32603,
    NotFoundError: -32002,
    PromptNotFoundError: -32602,
}


@pytest.mark.parametrize(("kind", "code"), CODES.items())
async def test_a_typed_error_has_its_code_whatever_handler_raises_it(
    connect: Any, failed: Any, kind: Any, code: int
) -> None:
    server = Server("t")

    @server.tool
    @server.resource("t://x")
    @server.prompt
    async def fails() -> str:
        raise kind("what it is about")

    client = await connect(server)
    for method, params in (
        ("tools/call", {"name": "fails"}),
        ("resources/read", {"uri": "t://x"}),
        ("prompts/get", {"name": "fails"}),
    ):
        with pytest.raises(failed) as caught:
            await client.request(method, params)
        assert caught.value.code == code
    assert client.log.lines == [], "chosen, so no bug"


async def test_an_application_has_codes_of_its_own(connect: Any, failed: Any) -> None:
    server = Server("t")

    @server.tool
    async def fails(code: int) -> str:
        raise RpcError(code, "mine", {"why": [1]})

    client = await connect(server)
    for code in (42, -1, -32050, -31999, 100_000):
        with pytest.raises(failed) as caught:
            await client.call("fails", code=code)
        assert (caught.value.code, caught.value.message, caught.value.data) == (code, "mine", {"why": [1]})


@pytest.mark.parametrize("code", [-32700, -32600, -32601, -32602, -32603, -32002, 7])
async def test_an_error_from_elsewhere_is_passed_on_as_what_it_is(connect: Any, failed: Any, code: int) -> None:
    server, data = Server("t"), {"uri": "t://x"}

    @server.tool
    async def passes() -> str:
        raise error_of(code, "theirs", data)

    client = await connect(server)
    with pytest.raises(failed) as caught:
        await client.call("passes")
    assert (caught.value.code, caught.value.message, caught.value.data) == (code, "theirs", data)
    known = [kind for kind, its in CODES.items() if its == code]
    assert type(error_of(code, "x")) is (known[0] if known else RpcError)


async def test_a_bug_is_told_without_its_traceback_which_is_logged(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def bug() -> str:
        secret_place = {}  # type: dict[str, str]
        return secret_place["nothing"]

    @server.tool
    async def tells() -> str:
        raise ToolError("word for word")

    client = await connect(server)
    text = await client.error("bug")
    assert text == "KeyError: 'nothing'"
    [(event, values)] = client.log.lines
    assert (event, values["method"]) == ("native_handler_crashed", "tools/call")
    assert values["exc_info"].__traceback__ is not None
    assert await client.error("tells") == "word for word"
