"""What traces cost a call: `python -m loadtest.traced`.

Four gateways stand in front of one server: two without `gateway.traces`, of which the second shows how far two that are
the same lie apart; one that samples no trace that begins here; and one that samples each, and sends it to a collector.
There is no gateway without the places at which a tracer would be asked, so that traces which are off cost nothing is
said by what is counted: with `--calls` a profiler counts the functions that each enters for a call, and lists those of
which there are more than without; tests/actors/test_traces.py holds that none of them is entered where traces are off.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from loadtest import compared
from loadtest.compared import Compared, Found
from loadtest.targets import Bench


class Collector:
    """Takes all that it is sent, on a port of this process."""

    def __init__(self) -> None:
        class Take(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()


async def measured(options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory() as name:
        bench, collector = Bench(Path(name)), Collector()
        sections: dict[str, dict[str, Any]] = {
            "off": {},
            "off_again": {},
            "none_sampled": {"traces": {"endpoint": collector.url, "sample": 0}},
            "all_sampled": {"traces": {"endpoint": collector.url, "sample": 1}},
        }
        try:
            gateways = Compared(bench, sections, profiled=options.calls > 0)
            return await compared.measured(gateways, options)
        finally:
            bench.end()
            collector.end()


if __name__ == "__main__":
    compared.program(__doc__, measured)
