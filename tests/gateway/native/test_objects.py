"""Tools, prompts and resources as objects, which come and go while the server runs."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from gateway.native import (
    Context,
    NotFoundError,
    PromptDefinition,
    ResourceInfo,
    Response,
    Server,
    TemplateInfo,
    ToolDefinition,
    user,
)


class Adder:
    definition = ToolDefinition(
        "add",
        description=lambda: "Adds.",
        input_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        output_schema={"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
        title="Add",
        hints={"readOnlyHint": True},
    )

    async def execute(self, arguments: dict[str, Any], ctx: Context) -> Any:
        await ctx.progress(1)
        return {"sum": arguments["a"] + arguments.get("b", 0)} if arguments["a"] >= 0 else Response().error("negative")


class Greeter:
    definition = PromptDefinition("greet", "Greets.", [{"name": "who", "required": True}, "how"], title="Greet")

    async def get(self, arguments: dict[str, Any], ctx: Context) -> Any:
        return [user(f"Greet {arguments['who']} {arguments.get('how', 'warmly')}, {ctx.client.name}")]


class Shop:
    """A provider with everything that one may have. What it was told is in `told`."""

    def __init__(self, *names: str, size: int = 2, scheme: str = "shop") -> None:
        self.names, self.size, self.scheme = names, size, scheme
        self.told: list[tuple[str, str]] = []
        self.pause = 0.0

    async def list(self, cursor: str | None) -> tuple[list[ResourceInfo], str | None]:
        start = int(cursor or 0)
        infos = [ResourceInfo(f"{self.scheme}://{name}", name) for name in self.names[start : start + self.size]]
        return infos, str(start + self.size) if start + self.size < len(self.names) else None

    async def read(self, uri: str) -> Any:
        name = uri.removeprefix(f"{self.scheme}://")
        if name not in self.names:
            raise NotFoundError(uri)
        return Response().text(name, "text/plain").blob(b"x", "image/png") if name == "both" else {"name": name}

    async def subscribe(self, uri: str) -> None:
        await trio.sleep(self.pause)
        await self.read(uri)
        self.told.append(("subscribe", uri))

    async def unsubscribe(self, uri: str) -> None:
        await trio.sleep(self.pause)
        self.told.append(("unsubscribe", uri))

    def templates(self) -> Sequence[TemplateInfo]:
        return [TemplateInfo(f"{self.scheme}://{{name}}", "an article", mime_type="application/json")]


class Small:
    """A provider with nothing but what it must have."""

    async def list(self, cursor: str | None) -> tuple[list[ResourceInfo], str | None]:
        return [], None

    async def read(self, uri: str) -> str:
        return f"read {uri}"


async def pages(client: Any) -> list[list[str]]:
    found, cursor = [], None
    while True:
        page = await client.request("resources/list", {"cursor": cursor} if cursor else {})
        found.append([resource["uri"] for resource in page["resources"]])
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


async def test_an_executor_is_a_tool(connect: Any) -> None:
    server = Server("t")
    server.add_tool(Adder())
    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool == {
        "name": "add",
        "title": "Add",
        "description": "Adds.",
        "inputSchema": Adder.definition.input_schema,
        "outputSchema": Adder.definition.output_schema,
        "annotations": {"readOnlyHint": True},
    }
    assert (await client.call("add", a=1, b=2))["structuredContent"] == {"sum": 3}
    assert await client.error("add", a="1") == 'a: "1" is not of type "integer"'
    assert await client.error("add", a=-1) == "negative"
    assert "sum: 1.5 is not of type" in await client.error("add", a=1, b=0.5)


async def test_a_template_is_a_prompt(connect: Any, failed: Any) -> None:
    server = Server("t")
    server.add_prompt(Greeter())
    client = await connect(server)
    [prompt] = (await client.request("prompts/list"))["prompts"]
    assert prompt["arguments"] == [{"name": "who", "required": True}, {"name": "how", "required": False}]
    got = await client.request("prompts/get", {"name": "greet", "arguments": {"who": "Ada"}})
    assert (got["description"], got["messages"][0]["content"]["text"]) == ("Greets.", "Greet Ada warmly, test")
    with pytest.raises(failed, match='"who" is a required property'):
        await client.request("prompts/get", {"name": "greet"})


async def test_what_changes_at_once_is_told_once_of_each_list(connect: Any) -> None:
    server = Server("t")
    server.add_tool(Adder())
    server.add_prompt(Greeter())
    server.provide("shop", Small())

    @server.tool
    async def turn() -> None:
        server.remove_tool("add")
        server.add_tool(Adder())
        server.remove_prompt("greet")
        server.unprovide("SHOP")
        server.provide("Shop", Small())
        server.provide("other", Small())

    client = await connect(server)
    await client.call("turn")
    told = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
    assert [note[0] for note in client.notes] == told, "and before the answer"
    server.remove_tool("add")
    server.remove_tool("turn")
    await client.until(lambda: len(client.notes) == 4)
    await client.request("ping")
    assert [note[0] for note in client.notes[3:]] == told[:1]


async def test_resources_of_providers_are_listed_page_by_page_after_the_others(connect: Any, failed: Any) -> None:
    server = Server("t", page_size=1)
    server.provide("shop", Shop("a", "b", "c"))
    server.provide("none", Small())
    server.provide("last", Shop("z", scheme="last"))
    client = await connect(server)
    assert await pages(client) == [["shop://a", "shop://b"], ["shop://c"], ["last://z"]]
    for n in range(2):
        server.resource(f"own://{n}", name=f"own{n}")(_text)
    assert await pages(client) == [["own://0"], ["own://1"], ["shop://a", "shop://b"], ["shop://c"], ["last://z"]]
    cursor = (await client.request("resources/list"))["nextCursor"]
    for wrong in ("x", "cmVzb3VyY2VzOmdvbmU6MQ==", cursor[:-4]):
        with pytest.raises(failed, match="cursor"):
            await client.request("resources/list", {"cursor": wrong})


async def test_providers_are_read_by_scheme(connect: Any, failed: Any) -> None:
    server = Server("t")
    server.provide("shop", Shop("a", "both"))
    server.provide("small", Small())
    server.resource("shop://fixed")(_text)
    client = await connect(server)

    async def read(uri: str) -> Any:
        return (await client.request("resources/read", {"uri": uri}))["contents"]

    assert await read("shop://a") == [{"uri": "shop://a", "mimeType": "application/json", "text": '{"name":"a"}'}]
    assert [part["mimeType"] for part in await read("shop://both")] == ["text/plain", "image/png"]
    assert (await read("SMALL:x"))[0]["text"] == "read SMALL:x"
    assert (await read("shop://fixed"))[0]["text"] == "text"
    for uri in ("shop://none", "other://a", "nothing"):
        with pytest.raises(failed) as caught:
            await read(uri)
        assert caught.value.code == -32002
    assert (await client.request("resources/templates/list"))["resourceTemplates"] == [
        {"uriTemplate": "shop://{name}", "name": "an article", "mimeType": "application/json"}
    ]
    server.unprovide("shop")
    with pytest.raises(failed):
        await read("shop://a")


async def test_a_provider_hears_of_its_first_subscriber_and_of_its_last(
    connect: Any, failed: Any, autojump_clock: Any
) -> None:
    server, shop = Server("t"), Shop("a", "b")
    server.provide("shop", shop)
    server.provide("small", Small())
    one, two = await connect(server), await connect(server)
    for client in (one, two, one):
        await client.request("resources/subscribe", {"uri": "shop://a"})
    await one.request("resources/subscribe", {"uri": "small:x"})
    with pytest.raises(failed) as caught:
        await one.request("resources/subscribe", {"uri": "shop://none"})
    assert caught.value.code == -32002
    server.updated("shop://a")
    server.updated("shop://none")
    assert [note[1] for note in (*one.notes, *two.notes)] == [{"uri": "shop://a"}] * 2
    await one.request("resources/unsubscribe", {"uri": "shop://a"})
    assert shop.told == [("subscribe", "shop://a")]
    two.transport.close()
    await two.until(lambda: bool(two.closed))
    assert shop.told == [("subscribe", "shop://a"), ("unsubscribe", "shop://a")]
    server.updated("shop://a")
    assert len(one.notes) == 1


async def test_subscriptions_that_come_and_go_quickly_end_as_the_client_wants(
    connect: Any, autojump_clock: Any
) -> None:
    server, shop = Server("t"), Shop("a")
    server.provide("shop", shop)
    shop.pause = 1
    client = await connect(server)
    for _ in range(5):
        ids = [client.post(f"resources/{what}", {"uri": "shop://a"}) for what in ("subscribe", "unsubscribe") * 3]
        for id in ids:
            await client.answer_to(id)
        assert shop.told[-1:] in ([], [("unsubscribe", "shop://a")])
        assert len(shop.told) % 2 == 0


async def test_a_provider_in_the_place_of_another_is_told_of_its_subscribers(connect: Any, autojump_clock: Any) -> None:
    server, old, new = Server("t"), Shop("a", "b"), Shop("a")
    server.provide("shop", old)
    client = await connect(server)
    for name in "ab":
        await client.request("resources/subscribe", {"uri": f"shop://{name}"})
    await client.request("resources/unsubscribe", {"uri": "shop://b"})
    server.unprovide("shop")
    await client.request("ping")
    server.provide("shop", new)
    await client.until(lambda: ("notifications/resources/updated", {"uri": "shop://a"}, None) in client.notes)
    assert new.told == [("subscribe", "shop://a")]
    await client.request("resources/unsubscribe", {"uri": "shop://a"})
    assert new.told[1:] == [("unsubscribe", "shop://a")]


async def test_two_that_subscribe_at_a_time_have_each_its_own_outcome(
    connect: Any, failed: Any, autojump_clock: Any
) -> None:
    server, shop = Server("t"), Shop("a")
    server.provide("shop", shop)
    shop.pause = 1
    client = await connect(server)
    ids = [client.post("resources/subscribe", {"uri": "shop://none"}) for _ in range(2)]
    for id in ids:
        with pytest.raises(failed, match="not found"):
            await client.answer_to(id)
    first, second = (client.post("resources/subscribe", {"uri": "shop://a"}) for _ in range(2))
    await trio.sleep(0.5)
    client.notify("notifications/cancelled", {"requestId": first})
    await client.answer_to(second)
    third = client.post("resources/subscribe", {"uri": "shop://a"})
    client.notify("notifications/cancelled", {"requestId": third})
    await client.request("ping")
    assert shop.told == [("subscribe", "shop://a")]
    server.updated("shop://a")
    assert ("notifications/resources/updated", {"uri": "shop://a"}, None) in client.notes


@pytest.mark.parametrize("method", ["list", "read", "subscribe", "unsubscribe"])
async def test_a_provider_whose_methods_are_not_async_is_refused(method: str) -> None:
    provider = Shop("a")
    setattr(provider, method, lambda _: None)
    with pytest.raises(TypeError, match=f"its '{method}' must be async"):
        Server("t").provide("archive", provider)


async def test_executors_and_templates_whose_method_is_not_async_are_refused() -> None:
    class Plain(Adder):
        def execute(self, arguments: dict[str, Any], ctx: Context) -> Any:  # type: ignore[override]
            return 1

    class Endless(Greeter):
        async def get(self, arguments: dict[str, Any], ctx: Context) -> Any:
            yield 1

    with pytest.raises(TypeError, match="its 'execute' must be async"):
        Server("t").add_tool(Plain())
    with pytest.raises(TypeError, match="its 'get' must be async, a function that returns once"):
        Server("t").add_prompt(Endless())


async def test_a_method_may_be_anything_that_gives_something_to_wait_for(connect: Any) -> None:
    class Traced:
        def __call__(self, *given: Any) -> Any:
            return Adder().execute(*given)

    server = Server("t")
    for name, method in (("object", Traced()), ("partial", functools.partial(Adder().execute))):
        adder = Adder()
        adder.definition = ToolDefinition(name)  # type: ignore[misc]
        adder.execute = method  # type: ignore[method-assign]
        server.add_tool(adder)
        assert await (await connect(server)).text(name, a=1, b=2) == '{"sum":3}'


async def test_objects_that_lack_something_are_refused() -> None:
    server = Server("t")
    adder = Adder()
    server.add_tool(adder)
    with pytest.raises(ValueError, match="already"):
        server.add_tool(adder)
    for definition in (ToolDefinition("no name"), ToolDefinition("x", input_schema={"type": "array"})):
        adder.definition = definition  # type: ignore[misc]
        with pytest.raises(ValueError, match=r"name|root"):
            server.add_tool(adder)
    with pytest.raises(TypeError, match="ToolDefinition"):
        server.add_tool(Greeter())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="PromptDefinition"):
        server.add_prompt(Adder())  # type: ignore[arg-type]
    for scheme in ("", "1x", "a b", "shop:"):
        with pytest.raises(ValueError, match="scheme"):
            server.provide(scheme, Small())
    server.provide("a", Small())
    with pytest.raises(ValueError, match="already"):
        server.provide("A", Small())
    with pytest.raises(KeyError):
        server.unprovide("b")


async def _text() -> str:
    return "text"
