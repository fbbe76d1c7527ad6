"""What the edge, the backends and the client share: bytes on the wire, child processes, and what HTTP says of MCP."""
