"""Configurations that were written for other programs: what their keys mean here, and what they leave to their program.

Claude Desktop, Claude Code, Cursor, VS Code, Windsurf and Gemini CLI share one shape for their servers, and each has
keys of its own. Those with an equivalent here work; the others are told in a note, and left alone. The keys are those
of the programs' documentation of November 2026.

They also let people name servers as they like (`Framelink MCP for Figma`), and VS Code's gallery does so with slashes
(`microsoft/playwright-mcp`). Here a name is a part of a URL, so such a server is served under one that is.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from gateway.config.problems import Path, Problem

SECTIONS = ("mcpServers", "servers")

SAME: Mapping[str, str] = {
    "httpUrl": "url",  # Gemini CLI
    "serverUrl": "url",  # Windsurf
    "includeTools": "enabledTools",  # Gemini CLI
    "excludeTools": "disabledTools",
    "transportType": "type",  # Cline
    "transport": "type",
}
"""Keys of a server that mean what another key means here."""

TYPES: Mapping[str, str] = {"local": "stdio", "streamable_http": "http", "remote": "http"}
"""Names of transports that other programs use."""

OWN: Mapping[str, str] = {
    **dict.fromkeys(("headersHelper", "oauth", "alwaysLoad"), "Claude Code"),
    **dict.fromkeys(("auth",), "Cursor"),
    **dict.fromkeys(("dev", "gallery", "version", "sandbox", "sandboxEnabled"), "VS Code"),
    **dict.fromkeys(("alwaysAllow", "autoApprove", "watchPaths", "networkTimeout"), "Windsurf, Cline and Roo Code"),
    **dict.fromkeys(
        ("trust", "description", "authProviderType", "targetAudience", "targetServiceAccount", "extensionName", "tcp"),
        "Gemini CLI",
    ),
    "tools": "Copilot CLI",
}
"""Keys of a server that are the business of the program that has it, by that program."""

CREDENTIALS = frozenset({"headersHelper", "oauth", "auth", "authProviderType"})
"""Of those, the ones by which that program gets credentials, which the gateway then lacks."""

OWN_OF_FILE: Mapping[str, str] = {
    **dict.fromkeys(("globalShortcut", "preferences", "isUsingBuiltInNodeForMcp"), "Claude Desktop"),
    **dict.fromkeys(("sandbox",), "VS Code"),
    **dict.fromkeys(
        (
            *("general", "ui", "ide", "privacy", "billing", "model", "modelConfigs", "agents", "context", "tools"),
            *("mcp", "security", "advanced", "experimental", "hooks", "hooksConfig", "extensions", "telemetry"),
            *("admin", "skills", "output", "useWriteTodos", "theme", "selectedAuthType", "preferredEditor"),
            *("autoAccept", "contextFileName", "checkpointing", "vimMode", "usageStatisticsEnabled"),
        ),
        "Gemini CLI",
    ),
}
"""The same for the root of a file."""

CLAUDE_CODE_STATE = frozenset({"projects", "numStartups"})
"""Keys of `~/.claude.json`, where Claude Code keeps what it knows of one user: servers among a hundred other things."""

MILLISECONDS_OVER = 3600
"""A `timeout` of more is in milliseconds, as Claude Code and Gemini CLI mean it: no request takes so many seconds."""

SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A name that can be a part of a URL."""

_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)")
_FOLDERS = frozenset({".vscode", ".cursor", ".gemini", ".windsurf", ".codeium", ".claude", ".roo"})
"""Where these programs keep their file, inside the folder that they call the workspace."""


def workspace(folder: FilePath) -> FilePath:
    """What `${workspaceFolder}` stands for in a file of this folder."""
    return folder.parent if folder.name in _FOLDERS else folder


def usable(name: str) -> str | None:
    """This name as a part of a URL: without accents, and with `-` for what can't stand there. None if that would leave
    out letters, or be too long."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    found = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")
    return found if SEGMENT.fullmatch(found) and not any(c.isalnum() and not c.isascii() for c in plain) else None


@dataclass(slots=True)
class Adapted:
    """A configuration in our own words. `places` says where a value stood that has another key now."""

    data: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    places: dict[Path, Path] = field(default_factory=dict)

    def placed(self, problem: Problem) -> Problem:
        """The problem at the place where its value stands in the file."""
        for length in range(len(problem.path), 0, -1):
            place = self.places.get(problem.path[:length])
            if place is not None:
                path = (*place, *problem.path[length:])
                return Problem(problem.message, path, problem.nearest, problem.file, problem.line)
        return problem


class _Own:
    """The keys of foreign programs that are left alone, by program."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, Path]] = {}

    def found(self, program: str, path: Path) -> None:
        self.keys.setdefault(program, {}).setdefault(str(path[-1]), path)

    def notes(self) -> list[Problem]:
        """One for each program."""
        found = []
        for program, keys in self.keys.items():
            named = ", ".join(f"`{key}`" for key in keys)
            message = f"{named}: left to {program}, nothing here goes by it"
            if not CREDENTIALS.isdisjoint(keys):
                message += "; credentials for the server go into `headers`"
            found.append(Problem(message, next(iter(keys.values()))))
        return found


