"""The client that the suites' client mode runs for scenarios about authorization: `auth_client.py SOCKET` forks one for
each `forking.py SOCKET URL`.

The gateway stands in the place of the client: it finds the authorization server, registers, and has tokens. What a user
does is done here, as on the pages: look, press, follow where the browser is sent. (The suite's authorization server
redirects at once.)
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from mcp import Client, MCPError

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway import cli
from tests.conformance.forking import forks
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import LOOK_EVERY, answers

METADATA = "https://conformance-test.local/client-metadata.json"
CALLS = 4
"""Calls in all, after each of which the user connects what it wants."""
NEEDED = (
    "gateway.app",
    "gateway.config.loading",
    "gateway.oauth.service",
    "gateway.oauth.login",
    "gateway.upstream_auth",
    "structlog.dev",
    "httpcore2",
    "truststore",
    "anyio._backends._asyncio",
    "anyio.streams.tls",
)
"""What a gateway and the client would import in each scenario anew."""
PLACES = 3
"""Scenarios at a time: some of what the gateway waits for has a limit, so the machine must not be full of them."""


def auth(scenario: str, context: dict[str, Any]) -> dict[str, Any]:
    """How the gateway is configured for a scenario."""
    given: dict[str, Any] = {"mode": "user"}
    if "client-credentials" in scenario:
        given["mode"] = "client_credentials"
    if "client_id" in context:
        given["clientId"] = context["client_id"]
    if "client_secret" in context:
        given["clientSecret"] = context["client_secret"]
    if "private_key_pem" in context:
        given |= {"privateKey": context["private_key_pem"], "privateKeyAlgorithm": context["signing_algorithm"]}
    return given


def connect(page: str) -> None:
    """Goes the way of a user, as far as he is let."""
    with httpx2.Client(timeout=PATIENCE) as browser:
        shown = browser.get(page)
        fields = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', shown.text))
        if "action" not in fields:
            print("no way on:", re.sub(r"<[^>]*>", " ", shown.text)[-300:], file=sys.stderr)
            return
        pressed = browser.post(page, data={name: unescape(value) for name, value in fields.items()})
        onward = re.search(r'content="0;url=([^"]*)"', pressed.text)
        if onward is None:
            print("refused:", re.sub(r"<[^>]*>", " ", pressed.text)[-300:], file=sys.stderr)
            return
        url = unescape(onward[1])
        for _ in range(5):
            answer = browser.get(url)
            if not answer.is_redirect:
                print("came to:", re.sub(r"<[^>]*>", " ", answer.text)[-200:], file=sys.stderr)
                return
            url = urljoin(url, answer.headers["location"])


async def run(endpoint: str, server: str, mode: Any) -> None:
    with anyio.fail_after(PATIENCE):
        async with Client(endpoint, mode=mode) as client:
            await calls(client, server)


async def calls(client: Client, server: str) -> None:
    for _ in range(CALLS):
        listed = {tool.name for tool in (await client.list_tools()).tools}
        tools = sorted(name for name in listed if not name.endswith("__connect")) or [f"{server}__test-tool"]
        try:
            result = await client.call_tool(tools[0], {})
        except MCPError as error:
            print("failed:", error, file=sys.stderr)
            text = json.dumps(getattr(error, "data", None) or {}) + str(error)
        else:
            text = " ".join(getattr(part, "text", "") for part in result.content)
            if not result.is_error:
                return
        pages = re.search(r"https?://[^\s\"]+/connect", text)
        if pages is None:
            return
        await anyio.to_thread.run_sync(connect_all, pages[0], server)


def connect_all(page: str, server: str) -> None:
    """By the list of accounts, where the client can open no page."""
    with httpx2.Client(timeout=PATIENCE) as browser:
        shown = browser.get(page)
        form = re.search(r"<form.*?</form>", shown.text)
        if form is None:
            print("no accounts:", re.sub(r"<[^>]*>", " ", shown.text)[-300:], file=sys.stderr)
            return
        fields = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form[0]))
        chosen = browser.post(page, data={name: unescape(value) for name, value in fields.items()})
        onward = re.search(r'content="0;url=([^"]*)"', chosen.text)
        if onward is None:
            print("refused:", re.sub(r"<[^>]*>", " ", chosen.text)[-300:], file=sys.stderr)
            return
    connect(urljoin(page, unescape(onward[1])))


def wait_ready(pid: int, admin: str) -> None:
    """Raises AssertionError when the gateway ends, or is not ready in time."""
    ready, end = answers(f"http://{admin}/readyz"), time.monotonic() + PATIENCE
    while not ready():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "stagedoor ended while starting: what it wrote is above"
        assert time.monotonic() < end, "stagedoor was never ready"
        time.sleep(LOOK_EVERY)


@contextmanager
def serving(config: dict[str, Any], folder: Path) -> Iterator[str]:
    """A gateway in a process of its own, and its endpoint. What it wrote comes to stderr."""
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    file, log = folder / "config.json", folder / "log"
    file.write_text(json.dumps(config))
    os.environ["XDG_STATE_HOME"] = str(folder)
    pid = os.fork()
    if pid == 0:
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.argv = ["stagedoor", "serve", "--listen", listen, "--admin", admin, "--config", str(file)]
        cli.main()
    try:
        wait_ready(pid, admin)
        yield f"http://{listen}/mcp"
        os.kill(pid, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"stagedoor ended with {status}"
    finally:
        print(log.read_text(errors="replace") if log.exists() else "", file=sys.stderr)


def main(url: str) -> None:
    """One scenario, as the environment names it. What still runs when it fails ends with the test."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    modern = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "") >= "2026-07-28"
    if not scenario.startswith("auth/"):
        return  # of `client.py`
    server = {"type": "http", "url": url, "auth": auth(scenario, context)}
    settings = {"clientMetadataUrl": METADATA, "log": {"level": "debug"}}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving({"mcpServers": {"judge": server}, "gateway": settings}, Path(folder)) as endpoint,
    ):
        anyio.run(run, endpoint, "judge", "auto" if modern else "legacy")


if __name__ == "__main__":
    for module in NEEDED:
        import_module(module)
    main(forks(Path(sys.argv[1]), PLACES)[-1])
