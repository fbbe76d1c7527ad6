"""Signatures as people write them: pydantic's `Field`, docstrings, optional contexts, wrappers; and what is refused."""

from __future__ import annotations

import functools
import json
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
from pydantic import Field

from gateway.native import Context, Server

if TYPE_CHECKING:
    from decimal import Decimal


async def shape(client: Any, name: str) -> dict[str, Any]:
    """The input schema of this tool."""
    listed = {tool["name"]: tool for tool in (await client.request("tools/list"))["tools"]}
    schema: dict[str, Any] = listed[name]["inputSchema"]
    return schema


async def test_a_field_may_stand_for_the_default(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def search(
        query: str = Field(description="What for", min_length=2),
        most: int = Field(default=3, ge=1),
        tags: list[str] = Field(default_factory=list),  # noqa: B008
        where: Annotated[str, Field(default="here", description="Where")] = "there",
        *,
        class_: Annotated[str, Field(alias="class")] = "none",
    ) -> str:
        return json.dumps([query, most, tags, where, class_])

    client = await connect(server)
    schema = await shape(client, "search")
    assert schema["required"] == ["query"]
    assert schema["properties"] == {
        "query": {"type": "string", "description": "What for", "minLength": 2},
        "most": {"type": "integer", "default": 3, "minimum": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "string", "default": "there", "description": "Where"},
        "class": {"type": "string", "default": "none"},
    }
    assert json.loads(await client.text("search", query="ab")) == ["ab", 3, [], "there", "none"]
    given = {"query": "ab", "most": 1, "tags": ["x"], "where": "w", "class": "c"}
    assert json.loads(await client.text("search", **given)) == list(given.values())
    assert await client.error("search") == "query: Field required"
    assert (await client.error("search", query="ab", most=0)).startswith("most: ")


async def test_a_field_in_an_annotation_may_hold_the_default(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def add(a: Annotated[int, Field(default=2)], b: Annotated[list[int], Field(default_factory=list)]) -> str:
        return json.dumps([a, b])

    client = await connect(server)
    assert "required" not in await shape(client, "add")
    assert json.loads(await client.text("add")) == [2, []]


async def test_the_arguments_of_a_prompt_may_be_fields_too(connect: Any) -> None:
    server = Server("t")

    @server.prompt
    async def ask(about: str = Field(alias="topic", description="Of what"), times: int = Field(default=1)) -> str:
        return about * times

    @server.complete("ask", "topic")
    async def topics(typed: str) -> list[str]:
        return [typed]

    client = await connect(server)
    [listed] = (await client.request("prompts/list"))["prompts"]
    assert listed["arguments"] == [
        {"name": "topic", "description": "Of what", "required": True},
        {"name": "times", "required": False},
    ]
    got = await client.request("prompts/get", {"name": "ask", "arguments": {"topic": "x", "times": "2"}})
    assert got["messages"][0]["content"]["text"] == "xx"


GOOGLE = """What the weather will be.

More of it.

Args:
    city: Where it is,
        in a second line: so.
    days (int, optional): How many.
    ctx: Not told to anybody.

Returns:
    A text.
"""
NUMPY = """What the weather will be.

More of it.

Parameters
----------
city : str
    Where it is,
    in a second line: so.
days : int, optional
    How many.

Returns
-------
A text.
"""
SPHINX = """What the weather will be.

More of it.

:param city: Where it is,
    in a second line: so.
:param int days: How many.
:returns: A text.
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
async def test_docstrings_describe_the_parameters(connect: Any, doc: str) -> None:
    server = Server("t")

    async def forecast(city: str, ctx: Context, days: int = 3) -> str:
        return city

    forecast.__doc__ = doc
    server.tool(forecast)
    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    properties = tool["inputSchema"]["properties"]
    assert properties["city"]["description"] == "Where it is, in a second line: so."
    assert properties["days"]["description"] == "How many."
    assert tool["description"].startswith("What the weather will be.\n\nMore of it.")
    assert "A text." in tool["description"]
    assert "How many" not in tool["description"], "it is said once"


async def test_what_an_annotation_says_goes_before_the_docstring(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def forecast(city: Annotated[str, Field(description="This one")], days: int = 3) -> str:
        """The weather.

        Args:
            city: Not this one.
        """
        return city

    @server.tool
    async def plain(city: str) -> str:
        """Takes words.

        Note:
            city: stays where it is.
        """
        return city

    client = await connect(server)
    assert (await shape(client, "forecast"))["properties"]["city"]["description"] == "This one"
    assert "description" not in (await shape(client, "plain"))["properties"]["city"]
    listed = {tool["name"]: tool for tool in (await client.request("tools/list"))["tools"]}
    assert listed["plain"]["description"] == "Takes words.\n\nNote:\n    city: stays where it is."


async def test_a_context_may_be_optional_or_annotated(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def one(ctx: Context | None = None) -> str:
        return str(isinstance(ctx, Context))

    @server.tool
    async def two(ctx: Annotated[Optional[Context], "mine"] = None) -> str:  # noqa: UP045
        return str(isinstance(ctx, Context))

    client = await connect(server)
    for name in ("one", "two"):
        assert (await shape(client, name))["properties"] == {}
        assert await client.text(name) == "True"


class Inner(typing.TypedDict):
    there: int
    perhaps: typing.NotRequired[int]


class Outer(typing.TypedDict, total=False):
    must: Annotated[typing.Required[Inner], Field(description="An inner")]
    can: int


async def test_a_typed_dict_needs_the_keys_that_it_says_where_annotations_are_texts(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def take(outer: Outer) -> Outer:
        return outer

    client = await connect(server)
    definitions = (await shape(client, "take"))["$defs"]
    assert (definitions["Inner"]["required"], definitions["Outer"]["required"]) == (["there"], ["must"])
    assert definitions["Outer"]["properties"]["must"]["description"] == "An inner"
    given = {"must": {"there": 1}}
    assert (await client.call("take", outer=given))["structuredContent"] == given
    assert await client.error("take", outer={"must": {"perhaps": 1}}) == "outer.must.there: Field required"


class Greets:
    """Greets."""

    async def __call__(self, name: str, ctx: Context) -> str:
        return f"Hello {name}, {ctx.client.name}."

    async def method(self, name: str, ctx: Context) -> str:
        """Greets, by a method."""
        return await self(name, ctx)


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that is no coroutine function itself."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def collected(function: Callable[..., Iterator[Any]]) -> Callable[..., list[Any]]:
    """A decorator that makes a list of what a generator yields."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> list[Any]:
        return list(function(*args, **kwargs))

    return wrapper


async def test_objects_methods_partials_and_wrapped_functions_are_handlers(connect: Any) -> None:
    server = Server("t")

    def numbers(most: int) -> Iterator[str]:
        """Counts."""
        yield from map(str, range(most))

    async def both(greeting: str, name: str, ctx: Context) -> str:
        """Says both."""
        return f"{greeting} {name}"

    server.tool(name="object")(Greets())
    server.tool(Greets().method)
    server.tool(name="partial")(functools.partial(both, "Good day"))
    server.tool(name="wrapped")(plainly(both))
    server.tool(name="collected", structured=False)(collected(numbers))
    client = await connect(server)
    assert (await client.text("object", name="Ada")).startswith("Hello Ada")
    assert (await client.text("method", name="Ada")).startswith("Hello Ada")
    assert await client.text("partial", name="Ada") == "Good day Ada"
    assert await client.text("wrapped", greeting="Hi", name="Ada") == "Hi Ada"
    assert [block["text"] for block in (await client.call("collected", most=2))["content"]] == ["0", "1"]
    listed = {tool["name"]: tool["description"] for tool in (await client.request("tools/list"))["tools"]}
    assert listed == {
        "object": "Greets.",
        "method": "Greets, by a method.",
        "partial": "Says both.",
        "wrapped": "Says both.",
        "collected": "Counts.",
    }


def test_what_can_not_be_a_handler_is_refused_in_words_that_help() -> None:
    server = Server("t")

    async def positional(a: int, /) -> None: ...
    async def rest(a: int, **more: int) -> None: ...
    async def endless(a: int) -> AsyncIterator[int]:
        yield a

    def lazy(a: int) -> Iterator[int]:
        yield a

    async def unknown(price: Decimal) -> None: ...
    async def no_form(fine: int, odd: Server) -> None: ...

    class Service:
        async def method(self, a: int) -> None: ...

    for function, words in (
        (positional, "positional: the parameter 'a' is positional only"),
        (rest, "rest: the parameter 'more' is [*][*]kwargs"),
        (endless, "endless: .* generator"),
        (lazy, "lazy: .* generator"),
        (unknown, "unknown: .*'Decimal'.* not known where the function is defined"),
        (no_form, "no_form: the parameter 'odd' has a type without a JSON form"),
        (Service.method, "method: .*'self'.* of an object"),
    ):
        with pytest.raises(TypeError, match=words):
            server.tool(function)
    assert server.tools == {}
