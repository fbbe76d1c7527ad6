"""Annotations that name as a text, within others, what is defined behind the handler."""

import functools
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import pytest

from gateway.config.references import import_object
from gateway.native import Context, Server

if TYPE_CHECKING:
    from decimal import Decimal


class Service:
    async def __call__(self, task: Optional["Task"] = None, ctx: Optional["Context"] = None) -> list["Task"]:
        return [task] if task and ctx else []

    async def method(self, tasks: dict[str, "Task"], ctx: "Context") -> list["Task"]:
        assert ctx
        return list(tasks.values())


async def first(tasks: list["Task"], more: typing.List["Task"] = []) -> Optional["Task"]:  # noqa: B006, UP006
    return (tasks + more)[0]


@dataclass
class Task:
    title: str


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def test_names_may_be_texts_within_annotations(connect: Any) -> None:
    server = Server("t")

    async def unknown(task: list["Decimal"]) -> None: ...

    server.tool(first)
    server.tool(name="object")(Service())
    server.tool(Service().method)
    server.tool(name="partial")(functools.partial(first, more=[]))
    server.tool(name="wrapped")(plainly(first))
    client = await connect(server)
    one = {"title": "x"}
    for name in ("first", "partial", "wrapped"):
        assert (await client.call(name, tasks=[one]))["structuredContent"] == {"result": one}
        assert await client.error(name, tasks=[{}]) == "tasks.0.title: Field required"
    assert (await client.call("object", task=one))["structuredContent"] == {"result": [one]}
    assert (await client.call("method", tasks={"a": one}))["structuredContent"] == {"result": [one]}
    with pytest.raises(TypeError, match=r"'Decimal'.* not known where the function is defined"):
        server.tool(unknown)


async def test_a_text_within_a_text_is_a_name_too(connect: Any) -> None:
    """As it is where `from __future__ import annotations` is added to a file that has quotes already."""
    server = Server("t")

    async def twice(task: "'Task'", ctx: "'Context'") -> "'str'":
        return f"{task.title} {type(ctx).__name__}"

    server.tool(twice)
    client = await connect(server)
    assert await client.text("twice", task={"title": "x"}) == "x Context"


MODULE = """
from dataclasses import dataclass
from typing import Optional

async def handler(task: Optional["Task"] = None) -> str:
    return repr(task)

@dataclass
class Task:
    %s: str
"""


async def test_a_text_is_the_name_of_its_own_module(connect: Any, tmp_path: Path) -> None:
    """Though another one, or the same one before it was loaded anew, has said the same text."""
    server = Server("t")
    for field in ("title", "state"):
        module = tmp_path / f"{field}.py"
        module.write_text(MODULE % field)
        server.tool(name=field)(import_object(f"{module}:handler"))
    client = await connect(server)
    for field in ("title", "state"):
        assert await client.text(field, task={field: "x"}) == f"Task({field}='x')"
