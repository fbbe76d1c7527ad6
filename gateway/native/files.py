"""A folder as resources: its files are listed with their types and sizes and read, and changes are told.

For {"native": "gateway.native.files", "options": {"root": "notes"}}. How no path leads out of it is in `folder.py`.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from mimetypes import MimeTypes
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

import trio

from gateway.native.changes import watched
from gateway.native.content import Embedded
from gateway.native.definitions import ResourceInfo, TemplateInfo
from gateway.native.errors import InternalError, InvalidParamsError, NotFoundError
from gateway.native.folder import Folder, Names
from gateway.native.providers import ResourcePage
from gateway.native.server import Server

T = TypeVar("T")

PAGE: Final = 500
"""Files on a page of the list."""

LARGEST: Final = 16 * 1024 * 1024
"""Bytes of a file that is read; `gateway.limits.messageBytes` says what a message may have in the end."""

THREADS: Final = 8
"""For reading and listing at a time. One that the disk holds up keeps its place."""

LOOK: Final = 2.0
"""Seconds at most between two looks at files that somebody subscribed to: not every file system tells of changes."""

TOGETHER: Final = 0.25
"""Seconds after a change in which others join it."""

_TYPES: Final = MimeTypes()  # those of Python, so that they are the same on every machine
_SOURCES: Final = {".md": "text/markdown", ".yaml": "application/yaml", ".yml": "application/yaml"}
_SOURCES_MORE: Final = {".toml": "application/toml", ".jsonl": "application/jsonl", ".log": "text/plain"}
for _ending, _type in (_SOURCES | _SOURCES_MORE).items():
    _TYPES.add_type(_type, _ending)


def server(root: Path) -> Server:
    """A server of the files in this folder. ValueError if it is none."""
    if not root.is_dir():
        raise ValueError(f"root: {root} is no folder")
    served = Server(
        "stagedoor-files",
        version="1.0",
        title="Files",
        description=f"The files in {root.name or root}.",
        instructions="Each file of a folder is a resource. Subscribe to hear of its changes.",
    )
    files = Files(Folder(Path(os.path.abspath(root))), served)
    served.provide("file", files)
    served.background(files.watch)
    served.background(files.look)
    return served


class Files:
    """The provider of `file:` resources."""

    def __init__(self, folder: Folder, server: Server) -> None:
        self._folder = folder
        self._server = server
        self._base = "file://" + quote(os.fsencode(folder.root)).rstrip("/") + "/"
        self._threads = trio.CapacityLimiter(THREADS)
        self._subscribed: dict[str, tuple[int, ...] | None] = {}
        self._listed = False
        self._look_now = trio.Event()

    async def list(self, cursor: str | None) -> ResourcePage:
        """A page of all files, in order of their paths."""
        after = self._names(self._base + cursor) if cursor else ()
        if after is None:
            raise InvalidParamsError("This cursor is not one of ours")
        self._listed = True
        try:
            files, last = await self._in_thread(lambda: self._folder.page(after, PAGE))
        except OSError as error:
            raise InternalError(f"The folder can't be read: {error.strerror}") from None
        infos = [
            ResourceInfo(self._uri(file.names), _name(file.names), mime_type=_type_of(file.names[-1]), size=file.size)
            for file in files
        ]
        return infos, None if last is None else self._uri(last).removeprefix(self._base)

    def templates(self) -> Sequence[TemplateInfo]:
        """The one over the path."""
        return [TemplateInfo(f"{self._base}{{+path}}", "file", "File", "A file, by its path in the folder")]

    async def read(self, uri: str) -> Embedded:
        """A file, as text if it is UTF-8."""
        names = self._there(uri)
        try:
            data = await self._in_thread(lambda: self._folder.read(names, LARGEST))
        except PermissionError:
            raise InternalError("There is no permission to read this file") from None
        except OSError:
            raise NotFoundError(uri) from None
        if len(data) > LARGEST:
            raise InternalError(f"The file is too large: {LARGEST} bytes can be read")
        text = _text(data)
        mime_type = _type_of(names[-1]) or ("application/octet-stream" if text is None else "text/plain")
        return Embedded(uri, data if text is None else text, mime_type)

    async def subscribe(self, uri: str) -> None:
        """From here on changes of this file are told. NotFoundError where there is none."""
        names = self._there(uri)
        version = await self._in_thread(lambda: self._folder.version(names))
        if version is None:
            raise NotFoundError(uri)
        self._subscribed[uri] = version

    async def unsubscribe(self, uri: str) -> None:
        """The reverse."""
        self._subscribed.pop(uri, None)

    async def watch(self) -> None:
        """Tells of files that come and go, until it is cancelled. OSError if the folder can't be watched."""
        while True:
            with suppress(FileNotFoundError):
                await self._watch(await self._in_thread(self._identity))
            await trio.sleep(TOGETHER)

    async def _watch(self, identity: tuple[int, int]) -> None:
        """While it is this folder, and somebody watches."""
        async with watched(self._folder.root) as changes:
            if self._listed:  # what happened before is not known
                self._server.list_changed("resources")
            while changes.alive() and await self._in_thread(self._identity) == identity:
                with trio.move_on_after(LOOK):
                    await changes.wait()
                    await trio.sleep(TOGETHER)
                if changes.taken():
                    self._server.list_changed("resources")
                self._look_now.set()
        if self._listed:
            self._server.list_changed("resources")

    def _identity(self) -> tuple[int, int]:
        found = self._folder.root.stat()
        return found.st_dev, found.st_ino

    async def look(self) -> None:
        """Tells of changes of the files that somebody subscribed to, until it is cancelled."""
        while True:
            with trio.move_on_after(LOOK):
                await self._look_now.wait()
            self._look_now = trio.Event()
            known = {uri: self._there(uri) for uri in self._subscribed}
            if not known:
                continue
            found = await self._in_thread(partial(_versions, self._folder, known))
            for uri, version in found.items():
                if self._subscribed.get(uri, version) != version:
                    self._subscribed[uri] = version
                    self._server.updated(uri)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)

    def _uri(self, names: Names) -> str:
        return self._base + "/".join(quote(os.fsencode(name), safe="") for name in names)

    def _there(self, uri: str) -> Names:
        names = self._names(uri)
        if names is None:
            raise NotFoundError(uri)
        return names

    def _names(self, uri: str) -> Names | None:
        """The path that a URI names. A slash that is encoded belongs to a name, and so to none that there is."""
        scheme, colon, rest = uri.partition(":")
        path = f"{scheme.lower()}{colon}{rest}"
        if not path.startswith(self._base) or "?" in path or "#" in path:
            return None
        return tuple(os.fsdecode(unquote_to_bytes(part)) for part in path.removeprefix(self._base).split("/"))


def _versions(folder: Folder, known: dict[str, Names]) -> dict[str, tuple[int, ...] | None]:
    return {uri: folder.version(names) for uri, names in known.items()}


def _name(names: Names) -> str:
    return os.fsencode("/".join(names)).decode(errors="replace")


def _type_of(name: str) -> str | None:
    kind, packed = _TYPES.guess_type(f"x{os.path.splitext(name)[1]}" if name.count(".") == 1 else f"x{name}")
    return f"application/{packed}" if packed else kind


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
