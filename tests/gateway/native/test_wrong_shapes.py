"""Handlers, providers and definitions that return or raise what they should not: each harms its own request, or its own
entry in a list. All that goes out is checked against the schema by the client."""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, Any, NamedTuple

import pytest
import trio
from pydantic import AnyUrl, BeforeValidator

from gateway.native import (
    Context,
    Embedded,
    Image,
    Link,
    Message,
    Request,
    ResourceInfo,
    Response,
    RpcError,
    Server,
    Text,
    ToolError,
    ToolResult,
)
from gateway.native.revisions import fit
from tests.gateway.native.test_objects import Shop, Small, pages

WRONG: Any = 5


class UnsaidError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class UnmadeError(RpcError):
    def __init__(self) -> None:
        pass


async def test_what_is_no_content_fails_its_call_alone(connect: Any, subtests: Any) -> None:
    returned: dict[str, Any] = {
        "no text": Text(WRONG),
        "no contents": ToolResult([WRONG]),
        "no object": ToolResult(["a"], WRONG),
        "no flag": ToolResult(["a"], None, WRONG),
        "no name": Link("x:y", WRONG),
        "no type": Image(b"x", WRONG),
        "no bytes": Embedded("x:y", WRONG),
    }
    built: dict[str, Callable[[Response], Any]] = {
        "text": lambda res: res.text(WRONG),
        "error": lambda res: res.error(WRONG),
        "link": lambda res: res.link("x:y", WRONG),
        "structured": lambda res: res.send([1]),
        "twice": lambda res: res.send().send(),
        "after": lambda res: res.send().text("x"),
    }
    server = Server("t")

    @server.tool
    async def returns(req: Request, res: Response) -> Any:
        what = req.params["what"]
        return returned[what] if what in returned else built[what](res)

    client = await connect(server)
    for what in (*returned, *built):
        with subtests.test(what):
            assert "Error" in await client.error("returns", what=what)
    assert len(client.log.lines) == len(returned) + len(built), "each is a bug, and logged"


async def test_what_is_no_answer_of_a_prompt_or_completion_is_an_error(connect: Any, failed: Any) -> None:
    wrong: dict[str, Any] = {
        "role": Message("system", "x"),  # type: ignore[arg-type]
        "dict": {"a": "b"},
        "int": 5,
        "NoneType": None,
        "bytes": b"x",
        "list": ["x", ["y"]],
    }
    server = Server("t")

    @server.prompt
    async def asks(what: str, other: str = "") -> Any:
        return wrong[what]

    @server.complete("asks", "what")
    async def what(typed: str) -> Any:
        return typed if typed == "abc" else [5]

    server.prompt(name="described", description=lambda: WRONG)(_text)
    client = await connect(server)
    for name in wrong:
        said = "is no role" if name == "role" else f"returns text, contents or messages, and no {name}$"
        with pytest.raises(failed, match=f"TypeError: .*{said}"):
            await client.request("prompts/get", {"name": "asks", "arguments": {"what": name}})
    with pytest.raises(failed, match="TypeError"):
        await client.request("prompts/get", {"name": "described"})
    ref = {"ref": {"type": "ref/prompt", "name": "asks"}}
    for typed in ("abc", "x"):
        with pytest.raises(failed, match="list of texts"):
            await client.request("completion/complete", ref | {"argument": {"name": "what", "value": typed}})
    for context in ({"arguments": 5}, {"arguments": {"other": 5}}):
        given = {"argument": {"name": "what", "value": "x"}, "context": context}
        with pytest.raises(failed, match="texts by name"):
            await client.request("completion/complete", ref | given)


async def test_a_resource_may_return_contents(connect: Any, failed: Any) -> None:
    returned: list[Any] = [
        Image(b"x"),
        Text("x"),
        bytearray(b"x"),
        [Embedded("", "a"), Text("b")],
        ["c", Image(b"x")],
        ["d", "e"],
        Link("a:b", "c"),
        ["f", Link("a:b", "c")],
    ]
    server = Server("t")

    @server.template("u:{number}", mime_type="text/x")
    async def read(number: int) -> Any:
        return returned[number]

    client = await connect(server)
    found = [await client.request("resources/read", {"uri": f"u:{n}"}) for n in range(6)]
    assert [content for read in found for content in read["contents"]] == [
        {"uri": "u:0", "mimeType": "image/png", "blob": "eA=="},
        {"uri": "u:1", "mimeType": "text/x", "text": "x"},
        {"uri": "u:2", "mimeType": "text/x", "blob": "eA=="},
        {"uri": "u:3", "mimeType": "text/x", "text": "a"},
        {"uri": "u:3", "mimeType": "text/x", "text": "b"},
        {"uri": "u:4", "mimeType": "text/x", "text": "c"},
        {"uri": "u:4", "mimeType": "image/png", "blob": "eA=="},
        {"uri": "u:5", "mimeType": "text/x", "text": '["d","e"]'},
    ]
    for uri in ("u:6", "u:7"):
        with pytest.raises(failed, match="holds no links"):
            await client.request("resources/read", {"uri": uri})


