"""The vector store: five tools, exact neighbours, clear errors, and nothing lost that was acknowledged."""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.native import vector_store, vectors
from gateway.native.vectors import Store, server

NUMBERS = {"type": "array", "items": {"type": "number"}}
INPUTS: dict[str, dict[str, Any]] = {
    "db_query": {
        "vector": NUMBERS,
        "top_k": {"type": "integer", "default": 5},
        "db_name": {"type": "string", "default": "default"},
    },
    "db_insert": {
        "id": {"type": "integer"},
        "vector": NUMBERS,
        "metadata": {"type": "string"},
        "db_name": {"type": "string", "default": "default"},
    },
    "db_stats": {"db_name": {"type": "string", "default": "default"}},
    "db_list": {"limit": {"type": "integer", "default": 10}, "db_name": {"type": "string", "default": "default"}},
    "db_delete": {"id": {"type": "integer"}, "db_name": {"type": "string", "default": "default"}},
}
REQUIRED = {"db_query": ["vector"], "db_insert": ["id", "vector"], "db_delete": ["id"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "v.db"


@pytest.fixture
async def client(connect: Any, path: Path) -> Any:
    return await connect(server(path))


async def done(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call(tool, **arguments)
    assert not result["isError"], result
    return dict(result["structuredContent"])


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def whole(path: Path) -> bool:
    """Whether SQLite finds nothing wrong in it."""
    connection = vector_store.connect(path)
    try:
        return list(connection.execute("pragma integrity_check")) == [("ok",)]
    finally:
        connection.close()


async def test_there_are_exactly_five_tools_with_plain_inputs(client: Any) -> None:
    tools = {tool["name"]: tool for tool in (await client.request("tools/list"))["tools"]}
    assert tools.keys() == INPUTS.keys()
    for name, tool in tools.items():
        schema = tool["inputSchema"]
        found = {key: {k: v for k, v in of.items() if k != "description"} for key, of in schema["properties"].items()}
        assert found == INPUTS[name]
        assert schema.get("required", []) == REQUIRED.get(name, [])
        assert tool["outputSchema"]["type"] == "object"


async def test_the_nearest_are_found_by_their_cosine(client: Any) -> None:
    numbers = random.Random(1)
    kept = {id: [numbers.gauss(0, 10.0 ** (id % 7)) for _ in range(8)] for id in range(60)}
    for id, vector in kept.items():
        assert await done(client, "db_insert", id=id, vector=vector) == {"id": id, "replaced": False}
    wanted = [numbers.gauss(0, 1) for _ in range(8)]
    best = sorted(kept, key=lambda id: -cosine(wanted, kept[id]))
    matches = (await done(client, "db_query", vector=wanted))["matches"]
    assert [match["id"] for match in matches] == best[:5]
    for match in matches:
        assert match["score"] == pytest.approx(cosine(wanted, kept[match["id"]]), abs=1e-5)
    matches = (await done(client, "db_query", vector=wanted, top_k=1000))["matches"]
    assert [match["id"] for match in matches] == best


async def test_what_is_put_in_is_listed_counted_replaced_and_taken_out(client: Any) -> None:
    assert await done(client, "db_stats") == {"count": 0, "dimensions": 0, "memory": 0}
    assert await done(client, "db_query", vector=[1, 2]) == {"matches": []}
    for id in (3, -1, 2**63 - 1):
        await done(client, "db_insert", id=id, vector=[1, id], metadata=f"of {id}")
    await done(client, "db_insert", id=7, vector=[1, 0])
    assert await done(client, "db_stats") == {"count": 4, "dimensions": 2, "memory": 4 * 2 * 4}
    assert await done(client, "db_list", limit=3) == {
        "vectors": [{"id": -1, "metadata": "of -1"}, {"id": 3, "metadata": "of 3"}, {"id": 7, "metadata": None}]
    }
    assert await done(client, "db_insert", id=3, vector=[-1, 0], metadata="new") == {"id": 3, "replaced": True}
    assert (await done(client, "db_stats"))["count"] == 4
    [match] = (await done(client, "db_query", vector=[-5, 0], top_k=1))["matches"]
    assert match == {"id": 3, "score": pytest.approx(1), "metadata": "new"}
    await done(client, "db_insert", id=3, vector=[-1, 0])
    assert (await done(client, "db_query", vector=[-5, 0], top_k=1))["matches"][0]["metadata"] is None
    assert await done(client, "db_delete", id=3) == {"id": 3}
    assert [entry["id"] for entry in (await done(client, "db_list"))["vectors"]] == [-1, 7, 2**63 - 1]


async def test_databases_know_nothing_of_each_other(client: Any) -> None:
    await done(client, "db_insert", id=1, vector=[1, 0], db_name="a'; drop table entries; --")
    await done(client, "db_insert", id=1, vector=[1, 0, 0], metadata="ä\0😀", db_name="b")
    assert (await done(client, "db_query", vector=[1, 0, 0], db_name="b"))["matches"][0]["metadata"] == "ä\0😀"
    assert (await done(client, "db_stats", db_name="a'; drop table entries; --"))["dimensions"] == 2
    assert (await done(client, "db_stats"))["count"] == 0
    await done(client, "db_delete", id=1, db_name="b")
    assert "There is no vector 1 in 'b'" in await client.error("db_delete", id=1, db_name="b")
    await done(client, "db_insert", id=1, vector=[1, 0], db_name="b")  # of another length, since it was empty
    assert (await done(client, "db_stats", db_name="b"))["dimensions"] == 2


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("db_insert", {"id": 2, "vector": [1, 2, 3]}, "3 dimensions, and those in 'default' have 2"),
        ("db_query", {"vector": [1]}, "1 dimensions, and those in 'default' have 2"),
        ("db_insert", {"id": 2, "vector": []}, "0 numbers, and from 1 to 8192"),
        ("db_insert", {"id": 2, "vector": [0, 0.0]}, "all its numbers are zero"),
        ("db_query", {"vector": [0, -0.0]}, "all its numbers are zero"),
        ("db_insert", {"id": 2, "vector": [1] * 8193}, "8193 numbers, and from 1 to 8192"),
        ("db_insert", {"id": 2, "vector": [1, "2"]}, "vector"),
        ("db_insert", {"id": 2, "vector": [1, None]}, "vector"),
        ("db_insert", {"id": 2, "vector": [1, True]}, "vector"),
        ("db_insert", {"id": 2, "vector": "[1, 2]"}, "vector"),
        ("db_insert", {"id": 2, "vector": [1.7e308, 1.7e308]}, "its numbers are too large"),
        ("db_insert", {"id": 2, "vector": [1, 10**400]}, "vector"),
        ("db_insert", {"id": 2.5, "vector": [1, 2]}, "id"),
        ("db_insert", {"id": "2", "vector": [1, 2]}, "id"),
        ("db_insert", {"id": 2**63, "vector": [1, 2]}, "64 bits"),
        ("db_insert", {"id": 10**30, "vector": [1, 2]}, "64 bits"),
        ("db_insert", {"id": 2, "vector": [1, 2], "metadata": {"a": 1}}, "metadata"),
        ("db_insert", {"id": 2, "vector": [1, 2], "metadata": "x" * 65_537}, "metadata: 65537 characters"),
        ("db_insert", {"id": 2, "vector": [1, 2], "db_name": ""}, "db_name: 0 characters"),
        ("db_insert", {"id": 2, "vector": [1, 2], "db_name": "x" * 201}, "db_name: 201 characters"),
        ("db_insert", {"id": 2}, '"vector" is a required property'),
        ("db_insert", {"id": 2, "vector": [1, 2], "other": 1}, "other"),
        ("db_delete", {"id": 99}, "There is no vector 99 in 'default'"),
        ("db_delete", {"id": 1, "db_name": "other"}, "There is no vector 1 in 'other'"),
        ("db_query", {"vector": [1, 2], "top_k": 0}, "top_k: from 1 to 1000"),
        ("db_query", {"vector": [1, 2], "top_k": 1001}, "top_k: from 1 to 1000"),
        ("db_list", {"limit": -1}, "limit: from 1 to 1000"),
    ],
)
async def test_what_can_not_be_done_is_said(client: Any, tool: str, arguments: dict[str, Any], said: str) -> None:
    await done(client, "db_insert", id=1, vector=[1, 2], metadata="one")
    assert said in await client.error(tool, **arguments)
    assert await done(client, "db_list") == {"vectors": [{"id": 1, "metadata": "one"}]}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
async def test_a_number_that_is_not_finite_is_refused(client: Any, number: str) -> None:
    await done(client, "db_insert", id=1, vector=[1, 2])
    frame = (
        '{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"db_insert","arguments":'
        '{"id":2,"vector":[1,' + number + "]}}}"
    )
    client.methods[99] = "tools/call"
    client.transport.send(frame.encode(), id=99)
    await client.until(lambda: 99 in client.answers or bool(client.stray))
    if number.endswith("1e999"):
        assert client.answers[99][0]["result"]["isError"]
        said = client.answers[99][0]["result"]["content"][0]["text"]
        assert said == "vector.1: Input should be a finite number"
    else:  # that is no JSON
        assert client.stray or "error" in client.answers[99][0]
    assert (await done(client, "db_stats"))["count"] == 1


def test_not_finite_numbers_and_the_smallest_ones() -> None:
    for number in (math.inf, -math.inf, math.nan, 10**400):
        with pytest.raises(vector_store.ToolError, match=r"its number 1 \(from 0\) is not finite"):
            vector_store.packed([1.0, number])
    for numbers in ([5e-324, 0.0], [1e308, 0.0], [-1e-200]):
        assert len(vector_store.packed(numbers)) == 4 * len(numbers)


async def test_many_calls_at_a_time_harm_none(client: Any) -> None:
    ids = [client.post("tools/call", call(id)) for id in range(300)]
    queries = [
        client.post("tools/call", {"name": "db_query", "arguments": {"vector": [1, 1], "top_k": 3}}) for _ in range(50)
    ]
    for id in ids + queries:
        assert not (await client.answer_to(id))["isError"]
    assert (await done(client, "db_stats"))["count"] == 300
    for id in [client.post("tools/call", {"name": "db_delete", "arguments": {"id": id}}) for id in range(300)]:
        assert not (await client.answer_to(id))["isError"]
    assert (await done(client, "db_stats")) == {"count": 0, "dimensions": 0, "memory": 0}


def call(id: int) -> dict[str, Any]:
    return {"name": "db_insert", "arguments": {"id": id, "vector": [1, id], "metadata": str(id)}}


async def test_one_that_fails_takes_none_with_it(path: Path) -> None:
    store, vector = Store(path), vector_store.packed([1, 2])
    outcomes: dict[int, Any] = {}

    def broken(_: Any) -> None:
        raise ZeroDivisionError("a bug")

    async def write(id: int, work: Any) -> None:
        try:
            outcomes[id] = await store.write(work)
        except (vector_store.ToolError, ZeroDivisionError) as error:
            outcomes[id] = str(error)

    async with trio.open_nursery() as nursery:
        for id in range(9):
            work = [
                lambda c, id=id: vector_store.insert(c, "d", id, vector, None),
                lambda c, id=id: vector_store.delete(c, "d", id),
                broken,
            ][id % 3]
            nursery.start_soon(write, id, work)
    there = [id for id, _ in await store.read(lambda c: vector_store.entries(c, "d", 10))]
    assert there == [0, 3, 6]
    assert [outcomes[id] for id in (0, 1, 2)] == [False, "There is no vector 1 in 'd'", "a bug"]


async def test_one_that_is_cancelled_takes_none_with_it(path: Path) -> None:
    store, vector = Store(path), vector_store.packed([1, 2])
    written: list[int] = []

    async def write(id: int, scope: trio.CancelScope) -> None:
        with scope:
            await store.write(lambda c: vector_store.insert(c, "d", id, vector, None))
            written.append(id)

    for _ in range(20):
        async with trio.open_nursery() as nursery:
            scopes = [trio.CancelScope() for _ in range(20)]
            for id, scope in enumerate(scopes):
                nursery.start_soon(write, id, scope)
            for turn in range(random.randrange(5)):
                await trio.sleep(0.001 * turn)
            for scope in random.sample(scopes, 10):
                scope.cancel()
    there = {id for id, _ in await store.read(lambda c: vector_store.entries(c, "d", 100))}
    assert there >= set(written)
    assert await store.write(lambda c: vector_store.insert(c, "d", 1, vector, None)) in (True, False)


async def test_places_of_the_deleted_are_used_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_store, "SLACK", 100)
    store, vector = Store(path), vector_store.packed([1.0] * 64)
    ids = list(range(1500))

    def pages(connection: Any) -> int:
        [(pages,)] = connection.execute("pragma page_count")
        return int(pages)

    def fill(connection: Any) -> None:
        for id in ids:
            vector_store.insert(connection, "d", id, vector, str(id))

    def turn(connection: Any) -> None:
        for _ in range(1500):
            place = random.randrange(len(ids))
            vector_store.delete(connection, "d", ids[place])
            ids[place] = max(ids) + 1
            vector_store.insert(connection, "d", ids[place], vector, str(ids[place]))

    await store.write(fill)
    before = await store.read(pages)
    for _ in range(8):
        await store.write(turn)
    assert await store.read(pages) < 4 * before
    assert (await store.read(lambda c: vector_store.statistics(c, "d"))).count == 1500
    found = await store.read(lambda c: vector_store.query(c, "d", vector, 1000))
    assert {match.id for match in found} <= set(ids)
    assert all(match.metadata == str(match.id) for match in found)
    assert whole(path)


