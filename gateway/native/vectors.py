"""A vector store that outlives the process, with five tools; each names one of the databases in its file.

For {"native": "gateway.native.vectors", "options": {"path": "vectors.db"}}, with the packages of `stagedoor[vectors]`.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import trio

from gateway.native import vector_store as store
from gateway.native.errors import ToolError
from gateway.native.server import Server

if TYPE_CHECKING:
    from apsw import Connection

READERS: Final = 4
"""Queries at a time; more wait."""

TOGETHER: Final = 256
"""Changes of one transaction, at most: those that came while the one before was written."""

_NUMBER, _TEXT, _INTEGER = {"type": "number"}, {"type": "string"}, {"type": "integer"}
_PROPERTIES: Final[Mapping[str, dict[str, Any]]] = {
    "vector": {"type": "array", "items": _NUMBER, "description": "Not all zeros; all of a database have one length"},
    "id": _INTEGER | {"description": "Of the vector"},
    "metadata": _TEXT | {"description": "Kept beside the vector, and given back with it"},
    "top_k": _INTEGER | {"default": 5, "description": f"How many to find, up to {store.MOST}"},
    "limit": _INTEGER | {"default": 10, "description": f"How many to list, up to {store.MOST}"},
    "db_name": _TEXT | {"default": "default", "description": "The database; it is there once something is put in"},
}


class Found(TypedDict):
    """A vector near the one that was asked for: 1 is the same direction, -1 the opposite one."""

    id: int
    score: float
    metadata: str | None


class Matches(TypedDict):
    """The nearest vectors, the nearest first."""

    matches: list[Found]


class Inserted(TypedDict):
    """What was put in, and whether it took the place of another."""

    id: int
    replaced: bool


class Statistics(TypedDict):
    """How many vectors of how many dimensions, and the bytes they take."""

    count: int
    dimensions: int
    memory: int


class Listed(TypedDict):
    """A vector by its id."""

    id: int
    metadata: str | None


class Vectors(TypedDict):
    """The first vectors, in order of their ids."""

    vectors: list[Listed]


class Deleted(TypedDict):
    """What was taken out."""

    id: int


def server(path: Path | None = None) -> Server:
    """A server of the vectors in this file, or in one of the user's. ValueError where the packages are missing."""
    if not (find_spec("apsw") and find_spec("sqlite_vec")):
        raise ValueError("the packages for vectors are missing: pip install 'stagedoor[vectors]'")
    served = Server(
        "stagedoor-vectors",
        version="1.0",
        title="Vectors",
        description="Keeps vectors, and finds those near another.",
        instructions="Put vectors in with db_insert, find the nearest by their cosine with db_query.",
    )
    _offer(served, Store(file_of(path)))
    return served


def file_of(path: Path | None) -> Path:
    """The file that this option names."""
    if path is None:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(base) / "stagedoor" / "vectors.db"
    return path / "vectors.db" if path.is_dir() else path


def _offer(server: Server, kept: "Store") -> None:
    @server.tool(input_schema=_schema("vector", "top_k", "db_name"), hints={"readOnlyHint": True})
    async def db_query(vector: list[float], top_k: int = 5, db_name: str = "default") -> Matches:
        """Finds the vectors nearest to this one, by their cosine."""
        _check(db_name)
        _check_count("top_k", top_k)
        found = await kept.read(lambda c: store.query(c, db_name, store.packed(vector), int(top_k)))
        return {"matches": [{"id": m.id, "score": m.score, "metadata": m.metadata} for m in found]}

    @server.tool(input_schema=_schema("id", "vector", "metadata", "db_name"), hints={"idempotentHint": True})
    async def db_insert(
        id: int, vector: list[float], metadata: str | None = None, db_name: str = "default"
    ) -> Inserted:
        """Puts a vector in; one that has this id already is replaced."""
        _check(db_name, id, metadata)
        replaced = await kept.write(lambda c: store.insert(c, db_name, int(id), store.packed(vector), metadata))
        return {"id": int(id), "replaced": replaced}

    @server.tool(input_schema=_schema("db_name"), hints={"readOnlyHint": True})
    async def db_stats(db_name: str = "default") -> Statistics:
        """Says how many vectors there are, of how many dimensions, and how many bytes they take."""
        _check(db_name)
        found = await kept.read(lambda c: store.statistics(c, db_name))
        return {"count": found.count, "dimensions": found.dimensions, "memory": found.memory}

    @server.tool(input_schema=_schema("limit", "db_name"), hints={"readOnlyHint": True})
    async def db_list(limit: int = 10, db_name: str = "default") -> Vectors:
        """Lists vectors in order of their ids, without their numbers."""
        _check(db_name)
        _check_count("limit", limit)
        found = await kept.read(lambda c: store.entries(c, db_name, int(limit)))
        return {"vectors": [{"id": id, "metadata": metadata} for id, metadata in found]}

    @server.tool(input_schema=_schema("id", "db_name"), hints={"destructiveHint": True})
    async def db_delete(id: int, db_name: str = "default") -> Deleted:
        """Takes a vector out."""
        _check(db_name, id)
        await kept.write(lambda c: store.delete(c, db_name, int(id)))
        return {"id": int(id)}


