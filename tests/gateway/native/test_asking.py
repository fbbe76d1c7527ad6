from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
import trio
from pydantic import BaseModel, Field

from gateway.native import (
    Audio,
    ClientRefusedError,
    ClientTimeoutError,
    ClientUnableError,
    Context,
    Embedded,
    Image,
    Link,
    Message,
    Server,
    UrlElicitation,
    UrlRequiredError,
    assistant,
    user,
)

SAID = {"role": "assistant", "content": {"type": "text", "text": "four"}, "model": "m", "stopReason": "endTurn"}


class Size(Enum):
    S = "s"
    L = "l"


class Order(BaseModel):
    name: str = Field(min_length=1, description="Who")
    size: Size = Size.S
    count: int = Field(default=1, ge=1, le=9)
    gift: bool = False
    colour: Literal["red", "blue"] | None = None


def asking_server(**options: Any) -> Server:
    server = Server("t", **options)

    @server.tool
    async def sample(what: str, ctx: Context) -> str:
        answer = await ctx.sample([user(what), Message("assistant", Image(b"i"))], max_tokens=7, system_prompt="s")
        return f"{answer.model}:{answer.text}:{answer.stop_reason}"

    @server.tool
    async def order(ctx: Context) -> str:
        filled = await ctx.elicit("Your order?", Order)
        return filled.action if filled.content is None else f"{filled.content.name} {filled.content.size.name}"

    @server.tool
    async def roots(ctx: Context) -> list[str]:
        return [f"{root.uri} {root.name}" for root in await ctx.roots()]

    @server.tool
    async def visit(id: str, ctx: Context) -> str:
        return await ctx.elicit_url(UrlElicitation("Please confirm", "https://example.com/c", id))

    @server.tool
    async def locked(id: str) -> None:
        raise UrlRequiredError([UrlElicitation("Sign in", "https://example.com/s", id)])

    @server.tool
    async def patient(ctx: Context) -> str:
        try:
            await ctx.roots()
        except ClientRefusedError as refused:
            return f"refused {refused.code} {refused.message}"
        except ClientTimeoutError:
            return "silence"
        return "answered"

    return server


async def test_sampling_reaches_the_client_on_the_stream_of_its_call(connect: Any, version: str) -> None:
    client = await connect(asking_server(), version)
    client.on("sampling/createMessage", SAID)
    id = client.post("tools/call", {"name": "sample", "arguments": {"what": "2+2?"}})
    result = await client.answer_to(id)
    assert result["content"][0]["text"] == "m:four:endTurn"
    [(question, related)] = client.asked
    assert related == id
    assert question["params"]["maxTokens"] == 7
    assert question["params"]["messages"][0] == {"role": "user", "content": {"type": "text", "text": "2+2?"}}


