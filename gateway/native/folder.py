"""The regular files in a folder and below it, and no way out of it.

A path is resolved first, links and all, and has to end below the folder; what it came to is then opened name by name
from the folder on, where no name may be a link. So whatever is moved or linked meanwhile, what is opened lies in the
folder. Nothing here waits for a peer: a pipe, a socket or a device is told by its kind, and never opened.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Final, TypeAlias

DEPTH: Final = 100
"""Names in a path that is listed."""

BATCH: Final = 1000
"""Names of one folder that are held at a time, of however many it has."""

SCANNED: Final = 200_000
"""Names that may be looked at for one page: when there were so many, no other folder is looked into."""

Names: TypeAlias = tuple[str, ...]
"""A path in the folder, name by name, as the system has them: bytes that are no UTF-8 are lone surrogates."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class File:
    """A regular file, and how large it is."""

    names: Names
    size: int


@dataclass(frozen=True, slots=True)
class Folder:
    """All methods block, and belong in a thread. Each raises OSError for what can't be reached, FileNotFoundError for
    what is not there, is no regular file, or lies outside."""

    root: Path

    def read(self, names: Names, most: int) -> bytes:
        """The file, or of a larger one `most` bytes and one more."""
        descriptor = self._opened(names)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most + 1)

    def version(self, names: Names) -> tuple[int, ...] | None:
        """What is another one after each change of the file; None where there is none."""
        try:
            above, last = self._above(names)
        except OSError:
            return None
        try:
            found = _regular(last, above)
        except OSError:
            return None
        finally:
            os.close(above)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def page(self, after: Names, size: int) -> tuple[list[File], Names | None]:
        """So many files that come after this path, in order, and the path to go on after, if there may be more."""
        os.close(self._descend(()))
        walk, files, seen = _Walk(self), list[File](), after
        for names, file in walk.below((), after):
            seen = names
            if file is not None and len(files) == size:
                return files, files[-1].names
            if file is not None:
                files.append(file)
        return files, seen if walk.tired else None

    def entries(self, names: Names, after: str) -> tuple[list["_Entry"], int]:
        """Of this folder the first entries from `after` on, and how many it has."""
        descriptor = self._descend(names)
        try:
            found = _Counted()
            with os.scandir(descriptor) as scanned:
                every = ((e.name, e.is_dir(follow_symlinks=False), e.is_symlink()) for e in found.of(scanned))
                first = nsmallest(BATCH + 1, (entry for entry in every if entry[0] >= after))
            return [self._entry(names, *entry, descriptor) for entry in first], found.count
        finally:
            os.close(descriptor)

    def _entry(self, above: Names, name: str, is_folder: bool, is_link: bool, descriptor: int) -> "_Entry":
        size = None
        try:
            if is_link:
                size = self._linked_size((*above, name))
            elif not is_folder:
                size = _regular(name, descriptor).st_size
        except OSError:
            pass  # gone again, no regular file, or outside: it is not listed
        return _Entry(name, is_folder, size)

    def _linked_size(self, names: Names) -> int:
        above, last = self._above(names)
        try:
            return _regular(last, above).st_size
        finally:
            os.close(above)

    def _opened(self, names: Names) -> int:
        above, last = self._above(names)
        try:
            _regular(last, above)  # before it is opened, which a device may notice
            descriptor = os.open(last, _FILE, dir_fd=above)
        finally:
            os.close(above)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _not_there()
        return descriptor

    def _above(self, names: Names) -> tuple[int, str]:
        """The folder that what these names lead to is in, opened, and its name there."""
        resolved = self._resolved(names)
        return self._descend(resolved[:-1]), resolved[-1]

    def _resolved(self, names: Names) -> Names:
        """Without links, below the folder."""
        if not names or any(name in {"", ".", ".."} or "/" in name or "\0" in name for name in names):
            raise _not_there()
        root = os.path.realpath(self.root)
        found = os.path.realpath(os.path.join(root, *names), strict=True)
        prefix = root.rstrip("/") + "/"
        if not found.startswith(prefix) or found == prefix:
            raise _not_there()
        return tuple(found.removeprefix(prefix).split("/"))

    def _descend(self, names: Names) -> int:
        """This folder, opened; no name may be a link."""
        descriptor = _entered(os.path.realpath(self.root))
        for name in names:
            try:
                inner = _entered(name, descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a folder: a folder, or a file that has a size, or what is not listed."""

    name: str
    is_folder: bool
    size: int | None


@dataclass(slots=True)
class _Counted:
    count: int = 0

    def of(self, entries: "Iterator[os.DirEntry[str]]") -> "Iterator[os.DirEntry[str]]":
        for entry in entries:
            self.count += 1
            yield entry


@dataclass(slots=True)
class _Walk:
    """One way through the folder; it is `tired` when it ended because it had looked at too much."""

    folder: Folder
    tired: bool = False
    _scanned: int = 0
    _moved: bool = False
    """Whether there was anything: a page that begins where it ended would be the last one for ever."""

    def below(self, names: Names, after: Names) -> Iterator[tuple[Names, File | None]]:
        """Each path below this one and after that one, in order, with the file if it is one."""
        while True:
            if self._moved and self._scanned > SCANNED:
                self.tired = True
                return
            try:
                entries, count = self.folder.entries(names, after[0] if after else "")
            except OSError:
                return  # gone again, a link by now, or not for us
            self._scanned += count
            for entry in entries[:BATCH]:
                path, rest = (*names, entry.name), after[1:] if after[:1] == (entry.name,) else None
                if rest == ():
                    continue  # all of it was before
                if entry.is_folder and len(path) < DEPTH:
                    yield from self.below(path, rest or ())
                    if self.tired:
                        return
                self._moved = True
                yield path, None if entry.size is None else File(path, entry.size)
            if len(entries) <= BATCH:
                return
            after = (entries[BATCH - 1].name,)


def _entered(name: str, above: int | None = None) -> int:
    return os.open(name, _FOLDER, dir_fd=above)


def _regular(name: str, above: int) -> os.stat_result:
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        raise _not_there()
    return found


def _not_there() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
