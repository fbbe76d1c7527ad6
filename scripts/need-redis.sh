#!/usr/bin/env bash
# Makes sure that a redis-server is on PATH. The tests start their own on free ports; a running one is not used.
set -euo pipefail
command -v redis-server >/dev/null || "$(dirname "$0")/install-package.sh" redis-server redis-server redis
