"""What the end-to-end tests share: programs that end with their test, and a gateway in front of everyday servers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import (
    NODE_PACKAGES,
    ROOT,
    Gateway,
    Programs,
    accepts,
    free_port,
    node,
    programs,
    pypi_servers,
    redis_url,
    shared_programs,
)

__all__ = ["everyday", "interviewer", "node", "programs", "pypi_servers", "redis_url", "shared_programs"]

EXAMPLE = ROOT / "examples" / "everyday.jsonc"
HTTP_SERVER = "http://127.0.0.1:3001/mcp"


@pytest.fixture(autouse=True)
def what_others_leave(request: pytest.FixtureRequest) -> Iterator[None]:
    """What an SDK leaves unclosed is found while the filter of its test counts: found at the end of the run it fails
    that."""
    yield
    if any("ResourceWarning" in str(mark.args) for mark in request.node.iter_markers("filterwarnings")):
        gc.collect()


@dataclass(frozen=True)
class Everyday:
    """The gateway with examples/everyday.jsonc, and where server-everything listens by itself."""

    gateway: Gateway
    everything_url: str


@pytest.fixture(scope="module")
def everyday(node: Path, pypi_servers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everyday]:
    """The example as it is in the tree, but for the port of server-everything's Streamable HTTP mode."""
    folder = tmp_path_factory.mktemp("everyday")
    started = Programs(folder)
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    text = EXAMPLE.read_text()
    assert HTTP_SERVER in text
    config = folder / "everyday.jsonc"
    config.write_text(text.replace(HTTP_SERVER, url))
    try:
        started.start(
            "server-everything",
            [node, NODE_PACKAGES / "@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp"],
            env={"PORT": str(port)},
            ready=accepts(port),
        )
        yield Everyday(started.gateway(config), url)
    finally:
        started.end()


@pytest.fixture(scope="module")
def interviewer(shared_programs: Programs) -> list[str]:
    """The command of the interviewer, which starts at once."""
    program = ROOT / ".venv-sdks" / "py-1.27" / "bin" / "python", Path(__file__).with_name("interviewer.py")
    return shared_programs.forks("interviewer", program)
