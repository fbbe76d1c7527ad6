"""Vectors in a file: sqlite-vec has them and searches, SQLite sees to it that what was committed stays.

A file holds databases, each of vectors of one length, found by the cosine of the angle between them. They are kept at
length 1, which the cosine does not see. Everything here blocks, and belongs in a thread; a connection is for one thread
at a time. Why it is this library: docs/decisions/vectors.md.
"""

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, isfinite
from pathlib import Path
from sys import float_info
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from actors.runtime.boundary import thread_boundary
from gateway.native.errors import ToolError

if TYPE_CHECKING:
    from apsw import Connection

MADE_BY: Final = 0x53444F52
"""That the file is one of these (SQLite's `application_id`)."""
FORM: Final = 1
"""Of its tables; another one means another version of this program."""

DIMENSIONS: Final = 8192
"""The most that sqlite-vec takes."""
DATABASES: Final = 1000
"""In one file."""
NAME: Final = 200
"""Characters of a database's name."""
METADATA: Final = 65_536
"""Characters that one vector has beside it."""
MOST: Final = 1000
"""Vectors in one answer."""
IDS: Final = range(-(2**63), 2**63)
BUSY: Final = 10.0
"""Seconds that are waited for another process which writes."""
SLACK: Final = 4096
"""Places of deleted vectors that are left in any case before a table is written anew."""

_TABLES: Final = f"""
create table databases (
  number integer primary key, name text unique not null, dimensions integer not null, count integer not null,
  written integer not null);
create table entries (
  number integer not null, id integer not null, metadata text, primary key (number, id)) without rowid;
pragma application_id = {MADE_BY};
pragma user_version = {FORM};
"""


@dataclass(frozen=True, slots=True)
class Match:
    """A vector that was found, by how near it is: 1 is the same direction, -1 the opposite one."""

    id: int
    score: float
    metadata: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a database holds; `memory` is the bytes of its vectors."""

    count: int
    dimensions: int
    memory: int


@dataclass(frozen=True, slots=True)
class _Database:
    """One database; its tables bear its number, `written` vectors went in since its table was made."""

    number: int
    dimensions: int
    count: int
    written: int


def connect(path: Path) -> "Connection":
    """A connection to this file, which is made if it is not there. ToolError."""
    import apsw

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = apsw.Connection(os.fspath(path))
    except (OSError, apsw.Error) as error:
        raise ToolError(f"The vectors in {path} can't be used: {error}") from error
    prepared = False
    try:
        _prepare(connection)
        prepared = True
    except apsw.Error as error:
        raise ToolError(f"The vectors in {path} can't be used: {error}") from error
    finally:
        if not prepared:
            connection.close()
    return connection


def identity(path: Path) -> tuple[int, int] | None:
    """Of the file that is there; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare(connection: "Connection") -> None:
    import sqlite_vec

    connection.set_busy_timeout(int(BUSY * 1000))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.enable_load_extension(False)
    [(made_by, form, tables)] = connection.execute(
        "select a.application_id, u.user_version, (select count(*) from sqlite_schema) "
        "from pragma_application_id a, pragma_user_version u"
    )
    if tables and (made_by, form) != (MADE_BY, FORM):
        raise ToolError("The file is there, and is no vector store of this version")
    connection.execute("pragma journal_mode = wal; pragma synchronous = full")
    if not tables:
        with_lock(connection, lambda: _make(connection))


def _make(connection: "Connection") -> None:
    if not list(connection.execute("select 1 from sqlite_schema")):  # nobody else was faster
        connection.execute(_TABLES)


def with_lock(connection: "Connection", work: Callable[[], object]) -> None:
    """Does this in one transaction, as the one writer of all processes. Nothing of it stays where it raises."""
    connection.execute("begin immediate")
    try:
        work()
        connection.execute("commit")
    finally:
        if connection.in_transaction:
            connection.execute("rollback")


Work: TypeAlias = Callable[["Connection"], Any]
Outcome: TypeAlias = tuple[Any, BaseException | None]


def write(connection: "Connection", works: Sequence[Work]) -> list[Outcome]:
    """Does these in one transaction: one that fails undoes what it did, and no other. ToolError where none of them
    took place."""
    import apsw

    outcomes: list[Outcome] = []

    def one(work: Work) -> None:
        with connection:
            outcomes.append((work(connection), None))

    def each() -> None:
        for work in works:
            error = thread_boundary(one, work).error
            if isinstance(error, apsw.Error):  # of the file, and so of all
                raise error
            if error is not None:
                outcomes.append((None, error))

    try:
        with_lock(connection, each)
    except apsw.Error as error:
        raise ToolError(_said(error)) from error
    return outcomes


def read(connection: "Connection", work: Work) -> Any:
    """Does this on one state of the file, whatever is written meanwhile. ToolError."""
    import apsw

    try:
        with connection:
            return work(connection)
    except apsw.Error as error:
        raise ToolError(_said(error)) from error


def _said(error: Exception) -> str:
    import apsw

    if isinstance(error, apsw.BusyError):
        return f"Another process has kept the vectors to itself for {BUSY:g} s. Nothing was changed; try again"
    return f"The vectors can't be used: {error}. Nothing was changed"


# What can be done ---------------------------------------------------------------------------------------------


