"""Who may import whom, read from the imports themselves (ARCHITECTURE.md, "Layers")."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("actors", "gateway", "stagedoor")

LIBRARIES: dict[str, set[str]] = {
    "actors/protocol": {"msgspec"},
    "actors/runtime": {"trio"},
    "actors": {"trio"},
    "gateway/http": {"trio", "hypercorn"},
    "gateway/admin": {"quart", "quart_trio"},
    "gateway/backends": {"trio"},
    "gateway/wire": {"trio", "httptools"},
    "gateway/store": {"trio", "redis", "hiredis"},
    "gateway/native": {"trio", "pydantic", "pydantic_core"},
    "gateway/observability": {"trio", "prometheus_client", "structlog"},
    "gateway/config": {"pydantic", "pydantic_core", "yaml"},
    "gateway/sealing": {"cryptography"},
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
    "links": set(),
    "fronts": {"links"},
    "sessions": {"fronts", "links", "streams"},
    "brokers": {"fronts", "links"},
    "exchanges": {"brokers", "fronts", "links", "streams"},
}
"""The rooms of the MCP actors, and which of the others each may look into."""

ADAPTERS = ("http", "admin", "backends", "wire", "store", "native", "observability", "config", "sealing")
SHARED_ADAPTERS = {"observability", "wire"}
COMPOSITION = {f"gateway/{name}.py" for name in ("app", "descriptors", "lifecycle", "opening", "sampling")}
COMPOSED_BY = {
    "gateway/cli": {"config", "observability", "native"},
}
"""Adapters that a room of the composition layer may use directly."""


def sources() -> list[Path]:
    return sorted(p.relative_to(ROOT) for top in OURS for p in (ROOT / top).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, wherever it does."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    found = [prefix for prefix in LIBRARIES if path.as_posix().startswith(prefix + "/")]
    return max(found, key=len)


@pytest.mark.parametrize("path", sources(), ids=str)
def test_a_file_imports_only_the_libraries_of_its_room(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imports(path)}
    third_party = tops - set(sys.stdlib_module_names) - set(OURS) - {"__future__"}
    allowed = LIBRARIES[room(path)] | EVERYWHERE
    assert third_party <= allowed, f"{path} imports {third_party - allowed}"


@pytest.mark.parametrize("path", [p for p in sources() if p.parts[0] == "actors"], ids=str)
def test_the_arrow_never_points_from_the_actors_to_the_gateway(path: Path) -> None:
    names = set(imports(path))
    assert not {n for n in names if n.partition(".")[0] in ("gateway", "stagedoor")}
    if path.parts[1] == "protocol":
        assert not names & PURE_FORBIDDEN
        assert not {n for n in names if n.startswith("actors.") and not n.startswith("actors.protocol")}
    if path.parts[1] == "runtime":
        assert not {n for n in names if n.startswith("actors.") and not n.startswith("actors.runtime")}
        assert "msgspec" not in names
    if path.as_posix() == "actors/ports.py":
        assert not {n for n in names if n.startswith("actors.") and not n.startswith("actors.protocol")}


@pytest.mark.parametrize("path", [p for p in sources() if p.parts[1] in ACTOR_ROOMS], ids=str)
def test_the_rooms_of_the_actors_look_one_way(path: Path) -> None:
    rooms = {n.split(".")[1] for n in imports(path) if n.startswith("actors.")} & set(ACTOR_ROOMS)
    assert rooms - {path.parts[1]} <= ACTOR_ROOMS[path.parts[1]]


@pytest.mark.parametrize(
    "path", [p for p in sources() if p.parts[0] == "gateway" and len(p.parts) > 2 and p.parts[1] in ADAPTERS], ids=str
)
def test_adapters_do_not_know_each_other(path: Path) -> None:
    mine = path.parts[1]
    others = {n.split(".")[1] for n in imports(path) if n.startswith("gateway.") and len(n.split(".")) > 1}
    assert others <= {mine} | SHARED_ADAPTERS, f"{path} imports {others - {mine}}"


@pytest.mark.parametrize("path", [p for p in sources() if p.as_posix().startswith("gateway/cli/")], ids=str)
def test_the_command_line_knows_the_configuration_and_gets_the_rest_from_composition(path: Path) -> None:
    others = {n.split(".")[1] for n in imports(path) if n.startswith("gateway.") and len(n.split(".")) > 1}
    assert others <= {"cli", "app"} | COMPOSED_BY["gateway/cli"]


def test_every_library_lives_in_one_folder_of_the_gateway() -> None:
    homes: dict[str, set[str]] = {}
    for path in sources():
        if path.parts[0] == "gateway":
            for name in {n.partition(".")[0] for n in imports(path)}:
                homes.setdefault(name, set()).add(room(path))
    for library in (
        "redis",
        "hypercorn",
        "httptools",
        "quart",
        "prometheus_client",
        "structlog",
        "cryptography",
        "yaml",
    ):
        assert len(homes.get(library, {"?"})) == 1, f"{library} is imported in {homes.get(library)}"
