"""A server for one user, by the key in its environment. A wrong key is no reason to start, and it says so."""

import json
import os
import sys
from typing import Any

KEY = os.environ["SERVICE_KEY"]


def answer(method: str, params: dict[str, Any]) -> Any:
    match method:
        case "initialize":
            info = {"name": "keyed", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [{"name": "whose", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": json.dumps({"key": KEY, "pid": os.getpid()})}]}
        case "ping":
            return {}
    return None


print(f"I begin with {KEY}", file=sys.stderr, flush=True)
print(f"not JSON: {KEY}", flush=True)
if KEY.startswith("bad"):
    sys.exit(f"{KEY} is refused by the service")
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params") or {})
    said = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
