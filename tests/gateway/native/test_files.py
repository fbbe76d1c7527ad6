"""The folder as resources: all its files and nothing else, whatever the path, the link, the encoding or the moment."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from gateway.native import files, folder
from gateway.native.files import server
from gateway.native.folder import File, Folder
from tests.support.patience import PATIENCE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a few files, beside one that is not to be seen."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("first\n")
    (root / "sub" / "b.json").write_bytes(b'{"b": 1}')
    (root / "sub" / "c.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "s.txt").write_text("a longer secret")
    return root


@pytest.fixture
async def client(connect: Any, root: Path) -> Any:
    return await connect(server(root))


def uri(root: Path, path: str | bytes) -> str:
    return f"file://{root}/" + quote(path)


async def listed(client: Any) -> list[dict[str, Any]]:
    found, cursor = [], None
    while True:
        page = await client.request("resources/list", {"cursor": cursor} if cursor else {})
        found += page["resources"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


async def read(client: Any, uri: str) -> dict[str, Any]:
    [contents] = (await client.request("resources/read", {"uri": uri}))["contents"]
    return dict(contents)


async def names(client: Any) -> list[str]:
    return [entry["name"] for entry in await listed(client)]


async def test_files_have_uris_names_types_and_sizes(client: Any, root: Path) -> None:
    assert await listed(client) == [
        {"uri": uri(root, "a.txt"), "name": "a.txt", "mimeType": "text/plain", "size": 6},
        {"uri": uri(root, "sub/b.json"), "name": "sub/b.json", "mimeType": "application/json", "size": 8},
        {"uri": uri(root, "sub/c.png"), "name": "sub/c.png", "mimeType": "image/png", "size": 5},
    ]


async def test_there_is_one_template_over_the_path(client: Any, root: Path) -> None:
    [template] = (await client.request("resources/templates/list"))["resourceTemplates"]
    assert template["uriTemplate"] == f"file://{root}/{{+path}}"


async def test_text_is_read_as_text_and_all_else_as_bytes(client: Any, root: Path) -> None:
    assert await read(client, uri(root, "a.txt")) == {
        "uri": uri(root, "a.txt"),
        "mimeType": "text/plain",
        "text": "first\n",
    }
    contents = await read(client, uri(root, "sub/c.png"))
    assert (contents["mimeType"], base64.b64decode(contents["blob"])) == ("image/png", b"\x89PNG\0")
    (root / "latin").write_bytes("é".encode("latin-1"))
    assert (await read(client, uri(root, "latin")))["mimeType"] == "application/octet-stream"
    (root / "README").write_bytes("é\r\n".encode())
    assert (await read(client, uri(root, "README")))["text"] == "é\r\n"
    (root / "x.tar.gz").write_bytes(b"\x1f\x8b\0")
    assert (await read(client, uri(root, "x.tar.gz")))["mimeType"] == "application/gzip"


@pytest.mark.parametrize(
    "name",
    [
        "a b.txt",
        "ä€😀.txt",
        "100%.txt",
        "%2e%2e",
        "q?x#y&z",
        "a;b=c",
        "{+path}",
        "new\nline",
        "back\\slash",
        "~",
        "...",
    ],
)
async def test_any_name_is_listed_and_read(client: Any, root: Path, name: str) -> None:
    (root / name).write_text("there")
    [entry] = [entry for entry in await listed(client) if entry["name"] == name]
    assert (await read(client, entry["uri"]))["text"] == "there"


async def test_a_name_that_is_no_utf_8_is_listed_and_read(client: Any, root: Path) -> None:
    (Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe.txt"))).write_text("there")
    [entry] = [entry for entry in await listed(client) if entry["uri"].endswith("/%FF%FE.txt")]
    assert entry["name"] == "\ufffd\ufffd.txt"
    assert (await read(client, entry["uri"]))["text"] == "there"
    await client.request("resources/subscribe", {"uri": entry["uri"]})


OUTSIDE = [
    "../secret.txt",
    "sub/../../secret.txt",
    "%2e%2e/secret.txt",
    "%2E%2E%2Fsecret.txt",
    "..%2fsecret.txt",
    "sub%2F..%2F..%2Fsecret.txt",
    "%252e%252e/secret.txt",
    "%c0%ae%c0%ae/secret.txt",
    "..\\secret.txt",
    "/etc/passwd",
    "%2Fetc%2Fpasswd",
    "//etc/passwd",
    "a.txt%00",
    "a.txt%00.png",
    "./a.txt",
    "sub/./b.json",
    "sub//b.json",
    "sub/../a.txt",
    "sub%2Fb.json",
    "a.txt/",
    "a.txt?x",
    "a.txt#x",
    "a.txt/b",
    "sub",
    "sub/",
    "",
    "%",
    "missing",
    "a" * 300,
    "a/" * 3000,
]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_no_path_leads_anywhere_else(client: Any, failed: Any, root: Path, path: str) -> None:
    for method in ("resources/read", "resources/subscribe"):
        with pytest.raises(failed) as caught:
            await client.request(method, {"uri": f"file://{root}/{path}"})
        assert caught.value.code == -32002


@pytest.mark.parametrize(
    "prefix", ["file:", "file:/", "file:///", "file://host/", "file://../", "file://", "FILE:///.."]
)
async def test_no_other_uri_leads_there(client: Any, failed: Any, root: Path, prefix: str) -> None:
    with pytest.raises(failed) as caught:
        await client.request("resources/read", {"uri": f"{prefix}{root.parent}/secret.txt"})
    assert caught.value.code == -32002


async def test_what_a_link_points_to_outside_is_neither_listed_nor_read(client: Any, failed: Any, root: Path) -> None:
    links = {
        "to_file": "../secret.txt",
        "to_file_absolutely": str(root.parent / "secret.txt"),
        "to_folder": "../secrets",
        "by_two": "to_file",
        "to_proc": "/proc/self/root",
        "to_itself": "to_itself",
        "to_the_root": ".",
        "to_nothing": "missing",
        "to_above": "..",
        "in_and_out": "../root/../secret.txt",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    assert await names(client) == ["a.txt", "sub/b.json", "sub/c.png"]
    inside = ["to_folder/s.txt", f"to_proc{root.parent}/secret.txt", "to_above/secret.txt", "to_the_root/to_file"]
    for path in [*links, *inside]:
        with pytest.raises(failed) as caught:
            await client.request("resources/read", {"uri": uri(root, path)})
        assert caught.value.code == -32002


async def test_a_link_to_a_file_inside_is_as_that_file(client: Any, root: Path) -> None:
    (root / "link.txt").symlink_to("sub/b.json")
    (root / "whole.txt").symlink_to(root / "a.txt")
    (root / "by_folder").symlink_to("sub")
    sizes = {entry["name"]: entry["size"] for entry in await listed(client)}
    assert sizes == {"a.txt": 6, "link.txt": 8, "sub/b.json": 8, "sub/c.png": 5, "whole.txt": 6}
    assert (await read(client, uri(root, "link.txt")))["text"] == '{"b": 1}'
    assert (await read(client, uri(root, "by_folder/b.json")))["text"] == '{"b": 1}'


async def test_a_root_that_is_a_link_is_the_folder_it_points_to(connect: Any, root: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(root)
    client = await connect(server(tmp_path / "current"))
    assert (await read(client, uri(tmp_path / "current", "a.txt")))["text"] == "first\n"
    assert (await names(client))[0] == "a.txt"


async def test_what_would_block_is_never_opened(client: Any, failed: Any, root: Path) -> None:
    os.mkfifo(root / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(root)  # since the path of a socket is short
    try:
        listening.bind("socket")
    finally:
        os.chdir(here)
    (root / "to_pipe").symlink_to("pipe")
    (root / "to_device").symlink_to("/dev/zero")
    with listening, trio.fail_after(PATIENCE):
        assert await names(client) == ["a.txt", "sub/b.json", "sub/c.png"]
        for name in ("pipe", "socket", "to_pipe", "to_device", "pipe/x"):
            with pytest.raises(failed):
                await read(client, uri(root, name))


def test_no_moment_is_right_to_swap_a_folder_for_a_link(root: Path, tmp_path: Path) -> None:
    """While another thread swaps a folder for a link to the outside and back, what is read is never from there."""
    (root / "sub" / "s.txt").write_text("ours")
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            os.rename(root / "sub", root / "kept")
            os.symlink("../secrets", root / "sub")
            os.unlink(root / "sub")
            os.rename(root / "kept", root / "sub")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(2000):
            try:
                seen.add(Folder(root).read(("sub", "s.txt"), 100))
            except OSError:
                seen.add(b"")
            found, _ = Folder(root).page((), 100)
            assert not [file for file in found if file.size == len("a longer secret")]
    finally:
        stopped.set()
        thread.join()
    assert seen <= {b"ours", b""}


def test_nor_to_swap_a_file_for_a_link(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("secret")
    opened = os.open

    def swap(path: Any, flags: int, *given: Any, **more: Any) -> int:
        if path == "a.txt":  # it was looked at, and is opened
            (root / path).unlink()
            (root / path).symlink_to(tmp_path / "secret")
        return opened(path, flags, *given, **more)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(OSError, match="symbolic links"):
        Folder(root).read(("a.txt",), 100)


def test_nothing_stays_open(root: Path) -> None:
    (root / "out").symlink_to("../secret.txt")
    os.mkfifo(root / "pipe")
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    for names in [("a.txt",), ("sub", "b.json"), ("sub",), ("out",), ("pipe",), ("no",), ("a.txt", "b"), ("..",)]:
        with suppress(OSError):
            Folder(root).read(names, 10)
        Folder(root).version(names)
        Folder(root).page(names, 1)
    assert not before or set(os.listdir("/proc/self/fd")) == before


async def test_pages_follow_each_other_whatever_changes_between(
    client: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAGE", 2)
    for name in ("sub/deep/er/x", "sub/deep/y", "sub.txt", "z", "empty/er/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    os.unlink(root / "empty/er/x")
    everything = await names(client)
    assert everything == ["a.txt", "sub/b.json", "sub/c.png", "sub/deep/er/x", "sub/deep/y", "sub.txt", "z"]
    first = await client.request("resources/list", {})
    assert len(first["resources"]) == 2
    os.unlink(root / "sub/b.json")  # where the next page begins
    (root / "a.old").write_text("")
    second = await client.request("resources/list", {"cursor": first["nextCursor"]})
    assert [entry["name"] for entry in second["resources"]] == everything[2:4]


@pytest.mark.parametrize("cursor", ["nonsense", "cmVzb3VyY2VzOmZpbGU6Lg==", "cmVzb3VyY2VzOmZpbGU6Li4vLi4="])
async def test_a_cursor_leads_nowhere_else(client: Any, cursor: str) -> None:
    id = client.post("resources/list", {"cursor": cursor})
    await client.until(lambda: id in client.answers)
    assert "secret" not in str(client.answers[id])


def test_of_a_folder_of_any_size_a_page_holds_a_part(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "BATCH", 5)
    monkeypatch.setattr(folder, "SCANNED", 20)
    for number in range(40):
        (root / f"d{number:02}").mkdir()
    for number in range(30):
        (root / "d20" / f"{number:02}").write_text("")
    pages, after = [], ()
    while after is not None:
        found, after = Folder(root).page(after, 7)
        pages.append(found)
        assert len(pages) < 100
    paths = [file.names for page in pages for file in page]
    assert paths == [("a.txt",), *(("d20", f"{n:02}") for n in range(30)), ("sub", "b.json"), ("sub", "c.png")]
    assert max(map(len, pages)) <= 7
    assert [] in pages, "where nothing was found in time"


def test_folders_in_folders_end_somewhere(root: Path) -> None:
    deep = root
    for _ in range(folder.DEPTH + 5):
        deep /= "d"
        deep.mkdir()
        (deep / "f").write_text("")
    found, last = Folder(root).page((), 10_000)
    assert last is None
    assert max(len(file.names) for file in found) == folder.DEPTH
    assert File(("d", "f"), 0) in found


async def test_a_file_that_is_too_large_is_not_read(
    client: Any, failed: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST", 10)
    (root / "large").write_bytes(b"x" * 11)
    with pytest.raises(failed, match="too large: 10 bytes can be read"):
        await read(client, uri(root, "large"))
    with open(root / "huge", "wb") as huge:
        huge.truncate(1 << 40)
    monkeypatch.undo()
    with pytest.raises(failed, match="too large"):
        await read(client, uri(root, "huge"))


async def test_a_file_larger_than_a_message_is_not_sent(connect: Any, failed: Any, root: Path) -> None:
    client = await connect(server(root), message_bytes=100_000)
    (root / "large").write_bytes(b"x" * 200_000)
    with pytest.raises(failed, match="100000 are allowed"):
        await read(client, uri(root, "large"))


async def test_a_file_without_permission_is_said_to_be_one(
    client: Any, failed: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder.Folder, "_opened", forbidden)  # a test may run as root, who is denied nothing
    with pytest.raises(failed, match="no permission"):
        await read(client, uri(root, "a.txt"))


def notes(client: Any, method: str) -> list[dict[str, Any]]:
    return [params for name, params, _ in client.notes if name == f"notifications/resources/{method}"]


async def until_quiet() -> None:
    await trio.sleep(4 * files.TOGETHER)


async def test_a_change_of_a_file_is_told_to_whoever_subscribed(client: Any, root: Path, connect: Any) -> None:
    for path in ("a.txt", "sub/b.json"):
        await client.request("resources/subscribe", {"uri": uri(root, path)})
    (root / "a.txt").write_text("second")
    await client.until(lambda: notes(client, "updated") == [{"uri": uri(root, "a.txt")}])
    (root / "new").write_text("third")
    os.rename(root / "new", root / "a.txt")
    await client.until(lambda: len(notes(client, "updated")) == 2)
    await client.request("resources/unsubscribe", {"uri": uri(root, "a.txt")})
    (root / "a.txt").unlink()
    (root / "sub/b.json").unlink()
    await client.until(lambda: notes(client, "updated")[2:] == [{"uri": uri(root, "sub/b.json")}])


async def test_a_change_of_what_a_link_inside_points_to_is_told(client: Any, root: Path) -> None:
    (root / "link").symlink_to("sub/b.json")
    await client.request("resources/subscribe", {"uri": uri(root, "link")})
    (root / "sub/b.json").write_text("2")
    await client.until(lambda: notes(client, "updated") == [{"uri": uri(root, "link")}])


async def test_files_that_come_and_go_are_told_together(client: Any, root: Path) -> None:
    await listed(client)
    await until_quiet()  # so that it is watched
    client.notes.clear()
    (root / "later").mkdir()
    for number in range(100):
        (root / "later" / str(number)).write_text("")
    await client.until(lambda: bool(notes(client, "list_changed")))
    await until_quiet()
    told = len(notes(client, "list_changed"))
    assert told <= 4, "one a quarter of a second"
    (root / "later" / "7").unlink()  # in a folder that came while it was watched
    await client.until(lambda: len(notes(client, "list_changed")) > told)
    told = len(notes(client, "list_changed"))
    os.rename(root / "later", root / "sub" / "moved")
    await client.until(lambda: len(notes(client, "list_changed")) > told)
    await until_quiet()
    told = len(notes(client, "list_changed"))
    shutil.move(root / "sub" / "moved", root.parent / "away")
    await client.until(lambda: len(notes(client, "list_changed")) > told)


async def test_a_folder_that_is_put_in_the_place_of_the_root_is_watched(client: Any, root: Path) -> None:
    assert len(await listed(client)) == 3
    await until_quiet()
    client.notes.clear()
    os.rename(root, root.parent / "old")
    await trio.sleep(0.1)
    root.mkdir()
    await client.until(lambda: bool(notes(client, "list_changed")))
    assert await listed(client) == []
    await until_quiet()
    client.notes.clear()
    (root / "a").write_text("")
    await client.until(lambda: bool(notes(client, "list_changed")))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_where_the_library_dies_of_a_change_the_next_ones_are_told(
    client: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inotify = pytest.importorskip("watchdog.observers.inotify")
    await listed(client)
    await until_quiet()
    client.notes.clear()

    def die(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyError("a bug")

    monkeypatch.setattr(inotify.InotifyWatchGroup, "on_event", die)
    (root / "lost").write_text("")
    await client.until(lambda: bool(notes(client, "list_changed")))
    await until_quiet()
    client.notes.clear()
    (root / "told").write_text("")
    await client.until(lambda: bool(notes(client, "list_changed")))


async def test_the_one_that_watches_may_leave(connect: Any, root: Path) -> None:
    served = server(root)
    first, second = await connect(served), await connect(served)
    for client in (first, second):
        await listed(client)
        await client.request("resources/subscribe", {"uri": uri(root, "a.txt")})
    first.transport.close()
    await first.until(lambda: bool(first.closed))
    second.notes.clear()
    (root / "a.txt").write_text("changed")
    (root / "new").write_text("")
    await second.until(lambda: bool(notes(second, "updated") and notes(second, "list_changed")))


async def test_a_folder_that_can_not_be_watched_is_served_all_the_same(
    connect: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchdog.observers import inotify  # noqa: F401 - what stands behind `Observer` here

    def full(*_: Any) -> Any:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr("gateway.native.changes._Watching.start", full)
    client = await connect(server(root))
    await client.request("resources/subscribe", {"uri": uri(root, "a.txt")})
    (root / "a.txt").write_text("changed")
    await client.until(lambda: bool(notes(client, "updated")))
    assert [str(line["exc_info"]) for _, line in client.log.lines] == ["[Errno 28] inotify watch limit reached"]


def test_a_root_that_is_no_folder_is_refused(root: Path) -> None:
    for place in ("missing", "a.txt"):
        with pytest.raises(ValueError, match="is no folder"):
            server(root / place)


async def test_a_folder_that_is_gone_is_said_to_be(client: Any, failed: Any, root: Path) -> None:
    shutil.rmtree(root)
    with pytest.raises(failed, match="can't be read: No such file"):
        await listed(client)
