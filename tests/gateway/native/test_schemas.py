"""Schemas by hand, by function and from every kind of annotation; what does not fit them, going in and coming out."""

import enum
import subprocess
import sys
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import pytest
import typing_extensions
from pydantic import BaseModel, Field

from gateway.native import Server, ToolResult
from gateway.native.errors import BadValuesError
from gateway.native.schemas import Arguments
from gateway.native.validation import JsonSchema

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 1}, "note": {"type": "string", "maxLength": 5}},
    "required": ["id"],
    "additionalProperties": False,
}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(typing.TypedDict):
    a: int


class Typed(typing.TypedDict, total=False):
    """A typed dict."""

    x: Annotated[int, Field(description="An x")]
    inners: typing.Required[list[Inner]]
    again: "Typed"


class Extended(typing_extensions.TypedDict):
    x: int
    y: NotRequired[str]


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Holder:
    typed: Typed


class Model(BaseModel):
    colour: Colour
    points: list[Point]


async def listed(connect: Any, server: Server) -> Any:
    client = await connect(server)
    return {t["name"]: t for t in (await client.request("tools/list"))["tools"]}


async def test_a_schema_by_hand_is_listed_as_it_is_and_checked(connect: Any) -> None:
    server = Server("t")

    @server.tool(input_schema=ORDER)
    async def order(id: int, note: str = "none") -> str:
        return f"{id} {note}"

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["inputSchema"] == ORDER
    assert await client.text("order", id=3) == "3 none"
    assert await client.error("order") == '"id" is a required property'
    assert await client.error("order", id=0) == "id: 0 is less than the minimum of 1"
    assert await client.error("order", id="3") == 'id: "3" is not of type "integer"'
    both = await client.error("order", id=0, note="longer")
    assert [fault.partition(":")[0] for fault in sorted(both.split("; "))] == ["id", "note"]
    assert "'colour' was unexpected" in await client.error("order", id=1, colour="red")


async def test_what_a_schema_by_hand_takes_may_become_a_type_of_the_handler(connect: Any) -> None:
    server = Server("t")

    @server.tool(input_schema={"properties": {"at": {"type": "object"}, "unread": {}}})
    async def go(at: Point) -> str:
        return repr(at)

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["inputSchema"]["type"] == "object"
    assert await client.text("go", at={"x": 1}, unread=5) == "Point(x=1.0, y=0.0)"
    assert await client.error("go", at={"x": "?"}) == (
        "at.x: Input should be a valid number, unable to parse string as a number"
    )


async def test_functions_are_asked_whenever_a_list_is(connect: Any) -> None:
    server, said = Server("t"), ["one"]

    @server.tool(
        description=lambda: said[-1],
        input_schema=lambda: {"type": "object", "properties": {"which": {"enum": list(said)}}},
    )
    async def pick(which: str) -> str:
        return which

    client = await connect(server)
    assert await client.text("pick", which="one") == "one"
    said.append("two")
    [tool] = (await client.request("tools/list"))["tools"]
    assert tool["description"] == "two"
    assert tool["inputSchema"]["properties"] == {"which": {"enum": ["one", "two"]}}
    assert await client.text("pick", which="two") == "two"
    assert "which" in await client.error("pick", which="three")


async def test_one_whose_functions_fail_is_left_out_alone_and_logged(connect: Any) -> None:
    server = Server("t")

    @server.tool(input_schema=lambda: {"type": "array"})
    async def broken() -> None: ...

    @server.tool(description=lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    async def mute() -> None: ...

    @server.tool
    async def fine() -> str:
        return "fine"

    client = await connect(server)
    assert [t["name"] for t in (await client.request("tools/list"))["tools"]] == ["fine"]
    assert len(client.log.lines) == 2
    assert "root of a schema" in await client.error("broken")
    assert await client.text("fine") == "fine"


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"type": "nonsense"}, {"properties": {"x": {"$ref": "https://example.com/x"}}}, 5]
)
def test_what_is_no_schema_is_refused_when_it_is_registered(schema: Any) -> None:
    async def tool() -> None: ...

    for kind in ("input_schema", "output_schema"):
        with pytest.raises(ValueError, match=f"{kind}: "):
            Server("t").tool(**{kind: schema})(tool)


async def test_output_is_held_to_a_schema_by_hand_and_harms_its_own_call_alone(connect: Any) -> None:
    server = Server("t")
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}

    @server.tool(output_schema=schema)
    async def count(what: Any) -> Any:
        return what

    @server.tool(output_schema=schema)
    async def said() -> Any:
        return ToolResult(["text"], {"total": "x"})

    client = await connect(server)
    assert (await listed(connect, server))["count"]["outputSchema"] == schema
    result = await client.call("count", what={"total": 3})
    assert result["structuredContent"] == {"total": 3}
    assert result["content"] == [{"type": "text", "text": '{"total":3}'}]
    wrong = 'TypeError: the tool returned what its output schema forbids: total: "x" is not of type "integer"'
    assert await client.error("count", what={"total": "x"}) == wrong
    assert await client.error("said") == wrong
    assert '"total" is a required property' in await client.error("count", what={})
    assert "forbids" in await client.error("count", what="text")
    assert (await client.call("count", what={"total": 4}))["structuredContent"] == {"total": 4}


