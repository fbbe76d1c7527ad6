"""What `gateway_client.py` does in scenarios about authorization.

The gateway stands in the place of the client: it finds the authorization server, registers, and has tokens. What a user
does is done here, as on the pages: look, press, follow where the browser is sent. (The suite's authorization server
redirects at once.)
"""

from __future__ import annotations

import json
import re
import ssl
import sys
from html import unescape
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from mcp import Client, MCPError

from tests.support.patience import PATIENCE

METADATA = "https://conformance-test.local/client-metadata.json"
CALLS = 4
"""Calls in all, after each of which the user connects what it wants."""


def browser() -> httpx2.Client:
    """A user's. All pages are by plain HTTP, so it knows no authorities: to read those of the machine takes long."""
    return httpx2.Client(timeout=PATIENCE, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


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
    with browser() as user:
        shown = user.get(page)
        fields = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', shown.text))
        if "action" not in fields:
            print("no way on:", re.sub(r"<[^>]*>", " ", shown.text)[-300:], file=sys.stderr)
            return
        pressed = user.post(page, data={name: unescape(value) for name, value in fields.items()})
        onward = re.search(r'content="0;url=([^"]*)"', pressed.text)
        if onward is None:
            print("refused:", re.sub(r"<[^>]*>", " ", pressed.text)[-300:], file=sys.stderr)
            return
        url = unescape(onward[1])
        for _ in range(5):
            answer = user.get(url)
            if not answer.is_redirect:
                print("came to:", re.sub(r"<[^>]*>", " ", answer.text)[-200:], file=sys.stderr)
                return
            url = urljoin(url, answer.headers["location"])


SUCCESSES = {"auth/authorization-server-migration": 2}
"""Calls that must succeed where one is not enough: the server goes to another issuer after the first request that it
lets in, which is the first call itself or a list before it."""


async def calls(client: Client, server: str, scenario: str) -> None:
    wanted = SUCCESSES.get(scenario, 1)
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
                wanted -= 1
                if wanted == 0:
                    return
                continue
        pages = re.search(r"https?://[^\s\"]+/connect", text)
        if pages is None:
            print("nothing to connect:", text[:300], file=sys.stderr)
            return
        await anyio.to_thread.run_sync(connect_all, pages[0], server)


def connect_all(page: str, server: str) -> None:
    """By the list of accounts, where the client can open no page."""
    with browser() as user:
        shown = user.get(page)
        form = re.search(r"<form.*?</form>", shown.text)
        if form is None:
            print("no accounts:", re.sub(r"<[^>]*>", " ", shown.text)[-300:], file=sys.stderr)
            return
        fields = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form[0]))
        chosen = user.post(page, data={name: unescape(value) for name, value in fields.items()})
        onward = re.search(r'content="0;url=([^"]*)"', chosen.text)
        if onward is None:
            print("refused:", re.sub(r"<[^>]*>", " ", chosen.text)[-300:], file=sys.stderr)
            return
    connect(urljoin(page, unescape(onward[1])))