async def test_an_entry_that_is_none_is_left_out_of_its_list_alone(connect: Any) -> None:
    server = Server("t")
    server.tool(name="good")(_text)
    server.tool(name="description", description=lambda: WRONG)(_text)
    for name, schema in {
        "unserializable": {"properties": {"x": {"default": object()}}},
        "properties": {"properties": []},
        "type": {"properties": {"x": {"type": "bogus"}}},
    }.items():
        server.tool(name=name, input_schema=lambda schema=schema: schema)(_text)
        server.tool(name=f"{name}.out", output_schema=lambda schema=schema: schema)(_text)
    server.prompt(name="good")(_text)
    server.prompt(name="description", description=lambda: WRONG)(_text)
    server.prompt(name="required", arguments=[{"name": "x", "required": "yes"}])(_text)
    server.resource("u:1", name="good")(_text)
    server.resource("u:2", name="description", description=lambda: WRONG)(_text)

    async def listing() -> list[Any]:
        nameless: Any = None
        return [
            ResourceInfo(WRONG, "x"),
            ResourceInfo("u:3", nameless),
            ResourceInfo("u:4", "x", size="big"),
            {"uri": "u"},
        ]  # type: ignore[arg-type]

    @server.template("v:{x}", name="listed", listing=listing)
    async def read(x: str) -> str:
        return x

    client = await connect(server)
    for method, kind, left_out in (("tools/list", "tools", 7), ("prompts/list", "prompts", 2)):
        assert [entry["name"] for entry in (await client.request(method))[kind]] == ["good"]
        assert len(client.log.lines) == left_out
        client.log.lines.clear()
    assert [entry["name"] for entry in (await client.request("resources/list"))["resources"]] == ["good"]
    assert len(client.log.lines) == 5


async def test_what_is_text_once_it_is_json_may_stand_for_text(connect: Any) -> None:
    url: Any = AnyUrl("https://example.com/x")
    server = Server("t")

    async def listing() -> list[ResourceInfo]:
        return [ResourceInfo(url, "listed")]

    @server.template("https://example.com/{x}", listing=listing)
    async def read(x: str) -> Any:
        return Embedded(url, "read")

    @server.tool
    async def links(res: Response) -> Response:
        return res.link(url).resource(url, "whole")

    client = await connect(server)
    assert (await client.request("resources/list"))["resources"] == [{"uri": str(url), "name": "listed"}]
    assert (await client.request("resources/read", {"uri": str(url)}))["contents"][0]["uri"] == str(url)
    link, resource = (await client.call("links"))["content"]
    assert (link["uri"], link["name"], resource["resource"]["uri"]) == (str(url),) * 3


@pytest.mark.parametrize("value", [object(), 1, ["x"]])
def test_what_is_no_text_in_json_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(TypeError, match=f"name can't be of type {type(value).__name__}"):
        fit("implementation", {"name": value, "version": "1"}, "2025-11-25")


async def test_whatever_is_raised_ends_its_request_alone(connect: Any, failed: Any) -> None:
    raised: dict[str, Callable[[], BaseException]] = {
        "a code that is none": lambda: RpcError("x", "y"),  # type: ignore[arg-type]
        "a message that is none": lambda: RpcError(1, WRONG),
        "no code": UnmadeError,
        "no text": UnsaidError,
        "of Python's own": GeneratorExit,
        "of another loop": asyncio.CancelledError,
        "too much": lambda: ToolError("x" * 5_000_000),
        "too much of an error": lambda: RpcError(1, "x", "x" * 5_000_000),
    }
    server = Server("t")

    @server.tool
    async def raises(what: str) -> str:
        raise raised[what]()

    @server.template("u:{what}")
    async def read(what: str) -> str:
        raise raised[what]()

    client = await connect(server)
    for what in raised:
        with pytest.raises(failed) as caught:
            await client.request("resources/read", {"uri": f"u:{what}"})
        assert (caught.value.code, len(caught.value.message) < 1000) == (-32603, True)
        if what == "no code":
            with pytest.raises(failed):
                await client.call("raises", what=what)
        else:
            assert len(await client.error("raises", what=what)) < 1000
    assert not client.closed