async def test_structured_output_said_in_full_is_held_to_the_return_type(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def point() -> Point:
        return ToolResult(["there"], {"x": "?"})  # type: ignore[return-value]

    client = await connect(server)
    assert 'x: "?" is not of type "number"' in await client.error("point")


async def test_arguments_must_fit_their_schema_as_they_are(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def add(a: int, b: float = 0, on: bool = True, many: tuple[int, ...] = ()) -> str:
        return f"{a} {b} {on} {many}"

    client = await connect(server)
    assert await client.error("add", a="5") == 'a: "5" is not of type "integer"'
    assert await client.error("add", a=1, b="2") == 'b: "2" is not of type "number"'
    assert await client.error("add", a=True) == 'a: true is not of type "integer"'
    assert "on" in await client.error("add", a=1, on="yes")
    assert await client.error("add", a=1, many=[1, "2"]) == 'many.1: "2" is not of type "integer"'
    assert await client.text("add", a=5.0, b=1, many=[1]) == "5 1.0 True (1,)"


async def test_every_kind_of_annotation_has_a_schema_and_arrives_as_what_it_says(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def all_of_them(
        model: Model,
        point: Point,
        typed: Typed,
        extended: Extended,
        holder: Holder,
        colour: Colour,
        way: Literal["up", "down"] = "up",
    ) -> list[str]:
        return [type(v).__name__ for v in (model, point, typed, extended, holder, colour, way)]

    client = await connect(server)
    [tool] = (await client.request("tools/list"))["tools"]
    properties, definitions = tool["inputSchema"]["properties"], tool["inputSchema"]["$defs"]
    assert definitions["Typed"]["required"] == ["inners"]
    assert definitions["Typed"]["properties"]["x"] == {"type": "integer", "description": "An x"}
    assert definitions["Extended"]["required"] == ["x"]
    assert definitions["Colour"]["enum"] == ["red", "blue"]
    assert properties["way"] == {"type": "string", "enum": ["up", "down"], "default": "up"}
    typed = {"inners": [{"a": 1}], "again": {"inners": []}}
    arguments = {
        "model": {"colour": "red", "points": [{"x": 1}]},
        "point": {"x": 1, "y": 2},
        "typed": typed,
        "extended": {"x": 1},
        "holder": {"typed": typed},
        "colour": "blue",
    }
    assert (await client.call("all_of_them", **arguments))["structuredContent"]["result"] == [
        "Model", "Point", "dict", "dict", "Holder", "Colour", "str",
    ]  # fmt: skip
    for place, wrong in (("typed", {"inners": [{"a": "x"}]}), ("colour", "green"), ("extended", {})):
        assert (await client.error("all_of_them", **{**arguments, place: wrong})).startswith(place)


async def test_a_typed_dict_may_be_returned(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def typed() -> Typed:
        return {"inners": [{"a": 1}], "x": 2}

    client = await connect(server)
    assert (await client.call("typed"))["structuredContent"] == {"inners": [{"a": 1}], "x": 2}


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "9" * 5000, '"\\ud800"'])
def test_arguments_that_nothing_stands_for_are_bad_arguments(value: str) -> None:
    by_hand = Arguments("by_hand", (), {"type": "object"})
    with pytest.raises(BadValuesError, match=r"^the arguments can.t be read: "):
        by_hand.parse_exactly(b'{"x":' + value.encode() + b"}")


async def test_structured_output_in_full_may_hold_what_has_a_json_form(connect: Any) -> None:
    server = Server("t")

    @server.tool(output_schema={"type": "object", "properties": {"at": {"type": "object"}}})
    async def where() -> ToolResult:
        return ToolResult(["there"], {"at": Point(1.0)})

    client = await connect(server)
    assert (await client.call("where"))["structuredContent"] == {"at": {"x": 1.0, "y": 0.0}}


def test_a_server_without_schemas_by_hand_does_not_load_their_library() -> None:
    code = "import sys, gateway.native.demo; sys.exit('jsonschema_rs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_name_of_digits_is_named_as_any_other() -> None:
    schema = JsonSchema({"additionalProperties": {"type": "number"}}, "numbers")
    for every in (False, True):
        assert schema.fault({"0": "x"}, every) == '0: "x" is not of type "number"'
        assert schema.fault({"0": float("inf")}, every) == "0: Input should be a finite number"
        assert 'is not of type "number"' in (schema.fault({"007": "x"}, every) or "")
