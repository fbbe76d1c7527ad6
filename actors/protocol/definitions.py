"""What a server says that it has, as files keep it: the last lists of the catalogue, and what is pinned of them.

One format for both. A file has servers, each with its introduction and its lists; the catalogue's names them by a
digest, and holds lists as they came; that of pins names them as the configuration does, and holds of each item what is
pinned (`pins`), in its canonical form.
"""

import msgspec
from msgspec import Raw, Struct, field

from actors.protocol.errors import BROKEN
from actors.protocol.methods import CHANGED
from actors.protocol.payload import is_object

FILE_VERSION = 2
SCHEMA = 1
"""Of the definitions of one server; those of another schema are not read."""


class Introduction(Struct, frozen=True):
    """What a server said of itself, but for the rest of its answer."""

    version: str
    capabilities: Raw
    implementation: Raw = field(name="server_info")
    instructions: str | None = None


class Definitions(Struct, frozen=True, omit_defaults=True):
    """What one server defines; `lists` by method. `server` is a digest of the server as it is configured, whoever its
    client is."""

    v: int = 0
    server: str = ""
    introduction: Introduction | None = field(default=None, name="hello")
    lists: dict[str, list[Raw]] = {}


class _File(Struct):
    version: int
    servers: dict[str, Raw]


def read_file(data: bytes) -> dict[str, Raw]:
    """The servers in a file, each as it stands there. ValueError says what is wrong with it."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if file.version != FILE_VERSION:
        raise ValueError(f"is of version {file.version}, and not {FILE_VERSION}")
    return file.servers


def written(servers: dict[str, Raw], *, indented: bool = False) -> bytes:
    """A file with these servers; `indented`: for people, and for what compares lines."""
    data = msgspec.json.encode(_File(FILE_VERSION, servers))
    return msgspec.json.format(data, indent=2) + b"\n" if indented else data


def read(raw: bytes) -> Definitions:
    """Those of one server. ValueError says what is wrong with them."""
    try:
        found = msgspec.json.decode(raw, type=Definitions)
        broken = [method for method, items in found.lists.items() if not all(map(is_object, items))]
    except BROKEN as error:
        raise ValueError("is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    if found.v != SCHEMA:
        raise ValueError(f"is of schema {found.v}, and not {SCHEMA}")
    unknown = [*(found.lists.keys() - CHANGED.keys()), *broken]
    if unknown:
        raise ValueError(f"has a list {unknown[0]!r} that can't be read")
    return found
