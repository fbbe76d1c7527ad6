"""What differs between two configurations, and what of it takes effect while the gateway runs.

Configurations are compared by what stands in them, place by place, or by digests of it with a key that nobody keeps:
then a credential is found to be another one, and nothing else is learnt of it.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from pydantic import BaseModel, SecretStr

from actors.protocol.table import Limits
from gateway.config.problems import Path, dotted
from gateway.config.sections import PLACE

FIXED_LIMITS = (
    "message_bytes",
    "bodies_bytes",
    "sessions",
    "child_processes",
    "process_wait",
    "parked_per_principal",
    "stderr_lines",
    "write",
    "store_outage",
)
"""Those of which something was made at the start: pools, rooms, descriptors, transports."""
SUPERVISED = (
    ("gateway", "listen"),
    ("gateway", "admin"),
    ("gateway", "store"),
    ("gateway", "workers"),
    ("gateway", "audit"),
)
"""What workers have from their supervisor, or it has for itself too (its trail has the reloads), so that theirs is no
new start."""
FIXED = (
    *SUPERVISED,
    ("gateway", "keys"),
    ("gateway", "tls"),
    ("gateway", "traces"),
    ("gateway", "clientMetadataUrl"),
    ("gateway", "clientKeys"),
    ("gateway", "clientKeyAlgorithm"),
    *(("gateway", "log", key) for key in ("requests", "requestsSample", "access", "accessFile")),
    ("gateway", "newPrivileges"),
    *(PLACE[name].path for name in FIXED_LIMITS),
)
"""What needs a restart, with all that stands below it. Everything else takes effect when the file is read anew."""


class Changes(msgspec.Struct, frozen=True):
    """Servers by name; of those that are changed, which of their keys. `settings` and `fixed` are the keys of the
    gateway that are others now; the latter take effect at the next start."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    settings: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """As JSON, without what there is none of."""
        parts = {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": {name: list(keys) for name, keys in self.changed.items()},
            "settings": list(self.settings),
            "needs_restart": list(self.fixed),
        }
        return {name: part for name, part in parts.items() if part}


def flat(model: BaseModel) -> dict[Path, str]:
    """What stands in a file, by place, as JSON: defaults too, switched-off servers not."""
    values = model.model_dump(mode="python", by_alias=True, exclude={"schema_", "inputs", "mcp_servers", "servers"})
    servers = {**_servers(model, "servers"), **_servers(model, "mcp_servers")}
    return dict(_leaves((), {**values, "mcpServers": servers}))


def _servers(model: BaseModel, name: str) -> dict[str, Any]:
    found: Mapping[str, Any] = getattr(model, name)
    return {
        server: {"": True, **spec.model_dump(mode="python", by_alias=True)}
        for server, spec in found.items()
        if not spec.disabled
    }


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)
    else:
        yield path, msgspec.json.encode(value, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def digests(values: Mapping[Path, str], key: bytes) -> dict[str, str]:
    """By place, what tells two values apart for who has the key."""
    return {place_text(path): _digest(path, value, key) for path, value in values.items()}


def _digest(path: Path, value: str, key: bytes) -> str:
    said = msgspec.json.encode([path, value])
    return hmac.new(key, said, hashlib.sha256).hexdigest()


def place_text(path: Path) -> str:
    """A place as one text."""
    return msgspec.json.encode(path).decode()


def differences(before: Mapping[Path, str], after: Mapping[Path, str]) -> Changes:
    """What is different from one file to the other."""
    others = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    return _sorted(others, _names(before), _names(after))


def from_digests(before: Mapping[Path, str], told: Mapping[str, str], key: bytes) -> Changes:
    """From these values to others, of which the digests are told. ValueError where they are no such digests."""
    try:
        after: dict[Path, str] = {tuple(msgspec.json.decode(place, type=list[str])): told[place] for place in told}
    except msgspec.DecodeError as error:
        raise ValueError("these are no places") from error
    mine = {path: _digest(path, value, key) for path, value in before.items()}
    others = [path for path in mine.keys() | after.keys() if mine.get(path) != after.get(path)]
    return _sorted(others, _names(mine), _names(after))


def _names(places: Iterable[Path]) -> set[str]:
    return {str(path[1]) for path in places if path[0] == "mcpServers" and len(path) > 1}


def in_force(
    read: Mapping[Path, str], started: Mapping[Path, str], fixed: tuple[tuple[str, ...], ...] = FIXED
) -> dict[Path, str]:
    """What counts of values that were read while the gateway runs: at the places that need a restart, those that it was
    started with."""
    return {path: value for path, value in read.items() if not _below(path, fixed)} | {
        path: value for path, value in started.items() if _below(path, fixed)
    }


def _below(path: Path, places: tuple[tuple[str, ...], ...]) -> bool:
    return any(path[: len(place)] == place for place in places)


def _sorted(others: Iterable[Path], before: set[str], after: set[str]) -> Changes:
    changed: dict[str, set[str]] = {}
    settings, fixed = set[str](), set[str]()
    for path in others:
        if path[0] == "mcpServers" and len(path) > 2:
            changed.setdefault(str(path[1]), set()).add(dotted(path[2:]))
        elif _below(path, FIXED):
            fixed.add(dotted(path))
        else:
            settings.add(dotted(path))
    return Changes(
        tuple(sorted(after - before)),
        tuple(sorted(before - after)),
        {name: tuple(sorted(keys)) for name, keys in sorted(changed.items()) if name in before & after},
        tuple(sorted(settings)),
        tuple(sorted(fixed)),
    )


def kept(limits: Limits, before: Limits) -> Limits:
    """These limits, but for those that can't be others while the gateway runs."""
    return replace(limits, **{name: getattr(before, name) for name in FIXED_LIMITS})
