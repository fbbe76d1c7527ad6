"""The client that the suites' client mode runs: `gateway_client.py SOCKET` forks one for each `forking.py SOCKET URL`,
with a gateway between it and URL.

The suite's own server stands behind the gateway and judges what the gateway sends to backends. What is to be done there
is named by `MCP_CONFORMANCE_SCENARIO`; the revision is that of `MCP_CONFORMANCE_PROTOCOL_VERSION`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

sys.path.insert(0, str(Path(__file__).parents[2]))

from actors.machines.upstream import era
from tests.conformance import auth_client
from tests.conformance.client import ASKED, SCENARIOS
from tests.conformance.forking import forks, over
from tests.conformance.serving import serving
from tests.support.patience import PATIENCE

CLIENTS = ("httpcore2", "truststore", "anyio._backends._asyncio", "anyio.streams.tls")
"""What the SDK's client would import in each scenario anew."""
PLACES = 3
"""Scenarios at a time: some of what the gateway waits for has a limit, so the machine must not be full of them."""


async def act(endpoint: str, scenario: str, modern: bool, context: dict[str, Any]) -> None:
    """Raises TimeoutError after `PATIENCE`: the suite would end this program without a word."""
    mode: Any = "auto" if modern else "legacy"
    about_authorization = scenario.startswith("auth/")
    with anyio.fail_after(PATIENCE):
        async with Client(endpoint, mode=mode, **({} if about_authorization else ASKED)) as client:
            if about_authorization:
                await auth_client.calls(client, "judge", scenario)
            else:
                await SCENARIOS[scenario](client, context)


def main(url: str) -> None:
    """One scenario, as the environment names it."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    modern = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "") >= "2026-07-28"
    config: dict[str, Any] = {"mcpServers": {"judge": {"type": "http", "url": url}}}
    if scenario.startswith("auth/"):
        config["mcpServers"]["judge"]["auth"] = auth_client.auth(scenario, context)
        config["gateway"] = {"clientMetadataUrl": auth_client.METADATA, "log": {"level": "debug"}}
    # Every request and answer, with its time: the last line of one that hangs says in what.
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpcore2").setLevel(logging.INFO)  # which would tell each step of theirs
    with tempfile.TemporaryDirectory() as folder, serving(config, Path(folder)) as endpoint:
        # Where the user connects accounts, it is from the endpoint of all servers; the rest is by the server's own.
        place = endpoint if scenario.startswith("auth/") else f"{endpoint}/judge"
        anyio.run(act, place, scenario, modern, context)


if __name__ == "__main__":
    era.SILENCE = PATIENCE  # type: ignore[misc]  # a busy machine is not a server of the older era
    for module in ("tests.support.imported", *CLIENTS):
        import_module(module)
    main(forks(sys.argv[1], PLACES)[-1])
    over()
