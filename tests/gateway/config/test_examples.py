from pathlib import Path

import pytest

from actors.protocol.table import HttpTarget, StdioTarget
from gateway.config import load

EXAMPLES = Path(__file__).parents[3] / "examples"
ENVIRON = {name: name.lower() for name in ("ANN_TOKEN", "CI_TOKEN", "GITHUB_TOKEN")} | {"SEALING_KEY": "ab" * 32}


@pytest.mark.parametrize("example", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_example_loads(example: Path) -> None:
    assert load(example, ENVIRON).settings.table.backends


def test_the_everyday_example_fronts_real_servers_over_stdio_and_http() -> None:
    table = load(EXAMPLES / "everyday.jsonc", {}).settings.table
    everything = ("-y", "@modelcontextprotocol/server-everything", "stdio")
    assert {name: spec.target for name, spec in table.backends.items()} == {
        "everything": StdioTarget("npx", everything),
        "files": StdioTarget("npx", ("-y", "@modelcontextprotocol/server-filesystem", ".")),
        "time": StdioTarget("uvx", ("mcp-server-time",)),
        "git": StdioTarget("uvx", ("mcp-server-git",)),
        "everything-http": HttpTarget("http://127.0.0.1:3001/mcp", may_be_sse=True),
    }
    assert table.endpoints["work"].backends == ("files", "git")
    assert table.endpoints["testing"].backends == ("everything", "everything-http")
