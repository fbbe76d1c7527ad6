#!/usr/bin/env bash
# Usage: everyday.sh STAGEDOOR serve [OPTIONS...]. Runs server-everything's Streamable HTTP mode on 127.0.0.1:3001
# and the gateway in front of it and of the other servers of examples/everyday.jsonc; ends both together.
set -euo pipefail
cd "$(dirname "$0")/.."
# npx and uvx find what tests/node and tests/servers have locked, so that nothing is fetched here.
export PATH="$PWD/tests/support/bin:$PWD/tests/node/node_modules/.bin:$PATH"

PORT=3001 mcp-server-everything streamableHttp &
everything=$!
"$@" --config examples/everyday.jsonc &
gateway=$!
trap 'kill -TERM "$gateway" 2>/dev/null || true' TERM INT
trap 'kill -TERM "$everything" 2>/dev/null || true' EXIT

# A trapped signal interrupts the first wait; the loop then waits until the gateway has drained.
status=0
while kill -0 "$gateway" 2>/dev/null; do
  status=0
  wait "$gateway" || status=$?
done
exit "$status"