async def test_a_question_may_have_a_key(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def roots(key: str, ctx: Context) -> int:
        return len(await ctx.roots(key=key))

    client = await connect(server)
    client.on("roots/list", {"roots": []})
    assert await client.text("roots", key="where") == '{"result":0}'
    [(question, _)] = client.asked
    assert question["params"] == {"_meta": {"stagedoor/key": "where"}}
    for bad in ("1", "", "a b", "x" * 65):
        assert "is no key" in await client.error("roots", key=bad)
    assert len(client.asked) == 1


@pytest.mark.parametrize(
    ("feature", "required"),
    [
        ("roots", {"roots": {}}),
        ("sampling", {"sampling": {}}),
        ("sampling.tools", {"sampling": {"tools": {}}}),
        ("elicitation", {"elicitation": {"form": {}}}),
        ("elicitation.url", {"elicitation": {"url": {}}}),
    ],
)
def test_what_a_client_would_have_to_declare_is_in_wire_form(feature: Any, required: Any) -> None:
    assert ClientUnableError(feature).required == required


async def test_sampling_with_tools_goes_to_a_client_that_declared_it_alone(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def think(ctx: Context) -> str:
        tool = {"name": "look", "inputSchema": {"type": "object"}}
        first = await ctx.sample("go", tools=[tool], tool_choice={"mode": "auto"})
        [use] = first.content
        done = [{"type": "tool_result", "toolUseId": use["id"], "content": [{"type": "text", "text": "seen"}]}]
        said = Message("assistant", first.content)
        return (await ctx.sample([user("go"), said, Message("user", done)], tools=[tool])).text

    def play(params: dict[str, Any]) -> dict[str, Any]:
        use = {"type": "tool_use", "id": "u", "name": "look", "input": {}}
        return SAID if len(params["messages"]) > 1 else {**SAID, "content": [use], "stopReason": "toolUse"}

    able = await connect(server)
    able.on("sampling/createMessage", play)
    assert await able.text("think") == "four"
    unable = await connect(server, capabilities={"sampling": {}})
    assert "sampling.tools" in await unable.error("think")
    assert unable.asked == []


async def test_context_of_servers_needs_its_own_capability_since_the_revision_that_has_it(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample(assistant("hm"), include_context="thisServer")).text

    newer = await connect(server, capabilities={"sampling": {}})
    assert "sampling.context" in await newer.error("ask")
    older = await connect(server, "2025-06-18", capabilities={"sampling": {}})
    older.on("sampling/createMessage", SAID)
    assert await older.text("ask") == "four"


@pytest.mark.parametrize("form_version", ["2025-06-18", "2025-11-25"])
async def test_a_model_becomes_a_form_and_the_answer_an_instance_of_it(connect: Any, form_version: str) -> None:
    client = await connect(asking_server(), form_version)
    client.on("elicitation/create", {"action": "accept", "content": {"name": "Ada", "size": "l"}})
    assert await client.text("order") == "Ada L"
    [(question, _)] = client.asked
    newest = form_version == "2025-11-25"
    assert question["params"].get("mode") == ("form" if newest else None)
    schema = question["params"]["requestedSchema"]
    assert schema["required"] == ["name"]
    assert schema["properties"]["name"] == {"type": "string", "title": "Name", "description": "Who", "minLength": 1}
    assert schema["properties"]["size"]["enum"] == ["s", "l"]
    assert ("default" in schema["properties"]["count"]) == newest
    assert schema["properties"]["gift"]["default"] is False
    assert schema["properties"]["colour"] == {"type": "string", "enum": ["red", "blue"], "title": "Colour"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "decline"}, "decline"),
        ({"action": "cancel"}, "cancel"),
    ],
)
async def test_a_form_may_be_declined(connect: Any, answer: Any, said: str) -> None:
    client = await connect(asking_server())
    client.on("elicitation/create", answer)
    assert await client.text("order") == said


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "accept"},
        {"action": "accept", "content": {"name": ""}},
        {"action": "accept", "content": {}},
        {"action": "perhaps"},
        {"content": {}},
        {"action": 5},
    ],
)
async def test_an_answer_that_is_none_fails_the_call_with_the_reason(connect: Any, answer: Any) -> None:
    client = await connect(asking_server())
    client.on("elicitation/create", answer)
    assert await client.error("order")
    assert client.log.lines == []


async def test_a_schema_and_other_types_may_be_forms_too(connect: Any) -> None:
    @dataclass
    class Point:
        x: float
        tags: list[Literal["a", "b"]]

    server = Server("t")

    @server.tool
    async def both(ctx: Context) -> str:
        plain = await ctx.elicit("?", {"type": "object", "properties": {"x": {"type": "number"}}})
        typed = await ctx.elicit("?", Point)
        assert typed.content
        return f"{plain.content} {typed.content.x} {typed.content.tags}"

    client = await connect(server)
    client.on("elicitation/create", {"action": "accept", "content": {"x": 1, "tags": ["a"]}})
    assert await client.text("both") == "{'x': 1, 'tags': ['a']} 1.0 ['a']"
    older = await connect(server, "2025-06-18")
    older.on("elicitation/create", {"action": "accept", "content": {"x": 1}})
    assert "multiple choice" in await older.error("both")


