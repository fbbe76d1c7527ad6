"""What the honest server says, computed from what it is asked: known to the server and to those who check it."""

from __future__ import annotations

import hashlib
from typing import Any

STEPS = 3
TOOLS: list[dict[str, Any]] = [
    {"name": name, "inputSchema": {"type": "object", "properties": {"value": {"type": "string"}}}}
    for name in ("echo", "elicit", "steps")
]
RESOURCES = [{"uri": f"memo:///{name}", "name": name} for name in ("one", "two")]
PROMPTS = [{"name": "greeting", "arguments": [{"name": "topic", "required": True}]}]


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def echo(value: str) -> str:
    return f"{digest(value)} {value}"


def steps(value: str) -> str:
    return f"took {STEPS} steps for {digest(value)} {value}"


def question(value: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    return {"mode": "form", "message": f"Which color for {value}?", "requestedSchema": schema}


def elicited(value: str, answer: dict[str, Any]) -> str:
    return f"{value}: {answer['action']} {digest((answer.get('content') or {}).get('color', ''))}"


def resource(uri: str) -> str:
    return f"contents of {digest(uri)}"


def prompt(topic: str) -> str:
    return f"About {digest(topic)} {topic}"
