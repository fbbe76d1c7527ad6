"""Which gateways run on this machine, so that a command that knows where one listens finds its admin listener.

One small file for each, in the state directory, readable for its user alone; it holds addresses and nothing else. One
that a killed gateway left behind is removed by the next.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actors.ports import Log
from gateway.lifecycle import state_directory

FOLDER = "running"


@contextmanager
def recorded(place: int | str, admin: str, log: Log) -> Iterator[None]:
    """Others find the gateway that listens at this port, or on the socket at this path, as long as the block runs. It
    is a convenience: a state directory that can't be written changes nothing else."""
    file = state_directory() / FOLDER / f"{_named(place)}-{os.getpid()}.json"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(file.parent)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump({"admin": admin}, out)
    except OSError as error:
        log.debug("not_recorded", path=str(file), error=str(error))
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()


def admins(place: int | str) -> list[str]:
    """The URLs of the admin listeners of gateways that listen, or did, at this port or path of this machine."""
    found = []
    with suppress(OSError):
        for file in sorted((state_directory() / FOLDER).glob(f"{_named(place)}-*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.append(str(json.loads(file.read_text())["admin"]))
    return found


def _named(place: int | str) -> str:
    if isinstance(place, int):
        return str(place)
    return hashlib.sha256(os.path.realpath(place).encode()).hexdigest()[:32]


def _remove_stale(folder: Path) -> None:
    for file in folder.glob("*-*.json"):
        pid = file.stem.rpartition("-")[2]
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, ValueError):
            file.unlink(missing_ok=True)
        except OSError:
            continue  # it is somebody else's, and alive
