"""Handlers that take a request and a response: what they put together, and what they are told."""

from base64 import b64encode
from typing import Any

import pytest

from gateway.native import Context, Request, Response, Server, ToolResult
from stagedoor import open_client

PNG = b"\x89PNG"
ENCODED = b64encode(PNG).decode()


async def test_a_tool_puts_its_contents_together(connect: Any) -> None:
    server = Server("shop")

    @server.tool(input_schema={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
    async def order(req: Request, res: Response) -> Response:
        """Orders."""
        return (
            res.text(f"order {req.params['id']}")
            .image(PNG, "image/png")
            .audio(PNG, "audio/wav")
            .resource("shop://1", "inside", "text/plain")
            .blob(PNG)
            .link("shop://1")
            .link("shop://2", name="two")
            .send()
        )

    client = await connect(server)
    assert (await client.call("order", id=7))["content"] == [
        {"type": "text", "text": "order 7"},
        {"type": "image", "data": ENCODED, "mimeType": "image/png"},
        {"type": "audio", "data": ENCODED, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "shop://1", "text": "inside", "mimeType": "text/plain"}},
        {
            "type": "resource",
            "resource": {"uri": "blob:inline", "blob": ENCODED, "mimeType": "application/octet-stream"},
        },
        {"type": "resource_link", "uri": "shop://1", "name": "shop://1"},
        {"type": "resource_link", "uri": "shop://2", "name": "two"},
    ]
    assert (await client.error("order")) == '"id" is a required property'


async def test_a_response_is_sent_when_it_is_returned_and_when_nothing_else_is(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def returned(res: Response) -> Any:
        return res.text("a")

    @server.tool
    async def sent(res: Response) -> None:
        res.text("b").send()

    @server.tool
    async def written(res: Response) -> None:
        res.text("c")

    @server.tool
    async def other(res: Response) -> str:
        res.text("d")
        return "e"

    @server.tool
    def threaded(res: Response, req: Request, n: int = 1) -> Response:
        return res.text(f"f{n}{req.tool}")

    @server.tool
    async def late(res: Response) -> None:
        res.text("g").send().text("h")

    client = await connect(server)
    assert [await client.text(name) for name in ("returned", "sent", "written", "other")] == ["a", "b", "c", "e"]
    assert await client.text("threaded", n=2) == "f2threaded"
    assert await client.error("late") == "RuntimeError: the response is complete; nothing can be added to it"


@pytest.mark.parametrize("names", ["req, res", "request, response"])
async def test_the_names_do_where_there_are_no_annotations(connect: Any, names: str) -> None:
    server, namespace = Server("t"), {}
    first, _, second = names.partition(", ")
    exec(f"async def echo({names}): return {second}.text({first}.params['x'])", namespace)
    server.tool(namespace["echo"])
    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["inputSchema"] == {"type": "object"}
    assert await client.text("echo", x="hello") == "hello"


async def test_structured_output_is_sent_with_its_text_and_held_to_the_schema(connect: Any) -> None:
    server = Server("t")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    @server.tool(output_schema=schema)
    async def count(req: Request, res: Response) -> Response:
        if "text" in req.params:
            res.text(req.params["text"])
        return res.send({"n": req.params.get("n")})

    @server.tool(output_schema=schema)
    async def nothing(res: Response) -> Response:
        return res.text("none")

    client = await connect(server)
    result = await client.call("count", n=1)
    assert (result["structuredContent"], result["content"]) == ({"n": 1}, [{"type": "text", "text": '{"n":1}'}])
    assert (await client.call("count", n=1, text="one"))["content"] == [{"type": "text", "text": "one"}]
    assert "n: null is not of type" in await client.error("count")
    assert "forbids" in await client.error("nothing")


async def test_an_error_is_for_the_model_where_a_tool_says_it(connect: Any) -> None:
    server = Server("t")

    @server.tool(output_schema={"type": "object", "properties": {"left": {"type": "integer"}}, "required": ["left"]})
    async def fails(res: Response) -> Response:
        return res.text("thrown away").error("no stock", {"left": 0})

    @server.tool
    async def plainly(res: Response) -> None:
        res.error("no")

    client = await connect(server)
    result = await client.call("fails")
    assert result["isError"]
    assert [c["text"] for c in result["content"]] == ["no stock", '{"left":0}']
    assert result["structuredContent"] == {"left": 0}
    assert (await client.call("plainly"))["content"] == [{"type": "text", "text": "no"}]
    assert client.log.lines == []


async def test_details_that_the_output_schema_forbids_are_text_alone(connect: Any) -> None:
    """Clients that hold the structured output of a failure to the schema too would see no failure: the TypeScript SDK 1
    throws."""
    server = Server("t")
    price = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}

    @server.tool(output_schema=price)
    async def built(res: Response) -> Response:
        return res.error("no stock", {"left": 0})

    @server.tool(output_schema=price)
    async def whole() -> ToolResult:
        return ToolResult(["no stock"], {"left": 0}, is_error=True)

    client = await connect(server)
    for name in ("built", "whole"):
        result = await client.call(name)
        assert result["isError"]
        assert [c["text"] for c in result["content"]] == ["no stock", '{"left":0}']
        assert "structuredContent" not in result


async def test_elsewhere_an_error_is_one_of_json_rpc(connect: Any, failed: Any) -> None:
    server = Server("t")

    @server.resource("t://x")
    async def read(res: Response) -> Response:
        return res.error("locked", {"by": "me"})

    @server.prompt
    async def say(res: Response) -> Response:
        return res.error("speechless")

    client = await connect(server)
    with pytest.raises(failed) as caught:
        await client.request("resources/read", {"uri": "t://x"})
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32603, "locked", {"by": "me"})
    with pytest.raises(failed, match="speechless"):
        await client.request("prompts/get", {"name": "say"})