async def test_what_runs_beside_requests_may_not_end_the_process(connect: Any) -> None:
    server, shop = Server("t"), Shop("a")

    async def unsubscribe(uri: str) -> None:
        raise SystemExit(3)

    shop.unsubscribe = unsubscribe  # type: ignore[method-assign]
    server.provide("shop", shop)

    @server.background
    async def leave() -> None:
        raise SystemExit(3)

    client = await connect(server)
    await client.request("resources/subscribe", {"uri": "shop://a"})
    await client.request("ping")
    client.transport.close()
    await client.until(lambda: bool(client.closed))
    assert client.closed[0].reason == "closed"
    assert [values["method"] for _, values in client.log.lines] == ["background", "resources/unsubscribe"]


async def test_progress_that_is_no_number_is_not_sent(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def reports(ctx: Context) -> None:
        for value, total in ((1.0, float("inf")), (float("nan"), None), (float("inf"), None), (2, 3)):
            await ctx.progress(value, total)
        await ctx.progress(3, message=WRONG)

    client = await connect(server)
    result = await client.request("tools/call", {"name": "reports", "_meta": {"progressToken": 7}})
    assert "message can't be of type int" in result["content"][0]["text"]
    said = [{k: v for k, v in params.items() if k != "progressToken"} for _, params, _ in client.notes]
    assert said == [{"progress": 1}, {"progress": 2, "total": 3}]


async def test_what_is_listed_may_change_while_it_is(connect: Any, autojump_clock: Any) -> None:
    server = Server("t")

    async def listing() -> list[ResourceInfo]:
        await trio.sleep(1)
        server.template(f"w{len(server.templates)}:{{x}}", name="new")(read)
        return [ResourceInfo("v:1", "1")]

    async def read(x: str) -> str:
        return x

    server.template("v:{x}", listing=listing)(read)

    class Leaving(Small):
        async def list(self, cursor: str | None) -> tuple[list[ResourceInfo], str | None]:
            server.unprovide("b")
            return [], None

    server.provide("a", Leaving())
    server.provide("b", Small())
    server.provide("c", Shop("z", scheme="c"))
    client = await connect(server)
    assert await pages(client) == [["v:1"], ["c://z"]]


async def test_an_empty_cursor_of_a_provider_is_the_end(connect: Any) -> None:
    server = Server("t")

    class Ending(Small):
        async def list(self, cursor: str | None) -> tuple[list[ResourceInfo], str | None]:
            return [ResourceInfo("a:1", "1")], ""

    server.provide("a", Ending())
    server.provide("c", Shop("z", scheme="c"))
    assert await pages(await connect(server)) == [["a:1"], ["c://z"]]


async def test_objects_without_their_methods_are_refused() -> None:
    server = Server("t")
    for add in (server.add_tool, server.add_prompt, lambda thing: server.provide("x", thing)):
        with pytest.raises(TypeError):
            add(object())  # type: ignore[arg-type]


class Place(NamedTuple):
    x: int
    y: int = 0


class Mixed(Enum):
    A = "a"
    ONE = 1


async def test_no_type_takes_what_its_schema_excludes(connect: Any, subtests: Any) -> None:
    server = Server("t")

    @server.tool
    async def takes(
        numbers: set[int] = set(),  # noqa: B006
        each: Iterable[int] = (),
        place: Place = Place(1),  # noqa: B008
        choice: Mixed = Mixed.A,
        number: float = 0.0,
        read: Annotated[int, BeforeValidator(int)] = 0,
        nested: dict[str, list[frozenset[str]]] = {},  # noqa: B006
    ) -> str:
        return f"{sorted(numbers)} {list(each)} {place.x} {choice.name} {number} {read} {len(nested)}"

    client = await connect(server)
    wrong = {
        "numbers": [1, 1],
        "each": "123",
        "place": {"x": 1},
        "choice": True,
        "read": "5",
        "nested": {"a": [["b", "b"]]},
    }
    for name, value in wrong.items():
        with subtests.test(name):
            assert (await client.error("takes", **{name: value})).startswith(name)
    assert await client.text("takes", numbers=[1, 2], each=[3], place=[4], choice=1) == "[1, 2] [3] 4 ONE 0.0 0 0"
    id = 99
    client.methods[id] = "tools/call"
    call = b'{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"takes","arguments":{"number":1e400}}}'
    client.transport.send(call, id=id)
    assert (await client.answer_to(id))["content"][0]["text"] == "number: Input should be a finite number"


async def test_a_number_that_is_none_is_no_number_in_a_result(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def average() -> float:
        return float("nan")

    @server.tool
    async def averages() -> dict[str, float | None]:
        return {"NaN": 1.0, "y": float("inf")}

    client = await connect(server)
    assert "output schema forbids" in await client.error("average")
    assert (await client.call("averages"))["structuredContent"] == {"NaN": 1.0, "y": None}


async def _text() -> str:
    return "text"
