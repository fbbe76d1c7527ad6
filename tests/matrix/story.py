"""What every server of the matrix says, in plain JSON values, so that servers on different SDKs say the same.

It imports the standard library alone: it is loaded in the environments of old SDKs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MEMO = "memo:///one"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
NOTHING: dict[str, Any] = {"type": "object"}

TOOLS: dict[str, str] = {
    "echo": "2024-11-05",
    "fail": "2024-11-05",
    "image": "2024-11-05",
    "embedded": "2024-11-05",
    "audio": "2025-03-26",
    "link": "2025-06-18",
    "structured": "2025-06-18",
    "progress": "2024-11-05",
    "logs": "2024-11-05",
    "slow": "2025-06-18",
    "sample": "2024-11-05",
    "roots": "2024-11-05",
    "elicit": "2025-06-18",
    "needs_url": "2025-11-25",
    "touch": "2024-11-05",
    "change": "2024-11-05",
    "metadata": "2024-11-05",
    "counted": "2024-11-05",
}
"""Tool → the first revision whose servers have it. (Nothing is slow on the oldest ones: the
SDK of 2024-11-05 runs one request at a time, that of 2025-03-26 does not survive a cancellation.)"""

GONE = {"needs_url": "2026-07-28"}
"""Tool → the first revision that can't have it any more."""


def tool_names(revision: str) -> list[str]:
    return [name for name, since in TOOLS.items() if since <= revision < GONE.get(name, "9999")]


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"value": {"type": "string"}}} if name == "echo" else NOTHING
    made: dict[str, Any] = {"name": name, "description": f"The tool {name}", "inputSchema": schema}
    if name == "structured":
        made["outputSchema"] = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    return made


def tools_page(revision: str, cursor: str | None, *, extra: bool) -> dict[str, Any]:
    """Two pages; one from the oldest SDK, which does not tell its handlers the cursor."""
    names = tool_names(revision) + (["extra"] if extra else [])
    if revision == "2024-11-05":
        return {"tools": [tool(name) for name in names]}
    if cursor is None:
        return {"tools": [tool(name) for name in names[:5]], "nextCursor": "5"}
    return {"tools": [tool(name) for name in names[5:]]}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def constant(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a tool that only answers."""
    embedded = {"type": "resource", "resource": {"uri": MEMO, "mimeType": "text/plain", "text": "one"}}
    results: dict[str, dict[str, Any]] = {
        "echo": {"content": [text(f"you said {arguments.get('value')}")]},
        "fail": {"content": [text("it failed")], "isError": True},
        "image": {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]},
        "audio": {"content": [{"type": "audio", "data": SOUND, "mimeType": "audio/wav"}]},
        "embedded": {"content": [embedded]},
        "link": {"content": [{"type": "resource_link", "uri": MEMO, "name": "one"}]},
        "structured": {"content": [text('{"value": 1}')], "structuredContent": {"value": 1}},
    }
    return results[name]


def sampling(*, with_tools: bool = False) -> dict[str, Any]:
    params: dict[str, Any] = {"messages": [{"role": "user", "content": text("Say something")}], "maxTokens": 50}
    if with_tools:
        params["tools"] = [{"name": "look", "inputSchema": NOTHING}]
    return params


def said(answer: dict[str, Any]) -> str:
    content = answer["content"]
    blocks = content if isinstance(content, list) else [content]
    return " ".join(block.get("text", block["type"]) for block in blocks)


def form() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    return {"mode": "form", "message": "Which color?", "requestedSchema": schema}


def url() -> dict[str, Any]:
    """Without `elicitationId` it is the modern form."""
    return {"mode": "url", "message": "Open it", "url": "https://example.com/open", "elicitationId": "e-1"}


def elicited(answer: dict[str, Any]) -> str:
    return f"{answer['action']} {(answer.get('content') or {}).get('color', '')}".strip()


def resources() -> dict[str, Any]:
    return {"resources": [{"uri": MEMO, "name": "one", "mimeType": "text/plain"}]}


def templates() -> dict[str, Any]:
    return {"resourceTemplates": [{"uriTemplate": "memo:///by-id/{id}", "name": "by id"}]}


def read(uri: str) -> dict[str, Any] | None:
    """None: there is no such resource."""
    if uri == MEMO:
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": "one"}]}
    if uri.startswith("memo:///by-id/"):
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"id {uri[14:]}"}]}
    return None


def prompts(revision: str) -> dict[str, Any]:
    listed = [{"name": "greeting", "arguments": [{"name": "topic", "required": True}]}]
    return {"prompts": [*listed, {"name": "asking"}] if revision >= "2025-06-18" else listed}


def prompt(topic: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text(f"About {topic}")}]}


def completion(value: str) -> dict[str, Any]:
    values = [word for word in ("music", "museum", "moon") if word.startswith(value)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


def whole(revision: str) -> dict[str, Any]:
    """All of it for one revision, for servers in other languages."""
    names = tool_names(revision)
    constants = ("echo", "fail", "image", "audio", "embedded", "link", "structured")
    return {
        "pages": {
            str(extra): [tools_page(revision, cursor, extra=bool(extra)) for cursor in (None, "5")] for extra in (0, 1)
        },
        "tools": names,
        "constants": {name: constant(name, {"value": "%s"}) for name in constants if name in names},
        "sampling": [sampling(with_tools=tools) for tools in (False, True)],
        "form": form(),
        "url": url(),
        "memo": MEMO,
        "resources": resources(),
        "templates": templates(),
        "prompts": prompts(revision),
    }


def write(folder: Path) -> None:
    """Into a file for each revision."""
    for revision in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"):
        (folder / f"{revision}.json").write_text(json.dumps(whole(revision)))
