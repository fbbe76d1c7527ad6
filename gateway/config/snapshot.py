"""A configuration as it was read at one moment: the file, and the files with secrets that it names.

What is made of it is the same wherever that is done, also in another process, and after the files have changed.
"""

import stat
from pathlib import Path as FilePath

import msgspec

from gateway.config.problems import ConfigError, Problem

SECRET_BYTES = 1024 * 1024
"""Of a file with a secret."""
LOCK_BYTES = 16 * 1024 * 1024
"""Of a lock file."""


class Snapshot(msgspec.Struct, frozen=True):
    """`secrets` are the contents of the files that the configuration refers to, by their paths, `locks` of those with
    what was accepted of servers; None: there was none."""

    file: str
    text: str
    secrets: dict[str, str] = {}
    locks: dict[str, str | None] = {}

    def encoded(self) -> bytes:
        """For another process."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decoded(data: bytes) -> "Snapshot":
        """What `encoded` made."""
        return msgspec.msgpack.decode(data, type=Snapshot)

    def secret(self, path: str) -> str:
        """As `Reading.secret`, of that moment."""
        if path not in self.secrets:
            raise ValueError("was not read")
        return self.secrets[path]

    def lock(self, path: str) -> str | None:
        """As `Reading.lock`, of that moment."""
        return self.locks.get(path)


class Reading:
    """Reads what stands beside the configuration, and remembers it."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self.locks: dict[str, str | None] = {}

    def lock(self, path: str) -> str | None:
        """The content of a lock file; None: there is none. ValueError says why one can't be read."""
        if path not in self.locks:
            self.locks[path] = lock_text(FilePath(path))
        return self.locks[path]

    def secret(self, path: str) -> str:
        """The content of a file, without the newline at its end. ValueError says why there is none."""
        if path not in self.secrets:
            self.secrets[path] = _content(FilePath(path))
        return self.secrets[path]


def _content(file: FilePath) -> str:
    try:
        if not file.is_file():
            raise ValueError("is not there")
        with file.open("rb") as opened:
            data = opened.read(SECRET_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    if len(data) > SECRET_BYTES:
        raise ValueError(f"is larger than {SECRET_BYTES} bytes")
    return text.removesuffix("\n").removesuffix("\r")


def lock_text(file: FilePath) -> str | None:
    """The content of a lock file; None: there is none. ValueError says why one can't be read."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would never end
            raise ValueError("is no file")
        with file.open("rb") as opened:
            data = opened.read(LOCK_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from error
    if len(data) > LOCK_BYTES:
        raise ValueError(f"is larger than {LOCK_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error


def text_of(file: FilePath) -> str:
    """What stands in a configuration file. ConfigError."""
    name = str(file)
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem(error.strerror or "cannot be read", file=name)]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(f"not UTF-8 at byte {error.start}", file=name)]) from error


def secret(file: FilePath) -> str | None:
    """The content of a file with a secret; None: it can't be read now."""
    try:
        return _content(file)
    except ValueError:
        return None


def lock(file: FilePath) -> str | None:
    """The content of a lock file; None: there is none, or it can't be read now."""
    try:
        return lock_text(file)
    except ValueError:
        return None


def content(file: FilePath) -> str | None:
    """What stands in a configuration file, in the form that it has in a snapshot; None: it can't be read now."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    return text
