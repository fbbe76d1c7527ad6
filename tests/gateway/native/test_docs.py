"""The code in docs/native-servers.md runs and does what is said around it."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trio

import gateway.client
import gateway.native
import stagedoor
from gateway.native import Server

DOCS = (Path(__file__).parents[3] / "docs" / "native-servers.md").read_text()


@pytest.fixture
def weather() -> Server:
    namespace: dict[str, Any] = {"__name__": "weather"}
    for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL):
        exec(compile(block, "native-servers.md", "exec"), namespace)
    server: Server = namespace["server"]
    return server


async def test_its_tools_do_what_they_say(connect: Any, weather: Server, failed: Any, autojump_clock: Any) -> None:
    client = await connect(weather)
    assert await client.text("forecast", city="Bergen") == "Bergen: rain for 3 days."
    assert (await client.call("tomorrow", city="Rome"))["structuredContent"] == {"high": 21.5, "low": 12.0}
    assert await client.error("tomorrow", city="Atlantis") == "Atlantis is under water. Ask for another city."
    client.on("elicitation/create", {"action": "accept", "content": {"city": "Rome"}})
    assert await client.text("plan") == "To Rome by train."
    client.on("elicitation/create", {"action": "decline"})
    assert await client.text("plan") == "Then stay at home."


async def test_its_thread_does_too(connect: Any, weather: Server) -> None:
    client = await connect(weather)
    assert (await client.call("checksum", text="abc"))["structuredContent"] == {"result": 891568578}


async def test_its_schemas_by_hand_and_its_responses_do_too(connect: Any, weather: Server) -> None:
    client = await connect(weather)
    assert (await client.call("ticket", route="fjord", rides=2))["structuredContent"] == {"price": 40.0}
    assert "rides: 0 is less than" in await client.error("ticket", route="coast", rides=0)
    kinds = [c["type"] for c in (await client.call("postcard", city="Rome"))["content"]]
    assert kinds == ["text", "image", "resource_link"]
    assert await client.error("postcard", city="Atlantis") == "No light down there."
    got = await client.request("prompts/get", {"name": "advise", "arguments": {"city": "Rome"}})
    assert [m["role"] for m in got["messages"]] == ["user", "user", "assistant", "user"]


async def test_its_objects_do_too(connect: Any, weather: Server) -> None:
    client = await connect(weather)
    assert await client.text("convert", celsius=100) == "212.0 °F"
    got = await client.request("prompts/get", {"name": "compare", "arguments": {"a": "Rome"}})
    assert got["messages"][0]["content"]["text"] == "Compare Rome with home."
    cursor, years = {}, []
    while cursor is not None:
        page = await client.request("resources/list", cursor)
        years += [r["uri"] for r in page["resources"] if r["uri"].startswith("archive:")]
        cursor = {"cursor": page["nextCursor"]} if "nextCursor" in page else None
    assert years == [f"archive:{year}" for year in range(1990, 2020)]


async def test_its_resources_are_there_and_change(
    connect: Any, weather: Server, failed: Any, autojump_clock: Any
) -> None:
    client = await connect(weather)
    uris = [r["uri"] for r in (await client.request("resources/list"))["resources"]]
    assert uris == ["weather://stations", "weather://stations/north", "weather://stations/south"]
    assert (await client.request("resources/read", {"uri": "archive:1999"}))["contents"][0]["text"] == "1999: rain."
    for uri in uris[:2]:
        await client.request("resources/subscribe", {"uri": uri})
    await client.text("measure", name="north", value=5.5)
    assert client.notes[-1][1] == {"uri": uris[1]}
    assert (await client.request("resources/read", {"uri": uris[1]}))["contents"][0]["text"] == "5.5 °C"
    await trio.sleep(61)
    assert client.notes[-1][1] == {"uri": uris[0]}
    with pytest.raises(failed) as caught:
        await client.request("resources/read", {"uri": "weather://stations/west"})
    assert caught.value.code == -32002


async def test_its_prompt_is_completed_and_written(connect: Any, weather: Server) -> None:
    client = await connect(weather)
    params = {"ref": {"type": "ref/prompt", "name": "pack"}, "argument": {"name": "city", "value": "Ber"}}
    assert (await client.request("completion/complete", params))["completion"]["values"] == ["Bergen", "Berlin"]
    got = await client.request("prompts/get", {"name": "pack", "arguments": {"city": "Rome", "days": "2"}})
    assert [m["role"] for m in got["messages"]] == ["user", "assistant", "user"]


def test_the_bounds_that_it_names_are_those_of_the_code() -> None:
    import inspect

    from gateway.native import asking, methods, prompts

    defaults = {name: p.default for name, p in inspect.signature(Server).parameters.items()}
    rows = dict(re.findall(r"^\| ([^|]+?) \| (\d+) \|", DOCS.split("## Bounds")[1], re.MULTILINE))
    assert rows == {
        "requests in flight of one session": str(defaults["requests_per_session"]),
        "handlers in threads": str(defaults["threads"]),
        "entries on a page of a list": str(defaults["page_size"]),
        "requests to one client at a time": str(asking.ASKED_MAX),
        "subscriptions of one session": str(methods.SUBSCRIPTIONS),
    }
    assert f"patience={defaults['patience']}" in DOCS
    assert f"At most {prompts.COMPLETIONS} values" in DOCS


def test_every_public_error_and_content_is_mentioned() -> None:
    said_elsewhere = {"Client", "Content", "Elicited", "Root", "Sample", "Text", "UrlRequiredError"}
    missing = [name for name in gateway.native.__all__ if f"{name}" not in DOCS and name not in said_elsewhere]
    assert missing == []


def test_the_public_package_offers_the_whole_api() -> None:
    assert set(stagedoor.__all__) == {*gateway.native.__all__, "open_client"}
    assert all(getattr(stagedoor, name) is getattr(gateway.native, name) for name in gateway.native.__all__)
    assert set(stagedoor.__all__) <= set(dir(stagedoor))  # `help(stagedoor)` and shells look there
    both = (stagedoor.open_client, gateway.client.open_client)
    assert len({str(inspect.signature(one)) for one in both}) == len({one.__doc__ for one in both}) == 1
