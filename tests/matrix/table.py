"""The matrix: which client sees what of which server through the gateway, by the revisions that both speak.

One rule a feature; `docs/compatibility.md` is printed from it (`scripts/compatibility.py`), and the tests hold real
clients and servers to it. Outcomes are the words of `clients/visit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
FORMS, URLS, MODERN = "2025-06-18", "2025-11-25", "2026-07-28"
UNKNOWN = "error -32602"
"""The server has no such thing."""


@dataclass(frozen=True)
class Rule:
    """A feature: what a client of revision `c` sees of a server of revision `s`, and a word on why, for readers."""

    outcome: Callable[[str, str], str]
    note: str = ""


def always(outcome: str) -> Rule:
    return Rule(lambda c, s: outcome)


def block(type: str, since: str) -> Rule:
    """A kind of content: a client of a revision before it gets text."""

    def outcome(c: str, s: str) -> str:
        if s < since:
            return UNKNOWN
        return type if c >= since else "text"

    return Rule(outcome, "an older client gets text in its place")


def undeclared(s: str, legacy: str) -> str:
    """The client can't be asked: a legacy server is refused, a modern one says -32021, a legacy client's -32600."""
    return "error -32600" if s == MODERN else legacy


def structured(c: str, s: str) -> str:
    if s < FORMS:
        return UNKNOWN
    return "structured" if c >= FORMS else 'text {"value": 1}'


def sampling_tools(c: str, s: str) -> str:
    return "sampled words" if c >= URLS or c == s else undeclared(s, "isError refused -32602")


def form(said: str) -> Callable[[str, str], str]:
    def outcome(c: str, s: str) -> str:
        if s < FORMS:
            return UNKNOWN
        return said if c >= FORMS else undeclared(s, "isError refused -32601")

    return outcome


def url(c: str, s: str) -> str:
    if s < FORMS:
        return UNKNOWN
    if s < URLS:
        return "isError refused -32602, ran 0 times"
    if c >= URLS:
        return "accept"
    return undeclared(s, "isError refused -32602" if c >= FORMS else "isError refused -32601")


def url_required(c: str, s: str) -> str:
    if s != URLS:
        return UNKNOWN
    return {URLS: "-32042, then opened", MODERN: "opened"}.get(c, "isError, with the page")


def prompt_asks(c: str, s: str) -> str:
    if s < FORMS:
        return UNKNOWN
    return "About accept red" if c >= FORMS else undeclared(s, "error -32601")


RULES: dict[str, Rule] = {
    "revision": Rule(lambda c, s: c, "each side keeps its own"),
    "tools, in pages": always("ok"),
    "tools/call": always("ok"),
    "isError": always("isError it failed"),
    "unknown tool": always(UNKNOWN),
    "image": always("image"),
    "audio": block("audio", "2025-03-26"),
    "embedded resource": always("resource"),
    "resource link": block("resource_link", FORMS),
    "structured content": Rule(structured, "an older client gets its JSON as text"),
    "progress": always("ok"),
    "log messages": always("ok"),
    "cancellation": Rule(lambda c, s: "ok" if s >= FORMS else UNKNOWN),
    "sampling": always("sampled words"),
    "sampling with tools": Rule(sampling_tools, "declared from 2025-11-25 on"),
    "elicitation, form": Rule(form("accept red"), "declared from 2025-06-18 on"),
    "elicitation, declined": Rule(form("decline")),
    "elicitation, url": Rule(url, "declared from 2025-11-25 on"),
    "url required (-32042)": Rule(
        url_required, "a code of 2025-11-25 alone; a modern client is asked to open the page, an older one is told it"
    ),
    "roots": always("file:///home"),
    "resources": always("ok"),
    "missing resource": Rule(lambda c, s: "error -32602" if c == MODERN else "error -32002", "each era has its code"),
    "resource templates": always("ok"),
    "subscription": always("ok"),
    "tools/list_changed": always("ok"),
    "prompts": always("ok"),
    "prompt that elicits": Rule(prompt_asks),
    "completion": always("ok"),
    "trace context": always("ok"),
}


def expected(client: str, server: str) -> dict[str, str]:
    """Feature → outcome, for two revisions."""
    return {feature: rule.outcome(client, server) for feature, rule in RULES.items()}