def test_a_file_that_is_none_of_ours_is_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("create table t (a)")
    connection.close()
    text = tmp_path / "text"
    text.write_text("not a database, and long enough to have a header" * 100)
    for file, said in ((foreign, "is no vector store of this version"), (text, "file is not a database")):
        before = file.read_bytes()
        with pytest.raises(vector_store.ToolError, match=said):
            vector_store.connect(file)
        assert file.read_bytes() == before
    with pytest.raises(vector_store.ToolError, match="can't be used"):
        vector_store.connect(text / "below.db")


def test_what_is_committed_waits_for_the_disk(tmp_path: Path) -> None:
    connection = vector_store.connect(tmp_path / "v.db")
    assert list(connection.execute("pragma synchronous")) == [(2,)], "full, or a power cut takes what was answered"
    assert list(connection.execute("pragma journal_mode")) == [("wal",)]
    connection.close()


async def test_a_path_that_can_not_be_used_is_said_by_each_tool(connect: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    client = await connect(server(tmp_path / "file" / "v.db"))
    assert "can't be used" in await client.error("db_insert", id=1, vector=[1])
    assert "can't be used" in await client.error("db_list")


async def test_a_file_that_is_gone_or_another_is_not_written_any_more(client: Any, path: Path) -> None:
    await client.call("db_insert", id=1, vector=[1])
    path.rename(path.with_name("moved"))
    for there in (False, True):
        if there:
            path.write_text("")
        for tool, arguments in (("db_insert", {"id": 2, "vector": [1]}), ("db_stats", {})):
            assert "removed or replaced. Nothing was changed" in await client.error(tool, **arguments)
    path.with_name("moved").replace(path)
    assert (await client.call("db_stats"))["structuredContent"]["count"] == 1


async def test_who_can_not_write_for_another_process_says_so(
    client: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_store, "BUSY", 0.2)
    await done(client, "db_insert", id=1, vector=[1, 2])
    other = vector_store.connect(path)
    other.execute("begin immediate")
    fresh = Store(path)
    with pytest.raises(vector_store.ToolError, match="Another process has kept the vectors"):
        await fresh.write(lambda c: vector_store.insert(c, "default", 2, vector_store.packed([1, 2]), None))
    assert (await done(client, "db_stats"))["count"] == 1, "what is read does not wait"
    other.execute("rollback")
    await fresh.write(lambda c: vector_store.insert(c, "default", 2, vector_store.packed([1, 2]), None))
    assert (await done(client, "db_stats"))["count"] == 2
    other.close()


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'stagedoor\[vectors\]'"):
        server()


def test_it_is_in_the_users_state_directory_or_in_a_folder_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert vectors.file_of(None) == tmp_path / "stagedoor" / "vectors.db"
    assert vectors.file_of(tmp_path) == tmp_path / "vectors.db"
    assert vectors.file_of(tmp_path / "v") == tmp_path / "v"


def test_nothing_of_it_is_loaded_before_it_is_used(tmp_path: Path) -> None:
    code = (
        "import sys; from gateway.native.vectors import server; from pathlib import Path; "
        f"server(Path({str(tmp_path / 'v')!r})); print('apsw' in sys.modules or 'sqlite_vec' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    assert not (tmp_path / "v").exists()


WRITING = """
import sys, time
from pathlib import Path
from gateway.native import vector_store as store
connection = store.connect(Path(sys.argv[1]))
mine, others = int(sys.argv[2]), int(sys.argv[3])
for id in range(mine, mine + 1_000_000, others):
    vector = store.packed([1.0, float(id)])
    [(_, error)] = store.write(connection, [lambda c: store.insert(c, "d", id, vector, "of %d" % id)])
    assert error is None, error
    if id % 3 == 2:
        [(_, error)] = store.write(connection, [lambda c: store.delete(c, "d", id)])
        assert error is None, error
    print(id, flush=True)
    time.sleep(0.002)  # SQLite is fair to nobody: one that writes without end lets no other in
"""


@pytest.mark.e2e
def test_what_was_acknowledged_outlives_kill_9(path: Path) -> None:
    """Two processes write to one file at once, and both are killed in the middle of it, again and again."""
    acknowledged: set[int] = set()
    for life in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITING, str(path), str(1_000_000 * life + mine), "2"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for mine in range(2)
        ]
        for number, writer in enumerate(writers):
            assert writer.stdout is not None
            for _ in range(20 + 13 * life + number):
                acknowledged.add(int(writer.stdout.readline()))
        for writer in writers:
            writer.kill()
        for writer in writers:
            assert writer.stdout is not None
            # The last line may be half of one.
            acknowledged |= {int(line) for line in writer.stdout.read().split("\n")[:-1]}
            writer.stdout.close()
            writer.wait()
        assert whole(path)
        connection = vector_store.connect(path)
        kept = dict(connection.execute("select id, metadata from entries"))
        assert {id for id in acknowledged if id % 3 != 2} <= kept.keys()
        assert not {id for id in acknowledged if id % 3 == 2} & kept.keys()
        assert all(metadata == f"of {id}" for id, metadata in kept.items())
        [(count, number)] = connection.execute("select count, number from databases")
        indexed = {id for (id,) in connection.execute(f"select id from vectors_{number}")}
        assert count == len(kept)
        assert indexed == kept.keys()
        connection.close()


@pytest.mark.e2e
def test_what_a_server_answered_outlives_kill_9(tmp_path: Path) -> None:
    """Many calls at a time to a server of its own, by its default path, which is killed in the middle of them."""
    acknowledged: set[int] = set()
    for life in range(2):
        ids = range(life * 1000, life * 1000 + 50)
        for answered in answers(tmp_path, [message("tools/call", id, call(id)) for id in ids], until=ids[20]):
            assert not answered["result"]["isError"]
            acknowledged.add(answered["id"])
    assert whole(tmp_path / "stagedoor" / "vectors.db")
    listing = message("tools/call", 9999, {"name": "db_list", "arguments": {"limit": 1000}})
    [answered] = answers(tmp_path, [listing], until=9999)
    kept = {entry["id"]: entry["metadata"] for entry in answered["result"]["structuredContent"]["vectors"]}
    assert kept.keys() >= acknowledged
    assert all(metadata == str(id) for id, metadata in kept.items())


def message(method: str, id: int, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


def answers(home: Path, messages: list[bytes], until: int) -> list[dict[str, Any]]:
    """What a server says to these messages, which is killed as soon as it has answered one of them."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    process = subprocess.Popen(
        [Path(sys.executable).with_name("stagedoor"), "run", "gateway.native.vectors"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(home)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: list[bytes] = []
    try:
        process.stdin.write(message("initialize", -1, hello))
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n' + b"".join(messages))
        process.stdin.flush()
        while not lines or json.loads(lines[-1]).get("id") != until:
            lines.append(process.stdout.readline())
    finally:
        process.kill()
        lines += process.stdout.read().split(b"\n")[:-1]
        process.stdin.close()
        process.stdout.close()
        process.wait()
    found = [json.loads(line) for line in lines if line]
    return [answered for answered in found if answered.get("id") != -1]
