"""What authorization costs a call: `python -m loadtest.guarded`.

Two gateways stand in front of one server: one that asks nobody who he is, and one with a verified JWT of an issuer, ten
rules, a limit that is never reached, and the audit trail in a file. The same calls go to both in turn, round by round,
with the same headers: what clients send is no cost of ours, and the first gateway does not look at the token. The ratio
of the CPU of their processes is taken of each round by itself, so that what else the machine does falls on both. With
`--calls` no time is measured: a profiler counts the functions that each enters for a call, which is the same on every
machine, and those are listed of which there are more.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from loadtest import compared
from loadtest.compared import Compared, Found
from loadtest.targets import Bench

KEY = "bench"
LIVES = 3600
"""Seconds that a token is good: longer than any run."""


class Issuer:
    """An authorization server as far as the gateway needs one: its keys, on a port of this process."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        body = json.dumps({"keys": [{**public, "kid": KEY, "use": "sig", "alg": "RS256"}]}).encode()

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def token(self, audience: str) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": "ann", "aud": audience, "iat": now, "exp": now + LIVES, "groups": ["dev"]}
        more = {"scope": "mcp tools", "client_id": "bench"}
        return jwt.encode({**claims, **more}, self._key, "RS256", headers={"kid": KEY, "typ": "at+jwt"})

    def end(self) -> None:
        self._server.shutdown()


def rules() -> list[dict[str, Any]]:
    """Ten, of which the last one lets the call through."""
    others = [{"who": {"groups": [f"team-{n}"]}, "allow": [f"bench:tool_{n}_*"]} for n in range(7)]
    denied = [{"who": {"groups": ["dev"]}, "deny": ["bench:delete_*", "*:drop_*"]}, {"deny": ["bench:secret_*"]}]
    allowed = {"who": {"groups": ["dev"]}, "allow": ["bench:*"], "limits": {"bench:*": "500000/min"}}
    return [*others, *denied, allowed]


async def measured(options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder, issuer = Path(name), Issuer()
        bench = Bench(folder)
        guarded = {
            "auth": {"issuers": [{"issuer": issuer.url, "jwksUri": issuer.url, "groupsClaims": ["groups"]}]},
            "policy": rules(),
            "audit": {"file": str(folder / "audit.jsonl")},
        }
        try:
            both = Compared(bench, {"plain": {}, "guarded": guarded}, profiled=options.calls > 0)
            token = issuer.token(f"http://127.0.0.1:{both.addresses[1].port}/mcp")
            both.tokens = dict.fromkeys(both.names, token)
            return await compared.measured(both, options)
        finally:
            bench.end()
            issuer.end()


if __name__ == "__main__":
    compared.program(__doc__, measured)
