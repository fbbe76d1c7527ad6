from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from pydantic import Field

from gateway.native import Context, Image, Message, Server, assistant, user

CITIES = [f"city{n}" for n in range(250)]


def playwright() -> Server:
    server = Server("t")

    @server.prompt(title="Greet")
    async def greet(name: Annotated[str, Field(title="Who", description="Whom to greet")], times: int = 1) -> str:
        """Greets somebody."""
        return "Hello " * times + name

    @server.prompt
    async def scene(ctx: Context) -> list[Message | str]:
        return ["Look:", user(Image(b"i")), assistant(f"I see, {ctx.client.name}.")]

    @server.prompt
    def travel(city: str, country: str = "") -> Message:
        return user(f"{city}, {country}")

    @server.template("city://{city}")
    async def city(city: str) -> str:
        return city

    @server.complete("travel", "city")
    async def cities(typed: str, arguments: Mapping[str, str]) -> list[str]:
        if arguments.get("country") == "none":
            return []
        return [c for c in CITIES if c.startswith(typed)]

    @server.complete("city://{city}", "city")
    async def more(typed: str, ctx: Context) -> list[str]:
        return [typed + ctx.client.name]

    return server


async def test_prompts_are_listed_with_their_arguments(connect: Any, version: str) -> None:
    client = await connect(playwright(), version)
    [greet, scene, _] = (await client.request("prompts/list"))["prompts"]
    assert [(a["name"], a["required"]) for a in greet["arguments"]] == [("name", True), ("times", False)]
    assert greet["arguments"][0]["description"] == "Whom to greet"
    assert ("title" in greet) == ("title" in greet["arguments"][0]) == (version >= "2025-06-18")
    assert scene["arguments"] == []


async def test_a_prompt_is_text_or_messages(connect: Any, version: str) -> None:
    client = await connect(playwright(), version)
    got = await client.request("prompts/get", {"name": "greet", "arguments": {"name": "Ada", "times": "2"}})
    assert got == {
        "description": "Greets somebody.",
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hello Hello Ada"}}],
    }
    scene = await client.request("prompts/get", {"name": "scene"})
    assert [(m["role"], m["content"]["type"]) for m in scene["messages"]] == [
        ("user", "text"),
        ("user", "image"),
        ("assistant", "text"),
    ]
    assert scene["messages"][2]["content"]["text"] == "I see, test."


async def test_a_prompt_without_async_works_too(connect: Any) -> None:
    client = await connect(playwright())
    got = await client.request("prompts/get", {"name": "travel", "arguments": {"city": "Rome"}})
    assert got["messages"][0]["content"]["text"] == "Rome, "


@pytest.mark.parametrize(
    "params",
    [
        {"name": "nope"},
        {"name": "greet"},
        {"name": "greet", "arguments": {"name": "x", "times": "often"}},
        {"name": "greet", "arguments": {"name": "x", "extra": "y"}},
        {"name": "greet", "arguments": 5},
    ],
)
async def test_a_wrong_name_or_argument_is_a_wrong_request(connect: Any, failed: Any, params: Any) -> None:
    client = await connect(playwright())
    with pytest.raises(failed) as caught:
        await client.request("prompts/get", params)
    assert caught.value.code == -32602


def completion(reference: dict[str, str], name: str, value: str, **context: Any) -> dict[str, Any]:
    return {"ref": reference, "argument": {"name": name, "value": value}} | ({"context": context} if context else {})


TRAVEL = {"type": "ref/prompt", "name": "travel"}
CITY = {"type": "ref/resource", "uri": "city://{city}"}


async def test_completion_gives_a_hundred_values_at_most_and_says_how_many_there_are(
    connect: Any, version: str
) -> None:
    client = await connect(playwright(), version)
    done = (await client.request("completion/complete", completion(TRAVEL, "city", "city")))["completion"]
    assert (done["values"], done["total"], done["hasMore"]) == (CITIES[:100], 250, True)
    done = (await client.request("completion/complete", completion(TRAVEL, "city", "city24")))["completion"]
    assert (len(done["values"]), done["hasMore"]) == (11, False)


async def test_completion_knows_the_other_arguments_and_its_client(connect: Any) -> None:
    client = await connect(playwright())
    params = completion(TRAVEL, "city", "c", arguments={"country": "none"})
    assert (await client.request("completion/complete", params))["completion"]["values"] == []
    done = await client.request("completion/complete", completion(CITY, "city", "x"))
    assert done["completion"]["values"] == ["xtest"]


async def test_an_argument_that_nobody_completes_has_no_values(connect: Any) -> None:
    client = await connect(playwright())
    params = completion({"type": "ref/prompt", "name": "greet"}, "name", "")
    assert (await client.request("completion/complete", params))["completion"]["values"] == []


@pytest.mark.parametrize(
    "params",
    [
        {},
        completion({"type": "ref/prompt", "name": "nope"}, "city", ""),
        completion({"type": "ref/else", "name": "travel"}, "city", ""),
        completion(TRAVEL, "planet", ""),
        {"ref": TRAVEL, "argument": {"name": "city"}},
        {"ref": TRAVEL, "argument": {"value": "x"}},
        {"ref": TRAVEL},
        {"ref": 5, "argument": {"name": "city", "value": ""}},
    ],
)
async def test_a_wrong_reference_or_argument_to_complete_is_a_wrong_request(
    connect: Any, failed: Any, params: Any
) -> None:
    client = await connect(playwright())
    with pytest.raises(failed) as caught:
        await client.request("completion/complete", params)
    assert caught.value.code == -32602


async def test_prompts_may_go(connect: Any) -> None:
    server = playwright()
    client = await connect(server)
    server.remove_prompt("greet")
    await client.until(lambda: bool(client.notes))
    assert [note[0] for note in client.notes] == ["notifications/prompts/list_changed"]


def test_what_can_not_be_completed_is_refused_when_it_is_registered() -> None:
    server = playwright()

    async def wrong(typed: str, other: str) -> list[str]:
        return []

    with pytest.raises(ValueError, match="no prompt"):
        server.complete("nope", "x")
    with pytest.raises(ValueError, match="no argument"):
        server.complete("greet", "x")
    with pytest.raises(TypeError, match="completer"):
        server.complete("greet", "name")(wrong)
