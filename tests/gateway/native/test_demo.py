"""The servers behind a gateway that nobody has configured: everything a newcomer may try works, in every revision."""

import base64
import io
import struct
import wave
import zlib
from typing import Any

import pytest
import trio

from gateway.native.demo import GREETINGS
from gateway.native.demo import server as demo
from gateway.native.notes import server as notes

GUEST = {"action": "accept", "content": {"name": "Ada", "language": "french", "newsletter": False}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "Short."}, "model": "m"}


async def test_everything_that_it_lists_can_be_read_and_called(connect: Any, version: str, autojump_clock: Any) -> None:
    client = await connect(demo, version)
    client.on("elicitation/create", lambda p: {"action": "accept"} if p.get("mode") == "url" else GUEST)
    client.on("sampling/createMessage", SAID)
    client.on("roots/list", {"roots": [{"uri": "file:///a"}]})
    arguments = {"echo": {"text": "hi"}, "add": {"terms": [1, 2.5]}, "summarize": {"text": "long"}}
    arguments["slow_count"] = {"to": 2, "pause": 0.1}
    failing = {"fail"} | ({"ask_name"} if version < "2025-06-18" else set())
    failing |= {"confirm_url"} if version < "2025-11-25" else set()
    for tool in (await client.request("tools/list"))["tools"]:
        assert tool["description"]
        result = await client.call(tool["name"], **arguments.get(tool["name"], {}))
        assert bool(result.get("isError")) == (tool["name"] in failing), result
    for resource in (await client.request("resources/list"))["resources"]:
        assert (await client.request("resources/read", {"uri": resource["uri"]}))["contents"]
    assert (await client.request("resources/templates/list"))["resourceTemplates"]
    for prompt in (await client.request("prompts/list"))["prompts"]:
        given = {a["name"]: "x" for a in prompt["arguments"]}
        assert (await client.request("prompts/get", {"name": prompt["name"], "arguments": given}))["messages"]


async def test_its_answers_are_what_they_promise(connect: Any) -> None:
    client = await connect(demo)
    client.on("elicitation/create", lambda p: {"action": "accept"} if p.get("mode") == "url" else GUEST)
    client.on("sampling/createMessage", SAID)
    client.on("roots/list", {"roots": []})
    assert await client.text("echo", text="hi") == "hi"
    assert (await client.call("add", terms=[1, 2.5]))["structuredContent"] == {"total": 3.5, "terms": [1, 2.5]}
    assert await client.text("ask_name") == "Bonjour, Ada."
    assert "agreed" in await client.text("confirm_url")
    assert [n for n, _, _ in client.notes] == ["notifications/elicitation/complete"]
    assert (await client.text("summarize", text="…")).startswith("Short.")
    assert await client.text("list_roots") == "Your client shares no folders."
    assert await client.error("fail") == "That did not work. Ask for something else."
    assert await client.error("fail", crash=True) == "ZeroDivisionError: this handler has a bug"
    client.on("elicitation/create", {"action": "decline"})
    assert "rather not" in await client.text("ask_name")
    assert "did not want" in await client.text("confirm_url")


async def test_it_counts_with_progress_and_log_messages(connect: Any, autojump_clock: Any) -> None:
    client = await connect(demo)
    started = trio.current_time()
    params = {"name": "slow_count", "arguments": {"to": 3}, "_meta": {"progressToken": 1}}
    assert (await client.request("tools/call", params))["content"][0]["text"] == "Counted to 3."
    assert trio.current_time() - started == pytest.approx(3)
    assert [n.rpartition("/")[2] for n, _, _ in client.notes] == ["message", *["progress"] * 3, "message"]


async def test_its_clock_ticks_for_subscribers(connect: Any, autojump_clock: Any) -> None:
    client = await connect(demo)
    await client.request("resources/subscribe", {"uri": "demo://clock"})
    await trio.sleep(11)
    assert len(client.notes) == 2


