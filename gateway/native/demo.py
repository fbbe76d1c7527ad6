"""The demo server: one small example of everything that a server can do, with no network."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import uuid4

import trio
from pydantic import BaseModel, Field

from gateway.native.content import Audio, Embedded, Image, Link, Message, assistant, user
from gateway.native.context import Context
from gateway.native.demo_media import beep, sunset
from gateway.native.errors import ToolError, UrlElicitation
from gateway.native.server import Server

server = Server(
    "stagedoor-demo",
    version="1.0",
    title="Stagedoor demo",
    description="A small example of everything that an MCP server can do.",
    instructions="A playground: every tool shows one feature of MCP. Nothing here changes anything outside.",
)

GREETINGS = {
    "danish": "Hej",
    "dutch": "Hallo",
    "english": "Hello",
    "finnish": "Hei",
    "french": "Bonjour",
    "german": "Guten Tag",
    "greek": "Γειά σου",
    "italian": "Ciao",
    "japanese": "こんにちは",
    "spanish": "¡Hola!",
}


class Sum(BaseModel):
    """The answer of `add`."""

    total: float
    terms: list[float]


class Guest(BaseModel):
    """The form of `ask_name`."""

    name: str = Field(min_length=1, max_length=60, title="Your name")
    language: Literal["english", "french", "german", "spanish"] = Field(default="english", title="Greet me in")
    newsletter: bool = Field(default=False, title="Send me nothing, often")


# Tools --------------------------------------------------------------------------------------------------------


@server.tool(title="Echo", hints={"readOnlyHint": True})
async def echo(text: Annotated[str, Field(description="What to say back")]) -> str:
    """Says back what it is told."""
    return text


@server.tool(title="Add", hints={"readOnlyHint": True})
async def add(terms: Annotated[list[float], Field(description="The numbers to add", min_length=1)]) -> Sum:
    """Adds numbers. Shows structured output: the result is an object with a schema, not only text."""
    return Sum(total=sum(terms), terms=terms)


@server.tool(title="Count slowly", hints={"readOnlyHint": True})
async def slow_count(
    ctx: Context,
    to: Annotated[int, Field(description="Where to stop", ge=1, le=600)] = 5,
    pause: Annotated[float, Field(description="Seconds between two numbers", ge=0, le=10)] = 1.0,
) -> str:
    """Counts slowly. Shows progress and log messages while a call runs; cancel it, or cut the connection and resume."""
    await ctx.log("info", f"Counting to {to}", logger="slow_count")
    for number in range(1, to + 1):
        await trio.sleep(pause)
        await ctx.progress(number, to, f"{number} of {to}")
    await ctx.log("info", "Done counting", logger="slow_count")
    return f"Counted to {to}."


@server.tool(title="Ask my name")
async def ask_name(ctx: Context) -> str:
    """Asks for your name in a form, then greets you. Shows elicitation."""
    answer = await ctx.elicit("Who are you?", Guest)
    if answer.content is None:
        return "You would rather not say. That is fine."
    return f"{GREETINGS[answer.content.language]}, {answer.content.name}."


@server.tool(title="Open a page")
async def confirm_url(ctx: Context) -> str:
    """Asks you to open a page in your browser. Shows elicitation by URL, as servers use it for sign-in and payment."""
    id = str(uuid4())
    page = UrlElicitation("Please have a look at this page.", "https://modelcontextprotocol.io/", id)
    if await ctx.elicit_url(page) != "accept":
        return "You did not want to open it."
    # A real server would say so when the page has reported back to it.
    server.elicitation_complete(id)
    return "You agreed to open the page."


@server.tool(title="Summarize")
async def summarize(text: Annotated[str, Field(description="What to summarize", min_length=1)], ctx: Context) -> str:
    """Has your own model summarize a text in a sentence. Shows sampling."""
    answer = await ctx.sample(
        f"Summarize in one sentence:\n\n{text}", system_prompt="You are brief and exact.", max_tokens=200
    )
    return f"{answer.text}\n\n(written by {answer.model})"


@server.tool(title="List my folders", hints={"readOnlyHint": True})
async def list_roots(ctx: Context) -> str:
    """Lists the folders that your client shares with servers. Shows roots."""
    roots = await ctx.roots()
    return "\n".join(f"{root.name or '(no name)'}: {root.uri}" for root in roots) or "Your client shares no folders."


@server.tool(title="Paint", hints={"readOnlyHint": True})
async def paint() -> Image:
    """Paints a sunset. Shows images."""
    return Image(sunset(96, 64))


@server.tool(title="Beep", hints={"readOnlyHint": True})
async def play(
    pitch: Annotated[int, Field(description="In hertz", ge=100, le=4000)] = 440,
) -> Audio:
    """Beeps for a quarter of a second. Shows audio."""
    return Audio(beep(pitch, 0.25))


@server.tool(title="Links", hints={"readOnlyHint": True})
async def links() -> list[str | Link | Embedded]:
    """Points to a resource and encloses another. Shows resource links and embedded resources."""
    return [
        "The first one is for you to read, the second one is right here:",
        Link("demo://readme", "readme", "What this server is", "text/markdown"),
        Embedded("demo://greetings/italian", GREETINGS["italian"], "text/plain"),
    ]


@server.tool(title="Fail", hints={"readOnlyHint": True})
async def fail(crash: Annotated[bool, Field(description="By a bug instead of by choice")] = False) -> None:
    """Fails. Shows what a model gets to read then; the server goes on either way."""
    if crash:
        raise ZeroDivisionError("this handler has a bug")
    raise ToolError("That did not work. Ask for something else.")


# Resources ----------------------------------------------------------------------------------------------------


@server.resource("demo://readme", title="Read me", mime_type="text/markdown")
async def readme() -> str:
    """What this server is."""
    return (
        "# The Stagedoor demo\n\n"
        "Call `slow_count` and watch its progress, subscribe to the clock, "
        "let `ask_name` ask you, let `summarize` use your own model.\n"
    )


@server.resource("demo://clock", title="Clock", mime_type="text/plain", every=5.0)
async def clock() -> str:
    """What time it is. Subscribe to it: it changes every five seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@server.resource("demo://sunset.png", title="Sunset", mime_type="image/png")
async def picture() -> bytes:
    """A picture."""
    return sunset(192, 128)


@server.template("demo://greetings/{language}", title="Greetings", mime_type="text/plain")
async def greeting(language: Annotated[str, Field(description="Such as french")]) -> str:
    """How to say hello."""
    return GREETINGS.get(language.lower(), f"Nobody here speaks {language}.")


# Prompts ------------------------------------------------------------------------------------------------------


@server.prompt(title="Say hello")
async def hello(
    name: Annotated[str, Field(description="Whom to greet")],
    language: Annotated[str, Field(description="In which language")] = "english",
) -> str:
    """Greets somebody in another language. Its language is completed while you type."""
    return f"Greet {name} warmly in {language}, then explain every word of the greeting."


@server.prompt(title="Tour")
async def tour() -> list[Message]:
    """A conversation that shows this server around."""
    return [
        user("What can this server show me?"),
        assistant("Progress, logs, forms, pages, sampling, images, sounds, resources that tick. Where shall I begin?"),
        user("Count slowly to five, then ask me my name."),
    ]


@server.complete("hello", "language")
@server.complete("demo://greetings/{language}", "language")
async def languages(typed: str, arguments: Mapping[str, str]) -> list[str]:
    """Languages that begin with what is typed."""
    return [language for language in GREETINGS if language.startswith(typed.lower())]
