"""What the errors of the gateway's own making say beside their sentence."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import below, none, tree

TO_SERVERS = {
    "call_ended",
    "doubtful",
    "too_many",
    "no_client",
    "session_ended",
    "content_not_expressible",
    "no_answer",
}
"""Reasons of errors that a server gets for a question of its own: nothing was to be executed."""
OF_A_QUESTION = Path("actors/machines/session/server_requests.py")


def made() -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Every error of a fault on this side: where it is made, and its keywords."""
    for file in below("actors"):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("errors.internal", "internal") and node.args:
                keywords = {keyword.arg or "**": keyword.value for keyword in node.keywords}
                if file != OF_A_QUESTION:
                    yield f"{file}:{node.lineno}", keywords


def test_every_error_after_a_failure_has_a_reason_and_says_whether_the_request_may_have_been_executed() -> None:
    found = list(made())
    assert len(found) > 40
    silent = []
    for where, keywords in found:
        reason = keywords.get("reason")
        to_server = isinstance(reason, ast.Constant) and reason.value in TO_SERVERS
        if reason is None or not ("executed" in keywords or to_server):
            silent.append(where)
    none(silent)