async def test_an_answer_is_held_to_a_schema_by_hand(connect: Any) -> None:
    server = Server("t")
    size = {"type": "string", "enum": ["s", "l"]}

    @server.tool
    async def ask(ctx: Context, wrong: bool = False) -> str:
        form = {"type": "object", "properties": {"size": size}, "required": 5 if wrong else ["size"]}
        return str((await ctx.elicit("?", form)).content)

    client = await connect(server)
    for content, said in [
        ({"size": "m"}, 'The answer does not fit the form: size: "m" is not one of "s" or "l"'),
        ({}, 'The answer does not fit the form: "size" is a required property'),
    ]:
        client.on("elicitation/create", {"action": "accept", "content": content})
        assert await client.error("ask") == said
    client.on("elicitation/create", {"action": "accept", "content": {"size": "l"}})
    assert await client.text("ask") == "{'size': 'l'}"
    asked = len(client.asked)
    assert "not a JSON Schema" in await client.error("ask", wrong=True)
    assert len(client.asked) == asked, "nobody is asked for what can't be checked"


async def test_a_form_with_more_than_simple_fields_is_refused_before_it_is_sent(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def nested(how: str, ctx: Context) -> None:
        await ctx.elicit("?", {"list": list[int], "model": dict[str, Order]}[how])  # type: ignore[arg-type]

    @server.tool
    async def deep(ctx: Context) -> None:
        await ctx.elicit("?", {"type": "object", "properties": {"x": {"type": "object"}}})

    client = await connect(server)
    assert "flat object" in await client.error("nested", how="list")
    assert "'x'" in await client.error("deep")
    assert client.asked == []


@pytest.mark.parametrize(
    ("capabilities", "tool"),
    [
        ({}, "sample"),
        ({}, "order"),
        ({}, "roots"),
        ({"elicitation": {}}, "visit"),
        ({"elicitation": {"url": {}}}, "order"),
    ],
)
async def test_a_client_is_never_asked_for_what_it_did_not_declare(connect: Any, capabilities: Any, tool: str) -> None:
    client = await connect(asking_server(), capabilities=capabilities)
    arguments = {"sample": {"what": "?"}, "visit": {"id": "1"}}.get(tool, {})
    assert "has not declared it" in await client.error(tool, **arguments)
    assert client.asked == []


async def test_forms_do_not_exist_before_the_revision_that_has_them(connect: Any) -> None:
    client = await connect(asking_server(), "2025-03-26")
    assert "has not declared it" in await client.error("order")


async def test_roots_are_values(connect: Any, version: str) -> None:
    client = await connect(asking_server(), version)
    client.on("roots/list", {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]})
    assert "file:///a A" in await client.text("roots")
    client.on("roots/list", {"roots": [{}]})
    assert "lacks" in await client.error("roots")


async def test_an_error_of_the_client_reaches_the_handler(connect: Any, failed: Any) -> None:
    client = await connect(asking_server())
    client.on("roots/list", failed({"code": -1, "message": "no"}))
    assert await client.text("patient") == "refused -1 no"
    assert await client.error("roots") == "The client refused roots/list: no"


async def test_a_client_that_does_not_answer_is_not_waited_for_longer_than_patience(
    connect: Any, autojump_clock: Any
) -> None:
    client = await connect(asking_server(patience=20))
    started = trio.current_time()
    id = client.post("tools/call", {"name": "patient", "arguments": {}})
    with trio.fail_after(30):
        while id not in client.answers:
            await trio.sleep(1)
    assert client.answers[id][0]["result"]["content"][0]["text"] == "silence"
    assert trio.current_time() - started < 22
    question = client.asked[0][0]
    assert [(n, p["requestId"], related) for n, p, related in client.notes] == [
        ("notifications/cancelled", question["id"], id)
    ]
    client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
    assert await client.request("ping") == {}


async def test_a_cancelled_call_withdraws_its_question_and_gets_no_answer(connect: Any) -> None:
    client = await connect(asking_server())
    id = client.post("tools/call", {"name": "roots", "arguments": {}})
    await client.until(lambda: bool(client.asked))
    client.notify("notifications/cancelled", {"requestId": id, "reason": "enough"})
    await client.until(lambda: bool(client.notes))
    assert client.notes[0][0] == "notifications/cancelled"
    assert await client.request("ping") == {}
    assert id not in client.answers


