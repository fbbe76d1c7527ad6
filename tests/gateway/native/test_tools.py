import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import trio
from pydantic import BaseModel, Field

from gateway.native import Audio, Context, Image, Link, RpcError, Server, ToolError, ToolResult


@dataclass
class Sum:
    total: int
    terms: list[int]


class Place(BaseModel):
    name: str
    parent: "Place | None" = None


async def test_a_function_becomes_a_tool_with_its_name_docstring_and_schema(connect: Any) -> None:
    server = Server("t")

    @server.tool(title="Echo", hints={"readOnlyHint": True})
    async def echo(text: Annotated[str, Field(description="What to say")], times: int = 1) -> str:
        """Says it again."""
        return text * times

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool == {
        "name": "echo",
        "title": "Echo",
        "description": "Says it again.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "What to say"},
                "times": {"type": "integer", "default": 1},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    }
    assert await client.text("echo", text="ab", times=2) == "abab"


async def test_a_tool_without_parameters_takes_no_arguments_at_all(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def nothing() -> None:
        pass

    client = await connect(server)
    assert (await client.request("tools/call", {"name": "nothing"}))["content"] == []


async def test_parameters_may_have_names_that_pydantic_keeps_for_itself(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def odd(schema: str, _x: int, model_config: bool, copy: str = "c") -> str:
        return f"{schema}{_x}{model_config}{copy}"

    client = await connect(server)
    assert await client.text("odd", schema="s", _x=1, model_config=True) == "s1Truec"


async def test_values_that_do_not_fit_are_told_to_the_model_and_not_run(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def add(a: int, b: int = 0) -> int:
        pytest.fail("it ran")

    client = await connect(server)
    assert (await client.error("add", a="x")).startswith("a: Input should be a valid integer")
    assert await client.error("add") == "a: Field required"
    assert await client.error("add", a=1, c=2) == "c: Extra inputs are not permitted"


async def test_an_unknown_tool_and_arguments_that_are_no_object_are_wrong_requests(connect: Any, failed: Any) -> None:
    server = Server("t")
    server.tool(_identity)
    client = await connect(server)
    for params in (
        {"name": "nope"},
        {"name": 5},
        {},
        {"name": "_identity", "arguments": [1]},
        {"name": "_identity", "arguments": "x"},
    ):
        with pytest.raises(failed) as caught:
            await client.request("tools/call", params)
        assert caught.value.code == -32602


async def _identity(x: int) -> int:
    return x


async def test_an_object_is_structured_output_as_it_is_and_repeated_as_text(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def add(a: int, b: int) -> Sum:
        return Sum(a + b, [a, b])

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["outputSchema"]["properties"]["terms"] == {"type": "array", "items": {"type": "integer"}}
    result = await client.call("add", a=1, b=2)
    assert result["structuredContent"] == {"total": 3, "terms": [1, 2]}
    assert result["content"] == [{"type": "text", "text": '{"total":3,"terms":[1,2]}'}]


@pytest.mark.parametrize("returns", [list[Any], list, tuple[Any, ...]])
async def test_contents_behind_an_annotation_that_takes_anything_are_contents_too(connect: Any, returns: Any) -> None:
    server = Server("t")

    async def shots() -> Any:
        return ["one", Image(b"\x89PNG")]

    shots.__annotations__["return"] = returns
    server.tool(shots)
    image = {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
    result = await (await connect(server)).call("shots")
    assert result["content"] == [{"type": "text", "text": "one"}, image]
    assert result["structuredContent"] == {"result": ["one", image]}


async def test_contents_in_the_place_of_other_values_are_what_the_return_type_excludes(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def numbers() -> list[int]:
        return [Image(b"\x89PNG")]  # type: ignore[list-item]

    result = await (await connect(server)).call("numbers")
    assert result["isError"]


async def test_any_other_value_is_structured_as_result(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def numbers(n: int) -> list[float]:
        return [i / 2 for i in range(n)]

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["outputSchema"]["required"] == ["result"]
    assert (await client.call("numbers", n=3))["structuredContent"] == {"result": [0.0, 0.5, 1.0]}


async def test_a_recursive_type_has_an_object_at_its_root(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def place() -> Place:
        return Place(name="a", parent=Place(name="b"))

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["outputSchema"]["type"] == "object"
    assert (await client.call("place"))["structuredContent"]["parent"]["name"] == "b"


async def test_a_tool_that_returns_what_its_type_excludes_fails(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def liar() -> int:
        return "x"  # type: ignore[return-value]

    client = await connect(server)
    assert "excludes" in await client.error("liar")


async def test_a_result_said_in_full_may_hold_a_model(connect: Any) -> None:
    class Weather(BaseModel):
        degrees: int

    server = Server("t")

    @server.tool
    async def weather() -> ToolResult:
        return ToolResult(["5"], Weather(degrees=5))  # type: ignore[arg-type]

    client = await connect(server)
    assert (await client.call("weather"))["structuredContent"] == {"degrees": 5}


async def test_contents_of_every_kind_fit_every_revision(connect: Any, version: str) -> None:
    server = Server("t")

    @server.tool(structured=False)
    async def mixed() -> list[Any]:
        return ["words", Image(b"i"), Audio(b"a"), Link("x://y", "y")]

    @server.tool
    async def full() -> ToolResult:
        return ToolResult(["oh"], {"code": 1}, is_error=True)

    client = await connect(server, version)
    kinds = [block["type"] for block in (await client.call("mixed"))["content"]]
    assert kinds == [
        "text",
        "image",
        "audio" if version >= "2025-03-26" else "resource",
        "resource_link" if version >= "2025-06-18" else "text",
    ]
    result = await client.call("full")
    assert result["isError"]
    assert ("structuredContent" in result) == (version >= "2025-06-18")


async def test_a_description_is_cut_down_to_what_the_revision_knows(connect: Any, version: str) -> None:
    server = Server("t", title="T", website="https://example.com", icons=[{"src": "data:,"}])
    server.tool(title="I", hints={"title": "J"}, icons=[{"src": "data:,"}])(_identity)
    client = await connect(server, version)
    [tool] = (await client.request("tools/list"))["tools"]
    assert ("annotations" in tool) == (version >= "2025-03-26")
    assert ("outputSchema" in tool) == ("title" in tool) == (version >= "2025-06-18")
    assert ("icons" in tool) == (version >= "2025-11-25")


async def test_a_crash_is_an_error_result_that_names_it_and_the_session_lives(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def boom(kind: Literal["value", "group", "exit", "base", "str"]) -> None:
        if kind == "group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_raise, ValueError("inside"))
                await trio.sleep_forever()
        raise {
            "value": ValueError("bad"),
            "exit": SystemExit(3),
            "base": BaseException("b"),
            "str": UnspeakableError(),
        }[kind]

    client = await connect(server)
    assert await client.error("boom", kind="value") == "ValueError: bad"
    assert await client.error("boom", kind="group") == "ValueError: inside"
    assert "sys.exit" in await client.error("boom", kind="exit")
    assert await client.error("boom", kind="base") == "BaseException: b"
    assert await client.error("boom", kind="str") == "UnspeakableError"
    assert await client.request("ping") == {}
    assert [event for event, _ in client.log.lines] == ["native_handler_crashed"] * 5
    assert client.log.lines[0][1]["method"] == "tools/call"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


async def _raise(error: Exception) -> None:
    raise error


async def test_a_chosen_failure_is_told_word_for_word_and_not_logged(connect: Any, failed: Any) -> None:
    server = Server("t")

    @server.tool
    async def choose(rpc: bool) -> None:
        raise RpcError(-32000, "no \ud800", {"why": 1}) if rpc else ToolError("Try another one.")

    client = await connect(server)
    assert await client.error("choose", rpc=False) == "Try another one."
    with pytest.raises(failed) as caught:
        await client.call("choose", rpc=True)
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32000, "no ?", {"why": 1})
    assert client.log.lines == []


async def test_what_has_no_json_form_fails_its_call_alone(connect: Any) -> None:
    server = Server("t")

    @server.tool(structured=False)
    async def odd(how: str) -> Any:
        return {"object": object(), "surrogate": "\ud800"}[how]

    client = await connect(server)
    assert await client.error("odd", how="object")
    assert await client.error("odd", how="surrogate")


async def test_a_result_larger_than_a_message_may_be_is_an_error_result(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def big(n: int, ctx: Context) -> str:
        await ctx.log("info", "x" * (n if n < 0 else 1))
        return "x" * n

    client = await connect(server, message_bytes=1000)
    assert "2000" not in await client.text("big", n=10)
    assert "1000 are allowed" in await client.error("big", n=2000)


async def test_a_function_without_async_runs_in_a_thread(connect: Any) -> None:
    import threading

    server = Server("t")

    @server.tool
    def where(n: int) -> list[str]:
        if n:
            raise ValueError("no")
        return [threading.current_thread().name]

    client = await connect(server)
    [name] = (await client.call("where", n=0))["structuredContent"]["result"]
    assert name != threading.main_thread().name
    assert await client.error("where", n=1) == "ValueError: no"


def test_what_can_not_be_a_tool_is_refused_when_it_is_registered() -> None:
    server = Server("t")

    def with_context(ctx: Context) -> None: ...
    def with_rest(*args: int) -> None: ...
    async def odd(x: AsyncIterator[int]) -> None: ...
    async def unjson() -> trio.Event:
        return trio.Event()

    with pytest.raises(TypeError, match="async"):
        server.tool(with_context)
    with pytest.raises(TypeError, match="name"):
        server.tool(with_rest)
    with pytest.raises(TypeError, match="name"):
        server.tool(lambda: 1)
    with pytest.raises(TypeError, match="JSON form"):
        server.tool(unjson)
    with pytest.raises(TypeError, match="JSON form"):
        server.tool(odd)
    with pytest.raises(ValueError, match="no name"):
        server.tool(name="two words")(_identity)
    server.tool(_identity)
    with pytest.raises(ValueError, match="already"):
        server.tool(_identity)


async def test_clients_are_told_of_tools_that_come_and_go(connect: Any, attach: Any) -> None:
    server = Server("t")
    server.tool(_identity)
    early, client = attach(server), await connect(server)
    await early.initialize()
    server.remove_tool("_identity")
    await client.until(lambda: bool(client.notes))
    assert [note[0] for note in client.notes] == ["notifications/tools/list_changed"]
    assert early.notes == []
    early.notify("notifications/initialized")
    await early.until(lambda: bool(early.notes))
    assert (await client.request("tools/list"))["tools"] == []


async def test_an_async_function_behind_a_plain_decorator_works(connect: Any) -> None:
    server = Server("t")

    @functools.wraps(_identity)
    def wrapper(x: int) -> Any:
        return _identity(x)

    server.tool(wrapper)
    client = await connect(server)
    assert (await client.call("_identity", x=3))["structuredContent"] == {"result": 3}
