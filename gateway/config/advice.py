"""What is allowed in a configuration and yet unwise: warnings, each with its place in the file."""

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import urlsplit

from actors.protocol.table import Confinement, HttpTarget, StdioTarget, Target
from gateway.config.foreign import SECTIONS, usable
from gateway.config.loading import Loaded
from gateway.config.problems import Path, Problem
from gateway.config.settings import CREDENTIAL
from gateway.wire.confine import BUBBLEWRAP, find, is_visible

MIN_TOKEN = 20
"""Characters of a bearer token below which guessing it is worth a try (RFC 6750 leaves the length open)."""


def advice(loaded: Loaded) -> list[Problem]:
    """Warnings in the order of the file; nothing here keeps the gateway from serving."""
    found = [*_clear_credentials(loaded.document.data), *_exposed(loaded), *_servers(loaded), *_in_memory(loaded)]
    if loaded.settings.unshared:  # an option may still change it
        found.append(Problem(loaded.settings.unshared, ("gateway", "workers")))
    located = [loaded.document.locate(problem) for problem in found]
    return sorted(located, key=lambda problem: problem.line or 0)


def _clear_credentials(data: Mapping[str, Any]) -> Iterator[Problem]:
    message = "a credential in clear: write ${VAR} and set the variable"
    gateway = data.get("gateway") or {}
    for principal, given in ((gateway.get("auth") or {}).get("tokens") or {}).items():
        token = given if isinstance(given, str) else given["token"]
        if "${" not in token:
            yield Problem(message, ("gateway", "auth", "tokens", principal))
    for name in ("keys", "clientKeys"):
        for index, key in enumerate(gateway.get(name) or ()):
            if "${" not in key:
                yield Problem(message, ("gateway", name, index))
    for place in _named_credentials(data):
        yield Problem(message, place)
    for section in ("mcpServers", "servers"):
        for name, server in (data.get(section) or {}).items():
            for part in ("env", "headers", "options"):
                for key, value in _members(server.get(part)):
                    if CREDENTIAL.search(key) and isinstance(value, str) and value and not _refers(value):
                        yield Problem(message, (section, name, part, key))


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    """Of an object. A server that is left out may have anything in its place, since nobody has looked at it."""
    return value.items() if isinstance(value, Mapping) else ()


def _named_credentials(data: Mapping[str, Any]) -> Iterator[Path]:
    """Where a credential stands in clear under a key that has nothing else."""
    gateway = data.get("gateway") or {}
    auth = gateway.get("auth") or {}
    sections: list[tuple[Path, Any]] = [
        (("gateway", "auth", "browser"), auth.get("browser")),
        *(
            (("gateway", "auth", "issuers", index, "introspection"), issuer.get("introspection"))
            for index, issuer in enumerate(auth.get("issuers") or ())
        ),
        *(
            ((section, name, "auth"), server.get("auth"))
            for section in ("mcpServers", "servers")
            for name, server in (data.get(section) or {}).items()
        ),
    ]
    for path, section in sections:
        for key in ("clientSecret", "privateKey", "catalog"):
            # What is no text is another program's: `auth` without a mode is left out, whatever stands in it.
            if (
                isinstance(section, dict)
                and isinstance(value := section.get(key), str)
                and value
                and not _refers(value)
            ):
                yield (*path, key)
    for part, name in (("audit", "otlpHeaders"), ("traces", "headers")):
        for key, value in ((gateway.get(part) or {}).get(name) or {}).items():
            if CREDENTIAL.search(key) and value and not _refers(value):
                yield ("gateway", part, name, key)


def _refers(value: str) -> bool:
    """Whether it names a variable: `${VAR}`, or as Gemini CLI has it `$VAR`."""
    return "${" in value or re.fullmatch(r"\$\w+", value) is not None


def _exposed(loaded: Loaded) -> Iterator[Problem]:
    settings = loaded.settings
    path: Path = ("gateway", "listen")
    if settings.unguarded:  # an option may still change it
        yield Problem(settings.unguarded, path)
    elif not settings.listen.loopback and settings.auth.asked and settings.tls is None:
        yield Problem("bearer tokens travel in clear: set `tls`, or put something in front that does TLS", path)
    if settings.public_url.endswith("/mcp"):
        yield Problem("clients are told …/mcp/mcp: leave `/mcp` out", ("gateway", "publicUrl"))
    if settings.unreadable:
        yield Problem(settings.unreadable, ("gateway", "tls"))
    if not settings.admin.loopback:
        yield Problem("others can reach the admin listener, which asks for no token", ("gateway", "admin"))
    pinned = any(spec.pins is not None for spec in settings.table.backends.values())
    if pinned and settings.lock is not None and _writable(settings.lock):
        yield Problem(f"other users can write {settings.lock.name}", ("gateway", "pins", "file"))
    for principal, token in settings.auth.tokens:
        if len(token) < MIN_TOKEN:
            message = f"a token of fewer than {MIN_TOKEN} characters can be guessed; `openssl rand -hex 32` makes one"
            yield Problem(message, ("gateway", "auth", "tokens", principal))


