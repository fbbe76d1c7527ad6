"""A server on standard streams that needs long to start: until somebody makes the file `<pid>.go` in a folder. It
speaks one era, or both, and has one tool. To be run with `python -S -E`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
ECHO = {"name": "echo", "inputSchema": {"type": "object"}}


def answer(era: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The members of the response."""
    modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
    if era == "modern" and not modern:
        return {"error": {"code": -32601, "message": "Method not found"}}
    if era == "legacy" and method == "server/discover":
        return {"error": {"code": -32601, "message": "Method not found"}}
    capabilities: dict[str, Any] = {"tools": {}}
    cached = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"} if modern else {}
    if method == "server/discover":
        return {"result": {"supportedVersions": [MODERN], "capabilities": capabilities, **cached}}
    if method == "initialize":
        info = {"name": "slow", "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    if method == "tools/list":
        return {"result": {"tools": [ECHO], **cached}}
    if method == "tools/call":
        kind = {"resultType": "complete"} if modern else {}
        return {"result": {"content": [{"type": "text", "text": str(os.getpid())}], **kind}}
    return {"result": {}}


def main(folder: Path, era: str) -> None:
    mine = folder / str(os.getpid())
    while not mine.with_suffix(".go").exists():
        time.sleep(0.01)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            said = {"jsonrpc": "2.0", "id": message["id"], **answer(era, message["method"], message.get("params", {}))}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
