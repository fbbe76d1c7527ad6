"""The client that the suites' client mode runs for scenarios about authorization: `auth_client.py URL`.

The gateway stands in the place of the client: it finds the authorization server, registers, and has tokens. What a user
does is done here, as on the pages: look, press, follow where the browser is sent. (The suite's authorization server
redirects at once.)
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from mcp import Client, MCPError

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.patience import PATIENCE
from tests.support.processes import Programs

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
MODERN = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "") >= "2026-07-28"
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
METADATA = "https://conformance-test.local/client-metadata.json"
CALLS = 4
"""Calls in all, after each of which the user connects what it wants."""


def auth() -> dict[str, Any]:
    """How the gateway is configured for this scenario."""
    given: dict[str, Any] = {"mode": "user"}
    if "client-credentials" in SCENARIO:
        given["mode"] = "client_credentials"
    if "client_id" in CONTEXT:
        given["clientId"] = CONTEXT["client_id"]
    if "client_secret" in CONTEXT:
        given["clientSecret"] = CONTEXT["client_secret"]
    if "private_key_pem" in CONTEXT:
        given |= {"privateKey": CONTEXT["private_key_pem"], "privateKeyAlgorithm": CONTEXT["signing_algorithm"]}
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


async def run(endpoint: str, server: str) -> None:
    with anyio.fail_after(PATIENCE):
        async with Client(endpoint, mode="auto" if MODERN else "legacy") as client:
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


def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder))
        try:
            server = {"type": "http", "url": url, "auth": auth()}
            started = programs.gateway(
                {"mcpServers": {"judge": server}, "gateway": {"clientMetadataUrl": METADATA, "log": {"level": "debug"}}}
            )
            try:
                anyio.run(run, f"{started.url}/mcp", "judge")
                started.program.stop()
            finally:
                print(started.program.story(), file=sys.stderr)
        finally:
            programs.end()


if __name__ == "__main__":
    main(sys.argv[-1])