def _writable(file: FilePath) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _servers(loaded: Loaded) -> Iterator[Problem]:
    table = loaded.settings.table
    if not table.backends:
        yield Problem("there is no server to serve", ("mcpServers",))
    for name, spec in table.backends.items():
        path = _place(loaded, name)
        if isinstance(spec.target, StdioTarget):
            yield from _child(spec.target, path)
        if (
            spec.sharing in ("principal", "pool")
            and not loaded.settings.listen.loopback
            and not loaded.settings.auth.asked
        ):
            message = "all clients are the same anonymous user, and share it: set `gateway.auth`"
            yield Problem(message, (*path, "sharing"))
        if spec.pins is not None and spec.pins.blocks and not spec.pins.known:
            message = "nothing of it was accepted, so that clients are shown nothing: `stagedoor pin --accept`"
            yield Problem(message, (*path, "pins"))
        if _asks_sse_for_another(spec.target):
            message = 'looks like the address of an SSE endpoint: leave `type` out, or write "type": "sse"'
            yield Problem(message, (*path, "url"))
    if len(table.backends) > 1:
        yield from _alike(loaded)
    for endpoint in table.endpoints.values():
        if endpoint.kind == "aggregate" and endpoint.name and not endpoint.backends:
            yield Problem("the group has no server", ("gateway", "groups", endpoint.name))


def _alike(loaded: Loaded) -> Iterator[Problem]:
    from actors.protocol.lookalikes import alike  # only where there are several

    for first, *others in alike(loaded.settings.table.backends):
        for name in others:
            message = f"looks like {first!r}: whoever reads a tool's name may take one for the other"
            yield Problem(message, _place(loaded, name))


def _in_memory(loaded: Loaded) -> Iterator[Problem]:
    """What a store that ends with its process means to users."""
    settings = loaded.settings
    if not settings.store.startswith("memory:"):
        return
    if settings.table.policy is not None:
        for index, rule in enumerate(settings.table.policy.rules):
            if rule.limits:
                message = (
                    "counted in memory: by each process for itself, until it ends. For replicas set `gateway.store`"
                )
                yield Problem(message, ("gateway", "policy", index, "limits"))
                break
    for name, spec in settings.table.backends.items():
        if spec.auth is not None and spec.auth.mode in ("user", "key"):
            message = "accounts are kept in memory: each user connects again after a restart. Set `gateway.store`"
            yield Problem(message, (*_place(loaded, name), "auth"))


def _place(loaded: Loaded, server: str) -> Path:
    """Where the server stands that is served under this name."""
    named = [(section, name) for section in SECTIONS for name in loaded.document.data.get(section) or ()]
    exactly = [place for place in named if place[1] == server]
    return (*exactly, *(place for place in named if usable(place[1]) == server), (SECTIONS[0], server))[0]


def _child(target: StdioTarget, path: Path) -> Iterator[Problem]:
    program = find(target.command, target.cwd, dict(target.env).get("PATH"))
    if program is None:
        yield Problem(_not_found(target.command), (*path, "command"))
    confinement = target.confinement or Confinement()
    sandbox = confinement.sandbox
    if sandbox is not None and shutil.which(BUBBLEWRAP) is None:
        yield Problem(f"needs bubblewrap, and there is no `{BUBBLEWRAP}` on PATH", (*path, "sandbox"))
    if sandbox is not None and program is not None and not is_visible(program, sandbox, target.cwd):
        yield Problem(
            f'"{target.command}" is {program}, which its sandbox does not have: name that folder', (*path, "folders")
        )
    if confinement.user is not None and os.geteuid() != 0:
        yield Problem("only a gateway that runs as root can start it so", (*path, "user"))
    if confinement.processes is not None and confinement.user is None:
        message = "counts all processes of the gateway's own user: give the server a `user` of its own"
        yield Problem(message, (*path, "resources", "processes"))


def _asks_sse_for_another(target: Target) -> bool:
    if not isinstance(target, HttpTarget) or target.may_be_sse:
        return False
    return urlsplit(target.url).path.rstrip("/").endswith("/sse")


def _not_found(command: str) -> str:
    if len(command.split()) > 1:
        # The rest is not repeated: it may hold a credential.
        first = command.split(maxsplit=1)[0]
        return f'is not on PATH: if it holds arguments too, write "command": "{first}" and put each of them into `args`'
    return f'"{command}" is not on PATH'