def insert(connection: "Connection", name: str, id: int, vector: bytes, metadata: str | None) -> bool:
    """Puts a vector in; whether one of this id was there, which is replaced. ToolError."""
    dimensions = len(vector) // 4
    database = _database(connection, name) or _made(connection, name, dimensions)
    _check(database, name, dimensions)
    values = {"number": database.number, "id": id, "vector": vector, "metadata": metadata}
    known = bool(list(connection.execute("select 1 from entries where number = :number and id = :id", values)))
    table = _table(database.number)
    if known:
        connection.execute(f"update {table} set vector = :vector where id = :id", values)  # noqa: S608
    else:
        connection.execute(f"insert into {table} (id, vector) values (:id, :vector)", values)  # noqa: S608
        connection.execute(
            "update databases set count = count + 1, written = written + 1 where number = :number", values
        )
    connection.execute("insert or replace into entries values (:number, :id, :metadata)", values)
    return known


def delete(connection: "Connection", name: str, id: int) -> None:
    """Takes a vector out. A database without any is as one that never was. ToolError for an id that is not there."""
    database = _database(connection, name)
    values = {"number": database.number if database else None, "id": id}
    connection.execute("delete from entries where number = :number and id = :id", values)
    if database is None or not connection.changes():
        raise ToolError(f"There is no vector {id} in {name!r}")
    if database.count == 1:
        connection.execute(f"drop table {_table(database.number)}")
        connection.execute("delete from databases where number = :number", values)
        return
    connection.execute(f"delete from {_table(database.number)} where id = :id", values)  # noqa: S608
    connection.execute("update databases set count = count - 1 where number = :number", values)
    if database.written > 2 * database.count + SLACK:
        _write_anew(connection, database)


def query(connection: "Connection", name: str, vector: bytes, most: int) -> list[Match]:
    """The nearest ones, the nearest first; of a database that is not there none. ToolError."""
    database = _database(connection, name)
    if database is None:
        return []
    _check(database, name, len(vector) // 4)
    near = f"select id, distance from {_table(database.number)} where vector match ? and k = ?"  # noqa: S608
    found = connection.execute(
        f"with near as materialized ({near}) "  # noqa: S608
        "select near.id, near.distance, entries.metadata from near join entries on entries.number = ? "
        "and entries.id = near.id order by near.distance, near.id",
        (vector, most, database.number),
    )
    return [Match(id, max(-1.0, min(1.0, 1.0 - distance)), metadata) for id, distance, metadata in found]


def statistics(connection: "Connection", name: str) -> Statistics:
    """Of this database; zeros for one that is not there."""
    database = _database(connection, name)
    if database is None:
        return Statistics(0, 0, 0)
    return Statistics(database.count, database.dimensions, database.count * database.dimensions * 4)


def entries(connection: "Connection", name: str, most: int) -> list[tuple[int, str | None]]:
    """The first ones by their ids, each with its metadata."""
    found = connection.execute(
        "select id, metadata from entries where number = (select number from databases where name = ?) "
        "order by id limit ?",
        (name, most),
    )
    return [(id, metadata) for id, metadata in found]


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is kept: of length 1, in single precision. ToolError for what has no direction."""
    if not 1 <= len(vector) <= DIMENSIONS:
        raise ToolError(f"vector: {len(vector)} numbers, and from 1 to {DIMENSIONS} are allowed")
    try:
        length = hypot(*vector)
    except OverflowError:
        length = float("inf")
    if not isfinite(length):
        raise ToolError(f"vector: {_endless(vector)}")
    if length == 0:
        raise ToolError("vector: all its numbers are zero, so it has no direction to compare")
    return array("f", [number / length for number in vector]).tobytes()


def _endless(vector: Sequence[float]) -> str:
    for place, number in enumerate(vector):
        if not abs(number) <= float_info.max:  # also for a whole number that no float is as large as
            return f"its number {place} (from 0) is not finite"
    return "its numbers are too large"


def _database(connection: "Connection", name: str) -> _Database | None:
    found = connection.execute("select number, dimensions, count, written from databases where name = ?", (name,))
    return next((_Database(*row) for row in found), None)


def _made(connection: "Connection", name: str, dimensions: int) -> _Database:
    [(many, number)] = connection.execute("select count(*), coalesce(max(number), 0) + 1 from databases")
    if many >= DATABASES:
        raise ToolError(f"There are {many} databases, and no more are allowed")
    _make_table(connection, number, dimensions)
    connection.execute("insert into databases values (?, ?, ?, 0, 0)", (number, name, dimensions))
    return _Database(number, dimensions, 0, 0)


def _make_table(connection: "Connection", number: int, dimensions: int) -> None:
    connection.execute(
        f"create virtual table {_table(number)} using vec0("
        f"id integer primary key, vector float[{dimensions}] distance_metric=cosine)"
    )


def _write_anew(connection: "Connection", database: _Database) -> None:
    """Without the places of deleted vectors, which vec0 keeps, and looks at, as long as one of a thousand lives."""
    [(number,)] = connection.execute("select max(number) + 1 from databases")
    _make_table(connection, number, database.dimensions)
    old, new = _table(database.number), _table(number)
    connection.execute(f"insert into {new} (id, vector) select id, vector from {old}")  # noqa: S608
    connection.execute(f"drop table {old}")
    values = (number, database.number)
    connection.execute("update entries set number = ? where number = ?", values)
    connection.execute("update databases set number = ?, written = count where number = ?", values)


def _check(database: _Database, name: str, dimensions: int) -> None:
    if database.dimensions != dimensions:
        raise ToolError(f"vector: it has {dimensions} dimensions, and those in {name!r} have {database.dimensions}")


def _table(number: int) -> str:
    return f"vectors_{number:d}"
