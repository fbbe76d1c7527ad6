"""`stagedoor.lock`: what was accepted of servers, read and written. What stands in it was written by people, tools and
merges of git: all of it is looked at, or nothing of it is taken."""

from collections.abc import Mapping
from pathlib import Path as FilePath

from actors.protocol import definitions
from actors.protocol.aggregate import item_name
from actors.protocol.definitions import Definitions
from actors.protocol.pins import NAMED_BY, Mode, Pins, pin
from actors.protocol.subjects import LISTED
from gateway.config.models import File, Server
from gateway.config.problems import Path, Problem


def parsed(text: str) -> dict[str, Definitions]:
    """What a lock file has of each server. ValueError says in one sentence what is wrong with it."""
    found: dict[str, Definitions] = {}
    for server, raw in definitions.read_file(text.encode()).items():
        try:
            found[server] = definitions.read(raw)
            _check(found[server])
        except ValueError as error:
            raise ValueError(f"server {server!r}: {error}") from error
    return found


def _check(pinned: Definitions) -> None:
    for method, items in pinned.lists.items():
        kind, names = LISTED[method], set[str]()
        for item in items:
            name = item_name(item, NAMED_BY[kind])
            if not name or not pin(kind, item).form:
                raise ValueError(f"an item of {method} has no name, or can't be read")
            if name in names:
                raise ValueError(f"{name!r} stands twice in {method}")
            names.add(name)


def modes(file: File, servers: Mapping[str, Server], *, locked: bool) -> dict[str, Mode]:
    """What is done for each server about what was not accepted; `locked`: there is a lock file."""
    every = file.gateway.pins.mode or ("warn" if locked else "off")
    return {name: server.pins or every for name, server in servers.items()}


def pins_of(
    file: File, servers: Mapping[str, Server], place: FilePath, text: str | None, why: str, problems: list[Problem]
) -> dict[str, Pins]:
    """By server, where anything is to be done about it. `text` is what stands in the file, `why` says why it can't be
    read; what is wrong with it is added to `problems`."""
    path: Path = ("gateway", "pins", "file")
    locked: dict[str, Definitions] = {}
    try:
        locked = parsed(text) if text is not None else {}
    except ValueError as error:
        why = str(error)
    if why:
        problems.append(Problem(f"{place.name} can't be used: {why}", path))
        return {}
    wanted = modes(file, servers, locked=text is not None)
    blocking = sorted(name for name, mode in wanted.items() if mode == "block")
    if text is None and (blocking or file.gateway.pins.file is not None):
        reason = f', and server "{blocking[0]}" would have nothing at all' if blocking else ""
        problems.append(Problem(f"there is no {place.name}{reason}: `stagedoor pin` makes it", path))
    return {name: Pins(mode, locked.get(name)) for name, mode in wanted.items() if mode != "off"}