def _schema(*names: str) -> dict[str, Any]:
    required = [name for name in names if name in {"vector", "id"}]
    schema = {
        "type": "object",
        "properties": {name: _PROPERTIES[name] for name in names},
        "additionalProperties": False,
    }
    return schema | ({"required": required} if required else {})


def _check(db_name: str, id: int = 0, metadata: str | None = None) -> None:
    """ToolError for what no file could keep."""
    if not 1 <= len(db_name) <= store.NAME:
        raise ToolError(f"db_name: {len(db_name)} characters, and from 1 to {store.NAME} are allowed")
    if int(id) not in store.IDS:
        raise ToolError("id: whole numbers of 64 bits are allowed")
    if metadata is not None and len(metadata) > store.METADATA:
        raise ToolError(f"metadata: {len(metadata)} characters, and {store.METADATA} are allowed")
    for name, text in (("db_name", db_name), ("metadata", metadata or "")):
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ToolError(f"{name}: half of a surrogate pair is no character")


def _check_count(name: str, count: int) -> None:
    if not 1 <= count <= store.MOST:
        raise ToolError(f"{name}: from 1 to {store.MOST} are allowed")


class Store:
    """The file, for the event loop: what is asked of it runs in threads. Changes that come while others are written go
    into one transaction, so that many at a time wait for the disk once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._writer: Connection | None = None
        self._readers: list[Connection] = []
        self._connecting = threading.Lock()
        self._reading = trio.CapacityLimiter(READERS)
        self._writing = trio.CapacityLimiter(1)
        self._turn = trio.Lock()
        self._waiting: list[_Change] = []

    async def read(self, work: store.Work) -> Any:
        """What this says of the file as it was at one moment. ToolError."""
        return await trio.to_thread.run_sync(self._read, work, limiter=self._reading, abandon_on_cancel=True)

    def _read(self, work: store.Work) -> Any:
        self._check_file()
        connection = self._reader()
        try:
            return store.read(connection, work)
        finally:
            self._readers.append(connection)

    def _reader(self) -> "Connection":
        try:
            return self._readers.pop()
        except IndexError:
            return self._connect()

    def _connect(self) -> "Connection":
        with self._connecting:  # one at a time, since the first one makes the file
            connection = store.connect(self._path)
            self._file = self._file or store.identity(self._path)
        return connection

    def _check_file(self) -> None:
        """ToolError if the file that is open is not there any more: what is written to it nobody would find again."""
        if self._file is not None and store.identity(self._path) != self._file:
            raise ToolError(f"{self._path} was removed or replaced. Nothing was changed; start the server again")

    async def write(self, work: store.Work) -> Any:
        """What this returns, once it is on the disk. ToolError, if it changed nothing. Cancelled before its turn, it
        does nothing either."""
        change = _Change(work)
        self._waiting.append(change)
        try:
            async with self._turn:
                if not change.done:
                    batch = self._waiting[:TOGETHER]
                    del self._waiting[:TOGETHER]
                    # Whoever writes does so for others too, and goes on when it is cancelled.
                    with trio.move_on_after(2 * store.BUSY, shield=True):
                        await trio.to_thread.run_sync(partial(self._write, batch), limiter=self._writing)
        finally:
            if change in self._waiting:
                self._waiting.remove(change)
        return change.result()

    def _write(self, batch: "Sequence[_Change]") -> None:
        try:
            self._check_file()
            if self._writer is None:
                self._writer = self._connect()
            outcomes = store.write(self._writer, [change.work for change in batch])
        except ToolError as error:
            outcomes = [(None, error)] * len(batch)
        for change, outcome in zip(batch, outcomes, strict=True):
            change.outcome = outcome


class _Change:
    """One that waits for its turn, or has had it."""

    def __init__(self, work: store.Work) -> None:
        self.work = work
        self.outcome: store.Outcome | None = None

    @property
    def done(self) -> bool:
        """Whether it is on the disk, or failed."""
        return self.outcome is not None

    def result(self) -> Any:
        """What came of it. ToolError, and whatever else its work raised."""
        assert self.outcome is not None, "its turn has been"
        value, error = self.outcome
        if error is not None:
            raise error
        return value
