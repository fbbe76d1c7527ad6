"""Bytes on the wire, shared by the edge, the backends and the command line; nothing here knows MCP."""
