"""Clients and servers on SDKs that the gateway's own tests do not use elsewhere: Go, Rust, the JVM, and FastMCP.

Every client visits every server, on both routes and in both eras, and must see each as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import cutter, foreign
from tests.e2e.foreign import FASTMCP, Visit
from tests.support.processes import Gateway, Programs, accepts, free_port

pytestmark = pytest.mark.e2e

PEERS = Path(__file__).parent / "peers"
LEGACY, MODERN = "2025-11-25", "2026-07-28"

CLIENTS: dict[str, Callable[[], list[str]]] = {
    "go-sdk": lambda: foreign.go("official-client"),
    "mcp-go": lambda: foreign.go("mcpgo-client"),
    "rmcp": lambda: foreign.rust("rmcp-client"),
    "java": lambda: foreign.jvm("java-client"),
    "python": lambda: [sys.executable, str(PEERS / "python_client.py")],
}
TOLD: dict[str, tuple[str, ...]] = {
    "go": ("updated", "changes"),
    "go-legacy": ("updated", "changes"),
    # Over one connection this SDK forgets all subscriptions without sessions when any of them ends.
    "go-stdio": (),
    "go-stdio-legacy": ("updated", "changes"),
    "fastmcp": (),  # it has no notifications without sessions, and no subscriptions to resources
    "fastmcp-legacy": ("changes",),
    "fastmcp-stdio": (),
}


def go_servers(programs: Programs) -> dict[str, Any]:
    """On the official Go SDK: of both eras and of the older one, over HTTP and stdio."""
    server = foreign.go("official-server")
    return {
        "go": over_http(programs, "go", server),
        "go-legacy": over_http(programs, "go-legacy", [*server, "--legacy"]),
        "go-stdio": {"command": server[0]},
        "go-stdio-legacy": {"command": server[0], "args": ["--legacy"]},
    }


def fastmcp_servers(programs: Programs) -> dict[str, Any]:
    """On FastMCP."""
    foreign.make(".venv-peers/fastmcp/.stamp")
    server = programs.forks("fastmcp", [FASTMCP / "bin" / "python", PEERS / "fastmcp_server.py"])
    return {
        "fastmcp": over_http(programs, "fastmcp", server),
        "fastmcp-legacy": over_http(programs, "fastmcp-legacy", [*server, "--legacy"]),
        "fastmcp-stdio": {"command": server[0], "args": server[1:]},
    }


def over_http(programs: Programs, name: str, command: list[str]) -> dict[str, Any]:
    port = free_port()
    programs.start(name, [*command, "--http", str(port)], ready=accepts(port))
    return {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}


SERVERS = {"on-go-sdk": go_servers, "on-fastmcp": fastmcp_servers}


@pytest.fixture(scope="module", params=SERVERS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, list[str]]]:
    """The gateway in front of servers on one SDK, and their names."""
    started = Programs(tmp_path_factory.mktemp(request.param))
    try:
        backends = SERVERS[request.param](started)
        yield started.gateway({"mcpServers": backends}), list(backends)
    finally:
        started.end()


RESUMING = ("go-sdk", "rmcp")
"""The clients that come back for the rest of an answer whose connection broke."""
SPOKEN = {"java": (LEGACY,)}
"""Of clients that do not speak both revisions."""


def visits(gateway: Gateway, server: str, client: str) -> Iterator[Visit]:
    for revision in SPOKEN.get(client, (LEGACY, MODERN)):
        yield Visit(gateway.endpoint(server), revision, told=TOLD[server])
        yield Visit(gateway.endpoint(), revision, names=f"{server}__", uris=f"{server}+", told=TOLD[server])


def unknown_tool(visit: Visit, server: str) -> Any:
    """FastMCP says it in a result; on the aggregate it is the gateway that knows of no such tool."""
    return "isError Unknown tool: 'no-such-tool'" if server.startswith("fastmcp") and not visit.names else -32602


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_on_another_sdk_sees_every_server_as_it_is(client: str, served: tuple[Gateway, list[str]]) -> None:
    command = CLIENTS[client]()
    gateway, servers = served
    planned = [(visit, unknown_tool(visit, server)) for server in servers for visit in visits(gateway, server, client)]
    seen = foreign.seen_by(command, [visit for visit, _ in planned])
    wrong = [
        line
        for (visit, unknown), found in zip(planned, seen, strict=True)
        for line in foreign.differences(visit, found, foreign.expected(visit, unknown))
    ]
    if wrong:
        pytest.fail("\n".join(wrong) + "\n" + gateway.program.story(), pytrace=False)


@pytest.mark.parametrize("client", RESUMING)
def test_a_client_on_another_sdk_whose_stream_breaks_resumes_it(client: str, served: tuple[Gateway, list[str]]) -> None:
    command = CLIENTS[client]()
    gateway, servers = served
    for visit in (visit for visit in visits(gateway, servers[0], client) if visit.revision == LEGACY):
        with cutter.cutting(gateway.url, b'"progress":2') as reached:
            [seen] = foreign.seen_by(command, [replace(visit, url=visit.url.replace(gateway.url, reached.url))])
        assert reached.cuts == 1, "no stream was cut"
        assert foreign.differences(visit, seen, foreign.expected(visit, unknown_tool(visit, servers[0]))) == []
