"""Whether all that the gateway said is valid in the revision in which it was said.

To clients it speaks as a server, to servers as a client, so one end of each connection is judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.matrix.recording import GATEWAY, Connection
from tests.support.schemas import MODERN, REVISIONS, Sender, assert_valid, definition_of_error

SHOWN = 300  # characters of a message in a failure
VERSION = "io.modelcontextprotocol/protocolVersion"


def faults(recorded: Iterable[Connection]) -> list[str]:
    """What is wrong, each once, however often it was said."""
    return list(dict.fromkeys(fault for connection in recorded for fault in judge(connection)))


def judge(connection: Connection) -> Iterator[str]:
    sender: Sender = "server" if connection.name == GATEWAY else "client"
    asked = methods(connection.said["client" if sender == "server" else "server"])
    for message in connection.said[sender]:
        revision = revision_of(message, connection)
        wrong = fault(message, revision, sender, asked)
        if wrong is not None:
            whom = "a client" if connection.name == GATEWAY else connection.name
            yield f"said to {whom} in {revision}: {json.dumps(message)[:SHOWN]}\n    {wrong}"


def methods(said: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Id of a request, as JSON → its method."""
    return {json.dumps(message["id"]): message["method"] for message in said if {"id", "method"} <= message.keys()}


def revision_of(message: Mapping[str, Any], connection: Connection) -> str:
    """Of a request that names its own, that; else the connection's."""
    params = message.get("params") or {}
    if message.get("method") == "initialize":
        offered: str = params["protocolVersion"]
        return offered
    named: str = (params.get("_meta") or {}).get(VERSION, connection.revision)
    return named


def fault(message: Mapping[str, Any], revision: str, sender: Sender, asked: Mapping[str, str]) -> str | None:
    if revision not in (*REVISIONS, MODERN):
        return "there is no such revision"
    method = None
    if "method" not in message and message.get("id") is not None:
        method = asked.get(json.dumps(message["id"]))
        if method is None:
            return "answers no request"
    try:
        assert_valid(message, revision, sender, method=method, error=definition_of_error(message, revision))
    except AssertionError as error:
        return str(error).partition("\n")[0]
    return None