async def test_a_prompt_puts_its_messages_together(connect: Any) -> None:
    server = Server("t")

    @server.prompt(arguments=[{"name": "city", "description": "Where", "required": True}, "days"])
    async def pack(req: Request, res: Response) -> Response:
        city = req.params["city"]
        return (
            res.system("Be short.").user().text(f"To {city}").image(PNG).audio(PNG).llm("Rain?").user().blob(PNG)
        ).resource("t://x", "x")

    client = await connect(server)
    [prompt] = (await client.request("prompts/list"))["prompts"]
    assert prompt["arguments"] == [
        {"name": "city", "description": "Where", "required": True},
        {"name": "days", "required": False},
    ]
    messages = (await client.request("prompts/get", {"name": "pack", "arguments": {"city": "Rome"}}))["messages"]
    assert [(m["role"], m["content"]["type"]) for m in messages] == [
        ("user", "text"),
        ("user", "text"),
        ("user", "image"),
        ("user", "audio"),
        ("assistant", "text"),
        ("user", "resource"),
        ("user", "resource"),
    ]
    assert [m["content"]["text"] for m in messages[:2]] == ["Be short.", "To Rome"]


async def test_arguments_of_a_prompt_by_hand_are_checked(connect: Any, failed: Any) -> None:
    server = Server("t")

    @server.prompt(arguments=[{"name": "city", "required": True}, "days"])
    async def pack(city: str, days: int = 3) -> str:
        return f"{city} {days}"

    client = await connect(server)
    got = await client.request("prompts/get", {"name": "pack", "arguments": {"city": "Rome", "days": "4"}})
    assert got["messages"][0]["content"]["text"] == "Rome 4"
    for arguments in ({}, {"city": "Rome", "other": "x"}, {"city": 5}, {"city": "Rome", "days": "many"}):
        with pytest.raises(failed) as caught:
            await client.request("prompts/get", {"name": "pack", "arguments": arguments})
        assert caught.value.code == -32602
        assert caught.value.data == {"executed": "no"}
    with pytest.raises(ValueError, match="a name of its own"):
        server.prompt(arguments=["x", "x"])(pack)


async def test_a_resource_is_put_together_and_told_what_is_read(connect: Any) -> None:
    server, told = Server("t"), []

    @server.resource("t://fixed", mime_type="text/markdown")
    async def fixed(req: Request, res: Response) -> Response:
        told.append((req.resource, req.uri, req.uri_template, req.params))
        return res.text("# a").text("{}", "application/json").blob(PNG, "image/png").resource("t://y", "y")

    @server.template("t://{kind}/{+rest}")
    async def any_of_them(req: Request, res: Response, kind: str, rest: str) -> Response:
        told.append((req.resource, req.uri, req.uri_template, req.params))
        return res.text(f"{kind} {rest}")

    client = await connect(server)
    assert (await client.request("resources/read", {"uri": "t://fixed"}))["contents"] == [
        {"uri": "t://fixed", "mimeType": "text/markdown", "text": "# a"},
        {"uri": "t://fixed", "mimeType": "application/json", "text": "{}"},
        {"uri": "t://fixed", "mimeType": "image/png", "blob": ENCODED},
        {"uri": "t://y", "text": "y"},
    ]
    read = await client.request("resources/read", {"uri": "t://a/b/c"})
    assert read["contents"] == [{"uri": "t://a/b/c", "mimeType": "text/plain", "text": "a b/c"}]
    assert told == [
        ("fixed", "t://fixed", None, {}),
        ("any_of_them", "t://a/b/c", "t://{kind}/{+rest}", {"kind": "a", "rest": "b/c"}),
    ]


async def test_a_template_of_a_response_needs_no_parameters(connect: Any) -> None:
    server = Server("t")

    @server.template("t://{kind}")
    async def one(req: Request, res: Response) -> Response:
        return res.text(req.params["kind"])

    client = await connect(server)
    assert (await client.request("resources/read", {"uri": "t://a"}))["contents"][0]["text"] == "a"


async def test_a_request_says_who_sent_it_and_to_what(connect: Any) -> None:
    server = Server("t", version="3")

    @server.tool
    async def who(req: Request, ctx: Context) -> list[Any]:
        assert req.server is server
        assert req.context is ctx
        assert (req.prompt, req.resource, req.uri, req.uri_template) == (None, None, None, None)
        client = req.caller.client
        return [req.tool, req.caller.principal, client.name, client.version, req.caller.capabilities, req.params]

    client = await connect(server, capabilities={"roots": {}})
    told = (await client.call("who", a=1))["structuredContent"]["result"]
    assert told == ["who", None, "test", "1", {"roots": {}}, {"a": 1}]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_request_says_which_client_sent_it_with_sessions_and_without(version: str) -> None:
    server = Server("t")

    @server.tool
    async def who(req: Request, ctx: Context) -> list[Any]:
        client = req.caller.client
        assert client == ctx.client
        return [client.name, client.version, client.title, sorted(req.caller.capabilities)]

    told = {"name": "mine", "version": "9", "title": "Mine"}
    async with open_client(server, version, info=told, roots=["file:///a"]) as client:
        answer = (await client.call_tool("who")).structured_content
        assert answer == {"result": ["mine", "9", "Mine", ["roots"]]}