def adapt(data: Mapping[str, Any], folder: FilePath) -> Adapted:
    """The configuration, expanded, in our own words. What is not known stays as it is."""
    adapted, own = Adapted(dict(data)), _Own()
    allowed, excluded = _filter(data.get("mcp"))
    if (
        isinstance(mcp := data.get("mcp"), dict) and "servers" in mcp
    ):  # VS Code's settings, as many a server's README says
        adapted.problems.append(
            Problem("nothing here is served from there: move `servers` to the top", ("mcp", "servers"))
        )
    if "gateway" not in data and (found := sorted(CLAUDE_CODE_STATE & data.keys())):
        message = (
            "this is what Claude Code keeps for one user: copy `mcpServers` from it, at the top and under `projects`"
        )
        adapted.problems.append(Problem(message, (found[-1],)))
        adapted.data = {key: value for key, value in data.items() if key in SECTIONS}
    for key in [key for key in adapted.data if key in OWN_OF_FILE]:
        if key != "mcp":  # which servers it names is heeded
            own.found(OWN_OF_FILE[key], (key,))
        del adapted.data[key]
    for section in SECTIONS:
        servers = adapted.data.get(section)
        if isinstance(servers, dict):
            adapted.data[section] = {
                name: _server(server, (section, name), folder, adapted, own) if isinstance(server, dict) else server
                for name, server in servers.items()
            }
            for name, server in adapted.data[section].items():
                if isinstance(server, dict) and (name in excluded or (allowed is not None and name not in allowed)):
                    server["disabled"] = True
    taken = {name for section in SECTIONS for name in _names(adapted.data.get(section))}
    for section in SECTIONS:
        if isinstance(servers := adapted.data.get(section), dict):
            adapted.data[section] = {_served(name, section, taken, adapted): of for name, of in servers.items()}
    adapted.notes += own.notes()
    return adapted


def _names(servers: Any) -> Collection[str]:
    return servers if isinstance(servers, dict) else ()


def _served(name: str, section: str, taken: set[str], adapted: Adapted) -> str:
    """The name under which a server is served: its own, unless another one is needed and can be had."""
    found = name if SEGMENT.fullmatch(name) else usable(name)
    if found is None or found == name or found in taken:
        return name
    taken.add(found)
    adapted.places[section, found] = (section, name)
    adapted.notes.append(Problem(f'is served as "{found}": its name is a part of a URL', (section, name)))
    return found


def _filter(mcp: Any) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Which servers Gemini CLI may use, and which it may not."""
    found = mcp if isinstance(mcp, dict) else {}
    allowed, excluded = found.get("allowed"), found.get("excluded")
    names = frozenset(map(str, allowed)) if isinstance(allowed, list) and allowed else None
    return names, frozenset(map(str, excluded)) if isinstance(excluded, list) else frozenset()


def _server(server: dict[str, Any], path: Path, folder: FilePath, adapted: Adapted, own: _Own) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in server.items():
        if key in OWN and not _is_ours(key, value):
            own.found(OWN[key], (*path, key))
        elif key == "enabled":
            message = 'is no key here: a server is left out by `"disabled": true`, and served without it'
            adapted.problems.append(Problem(message, (*path, key)))
        elif (same := SAME.get(key)) is not None and same not in server:
            found[same] = value
            adapted.places[*path, same] = (*path, key)
        elif key != "envFile":
            found[key] = value
    if isinstance(kind := found.get("type"), str):
        found["type"] = TYPES.get(kind, kind)
    if isinstance(env := found.get("env"), dict):
        found["env"] = {name: _text(value) for name, value in env.items() if value is not None}
    timeout = found.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > MILLISECONDS_OVER:
        found["timeout"] = timeout / 1000
        message = f"is taken for milliseconds: {timeout / 1000:g} s (it is in seconds here, up to {MILLISECONDS_OVER})"
        adapted.notes.append(Problem(message, (*path, "timeout")))
    if "envFile" in server:
        variables = _env_file(server["envFile"], (*path, "envFile"), folder, adapted)
        env = found.get("env")
        found["env"] = {**variables, **(env if isinstance(env, dict) else {})}
    return found


def _is_ours(key: str, value: Any) -> bool:
    """Keys that we have too, with another kind of value: `sandbox` as text, `auth` with a mode."""
    return isinstance(value, str) if key == "sandbox" else key == "auth" and isinstance(value, dict) and "mode" in value


def _text(value: Any) -> Any:
    """Numbers and switches as a process gets them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _env_file(name: Any, path: Path, folder: FilePath, adapted: Adapted) -> dict[str, str]:
    """The variables of a file of `NAME=value` lines; those of `env` come before them."""
    if not isinstance(name, str):
        adapted.problems.append(Problem("must be text (in quotes)", path))
        return {}
    try:
        text = (workspace(folder) / FilePath(name).expanduser()).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not text"
        adapted.problems.append(Problem(f"the file can't be read: {why}", path))
        return {}
    variables: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(line)
        if match is None:
            adapted.problems.append(Problem(f"line {number} of the file is not NAME=value", path))
            continue
        variables[match[1]] = _unquoted(match[2])
    return variables


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1].replace("\\n", "\n") if value[0] == '"' else value[1:-1]
    return re.sub(r"\s+#.*$", "", value)
