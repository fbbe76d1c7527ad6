"""FastMCP's own proxy in front of one HTTP server, in .venv-peers/fastmcp: `fastmcp_proxy.py PORT BACKEND_URL`."""

import sys

from fastmcp.server import create_proxy

if __name__ == "__main__":
    port, url = int(sys.argv[1]), sys.argv[2]
    create_proxy(url).run(transport="http", host="127.0.0.1", port=port, show_banner=False, log_level="warning")