async def test_its_languages_are_completed(connect: Any) -> None:
    client = await connect(demo)
    for ref in (
        {"type": "ref/prompt", "name": "hello"},
        {"type": "ref/resource", "uri": "demo://greetings/{language}"},
    ):
        params = {"ref": ref, "argument": {"name": "language", "value": "d"}}
        assert (await client.request("completion/complete", params))["completion"]["values"] == ["danish", "dutch"]
    read = await client.request("resources/read", {"uri": "demo://greetings/greek"})
    assert read["contents"][0]["text"] == GREETINGS["greek"]


async def test_its_picture_and_its_sound_are_well_formed(connect: Any) -> None:
    client = await connect(demo)
    [image] = (await client.call("paint"))["content"]
    png = base64.b64decode(image["data"])
    assert (png[:8], struct.unpack(">II", png[16:24])) == (b"\x89PNG\r\n\x1a\n", (96, 64))
    assert len(zlib.decompress(png[41:-16])) == 64 * (1 + 96 * 3)
    [audio] = (await client.call("play"))["content"]
    with wave.open(io.BytesIO(base64.b64decode(audio["data"]))) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (16_000, 4_000)


async def test_notes_become_resources_of_their_session(connect: Any, version: str) -> None:
    client, other = await connect(notes, version), await connect(notes, version)
    said, link = (await client.call("write_note", title="Milk", text="two bottles"))["content"]
    assert said["text"] == "Kept as note 1."
    assert link.get("uri", link.get("text", "")).endswith("notes://1")
    await client.text("write_note", title="Bread", text="rye")
    uris = [r["uri"] for r in (await client.request("resources/list"))["resources"]]
    assert uris == ["notes://all", "notes://1", "notes://2"]
    assert (await client.request("resources/read", {"uri": "notes://1"}))["contents"][0]["text"] == "two bottles"
    assert "Bread" in (await client.request("resources/read", {"uri": "notes://all"}))["contents"][0]["text"]
    assert [n for n, _, _ in client.notes] == ["notifications/resources/list_changed"] * 2
    assert len((await other.request("resources/list"))["resources"]) == 1
    prompt = await client.request("prompts/get", {"name": "review_notes", "arguments": {"about": "food"}})
    assert "rye" in prompt["messages"][0]["content"]["text"]


async def test_a_note_that_is_watched_tells_of_its_changes(connect: Any, failed: Any) -> None:
    client = await connect(notes)
    await client.text("write_note", title="Milk", text="two bottles")
    for uri in ("notes://1", "notes://all"):
        await client.request("resources/subscribe", {"uri": uri})
    client.notes.clear()
    await client.text("append_to_note", number=1, text="fresh")
    assert [p["uri"] for _, p, _ in client.notes] == ["notes://1", "notes://all"]
    assert await client.text("delete_note", number=1) == "Deleted note 1."
    with pytest.raises(failed) as caught:
        await client.request("resources/read", {"uri": "notes://1"})
    assert caught.value.code == -32002
    assert await client.error("append_to_note", number=1, text="x") == "There is no note 1."


async def test_a_notebook_is_bounded_and_its_numbers_are_completed(connect: Any) -> None:
    client = await connect(notes)
    for n in range(100):
        await client.text("write_note", title=str(n), text="")
    assert "full" in await client.error("write_note", title="one more", text="")
    assert len((await client.call("list_notes"))["structuredContent"]) == 100
    params = {"ref": {"type": "ref/resource", "uri": "notes://{number}"}, "argument": {"name": "number", "value": "10"}}
    assert (await client.request("completion/complete", params))["completion"]["values"] == ["10", "100"]
    await client.text("append_to_note", number=1, text="x" * 1000)
    for _ in range(8):
        await client.text("append_to_note", number=1, text="x" * 1000)
    assert "too long" in await client.error("append_to_note", number=1, text="x" * 1000)