async def test_questions_wait_until_the_client_is_ready(attach: Any) -> None:
    client = attach(asking_server())
    client.on("roots/list", {"roots": []})
    await client.initialize()
    id = client.post("tools/call", {"name": "patient", "arguments": {}})
    await client.request("ping")
    assert client.asked == []
    client.notify("notifications/initialized")
    assert (await client.answer_to(id))["content"][0]["text"] == "answered"


async def test_questions_that_wait_are_bounded(connect: Any) -> None:
    server = Server("t")

    @server.tool
    async def flood(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ctx.roots)

    client = await connect(server)
    assert "too many" in await client.error("flood")
    assert len(client.asked) == 64


async def test_only_the_client_that_was_sent_to_a_page_hears_that_the_visit_is_over(connect: Any) -> None:
    server = asking_server()
    first, second = await connect(server), await connect(server)
    for client in (first, second):
        client.on("elicitation/create", {"action": "accept"})
    assert await first.text("visit", id="1") == "accept"
    assert await second.text("visit", id="2") == "accept"
    server.elicitation_complete("1")
    server.elicitation_complete("1")
    server.elicitation_complete("nobody's")
    assert first.notes == [("notifications/elicitation/complete", {"elicitationId": "1"}, None)]
    assert second.notes == []


async def test_a_page_to_visit_first_is_an_error_with_its_code_for_a_client_that_opens_pages(
    connect: Any, failed: Any
) -> None:
    server = asking_server()
    client = await connect(server)
    with pytest.raises(failed) as caught:
        await client.call("locked", id="7")
    assert caught.value.code == -32042
    page = {"mode": "url", "message": "Sign in", "url": "https://example.com/s", "elicitationId": "7"}
    assert caught.value.data == {"elicitations": [page]}
    server.elicitation_complete("7")
    assert [note[0] for note in client.notes] == ["notifications/elicitation/complete"]
    other = await connect(server, "2025-06-18")
    assert await other.error("locked", id="8") == "Sign in: https://example.com/s"


@pytest.mark.parametrize(
    ("content", "revision", "sent"),
    [
        (Link("x://y", "y"), "2025-11-25", {"type": "text", "text": "y: x://y"}),
        (Embedded("x://y", "words"), "2025-11-25", {"type": "text", "text": "words"}),
        (Audio(b"a"), "2025-03-26", {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"}),
        ([{"type": "text", "text": "one"}], "2025-06-18", {"type": "text", "text": "one"}),
        (Embedded("x://y", b"bytes"), "2025-11-25", None),
        (Audio(b"a"), "2024-11-05", None),
        ([{"type": "text", "text": "one"}] * 2, "2025-06-18", None),
    ],
)
async def test_a_model_is_given_what_it_can_read_and_nothing_else(
    connect: Any, content: Any, revision: str, sent: Any
) -> None:
    server = Server("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample(Message("user", content))).text

    client = await connect(server, revision)
    client.on("sampling/createMessage", SAID)
    if sent is None:
        assert "ValueError" in await client.error("ask")
        assert client.asked == []
    else:
        assert await client.text("ask") == "four"
        assert client.asked[0][0]["params"]["messages"][0]["content"] == sent


@pytest.mark.parametrize("bug", [False, True])
async def test_tasks_of_a_nursery_that_fail_on_purpose_fail_as_one_of_them_does(connect: Any, bug: bool) -> None:
    server = Server("t")

    async def ask(ctx: Context) -> None:
        await ctx.sample("well?")

    async def stumble() -> None:
        raise ValueError("a bug")

    @server.tool
    async def both(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, ctx)
            nursery.start_soon(ask, ctx)
            if bug:
                nursery.start_soon(stumble)

    client = await connect(server, capabilities={})
    result = await client.call("both")
    assert result["isError"]
    lacking = {"stagedoor/requiredCapabilities": {"sampling": {}}}
    assert result.get("_meta") == (None if bug else lacking)
    assert bool(client.log.lines) == bug
