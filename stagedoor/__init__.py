"""Stagedoor's public API: servers that run inside the gateway (`"native": "module:server"` in a configuration)."""

from gateway.native import Context, Server, ToolError

__all__ = ["Context", "Server", "ToolError"]
