"""What is known of servers outlives the process, in both stores."""

import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports import ListStore
from gateway.store import lists as file_lists
from gateway.store.lists import open_file_lists
from tests.support.redis_server import RedisServer
from tests.support.store_calls import Lines

Open = Callable[[], AbstractAsyncContextManager[ListStore]]


@pytest.fixture(params=["file", pytest.param("redis", marks=pytest.mark.redis)])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store once more, as the next process does."""
    if request.param == "file":
        return lambda: open_file_lists(tmp_path / "state" / "lists.json", Lines())
    server: RedisServer = request.getfixturevalue("start_server")()

    @asynccontextmanager
    async def opened() -> AsyncIterator[ListStore]:
        async with request.getfixturevalue("opened")(server.url) as store:
            yield store.lists

    return opened


async def test_what_was_put_is_there_after_the_next_start(reopen: Open) -> None:
    async with reopen() as lists:
        assert lists.load() == {}
        for n in range(20):
            lists.put(f"key-{n}", json.dumps({"n": n, "text": "ü\u2028"}).encode())
        lists.put("key-0", b'{"n":"again"}')
        lists.put("key-1", None)
        lists.put("nobody", None)
    async with reopen() as lists:
        found = lists.load()
        assert found.keys() == {"key-0", *(f"key-{n}" for n in range(2, 20))}
        assert json.loads(found["key-0"]) == {"n": "again"}
        assert json.loads(found["key-7"]) == {"n": 7, "text": "ü\u2028"}
        lists.put("key-7", None)
    async with reopen() as lists:
        assert "key-7" not in lists.load()


async def test_large_values_are_kept_too(reopen: Open) -> None:
    large = json.dumps({"text": "x" * 3_000_000}).encode()
    async with reopen() as lists:
        lists.put("large", large)
    async with reopen() as lists:
        assert lists.load()["large"] == large


# The file ---------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lists.json"


async def test_the_file_is_for_its_owner_alone_and_written_before_the_process_ends(path: Path) -> None:
    before = os.umask(0)
    try:
        async with open_file_lists(path, Lines()) as lists:
            lists.put("a", b"{}")
            with trio.fail_after(60):
                while not path.exists():
                    await trio.sleep(0.05)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()] == [0o600, 0o600]
    assert {each.name for each in path.parent.iterdir()} == {"lists.json", "lists.json.lock"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"version":1}', b'{"version":99,"values":{"a":{}}}'],
)
async def test_a_file_that_can_not_be_read_is_as_good_as_none_and_is_replaced(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    log = Lines()
    async with open_file_lists(path, log) as lists:
        assert lists.load() == {}
        lists.put("a", b"[1]")
    assert "lists_unreadable" in str(vars(log))
    async with open_file_lists(path, Lines()) as lists:
        assert lists.load() == {"a": b"[1]"}


async def test_gateways_that_share_the_file_keep_what_the_others_know(path: Path) -> None:
    async with open_file_lists(path, Lines()) as one, open_file_lists(path, Lines()) as two:
        one.put("one", b"1")
        two.put("two", b"2")
        await one.flush()
        await two.flush()
        one.put("one", b"3")
    async with open_file_lists(path, Lines()) as lists:
        assert lists.load() == {"one": b"3", "two": b"2"}


async def test_what_was_written_longest_ago_goes_when_there_is_too_much(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(file_lists, "MAX_BYTES", 1000)
    async with open_file_lists(path, Lines()) as lists:
        for n in range(5):
            lists.put(str(n), b'"%s"' % (b"x" * 300))
        await lists.flush()
        lists.put("0", b'"again"')
    async with open_file_lists(path, Lines()) as lists:
        assert list(lists.load()) == ["2", "3", "4", "0"] or list(lists.load()) == ["3", "4", "0"]


async def test_where_nothing_can_be_written_the_log_says_so_once(path: Path) -> None:
    path.parent.write_text("a file where a folder should be")
    log = Lines()
    async with open_file_lists(path, log) as lists:
        for n in range(3):
            lists.put(str(n), b"1")
            await lists.flush()
    assert str(vars(log)).count("lists_not_kept") == 1
