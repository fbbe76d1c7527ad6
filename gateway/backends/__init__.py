"""Transports to MCP servers behind the gateway (`actors.ports.Transport`): they carry frames and know no methods."""
