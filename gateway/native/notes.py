"""A notebook: a small server with state. Each session has notes of its own, and they are gone when it ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated

from pydantic import Field

from gateway.native.content import Link
from gateway.native.context import Context
from gateway.native.definitions import ResourceInfo
from gateway.native.errors import NotFoundError, ToolError
from gateway.native.server import Server

MOST = 100
"""Notes in one session."""


@dataclass(frozen=True, slots=True)
class Note:
    """A title and a text."""

    title: str
    text: str


@dataclass(slots=True)
class Notebook:
    """The notes of one session, by number."""

    notes: dict[int, Note] = field(default_factory=dict)
    numbers: "count[int]" = field(default_factory=lambda: count(1))


server = Server(
    "stagedoor-notes",
    version="1.0",
    title="Notes",
    description="A notebook for one conversation.",
    instructions="Keeps short notes as resources, for this session alone.",
    state=Notebook,
)


@server.tool(title="Write a note")
async def write_note(
    title: Annotated[str, Field(min_length=1, max_length=100)],
    text: Annotated[str, Field(max_length=10_000)],
    ctx: Context,
) -> list[str | Link]:
    """Keeps a note. It becomes a resource that can be read, and subscribed to."""
    book: Notebook = ctx.state
    if len(book.notes) >= MOST:
        raise ToolError(f"The notebook is full: it holds {MOST} notes. Delete one first.")
    number = next(book.numbers)
    book.notes[number] = Note(title, text)
    _changed(ctx)
    return [f"Kept as note {number}.", Link(f"notes://{number}", title, mime_type="text/plain")]


@server.tool(title="Append to a note")
async def append_to_note(number: int, text: Annotated[str, Field(min_length=1, max_length=1000)], ctx: Context) -> str:
    """Adds a line to a note; whoever subscribed to it is told."""
    book: Notebook = ctx.state
    note = _note(book, number)
    if len(note.text) + len(text) > 10_000:
        raise ToolError("The note would become too long.")
    book.notes[number] = Note(note.title, f"{note.text}\n{text}")
    ctx.updated(f"notes://{number}")
    ctx.updated("notes://all")
    return f"Added to note {number}."


@server.tool(title="Delete a note", hints={"destructiveHint": True})
async def delete_note(number: int, ctx: Context) -> str:
    """Deletes a note."""
    book: Notebook = ctx.state
    _note(book, number)
    del book.notes[number]
    _changed(ctx)
    return f"Deleted note {number}."


@server.tool(title="List the notes", hints={"readOnlyHint": True})
async def list_notes(ctx: Context) -> dict[int, str]:
    """The titles of all notes by number."""
    return {number: note.title for number, note in ctx.state.notes.items()}


@server.resource("notes://all", title="All notes", mime_type="text/markdown")
async def everything(ctx: Context) -> str:
    """All notes, one after the other."""
    notes = ctx.state.notes.items()
    return "\n\n".join(f"## {number}. {note.title}\n\n{note.text}" for number, note in notes) or "No notes yet."


async def _listing(ctx: Context) -> Iterable[ResourceInfo]:
    return [
        ResourceInfo(
            f"notes://{number}", f"note-{number}", note.title, mime_type="text/plain", size=len(note.text.encode())
        )
        for number, note in ctx.state.notes.items()
    ]


@server.template("notes://{number}", title="A note", mime_type="text/plain", listing=_listing)
async def one(number: int, ctx: Context) -> str:
    """One note."""
    if number not in ctx.state.notes:
        raise NotFoundError(f"notes://{number}")
    note: Note = ctx.state.notes[number]
    return note.text


@server.complete("notes://{number}", "number")
async def numbers(typed: str, ctx: Context) -> list[str]:
    """The numbers that there are."""
    return [str(number) for number in ctx.state.notes if str(number).startswith(typed)]


@server.prompt(title="Review my notes")
async def review_notes(ctx: Context, about: str = "everything") -> str:
    """Has the model go over the notes of this session."""
    return f"Here are my notes. Tell me what they say about {about}, and what is missing.\n\n{await everything(ctx)}"


def _note(book: Notebook, number: int) -> Note:
    if number not in book.notes:
        raise ToolError(f"There is no note {number}.")
    return book.notes[number]


def _changed(ctx: Context) -> None:
    ctx.list_changed("resources")
    ctx.updated("notes://all")
