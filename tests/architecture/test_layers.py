"""Who may import whom, read from the imports themselves (ARCHITECTURE.md, "Layers")."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.architecture.source import CODE, OURS, below, imports, none

LIBRARIES: dict[str, set[str]] = {
    "actors/protocol": {"msgspec"},
    "actors/machines": {"msgspec"},
    "actors/runtime": {"trio"},
    "actors": {"trio"},
    "gateway/http": {"trio", "hypercorn", "wsproto"},
    "gateway/admin": {"trio", "quart", "quart_trio"},
    "gateway/backends": {"trio"},
    "gateway/client": {"trio"},
    "gateway/wire": {"trio", "httptools", "trio_websocket"},
    "gateway/store": {"trio", "redis", "hiredis"},
    "gateway/native": {
        "trio",
        "pydantic",
        "pydantic_core",
        "typing_extensions",
        "jsonschema_rs",
        "uritemplate",
        "watchdog",
        "apsw",
        "sqlite_vec",
    },
    "gateway/observability": {"trio", "prometheus_client", "structlog"},
    "gateway/config": {"pydantic", "pydantic_core", "yaml"},
    "gateway/sealing": {"cryptography"},
    "gateway/oauth": {"trio", "httpx2", "httpcore2", "jwt"},
    "gateway/tracing": {"trio", "opentelemetry"},
    "gateway/workers": {"trio"},
    "gateway/audit": {"trio"},
    "gateway/cli": {"trio", "click", "rich"},
    "gateway": {"trio"},
    "stagedoor": set(),
}
"""The third-party libraries of each room; the longest matching prefix counts."""

EVERYWHERE = {"msgspec"}
"""Layer 0 speaks in its values, so whoever speaks with layer 0 does too; the runtime does not."""

PURE_FORBIDDEN = {"time", "random", "logging", "secrets", "socket", "os", "threading", "asyncio", "subprocess"}
"""The parts of the standard library that layer 0 must do without: what it needs of them comes in with events."""

ACTOR_ROOMS: dict[str, set[str]] = {
    "streams": set(),
    "upstreams": set(),
    "endpoints": {"upstreams"},
    "sessions": {"endpoints", "upstreams", "streams"},
    "pools": {"cluster", "endpoints", "upstreams"},
    "cluster": {"sessions", "streams"},
    "modern": {"pools", "endpoints", "upstreams", "streams"},
}
"""The rooms of the MCP actors, and which of the others each may look into."""

ADAPTERS = (
    "http",
    "admin",
    "backends",
    "client",
    "wire",
    "store",
    "native",
    "observability",
    "config",
    "sealing",
    "oauth",
    "tracing",
    "workers",
    "audit",
)
SHARED_ADAPTERS = {"observability", "version", "wire"}
COMPOSED_BY = {
    "gateway/cli": {"config", "observability", "native", "version"},
}
"""Adapters that a room of the composition layer may use directly."""

IN_ONE_FOLDER = (
    "redis",
    "hypercorn",
    "httptools",
    "trio_websocket",
    "quart",
    "prometheus_client",
    "structlog",
    "cryptography",
    "httpx2",
    "httpcore2",
    "jwt",
    "yaml",
    "jsonschema_rs",
    "uritemplate",
    "watchdog",
    "opentelemetry",
    "apsw",
    "sqlite_vec",
)


def room(path: Path) -> str:
    found = [prefix for prefix in LIBRARIES if path.as_posix().startswith(prefix + "/")]
    return max(found, key=len)


def within(names: Iterable[str], *packages: str) -> set[str]:
    """The names that are these packages, or in them."""
    return {name for name in names for package in packages if name == package or name.startswith(f"{package}.")}


def too_far(path: Path, names: set[str]) -> list[str]:
    """A line for each import that should not be there."""
    return [f"{path} imports {name}" for name in sorted(names)]


def test_every_folder_has_its_rules() -> None:
    ruled = {f"actors/{name}" for name in (*ACTOR_ROOMS, "protocol", "machines", "runtime")}
    ruled |= {f"gateway/{name}" for name in (*ADAPTERS, "cli")}
    folders = {"/".join(path.parts[:2]) for path in below("actors", "gateway") if len(path.parts) > 2}
    none(sorted(folders ^ ruled))


def test_no_import_is_relative() -> None:
    none([line for path in CODE for line in too_far(path, {n for n in imports(path) if n.startswith(".")})])


def test_a_file_imports_only_the_libraries_of_its_room() -> None:
    found = []
    for path in CODE:
        tops = {name.partition(".")[0] for name in imports(path)}
        third_party = tops - set(sys.stdlib_module_names) - set(OURS) - {"__future__"}
        found += too_far(path, third_party - LIBRARIES[room(path)] - EVERYWHERE)
    none(found)


def test_the_arrow_never_points_from_the_actors_to_the_gateway() -> None:
    none([line for path in below("actors") for line in too_far(path, within(imports(path), "gateway", "stagedoor"))])


def test_the_protocol_and_the_ports_know_no_actor_and_the_protocol_is_pure() -> None:
    found = []
    for path in (*below("actors/protocol", "actors/machines"), Path("actors/ports.py")):
        names = imports(path)
        known = (
            within(names, "actors.protocol")
            if path.parts[1] == "protocol"
            else within(names, "actors.protocol", "actors.machines")
        )
        found += too_far(path, within(names, "actors") - known - {"actors"})
        if path.parts[1] != "ports.py":
            found += too_far(path, set(names & PURE_FORBIDDEN))
    none(found)


def test_the_runtime_knows_nothing_of_the_rest() -> None:
    found = []
    for path in below("actors/runtime"):
        names = imports(path)
        found += too_far(path, within(names, "actors") - within(names, "actors.runtime") | within(names, "msgspec"))
    none(found)


def test_the_rooms_of_the_actors_look_one_way() -> None:
    found = []
    for name, allowed in ACTOR_ROOMS.items():
        others = [f"actors.{other}" for other in set(ACTOR_ROOMS) - allowed - {name}]
        found += [line for path in below(f"actors/{name}") for line in too_far(path, within(imports(path), *others))]
    none(found)


def of_the_gateway(path: Path) -> set[str]:
    """The rooms of the gateway that it imports from."""
    return {name.split(".")[1] for name in within(imports(path), "gateway") - {"gateway"}}


def test_adapters_do_not_know_each_other() -> None:
    found = []
    for adapter in ADAPTERS:
        allowed = {adapter} | SHARED_ADAPTERS
        found += [line for p in below(f"gateway/{adapter}") for line in too_far(p, of_the_gateway(p) - allowed)]
    none(found)


def test_the_command_line_knows_the_configuration_and_gets_the_rest_from_composition() -> None:
    allowed = {"cli", "app"} | COMPOSED_BY["gateway/cli"]
    none([line for path in below("gateway/cli") for line in too_far(path, of_the_gateway(path) - allowed)])


def test_every_library_lives_in_one_folder_of_the_gateway() -> None:
    homes: dict[str, set[str]] = {}
    for path in below("gateway"):
        for name in {n.partition(".")[0] for n in imports(path)}:
            homes.setdefault(name, set()).add(room(path))
    none(
        [
            f"{library} is in {sorted(homes.get(library, {'no folder'}))}"
            for library in IN_ONE_FOLDER
            if len(homes.get(library, ())) != 1
        ]
    )
